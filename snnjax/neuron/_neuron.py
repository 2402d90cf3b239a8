"""What every neuron is: many steps a call, a state at rest or kept between calls."""

import abc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from .._membrane import Drive, check_affine
from .._types import Array, check_floating, check_time_major, float32_at_least

Step = Callable[[Array, Any], tuple[Array, Any]]


def scan(step: Step, x: Array, state: Any) -> tuple[Array, Any]:
    """Runs dynamics of your own over all time steps, on `jax.lax.scan`.

    Args:
        step: `(x[t], state) -> (s[t], state)`; a state is any pytree of arrays.
        x: input, `[time, ...]`.
        state: before the first step.

    Returns:
        Outputs of all steps, `[time, ...]`, and the last state.

    Raises:
        ValueError: `x` has no time step.
    """
    check_time_major(x, "x", "time ...")

    def body(state: Any, x: Array) -> tuple[Any, Array]:
        s, state = step(x, state)
        return state, s

    with jax.named_scope("snn.scan"):
        state, s = lax.scan(body, state, x)
    return s, state


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

    def __call__(
        self, x: Array, scale: Array | None = None, shift: Array | None = None
    ) -> Array:
        """Runs all time steps of `x`, `[time, batch, ...]`; spikes have its shape.

        With `scale` and `shift`, `[feature]` each, the current is `x * scale + shift`,
        in float32 at least, as `layer.BatchNorm.affine` gives them; then rounded to
        `x`'s dtype, but by IF, LIF and PLIF.

        Raises:
            ValueError: `x` is not `[time, batch, ...]` of floating dtype, `scale` or
                `shift` is not of its features, or a kept state has another shape.
        """
        check_time_major(x, "x", "time batch ...")
        check_floating(x, "x")
        check_affine(x, scale, shift)
        if self.kept is None:
            return self._from_rest(x, scale, shift)
        state = _continue(self.kept.get_value(), self.initial_state(x[0]))
        spikes, state = self._from_state(x, scale, shift, state)
        self.kept.set_value(state)
        return spikes

    def _refuse_to_keep(self, why: str) -> None:
        """Raises ValueError where a state is to be kept, and there is none."""
        if self.kept is not None:
            raise ValueError(
                f"`keep_state` is on, but {type(self).__name__} {why}. Allowed is a "
                "call from rest, `keep_state(model, False)`, or a neuron with a state, "
                "such as SlidingPSN or LIF."
            )

    def _from_rest(self, x: Array, scale: Any, shift: Any) -> Array:
        return self._from_state(x, scale, shift, self.initial_state(x[0]))[0]

    def _from_state(
        self, x: Array, scale: Any, shift: Any, state: Any
    ) -> tuple[Array, Any]:
        if scale is None:
            return self.multi_step(x, state)
        dtype = float32_at_least(x.dtype)
        current = Drive(None, scale, shift).current(x.astype(dtype))
        return self.multi_step(current.astype(x.dtype), state)


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
