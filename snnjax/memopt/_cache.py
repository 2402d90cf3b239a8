"""XLA's figures of a program, kept on disk: compiled once, on any later day known.

The key is the whole program with its options, device and versions, so that nothing
stale is ever found. `SNNJAX_CACHE_DIR` says where; empty is nowhere.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from .._files import write_whole

Figures = dict[str, int]


def cached(parts: tuple[bytes | str, ...], make: Callable[[], Figures]) -> Figures:
    """The figures of a program: those on disk, or `make()`, which are then kept.

    Args:
        parts: everything that the figures depend on, beside the version of
            jaxlib and XLA_FLAGS.
        make: compiles; what it raises is not kept.
    """
    folder = _folder()
    if folder is None:
        return make()
    file = folder / f"{_key(parts)}.json"
    known = _read(file)
    if known is not None:
        return known
    figures = make()
    with contextlib.suppress(OSError):  # a cache that cannot be written is none
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(figures).encode())
    return figures


def _folder() -> Path | None:
    given = os.environ.get("SNNJAX_CACHE_DIR")
    if given is not None:
        return Path(given) if given else None
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "snnjax" / "figures"


def _key(parts: tuple[bytes | str, ...]) -> str:
    flags = os.environ.get("XLA_FLAGS", "")  # a child process has them, too
    digest = hashlib.sha256(f"{version('jaxlib')} {flags}".encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()


def _read(file: Path) -> Figures | None:
    """What `cached` wrote; None where there is nothing, or something else."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        if isinstance(found, dict) and found:
            numbers = all(type(n) is int and n >= 0 for n in found.values())
            return found if numbers else None
    return None
