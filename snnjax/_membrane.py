"""The rule of a membrane: charge, fire, reset; `snnjax.neuron` has the equations."""

import dataclasses
from collections.abc import Callable

from jax import lax

from ._types import Array

Surrogate = Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class Membrane:
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
