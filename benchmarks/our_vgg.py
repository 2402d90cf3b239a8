"""The tutorial's VGG, ours."""

from flax import nnx

import snnjax as snn


class Tiny(nnx.Module):
    """For the smoke test."""

    def __init__(self, rngs):
        block = snn.models.VGGBlock
        self.features = snn.layer.Sequential(
            block(2, 8, pool=True, rngs=rngs), block(8, 10, rngs=rngs)
        )

    def __call__(self, x):
        return self.features(x).mean((2, 3))


def network(options):
    rngs = nnx.Rngs(0)
    return Tiny(rngs) if options.small else snn.models.CIFAR10DVSVGG(rngs=rngs)
