"""The rule of a membrane: charge, fire, reset; `snnjax.neuron` has the equations."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from jax import lax

from ._types import Array, affine

Surrogate = Callable[[Array], Array]


class Drive(NamedTuple):
    """What arrays of one time step or less say of the charge; None where there is none.

    Args:
        leak: `1 / tau` where it is an array, that broadcasts to one time step.
        scale, shift: the current is `x * scale + shift`, per feature; both or none.
    """

    leak: Any = None
    scale: Any = None
    shift: Any = None

    def current(self, x: Array) -> Array:
        """The input current of `x`, whose dtype is the membrane's."""
        return x if self.scale is None else affine(x, self.scale, self.shift)


def check_affine(x: Array, scale: Array | None, shift: Array | None) -> None:
    """Raises ValueError unless both are given, one number a feature, or neither."""
    shapes = [None if a is None else a.shape for a in (scale, shift)]
    features = x.shape[-1:] if x.ndim > 1 else None
    if shapes in ([None, None], [features, features]):
        return
    both = f"both of {features}, the features of `x`, or neither"
    raise ValueError(
        f"`scale` and `shift` have shapes {shapes[0]} and {shapes[1]}; allowed "
        + (f"are {both}." if features else "is neither: `x` has no feature axis.")
    )


@dataclasses.dataclass(frozen=True)
class Membrane:
    """The settings of charge, fire and reset.

    Args:
        leak: `1 / tau`, 0 for IF; None where it is an array, in `Drive`.
    """

    leak: float | None
    decay_input: bool
    v_threshold: float
    v_reset: float | None
    detach_reset: bool
    surrogate: Surrogate

    @property
    def rest(self) -> float:
        return 0.0 if self.v_reset is None else self.v_reset

    @property
    def is_binary(self) -> bool:
        """Whether the surrogate is known to give 0 or 1, as those of ours do."""
        f = self.surrogate
        while isinstance(f, functools.partial):
            f = f.func
        return getattr(f, "is_spike", False)

    def charge(self, drive: Drive, v: Array, x: Array) -> Array:
        leak = drive.leak if self.leak is None else self.leak
        gain = leak if self.decay_input else 1
        return (1 - leak) * v + leak * self.rest + gain * drive.current(x)

    def fire(self, h: Array) -> Array:
        return self.surrogate(h - self.v_threshold)

    def reset(self, h: Array, s: Array, threshold: Array | float) -> Array:
        s = lax.stop_gradient(s) if self.detach_reset else s
        if self.v_reset is None:
            return h - threshold * s
        return h * (1 - s) + self.v_reset * s

    def fire_and_reset(self, h: Array) -> tuple[Array, Array]:
        s = self.fire(h)
        return s, self.reset(h, s, self.v_threshold)
