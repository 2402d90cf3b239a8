"""Batch normalisation as two pure functions, the moments and the affine map.

Ioffe and Szegedy, "Batch Normalization", ICML 2015, Algorithm 1.
"""

import jax.numpy as jnp
from jax import lax

from ._types import Array, affine, float32_at_least


def batch_moments(x: Array) -> tuple[Array, Array]:
    """Mean and biased variance over all axes but the last, in float32 at least.

        mean = E[x],    var = max(0, E[x**2] - mean**2)

    Args:
        x: `[..., feature]`.

    Returns:
        Mean and variance, `[feature]` each, in one pass over `x`.
    """
    x = x.astype(float32_at_least(x.dtype))
    axes = tuple(range(x.ndim - 1))
    mean = x.mean(axes)
    return mean, jnp.maximum(0, jnp.square(x).mean(axes) - jnp.square(mean))


def affine_of(
    mean: Array,
    var: Array,
    scale: Array | float,
    bias: Array | float,
    epsilon: float,
) -> tuple[Array, Array]:
    """`factor` and `shift`: normalisation is `x * factor + shift`, per feature.

        x * factor + shift = (x - mean) / sqrt(var + epsilon) * scale + bias

    One multiply and add. Written with `x - mean` first, the derivative
    would keep `x - mean` beside `x`, and XLA does keep both where it changes the layout
    between them: one activation a layer on an RTX 4090.

    Args:
        mean, var, scale, bias: `[feature]`, or numbers.

    Returns:
        `[feature]` each, in `mean`'s dtype.
    """
    factor = lax.rsqrt(var + epsilon) * scale
    return factor, bias - mean * factor


def normalize(x: Array, factor: Array, shift: Array) -> Array:
    """`x * factor + shift` for `x`, `[..., feature]`, in `factor`'s dtype."""
    return affine(x.astype(factor.dtype), factor, shift)
