"""Leaky integrate-and-fire over all time steps, as a function of arrays."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import kernels
from .. import surrogate as _surrogate
from .._gate import start_after
from .._marks import CAUSAL, FROM_REST, carries_state, marked
from .._membrane import Drive, Membrane, Surrogate, check_affine
from .._shards import alike
from .._types import (
    Array,
    check_floating,
    check_time_major,
    float32_at_least,
    with_axes_of,
)
from ._rows import put_row, row_at

How = tuple[Membrane, str | None]  # and the implementation


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
    scale: Array | None = None,
    shift: Array | None = None,
    implementation: str | None = None,
) -> tuple[Array, Array]:
    """Leaky integrate-and-fire over all time steps; equations as in `snnjax.neuron`.

    The backward pass keeps `x` and nothing else: the membrane potential is computed
    again, in place, and the gradient is written over the incoming one. Reverse mode
    only: `jax.jvp` fails.

    Args:
        x: input current, `[time, ...]`, floating. Half precisions keep a float32
            membrane.
        v: membrane potential before the first step, `[...]`; `None` is rest.
        tau: membrane time constant in time steps, at least 1; `math.inf` with
            `decay_input=False` is IF. An array, of a shape that broadcasts to `x[0]`,
            is differentiated, and its values are not checked; where it is `inf`, with
            `decay_input=True`, its gradient is 0.
        decay_input: whether the leak also scales the input.
        v_threshold: firing threshold.
        v_reset: potential after a spike; `None` subtracts the threshold instead.
        detach_reset: stop the gradient through the spike in the reset.
        surrogate: spike function, such as `snnjax.surrogate.atan`.
        scale, shift: `[feature]` each; the current is then `x * scale + shift`, as
            batch normalisation makes it, and is never stored.
        implementation: `None` is a Pallas kernel on a CUDA device, unless XLA
            partitions the program over several, and XLA's own program elsewhere;
            `"pallas"` and `"xla"` force one.

    Returns:
        Spikes, `[time, ...]` in `x`'s dtype, and the last membrane potential, `[...]`.

    Raises:
        ValueError: `x` has no time step or no floating dtype; `tau` is below 1 or does
            not broadcast; `v`, `scale` or `shift` has another shape; `v_threshold` or
            `v_reset` is no Python number; `implementation` is unknown.
        NotImplementedError: `"pallas"` where its kernel cannot run.

    Source: charge, fire and reset as in SpikingJelly; the backward pass is
    backpropagation through time written out (Werbos, Proceedings of the IEEE 1990).
    """
    how, drive = _setting(
        x,
        tau,
        scale,
        shift,
        implementation,
        decay_input=decay_input,
        v_threshold=v_threshold,
        v_reset=v_reset,
        detach_reset=detach_reset,
        surrogate=surrogate,
    )
    v = rest_of(x, v_reset) if v is None else jnp.asarray(v, float32_at_least(x.dtype))
    if v.shape != x.shape[1:]:
        raise ValueError(
            f"`v` has shape {v.shape}; allowed is {x.shape[1:]}, one time step of `x`."
        )
    with jax.named_scope("snn.lif"):
        return _causal(how, *alike((drive, v, x)))


def lif_from_rest(
    x: Array,
    *,
    tau: float | Array,
    scale: Array | None = None,
    shift: Array | None = None,
    implementation: str | None = None,
    **settings: Any,
) -> Array:
    """The spikes of `lif(x, ...)`, where nobody asks for the last potential.

    One time step less to read and to write, twice: at four time steps, a quarter.
    """
    if carries_state():
        settings |= {"scale": scale, "shift": shift, "implementation": implementation}
        return lif(x, tau=tau, **settings)[0]
    how, drive = _setting(x, tau, scale, shift, implementation, **settings)
    with jax.named_scope("snn.lif"):
        return _from_rest(how, *alike((drive, x)))


def rest_of(x: Array, v_reset: float | None) -> Array:
    """The potential at rest, for a current of all steps."""
    return jnp.full(x.shape[1:], v_reset or 0.0, float32_at_least(x.dtype))


def _setting(
    x: Array,
    tau: float | Array,
    scale: Array | None,
    shift: Array | None,
    implementation: str | None,
    *,
    decay_input: bool,
    v_threshold: float,
    v_reset: float | None,
    detach_reset: bool,
    surrogate: Surrogate,
) -> tuple[How, Drive]:
    check_time_major(x, "x", "time ...")
    check_floating(x, "x")
    check_tau(tau, decay_input)
    _check_shape(tau, x.shape[1:])
    _check_number(v_threshold, "v_threshold")
    _check_number(0.0 if v_reset is None else v_reset, "v_reset")
    check_affine(x, scale, shift)
    kernels.check_implementation(implementation)
    dtype = float32_at_least(x.dtype)
    number = isinstance(tau, int | float)
    rule = Membrane(
        leak=1 / tau if number else None,
        decay_input=decay_input,
        v_threshold=v_threshold,
        v_reset=v_reset,
        detach_reset=detach_reset,
        surrogate=surrogate,
    )
    leak = None if number else _like_step(jnp.asarray(1 / tau, dtype), x.shape[1:])
    affine = (a if a is None else a.astype(dtype) for a in (scale, shift))
    return (rule, implementation), Drive(leak, *affine)


def _like_step(a: Array, step: tuple[int, ...]) -> Array:
    """One number, one a feature, or one time step."""
    shape = (1,) * (len(step) - a.ndim) + a.shape
    if a.ndim and any(n > 1 for n in shape[:-1]):
        return jnp.broadcast_to(a.reshape(shape), step)
    return a.reshape(shape) if a.ndim else a


def check_tau(tau: float | Array, decay_input: bool) -> None:
    if isinstance(tau, jax.Array):
        return
    if not np.all(np.asarray(tau) >= 1):
        raise ValueError(
            f"`tau` is {tau}; a membrane time constant is at least 1 time step "
            "(`math.inf` with `decay_input=False`, or `snnjax.neuron.IF`, for no leak)."
        )
    if decay_input and np.any(np.isinf(tau)):
        raise ValueError(
            "`tau` is inf with `decay_input=True`, which scales the input by 1 / tau "
            "= 0; allowed is `decay_input=False`. `snnjax.neuron.IF` does the same."
        )


def _check_shape(tau: float | Array, step: tuple[int, ...]) -> None:
    shape = np.shape(tau)
    pairs = zip(reversed(shape), reversed(step))
    if len(shape) > len(step) or any(n not in (1, m) for n, m in pairs):
        raise ValueError(
            f"`tau` has shape {shape}; allowed is one that broadcasts to {step}, a "
            "time step of `x`: one number, one a feature, or one a neuron."
        )


def _check_number(value: Any, name: str) -> None:
    if not isinstance(value, int | float):
        raise ValueError(
            f"`{name}` is of type {type(value).__name__}; allowed is a Python number."
        )


# --- the two programs, and their derivative -------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multi_step(
    how: How, drive: Drive, v: Array | None, x: Array
) -> tuple[Array, Array | None]:
    """Spikes, and the last potential unless `v` is None: then it starts at rest."""
    rule, implementation = how
    return kernels.choose(
        implementation,
        functools.partial(_forward, rule),
        functools.partial(kernels.lif_forward, rule),
        drive,
        v,
        x,
        refused=kernels.lif_refusal(rule, x),
    )


def _keep(how: How, drive: Drive, v: Array | None, x: Array):
    return _multi_step(how, drive, v, x), (drive, v, x)


def _pull(how: How, residuals: Any, cotangents: Any) -> Any:
    rule, implementation = how
    return kernels.choose(
        implementation,
        functools.partial(_backward, rule),
        functools.partial(kernels.lif_backward, rule),
        *residuals,
        *cotangents,
        refused=kernels.lif_refusal(rule, residuals[-1]),
    )


_multi_step.defvjp(_keep, _pull)


@marked(CAUSAL, static_argnums=0)
def _causal(how: How, drive: Drive, v: Array, x: Array) -> tuple[Array, Array | None]:
    return _multi_step(how, drive, v, x)


@marked(FROM_REST, static_argnums=0)
def _from_rest(how: How, drive: Drive, x: Array) -> Array:
    run: Any = _multi_step  # whose types custom_vjp loses
    return run(how, drive, None, x)[0]


# --- XLA's ----------------------------------------------------------------------------


def _forward(
    rule: Membrane, drive: Drive, v: Array | None, x: Array
) -> tuple[Array, Array | None]:
    h = _potentials(rule, drive, v, x)
    # Outside the loop, so that XLA fuses it with whatever reads the spikes, and so that
    # the planner can read off the program that they are 0 or 1.
    last = None if v is None else rule.fire_and_reset(h[-1])[1]
    return rule.fire(h).astype(x.dtype), last


def _potentials(rule: Membrane, drive: Drive, v: Array | None, x: Array) -> Array:
    """Charged potentials of all steps, written over the current.

    A scan that stacks its outputs would start from a buffer of zeros, which XLA
    allocates at the start of the program and keeps alive all through. And
    the buffer is all that the loop changes: each row is made of the one before and
    written once. A potential carried beside it would be a second reader of the row that
    is written over, for which XLA:CPU copies the whole buffer twice a step.
    """
    current = drive.current(x.astype(float32_at_least(x.dtype)))
    # Tied to the current and not to `x`, which the current may then be written over.
    before = None if v is None else start_after(v, current)
    start = drive.leak, before, current
    return lax.fori_loop(0, x.shape[0], _charging(rule), start)[-1]


@functools.lru_cache
def _charging(rule: Membrane) -> Callable[..., tuple[Any, Any, Array]]:
    """The body of the loop; one object a rule, so that JAX compiles it once."""

    def step(t: Array, carry: tuple[Any, Any, Array]) -> tuple[Any, Any, Array]:
        leak, v0, h = carry
        v = _before(rule, v0, h, t)
        return leak, v0, put_row(h, t, rule.charge(Drive(leak), v, row_at(h, t)))

    return step


def _before(rule: Membrane, v0: Array | None, h: Array, t: Array) -> Array:
    """The potential that time step `t` starts from, of charged ones before it."""
    v = rule.fire_and_reset(row_at(h, jnp.maximum(t - 1, 0)))[1]
    return jnp.where(t == 0, rule.rest if v0 is None else v0, v)


def _backward(
    rule: Membrane,
    drive: Drive,
    v0: Array | None,
    x: Array,
    ds: Array,
    dv: Array | None,
) -> tuple[Drive, Array | None, Array]:
    """Walks time backwards over recomputed potentials, and writes over them."""
    h = _potentials(rule, drive, v0, x)
    dleak, dh = _pull_back(rule, drive.leak, v0, h, ds, dv)
    known: Any = rule.leak if drive.leak is None else drive.leak
    dv0 = None if v0 is None else (1 - known) * dh[0]
    gain = known if drive.leak is None else with_axes_of(dh, known)
    dcurrent = gain * dh if rule.decay_input else dh
    affine = Drive(None, drive.scale, drive.shift)
    _, pullback = jax.vjp(lambda d, x: d.current(x.astype(dh.dtype)), affine, x)
    daffine, dx = pullback(dcurrent)
    return daffine._replace(leak=dleak), dv0, dx


def _pull_back(
    rule: Membrane,
    leak: Array | None,
    v0: Array | None,
    h: Array,
    ds: Array,
    dv: Array | None,
) -> tuple[Array | None, Array]:
    """Cotangents of an array leak, and of the charged potentials in their place."""
    steps = h.shape[0]
    known: Any = rule.leak if leak is None else leak
    dv = None if dv is None else start_after(dv, ds)

    def step(i: Array, carry: tuple[Any, Any, Array]) -> tuple[Any, Any, Array]:
        dleak, ht, h = carry
        t = steps - 1 - i
        later = (1 - known) * row_at(h, jnp.minimum(t + 1, steps - 1))
        dvt = jnp.where(i == 0, 0 if dv is None else dv, later)
        _, pullback = jax.vjp(rule.fire_and_reset, row_at(h, t))
        h = put_row(h, t, pullback((row_at(ds, t).astype(h.dtype), dvt))[0])
        if leak is None:
            return dleak, ht, h
        v = _before(rule, v0, h, t)
        dleak += _sum_to(row_at(h, t) * _charge_by_leak(rule, leak, v, ht), leak.shape)
        # Carried, because its row is written over.
        return dleak, row_at(h, jnp.maximum(t - 1, 0)), h

    start = (None, None) if leak is None else (jnp.zeros_like(leak), h[-1])
    dleak, _, dh = lax.fori_loop(0, steps, step, (*start, h))
    return dleak, dh


def _charge_by_leak(rule: Membrane, leak: Array, v: Array, h: Array) -> Array:
    """d charge / d leak; the input current is gone by then, but `h` contains it."""
    if rule.decay_input:
        # At tau = inf the current is not in `h`, and its derivative is taken as 0. A
        # long tau loses digits: the error is some tau times that of `h`.
        return jnp.where(leak > 0, (h - v) / jnp.where(leak > 0, leak, 1), 0)
    return rule.rest - v


def _sum_to(a: Array, shape: tuple[int, ...]) -> Array:
    """The transpose of broadcasting from `shape` to `a.shape`."""
    leading = tuple(range(a.ndim - len(shape)))
    a = a.sum(leading)
    ones = tuple(i for i, n in enumerate(shape) if n == 1)
    return a.sum(ones, keepdims=True)
