"""What every set is: samples that are read one by one, with labels and names."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ._reading import undisturbed


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Samples of a set, read when they are asked for; `samples[i]` is one of them.

    Args:
        source: what reads them, with all settings; part of a cache's key.
        read: the sample at a place in the whole set: events, a structured array with
            the fields t (microseconds), x, and for cameras y and p; or an image,
            `[height, width, channel]`.
        names: of all samples of the whole set, in order; a file's is its path below
            `folder`, followed by `#` and a number if it holds several samples.
        all_labels: of all samples of the whole set, integers, `[sample]`.
        classes: names of the classes, by label.
        size: of a sensor `[height, width, polarity]` or `[unit]`; of an image
            `[height, width, channel]`.
        folder: where the files are; None for samples that are in memory.
        indices: which places of the whole set these samples are; None is all.
    """

    source: str
    read: Callable[[int], np.ndarray]
    names: Sequence[str]
    all_labels: np.ndarray
    classes: tuple[str, ...]
    size: tuple[int, ...]
    folder: Path | None = None
    indices: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.indices is None:
            everything = np.arange(len(self.all_labels))
            object.__setattr__(self, "indices", everything)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, i: int) -> np.ndarray:
        place = int(self.places[i])
        return undisturbed(lambda: self.read(place))

    @property
    def places(self) -> np.ndarray:
        """Where in the whole set each sample is: `[sample]`."""
        assert self.indices is not None
        return self.indices

    @property
    def labels(self) -> np.ndarray:
        """The class of each sample: `[sample]`, int32."""
        return self.all_labels[self.places].astype(np.int32)

    def take(self, which: np.ndarray) -> "Samples":
        """The samples at the places `which` of these, `[sample]`, in that order."""
        return dataclasses.replace(self, indices=self.places[which])

    def file(self, place: int) -> Path:
        """The file that holds the sample at a place of the whole set."""
        if self.folder is None:
            raise ValueError(f"the samples of {self.source} are not in files")
        return self.folder / self.names[place].partition("#")[0]


def from_arrays(
    arrays: Sequence[np.ndarray] | np.ndarray,
    labels: np.ndarray,
    *,
    size: tuple[int, ...] | None = None,
    classes: Sequence[str] | None = None,
) -> Samples:
    """Samples that are in memory.

    Args:
        arrays: images, `[sample, height, width, channel]`, or one structured array of
            events for each sample.
        labels: integers from 0, `[sample]`.
        size: of the sensor, for events; of an image by default.
        classes: names of the classes, by label; their numbers by default.

    Raises:
        ValueError: there is nothing, or not one label a sample.
    """
    labels = np.asarray(labels)
    if len(arrays) == 0 or labels.shape != (len(arrays),):
        raise ValueError(
            f"`labels` has shape {labels.shape} and `arrays` {len(arrays)} samples; "
            "allowed is one label for each of one or more samples."
        )
    if labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"`labels` holds {labels.min()} at least, of dtype {labels.dtype}; allowed "
            "are integers from 0."
        )
    names = tuple(classes or map(str, range(labels.max() + 1)))
    if labels.max() >= len(names):
        raise ValueError(
            f"`labels` goes up to {labels.max()} with {len(names)} `classes`; allowed "
            f"is up to {len(names) - 1}: name every class."
        )
    if size is None and arrays[0].dtype.names is not None:
        raise ValueError(
            "`size` is None; events need that of their sensor, such as (128, 128, 2)."
        )
    return Samples(
        "arrays",
        lambda i: arrays[i],
        [str(i) for i in range(len(arrays))],
        labels,
        names,
        tuple(arrays[0].shape if size is None else size),
    )
