"""Gated LIF: learned gates choose between kinds of leak, input and reset.

Yao et al., "GLIF: A Unified Gated Leaky Integrate-and-Fire Neuron for Spiking Neural
Networks", NeurIPS 2022, layer by layer.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from .. import surrogate as _surrogate
from .._membrane import Surrogate
from .._per_step import per_step
from .._types import Array, float32_at_least
from ._causal import Constants, causal
from ._neuron import Neuron


@dataclasses.dataclass(frozen=True)
class _Gates:
    """A step; the state is what is left of the potential, before the linear leak."""

    surrogate: Surrogate

    def charge(self, constants: Constants, state: Array, x: Array) -> Array:
        _, linear, _, _, threshold = constants
        return state - linear + x - threshold

    def reset(
        self, constants: Constants, state: Array, above: Array, s: Array
    ) -> Array:
        decay, _, hard, soft, threshold = constants
        del state
        return decay * (above + threshold) * (1 - hard * s) - soft * s


class GLIF(Neuron):
    """Gated leaky integrate-and-fire neuron; one set of gates for a layer.

        I[t] = (1 - b * (1 - g[t])) * x[t]                    input, gate b
        u[t] = (1 - a * (1 - tau)) * u[t-1] * (1 - c * s[t-1])   leak, gate a:
               - (1 - a) * leak + I[t]                        exponential, or linear
               - (1 - c) * v_reset * s[t-1]                   reset, gate c
        s[t] = 1 if u[t] >= v_threshold else 0

    All eight are sigmoids of parameters, `g` one for each time step. The parameters
    are named as the arguments and hold logits: `sigmoid(glif.tau[...])` is the value.

    Backward, the input current is kept, and that after the input gate.

    Args:
        time_steps: at most so many may come; fewer are the first ones.
        gates: first values of the gates a (leak), b (input) and c (reset), in (0, 1).
        tau: first share of the potential that an exponential leak leaves, in (0, 1).
        v_threshold, v_reset: first values, in (0, 1).
        leak: first linear leak, in (0, 1).
        conductance: first value of `g`, in (0, 1).
        surrogate: spike function.

    Raises:
        ValueError: a first value out of range; at a call, more time steps, or a state
            to keep.

    Source: Yao et al., NeurIPS 2022; first values of `tau`, `v_threshold`, `leak` and
    `conductance` are those of its code.
    """

    def __init__(
        self,
        time_steps: int,
        *,
        gates: tuple[float, float, float] = (0.6, 0.6, 0.6),
        tau: float = 0.25,
        v_threshold: float = 0.5,
        v_reset: float = 0.5,
        leak: float = 0.0625,
        conductance: float = 0.5,
        surrogate: Surrogate = _surrogate.atan,
    ) -> None:
        super().__init__()
        a, b, c = gates
        first = {"a": (a, "gates[0]"), "b": (b, "gates[1]"), "c": (c, "gates[2]")}
        first |= {"tau": (tau, "tau"), "v_threshold": (v_threshold, "v_threshold")}
        first |= {"v_reset": (v_reset, "v_reset"), "leak": (leak, "leak")}
        for name, (value, argument) in first.items():
            setattr(self, name, nnx.Param(jnp.float32(_logit(argument, value))))
        steady = jnp.full((time_steps,), _logit("conductance", conductance))
        self.conductance = nnx.Param(steady.astype(jnp.float32))
        self.surrogate = surrogate

    def initial_state(self, x: Array) -> Array:
        return jnp.zeros((len(x), x[0].size), float32_at_least(x.dtype))

    def multi_step(self, x: Array, state: Array) -> tuple[Array, Array]:
        self._refuse_to_keep("has a conductance for each step of a whole sequence")
        flat = x.reshape((*x.shape[:2], -1))
        names = ("a", "b", "c", "tau", "v_threshold", "v_reset", "leak")
        a, b, c, tau, threshold, reset, leak = (
            jax.nn.sigmoid(getattr(self, n)[...]) for n in names
        )
        g = jax.nn.sigmoid(per_step(self.conductance[...], flat, "GLIF"))
        gain = (1 - b * (1 - g)).astype(x.dtype)
        constants = 1 - a * (1 - tau), (1 - a) * leak, c, (1 - c) * reset, threshold
        with jax.named_scope("snn.glif"):
            rule = _Gates(self.surrogate)
            s, state = causal(rule, *constants, state, gain * flat)
        return s.reshape(x.shape), state


def _logit(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise ValueError(
            f"`{name}` is {value}; allowed is a number in (0, 1), as a sigmoid gives."
        )
    return math.log(value / (1 - value))
