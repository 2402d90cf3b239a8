"""Every test is strict and deterministic: dtype promotion, rank promotion, seeds."""

import os
import zlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

os.environ["SNNJAX_CACHE_DIR"] = ""  # a test compiles what it measures

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def key(request: pytest.FixtureRequest) -> jax.Array:
    """A key of the test's own, the same in every run."""
    return jax.random.key(zlib.crc32(request.node.name.encode()))
