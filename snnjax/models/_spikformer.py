"""Spikformer: a vision transformer of spikes, without a softmax.

Zhou et al., "Spikformer: When Spiking Neural Network Meets Transformer", ICLR 2023.
Shortcuts add spikes to spikes, as in SEW-ResNet, so that every boundary between two
blocks holds whole numbers.
"""

import functools
import math
from typing import Any

import jax
from flax import nnx

from .. import layer
from .. import neuron as _neuron
from .._types import Array
from ._pool import halving

_LIF = functools.partial(_neuron.LIF, detach_reset=True)


class SpikingPatchSplitting(nnx.Module):
    """Spiking patch splitting (SPS): four convolution blocks and a relative position.

        y = blocks(x);    y + LIF(BN(conv(y)))

    Args:
        in_features: channels of the images.
        features: of every patch; the blocks have 1/8, 1/4, 1/2 and all of them.
        patch_size: 2, 4, 8 or 16; the last blocks pool, as many as halve it to 1.
        neuron: makes a neuron.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: another patch size, or `features` is no multiple of 8.
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        patch_size: int = 16,
        *,
        neuron: layer.MakeNeuron = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        if patch_size not in (2, 4, 8, 16):
            raise ValueError(f"`patch_size` is {patch_size}; allowed are 2, 4, 8, 16.")
        if features % 8:
            raise ValueError(
                f"`features` is {features}; allowed is a multiple of 8, since the "
                "first block has an eighth of them."
            )
        settings = {"neuron": neuron, "dtype": dtype, "rngs": rngs}
        pools = int(math.log2(patch_size))
        widths = [in_features, *(features // n for n in (8, 4, 2, 1))]
        self.blocks = layer.Sequential(
            *(
                layer.ConvBlock(
                    i, o, pool=halving() if place >= 4 - pools else None, **settings
                )
                for place, (i, o) in enumerate(zip(widths, widths[1:]))
            )
        )
        self.position = layer.ConvBlock(features, features, **settings)

    def __call__(self, x: Array) -> Array:
        """`[time, batch, height, width, in_features]` to patches, 0 to 2 spikes."""
        with jax.named_scope("snn.spiking_patch_splitting"):
            patches = self.blocks(x)
            return patches + self.position(patches)

    def __spatial_split__(self) -> tuple[Any, ...]:
        """The blocks, in order."""
        return *self.blocks.layers, self.position


class SpikingMLP(nnx.Module):
    """Two `LinearBlock`s, wider in between.

    Args:
        features: that come in and go out.
        hidden: in between.
        neuron: makes a neuron.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        *,
        neuron: layer.MakeNeuron = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        settings = {"neuron": neuron, "use_bias": True, "dtype": dtype, "rngs": rngs}
        self.wide = layer.LinearBlock(features, hidden, **settings)
        self.narrow = layer.LinearBlock(hidden, features, **settings)

    def __call__(self, x: Array) -> Array:
        """`[time, batch, ..., features]` to spikes of the same shape."""
        with jax.named_scope("snn.spiking_mlp"):
            return self.narrow(self.wide(x))

    def __spatial_split__(self) -> tuple[Any, ...]:
        """Both blocks."""
        return self.wide, self.narrow


class SpikformerBlock(nnx.Module):
    """`y = x + attention(x);  y + mlp(y)`: whole numbers, 2 spikes more at most.

    Args:
        features: that come in and go out.
        heads: of the attention.
        mlp_ratio: how much wider the perceptron is in between.
        attention: makes it, of `(features, heads)`; `layer.SpikingSelfAttention`.
        neuron: makes a neuron; it takes `v_threshold`.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: `heads` does not divide `features`.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        mlp_ratio: int = 4,
        *,
        attention: Any = layer.SpikingSelfAttention,
        neuron: Any = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        settings = {"neuron": neuron, "dtype": dtype, "rngs": rngs}
        self.attention = attention(features, heads, **settings)
        self.mlp = SpikingMLP(features, features * mlp_ratio, **settings)

    def __call__(self, x: Array) -> Array:
        """`[time, batch, ..., features]` to the same shape."""
        with jax.named_scope("snn.spikformer_block"):
            x = x + self.attention(x)
            return x + self.mlp(x)

    def __spatial_split__(self) -> tuple[Any, ...]:
        """The attention and the perceptron."""
        return self.attention, self.mlp


class Spikformer(nnx.Module):
    """Spikformer-`depth`-`features`: patches, transformer blocks, a linear classifier.

    ImageNet's are `Spikformer(512, 8, heads=8)` and so on, for 224x224; CIFAR's is
    `Spikformer(384, 4, heads=12, patch_size=4, num_classes=10)`, for 32x32. A still
    image is repeated over time, `jnp.repeat(image[None], 4, 0)`.

    Args:
        features: of every patch.
        depth: number of blocks.
        heads: of the attention.
        mlp_ratio: how much wider the perceptrons are in between.
        patch_size: height and width of a patch, 2, 4, 8 or 16.
        num_classes: of the scores.
        in_features: channels of the images.
        neuron: makes a neuron; it takes `v_threshold`.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: another patch size, or `features` is no multiple of 8 and of
            `heads`.

    Source: Zhou et al., ICLR 2023, and its code. There, each block also has
    two layer norms that nothing reads; they are left out.
    """

    def __init__(
        self,
        features: int = 512,
        depth: int = 8,
        *,
        heads: int = 8,
        mlp_ratio: int = 4,
        patch_size: int = 16,
        num_classes: int = 1000,
        in_features: int = 3,
        neuron: Any = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        settings = {"neuron": neuron, "dtype": dtype, "rngs": rngs}
        self.patches = SpikingPatchSplitting(
            in_features, features, patch_size, **settings
        )
        self.blocks = layer.Sequential(
            *(
                SpikformerBlock(features, heads, mlp_ratio, **settings)
                for _ in range(depth)
            )
        )
        self.classifier = layer.Linear(features, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Images `[time, batch, height, width, in_features]` to class scores.

        Returns:
            Scores of every time step, `[time, batch, num_classes]`.
        """
        with jax.named_scope("snn.spikformer"):
            spikes = self.blocks(self.patches(x))
            return self.classifier(spikes.mean((2, 3)))
