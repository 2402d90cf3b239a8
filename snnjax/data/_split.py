"""A stratified split for a set that has none, the same on every machine."""

import hashlib
from typing import Any

import numpy as np

from ._samples import Samples


def split(
    samples: Samples, *, fraction: float = 0.1, seed: int = 0
) -> tuple[Samples, Samples]:
    """Parts the samples in two, each class by the same fraction.

    Of a class with n samples, the `round(fraction * n)` with the smallest SHA-256 of
    `seed/name` are the second part. So it depends on nothing but seed and names: not on
    the order of files on a disk, nor on a version of NumPy. Both parts keep the order
    of `samples`. One tenth of every class is the custom for CIFAR10-DVS, which comes
    without a split.

    Args:
        samples: what to part.
        fraction: of each class, for the second part; between 0 and 1.
        seed: another seed is another split.

    Returns:
        For training and for testing; no sample is in both.

    Raises:
        ValueError: a class would be missing from one of the parts.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"`fraction` is {fraction}; allowed is between 0 and 1.")
    labels, test = samples.labels, []
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        count = round(fraction * len(of_class))
        if not 0 < count < len(of_class):
            raise ValueError(
                f"`fraction` is {fraction}, but class {samples.classes[label]!r} has "
                f"{len(of_class)} samples, of which {count} would be for testing; both "
                "parts need one of each class. Choose another fraction, or more data."
            )
        test += sorted(of_class, key=lambda i: _rank(samples, i, seed))[:count]
    chosen = np.zeros(len(samples), bool)
    chosen[test] = True
    return samples.take(np.flatnonzero(~chosen)), samples.take(np.flatnonzero(chosen))


def _rank(samples: Samples, i: Any, seed: int) -> bytes:
    name = samples.names[int(samples.places[i])]
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()
