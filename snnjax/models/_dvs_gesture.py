"""The network of the PLIF paper for DVS Gesture: five pooled blocks, ten votes a class.

Fang et al., "Incorporating Learnable Membrane Time Constant to Enhance Learning of
Spiking Neural Networks", ICCV 2021:
`{c128k3s1-BN-PLIF-MPk2s2}*5-DP-FC512-PLIF-DP-FC110-PLIF-APk10s10`.
"""

import functools
from typing import Any

import jax
from flax import nnx

from .. import layer
from .. import neuron as _neuron
from .._types import Array
from ._frames import check_frames

_PLIF = functools.partial(_neuron.PLIF, detach_reset=True)
_VOTES = 10


class DVSGestureNet(nnx.Module):
    """DVS Gesture net: `layer.ConvBlock`s, and a classifier whose spikes are votes.

    Args:
        num_classes: of the scores.
        image_size: height and width of the frames, a multiple of `2**depth`.
        width: channels of every block.
        depth: number of blocks; each halves height and width.
        dropout: rate before both hidden layers; a mask is the same at all time steps.
        neuron: makes a neuron.
        dtype: of the computation; parameters stay float32.
        rngs: where initial parameters and dropout masks come from.

    Raises:
        ValueError: the blocks cannot halve the images.
    """

    def __init__(
        self,
        *,
        num_classes: int = 11,
        image_size: int = 128,
        width: int = 128,
        depth: int = 5,
        dropout: float = 0.5,
        neuron: layer.MakeNeuron = _PLIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        if image_size % 2**depth:
            raise ValueError(
                f"`image_size` is {image_size}; allowed is a multiple of {2**depth}, "
                f"since {depth} blocks halve it."
            )
        settings: dict[str, Any] = {"dtype": dtype, "rngs": rngs}
        self.image = image_size, image_size, 2
        self.features = layer.Sequential(
            *(
                layer.ConvBlock(
                    width if i else 2,
                    width,
                    neuron=neuron,
                    pool=layer.MaxPool(2),
                    **settings,
                )
                for i in range(depth)
            )
        )
        features = width * (image_size // 2**depth) ** 2
        plain: dict[str, Any] = settings | {"use_bias": False}
        self.classifier = layer.Sequential(
            layer.Flatten(),
            layer.Dropout(dropout, broadcast_dims=(0,), rngs=rngs),
            layer.Linear(features, features // 4, **plain),
            neuron(),
            layer.Dropout(dropout, broadcast_dims=(0,), rngs=rngs),
            layer.Linear(features // 4, num_classes * _VOTES, **plain),
            neuron(),
        )

    def __call__(self, x: Array) -> Array:
        """Frames `[time, batch, image_size, image_size, 2]` to shares of votes.

        Returns:
            Of every time step, `[time, batch, num_classes]`, 0 to 1.
        """
        check_frames(x, "this DVSGestureNet", self.image)
        with jax.named_scope("snn.dvs_gesture_net"):
            votes = self.classifier(self.features(x))
            return votes.reshape((*votes.shape[:2], -1, _VOTES)).mean(-1)
