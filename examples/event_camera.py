"""A simulated event camera: still images, moved along saccades, become events.

A pixel of an event camera fires whenever its log intensity has moved by a threshold
since its last event: ON (`p` = 1) for brighter, OFF (`p` = 0) for darker. The image
moves along a triangle of three short saccades, as in N-MNIST (Orchard et al., Frontiers
in Neuroscience 2015); the pixel model is that of ESIM (Rebecq et al., CoRL 2018).
Left out: noise, refractory periods and pixels that differ. Nothing here is random.

    events = record(image, size=16)       # x, y, t in microseconds, p; sorted by t
    frames = ToFrame(sensor_size=(16, 16, 2), n_time_bins=10)(events)    # tonic's
"""

import numpy as np

EVENT = np.dtype([("x", "<i2"), ("y", "<i2"), ("t", "<i8"), ("p", "i1")])
STEP = 1_000  # microseconds between two positions of the image


def record(
    image: np.ndarray, *, size: int = 16, steps: int = 64, threshold: float = 0.25
) -> np.ndarray:
    """Events of a camera of `size` x `size` pixels that sees `image` move.

    Args:
        image: intensities in 0 .. 1, `[height, width]`.
        size: pixels of the camera along each side.
        steps: positions of the image along its path.
        threshold: change of the log intensity that makes an event.

    Returns:
        Structured array of `EVENT`, sorted by time.
    """
    path = saccades(steps, reach=0.15 * image.shape[0])
    return events_of(move(image, path, size), threshold)


def saccades(steps: int, reach: float) -> np.ndarray:
    """Path along an equilateral triangle of side `reach`, back to its start: [step, 2].

    Source: Orchard et al. 2015; they too move for as long on each side.
    """
    corners = reach * np.array([[0, 0], [0.5, 0.866], [1, 0], [0, 0]])
    at = np.linspace(0, 3, steps)
    return np.stack([np.interp(at, range(4), corners[:, i]) for i in (0, 1)], -1)


def move(image: np.ndarray, path: np.ndarray, size: int) -> np.ndarray:
    """The image on the sensor at each (x, y) of `path`: [step, size, size].

    Smooth interpolation and shift are one linear map along each axis, so a shift may be
    any fraction of a pixel.
    """
    height, width = image.shape
    rows = _weights(height, size, path[:, 1])
    columns = _weights(width, size, path[:, 0])
    return rows @ image @ columns.swapaxes(1, 2)


def _weights(pixels: int, size: int, shift: np.ndarray) -> np.ndarray:
    """What each image pixel gives each of `size` sensor pixels: [step, size, pixel]."""
    at = (np.arange(size) + 0.5) * pixels / size - 0.5
    return _bspline(at[:, None] - shift[:, None, None] - np.arange(pixels))


def _bspline(x: np.ndarray) -> np.ndarray:
    """Cubic B-spline: smooth, never negative, and its integer shifts sum to one."""
    x = np.abs(x)
    near, far = 2 / 3 - x**2 + x**3 / 2, np.maximum(2 - x, 0) ** 3 / 6
    return np.where(x < 1, near, far)


def events_of(video: np.ndarray, threshold: float) -> np.ndarray:
    """Events of every pixel of `video`, `[step, height, width]`, sorted by time.

    Args:
        video: intensities, `[step, height, width]`, one each `STEP` microseconds.
        threshold: change of the log intensity since a pixel's last event that makes
            the next; a change of n thresholds in one step makes n events.
    """
    # log(0) is minus infinity; a sensor's dark current keeps it from that, too.
    level = np.log(0.05 + video)
    count, last = np.zeros(level.shape, int), level[0]
    for step in range(1, len(level)):
        count[step] = np.trunc((level[step] - last) / threshold)
        last = last + count[step] * threshold
    events = _spread(count)
    return events[np.argsort(events["t"], kind="stable")]


def _spread(count: np.ndarray) -> np.ndarray:
    """`|count|` events of a pixel, spread evenly over the time up to each step."""
    step, y, x = np.nonzero(count)
    signed = count[step, y, x]
    number = np.abs(signed)
    first = np.cumsum(number) - number
    rank = np.arange(1, number.sum() + 1) - np.repeat(first, number)  # 1, 2 .. n
    events = np.empty(len(rank), EVENT)
    events["x"], events["y"] = np.repeat(x, number), np.repeat(y, number)
    events["t"] = np.repeat(step - 1, number) * STEP
    events["t"] += rank * STEP // np.repeat(number, number)
    events["p"] = np.repeat(signed > 0, number)
    return events
