"""Norms, blocks and attention of spiking networks against their equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import assert_bits, assert_near, f64, neuron_loop

import snnjax as snn
from snnjax import layer, neuron

STEPS, BATCH, PLACES, FEATURES = 4, 3, 5, 8


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def spikes(*shape, seed=0):
    values = np.random.default_rng(seed).integers(0, 2, size=shape)
    return jnp.asarray(values, jnp.float32)


def run(model, x):
    """Of a copy: a call moves the running moments, which pad a `RepConv`."""
    return nnx.jit(lambda model, x: model(x))(nnx.clone(model), x)


def normalized(x):
    x, axes = f64(x), tuple(range(x.ndim - 1))
    return (x - x.mean(axes)) / np.sqrt(x.var(axes) + 1e-5)


# --- norms ----------------------------------------------------------------------------


def test_threshold_dependent_norm_spreads_as_wide_as_the_threshold():
    x, alpha = normal(STEPS, BATCH, FEATURES), 0.5**0.5
    norm = layer.ThresholdDependentBatchNorm(
        FEATURES, v_threshold=1.5, alpha=alpha, rngs=nnx.Rngs(0)
    )
    assert_near(run(norm, x), alpha * 1.5 * normalized(x))
    with pytest.raises(ValueError, match="`use_scale` is False"):
        layer.ThresholdDependentBatchNorm(2, use_scale=False, rngs=nnx.Rngs(0))


def test_temporal_effective_norm_scales_every_step():
    x = normal(STEPS, BATCH, PLACES, FEATURES)
    norm = layer.TemporalEffectiveBatchNorm(FEATURES, STEPS + 1, rngs=nnx.Rngs(0))
    assert (norm.p[...] == 1).all()
    p = np.linspace(0.5, 2.0, STEPS + 1)
    norm.p[...] = jnp.asarray(p, jnp.float32)
    norm.bias[...] = bias = normal(FEATURES, seed=1)
    wanted = (normalized(x) + f64(bias)) * p[:STEPS, None, None, None]
    assert_near(run(norm, x), wanted)
    with pytest.raises(
        ValueError, match="6 time steps; allowed are up to 5.*time_steps=6"
    ):
        norm(normal(STEPS + 2, 1, FEATURES))


# --- blocks ---------------------------------------------------------------------------


def test_linear_block_is_linear_norm_neuron():
    x = normal(STEPS, BATCH, 3)
    block = layer.LinearBlock(3, FEATURES, neuron=neuron.LIF, rngs=nnx.Rngs(0))
    current = normalized(f64(x) @ f64(block.projection.kernel[...]))
    wanted, h, _ = neuron_loop(current, np.zeros((BATCH, FEATURES)), 2.0)
    assert np.abs(h - 1).min() > 1e-4
    assert_bits(run(block, x), wanted.astype("float32"))
    assert block.__spatial_split__() == (block.projection, block.norm_neuron)


@pytest.mark.parametrize("kernel, space", [((3,), (6,)), (5, (6, 4))])
def test_conv_block_is_padded_pooled_and_strided(kernel, space):
    pool = layer.MaxPool((2,) * len(space))
    block = nnx.eval_shape(
        lambda: layer.ConvBlock(
            3, 4, kernel, strides=1, pool_current=pool, pool=pool, rngs=nnx.Rngs(0)
        )
    )
    x = jax.ShapeDtypeStruct((2, 1, *space, 3), jnp.float32)
    y = nnx.eval_shape(lambda block, x: block(x), block, x)
    assert y.shape == (2, 1, *(n // 4 for n in space), 4)
    assert block.__spatial_split__() == (
        block.projection,
        block.norm_neuron,
        block.pool,
    )
    inside = block.norm_neuron.norm, block.norm_neuron.pool
    assert [type(m) for m in inside] == [layer.BatchNorm, layer.MaxPool]
    assert type(block.projection) is layer.Conv
    assert block.projection.bias is None


# --- attention ------------------------------------------------------------------------


def lively(v_threshold=0.3):
    return neuron.LIF(v_threshold=v_threshold, detach_reset=True)


def heads_of(a, heads):
    """`[time, batch, head, place, feature]`."""
    t, b, n, c = a.shape
    return a.reshape(t, b, n, heads, c // heads).transpose(0, 1, 3, 2, 4)


def fire(current, threshold=1.0):
    s, h, _ = neuron_loop(
        current, np.zeros(current.shape[1:]), 2.0, v_threshold=threshold
    )
    return s


def made(kind, *args, **settings):
    """Made in one program: the initializers are slow one by one."""
    return nnx.jit(lambda: kind(*args, **settings, rngs=nnx.Rngs(2)))()


def parts(model, x, names):
    """What the model's own parts make of `x`, at float64."""

    @nnx.jit
    def run(model, x):
        return [getattr(model, name)(x) for name in names]

    return [f64(a) for a in run(nnx.clone(model), x)]


def assert_projected(model, x, attended):
    """The model's output is its projection of what the oracle attends to."""
    wanted = run(model.projection, jnp.asarray(attended, jnp.float32))
    assert_bits(run(model, x), np.asarray(wanted).reshape(x.shape))
    assert 0 < np.mean(attended) < 1


def test_spiking_self_attention_is_its_equations():
    x = spikes(STEPS, BATCH, PLACES, FEATURES)
    model = made(
        layer.SpikingSelfAttention,
        FEATURES,
        2,
        scale=0.25,
        attention_threshold=0.3,
        neuron=lively,
    )
    q, k, v = (heads_of(a, 2) for a in parts(model, x, "qkv"))
    y = (q @ k.swapaxes(-1, -2)) @ v * 0.25
    y = y.transpose(0, 1, 3, 2, 4).reshape(x.shape)
    assert_projected(model, x, fire(y, 0.3))


