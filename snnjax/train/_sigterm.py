"""Being asked to stop: SIGTERM, which clusters send before they kill."""

import signal
import threading
from types import FrameType
from typing import Any, Self

import jax
from jax.experimental import multihost_utils

EXIT_CODE = 128 + signal.SIGTERM  # what shells report of a process that it ends


class Sigterm:
    """While entered, SIGTERM is noted and no longer ends the process.

    With several processes JAX's preemption service listens: when one of them is asked,
    all of them stop, at the same step.
    """

    def __init__(self) -> None:
        self._asked, self._before = False, None

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and jax.process_count() == 1:
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._asked = True

    def asked(self, step: int) -> bool:
        """Whether to save and stop now; every process asks after every step."""
        if jax.process_count() == 1:
            return self._asked
        return multihost_utils.reached_preemption_sync_point(step)
