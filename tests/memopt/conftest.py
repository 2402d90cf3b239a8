"""Compiling for a GPU that is not there needs three wheels; CI has them."""

import importlib.metadata
import os

import pytest

WHEELS = ("jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12")


@pytest.fixture
def cuda_wheels() -> None:
    """Skips where the wheels of `snnjax[plan-cuda]` are missing, or fails in CI."""
    installed = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    missing = ", ".join(wheel for wheel in WHEELS if wheel not in installed)
    if missing and os.environ.get("SNNJAX_REQUIRE_CUDA") == "1":
        pytest.fail(f"SNNJAX_REQUIRE_CUDA=1, but {missing} is missing")
    if missing:
        pytest.skip(f'needs pip install "snnjax[plan-cuda]": no {missing}')
