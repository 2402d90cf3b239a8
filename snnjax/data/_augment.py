"""Augmentation: a sample and a random generator to a sample.

On events, so before the frames; `Flip` and `Shift` take images, too. The generator is
`batches`' own, for each seed, epoch and sample.
"""

import dataclasses
from typing import Protocol

import numpy as np


class Augmentation(Protocol):
    """What may be in `augment=`: any function of these arguments."""

    def __call__(
        self, sample: np.ndarray, size: tuple[int, ...], rng: np.random.Generator, /
    ) -> np.ndarray:
        """A sample like this one.

        Args:
            sample: events, a structured array `[event]`, or an image,
                `[height, width, channel]`.
            size: of the sensor or the image, as `Samples.size`.
            rng: of this sample in this epoch.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Flip:
    """Left becomes right, in a share `probability` of the samples.

    Not for classes that name a side, such as those of DVS Gesture.

    Args:
        probability: from 0 to 1.

    Raises:
        ValueError: it is another.
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self.probability)

    def __call__(
        self, sample: np.ndarray, size: tuple[int, ...], rng: np.random.Generator
    ) -> np.ndarray:
        if rng.random() >= self.probability:
            return sample
        if sample.dtype.names is None:
            return sample[:, ::-1]
        mirrored = sample.copy()
        mirrored["x"] = _width(size) - 1 - sample["x"]
        return mirrored


@dataclasses.dataclass(frozen=True)
class Shift:
    """Moves a sample by up to `pixels` along each axis of space.

    Events that leave the sensor are dropped; an image is filled up with zeros.

    Args:
        pixels: 0 or more.

    Raises:
        ValueError: it is below 0.
    """

    pixels: int

    def __post_init__(self) -> None:
        if self.pixels < 0:
            raise ValueError(f"`pixels` is {self.pixels}; allowed is 0 or more.")

    def __call__(
        self, sample: np.ndarray, size: tuple[int, ...], rng: np.random.Generator
    ) -> np.ndarray:
        fields, lengths = ("yx", size[:2]) if len(size) == 3 else ("x", size)
        by = rng.integers(-self.pixels, self.pixels + 1, len(fields))
        if sample.dtype.names is None:
            return _shifted(sample, *by)
        moved, inside = sample.copy(), np.ones(len(sample), bool)
        for field, length, distance in zip(fields, lengths, by):
            # in int64: coordinates may be unsigned
            place = sample[field].astype(np.int64) + distance
            inside &= (0 <= place) & (place < length)
            moved[field] = np.clip(place, 0, length - 1)
        return moved[inside]


@dataclasses.dataclass(frozen=True)
class Drop:
    """Leaves out each event with the given probability.

    Args:
        probability: from 0 to 1.

    Raises:
        ValueError: it is another, or an image comes.
    """

    probability: float = 0.1

    def __post_init__(self) -> None:
        _check_probability(self.probability)

    def __call__(
        self, sample: np.ndarray, size: tuple[int, ...], rng: np.random.Generator
    ) -> np.ndarray:
        del size
        if sample.dtype.names is None:
            raise ValueError("`Drop` takes events; an image came. Leave it out.")
        return sample[rng.random(len(sample)) >= self.probability]


def _check_probability(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise ValueError(f"`probability` is {probability}; allowed is from 0 to 1.")


def _width(size: tuple[int, ...]) -> int:
    return size[1] if len(size) == 3 else size[0]


def _shifted(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """`result[i, j] = image[i - down, j - right]`, or 0 where there is none."""
    height, width = image.shape[:2]
    margin = np.abs([down, right])
    padded = np.pad(image, [(n, n) for n in margin] + [(0, 0)] * (image.ndim - 2))
    top, left = margin[0] - down, margin[1] - right
    return padded[top : top + height, left : left + width]
