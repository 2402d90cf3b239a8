"""The spiking VGG of SpikingJelly's memory-optimisation tutorial, for CIFAR10-DVS.

Eight convolution blocks over 48x48 event frames: Huang et al., "Towards Lossless
Memory-efficient Training of Spiking Neural Networks via Gradient Checkpointing and
Spike Compression", ICLR 2026; the architecture follows Deng et al., "Temporal Efficient
Training of Spiking Neural Network via Gradient Re-weighting", ICLR 2022. 9.27 million
parameters, convolution biases included, as there.
"""

import functools
from typing import Any

import jax
from flax import nnx

from .. import layer, neuron
from .. import surrogate as _surrogate
from .._types import Array
from ._frames import check_frames


class VGGBlock(layer.ConvBlock):
    """`Convolution, batch normalisation, LIF[, average pool]`.

    Args:
        in_features: channels that come in.
        out_features: channels that go out.
        kernel_size: of the convolution, one integer for height and width.
        pool: halve height and width of the spikes.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.
        lif: `tau` and the other arguments of `snnjax.neuron.LIF`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int = 3,
        *,
        pool: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **lif: Any,
    ) -> None:
        super().__init__(
            in_features,
            out_features,
            kernel_size,
            neuron=functools.partial(neuron.LIF, **lif),
            pool=layer.AvgPool(2) if pool else None,
            use_bias=True,
            dtype=dtype,
            rngs=rngs,
        )


class CIFAR10DVSVGG(nnx.Module):
    """Spiking VGG for CIFAR10-DVS: eight `VGGBlock`s and a linear classifier.

    The tutorial pools before a convolution; here a block ends with the pool, which is
    the same function. A segment then keeps pooled spikes, three bits at a quarter of
    the places, and hands back a cotangent of a quarter of the size.

    Args:
        dropout: rate before the classifier; 0 leaves the layer out.
        tau, decay_input, detach_reset, surrogate: of every LIF neuron.
        dtype: of the computation; parameters stay float32.
        rngs: where initial parameters and dropout masks come from.

    Source: the tutorial "Training Memory Optimization" of SpikingJelly.
    """

    # in, out, pool
    LAYOUT = (
        (2, 64, False),
        (64, 128, True),
        (128, 256, False),
        (256, 256, True),
        (256, 512, False),
        (512, 512, True),
        (512, 512, False),
        (512, 512, True),
    )

    def __init__(
        self,
        *,
        dropout: float = 0.25,
        tau: float = 1.333,
        decay_input: bool = False,
        detach_reset: bool = True,
        surrogate: neuron.Surrogate = _surrogate.atan,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        lif = {
            "tau": tau,
            "decay_input": decay_input,
            "detach_reset": detach_reset,
            "surrogate": surrogate,
        }
        blocks = [
            VGGBlock(i, o, pool=pool, dtype=dtype, rngs=rngs, **lif)
            for i, o, pool in self.LAYOUT
        ]
        self.features = layer.Sequential(*blocks)
        head = [layer.Dropout(dropout, rngs=rngs)] if dropout > 0 else []
        linear = layer.Linear(512 * 3 * 3, 10, dtype=dtype, rngs=rngs)
        self.classifier = layer.Sequential(layer.Flatten(), *head, linear)

    def __call__(self, x: Array) -> Array:
        """Frames `[time, batch, 48, 48, 2]` to class scores `[time, batch, 10]`."""
        check_frames(x, "CIFAR10DVSVGG", (48, 48, 2))
        with jax.named_scope("snn.cifar10dvs_vgg"):
            return self.classifier(self.features(x))
