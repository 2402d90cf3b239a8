"""A loop over time that writes in place, for neurons with one array as their state.

As `_lif.py` does it, for dynamics of any kind: forward, charged potentials are written
over the input current, and spikes are compared outside the loop; backward, the states
are computed again and the gradient is written over the incoming one. What is kept is
the input current. Of `jax.lax.scan`, XLA would allocate the stacked results when the
program starts.
"""

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from .._gate import start_after
from .._marks import CAUSAL, marked
from .._membrane import Surrogate
from .._shards import alike
from .._types import Array, float32_at_least
from ._rows import put_row, row_at

Constants = tuple[Array, ...]


class Rule(Protocol):
    """One step of a neuron, with settings that can be hashed."""

    @property
    def surrogate(self) -> Surrogate:
        """The spike function."""
        ...

    def charge(self, constants: Constants, state: Array, x: Array) -> Array:
        """Potential above the threshold, of the current `x` of one step."""
        ...

    def reset(
        self, constants: Constants, state: Array, above: Array, s: Array
    ) -> Array:
        """State after the step, with its spikes `s`."""
        ...


@marked(CAUSAL, static_argnums=0)
def causal(rule: Rule, *arrays: Array) -> tuple[Array, Array]:
    """Spikes of all time steps, and the last state.

    Args:
        rule: of one step.
        *arrays: constants, of no axis or as many as a step; the state, whose first axis
            is the batch and whose rank is that of a step; the input current, `[time,
            batch, ...]`.

    Returns:
        Spikes, in the current's shape and dtype, and the state.
    """
    *constants, state, x = alike(arrays)
    return _spikes(rule, tuple(constants), state, x)


def _step(
    rule: Rule, constants: Constants, state: Array, x: Array
) -> tuple[Array, Array, Array]:
    """Potential above the threshold, spikes and state of one step."""
    above = rule.charge(constants, state, x)
    s = rule.surrogate(above)
    return above, s, rule.reset(constants, state, above, s)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _spikes(
    rule: Rule, constants: Constants, state: Array, x: Array
) -> tuple[Array, Array]:
    def step(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        state, above = carry
        now, _, state = _step(rule, constants, state, row_at(above, t))
        return state, put_row(above, t, now)

    start = start_after(state, x), x.astype(float32_at_least(x.dtype))
    state, above = lax.fori_loop(0, x.shape[0], step, start)
    return rule.surrogate(above).astype(x.dtype), state


def _forward(rule: Rule, constants: Constants, state: Array, x: Array) -> Any:
    return _spikes(rule, constants, state, x), (constants, state, x)


def _backward(
    rule: Rule,
    residuals: tuple[Constants, Array, Array],
    cotangents: tuple[Array, Array],
) -> tuple[Constants, Array, Array]:
    (constants, state, x), (ds, dstate) = residuals, cotangents
    dtype = float32_at_least(x.dtype)
    before = _states(rule, constants, state, x, ds)

    def step(i: Array, carry: Any) -> Any:
        dconstants, dstate, g = carry
        t = x.shape[0] - 1 - i
        now = constants, row_at(before, t), row_at(x, t).astype(dtype)
        _, pullback = jax.vjp(lambda *a: _step(rule, *a)[1:], *now)
        more, dstate, dx = pullback((row_at(g, t).astype(dtype), dstate))
        return jax.tree.map(jnp.add, dconstants, more), dstate, put_row(g, t, dx)

    start = jax.tree.map(jnp.zeros_like, constants), start_after(dstate, ds), ds
    return lax.fori_loop(0, x.shape[0], step, start)


_spikes.defvjp(_forward, _backward)


def _states(
    rule: Rule, constants: Constants, state: Array, x: Array, due: Array
) -> Array:
    """The state before every step, in a buffer that starts when `due` exists."""

    def step(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        state, before = carry
        now = row_at(x, t).astype(state.dtype)
        return _step(rule, constants, state, now)[2], put_row(before, t, state)

    zeros = jnp.zeros((x.shape[0], *state.shape), state.dtype)
    start = start_after(state, due), start_after(zeros, due)
    return lax.fori_loop(0, x.shape[0], step, start)[1]
