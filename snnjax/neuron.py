"""Multi-step spiking neurons: integrate-and-fire, leaky, leaky with a learned leak.

One neuron step is three lines, charge, fire, reset (Fang et al., "SpikingJelly",
Science Advances 2023, equations 1 to 3):

    h[t] = v[t-1] + x[t]                                       IF, charge
    h[t] = v[t-1] + (x[t] - (v[t-1] - rest)) / tau             LIF, decay_input=True
    h[t] = v[t-1] - (v[t-1] - rest) / tau + x[t]               LIF, decay_input=False
    s[t] = 1 if h[t] >= v_threshold else 0                     fire
    v[t] = h[t] * (1 - s[t]) + v_reset * s[t]                  reset, hard
    v[t] = h[t] - v_threshold * s[t]                           reset, soft: v_reset=None

with `rest = v_reset`, or 0 for the soft reset. The mathematics is the function `lif`;
the modules `IF`, `LIF` and `PLIF` only own settings and parameters. `scan` and
`ScanNeuron` run dynamics of your own.

Every `__call__` starts at rest, so nothing has to be reset between batches. To run on a
stream, one time step (or a few) a call with the membrane kept, use `keep_state`.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from . import surrogate as _surrogate
from ._gate import start_after
from ._marks import CAUSAL, marked
from ._types import Array, check_floating, check_time_major, float32_at_least

Surrogate = Callable[[Array], Array]
Step = Callable[[Array, Any], tuple[Array, Any]]


# --- the mathematics ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Membrane:
    """The settings of charge, fire and reset; `leak` is `1 / tau`, 0 for IF."""

    decay_input: bool
    v_threshold: float
    v_reset: float | None
    detach_reset: bool
    surrogate: Surrogate

    @property
    def rest(self) -> float:
        return 0.0 if self.v_reset is None else self.v_reset

    def charge(self, leak: Array, v: Array, x: Array) -> Array:
        gain = leak if self.decay_input else 1
        return (1 - leak) * v + leak * self.rest + gain * x

    def fire(self, h: Array) -> Array:
        return self.surrogate(h - self.v_threshold)

    def reset(self, h: Array, s: Array) -> Array:
        if self.v_reset is None:
            return h - self.v_threshold * s
        return h * (1 - s) + self.v_reset * s

    def fire_and_reset(self, h: Array) -> tuple[Array, Array]:
        s = self.fire(h)
        return s, self.reset(h, lax.stop_gradient(s) if self.detach_reset else s)


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
    """Leaky integrate-and-fire over all time steps; the equations head this file.

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
    _check_tau(tau)
    _check_number(v_threshold, "v_threshold")
    _check_number(0.0 if v_reset is None else v_reset, "v_reset")
    dtype = float32_at_least(x.dtype)
    rule = _Membrane(decay_input, v_threshold, v_reset, detach_reset, surrogate)
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


def _check_tau(tau: float | Array) -> None:
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


def _potentials(
    rule: _Membrane, leak: Array, v: Array, x: Array
) -> tuple[Array, Array]:
    """Charged potentials `h` of all steps, written over `x`, and the last `v`.

    A scan that stacks its outputs would start from a buffer of zeros, which XLA
    allocates at the start of the program and keeps alive all through (design 4.2).
    """
    start = leak, start_after(v, x), x.astype(v.dtype)
    _, v, h = lax.fori_loop(0, x.shape[0], _charging(rule), start)
    return h, v


