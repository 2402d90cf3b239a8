"""QKFormer: a spiking transformer in three stages, the first two linear in the places.

Zhou et al., "QKFormer: Hierarchical Spiking Transformer using Q-K Attention", NeurIPS
2024. Shortcuts add spikes to spikes, as in Spikformer.
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
from ._pool import halving
from ._spikformer import SpikformerBlock

_LIF = functools.partial(_neuron.LIF, detach_reset=True)


class SpikingPatchEmbedding(nnx.Module):
    """Spiking patch embedding with deformed shortcut (SPEDS): half the size, or not.

        x = first(x);    second(wide(x)) + shortcut(x)

    Args:
        in_features: channels that come in.
        features: that go out.
        first: whether there is such a block, with half the features; it takes images.
        second: whether there is such a block.
        pools: which of `first`, `wide` and `second` halve height and width, by a max
            pool of their current.
        neuron: makes a neuron.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Source: Zhou et al., NeurIPS 2024, and its code.
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        first: bool = False,
        second: bool = True,
        pools: tuple[bool, bool, bool] = (False, True, False),
        neuron: layer.MakeNeuron = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        settings = {"neuron": neuron, "dtype": dtype, "rngs": rngs}
        pooled = [{"pool_current": halving() if pool else None} for pool in pools]
        half = features // 2 if first else in_features
        self.first = (
            layer.ConvBlock(in_features, half, **pooled[0], **settings)
            if first
            else None
        )
        self.wide = layer.ConvBlock(half, features, **pooled[1], **settings)
        self.second = (
            layer.ConvBlock(features, features, **pooled[2], **settings)
            if second
            else None
        )
        strides = 2 ** (pools[1] + (second and pools[2]))
        self.shortcut = layer.ConvBlock(half, features, 1, strides=strides, **settings)

    def __call__(self, x: Array) -> Array:
        """`[time, batch, height, width, in_features]` to patches, 0 to 2 spikes."""
        with jax.named_scope("snn.spiking_patch_embedding"):
            x = x if self.first is None else self.first(x)
            y = self.wide(x)
            y = y if self.second is None else self.second(y)
            return y + self.shortcut(x)

    def __spatial_split__(self) -> tuple[Any, ...]:
        """The blocks, in order."""
        blocks = self.first, self.wide, self.second, self.shortcut
        return tuple(block for block in blocks if block is not None)


class QKFormer(nnx.Module):
    """QKFormer, HST-`depth`-`features`: three stages of patches and blocks.

    ImageNet's are `QKFormer(512, (1, 2, 7), heads=8)` and so on, for 224x224; CIFAR's
    is `QKFormer(384, (1, 1, 2), small_images=True, num_classes=10)`, for 32x32. A still
    image is repeated over time, `jnp.repeat(image[None], 4, 0)`.

    Args:
        features: of the last stage; the first two have 1/4 and 1/2 of them.
        depth: blocks of each stage; Q-K attention in two, self-attention in the last.
        heads: of the attentions.
        mlp_ratio: how much wider the perceptrons are in between.
        small_images: patches of 4x4, and not of 16x16.
        num_classes: of the scores.
        in_features: channels of the images.
        neuron: makes a neuron; it takes `v_threshold`.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: `heads` does not divide the features, or `depth` has not 3 numbers.

    Source: Zhou et al., NeurIPS 2024, and its code.
    """

    def __init__(
        self,
        features: int = 512,
        depth: Sequence[int] = (1, 2, 7),
        *,
        heads: int = 8,
        mlp_ratio: int = 4,
        small_images: bool = False,
        num_classes: int = 1000,
        in_features: int = 3,
        neuron: Any = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        check_depth(depth, 3)
        settings = {"neuron": neuron, "dtype": dtype, "rngs": rngs}
        # CIFAR's code pools behind a stage's second convolution, ImageNet's the first.
        later = (False, False, True) if small_images else (False, True, False)
        start = (False, False, False) if small_images else (True, True, False)
        attentions = (
            layer.TokenQKAttention,
            layer.TokenQKAttention,
            layer.SpikingSelfAttention,
        )
        widths = in_features, features // 4, features // 2, features
        stages: list[nnx.Module] = []
        for i, (attention, count) in enumerate(zip(attentions, depth)):
            pools = later if i else start
            stages.append(
                SpikingPatchEmbedding(
                    widths[i],
                    widths[i + 1],
                    first=i == 0,
                    second=i > 0 or not small_images,
                    pools=pools,
                    **settings,
                )
            )
            stages += [
                SpikformerBlock(
                    widths[i + 1], heads, mlp_ratio, attention=attention, **settings
                )
                for _ in range(count)
            ]
        self.stages = layer.Sequential(*stages)
        self.classifier = layer.Linear(features, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Images `[time, batch, height, width, in_features]` to class scores.

        Returns:
            Scores of every time step, `[time, batch, num_classes]`.
        """
        with jax.named_scope("snn.qkformer"):
            return self.classifier(self.stages(x).mean((2, 3)))
