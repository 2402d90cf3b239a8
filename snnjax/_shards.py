"""What a traced program can know of the devices that share its batch.

Under automatic partitioning an array says nothing of its sharding while it is traced.
`jax.set_mesh` around the call does, as `snnjax.train` uses it. Inside `jax.shard_map`
it says over which devices it varies.
"""

from typing import Any

import jax
from jax import lax

BATCH_AXIS = "batch"  # of the mesh


def batch_shards() -> int:
    """Devices that share the batch; 1 without a mesh, and within `jax.shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[BATCH_AXIS] if BATCH_AXIS in mesh.auto_axes else 1


def alike(tree: Any) -> Any:
    """The tree, each array varying over all devices that any of them varies over.

    Equal in value. A derivative written by hand returns cotangents that all vary so,
    which `jax.shard_map` refuses for an operand that does not; by the transpose of this
    such an operand gets their sum over the devices.
    """
    over = frozenset[Any]().union(*map(_varies_over, jax.tree.leaves(tree)))

    def vary(a: Any) -> Any:
        missing = tuple(over - _varies_over(a))
        return lax.pcast(a, missing, to="varying") if missing else a

    return jax.tree.map(vary, tree)


def _varies_over(a: Any) -> frozenset[Any]:
    return jax.typeof(a).manual_axis_type.varying