@functools.lru_cache
def _charging(rule: _Membrane) -> Callable[..., tuple[Array, Array, Array]]:
    """The body of the loop; one object a rule, so that JAX compiles it once."""

    def step(t: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        leak, v, h = carry
        ht = rule.charge(leak, v, _at(h, t))
        return leak, rule.fire_and_reset(ht)[1], _put(h, t, ht)

    return step


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multi_step(
    rule: _Membrane, leak: Array, v: Array, x: Array
) -> tuple[Array, Array]:
    h, v = _potentials(rule, leak, v, x)
    # Outside the loop, so that XLA fuses it with whatever reads the spikes, and so that
    # the planner can read off the program that they are 0 or 1.
    return rule.fire(h).astype(x.dtype), v


def _forward(rule: _Membrane, leak: Array, v: Array, x: Array):
    return _multi_step(rule, leak, v, x), (leak, v, x)


def _backward(
    rule: _Membrane, residuals: tuple[Array, ...], cotangents: tuple[Array, Array]
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
    rule: _Membrane, leak: Array, v: Array, x: Array
) -> tuple[Array, Array]:
    return _multi_step(rule, leak, v, x)


def _charge_by_leak(rule: _Membrane, leak: Array, v: Array, h: Array) -> Array:
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


def scan(step: Step, x: Array, state: Any) -> tuple[Array, Any]:
    """Runs dynamics of your own over all time steps, on `jax.lax.scan`.

    Args:
        step: `(x[t], state) -> (s[t], state)`; a state is any pytree of arrays.
        x: input, `[time, ...]`.
        state: before the first step.

    Returns:
        Outputs of all steps, `[time, ...]`, and the last state.
    """
    check_time_major(x, "x", "time ...")

    def body(state: Any, x: Array) -> tuple[Any, Array]:
        s, state = step(x, state)
        return state, s

    with jax.named_scope("snn.scan"):
        state, s = lax.scan(body, state, x)
    return s, state


# --- the modules ----------------------------------------------------------------------


class State(nnx.Variable[Any]):
    """What a neuron keeps from call to call; `()` before the first."""


class Neuron(nnx.Module):
    """A neuron of many steps: `[time, batch, ...]` current in, spikes out.

    A subclass says where it starts and how it runs; `__call__` and `keep_state` follow.
    """

    def __init__(self) -> None:
        self.kept: State | None = nnx.data(None)

    @abc.abstractmethod
    def initial_state(self, x: Array) -> Any:
        """State at rest, any pytree of arrays, for one step `x`, `[batch, ...]`."""

    @abc.abstractmethod
    def multi_step(self, x: Array, state: Any) -> tuple[Array, Any]:
        """Spikes for `x`, `[time, batch, ...]`, from `state`, and the last state."""

    def __call__(self, x: Array) -> Array:
        """Runs all time steps of `x`, `[time, batch, ...]`; spikes have its shape."""
        check_time_major(x, "x", "time batch ...")
        check_floating(x, "x")
        start = self.initial_state(x[0])
        if self.kept is None:
            return self.multi_step(x, start)[0]
        kept = self.kept.get_value()
        spikes, state = self.multi_step(x, _continue(kept, start))
        self.kept.set_value(state)
        return spikes


def _continue(kept: Any, start: Any) -> Any:
    if not jax.tree.leaves(kept):
        return start
    shapes = [str(jax.tree.map(jnp.shape, state)) for state in (kept, start)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"the kept state has shape {shapes[0]}, but the input asks for "
            f"{shapes[1]}; call `snnjax.neuron.reset_state(model)` when a new stream "
            "begins."
        )
    return kept


class ScanNeuron(Neuron):
    """A neuron of your own dynamics: write `initial_state` and `step`.

    Example:
        >>> import jax.numpy as jnp
        >>> import snnjax
        >>> class Integrator(snnjax.neuron.ScanNeuron):
        ...     def initial_state(self, x):
        ...         return jnp.zeros_like(x)
        ...     def step(self, x, state):
        ...         h = state + x
        ...         s = snnjax.surrogate.atan(h - 1)
        ...         return s, h - s
        >>> Integrator()(jnp.full((3, 1, 1), 0.5)).ravel().tolist()
        [0.0, 1.0, 0.0]
    """

    @abc.abstractmethod
    def step(self, x: Array, state: Any) -> tuple[Array, Any]:
        """Spikes and next state for one time step `x`, `[batch, ...]`."""

    def multi_step(self, x: Array, state: Any) -> tuple[Array, Any]:
        return scan(self.step, x, state)


class _Leaky(Neuron):
    """What IF, LIF and PLIF share: the settings of `lif`, and a membrane as state."""

    def __init__(
        self,
        *,
        decay_input: bool = True,
        v_threshold: float = 1.0,
        v_reset: float | None = 0.0,
        detach_reset: bool = False,
        surrogate: Surrogate = _surrogate.atan,
    ) -> None:
        super().__init__()
        self.decay_input = decay_input
        self.v_threshold = v_threshold
        self.v_reset = v_reset
        self.detach_reset = detach_reset
        self.surrogate = surrogate

    @property
    @abc.abstractmethod
    def time_constant(self) -> float | Array:
        """`tau` of `lif`."""

    def initial_state(self, x: Array) -> Array:
        dtype = float32_at_least(x.dtype)
        return jnp.full(x.shape, self.v_reset or 0.0, dtype)

    def multi_step(self, x: Array, state: Array) -> tuple[Array, Array]:
        return lif(
            x,
            state,
            tau=self.time_constant,
            decay_input=self.decay_input,
            v_threshold=self.v_threshold,
            v_reset=self.v_reset,
            detach_reset=self.detach_reset,
            surrogate=self.surrogate,
        )


class IF(_Leaky):
    """Integrate-and-fire neuron: `lif` without a leak.

    Args:
        v_threshold, v_reset, detach_reset, surrogate: as in `lif`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(decay_input=False, **settings)

    @property
    def time_constant(self) -> float:
        return math.inf


class LIF(_Leaky):
    """Leaky integrate-and-fire neuron; the mathematics is `lif`.

    Args:
        tau: membrane time constant in time steps, at least 1.
        decay_input, v_threshold, v_reset, detach_reset, surrogate: as in `lif`.
    """

    def __init__(self, *, tau: float = 2.0, **settings: Any) -> None:
        super().__init__(**settings)
        _check_tau(tau)
        self.tau = tau

    @property
    def time_constant(self) -> float:
        return self.tau


class PLIF(_Leaky):
    """Parametric LIF: `lif` with `1 / tau = sigmoid(w)` and `w` learned.

    Args:
        tau: initial membrane time constant in time steps, above 1.
        decay_input, v_threshold, v_reset, detach_reset, surrogate: as in `lif`.

    Source: Fang et al., "Incorporating Learnable Membrane Time Constant to Enhance
    Learning of Spiking Neural Networks", ICCV 2021, equation 9.
    """

    def __init__(self, *, tau: float = 2.0, **settings: Any) -> None:
        super().__init__(**settings)
        if not 1 < tau < math.inf:
            raise ValueError(
                f"`tau` is {tau}; 1 / tau = sigmoid(w) allows finite values above 1."
            )
        self.w = nnx.Param(jnp.asarray(-math.log(tau - 1), jnp.float32))

    @property
    def time_constant(self) -> Array:
        return 1 / jax.nn.sigmoid(self.w[...])


# --- running on a stream --------------------------------------------------------------


def keep_state(model: nnx.Module, keep: bool = True) -> None:
    """Makes every neuron of `model` go on where its last call ended, or stop doing so.

    With kept states, `model(x[:3])` then `model(x[3:])` is `model(x)`, and
    `model(x_t[None])[0]` is one time step of a stream. Put normalisation into
    evaluation mode first (`model.eval()`).

    Args:
        model: its neurons are changed in place.
        keep: False makes every call start at rest again.
    """
    for neuron in _neurons(model):
        neuron.kept = State(()) if keep else None


def reset_state(model: nnx.Module) -> None:
    """Puts every kept state of `model` back to rest: a new stream begins.

    Args:
        model: its kept states are changed in place.
    """
    for neuron in _neurons(model):
        if neuron.kept is not None:
            neuron.kept.set_value(())


def _neurons(model: nnx.Module) -> Iterator[Neuron]:
    return (node for _, node in nnx.iter_graph(model) if isinstance(node, Neuron))
