"""Meta-SpikeFormer, the Spike-driven Transformer V2: shortcuts between membranes.

Yao et al., "Spike-driven Transformer V2: Meta Spiking Neural Network Architecture
Inspiring the Design of Next-generation Neuromorphic Chips", ICLR 2024. A block takes
and gives currents, and begins with a neuron; so what a segment keeps is a current,
which packs into no bits.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from .. import layer
from .. import neuron as _neuron
from .._types import Array
from ._depth import check_depth

_LIF = functools.partial(_neuron.LIF, detach_reset=True)


class _Projection(nnx.Module):
    """`Neuron, convolutions, batch norm`: currents in, a normalized current out."""

    def __init__(self, neuron: nnx.Module | None, *layers: nnx.Module) -> None:
        self.neuron = neuron
        self.proj_bn = layer.Sequential(*layers)

    def __call__(self, x: Array) -> Array:
        """Currents (images without a neuron), `[time, batch, ..., channel]`, alike."""
        with jax.named_scope("snn.projection"):
            return self.proj_bn(x if self.neuron is None else self.neuron(x))

    def __spatial_split__(self) -> tuple[Any, ...]:
        neuron = () if self.neuron is None else (self.neuron,)
        return *neuron, self.proj_bn


class SpikingDownsampling(_Projection):
    """`[Neuron,] strided convolution, batch norm`.

    Args:
        in_features: channels that come in.
        out_features: channels that go out.
        kernel_size: odd, of the convolution, which has a bias.
        strides: of the convolution.
        neuron: makes the neuron; None where images come.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int = 3,
        *,
        strides: int = 2,
        neuron: layer.MakeNeuron | None = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            None if neuron is None else neuron(),
            layer.Conv(
                in_features,
                out_features,
                kernel_size,
                strides,
                padding=kernel_size // 2,
                dtype=dtype,
                rngs=rngs,
            ),
            layer.BatchNorm(out_features, dtype=dtype, rngs=rngs),
        )


class MetaConvBlock(nnx.Module):
    """Convolutional block: `y = x + separable(x);  y + channel(y)`, all currents.

    `separable` is 1x1 to twice the features, depthwise 7x7, 1x1 back; `channel` is 3x3
    to `ratio` times the features, and 3x3 back. A neuron is in front of each.

    Args:
        features: that come in and go out.
        ratio: how much wider `channel` is in between.
        neuron: makes a neuron.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Source: Yao et al., ICLR 2024, and its code.
    """

    def __init__(
        self,
        features: int,
        ratio: int = 4,
        *,
        neuron: layer.MakeNeuron = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        plain = {"dtype": dtype, "rngs": rngs}
        conv = functools.partial(layer.Conv, use_bias=False, **plain)
        norm = functools.partial(layer.BatchNorm, **plain)
        twice, wide = 2 * features, ratio * features
        self.separable = layer.Sequential(
            _Projection(neuron(), conv(features, twice, 1), norm(twice)),
            _Projection(
                neuron(),
                conv(twice, twice, 7, feature_group_count=twice),
                conv(twice, features, 1),
                norm(features),
            ),
        )
        self.channel = layer.Sequential(
            _Projection(neuron(), conv(features, wide, 3), norm(wide)),
            _Projection(neuron(), conv(wide, features, 3), norm(features)),
        )

    def __call__(self, x: Array) -> Array:
        """Currents `[time, batch, height, width, features]` to the same shape."""
        with jax.named_scope("snn.meta_conv_block"):
            x = x + self.separable(x)
            return x + self.channel(x)

    def __spatial_split__(self) -> tuple[Any, ...]:
        """The four projections, in order."""
        return *self.separable.layers, *self.channel.layers


class MetaTransformerBlock(nnx.Module):
    """Transformer block: `y = x + attention(x);  y + mlp(y)`, all currents.

    Args:
        features: that come in and go out.
        heads: of the attention.
        mlp_ratio: how much wider the perceptron is in between.
        neuron: makes a neuron; it takes `v_threshold`.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: `heads` does not divide `features`.

    Source: Yao et al., ICLR 2024, and its code.
    """

    def __init__(
        self,
        features: int,
        heads: int = 8,
        mlp_ratio: int = 4,
        *,
        neuron: Any = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        plain = {"dtype": dtype, "rngs": rngs}
        wide = mlp_ratio * features
        self.attention = layer.SpikeDrivenSelfAttention(
            features, heads, neuron=neuron, **plain
        )
        self.mlp = layer.Sequential(
            *(
                _Projection(
                    neuron(), layer.Linear(i, o, **plain), layer.BatchNorm(o, **plain)
                )
                for i, o in ((features, wide), (wide, features))
            )
        )

    def __call__(self, x: Array) -> Array:
        """Currents `[time, batch, height, width, features]` to the same shape."""
        with jax.named_scope("snn.meta_transformer_block"):
            x = x + self.attention(x)
            return x + self.mlp(x)

    def __spatial_split__(self) -> tuple[Any, ...]:
        """The attention and the projections of the perceptron."""
        return self.attention, *self.mlp.layers


class MetaSpikeformer(nnx.Module):
    """Meta-SpikeFormer: four convolutional blocks, two stages of transformer blocks.

    ImageNet's, for 224x224, are `MetaSpikeformer(64, last=360)`, `MetaSpikeformer(96)`
    and `MetaSpikeformer(128)`: 15, 31 and 55 million parameters. A still image is
    repeated over time, `jnp.repeat(image[None], 4, 0)`.

    Args:
        width: features of the second downsampling; the others have 1/2, 2 and 4 times
            as many.
        depth: transformer blocks of the last two stages.
        last: features of the last stage; None is 5 times `width`.
        heads: of the attentions.
        mlp_ratio: how much wider the perceptrons and the 3x3 convolutions are.
        num_classes: of the scores.
        in_features: channels of the images.
        neuron: makes a neuron; it takes `v_threshold`.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: `heads` does not divide the features, or `depth` has not 2 numbers.

    Source: Yao et al., ICLR 2024, and its code, whose classifier reads
    the mean current.
    """

    def __init__(
        self,
        width: int = 128,
        depth: Sequence[int] = (6, 2),
        *,
        last: int | None = None,
        heads: int = 8,
        mlp_ratio: int = 4,
        num_classes: int = 1000,
        in_features: int = 3,
        neuron: Any = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        settings = {"neuron": neuron, "dtype": dtype, "rngs": rngs}
        down = functools.partial(SpikingDownsampling, **settings)
        conv = functools.partial(MetaConvBlock, ratio=mlp_ratio, **settings)
        block = functools.partial(
            MetaTransformerBlock, heads=heads, mlp_ratio=mlp_ratio, **settings
        )
        check_depth(depth, 2)
        half, last = width // 2, 5 * width if last is None else last
        self.stages = layer.Sequential(
            down(in_features, half, 7, neuron=None),
            conv(half),
            down(half, width),
            conv(width),
            down(width, 2 * width),
            conv(2 * width),
            conv(2 * width),
            down(2 * width, 4 * width),
            *(block(4 * width) for _ in range(depth[0])),
            down(4 * width, last, strides=1),
            *(block(last) for _ in range(depth[1])),
        )
        self.classifier = layer.Linear(last, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Images `[time, batch, height, width, in_features]` to class scores.

        Returns:
            Scores of every time step, `[time, batch, num_classes]`.
        """
        with jax.named_scope("snn.meta_spikeformer"):
            return self.classifier(self.stages(x).mean((2, 3)))
