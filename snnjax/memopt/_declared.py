"""Data that is declared to hold certain values: the program fails where it does not."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from .._gate import start_after
from .._types import Array
from ._fault import raise_where
from ._grid import Grid


def held_to(x: Array, grid: Grid, message: Callable[[float], str]) -> Array:
    """`x`, unchanged; the program fails with `message(worst)` where it leaves `grid`.

    Negative zero is outside of every grid, since no compressor gives it back.
    """
    if not x.size:
        return x
    # float32 holds every bound that can be declared, and does not wrap. float64 stays:
    # rounded, a value beside a member would be one.
    wide = x.dtype if x.dtype == jnp.float64 else jnp.float32
    value = lax.stop_gradient(x).astype(wide)
    k = value / 2.0**grid.exponent
    outside = (k < grid.lo) | (k > grid.hi) | (k != jnp.round(k))
    outside |= (value == 0) & jnp.signbit(value)
    worst = jnp.max(jnp.where(outside, value, -jnp.inf))
    worst = raise_where(jnp.any(outside), worst, message)
    # `worst` is -inf for good data: a tie on it is one on a number, at no value.
    return start_after(x, worst)
