"""What processes that a test starts are given."""

import os
from pathlib import Path

HERE = Path(__file__).parent


def environment(cache):
    """Variables of a child: these folders to import from, a cache of programs."""
    paths = [str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "XLA_FLAGS": "",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
