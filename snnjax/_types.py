"""Shared vocabulary: the array type, and the checks on the time-major layout.

Time-major, channels-last everywhere: `[time, batch, height, width, channel]` for
images, `[time, batch, feature]` for vectors.
"""

from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array


def check_floating(x: Array, name: str) -> None:
    """Raises unless `x` has a floating dtype."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"`{name}` has dtype {x.dtype}; allowed is a floating dtype, since it has "
            "a gradient. Convert it, for instance with `x.astype('float32')`."
        )


def float32_at_least(dtype: Any) -> Any:
    """The dtype to compute in: float32 for half precisions, else the dtype itself."""
    return jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype


def with_axes_of(x: Array, a: Array) -> Array:
    """`a`, of the last axes of `x` or fewer, with ones before them."""
    return a.reshape((1,) * (x.ndim - a.ndim) + a.shape)


def affine(x: Array, scale: Array, shift: Array) -> Array:
    """`x * scale + shift` for `x`, `[..., feature]`, and two of `[feature]`."""
    return x * with_axes_of(x, scale) + with_axes_of(x, shift)


def check_time_major(x: Array, name: str, layout: str) -> None:
    """Raises unless `x` has the rank of `layout` and at least one time step.

    Args:
        x: the array that came.
        name: what the caller calls it.
        layout: names of the axes, such as `"time batch height width channel"`; a last
            name `...` allows any number of further axes.
    """
    axes = layout.split()
    rank = len(axes) - (axes[-1] == "...")
    right = x.ndim >= rank if axes[-1] == "..." else x.ndim == rank
    shape, wanted = tuple(x.shape), ", ".join(axes)
    if not right:
        raise ValueError(
            f"`{name}` has shape {shape} of rank {x.ndim}; allowed is [{wanted}]. A "
            "single time step needs a leading axis, `x[None]`; channels-first arrays "
            "need `jnp.moveaxis(x, 2, -1)`."
        )
    if x.shape[0] == 0:
        raise ValueError(
            f"`{name}` has shape {shape}, without a single time step; axis 0 is time "
            f"([{wanted}]) and must be at least 1."
        )
