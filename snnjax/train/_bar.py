"""The progress bar: epoch, loss, accuracy, samples a second, bytes at the peak."""

from collections.abc import Mapping
from typing import Any, Self

import jax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

_MIB = 2**20


class Bar:
    """A bar of the steps of an epoch; the first process shows it."""

    def __init__(self, epochs: int, show: bool) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        self._epochs = epochs
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[figures]}"),
            disable=not show or jax.process_index() > 0,
        )
        self._task = self._progress.add_task("", total=None, figures="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.stop()

    def begin(self, epoch: int, done: int, total: int | None) -> None:
        """A new epoch, from 0, of `total` steps, `done` of them before."""
        name = f"epoch {epoch + 1}/{self._epochs}"
        self._progress.reset(
            self._task, total=total, completed=done, description=name, figures=""
        )

    def advance(self) -> None:
        self._progress.advance(self._task)

    def show(self, values: Mapping[str, float], rate: float, peak: int | None) -> None:
        """The figures so far; `rate` in samples a second, `peak` in bytes."""
        figures = [f"{name} {value:.4g}" for name, value in values.items()]
        figures.append(f"{rate:.0f} samples/s")
        if peak is not None:
            figures.append(f"peak {peak / _MIB:.1f} MiB")
        self._progress.update(self._task, figures=", ".join(figures))
