"""Blocks: a projection, its batch norm and its neuron, one array to another."""

from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx

from .. import neuron as _neuron
from .._types import Array
from ._flax import BatchNorm, Conv, Linear
from ._norm_neuron import NormNeuron

MakeNeuron = Callable[..., nnx.Module]  # some ask for a `v_threshold`

# kaiming_normal_(mode="fan_out", nonlinearity="relu"), as ResNet and SEW-ResNet use it
_KAIMING_FAN_OUT = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


class _Block(nnx.Module):
    """Projection, norm and neuron, and perhaps a pool of the spikes."""

    def __init__(
        self,
        projection: nnx.Module,
        norm_neuron: NormNeuron,
        pool: nnx.Module | None = None,
    ) -> None:
        self.projection: Any = projection
        self.norm_neuron = norm_neuron
        self.pool: Any = pool

    def __call__(self, x: Array) -> Array:
        """`[time, batch, ..., in_features]` to spikes `[..., out_features]`."""
        spikes = self.norm_neuron(self.projection(x))
        return spikes if self.pool is None else self.pool(spikes)

    def __spatial_split__(self) -> tuple[nnx.Module, ...]:
        """The parts that a segment may be split into, in order."""
        pool = () if self.pool is None else (self.pool,)
        return self.projection, self.norm_neuron, *pool


class ConvBlock(_Block):
    """Convolution, batch normalisation, neuron; a pool before or behind the neuron.

        s = pool(neuron(pool_current(BN(conv(x)))))

    `[time, batch, height, width, in_features]` to spikes, `[..., out_features]`.

    Args:
        in_features: channels that come in.
        out_features: channels that go out.
        kernel_size: odd; one integer for height and width, or a tuple of equal ones.
        neuron: makes the neuron, `snnjax.neuron.LIF` or a `functools.partial` of one.
        strides: of the convolution; it is padded by `kernel_size // 2`, as in PyTorch.
        pool: of the spikes, such as `layer.MaxPool(2)`.
        pool_current: of the normalized current, in front of the neuron.
        use_bias: of the convolution; batch norm makes it superfluous.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: `kernel_size` is even, or differs by axis.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int] = 3,
        *,
        neuron: MakeNeuron = _neuron.LIF,
        strides: int = 1,
        pool: nnx.Module | None = None,
        pool_current: nnx.Module | None = None,
        use_bias: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        conv = Conv(
            in_features,
            out_features,
            kernel_size,
            strides,
            padding=_odd(kernel_size) // 2,
            kernel_init=_KAIMING_FAN_OUT,
            use_bias=use_bias,
            dtype=dtype,
            rngs=rngs,
        )
        norm = BatchNorm(out_features, dtype=dtype, rngs=rngs)
        super().__init__(conv, NormNeuron(norm, neuron(), pool_current), pool)


def _odd(kernel_size: int | Sequence[int]) -> int:
    sizes = [kernel_size] if isinstance(kernel_size, int) else kernel_size
    if len(set(sizes)) != 1 or sizes[0] % 2 == 0:
        raise ValueError(
            f"`kernel_size` is {kernel_size}; allowed is an odd integer, or a tuple of "
            "equal ones. Take `layer.Conv` and `layer.NormNeuron` for others."
        )
    return sizes[0]


class LinearBlock(_Block):
    """Linear, batch normalisation, neuron over the last axis: a 1x1 `ConvBlock`.

        s = neuron(BN(x @ W + b))

    `[time, batch, ..., in_features]` to spikes, `[..., out_features]`.

    Args:
        in_features: features that come in.
        out_features: features that go out.
        neuron, use_bias, dtype, rngs: as for `ConvBlock`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        neuron: MakeNeuron = _neuron.LIF,
        use_bias: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        linear = Linear(
            in_features, out_features, use_bias=use_bias, dtype=dtype, rngs=rngs
        )
        norm = BatchNorm(out_features, dtype=dtype, rngs=rngs)
        super().__init__(linear, NormNeuron(norm, neuron()))
