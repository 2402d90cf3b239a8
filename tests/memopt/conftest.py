"""Compiling for a GPU that is not there needs three wheels; CI has them."""

import importlib.util
import os

import pytest


@pytest.fixture
def cuda_wheels() -> None:
    """Skips where the wheels of `snnjax[plan-cuda]` are missing, or fails in CI."""
    packages = ("jax_plugins.xla_cuda12", "nvidia.cuda_nvcc")
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing and os.environ.get("SNNJAX_REQUIRE_CUDA") == "1":
        pytest.fail(f"SNNJAX_REQUIRE_CUDA=1, but {', '.join(missing)} is missing")
    if missing:
        pytest.skip(f'needs pip install "snnjax[plan-cuda]": no {", ".join(missing)}')
