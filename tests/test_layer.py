"""Layers against Flax's own, one time step after another, and against NumPy."""

import functools as ft
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import assert_bits, assert_near, f64

from snnjax import layer

HALVES = ["bfloat16", "float16"]


def normal(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def per_step(f, x):
    return jnp.stack([f(step) for step in x])


def made(make, *args, **settings):
    """`make(...)` with drawn parameters; Flax's own are slow to compile."""
    zeros = {"kernel_init": nnx.initializers.zeros_init(), "rngs": nnx.Rngs(0)}
    model = make(*args, **zeros, **settings)
    for seed, name in enumerate(("kernel", "bias")):
        if (variable := getattr(model, name)) is not None:
            variable[...] = normal(*variable.shape, seed=seed + 10)
    return model


def test_fold_is_time_and_batch_as_one():
    x = normal(2, 3, 4)
    assert_bits(layer.fold(lambda x: x[:, ::2], x), x[..., ::2])
    seen = []
    layer.fold(lambda x: seen.append(x.shape) or x, x)
    assert seen == [(6, 4)]


# --- convolution ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "space, kernel, settings",
    [
        ((7,), (3,), {}),
        ((6, 5), 3, {}),
        ((6, 5), (3, 2), {"strides": 2, "padding": "VALID"}),
        ((5, 5), 3, {"strides": (1, 2), "padding": ((1, 0), (2, 1))}),
        ((5, 5), 1, {"use_bias": False}),
        ((5, 5), 3, {"feature_group_count": 2, "kernel_dilation": 2}),
        ((3, 4, 3), (2, 3, 2), {}),
    ],
)
def test_convolution_is_flax_at_every_step(space, kernel, settings):
    ours = made(layer.Conv, 4, 6, kernel, **settings)
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    flax = made(nnx.Conv, 4, 6, kernel, **settings)
    x = normal(2, 3, *space, 4)
    assert_near(ours(x), per_step(flax, x), 1e-6)


def test_convolution_computes_in_the_dtype_asked():
    conv = made(layer.Conv, 2, 3, 3, dtype=jnp.bfloat16)
    assert conv.kernel.dtype == jnp.float32
    assert conv(normal(1, 2, 4, 4, 2)).dtype == jnp.bfloat16


# --- pooling --------------------------------------------------------------------------

POOLS = {  # space, window, strides, padding
    "tiles": ((4, 6), 2, None, "VALID"),
    "tiles_1d": ((6,), (3,), None, "VALID"),
    "tiles_3d": ((2, 4, 3), (2, 2, 3), None, "VALID"),
    "shared_stride": ((4, 4), (2, 4), 2, "SAME"),
    "overlap": ((5, 4), 2, 1, "VALID"),
    "rest": ((5, 4), 2, None, "VALID"),
    "same": ((5, 4), (3, 2), 2, "SAME"),
    "gaps": ((6, 6), 2, 3, "VALID"),
    "padded": ((5, 4), 3, 2, ((1, 1), (0, 1))),
    "padded_tiles": ((4, 4), 2, None, ((1, 1), (1, 1))),
    "one_dimension": ((5,), (2,), 1, "SAME"),
}
pools = pytest.mark.parametrize(
    "space, window, strides, padding", POOLS.values(), ids=POOLS
)


