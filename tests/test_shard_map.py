"""Gradients inside `jax.shard_map`, which checks what varies over the devices."""

import functools as ft
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import snnjax as snn
from snnjax import memopt
from snnjax.neuron import lif

TIME, BATCH, SIDE, CHANNELS = 4, 8, 4, 2


@pytest.fixture
def mesh():
    return jax.make_mesh((8,), ("batch",), (jax.sharding.AxisType.Auto,))


def images():
    x = np.random.default_rng(0).normal(size=(TIME, BATCH, SIDE, SIDE, CHANNELS))
    return jnp.asarray(2 * x, jnp.float32)


def assert_close(came, expected):
    for a, b in zip(jax.tree.leaves(came), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max(initial=0))


def spread(mesh, f, check_vma):
    """`f(parameters, x)`, a mean over the batch, on the devices' own parts."""

    def mean(parameters, x):
        return jax.lax.pmean(f(parameters, x), "batch")

    over = ft.partial(jax.shard_map, mesh=mesh, check_vma=check_vma, out_specs=P())
    return over(mean, in_specs=(P(), P(None, "batch")))


NEURONS = {
    "lif": lambda: snn.neuron.LIF(tau=2.0),
    "soft reset": lambda: snn.neuron.IF(v_reset=None, detach_reset=True),
    "plif": lambda: snn.neuron.PLIF(tau=2.0),
    "alif": lambda: snn.neuron.ALIF(tau=2.0),
    "glif": lambda: snn.neuron.GLIF(TIME),
    "psn": lambda: snn.neuron.PSN(TIME, rngs=nnx.Rngs(0)),
    "sliding": lambda: snn.neuron.SlidingPSN(2),
}


class Net(nnx.Module):
    """Two blocks with a frozen norm, so that a sample does not see the others."""

    def __init__(self, neuron):
        rngs = nnx.Rngs(0)
        block = ft.partial(snn.layer.ConvBlock, neuron=neuron, rngs=rngs)
        self.first, self.second = block(CHANNELS, 8), block(8, 8)
        self.eval()

    def __call__(self, x):
        return self.second(self.first(x))


def weigh(y):
    weights = jnp.cos(jnp.arange(math.prod(y.shape[2:]), dtype=y.dtype))
    return (y * weights.reshape(1, 1, *y.shape[2:])).mean()


def gradient(net, over=lambda f: f):
    graph, parameters, rest = nnx.split(net, nnx.Param, ...)

    def loss(parameters, x):
        return weigh(nnx.merge(graph, parameters, rest)(x))

    return jax.jit(jax.grad(over(loss), (0, 1)))(parameters, images())


@pytest.mark.parametrize("neuron", NEURONS.values(), ids=NEURONS)
def test_gradients_of_networks(mesh, neuron):
    net = Net(neuron)
    came = gradient(net, lambda f: spread(mesh, f, check_vma=True))
    expected = gradient(net)
    assert_close(came, expected)
    assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(expected[0]))


@pytest.mark.parametrize("chunks, check_vma", [(0, True), (0, False), (2, False)])
def test_gradients_of_segments(mesh, chunks, check_vma):
    net = Net(NEURONS["plif"])
    x = jax.ShapeDtypeStruct((TIME, 1, SIDE, SIDE, CHANNELS), jnp.float32)
    plan = memopt.make_plan(net, (snn.layer.ConvBlock,), (x,))
    plan = plan.with_chunks("first", "second", time=chunks) if chunks else plan
    planned = memopt.apply_plan(net, plan)
    came = gradient(planned, lambda f: spread(mesh, f, check_vma))
    assert_close(came, gradient(net))


@pytest.mark.parametrize("check_vma", [True, False])
def test_gradients_of_the_function(mesh, check_vma):
    def f(tau, x):
        spikes, last = lif(x, tau=tau)
        return weigh(spikes) + weigh(last[None])

    tau, x = jnp.asarray(2.0), images()
    came = jax.jit(jax.grad(spread(mesh, f, check_vma), (0, 1)))(tau, x)
    assert_close(came, jax.jit(jax.grad(f, (0, 1)))(tau, x))
