"""Data parallelism: one mesh axis, the batch; parameters are on every device.

Arrays keep their global meaning, so that batch norm's moments are those of the global
batch and nothing else changes. Several processes run the same script: each calls
`jax.distributed.initialize()` first and then hands over its own part of every batch.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .._shards import BATCH_AXIS


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh whose one axis, "batch", runs over the devices.

    Set it around what is compiled for it, `with jax.set_mesh(mesh):`, as `Trainer`
    does. Layers then know that devices share the batch, and gather nothing; a plan that
    `memopt.make_plan` makes there, of a batch from `shard`, has the bytes of a device.

    Args:
        devices: all of all processes if None.
    """
    devices = jax.devices() if devices is None else devices
    kinds = (AxisType.Auto,)
    return jax.make_mesh((len(devices),), (BATCH_AXIS,), kinds, devices=devices)


def shard(batch: Any, mesh: Mesh) -> Any:
    """Divides a batch over the devices of the mesh, samples in order.

    Args:
        batch: pytree of arrays: `[time, batch, ...]`, or `[batch]` such as labels. With
            several processes, this one's part, of the same size in each.
        mesh: from `make_mesh`.

    Returns:
        The global arrays.

    Raises:
        ValueError: the devices cannot share the samples equally.
    """
    return jax.tree.map(lambda a: _divided(a, mesh), batch)


def replicate(tree: Any, mesh: Mesh) -> None:
    """Puts every Variable of a model or an optimizer on every device, in place.

    Args:
        tree: any nnx module, or metrics, made from the same seed in every process.
        mesh: from `make_mesh`.

    Raises:
        AssertionError: processes have different values.
    """
    everywhere = NamedSharding(mesh, PartitionSpec())
    nnx.update(tree, jax.tree.map(lambda a: _put(a, everywhere), nnx.state(tree)))


def _put(a: jax.Array, sharding: NamedSharding) -> jax.Array:
    if sharding.is_fully_addressable:
        return jax.device_put(a, sharding)
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        data = _put(jax.random.key_data(a), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(a))
    # Of NumPy's arrays, JAX checks that every process has the same.
    return jax.device_put(np.asarray(a), sharding)


def samples_in(batch: Any) -> int:
    """Samples in the first array of a batch."""
    first = jax.tree.leaves(batch)[0]
    return first.shape[_batch_axis(first)]


def _batch_axis(a: Any) -> int:
    return 1 if a.ndim > 1 else 0


def _divided(a: Any, mesh: Mesh) -> jax.Array:
    axis = _batch_axis(a)
    here = len(mesh.local_devices)
    if a.shape[axis] % here:
        raise ValueError(
            f"a batch has {a.shape[axis]} samples (axis {axis} of shape "
            f"{tuple(a.shape)}) for {here} devices of this process; allowed is a "
            "multiple of that: drop or fill up the last batch."
        )
    spec = PartitionSpec(*[None] * axis, BATCH_AXIS)
    return jax.make_array_from_process_local_data(NamedSharding(mesh, spec), a)
