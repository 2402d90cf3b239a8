"""Sequential CIFAR: an image comes column by column, one time step each.

Fang et al., "Parallel Spiking Neurons with High Efficiency and Ability to Learn
Long-term Dependencies", NeurIPS 2023, and its code: six 1-D convolution blocks over a
column, a mean pool after the third and the sixth, two linear layers.
"""

import functools
from typing import Any

import jax
from flax import nnx

from .. import layer
from .. import neuron as _neuron
from .._types import Array, check_time_major

_LIF = functools.partial(_neuron.LIF, v_reset=None, detach_reset=True)


class SequentialCIFARNet(nnx.Module):
    """Sequential CIFAR net: six 1-D `layer.ConvBlock`s and a classifier of spikes.

    Columns of images `[batch, height, width, 3]` are `jnp.moveaxis(images, 2, 0)`. A
    parallel neuron knows the number of columns:
    `neuron=functools.partial(snnjax.neuron.PSN, 32, rngs=rngs)`.

    Args:
        num_classes: of the scores.
        height: of a column, a multiple of 4.
        width: channels of every block.
        neuron: makes a neuron.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: two pools cannot halve the height.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        height: int = 32,
        width: int = 128,
        neuron: layer.MakeNeuron = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        if height % 4:
            raise ValueError(
                f"`height` is {height}; allowed is a multiple of 4, since two pools "
                "halve it."
            )
        settings = {"dtype": dtype, "rngs": rngs}
        self.column = height, 3
        self.features = layer.Sequential(
            *(
                layer.ConvBlock(
                    width if i else 3,
                    width,
                    (3,),
                    neuron=neuron,
                    pool=layer.AvgPool((2,)) if i in (2, 5) else None,
                    **settings,
                )
                for i in range(6)
            )
        )
        features = width * height // 4
        self.classifier = layer.Sequential(
            layer.Flatten(),
            layer.Linear(features, features // 4, **settings),
            neuron(),
            layer.Linear(features // 4, num_classes, **settings),
        )

    def __call__(self, x: Array) -> Array:
        """Columns `[time, batch, height, 3]` to class scores.

        Returns:
            Scores of every time step, `[time, batch, num_classes]`.
        """
        check_time_major(x, "x", "time batch height channel")
        if x.shape[2:] != self.column:
            raise ValueError(
                f"`x` has shape {tuple(x.shape)}; this SequentialCIFARNet takes "
                f"columns [time, batch, {self.column[0]}, 3], of images "
                "`jnp.moveaxis(images, 2, 0)`."
            )
        with jax.named_scope("snn.sequential_cifar_net"):
            return self.classifier(self.features(x))
