"""Parallel spiking neurons: a linear map over time and a threshold, without a reset.

    h = W x                    h[t] = sum over s of W[t, s] * x[s]
    s = 1 if h >= threshold else 0

Fang et al., "Parallel Spiking Neurons with High Efficiency and Ability to Learn
Long-term Dependencies", NeurIPS 2023. There is no loop: one matrix product over the
time axis. Backward, the input current and the weights are all that is kept.
"""

import abc
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .. import surrogate as _surrogate
from .._marks import CAUSAL, marked
from .._membrane import Surrogate
from .._shards import alike
from .._types import Array, float32_at_least
from ._neuron import Neuron

# kaiming_uniform_(a=5**0.5) of the paper's code: uniform within 1 / sqrt(time steps)
_UNIFORM = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def _fire(surrogate: Surrogate, weight: Array, threshold: Array, x: Array) -> Array:
    """`surrogate(weight @ x - threshold)` over the time axis.

    Args:
        surrogate: spike function, such as `snnjax.surrogate.atan`.
        weight: `[time, input time]`.
        threshold: `[time]`, or one number.
        x: input current, `[input time, ...]`.

    Returns:
        Spikes, `[time, ...]` in `x`'s dtype.
    """
    # Half precisions are summed in float32: many steps would leave few digits.
    h = jnp.einsum("ts,s...->t...", weight, x.astype(float32_at_least(x.dtype)))
    threshold = threshold.reshape((-1,) + (1,) * (x.ndim - 1))
    return surrogate(h - threshold).astype(x.dtype)


_parallel = jax.custom_vjp(_fire, nondiff_argnums=(0,))