def test_token_attention_is_its_equations():
    x = spikes(STEPS, BATCH, PLACES, FEATURES)
    model = made(
        layer.TokenQKAttention, FEATURES, 2, attention_threshold=0.9, neuron=lively
    )
    q, k = (heads_of(a, 2) for a in parts(model, x, "qk"))
    chosen = fire(q.sum(-1, keepdims=True), 0.9)
    assert 0 < chosen.mean() < 1
    y = (chosen * k).transpose(0, 1, 3, 2, 4).reshape(x.shape)
    assert_projected(model, x, y)


def test_spike_driven_attention_is_its_equations():
    x = 2 * normal(STEPS, BATCH, 2, 3, FEATURES)
    model = made(
        layer.SpikeDrivenSelfAttention,
        FEATURES,
        4,
        scale=0.25,
        attention_threshold=0.3,
        neuron=lively,
    )
    s = run(model.first, x)
    q, k, v = (
        heads_of(a.reshape(STEPS, BATCH, 6, FEATURES), 4)
        for a in parts(model, s, "qkv")
    )
    y = q @ (k.swapaxes(-1, -2) @ v) * 0.25
    y = fire(y.transpose(0, 1, 3, 2, 4).reshape(x.shape), 0.3)
    assert 0 < y.mean() < 1
    wanted = run(model.projection, jnp.asarray(y, jnp.float32))
    assert_near(run(model, x), wanted)


def test_space_is_places():
    """An image is the tokens that it consists of."""
    image = spikes(STEPS, BATCH, 2, 3, FEATURES)
    model = made(layer.SpikingSelfAttention, FEATURES, 2)
    model.eval()
    tokens = image.reshape(STEPS, BATCH, 6, FEATURES)
    assert_bits(run(model, image).reshape(tokens.shape), run(model, tokens))


def test_rep_convolution_is_one_convolution_at_evaluation():
    """Which is what its padding by the norm of a zero is for."""
    model = made(layer.RepConv, FEATURES)
    x = spikes(STEPS, BATCH, 4, 5, FEATURES)
    for norm in (model.padded, *model.norms):
        norm.mean[...] = normal(FEATURES, seed=3)
        norm.var[...] = 1 + normal(FEATURES, seed=4) ** 2
        norm.bias[...] = normal(FEATURES, seed=5)
    model.eval()

    @nnx.jit
    def many(model, x):
        impulse = jnp.zeros((1, FEATURES, 3, 3, FEATURES))
        which = jnp.arange(FEATURES)
        impulse = impulse.at[0, which, 1, 1, which].set(1.0)
        nothing = model(jnp.zeros((1, 1, 3, 3, FEATURES)))
        # The response to an impulse at one channel is the kernel, turned round.
        kernel = (model(impulse) - nothing)[0, :, ::-1, ::-1]
        kernel = jnp.moveaxis(kernel, 0, 2)
        whole = layer.fold(
            lambda x: jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            ),
            x,
        )
        return model(x), whole + nothing[:, :, 1:2, 1:2]

    assert_near(*many(model, x), tolerance=1e-4)


@pytest.mark.parametrize("kernel", [4, (3, 5), (2, 2)])
def test_the_window_of_a_block_is_odd_and_the_same_along_all_axes(kernel):
    with pytest.raises(ValueError, match="`kernel_size` is .*an odd integer"):
        layer.ConvBlock(2, 4, kernel, rngs=nnx.Rngs(0))


def test_heads_divide_the_features():
    for kind in (
        layer.SpikingSelfAttention,
        layer.TokenQKAttention,
        layer.SpikeDrivenSelfAttention,
    ):
        with pytest.raises(ValueError, match="`features` is 8 and `heads` is 3"):
            kind(FEATURES, 3, rngs=nnx.Rngs(0))


# --- what memopt packs ----------------------------------------------------------------


def proven(net, targets, x):
    plan = snn.memopt.make_plan(net, targets, None)
    paths = [s.path for s in plan.segments]
    known = snn.memopt._boundary.prove_loss(
        net, paths, lambda net, x: net(x).sum(), (x,), None
    )
    return [str(known[path]).split(":")[0] for path in paths]


@pytest.mark.parametrize(
    "connect, bounds",
    [("add", ["{0, 1}", "0..2", "0..3", "0..2"]), ("and", ["{0, 1}"] * 4),
     ("iand", ["{0, 1}"] * 4)],
)  # fmt: skip
def test_between_sew_blocks_there_are_whole_numbers_of_spikes(connect, bounds):
    net = nnx.eval_shape(
        lambda: snn.models.SEWResNet(
            18, connect=connect, width=4, blocks=(2, 2), rngs=nnx.Rngs(0)
        )
    )
    x = jax.ShapeDtypeStruct((2, 1, 16, 16, 3), jnp.float32)
    assert proven(net, (snn.models.SEWBlock,), x) == bounds


def test_between_transformer_blocks_there_are_whole_numbers_of_spikes():
    net = nnx.eval_shape(
        lambda: snn.models.Spikformer(16, 2, heads=2, patch_size=2, rngs=nnx.Rngs(0))
    )
    x = jax.ShapeDtypeStruct((2, 1, 4, 4, 3), jnp.float32)
    targets = (snn.models.SpikformerBlock, snn.models.SpikingPatchSplitting)
    assert proven(net, targets, x) == ["0..2", "0..4", "None"]  # blocks, patches
