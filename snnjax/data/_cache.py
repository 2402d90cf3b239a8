"""Arrays kept on disk, under a key that holds everything they depend on.

tonic's DiskCachedDataset names its files by index alone, so that it returns the frames
of other settings, of another split, or of a file that has changed; and it writes in
place, so that two processes read each other's halves. Here a file is named by the hash
of all settings and of the recording's path, size and time of change, is compressed
with a check sum, and appears whole or not at all. What cannot be read is made again.
"""

import dataclasses
import hashlib
import io
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .._files import write_whole
from ._reading import undisturbed

# Threads that want the same array wait for the first of them; a few locks serve all.
_MAKING = tuple(threading.Lock() for _ in range(64))
_FORMAT = 1  # part of every key: raise it when frames of the same settings change


@dataclasses.dataclass(frozen=True)
class DiskCache:
    """Arrays in files below `folder`.

    Args:
        folder: made if it is not there.
        settings: everything but the sample that an array depends on.
    """

    folder: Path
    settings: str

    def get(self, file: Path, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """What was kept for the sample `name` of `file`; or `make()`, which is kept."""
        at = self._path(file, name)
        with _MAKING[hash(at) % len(_MAKING)]:
            try:
                return _unpacked(at.read_bytes())
            except (FileNotFoundError, zlib.error, ValueError, EOFError):
                array = make()
            at.parent.mkdir(parents=True, exist_ok=True)
            write_whole(at, _packed(array))
        return array

    def _path(self, file: Path, name: str) -> Path:
        state = file.stat()
        path = file.resolve(), name, state.st_size, state.st_mtime_ns
        key = hashlib.sha256(repr((_FORMAT, self.settings, *path)).encode()).hexdigest()
        return self.folder / key[:2] / key[2:]


def _packed(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return zlib.compress(content.getvalue(), level=1)


def _unpacked(content: bytes) -> np.ndarray:
    raw = zlib.decompress(content)
    return undisturbed(lambda: np.load(io.BytesIO(raw), allow_pickle=False))
