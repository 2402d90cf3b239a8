"""Clocks: of calls by turns, and of a copy, which is a card's floor."""

import statistics
import time

import jax
import jax.numpy as jnp


def rounds(thunks, repeats, count=5):
    """Median seconds a call; by turns, `repeats` calls in a row, the clock outside."""
    found = {name: [] for name in thunks}
    for thunk in thunks.values():
        jax.block_until_ready(thunk())
    for _ in range(count):
        for name, thunk in thunks.items():
            start = time.perf_counter()
            for _ in range(repeats):
                last = thunk()
            jax.block_until_ready(last)
            found[name].append((time.perf_counter() - start) / repeats)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def copy_bandwidth(shape):
    """Bytes read and written a second by `x + 1`, in float32."""
    x, copy = jnp.zeros(shape, jnp.float32), jax.jit(lambda x: x + 1)
    return 2 * x.nbytes / rounds({"copy": lambda: copy(x)}, 10)["copy"]
