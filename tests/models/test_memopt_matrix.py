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
from snnjax.layer import ConvBlock, LinearBlock
from snnjax.memopt import _optimize
from snnjax.memopt._boundary import prove_loss
from snnjax.memopt._model import modules_at
from snnjax.memopt._targets import find_targets, parts_of

IF = functools.partial(snn.neuron.IF, v_threshold=0.5, detach_reset=True)


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
        16, 2, heads=2, patch_size=2, num_classes=3, neuron=lively, rngs=nnx.Rngs(0)
    )


def lively(v_threshold=0.5):
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
        num_classes=2, image_size=16, width=8, depth=4, rngs=nnx.Rngs(0)
    )


def sequential(neuron=lively):
    return models.SequentialCIFARNet(
        num_classes=3, height=8, width=4, neuron=neuron, rngs=nnx.Rngs(0)
    )


def qkformer():
    return models.QKFormer(
        16, (1, 0, 1), heads=2, num_classes=3, neuron=lively, rngs=nnx.Rngs(0)
    )


def meta():
    return models.MetaSpikeformer(
        4, (1, 1), heads=2, mlp_ratio=2, num_classes=3, neuron=lively, rngs=nnx.Rngs(0)
    )


def chain(neuron, norm=None):
    """Four linear blocks with a neuron of some kind."""
    rngs = nnx.Rngs(1)
    blocks = [LinearBlock(4, 4, neuron=lambda: neuron(rngs), rngs=rngs) for _ in "1234"]
    for block in blocks if norm else ():
        block.norm_neuron.norm = norm(rngs)
    return snn.layer.Sequential(*blocks)


def temporal(rngs):
    return snn.layer.TemporalEffectiveBatchNorm(4, 8, rngs=rngs)


IMAGES, COLUMNS, VECTORS = (4, 4, 8, 8, 3), (8, 4, 8, 3), (8, 4, 4)
CONVS, CHAIN = (ConvBlock,), (LinearBlock,)
SEW = (models.SEWBlock, ConvBlock)
SPIKFORMER = (models.SpikformerBlock, ConvBlock)
QKFORMER = (models.SpikformerBlock, models.SpikingPatchEmbedding)
META = (
    models.MetaConvBlock,
    models.MetaTransformerBlock,
    models.SpikingDownsampling,
)
# How to make it, what comes in, and what becomes a segment.
NETS = {
    "sew add": (sew, IMAGES, SEW),
    "sew iand": (functools.partial(sew, "iand"), IMAGES, SEW),
    "sew and, bottleneck": (functools.partial(sew, "and", 50), IMAGES, SEW),
    "spikformer": (spikformer, IMAGES, SPIKFORMER),
    "vgg": (vgg, (2, 4, 32, 32, 3), CONVS),
    "dvs gesture": (dvs_gesture, (4, 4, 16, 16, 2), CONVS),
    "sequential": (sequential, COLUMNS, CONVS),
    "qkformer": (qkformer, (2, 4, 16, 16, 3), QKFORMER),
    "meta-spikeformer": (meta, (2, 4, 32, 32, 3), META),
    "adaptive": (lambda: chain(lambda r: snn.neuron.ALIF(tau=1.2)), VECTORS, CHAIN),
    "gated": (lambda: chain(lambda r: snn.neuron.GLIF(8)), VECTORS, CHAIN),
    "sliding": (lambda: chain(lambda r: snn.neuron.SlidingPSN(3)), VECTORS, CHAIN),
    "parallel": (lambda: chain(lambda r: snn.neuron.PSN(8, rngs=r)), VECTORS, CHAIN),
    "temporal norm": (
        lambda: chain(lambda r: lively(), temporal),
        VECTORS,
        CHAIN,
    ),
}
# A parallel neuron mixes all time steps: it goes in batch chunks only.
NO_TIME_CHUNKS = {"parallel"}


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
            param[...] -= 0.01 * dict(nnx.to_flat_state(gradients))[path][...]
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
    """The parts of every target in its place, with their proofs."""
    parts = parts_of(net, find_targets(net, targets))
    modules = modules_at(net, [p for inside in parts.values() for p in inside])
    known = prove_loss(net, modules, loss, (x,), None)
    segments = _optimize._segments(modules, known, compress=True, unchecked=False)
    return dataclasses.replace(plan, segments=segments)


def kept(segment):
    return dataclasses.replace(segment, currents=True)


def cut(axis, chunks, forward_by="whole"):
    settings = {"cut": axis, "chunks": chunks, "forward_by": forward_by}
    return lambda segment: dataclasses.replace(segment, **settings)


# What the search may make of a target; None leaves it plain.
MOVES = {
    "batch": cut("batch", 2),
    "gc": lambda segment: segment,
    "time": cut("time", 2),
    "batch, all in chunks": cut("batch", 3, "chunks"),
    "plain": lambda segment: None,
    "time, forward too": cut("time", 2, "sums"),
    "currents": kept,
}


def turned(plan, turn, but=()):
    """Each segment with another move, beginning with move number `turn`."""
    moves = [move for name, move in MOVES.items() if name not in but]
    segments = [
        moves[(i + turn) % len(moves)](segment)
        for i, segment in enumerate(plan.segments)
    ]
    return dataclasses.replace(plan, segments=tuple(s for s in segments if s))


def assert_same(came, wanted):
    came, wanted = jax.tree.leaves(came), jax.tree.leaves(wanted)
    floats = [np.abs(a).max() for a in wanted if a.dtype.kind == "f" and a.size]
    size = max(floats)
    for a, b in zip(came, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * size)


def check(name, turn, parts=False):
    make, shape, targets = NETS[name]
    net, x = drawn(make), current(shape)
    plan = level_1(net, x, targets)
    plan = split(net, plan, x, targets) if parts else plan
    but = ("time", "time, forward too") if name in NO_TIME_CHUNKS else ()
    assert len(plan.segments) >= 4
    plan = turned(plan, turn, but)
    assert_same(trained(memopt.apply_plan(net, plan), x), of_the_plain(name))


FAST = {("sew add", 0), ("sliding", 0), ("sequential", 4)}


def marked(name, turn):
    marks = [] if (name, turn) in FAST else [pytest.mark.slow]
    return pytest.param(name, turn, marks=marks)


# Four segments, all that a network has at least, meet all seven moves in two turns.
@pytest.mark.parametrize("name, turn", [marked(n, t) for n in NETS for t in (0, 4)])
def test_training_is_that_of_the_plain_network(name, turn):
    check(name, turn)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_split_training_is_that_of_the_plain_network(name):
    check(name, 0, parts=True)


@pytest.mark.parametrize("forward_by", ["whole", "sums", "chunks"])
@pytest.mark.parametrize("kind", ["PSN", "MaskedPSN"])
def test_time_chunks_of_a_parallel_neuron_are_refused(kind, forward_by):
    order = (2,) if kind == "MaskedPSN" else ()
    make = functools.partial(getattr(snn.neuron, kind), *order, 8)
    net = chain(lambda rngs: make(rngs=rngs))
    x = current(VECTORS)
    plan = level_1(net, x, CHAIN)
    cut = plan.with_chunks("layers.1", time=2, forward_by=forward_by)
    with pytest.raises(ValueError, match="time steps cannot be kept apart"):
        nnx.eval_shape(nnx.grad(loss), memopt.apply_plan(net, cut), x)
