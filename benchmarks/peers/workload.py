"""What all workers train on, and the tutorial's VGG as a list of layers."""

import argparse

import numpy as np
import worker  # noqa: F401  (finds gpu.py)
from gpu import sizes

RATE = 0.01  # of plain gradient descent
TAU = 1.333
DROPOUT = 0.25


def batch(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Frames `[time, batch, height, width, 2]`, 0 or for a tenth 1, and labels."""
    shape = sizes(options)["vgg"]
    frames = np.random.default_rng(0).random(shape) < 0.1
    return frames.astype(np.float32), (np.arange(shape[1]) % 10).astype(np.int32)


def layout(options: argparse.Namespace) -> list[tuple[int, int, bool]]:
    """Channels in, channels out, and whether a pool ends the block."""
    if options.small:
        return [(2, 8, True), (8, 10, True)]
    widths = (2, 64, 128, 256, 256, 512, 512, 512, 512)
    return [*zip(widths, widths[1:], (False, True) * 4)]
