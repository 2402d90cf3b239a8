"""Every network under every move of the planner's search: the same training."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import snnjax as snn
from snnjax import memopt, models
from snnjax.layer import ConvBlock
from snnjax.memopt import _optimize
from snnjax.memopt._boundary import prove_loss
from snnjax.memopt._model import modules_at
from snnjax.memopt._targets import find_targets, parts_of

IF = functools.partial(snn.neuron.IF, v_threshold=0.5, detach_reset=True)
LIF = functools.partial(snn.neuron.LIF, tau=1.5, detach_reset=True)


def sew(connect="add", depth=18):
    return models.SEWResNet(
        depth,
        connect=connect,
        num_classes=3,
        small_images=True,
        width=4,
        blocks=(1, 2),
        neuron=IF,
        rngs=nnx.Rngs(1),
    )


def spikformer():
    return models.Spikformer(
        16, 2, heads=2, patch_size=2, num_classes=3, neuron=LIVELY, rngs=nnx.Rngs(0)
    )


def LIVELY(v_threshold=0.5):  # noqa: N802, a neuron's maker
    return snn.neuron.LIF(tau=1.5, v_threshold=v_threshold / 2, detach_reset=True)


def vgg():
    return models.SpikingVGG(
        11,
        num_classes=3,
        image_size=32,
        width=4,
        hidden=(8,),
        neuron=IF,
        rngs=nnx.Rngs(0),
    )


def dvs_gesture():
    return models.DVSGestureNet(
        num_classes=2, image_size=16, width=4, depth=3, rngs=nnx.Rngs(0)
    )


def sequential(neuron=LIVELY):
    return models.SequentialCIFARNet(
        num_classes=3, height=8, width=4, neuron=neuron, rngs=nnx.Rngs(0)
    )


def parallel(kind, *args):
    rngs = nnx.Rngs(1)
    given = {} if kind is snn.neuron.SlidingPSN else {"rngs": rngs}
    return sequential(lambda: kind(*args, **given))


SEW, SPIKFORMER = (models.SEWBlock,), (models.SpikformerBlock, ConvBlock)
IMAGES = (4, 4, 8, 8, 3)
COLUMNS = (8, 4, 8, 3)
# How to make it, what comes in, and what becomes a segment.
NETS = {
    "sew add": (sew, IMAGES, (*SEW, ConvBlock)),
    "sew iand": (functools.partial(sew, "iand"), IMAGES, SEW),
    "sew and, bottleneck": (functools.partial(sew, "and", 50), IMAGES, SEW),
    "spikformer": (spikformer, IMAGES, SPIKFORMER),
    "vgg": (vgg, (2, 4, 32, 32, 3), (ConvBlock,)),
    "dvs gesture": (dvs_gesture, (4, 4, 16, 16, 2), (ConvBlock,)),
    "sequential": (sequential, COLUMNS, (ConvBlock,)),
    "sequential, PSN": (
        functools.partial(parallel, snn.neuron.PSN, 8),
        COLUMNS,
        (ConvBlock,),
    ),
    "sequential, sliding PSN": (
        functools.partial(parallel, snn.neuron.SlidingPSN, 3),
        COLUMNS,
        (ConvBlock,),
    ),
}


def loss(net, x):
    """Depends on every score, each in its own way."""
    y = net(x)
    return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))


def current(shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def values(tree):
    flat, _ = jax.tree_util.tree_flatten_with_path(nnx.state(tree))
    return {jax.tree_util.keystr(path): as_numbers(leaf) for path, leaf in flat}


def as_numbers(a):
    key = jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(a) if key else a)


@nnx.jit
def gradient(net, x):
    return nnx.value_and_grad(loss)(net, x)


def trained(net, x):
    """Losses and gradients of two steps, and every value of the network behind them."""
    found = []
    for _ in range(2):
        value, gradients = gradient(net, x)
        found.append((value, gradients))
        for path, param in nnx.to_flat_state(nnx.state(net, nnx.Param)):
            param[...] -= 0.1 * dict(nnx.to_flat_state(gradients))[path][...]
    return found, values(net)


def drawn(make):
    """A network with drawn parameters; to run the initializers takes half a minute."""
    net, rng = nnx.eval_shape(make), np.random.default_rng(3)
    for path, variable in nnx.to_flat_state(nnx.state(net)):
        variable.set_value(value_of(path[-1], variable.get_value(), rng))
    return net


def value_of(name, a, rng):
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        return jax.random.key(5)
    if name == "kernel":
        fan_in = np.prod(a.shape[:-1])
        return jnp.asarray(rng.normal(size=a.shape) * (2 / fan_in) ** 0.5, a.dtype)
    if name == "weight":  # of parallel neurons
        return jnp.asarray(rng.normal(0.5, 0.5, size=a.shape), a.dtype)
    first = {"scale": 1.0, "var": 1.0, "threshold": 0.5}.get(name, 0.0)
    return jnp.full(a.shape, first, a.dtype)


@functools.cache
def of_the_plain(name):
    make, shape, _ = NETS[name]
    return trained(drawn(make), current(shape))


def level_1(net, x, targets):
    """The plan with its proofs, without compiling two steps to measure."""
    unmeasured = mock.patch.object(
        _optimize, "with_figures", lambda net, plan, *_: plan
    )
    with unmeasured:
        return memopt.make_plan(net, targets, (x,), loss=loss)


def split(net, plan, x, targets):
    parts = parts_of(net, find_targets(net, targets))
    modules = modules_at(net, [p for inside in parts.values() for p in inside])
    known = prove_loss(net, modules, loss, (x,), None)
    segments = _optimize._segments(modules, known, compress=True, unchecked=False)
    return dataclasses.replace(plan, segments=segments)


def with_currents(net, plan, x, targets):
    kept = (dataclasses.replace(s, currents=True) for s in plan.segments)
    return dataclasses.replace(plan, segments=tuple(kept))


def restored(net, plan, x, targets):
    """Every second target plain, the others in chunks."""
    plain = [s.path for s in plan.segments][::2]
    return chunked(net, plan.without(*plain), x, targets, batch=2)


def chunked(net, plan, x, targets, **chunks):
    """The last segment of each kind in chunks; the others at once."""
    modules = modules_at(net, [s.path for s in plan.segments])
    last = {type(module): path for path, module in modules.items()}
    return plan.with_chunks(*last.values(), **chunks)


MOVES = {
    "wrap": lambda net, plan, x, targets: plan,
    "split": split,
    "currents": with_currents,
    "batch chunks": functools.partial(chunked, batch=2),
    "batch chunks, forward too": functools.partial(
        chunked, batch=3, forward_by="chunks"
    ),
    "time chunks": functools.partial(chunked, time=2),
    "restore": restored,
}


def assert_same(came, wanted):
    came, wanted = jax.tree.leaves(came), jax.tree.leaves(wanted)
    floats = [np.abs(a).max() for a in wanted if a.dtype.kind == "f" and a.size]
    size = max(floats)
    for a, b in zip(came, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", NETS)
def test_training_is_that_of_the_plain_network(name, move):
    make, shape, targets = NETS[name]
    net, x = drawn(make), current(shape)
    plan = MOVES[move](net, level_1(net, x, targets), x, targets)
    came = trained(memopt.apply_plan(net, plan), x)
    assert_same(came, of_the_plain(name))
