"""Errors that only the data can tell: raised when the compiled program runs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._types import Array


def raise_where(
    bad: Array, values: Array, message: Callable[[np.ndarray], str]
) -> Array:
    """`values`; the program fails with `message(values)` where any of `bad` is true.

    The host is asked only then, so a good run pays for one reduction. The error is
    jax's own for a failed callback, and carries the message.

    Args:
        bad: bool, of any shape.
        values: what the message is made of.
        message: takes `values` as a NumPy array.
    """

    def fail(values: np.ndarray) -> np.ndarray:
        raise ValueError(message(np.asarray(values)))

    def ask(values: Array) -> Array:
        return jax.pure_callback(
            fail, jax.ShapeDtypeStruct(values.shape, values.dtype), values
        )

    return lax.cond(jnp.any(bad), ask, lambda values: values, values)
