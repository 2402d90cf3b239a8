"""Winograd's convolution against sums of products in float64, and where it is used."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import snnjax as snn
from snnjax import _winograd, memopt
from snnjax._conv import conv_general_dilated

NUMBERS = {
    1: ("NWC", "WIO", "NWC"),
    2: ("NHWC", "HWIO", "NHWC"),
    3: ("NDHWC", "DHWIO", "NDHWC"),
}


def arrays(space, images=3, channels=5, features=7, dtype="float32"):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((images, *space, channels))
    w = rng.standard_normal((*(3,) * len(space), channels, features))
    return jnp.asarray(x, dtype), jnp.asarray(w, dtype)


def taps(x, padding, out):
    """Each tap, and the input under it in float64, `[images, *out, channels]`."""
    x = np.pad(np.asarray(x, np.float64), ((0, 0), *padding, (0, 0)))
    for tap in itertools.product(range(3), repeat=len(out)):
        cut = (slice(t, t + n) for t, n in zip(tap, out))
        yield tap, x[(slice(None), *cut)]


def out_space(x, padding):
    return [n + sum(pair) - 2 for n, pair in zip(x.shape[1:-1], padding)]


def wanted(x, w, padding):
    w = np.asarray(w, np.float64)
    cuts = taps(x, padding, out_space(x, padding))
    return sum(np.einsum("...i,io->...o", cut, w[tap]) for tap, cut in cuts)


def wanted_gradient(x, g, padding):
    g = np.asarray(g, np.float64)
    axes = list(range(g.ndim - 1))
    cuts = taps(x, padding, g.shape[1:-1])
    return {tap: np.tensordot(cut, g, (axes, axes)) for tap, cut in cuts}


def error(ours, exact):
    largest = np.abs(exact).max() or 1  # a tap may see the padding alone
    return np.abs(np.asarray(ours, np.float64) - exact).max() / largest


SPACES = [(8,), (7,), (8, 8), (7, 9), (1, 2), (4, 3, 5)]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("pair", [(1, 1), (0, 2), (2, 1)])
def test_it_is_a_convolution(space, pair):
    x, w = arrays(space)
    padding = (pair,) * len(space)
    y = jax.jit(_winograd.convolve, static_argnums=2)(x, w, padding)
    assert y.dtype == jnp.float32
    assert y.shape == (3, *out_space(x, padding), 7)
    assert error(y, wanted(x, w, padding)) < 1e-6


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_its_weight_gradient(space):
    x, w = arrays(space)
    padding = ((1, 1),) * len(space)
    g = jnp.asarray(np.random.default_rng(1).standard_normal((3, *space, 7)), "float32")
    dw = jax.jit(_winograd.weight_gradient, static_argnums=2)(x, g, padding)
    assert dw.shape == w.shape
    for tap, exact in wanted_gradient(x, g, padding).items():
        assert error(dw[tap], exact) < 1e-6


@pytest.mark.parametrize("images", [1, 12, 7])
def test_blocks_of_any_number_of_images(images, monkeypatch):
    monkeypatch.setattr(_winograd, "_BLOCK_BYTES", 4 * 16 * 12 * 16 * 4)
    x, w = arrays((8, 8), images=images)
    padding = ((1, 1), (1, 1))
    assert (
        _winograd._images_per_block(images, (8, 8), 12) == {1: 1, 12: 3, 7: 1}[images]
    )
    assert error(_winograd.convolve(x, w, padding), wanted(x, w, padding)) < 1e-6
    g = jnp.ones((images, 8, 8, 7))
    dw = _winograd.weight_gradient(x, g, padding)
    for tap, exact in wanted_gradient(x, g, padding).items():
        assert error(dw[tap], exact) < 1e-6


def test_halves_are_computed_in_float32():
    x, w = arrays((8, 8), dtype="bfloat16")
    padding = ((1, 1), (1, 1))
    assert error(_winograd.convolve(x, w, padding), wanted(x, w, padding)) < 1e-6


# --- in the public convolution --------------------------------------------------------

WIDE = {"space": (16, 16), "images": 4, "channels": 64, "features": 128}
TEXT = " convolution("


def conv(x, w, strides=(1, 1), padding="SAME"):
    return conv_general_dilated(x, w, strides, padding, dimension_numbers=NUMBERS[2])


def compiled(f, *args):
    return jax.jit(f).lower(*args).compile()


def test_it_rounds_about_as_lax_does():
    """Measured: 1.3 times lax's error forward, less than lax's in the weights."""
    x, w = arrays(**WIDE)
    padding = ((1, 1), (1, 1))
    exact = wanted(x, w, padding)
    lax_conv = lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2]
    )
    assert error(jax.jit(conv)(x, w), exact) < 3 * error(lax_conv, exact)


def test_a_cpu_program_has_no_convolution_left():
    x, w = arrays(**WIDE)

    def loss(x, w):
        return jnp.sin(conv(x, w)).sum()

    program = compiled(jax.grad(loss, (0, 1)), x, w)
    assert TEXT not in program.as_text()
    # Blocks of 16 MiB, or less where the images do not fill one, and what XLA adds.
    assert program.memory_analysis().temp_size_in_bytes < 2.5 * 16 * 2**20


@pytest.mark.parametrize(
    "changed, settings",
    [
        ({"channels": 32}, {}),
        ({"images": 1, "space": (6, 6)}, {}),
        ({}, {"strides": (2, 2)}),
        ({"space": (1, 1)}, {"window": 1}),
    ],
    ids=["few channels", "few tiles", "strides", "another window"],
)
def test_where_it_does_not_pay_the_forward_pass_is_that_of_lax(changed, settings):
    x, w = arrays(**(WIDE | changed))
    settings = dict(settings)
    window = settings.pop("window", 3)
    w = w[:window, :window]

    def f(x, w):
        return conv(x, w, **settings)

    assert TEXT in compiled(f, x, w).as_text()
    strides = settings.get("strides", (1, 1))
    exact = lax.conv_general_dilated(
        x, w, strides, "SAME", dimension_numbers=NUMBERS[2]
    )
    np.testing.assert_array_equal(f(x, w), exact)


def test_another_platform_keeps_its_own():
    x, w = arrays(**WIDE)
    traced = jax.jit(conv).trace(x, w)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.convolution") == 1
    assert "stablehlo.while" not in text


def test_read_as_the_convolution_of_lax():
    """The planner goes by the name and the parameters of what it reads."""
    x, w = arrays(**WIDE)
    inner = jax.make_jaxpr(conv)(x, w)
    while inner.eqns[0].primitive.name != "conv_general_dilated":
        params = inner.eqns[0].params
        inner = params.get("jaxpr") or params["call_jaxpr"]
    exact = jax.make_jaxpr(
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), [(1, 1), (1, 1)], dimension_numbers=NUMBERS[2]
        )
    )(x, w)
    assert str(inner.eqns[0].params) == str(exact.eqns[0].params)
    assert inner.eqns[0].outvars[0].aval == exact.eqns[0].outvars[0].aval


def test_one_operation_at_a_time_and_mapped():
    x, w = arrays(**WIDE)
    exact = wanted(x, w, ((1, 1), (1, 1)))
    with jax.disable_jit():
        assert error(conv(x, w), exact) < 1e-6
    mapped = jax.jit(jax.vmap(conv, (0, None)))(x[:, None], w)
    assert error(mapped[:, 0], exact) < 1e-6


@pytest.mark.parametrize(
    "cut",
    [{"batch": 4}, {"batch": 4, "forward_by": "chunks"}, {"time": 2}],
    ids=["batch", "forward too", "time"],
)
def test_in_a_segment_and_in_chunks(cut):
    """Blocks of other sizes, the same spikes, and the same gradients up to rounding."""
    net = Wide(nnx.Rngs(0))
    frames = jax.random.bernoulli(jax.random.key(0), 0.3, (2, 8, 16, 16, 64))
    plan = memopt.make_plan(net, (snn.models.VGGBlock,), (frames,))
    planned = memopt.apply_plan(nnx.clone(net), plan.with_chunks("block", **cut))

    def loss(model, frames):
        spikes = model(frames)
        return jnp.square(spikes).sum(), spikes

    gradient = nnx.jit(nnx.grad(loss, has_aux=True))
    (plain, spikes), (found, same) = gradient(net, frames), gradient(planned, frames)
    np.testing.assert_array_equal(spikes, same)
    pairs = list(zip(jax.tree.leaves(plain), jax.tree.leaves(found), strict=True))
    largest = max(float(jnp.abs(a).max()) for a, _ in pairs)
    assert largest > 1
    assert max(float(jnp.abs(a - b).max()) for a, b in pairs) <= 1e-5 * largest


class Wide(nnx.Module):
    def __init__(self, rngs):
        self.block = snn.models.VGGBlock(64, 128, pool=True, rngs=rngs)

    def __call__(self, frames):
        return self.block(frames.astype(jnp.float32))
