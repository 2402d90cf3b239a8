"""Chunks with statistics of their own: another function, and exactly that one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import assert_same

import snnjax as snn
from snnjax import memopt

T, N = 6, 4
WEIGHT = jnp.arange(6, dtype=jnp.float32).reshape(6, 1, 1, 1, 1)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.block = snn.models.VGGBlock(2, 4, rngs=rngs, tau=1.5)

    def __call__(self, x):
        return self.block(x)


def frames():
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.random((T, N, 4, 4, 2)) < 0.5, jnp.float32)


def loss(model, x):
    return (model(x) * WEIGHT).sum()


def planned(**settings):
    net = Net(nnx.Rngs(0))
    plan = memopt.make_plan(net, (snn.models.VGGBlock,), None)
    made = plan.with_chunks("block", chunk_statistics="per_chunk", **settings)
    assert "their own statistics" in str(made)
    return memopt.apply_plan(net, made)


def by_hand(axis, sizes):
    """The block called on one part after the other, its membrane kept over time."""
    net = Net(nnx.Rngs(0))
    if axis == 0:
        snn.neuron.keep_state(net)

    def run(model, x):
        ends = np.cumsum(sizes)
        parts = [
            model(jax.lax.slice_in_dim(x, end - size, end, axis=axis))
            for end, size in zip(ends, sizes)
        ]
        y = jnp.concatenate(parts, axis)
        return (y * WEIGHT).sum()

    gradients = nnx.jit(nnx.grad(run))(net, frames())
    return gradients, nnx.state(net, nnx.BatchStat)


@pytest.mark.parametrize(
    "settings, axis, sizes",
    [
        ({"batch": 2}, 1, (2, 2)),
        ({"batch": 3}, 1, (2, 2)),
        ({"time": 3}, 0, (2, 2, 2)),
        ({"time": 4}, 0, (2, 2, 2)),
    ],
)
def test_each_chunk_is_a_call_of_its_own(settings, axis, sizes):
    net = planned(**settings)
    gradients = nnx.jit(nnx.grad(loss))(net, frames())
    wanted, statistics = by_hand(axis, sizes)
    assert_same(gradients, wanted, tolerance=1e-5)
    assert_same(nnx.state(net, nnx.BatchStat), statistics, tolerance=1e-6)


def test_it_is_another_function_than_the_exact_one():
    exact = Net(nnx.Rngs(0))
    wanted = nnx.jit(nnx.grad(loss))(exact, frames())
    came = nnx.jit(nnx.grad(loss))(planned(batch=2), frames())
    pairs = zip(jax.tree.leaves(came), jax.tree.leaves(wanted))
    assert any(jnp.abs(a - b).max() > 1e-3 for a, b in pairs)


def test_samples_with_states_of_their_own_are_refused():
    net = planned(batch=2)
    snn.neuron.keep_state(net)
    with pytest.raises(ValueError, match="per_chunk"):
        nnx.grad(loss)(net, frames())


def test_a_name_that_is_none_is_refused():
    plan = memopt.make_plan(Net(nnx.Rngs(0)), (snn.models.VGGBlock,), None)
    with pytest.raises(ValueError, match="chunk_statistics.*'exact', 'per_chunk'"):
        plan.with_chunks("block", batch=2, chunk_statistics="own")
