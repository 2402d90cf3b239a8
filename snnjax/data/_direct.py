"""Images to time steps without events: repeated, or read column by column."""

import dataclasses

import numpy as np

Statistic = float | tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class _Direct:
    """Values of an image: `(x / 255 - mean) / std`, undivided if not uint8."""

    mean: Statistic = 0.0
    std: Statistic = 1.0

    def _values(self, image: np.ndarray) -> np.ndarray:
        scale = np.float32(255 if image.dtype == np.uint8 else 1)
        mean, std = (np.asarray(a, np.float32) for a in (self.mean, self.std))
        return (image.astype(np.float32) / scale - mean) / std


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repeat(_Direct):
    """Direct coding: the image at every time step, `[time, height, width, channel]`.

    Args:
        steps: time steps.
        mean, std: of values in 0..1, numbers or one for each channel.

    Raises:
        ValueError: `steps` is below 1.

    Source: Rathi and Roy, "DIET-SNN", IEEE TNNLS 2021.
    """

    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"`steps` is {self.steps}; allowed is 1 or more.")

    def __call__(self, image: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
        """An image `[height, width, channel]` to float32, `[time, ...]`."""
        del size
        return np.repeat(self._values(image)[None], self.steps, 0)


class Columns(_Direct):
    """One column a time step, `[time = width, height, channel]`.

    Sequential CIFAR-10 of Fang et al., "Parallel Spiking Neurons with High Efficiency
    and Ability to Learn Long-term Dependencies", NeurIPS 2023. Arguments as `Repeat`.
    """

    def __call__(self, image: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
        """An image `[height, width, channel]` to float32 `[width, height, channel]`."""
        del size
        return self._values(image).swapaxes(0, 1)


class Pixels(_Direct):
    """One pixel a time step, row by row, `[time = height * width, channel]`.

    Arguments as `Repeat`.
    """

    def __call__(self, image: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
        """An image `[height, width, channel]` to float32, `[time, channel]`."""
        del size
        return self._values(image).reshape(-1, image.shape[-1])
