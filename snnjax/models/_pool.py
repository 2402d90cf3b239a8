"""The pool of ResNet's stem, which SEW-ResNet, Spikformer and QKFormer share."""

from .. import layer


def halving() -> layer.MaxPool:
    """Halves height and width; windows overlap."""
    return layer.MaxPool(3, 2, padding=((1, 1), (1, 1)))
