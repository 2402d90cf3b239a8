"""SEW-ResNet: residual networks whose shortcuts connect spikes with spikes.

Fang et al., "Deep Residual Learning in Spiking Neural Networks", NeurIPS 2021. With
ADD, every boundary between two blocks holds whole numbers of spikes, 1 more with each
block of a stage, and the memory planner packs them into as many bits as that takes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from .. import layer
from .. import neuron as _neuron
from .._types import Array
from ._pool import halving

# The paper's element-wise functions of spikes: s of the branch, x of the shortcut.
CONNECT: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda s, x: s + x,
    "and": lambda s, x: s * x,
    "iand": lambda s, x: x * (1 - s),
}
# Whether a block is a bottleneck, and the blocks of each stage.
_LAYOUTS = {
    18: (False, (2, 2, 2, 2)),
    34: (False, (3, 4, 6, 3)),
    50: (True, (3, 4, 6, 3)),
}
_IF = functools.partial(_neuron.IF, detach_reset=True)


class SEWBlock(nnx.Module):
    """`connect(branch(x), shortcut(x))`, all of them spikes.

    Args:
        in_features: channels that come in.
        out_features: channels that go out.
        strides: of the branch's 3x3 convolution that halves height and width.
        bottleneck: 1x1, 3x3, 1x1 with a quarter of the channels in between; otherwise
            two 3x3 convolutions.
        connect: `"add"`, `"and"` or `"iand"`, which is `x * (1 - s)`.
        neuron: makes a neuron.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: another connect function.

    Source: Fang et al., NeurIPS 2021, section 4.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        strides: int = 1,
        bottleneck: bool = False,
        connect: str = "add",
        neuron: layer.MakeNeuron = _IF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        _check("connect", connect, CONNECT)
        block = functools.partial(
            layer.ConvBlock, neuron=neuron, dtype=dtype, rngs=rngs
        )
        narrow = out_features // 4
        branch = (
            [
                block(in_features, narrow, 1),
                block(narrow, narrow, 3, strides=strides),
                block(narrow, out_features, 1),
            ]
            if bottleneck
            else [
                block(in_features, out_features, 3, strides=strides),
                block(out_features, out_features, 3),
            ]
        )
        same = strides == 1 and in_features == out_features
        self.branch = layer.Sequential(*branch)
        self.shortcut = (
            None if same else block(in_features, out_features, 1, strides=strides)
        )
        self.connect = connect

    def __call__(self, x: Array) -> Array:
        """`[time, batch, height, width, in_features]` to `[..., out_features]`."""
        with jax.named_scope("snn.sew_block"):
            s = self.branch(x)
            return CONNECT[self.connect](
                s, x if self.shortcut is None else self.shortcut(x)
            )

    def __spatial_split__(self) -> tuple[Any, ...]:
        """The blocks of the branch and that of the shortcut, if there is one."""
        shortcut = () if self.shortcut is None else (self.shortcut,)
        return *self.branch.layers, *shortcut


class SEWResNet(nnx.Module):
    """SEW-ResNet-18, 34 or 50: a stem, four stages of `SEWBlock`s, a linear classifier.

    A still image is repeated over time, `jnp.repeat(image[None], 4, 0)`.

    Args:
        depth: 18, 34 or 50.
        connect: `"add"`, `"and"` or `"iand"`.
        num_classes: of the scores.
        in_features: channels of the images.
        small_images: a stem of one 3x3 convolution for images of some 32x32; otherwise
            7x7 with strides 2 and a 3x3 max pool with strides 2, for ImageNet.
        width: channels of the first stage; each further one has twice as many.
        blocks: of each stage, in place of those of the depth.
        neuron: makes a neuron.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: another depth or connect function.

    Source: Fang et al., NeurIPS 2021, and its code.
    """

    def __init__(
        self,
        depth: int = 34,
        *,
        connect: str = "add",
        num_classes: int = 1000,
        in_features: int = 3,
        small_images: bool = False,
        width: int = 64,
        blocks: Sequence[int] | None = None,
        neuron: layer.MakeNeuron = _IF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        _check("depth", depth, _LAYOUTS)
        _check("connect", connect, CONNECT)
        bottleneck, counts = _LAYOUTS[depth]
        settings = {"neuron": neuron, "dtype": dtype, "rngs": rngs}
        self.stem = _stem(in_features, width, small_images, **settings)
        settings |= {"connect": connect, "bottleneck": bottleneck}
        stages, features = [], width
        for stage, count in enumerate(counts if blocks is None else blocks):
            out = width * 2**stage * (4 if bottleneck else 1)
            for i in range(count):
                strides = 2 if stage > 0 and i == 0 else 1
                stages.append(SEWBlock(features, out, strides=strides, **settings))
                features = out
        self.stages = layer.Sequential(*stages)
        self.classifier = layer.Linear(features, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Images `[time, batch, height, width, in_features]` to class scores.

        Returns:
            Scores of every time step, `[time, batch, num_classes]`.
        """
        with jax.named_scope("snn.sew_resnet"):
            spikes = self.stages(self.stem(x))
            return self.classifier(spikes.mean((2, 3)))


def _stem(
    in_features: int, width: int, small_images: bool, **settings: Any
) -> layer.ConvBlock:
    if small_images:
        return layer.ConvBlock(in_features, width, 3, **settings)
    settings |= {"strides": 2, "pool": halving()}
    return layer.ConvBlock(in_features, width, 7, **settings)


def _check(name: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        raise ValueError(
            f"`{name}` is {value!r}; allowed are {', '.join(map(repr, allowed))}."
        )