def windows(space, window, strides, padding):
    """Padding of every axis and the corners of all windows, after NumPy's book."""
    window = (window,) * len(space) if isinstance(window, int) else window
    strides = window if strides is None else strides
    strides = (strides,) * len(space) if isinstance(strides, int) else strides
    pads = []
    for i, (n, w, s) in enumerate(zip(space, window, strides)):
        rest = max(0, (-(-n // s) - 1) * s + w - n)
        same = (rest // 2, rest - rest // 2)
        pads.append({"VALID": (0, 0), "SAME": same}.get(str(padding)) or padding[i])
    ranges = [
        range(0, n + sum(p) - w + 1, s)
        for n, w, s, p in zip(space, window, strides, pads)
    ]
    return window, pads, ranges


def pool_by_hand(x, reduce, fill, *geometry):
    x = f64(x)
    window, pads, ranges = windows(x.shape[2:-1], *geometry)
    x = np.pad(x, [(0, 0)] * 2 + pads + [(0, 0)], constant_values=fill)
    out = np.zeros((*x.shape[:2], *map(len, ranges), x.shape[-1]))
    axes = tuple(range(2, 2 + len(window)))
    for place in itertools.product(*(range(len(r)) for r in ranges)):
        corner = [r[i] for r, i in zip(ranges, place)]
        cut = tuple(slice(c, c + w) for c, w in zip(corner, window))
        out[:, :, *place] = reduce(x[:, :, *cut], axes)
    return out


@pools
def test_average_pool(space, window, strides, padding):
    x = normal(2, 2, *space, 3)
    wanted = pool_by_hand(x, np.mean, 0.0, window, strides, padding)
    with jax.numpy_dtype_promotion("standard"):  # strict: see below
        assert_near(layer.AvgPool(window, strides, padding=padding)(x), wanted, 1e-6)


@pools
def test_max_pool(space, window, strides, padding):
    x = normal(2, 2, *space, 3)
    wanted = pool_by_hand(x, np.max, -np.inf, window, strides, padding)
    assert_near(layer.MaxPool(window, strides, padding=padding)(x), wanted, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("name", ["tiles", "overlap", "same", "padded"])
def test_average_pool_is_flax_at_every_step(name, dtype):
    space, window, strides, padding = POOLS[name]
    x = normal(2, 2, *space, 3, dtype=dtype)
    pool = layer.AvgPool(window, strides, padding=padding)
    # Flax divides by a NumPy integer, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        flax = ft.partial(nnx.avg_pool, padding=padding)
        flax = ft.partial(flax, window_shape=pool.window, strides=pool.strides)
        wanted, ours = jax.jit(lambda x: (per_step(flax, x), pool(x)))(x)
    assert ours.dtype == wanted.dtype == x.dtype
    assert_near(ours, wanted, 1e-6 if dtype == "float32" else 1e-2)


def test_average_pool_under_strict_promotion():
    assert layer.AvgPool(2, 1)(jnp.ones((1, 1, 3, 3, 1))).shape == (1, 1, 2, 2, 1)


@pytest.mark.parametrize("name", ["tiles", "tiles_3d", "overlap"])
def test_average_pool_gradient(name):
    space, window, strides, padding = POOLS[name]
    x = normal(2, 1, *space, 2)
    pool = layer.AvgPool(window, strides, padding=padding)

    @jax.jit
    def both(x):
        y, back = jax.vjp(pool, x)
        return y, back(y)[0]

    with jax.numpy_dtype_promotion("standard"):
        y, dx = map(f64, both(x))
    # A linear map and its transpose: <P x, P x> = <x, P^T P x>.
    assert_near((x * dx).sum(), np.square(y).sum())


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_max_pool_of_spikes_is_spikes(padding):
    x = (normal(2, 3, 5, 5, 2) > 0.8).astype(jnp.bfloat16)
    y = layer.MaxPool(2, padding=padding)(x)
    assert y.dtype == x.dtype
    assert set(np.unique(f64(y))) == {0, 1}


# --- batch normalisation --------------------------------------------------------------


def norms(**settings):
    """Ours and Flax's, with the same scale, bias and running statistics."""
    pair = [
        make(4, rngs=nnx.Rngs(0), **settings)
        for make in (layer.BatchNorm, ft.partial(nnx.BatchNorm, momentum=0.9))
    ]
    for norm in pair:
        for seed, name in enumerate(("scale", "bias", "mean", "var")):
            if (variable := getattr(norm, name)) is not None:
                variable[...] = jnp.abs(normal(4, seed=seed)) + 0.5
    return pair


@nnx.jit
def norm_and_gradients(norm, x, g):
    """Outputs, and gradients by parameters and `x` for the cotangent `g`."""

    def loss(norm, x):
        y = norm(x)
        return (y * g).sum().astype(jnp.float32), y

    (_, y), (dnorm, dx) = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
        norm, x
    )
    return y, dx, dnorm


@pytest.mark.parametrize(
    "train, use_scale, use_bias",
    [(1, 1, 1), (1, 1, 0), (1, 0, 0), (0, 1, 1), (0, 0, 1)],
)
def test_batch_norm_is_flax_one(train, use_scale, use_bias):
    x, g = 2 * normal(3, 2, 4, 3, 4) + 1.5, normal(3, 2, 4, 3, 4, seed=1)
    results = []
    for norm in norms(use_scale=bool(use_scale), use_bias=bool(use_bias)):
        norm.train() if train else norm.eval()
        result = norm_and_gradients(norm, x, g)
        results.append(jax.tree.leaves((result, norm.mean[...], norm.var[...])))
    assert len(results[0]) == len(results[1]) == 4 + use_scale + use_bias
    for ours, flax in zip(*results):
        assert_near(ours, flax)


def test_batch_norm_by_hand():
    x = 3 * normal(3, 2, 5, 4) - 2
    norm = layer.BatchNorm(4, momentum=0.75, epsilon=1e-3, rngs=nnx.Rngs(0))
    mean, var = f64(x).mean((0, 1, 2)), f64(x).var((0, 1, 2))
    wanted = (f64(x) - mean) / np.sqrt(var + 1e-3)
    assert_near(norm(x), wanted)
    assert_near(norm.mean[...], 0.25 * mean)
    assert_near(norm.var[...], 0.75 + 0.25 * var)


def test_batch_norm_far_from_zero_is_no_worse_than_flax():
    x = normal(4, 8, 16, 4) + 100.0
    wanted = (f64(x) - f64(x).mean((0, 1, 2))) / f64(x).std((0, 1, 2))
    ours, flax = (
        np.abs(f64(make(4, rngs=nnx.Rngs(0))(x)) - wanted).max()
        for make in (layer.BatchNorm, nnx.BatchNorm)
    )
    assert ours < 2 * flax + 1e-4


def test_batch_norm_of_a_constant():
    norm = layer.BatchNorm(4, rngs=nnx.Rngs(0))
    x = jnp.full((2, 3, 4), 7.3)
    y, dx, _ = norm_and_gradients(norm, x, normal(*x.shape))
    assert np.abs(y).max() < 1e-2
    assert np.isfinite(dx).all() and np.all(norm.var[...] >= 0)


def test_batch_norm_eval_leaves_its_statistics_alone():
    norm = norms()[0]
    before = [norm.mean[...], norm.var[...]]
    x = normal(2, 3, 4)
    as_asked = norm(x, use_running_average=True)
    norm.eval()
    assert_bits(norm(x), as_asked)
    jax.tree.map(assert_bits, [norm.mean[...], norm.var[...]], before)
    norm(x, use_running_average=False)
    assert jnp.all(norm.mean[...] != before[0])


@pytest.mark.parametrize("dtype", HALVES)
def test_batch_norm_of_halves_has_float32_statistics(dtype):
    norm, wide = norms()[0], norms()[0]
    x = (40 * normal(3, 4, 5, 4) + 90).astype(dtype)
    g = normal(*x.shape, dtype=dtype, seed=1)
    y, dx, _ = norm_and_gradients(norm, x, g)
    f32 = "float32"
    wanted, wanted_dx, _ = norm_and_gradients(wide, x.astype(f32), g.astype(f32))
    assert y.dtype == dx.dtype == x.dtype
    assert norm.mean.dtype == norm.var.dtype == norm.scale.dtype == jnp.float32
    assert_near(norm.var[...], wide.var[...], 1e-6)
    assert_near(y, wanted.astype(dtype), 1e-2)
    assert_near(dx, wanted_dx.astype(dtype), 1e-2)


@pytest.mark.parametrize("frozen", [False, True])
def test_batch_norm_gives_the_dtype_asked(frozen):
    norm = layer.BatchNorm(4, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    y = norm(normal(2, 3, 4), use_running_average=frozen)
    assert y.dtype == jnp.bfloat16
    assert norm.mean.dtype == jnp.float32


# --- the rest -------------------------------------------------------------------------


def test_linear_is_a_product_on_the_last_axis():
    linear = made(layer.Linear, 3, 2)
    x = normal(4, 2, 3)
    wanted = f64(x) @ f64(linear.kernel[...]) + f64(linear.bias[...])
    assert_near(linear(x), wanted)


def test_dropout_drops_in_training_only():
    x = jnp.ones((4, 8, 64))
    dropout = layer.Dropout(0.25, rngs=nnx.Rngs(0))
    y = dropout(x)
    kept = f64(y) > 0
    np.testing.assert_allclose(y[kept], 4 / 3, rtol=1e-6)
    assert abs(kept.mean() - 0.75) < 0.04
    assert (kept[0] != kept[1]).any()  # a mask of each time step's own
    assert np.any(dropout(x) != y)
    dropout.eval()
    assert_bits(dropout(x), x)


def test_flatten_and_sequential():
    x = normal(2, 3, 4, 5, 6)
    assert_bits(layer.Flatten()(x), x.reshape(2, 3, 120))
    assert layer.Flatten()(x[..., 0, 0, 0]).shape == (2, 3, 1)
    both = layer.Sequential(layer.AvgPool((2, 5)), layer.Flatten())
    wanted = f64(x).reshape(2, 3, 2, 2, 5, 6).mean((3, 4)).reshape(2, 3, 12)
    assert_near(both(x), wanted)


CONV, NORM = ft.partial(made, layer.Conv, 2, 3), ft.partial(layer.BatchNorm, 3)
REFUSED = [
    (lambda: CONV(3), (2, 4, 4, 2), r"of rank 4.*time, batch, height"),
    (lambda: CONV(3), (1, 2, 2, 4, 4), "last axis .*2 channels .*moveaxis"),
    (lambda: CONV((3,)), (2, 4, 4, 1, 2), "of rank 5.*length, channel"),
    (lambda: CONV((1, 1, 1)), (2, 4, 4, 2), "depth, height, width"),
    (lambda: CONV(3), (0, 1, 4, 4, 2), "must be at least 1"),
    (lambda: NORM(rngs=nnx.Rngs(0)), (3,), r"of rank 1.*\[time, batch, \.\.\.\]"),
    (lambda: NORM(rngs=nnx.Rngs(0)), (2, 3, 4), "last axis must be the 3 channels"),
    (lambda: NORM(rngs=nnx.Rngs(0)), (0, 2, 3), "must be at least 1"),
    (lambda: layer.AvgPool(2), (2, 4, 4, 2), "of rank 4.*height, width, channel"),
    (lambda: layer.AvgPool((2,)), (2, 1, 4, 4, 2), "of rank 5.*length, channel"),
    (lambda: layer.MaxPool(2), (2, 4, 4, 2), "of rank 4.*height, width, channel"),
    (lambda: layer.MaxPool(2), (0, 4, 4, 4, 2), "must be at least 1"),
    (lambda: layer.Flatten(), (2,), r"of rank 1.*\[time, batch, \.\.\.\]"),
]


@pytest.mark.parametrize("make, shape, words", REFUSED)
def test_layers_refuse(make, shape, words):
    with pytest.raises(ValueError, match=words) as error:
        make()(jnp.zeros(shape))
    assert f"`x` has shape {shape}" in str(error.value)


@pytest.mark.parametrize("what", ["conv", "pool"])
def test_four_dimensions_of_space_are_refused(what):
    x = jnp.zeros((1,) * 6 + (2,))
    with pytest.raises(ValueError, match="1 to 3|dimensions"):
        if what == "conv":
            CONV((1, 1, 1, 1))(x)
        layer.AvgPool((1, 1, 1, 1))(x)
