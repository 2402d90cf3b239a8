"""A convolution taken apart for training: 1x1, norm, depthwise 3x3, 1x1, two norms.

All of it is linear at evaluation, so it can be one 3x3 convolution on a chip
(re-parametrization; Ding et al., "RepVGG", CVPR 2021).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from .._types import Array
from ._flax import BatchNorm, Conv


class RepConv(nnx.Module):
    """Spikes to a normalized current of the same shape.

        y = BN(BN(W_2 * depthwise(pad(BN(W_1 * x)))))

    The first norm pads its result by one place with what it makes of a zero, by its
    running moments, so that the whole stays one convolution.

    Args:
        features: that come in and go out.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Source: Yao et al., "Spike-driven Transformer V2", ICLR 2024, and its code.
    """

    def __init__(self, features: int, *, dtype: Any = None, rngs: nnx.Rngs) -> None:
        plain = {"use_bias": False, "padding": "VALID", "dtype": dtype, "rngs": rngs}
        self.first = Conv(features, features, 1, **plain)
        self.padded = BatchNorm(features, dtype=dtype, rngs=rngs)
        self.depthwise = Conv(
            features, features, 3, feature_group_count=features, **plain
        )
        self.last = Conv(features, features, 1, **plain)
        self.norms = nnx.List(
            BatchNorm(features, dtype=dtype, rngs=rngs) for _ in range(2)
        )

    def __call__(self, x: Array) -> Array:
        """`[time, batch, height, width, features]` to the same shape."""
        with jax.named_scope("snn.rep_conv"):
            y = self.padded(self.first(x))
            y = self.last(self.depthwise(_surround(y, _of_zero(self.padded))))
            for norm in self.norms:
                y = norm(y)
            return y


def _of_zero(norm: BatchNorm) -> Array:
    """What `norm` makes of a zero by its running moments, without a gradient."""
    _, shift = norm.running_affine()
    return lax.stop_gradient(shift)


def _surround(x: Array, edge: Array) -> Array:
    """`x` with one more place on each side, which holds `edge`, `[feature]`."""
    around = ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0))
    inside = jnp.pad(jnp.ones((1, 1, *x.shape[2:4], 1), bool), around)
    edge = edge.astype(x.dtype).reshape(1, 1, 1, 1, -1)
    return jnp.where(inside, jnp.pad(x, around), edge)
