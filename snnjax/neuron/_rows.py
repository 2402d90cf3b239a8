"""Rows of a buffer that a loop over time reads from, and writes over."""

from jax import lax

from .._types import Array


def row_at(buffer: Array, t: Array | int) -> Array:
    return lax.dynamic_index_in_dim(buffer, t, 0, keepdims=False)


def put_row(buffer: Array, t: Array | int, row: Array) -> Array:
    return lax.dynamic_update_index_in_dim(buffer, row.astype(buffer.dtype), t, 0)
