"""LIF forward and backward, each way of computing it, over a copy of the same bytes."""

import functools

import child
import jax
import jax.numpy as jnp
from clock import copy_bandwidth, rounds
from workload import DTYPES, sizes

from snnjax import neuron as neurons
from snnjax import surrogate


def neuron(options):
    shape, repeats = sizes(options)["neuron"], sizes(options)["repeats"]
    on_gpu = jax.default_backend() == "gpu"
    bandwidth = copy_bandwidth(shape)
    rows = [
        row
        for dtype in DTYPES
        for row in neuron_rows(shape, dtype, repeats, on_gpu, bandwidth)
    ]
    return {"shape": list(shape), "copy_bytes_per_s": bandwidth, "rows": rows}


def neuron_rows(shape, dtype, repeats, on_gpu, bandwidth):
    """Each way forward, and backward from a cotangent that is given up."""
    x = jax.random.normal(jax.random.key(0), shape, dtype)
    ways = {"scan": scan_lif, **in_place_ways(on_gpu)}
    forward = {name: functools.partial(jax.jit(f), x) for name, f in ways.items()}
    backward = {name: pulling(f, x) for name, f in ways.items()}
    for what, thunks, activations in (
        ("forward", forward, 2),
        ("backward", backward, 3),
    ):
        floor = activations * x.nbytes / bandwidth
        seconds = rounds(thunks, repeats)
        for name in ways:
            yield {
                "pass": what,
                "way": name,
                "dtype": jnp.dtype(dtype).name,
                "seconds": seconds[name],
                "floor_seconds": floor,
                "over_floor": seconds[name] / floor,
            }


def in_place_ways(on_gpu):
    """The kernel cannot run on a CPU."""
    names = ("xla", "pallas") if on_gpu else ("xla",)
    return {name: neurons.LIF(implementation=name) for name in names}


def scan_lif(x):
    """As it is usually written: a scan, and what autodiff makes of it."""

    def step(x, v):
        h = v + (x.astype(v.dtype) - v) / 2
        s = surrogate.atan(h - 1)
        return s.astype(x.dtype), h * (1 - s)

    return neurons.scan(step, x, jnp.zeros(x.shape[1:], jnp.float32))[0]


def pulling(f, x):
    """The gradient by the current; each one is the cotangent of the next.

    A scan runs forward, too: autodiff keeps what its backward pass needs.
    """
    back = jax.jit(lambda x, ds: jax.vjp(f, x)[1](ds)[0], donate_argnums=1)
    held = [jnp.ones_like(x)]

    def thunk():
        held[0] = back(x, held[0])
        return held[0]

    return thunk


if __name__ == "__main__":
    child.main(neuron)
