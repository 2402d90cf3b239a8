"""What figures depend on beside the program: versions, the processor and its load."""

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

# The last two decide what "compiled without one" gives for a GPU.
PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "numpy"),
    *("jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12"),
)


def conditions(**more: Any) -> dict[str, Any]:
    """Of this process; `more` says what was run."""
    versions = {name: version for name in PACKAGES if (version := installed(name))}
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "jax": versions["jax"],
        "versions": versions,
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        **more,
    }


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu() -> str:
    """Its name, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()
