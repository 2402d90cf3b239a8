"""Sums over chunks, in float32 at least."""

import jax.numpy as jnp

from .._types import Array, float32_at_least


def accumulator(a: Array) -> Array:
    """Where a sum that starts with `a` is kept; half precisions would lose it."""
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return a
    return a.astype(float32_at_least(a.dtype))


def added(sums: list[Array], new: list[Array]) -> list[Array]:
    """Each sum with its new part."""
    return [a + b.astype(a.dtype) for a, b in zip(sums, new, strict=True)]
