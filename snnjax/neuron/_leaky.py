"""IF, LIF and PLIF: the modules that own the settings and parameters of `lif`."""

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .. import surrogate as _surrogate
from .._membrane import Surrogate
from .._types import Array
from ..kernels import check_implementation
from ._lif import check_tau, lif, lif_from_rest, rest_of
from ._neuron import Neuron


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
        implementation: str | None = None,
    ) -> None:
        super().__init__()
        check_implementation(implementation)
        self.implementation = implementation
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
        return rest_of(x[None], self.v_reset)

    def multi_step(self, x: Array, state: Array) -> tuple[Array, Array]:
        return self._from_state(x, None, None, state)

    def _from_state(
        self, x: Array, scale: Any, shift: Any, state: Array
    ) -> tuple[Array, Array]:
        return lif(x, state, scale=scale, shift=shift, **self._settings())

    def _from_rest(self, x: Array, scale: Any, shift: Any) -> Array:
        return lif_from_rest(x, scale=scale, shift=shift, **self._settings())

    def _settings(self) -> dict[str, Any]:
        return {
            "tau": self.time_constant,
            "decay_input": self.decay_input,
            "v_threshold": self.v_threshold,
            "v_reset": self.v_reset,
            "detach_reset": self.detach_reset,
            "surrogate": self.surrogate,
            "implementation": self.implementation,
        }


class IF(_Leaky):
    """Integrate-and-fire neuron: `lif` without a leak.

        h[t] = v[t-1] + x[t]

    Args:
        v_threshold, v_reset, detach_reset, surrogate, implementation: as in `lif`.

    Raises:
        ValueError: `implementation` is unknown.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(decay_input=False, **settings)

    @property
    def time_constant(self) -> float:
        return math.inf


class LIF(_Leaky):
    """Leaky integrate-and-fire neuron; the mathematics is `lif`.

        h[t] = v[t-1] + (x[t] - (v[t-1] - rest)) / tau

    Args:
        tau: membrane time constant in time steps, at least 1.
        decay_input, v_threshold, v_reset, detach_reset, surrogate, implementation: as
            in `lif`.

    Raises:
        ValueError: `tau` is below 1, or `implementation` is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> import snnjax as snn
        >>> current = jnp.full((4, 1, 1), 1.5)  # time, batch, neuron
        >>> snn.neuron.LIF(tau=2.0)(current).ravel()
        Array([0., 1., 0., 1.], dtype=float32)
    """

    def __init__(self, *, tau: float = 2.0, **settings: Any) -> None:
        super().__init__(**settings)
        check_tau(tau, self.decay_input)
        self.tau = tau

    @property
    def time_constant(self) -> float:
        return self.tau


class PLIF(_Leaky):
    """Parametric LIF: `lif` with `1 / tau = sigmoid(w)` and `w` learned.

    Args:
        tau: initial membrane time constant in time steps, above 1.
        decay_input, v_threshold, v_reset, detach_reset, surrogate, implementation: as
            in `lif`.

    Raises:
        ValueError: `tau` is not finite and above 1, or `implementation` is unknown.

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
