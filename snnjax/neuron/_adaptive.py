"""Adaptive LIF: every spike raises the threshold for a while.

Bellec et al., "Long Short-Term Memory and Learning-to-Learn in Networks of Spiking
Neurons", NeurIPS 2018, and "A Solution to the Learning Dilemma for
Recurrent Networks of Spiking Neurons", Nature Communications 2020.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from .. import surrogate as _surrogate
from .._membrane import Drive, Membrane, Surrogate
from .._types import Array, float32_at_least
from ._causal import Constants, causal
from ._lif import check_tau
from ._neuron import Neuron


@dataclasses.dataclass(frozen=True)
class _Adaptation:
    """The settings of a step; the state is the membrane and, behind it, `b`."""

    membrane: Membrane
    beta: float
    rho: float

    @property
    def surrogate(self) -> Surrogate:
        return self.membrane.surrogate

    def threshold(self, state: Array) -> Array:
        return self.membrane.v_threshold + self.beta * jnp.split(state, 2, -1)[1]

    def charge(self, constants: Constants, state: Array, x: Array) -> Array:
        del constants
        h = self.membrane.charge(Drive(), jnp.split(state, 2, -1)[0], x)
        return h - self.threshold(state)

    def reset(
        self, constants: Constants, state: Array, above: Array, s: Array
    ) -> Array:
        del constants
        b, a = jnp.split(state, 2, -1)[1], self.threshold(state)
        v = self.membrane.reset(above + a, s, a)
        return jnp.concatenate([v, self.rho * b + (1 - self.rho) * s], -1)


class ALIF(Neuron):
    """Adaptive leaky integrate-and-fire neuron: `LIF` with a threshold that adapts.

        a[t] = v_threshold + beta * b[t-1]                       threshold
        h[t] = v[t-1] + (x[t] - (v[t-1] - rest)) / tau           charge, as LIF
        h[t] = v[t-1] - (v[t-1] - rest) / tau + x[t]             decay_input=False
        s[t] = 1 if h[t] >= a[t] else 0                          fire
        v[t] = h[t] * (1 - s[t]) + v_reset * s[t]                reset, hard
        v[t] = h[t] - a[t] * s[t]                                soft: v_reset=None
        b[t] = rho * b[t-1] + (1 - rho) * s[t],  rho = exp(-1 / tau_adaptation)

    Backward, the input current is all that is kept.

    Args:
        tau: membrane time constant in time steps, at least 1.
        tau_adaptation: time constant of the threshold in time steps, above 0.
        beta: how much a neuron that always fires raises its threshold.
        v_threshold: firing threshold at rest.
        decay_input, v_reset, detach_reset, surrogate: as in `lif`.

    Raises:
        ValueError: a time constant out of range.

    Source: Bellec et al., NeurIPS 2018, whose `beta` is 1.8.
    """

    def __init__(
        self,
        *,
        tau: float = 2.0,
        tau_adaptation: float = 20.0,
        beta: float = 1.8,
        decay_input: bool = True,
        v_threshold: float = 1.0,
        v_reset: float | None = 0.0,
        detach_reset: bool = False,
        surrogate: Surrogate = _surrogate.atan,
    ) -> None:
        super().__init__()
        check_tau(tau, decay_input)
        if tau_adaptation <= 0:
            raise ValueError(
                f"`tau_adaptation` is {tau_adaptation}; a time constant is above 0 "
                "time steps."
            )
        membrane = Membrane(
            1 / tau, decay_input, v_threshold, v_reset, detach_reset, surrogate
        )
        self.rule = _Adaptation(membrane, beta, math.exp(-1 / tau_adaptation))

    def initial_state(self, x: Array) -> Array:
        """Membranes at rest and, behind them, `b = 0`: `[batch, 2 * features]`."""
        rest = jnp.full((len(x), x[0].size), self.rule.membrane.rest)
        state = jnp.concatenate([rest, jnp.zeros_like(rest)], -1)
        return state.astype(float32_at_least(x.dtype))

    def multi_step(self, x: Array, state: Array) -> tuple[Array, Array]:
        flat = x.reshape((*x.shape[:2], -1))
        with jax.named_scope("snn.alif"):
            s, state = causal(self.rule, state, flat)
        return s.reshape(x.shape), state
