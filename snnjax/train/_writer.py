"""Where figures are logged: a protocol, and files that TensorBoard reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from .._extra import optional


class Writer(Protocol):
    """Anything that takes named numbers of a step."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...


class TensorBoard:
    """Event files for TensorBoard, by tensorboardX.

    The file is opened at the first write, so that a resumed run hides what its
    predecessor wrote of steps after the checkpoint.

    pip install "snnjax[tensorboard]"

    Args:
        folder: as `tensorboard --logdir` takes it.

    Raises:
        ImportError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder)
        self._make = optional("tensorboardX", "tensorboard").SummaryWriter
        self._events: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._events is None:
            self._events = self._make(self._folder, purge_step=step)
        for name, value in values.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None
