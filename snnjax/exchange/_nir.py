"""The library nir, imported where it is used, and the order of its axes."""

from typing import Any

import numpy as np

from .._extra import optional

# nir compares what arrives with the channels of a group, and refuses such graphs
GROUPS = "allowed is one group, which is all that nir takes"


def library() -> Any:
    return optional("nir", "nir")


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[*space, channel]` as `[channel, *space]`."""
    return shape[-1:] + shape[:-1]


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[channel, *space]` as `[*space, channel]`."""
    return shape[1:] + shape[:1]


def places_in_nir(shape: tuple[int, ...]) -> np.ndarray:
    """Which of our flattened features each of NIR's is, for `shape`, channels-last."""
    ours = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return np.moveaxis(ours, -1, 0).ravel()


def reorders(shape: tuple[int, ...]) -> bool:
    """Whether flattened features lie in another order in NIR."""
    places = places_in_nir(shape)
    return bool((places != np.arange(len(places))).any())


def float32(a: Any) -> np.ndarray:
    return np.array(a, np.float32)  # a copy that is contiguous, as others expect
