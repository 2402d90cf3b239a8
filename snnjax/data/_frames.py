"""Events to a fixed number of frames, by bins of time or of event count.

Every recording gives exactly `steps` frames, however long it is: another shape would
compile the training step again. Every event counts in one of them.
"""

import abc
import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class _Bins(abc.ABC):
    """What both ways share. The arguments are those of `TimeBins`."""

    steps: int
    size: tuple[int, ...] | None = None
    max_count: int | None = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"`steps` is {self.steps}; allowed is 1 or more.")
        if self.max_count is not None and not 1 <= self.max_count <= 255:
            raise ValueError(
                f"`max_count` is {self.max_count}; allowed is 1 (whether there was an "
                "event), up to 255, or None (whatever is counted)."
            )

    @property
    def input_range(self) -> tuple[int, int] | None:
        """What frames can hold, for memopt's `input_range=`; None declares nothing."""
        return None if self.max_count is None else (0, self.max_count)

    def __call__(self, events: np.ndarray, sensor: tuple[int, ...]) -> np.ndarray:
        """Frames `[time, height, width, polarity]`, or `[time, unit]`.

        Args:
            events: structured array with the fields t, x, and for cameras y and p.
            sensor: its size, `(height, width, polarity)` or `(unit,)`.
        """
        shape = self.steps, *self._space(sensor)
        bins = self._bin_of(events["t"].astype(np.int64))
        at = bins, *_pixels(events, sensor, shape[1:])
        inside = bins < self.steps
        flat = np.ravel_multi_index([a[inside] for a in at], shape)
        counts = np.bincount(flat, minlength=math.prod(shape)).reshape(shape)
        if self.max_count is None:
            return counts.astype(np.int32)
        frames = np.minimum(counts, self.max_count)
        return frames.astype(bool if self.max_count == 1 else np.uint8)

    def _space(self, sensor: tuple[int, ...]) -> tuple[int, ...]:
        space = sensor[:2] if self.size is None else self.size
        if len(space) != min(2, len(sensor)):
            raise ValueError(
                f"`size` is {self.size}, but the sensor's is {sensor}; allowed is "
                "(height, width) for a camera, (unit,) for others, or None."
            )
        return *space, *sensor[2:]

    @abc.abstractmethod
    def _bin_of(self, t: np.ndarray) -> np.ndarray:
        """The frame of each event; `steps` or more for those left out."""


@dataclasses.dataclass(frozen=True)
class TimeBins(_Bins):
    """Frames of equal duration, from the first event on.

        frame of an event = (t - first) * steps // duration

    Args:
        steps: frames of each recording.
        size: pixels `(height, width)`, or `(unit,)`, to which coordinates are scaled
            and rounded down; None is the sensor's.
        max_count: where counts saturate. 1: whether there was an event, bool. Up to
            255: uint8, or None: whatever is counted, int32.
        duration: microseconds that all frames together span; later events are left
            out. None is each recording's own, so that the last event is in.

    Source: a fixed number of bins a recording, as SpikingJelly's and tonic's frames;
    tonic's leave the last event out.
    """

    duration: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.duration is not None and self.duration < 1:
            raise ValueError(
                f"`duration` is {self.duration}; allowed is 1 or more microseconds, or "
                "None, each recording's own."
            )

    def _bin_of(self, t: np.ndarray) -> np.ndarray:
        since = t - t.min(initial=np.iinfo(np.int64).max)
        own = since.max(initial=0) + 1
        duration = own if self.duration is None else self.duration
        return since * self.steps // duration


@dataclasses.dataclass(frozen=True)
class EventBins(_Bins):
    """Frames of equal numbers of events, in the order of time.

        frame of an event = rank * steps // number of events

    with ranks from 0. Arguments as `TimeBins`, without a duration.

    Source: Fang et al., "Incorporating Learnable Membrane Time Constant to Enhance
    Learning of Spiking Neural Networks", ICCV 2021, section 5: slices of equal numbers.
    """

    def _bin_of(self, t: np.ndarray) -> np.ndarray:
        rank = np.empty(len(t), np.int64)
        rank[np.argsort(t, kind="stable")] = np.arange(len(t))
        return rank * self.steps // max(1, len(t))


def _pixels(
    events: np.ndarray, sensor: tuple[int, ...], space: tuple[int, ...]
) -> list[np.ndarray]:
    """Where in `space` each event is, one array an axis."""
    fields = "yxp" if len(sensor) == 3 else "x"
    parts = zip(fields, space, sensor)
    return [events[f].astype(np.int64) * n // whole for f, n, whole in parts]
