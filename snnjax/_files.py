"""Files that appear whole or not at all, whoever else writes the same one."""

import os
import threading
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes `content` beside `path`, in an existing folder, and moves it there."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
