"""Every test is strict and deterministic: dtype promotion, rank promotion, seeds."""

import importlib.metadata
import os
import zlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Eight devices; and machine code that is made in three quarters of the time, for
# programs whose buffers are the same.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)

os.environ["SNNJAX_CACHE_DIR"] = ""  # a test compiles what it measures

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compiling for a GPU that is not there needs three wheels; CI has them.
WHEELS = ("jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12")


@pytest.fixture
def key(request: pytest.FixtureRequest) -> jax.Array:
    """A key of the test's own, the same in every run."""
    return jax.random.key(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def cuda_wheels() -> None:
    """Skips where the wheels of `snnjax[plan-cuda]` are missing, or fails in CI."""
    installed = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    missing = ", ".join(wheel for wheel in WHEELS if wheel not in installed)
    if missing and os.environ.get("SNNJAX_REQUIRE_CUDA") == "1":
        pytest.fail(f"SNNJAX_REQUIRE_CUDA=1, but {missing} is missing")
    if missing:
        pytest.skip(f'needs pip install "snnjax[plan-cuda]": no {missing}')
