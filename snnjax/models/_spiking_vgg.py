"""Spiking VGG-11, 13, 16 and 19 with batch norm: ReLUs are neurons.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition", ICLR 2015, table 1, columns A, B, D and E; with spikes, Sengupta et al.,
"Going Deeper in Spiking Neural Networks: VGG and Residual Architectures", Frontiers in
Neuroscience 2019.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from .. import layer
from .. import neuron as _neuron
from .._types import Array
from ._frames import check_frames

# Convolutions of each of the five stages; a max pool ends a stage.
_LAYOUTS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
_WIDTHS = (1, 2, 4, 8, 8)  # of the stages, in terms of the first
_IF = functools.partial(_neuron.IF, detach_reset=True)


class SpikingVGG(nnx.Module):
    """Spiking VGG-`depth`: five stages of `layer.ConvBlock`s, a classifier of spikes.

    For CIFAR, `SpikingVGG(16, image_size=32, hidden=(), num_classes=10)`. A still image
    is repeated over time, `jnp.repeat(image[None], 4, 0)`.

    Args:
        depth: 11, 13, 16 or 19.
        num_classes: of the scores.
        in_features: channels of the images.
        image_size: height and width, a multiple of 32.
        width: channels of the first stage; 2, 4, 8 and 8 times as many come next.
        hidden: features of the classifier's hidden layers.
        dropout: rate behind each of them; a mask is the same at all time steps.
        neuron: makes a neuron.
        dtype: of the computation; parameters stay float32.
        rngs: where initial parameters and dropout masks come from.

    Raises:
        ValueError: another depth or image size.
    """

    def __init__(
        self,
        depth: int = 16,
        *,
        num_classes: int = 1000,
        in_features: int = 3,
        image_size: int = 224,
        width: int = 64,
        hidden: Sequence[int] = (4096, 4096),
        dropout: float = 0.5,
        neuron: layer.MakeNeuron = _IF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        _check(depth, image_size)
        features, blocks = in_features, []
        for count, times in zip(_LAYOUTS[depth], _WIDTHS):
            for i in range(count):
                block = layer.ConvBlock(
                    features,
                    width * times,
                    neuron=neuron,
                    pool=layer.MaxPool(2) if i == count - 1 else None,
                    use_bias=True,
                    dtype=dtype,
                    rngs=rngs,
                )
                blocks.append(block)
                features = width * times
        self.features = layer.Sequential(*blocks)
        self.image = image_size, image_size, in_features
        features *= (image_size // 32) ** 2
        head: list[Any] = [layer.Flatten()]
        for wide in hidden:
            head += [
                layer.Linear(features, wide, dtype=dtype, rngs=rngs),
                neuron(),
                layer.Dropout(dropout, broadcast_dims=(0,), rngs=rngs),
            ]
            features = wide
        linear = layer.Linear(features, num_classes, dtype=dtype, rngs=rngs)
        self.classifier = layer.Sequential(*head, linear)

    def __call__(self, x: Array) -> Array:
        """Images `[time, batch, image_size, image_size, in_features]` to class scores.

        Returns:
            Scores of every time step, `[time, batch, num_classes]`.
        """
        check_frames(x, "this SpikingVGG", self.image)
        with jax.named_scope("snn.spiking_vgg"):
            return self.classifier(self.features(x))


def _check(depth: int, image_size: int) -> None:
    if depth not in _LAYOUTS:
        raise ValueError(
            f"`depth` is {depth!r}; allowed are {', '.join(map(str, _LAYOUTS))}."
        )
    if image_size < 32 or image_size % 32:
        raise ValueError(
            f"`image_size` is {image_size}; allowed is a multiple of 32, since five "
            "pools halve it."
        )
