"""Learned values of every time step, of which a sequence takes the first."""

import jax.numpy as jnp

from ._types import Array


def per_step(values: Array, x: Array, owner: str) -> Array:
    """The value of each time step, with the axes of `x`.

    Args:
        values: `[time]`, at least as many as there are time steps.
        x: `[time, ...]`.
        owner: what they belong to, for the error.

    Returns:
        `[time, 1, ..., 1]`.

    Raises:
        ValueError: `x` has more time steps.
    """
    steps, known = x.shape[0], values.shape[0]
    if steps > known:
        raise ValueError(
            f"`x` has shape {tuple(x.shape)}, {steps} time steps; allowed are up to "
            f"{known}, which this {owner} has values for: make it with "
            f"`time_steps={steps}`."
        )
    # No slice: a slice of all is none, and the planner, which compares the traces of a
    # sequence and of a part of it, would see two programs.
    first = jnp.take(values, jnp.arange(steps), mode="clip")
    return first.reshape((-1,) + (1,) * (x.ndim - 1))
