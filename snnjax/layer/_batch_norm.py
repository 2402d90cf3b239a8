"""Batch norms of spiking networks: one knows the threshold, one knows the time step."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from .._per_step import per_step
from .._types import Array
from ._flax import BatchNorm


class ThresholdDependentBatchNorm(BatchNorm):
    """Batch normalisation whose current is spread as widely as the threshold is high.

        y = (x - mean) / sqrt(var + epsilon) * scale + bias
        scale = alpha * v_threshold,   bias = 0    at first; both are learned

    Args:
        num_features: channels, the last axis.
        v_threshold: of the neuron that comes next.
        alpha: 1, and `1 / sqrt(2)` for each of two branches that are summed.
        **settings: `rngs` and the rest of `BatchNorm`, with a scale.

    Raises:
        ValueError: there is no scale to start from.

    Source: Zheng et al., "Going Deeper With Directly-Trained Larger Spiking Neural
    Networks", AAAI 2021; the factor is a part of the learned scale.
    """

    def __init__(
        self,
        num_features: int,
        *,
        v_threshold: float = 1.0,
        alpha: float = 1.0,
        **settings: Any,
    ) -> None:
        super().__init__(num_features, **settings)
        if self.scale is None:
            raise ValueError(
                "`use_scale` is False; ThresholdDependentBatchNorm is a first value of "
                "the scale: leave `use_scale` out, or take BatchNorm."
            )
        self.scale[...] = jnp.full_like(self.scale[...], alpha * v_threshold)


class TemporalEffectiveBatchNorm(BatchNorm):
    """Batch normalisation with a learned scale of every time step.

        y[t] = p[t] * ((x[t] - mean) / sqrt(var + epsilon) * scale + bias)

    The moments are of all time steps together, `p` is 1 at first.

    Args:
        num_features: channels, the last axis.
        time_steps: at most so many may come; fewer are the first ones.
        **settings: `rngs` and the rest of `BatchNorm`.

    Raises:
        ValueError: at a call, more time steps than that.

    Source: Duan et al., "Temporal Effective Batch Normalization in Spiking Neural
    Networks", NeurIPS 2022.
    """

    def __init__(self, num_features: int, time_steps: int, **settings: Any) -> None:
        super().__init__(num_features, **settings)
        self.p = nnx.Param(jnp.ones((time_steps,), jnp.float32))

    def __call__(
        self,
        x: Array,
        use_running_average: bool | None = None,
        *,
        mask: Array | None = None,
    ) -> Array:
        """`[time, batch, ..., num_features]`, normalized, and scaled per step."""
        y = super().__call__(x, use_running_average, mask=mask)
        scale = per_step(self.p[...], x, "TemporalEffectiveBatchNorm")
        return y * scale.astype(y.dtype)
