"""Errors that only the data can tell: raised when the compiled program runs."""

from collections.abc import Callable

import jax
import numpy as np
from jax import lax

from .._types import Array


def raise_where(bad: Array, value: Array, message: Callable[[float], str]) -> Array:
    """`value`; the program fails with `message(value)` where `bad` is true.

    The host is asked only then, so that a good run pays for a branch. How the failure
    arrives is jax's affair; the message is in its text.

    Args:
        bad: a scalar, bool.
        value: a scalar that the message is made of. It gets no gradient.
        message: takes the value as a number.

    Returns:
        `value`. The check is part of the program only if something depends on this.
    """
    value = lax.stop_gradient(value)

    def fail(bad: np.ndarray, value: np.ndarray) -> np.ndarray:
        if bad:  # under vmap both branches run
            raise ValueError(message(np.asarray(value).item()))
        return np.asarray(value)

    def ask(bad: Array, value: Array) -> Array:
        shape = jax.ShapeDtypeStruct(value.shape, value.dtype)
        return jax.pure_callback(fail, shape, bad, value, vmap_method="sequential")

    return lax.cond(bad, ask, lambda bad, value: value, bad, value)
