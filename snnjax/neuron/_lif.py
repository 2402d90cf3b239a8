"""Leaky integrate-and-fire over all time steps, as a function of arrays."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import surrogate as _surrogate
from .._gate import start_after
from .._marks import CAUSAL, marked
from .._membrane import Membrane, Surrogate
from .._types import Array, check_floating, check_time_major, float32_at_least


def lif(
    x: Array,
    v: Array | None = None,
    *,
    tau: float | Array = 2.0,
    decay_input: bool = True,
    v_threshold: float = 1.0,
    v_reset: float | None = 0.0,
    detach_reset: bool = False,
    surrogate: Surrogate = _surrogate.atan,
) -> tuple[Array, Array]:
    """Leaky integrate-and-fire over all time steps; the equations are those of
    `snnjax.neuron`.

    The backward pass keeps the input current and nothing else: the membrane potential
    is computed again, in place, and the gradient is written over the incoming one.

    Args:
        x: input current, `[time, ...]`, floating. Half precisions keep a float32
            membrane.
        v: membrane potential before the first step, `[...]`; `None` is rest.
        tau: membrane time constant in time steps, at least 1; `math.inf` is IF. An
            array, of a shape that broadcasts to `x[0]`, is differentiated and not
            checked.
        decay_input: whether the leak also scales the input.
        v_threshold: firing threshold.
        v_reset: potential after a spike; `None` subtracts the threshold instead.
        detach_reset: stop the gradient through the spike in the reset.
        surrogate: spike function, such as `snnjax.surrogate.atan`.

    Returns:
        Spikes, `[time, ...]` in `x`'s dtype, and the last membrane potential, `[...]`.

    Raises:
        ValueError: no time step, integer `x`, or `tau` below 1.

    Source: charge, fire and reset as in SpikingJelly; the backward pass is
    backpropagation through time written out (Werbos, Proceedings of the IEEE 1990).
    """
    check_time_major(x, "x", "time ...")
    check_floating(x, "x")
    check_tau(tau)
    _check_number(v_threshold, "v_threshold")
    _check_number(0.0 if v_reset is None else v_reset, "v_reset")
    dtype = float32_at_least(x.dtype)
    rule = Membrane(decay_input, v_threshold, v_reset, detach_reset, surrogate)
    leak = _leak(tau, x.ndim - 1, dtype)
    v = jnp.full(x.shape[1:], rule.rest, dtype) if v is None else jnp.asarray(v, dtype)
    if v.shape != x.shape[1:]:
        raise ValueError(
            f"`v` has shape {v.shape}; allowed is {x.shape[1:]}, one time step of `x`."
        )
    with jax.named_scope("snn.lif"):
        return _causal_multi_step(rule, leak, v, x)


def _leak(tau: float | Array, ndim: int, dtype: Any) -> Array:
    """`1 / tau`, one number or with the axes of one time step."""
    leak = jnp.asarray(1 / tau, dtype)
    return leak.reshape((1,) * (ndim - leak.ndim) + leak.shape) if leak.ndim else leak


def check_tau(tau: float | Array) -> None:
    if not isinstance(tau, jax.Array) and not np.all(np.asarray(tau) >= 1):
        raise ValueError(
            f"`tau` is {tau}; a membrane time constant is at least 1 time step "
            "(`math.inf` for no leak)."
        )


def _check_number(value: Any, name: str) -> None:
    if not isinstance(value, int | float):
        raise ValueError(
            f"`{name}` is of type {type(value).__name__}; allowed is a Python number."
        )


def _at(buffer: Array, t: Array | int) -> Array:
    return lax.dynamic_index_in_dim(buffer, t, 0, keepdims=False)


def _put(buffer: Array, t: Array | int, row: Array) -> Array:
    return lax.dynamic_update_index_in_dim(buffer, row.astype(buffer.dtype), t, 0)


def _potentials(rule: Membrane, leak: Array, v: Array, x: Array) -> tuple[Array, Array]:
    """Charged potentials `h` of all steps, written over `x`, and the last `v`.

    A scan that stacks its outputs would start from a buffer of zeros, which XLA
    allocates at the start of the program and keeps alive all through (design 4.2).
    """
    start = leak, start_after(v, x), x.astype(v.dtype)
    _, v, h = lax.fori_loop(0, x.shape[0], _charging(rule), start)
    return h, v


@functools.lru_cache
def _charging(rule: Membrane) -> Callable[..., tuple[Array, Array, Array]]:
    """The body of the loop; one object a rule, so that JAX compiles it once."""

    def step(t: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        leak, v, h = carry
        ht = rule.charge(leak, v, _at(h, t))
        return leak, rule.fire_and_reset(ht)[1], _put(h, t, ht)

    return step


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multi_step(rule: Membrane, leak: Array, v: Array, x: Array) -> tuple[Array, Array]:
    h, v = _potentials(rule, leak, v, x)
    # Outside the loop, so that XLA fuses it with whatever reads the spikes, and so that
    # the planner can read off the program that they are 0 or 1.
    return rule.fire(h).astype(x.dtype), v


def _forward(rule: Membrane, leak: Array, v: Array, x: Array):
    return _multi_step(rule, leak, v, x), (leak, v, x)


def _backward(
    rule: Membrane, residuals: tuple[Array, ...], cotangents: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Walks time backwards over recomputed potentials; `dx` is written over `ds`."""
    (leak, v0, x), (ds, dv) = residuals, cotangents
    h, _ = _potentials(rule, leak, v0, x)
    gain = leak if rule.decay_input else jnp.ones_like(leak)

    def step(i: Array, carry: tuple[Array, Array, Array]):
        dleak, dv, g = carry
        t = x.shape[0] - 1 - i
        ht = _at(h, t)
        _, pullback = jax.vjp(rule.fire_and_reset, ht)
        (dh,) = pullback((_at(g, t).astype(dv.dtype), dv))
        before = _at(h, jnp.maximum(t - 1, 0))
        v = jnp.where(t == 0, v0, rule.fire_and_reset(before)[1])
        dleak += _sum_to(dh * _charge_by_leak(rule, leak, v, ht), leak.shape)
        return dleak, (1 - leak) * dh, _put(g, t, gain * dh)

    start = jnp.zeros_like(leak), start_after(dv, ds), ds
    dleak, dv, dx = lax.fori_loop(0, x.shape[0], step, start)
    return dleak, dv, dx


_multi_step.defvjp(_forward, _backward)


@marked(CAUSAL, static_argnums=0)
def _causal_multi_step(
    rule: Membrane, leak: Array, v: Array, x: Array
) -> tuple[Array, Array]:
    return _multi_step(rule, leak, v, x)


def _charge_by_leak(rule: Membrane, leak: Array, v: Array, h: Array) -> Array:
    """d charge / d leak; the input current is gone by then, but `h` contains it."""
    if rule.decay_input:
        return jnp.where(leak > 0, (h - v) / jnp.where(leak > 0, leak, 1), 0)
    return rule.rest - v


def _sum_to(a: Array, shape: tuple[int, ...]) -> Array:
    """The transpose of broadcasting from `shape` to `a.shape`."""
    leading = tuple(range(a.ndim - len(shape)))
    a = a.sum(leading)
    ones = tuple(i for i, n in enumerate(shape) if n == 1)
    return a.sum(ones, keepdims=True)
