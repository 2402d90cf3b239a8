"""The workload of all benchmarks of a step: the tutorial's VGG and what it trains on.

NumPy alone, since every peer's own environment imports it.
"""

import argparse
from typing import Any

import numpy as np

RATE = 0.01  # of plain gradient descent
TAU = 1.333
DROPOUT = 0.25
WIDTHS = (2, 64, 128, 256, 256, 512, 512, 512, 512)  # channels between its layers
DTYPES = ("float32", "bfloat16")  # of a neuron alone


def sizes(options: argparse.Namespace) -> dict[str, Any]:
    """Shapes of the parts, `[time, ...]`; `small` is for a smoke test."""
    if options.small:
        return {
            "checks": [(3, 2, 5)],
            "neuron": (4, 2, 8, 8, 4),
            "vgg": (5, 8, 8, 8, 2),
            "repeats": 2,
            "steps": 3,
        }
    return {
        "checks": [(4, 33, 70), (16, 3, 1025), (17, 64, 130), (40, 7, 19), (10, 5000)],
        "neuron": (16, 32, 64, 64, 64),  # 512 MiB at float32
        "vgg": (10, 8, 48, 48, 2),
        "repeats": 10,
        "steps": 30,
    }


def batch(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Frames `[time, batch, height, width, 2]`, 0 or for a tenth 1, and labels."""
    shape = sizes(options)["vgg"]
    frames = np.random.default_rng(0).random(shape) < 0.1
    return frames.astype(np.float32), (np.arange(shape[1]) % 10).astype(np.int32)


def layout(options: argparse.Namespace) -> list[tuple[int, int, bool]]:
    """Channels in, channels out, and whether a pool ends the block."""
    if options.small:
        return [(2, 8, True), (8, 10, True)]
    return [*zip(WIDTHS, WIDTHS[1:], (False, True) * 4)]


def peak_of(memory: Any) -> int:
    """Bytes, of what XLA says of a compiled step."""
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return memory.temp_size_in_bytes + held - memory.alias_size_in_bytes