def _forward(surrogate: Surrogate, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
    return _fire(surrogate, *inputs), inputs


def _backward(
    surrogate: Surrogate, inputs: tuple[Array, ...], ds: Array
) -> tuple[Array, ...]:
    """Computes `h` again: of the forward pass, it is not kept."""
    return jax.vjp(functools.partial(_fire, surrogate), *inputs)[1](ds)


_parallel.defvjp(_forward, _backward)


class _Whole(Neuron):
    """What PSN and MaskedPSN share: weights of a whole sequence. Arguments as PSN."""

    def __init__(
        self,
        time_steps: int,
        *,
        surrogate: Surrogate = _surrogate.atan,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__()
        square = (time_steps, time_steps)
        self.weight = nnx.Param(_UNIFORM(rngs.params(), square, jnp.float32))
        self.threshold = nnx.Param(jnp.ones((time_steps,), jnp.float32))
        self.surrogate = surrogate

    def initial_state(self, x: Array) -> tuple[()]:
        del x
        return ()

    @abc.abstractmethod
    def effective_weight(self) -> Array:
        """The linear map, `[time, input time]`."""

    def multi_step(self, x: Array, state: Any) -> tuple[Array, Any]:
        self._check(x)
        with jax.named_scope("snn.psn"):
            inputs = self.effective_weight(), self.threshold[...], x
            return _parallel(self.surrogate, *alike(inputs)), state

    def _check(self, x: Array) -> None:
        steps = self.threshold.shape[0]
        if len(x) != steps:
            raise ValueError(
                f"`x` has shape {tuple(x.shape)}, {len(x)} time steps; allowed are the "
                f"{steps} that this {type(self).__name__} was made for. SlidingPSN "
                "takes any number."
            )
        self._refuse_to_keep("sees a sequence as a whole")


class PSN(_Whole):
    """Parallel spiking neuron: every step sees all steps, later ones too.

        s = surrogate(weight @ x - threshold)

    Args:
        time_steps: that every call has.
        surrogate: spike function.
        rngs: where the initial weights come from.

    Raises:
        ValueError: at a call, another number of time steps, or a state to keep.

    Source: Fang et al., NeurIPS 2023.
    """

    def effective_weight(self) -> Array:
        return self.weight[...]


class MaskedPSN(_Whole):
    """Masked parallel spiking neuron: a step sees itself and `order - 1` before it.

        s = surrogate((weight * mask) @ x - threshold)
        mask[t, s] = 1 if t - order < s <= t else 1 - masking

    Args:
        order: steps that a step sees.
        time_steps: that every call has.
        masking: 1 hides the others; the paper raises it from 0 to 1 in training, by
            assigning to `neuron.masking`.
        surrogate, rngs: as for `PSN`.

    Raises:
        ValueError: `order` is below 1; at a call, as `PSN`.

    Source: Fang et al., NeurIPS 2023.
    """

    def __init__(
        self, order: int, time_steps: int, *, masking: float = 1.0, **settings: Any
    ) -> None:
        _check_order(order)
        super().__init__(time_steps, **settings)
        self.order, self.masking = order, masking

    def effective_weight(self) -> Array:
        steps = jnp.arange(self.threshold.shape[0])
        back = steps[:, None] - steps[None]
        seen = (back >= 0) & (back < self.order)
        return self.weight[...] * jnp.where(seen, 1.0, 1.0 - self.masking)


class SlidingPSN(Neuron):
    """Sliding parallel spiking neuron: the same weights at every step.

        h[t] = sum over i < order of weight[i] * x[t - order + 1 + i],   x = 0 before 0
        s[t] = surrogate(h[t] - threshold)

    Its state are the last `order - 1` currents, so it runs on streams, and in time
    chunks.

    Args:
        order: steps that a step sees.
        surrogate: spike function.

    Raises:
        ValueError: `order` is below 1.

    Source: Fang et al., NeurIPS 2023. The first weights are powers
    of 1/2, 1 for the present step, as in the paper's code.
    """

    def __init__(
        self, order: int = 2, *, surrogate: Surrogate = _surrogate.atan
    ) -> None:
        _check_order(order)
        super().__init__()
        halves = 0.5 ** jnp.arange(order - 1, -1, -1, dtype=jnp.float32)
        self.weight = nnx.Param(halves)
        self.threshold = nnx.Param(jnp.ones((), jnp.float32))
        self.surrogate = surrogate

    def initial_state(self, x: Array) -> Array:
        """The currents before: `[batch, (order - 1) * features]`, the oldest first."""
        features = x.size // max(x.shape[0], 1)
        earlier = self.weight.shape[0] - 1
        return jnp.zeros((x.shape[0], earlier * features), float32_at_least(x.dtype))

    def multi_step(self, x: Array, state: Array) -> tuple[Array, Array]:
        flat = x.reshape((*x.shape[:2], -1))
        weight = self.weight[...].reshape(-1, 1, 1)  # not of one step: no batch in it
        with jax.named_scope("snn.sliding_psn"):
            s, state = _slide(self.surrogate, weight, self.threshold[...], state, flat)
        return s.reshape(x.shape), state


@marked(CAUSAL, static_argnums=0)
def _slide(
    surrogate: Surrogate, weight: Array, threshold: Array, state: Array, x: Array
) -> tuple[Array, Array]:
    """Spikes of `x`, `[time, batch, feature]`, and the last currents as a state."""
    steps, batch, features = x.shape
    earlier = jnp.moveaxis(state.reshape(batch, -1, features), 1, 0)
    seen = jnp.concatenate([earlier.astype(x.dtype), x])
    back = jnp.arange(len(seen))[None] - jnp.arange(steps)[:, None]
    band = jnp.where(
        (back >= 0) & (back < len(weight)),
        weight.ravel()[jnp.clip(back, 0, len(weight) - 1)],
        0.0,
    )
    s = _parallel(surrogate, *alike((band, threshold, seen)))
    last = jnp.moveaxis(seen[steps:], 0, 1).reshape(state.shape)
    return s, last.astype(state.dtype)


def _check_order(order: int) -> None:
    if order < 1:
        raise ValueError(f"`order` is {order}; allowed is 1, the present step, and up.")
