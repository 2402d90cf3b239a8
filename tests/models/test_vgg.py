"""The tutorial's VGG against the tutorial: its layers, counted and run."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import assert_bits, assert_near

from snnjax import layer, neuron, surrogate
from snnjax.models import CIFAR10DVSVGG, VGGBlock

# Conv2d(in, out, 3, 1, 1) with a bias, and whether AvgPool2d(2) comes next: the
# tutorial's list, with the pool that stands before a convolution there.
TUTORIAL = [(2, 64, False), (64, 128, True), (128, 256, False), (256, 256, True)]
TUTORIAL += [(256, 512, False), (512, 512, True), (512, 512, False), (512, 512, True)]


def abstract(**settings):
    return nnx.eval_shape(lambda: CIFAR10DVSVGG(rngs=nnx.Rngs(0), **settings))


def count(model):
    return sum(a.size for a in jax.tree.leaves(nnx.state(model, nnx.Param)))


def test_parameters_are_those_of_the_tutorial():
    convolutions = sum(i * o * 3 * 3 + o for i, o, _ in TUTORIAL)
    norms = sum(o + o for _, o, _ in TUTORIAL)
    classifier = 512 * 3 * 3 * 10 + 10
    model = abstract()
    assert count(model) == convolutions + norms + classifier == 9_271_498
    dtypes = {a.dtype for a in jax.tree.leaves(nnx.state(model, nnx.Param))}
    assert dtypes == {jnp.dtype("float32")}


def test_layers_are_those_of_the_tutorial():
    blocks = abstract().features.layers
    assert len(blocks) == len(TUTORIAL)
    for block, (i, o, pool) in zip(blocks, TUTORIAL):
        conv, norm = block.projection, block.norm_neuron.norm
        windows = [] if block.pool is None else [block.pool.window, block.pool.strides]
        assert windows == [(2, 2), (2, 2)] * pool
        assert conv.kernel.shape == (3, 3, i, o) and conv.bias.shape == (o,)
        assert conv.strides in (1, (1, 1)) and conv.padding in ("SAME", 1)
        assert (norm.num_features, norm.momentum, norm.epsilon) == (o, 0.9, 1e-5)
        lif = block.norm_neuron.neuron
        assert (type(lif), lif.tau, lif.decay_input) == (neuron.LIF, 1.333, False)
        assert (lif.v_threshold, lif.v_reset, lif.detach_reset) == (1.0, 0.0, True)
        assert lif.surrogate is surrogate.atan


def test_classifier_and_its_dropout():
    flatten, dropout, linear = abstract().classifier.layers
    assert isinstance(flatten, layer.Flatten)
    assert isinstance(dropout, layer.Dropout) and dropout.rate == 0.25
    assert linear.kernel.shape == (4608, 10)
    flatten, linear = abstract(dropout=0).classifier.layers
    assert isinstance(linear, layer.Linear)
    everything = [type(m) for _, m in nnx.iter_modules(abstract(dropout=0.0))]
    assert layer.Dropout not in everything


def test_settings_reach_every_neuron():
    settings = {"tau": 3.0, "decay_input": True, "detach_reset": False}
    model = abstract(surrogate=surrogate.triangle, **settings)
    lifs = [b.norm_neuron.neuron for b in model.features.layers]
    assert len(lifs) == 8
    for lif in lifs:
        assert {name: getattr(lif, name) for name in settings} == settings
        assert lif.surrogate is surrogate.triangle


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_shape_and_dtype_of_the_scores(dtype):
    model = abstract(dtype=dtype)
    assert {a.dtype.name for a in jax.tree.leaves(nnx.state(model, nnx.Param))} == {
        "float32"
    }
    x = jax.ShapeDtypeStruct((3, 2, 48, 48, 2), jnp.float32)
    y = nnx.eval_shape(lambda model, x: model(x), model, x)
    assert (y.shape, y.dtype) == ((3, 2, 10), dtype or jnp.float32)


@pytest.mark.parametrize(
    "shape, words",
    [
        ((2, 3, 2, 48, 48), r"takes event frames \[time, batch, 48, 48, 2\].*last"),
        ((2, 3, 32, 32, 2), r"takes event frames \[time, batch, 48, 48, 2\]: resize"),
        ((2, 3, 48, 48, 3), "takes event frames"),
        ((3, 48, 48, 2), r"of rank 4.*\[time, batch, height, width, channel\]"),
        ((0, 3, 48, 48, 2), "at least 1"),
    ],
)
def test_refuses_other_frames(shape, words):
    with pytest.raises(ValueError, match=words) as error:
        nnx.eval_shape(lambda model, x: model(x), abstract(), jnp.zeros(shape))
    assert f"`x` has shape {shape}" in str(error.value)


# --- really run, with fewer channels --------------------------------------------------


def test_initial_kernels_are_kaiming_normal_by_fan_out():
    conv = VGGBlock(8, 128, rngs=nnx.Rngs(0)).projection
    w = np.asarray(conv.kernel[...], np.float64)
    std = math.sqrt(2 / (128 * 3 * 3))
    assert abs(w.std() / std - 1) < 0.03
    assert abs(w.mean()) < 0.05 * std
    assert np.abs(w).max() > 3 * std  # normal, and not cut off
    assert (conv.bias[...] == 0).all()


def test_block_is_its_spatial_split():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, 4, 4, 3)), jnp.float32)

    @nnx.jit
    def both(block, x):
        whole = block(x)
        for part in block.__spatial_split__():
            x = part(x)
        return whole, x

    block = VGGBlock(3, 4, pool=True, rngs=nnx.Rngs(0), tau=1.5, v_threshold=0.5)
    assert (block.norm_neuron.neuron.tau, block.norm_neuron.neuron.v_threshold) == (
        1.5,
        0.5,
    )
    whole, parts = both(block, x)
    assert whole.shape == (2, 2, 2, 2, 4)
    assert set(np.unique(whole)) <= {0, 0.25, 0.5, 0.75, 1}
    assert_bits(parts, whole)
    assert block.__spatial_split__() == (
        block.projection,
        block.norm_neuron,
        block.pool,
    )


def test_training_and_evaluation(monkeypatch):
    """The whole model, with four narrow blocks."""
    layout = ((2, 4, True), (4, 4, True), (4, 4, True), (4, 512, True))
    monkeypatch.setattr(CIFAR10DVSVGG, "LAYOUT", layout)
    small = nnx.jit(lambda: CIFAR10DVSVGG(rngs=nnx.Rngs(0)))()
    x = jnp.asarray(np.random.default_rng(0).poisson(0.3, (2, 2, 48, 48, 2)), "float32")
    run = nnx.jit(lambda model, x: model(x))
    norm = small.features.layers[0].norm_neuron.norm
    before = norm.mean[...]
    small.train()
    first, second = run(small, x), run(small, x)
    assert first.shape == (2, 2, 10) and np.isfinite(first).all()
    assert np.any(first != second)  # another dropout mask
    after = norm.mean[...]
    assert np.any(after != before)
    small.eval()
    third, fourth = run(small, x), run(small, x)
    assert_bits(third, fourth)
    assert_near(norm.mean[...], after)
