"""Our convolution's gradients against those of `jax.lax`, and where they are used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from snnjax._conv import conv_general_dilated

NUMBERS = {
    1: ("NWC", "WIO", "NWC"),
    2: ("NHWC", "HWIO", "NHWC"),
    3: ("NDHWC", "DHWIO", "NDHWC"),
}
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}


def arrays(space, kernel, images=5, channels=4, features=6, dtype="float32", groups=1):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((images, *space, channels))
    w = rng.standard_normal((*kernel, channels // groups, features))
    return jnp.asarray(x, dtype), jnp.asarray(w, dtype)


def gradients(conv, x, w, *args, **kwargs):
    kwargs = {"dimension_numbers": NUMBERS[x.ndim - 2], **kwargs}

    @jax.jit
    def both(x, w):
        out, back = jax.vjp(lambda x, w: conv(x, w, *args, **kwargs), x, w)
        g = np.random.default_rng(1).standard_normal(out.shape)
        return back(jnp.asarray(g, out.dtype))

    return both(x, w)


def assert_close(ours, wanted, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


def assert_same_gradients(x, w, *args, **kwargs):
    ours = gradients(conv_general_dilated, x, w, *args, **kwargs)
    assert all(a.dtype == b.dtype for a, b in zip(ours, (x, w), strict=True))
    wide = (x.astype("float32"), w.astype("float32"))
    if x.dtype == jnp.float32:
        wide = (x, w)
    wanted = gradients(lax.conv_general_dilated, *wide, *args, **kwargs)
    assert_close(ours, wanted, TOLERANCE[x.dtype.name])


def takes_our_path(x, w, *args, **kwargs):
    kwargs = {"dimension_numbers": NUMBERS[x.ndim - 2], **kwargs}
    jaxpr = jax.make_jaxpr(lambda x, w: conv_general_dilated(x, w, *args, **kwargs))
    return "custom_vjp" in str(jaxpr(x, w))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 2), (3, 3), (5, 5), (3, 1)])
def test_gradients_equal_those_of_lax(kernel, stride, padding):
    x, w = arrays((9, 8), kernel)
    assert takes_our_path(x, w, (stride,) * 2, padding)
    assert_same_gradients(x, w, (stride,) * 2, padding)


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (3, 2)])
def test_asymmetric_explicit_padding(strides):
    x, w = arrays((9, 8), (3, 4))
    assert takes_our_path(x, w, strides, ((0, 2), (3, 1)))
    assert_same_gradients(x, w, strides, ((0, 2), (3, 1)))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("space", [(11,), (4, 5, 6)])
def test_other_numbers_of_axes(space, stride):
    x, w = arrays(space, (3,) * len(space))
    assert takes_our_path(x, w, (stride,) * len(space), "SAME")
    assert_same_gradients(x, w, (stride,) * len(space), "SAME")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_accumulate_in_float32(dtype):
    x, w = arrays((16, 16), (3, 3), images=9, dtype=dtype)
    assert takes_our_path(x, w, (1, 1), "SAME")
    assert_same_gradients(x, w, (1, 1), "SAME")


@pytest.mark.parametrize("images", [1, 3, 4, 7, 8, 9])
def test_image_counts_that_blocks_do_not_divide(images):
    x, w = arrays((16, 16), (3, 3), images=images)
    assert_same_gradients(x, w, (1, 1), "SAME")


@pytest.mark.parametrize(
    "options",
    [
        {"feature_group_count": 2},
        {"lhs_dilation": (2, 1), "padding": ((1, 1), (0, 1))},
        {"rhs_dilation": (1, 2)},
        {"padding": ((3, 0), (0, 0))},
        {"padding": ((-1, 0), (0, 0))},
    ],
)
def test_everything_else_is_left_to_lax(options):
    x, w = arrays((9, 8), (3, 3), groups=options.get("feature_group_count", 1))
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    assert not takes_our_path(x, w, **options)
    assert_same_gradients(x, w, **options)


def test_channels_first_is_left_to_lax():
    x, w = jnp.ones((2, 3, 8, 8)), jnp.ones((5, 3, 3, 3))
    assert not takes_our_path(x, w, (1, 1), "SAME", dimension_numbers=None)


def test_forward_is_that_of_lax_bit_for_bit():
    x, w = arrays((9, 8), (3, 3))
    args = (x, w, (1, 1), "SAME")
    ours = conv_general_dilated(*args, dimension_numbers=NUMBERS[2])
    wanted = lax.conv_general_dilated(*args, dimension_numbers=NUMBERS[2])
    np.testing.assert_array_equal(ours, wanted)


def loss(conv):
    def total(w, x):
        out = conv(x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2])
        return jnp.sum(jnp.sin(out))

    return total


def test_gradients_are_differentiable():
    """A Hessian-vector product, where the gradients are convolutions of ours."""
    x, w = arrays((5, 5), (3, 3))

    def curved(conv):
        def f(x, w):
            y = conv(x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2])
            return jnp.sin(y).sum()

        def product(x, w):
            along = jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
            return (jax.grad(f)(x, w) * along).sum()

        return jax.jit(jax.grad(product, (0, 1)))(x, w)

    assert_close(curved(conv_general_dilated), curved(lax.conv_general_dilated))


def in_scan(conv):
    def total(w, xs):
        def body(carry, x):
            return carry + loss(conv)(w, x), None

        return lax.scan(jax.checkpoint(body), jnp.zeros(()), xs)[0]

    return total


def test_inside_a_scan_body():
    x, w = arrays((16, 16), (3, 3), images=21)
    xs = x.reshape(3, 7, *x.shape[1:])
    ours = jax.jit(jax.grad(in_scan(conv_general_dilated), (0, 1)))(w, xs)
    wanted = jax.jit(jax.grad(in_scan(lax.conv_general_dilated), (0, 1)))(w, xs)
    assert_close(ours, wanted)


@pytest.mark.parametrize("axes", [(None, 0), (0, None), (0, 0)])
def test_under_vmap(axes):
    x, w = arrays((8, 8), (3, 3), images=15)
    x = x.reshape(3, 5, *x.shape[1:]) if axes[1] == 0 else x
    w = jnp.stack([w, 2 * w, 3 * w]) if axes[0] == 0 else w
    ours, wanted = (
        jax.vmap(jax.grad(loss(conv), (0, 1)), axes)(w, x)
        for conv in (conv_general_dilated, lax.conv_general_dilated)
    )
    assert_close(ours, wanted)


@pytest.mark.parametrize("name", ["nothing_saveable", "everything_saveable"])
def test_under_checkpoint_policies(name):
    x, w = arrays((8, 8), (3, 3))
    policy = getattr(jax.checkpoint_policies, name)
    ours = jax.grad(jax.checkpoint(loss(conv_general_dilated), policy=policy), (0, 1))
    wanted = jax.grad(loss(lax.conv_general_dilated), (0, 1))
    assert_close(ours(w, x), wanted(w, x))


def lowered(conv, platform):
    x, w = arrays((16, 16), (3, 3), images=9)
    traced = jax.jit(jax.grad(loss(conv), (0, 1))).trace(w, x)
    return traced.lower(lowering_platforms=(platform,)).as_text()


def test_cuda_keeps_the_convolutions_of_xla():
    ours, wanted = (
        lowered(conv, "cuda")
        for conv in (conv_general_dilated, lax.conv_general_dilated)
    )
    for operation in ("stablehlo.while", "stablehlo.dot_general", "dynamic_slice"):
        assert operation not in ours
    assert ours.count("stablehlo.convolution") == wanted.count("stablehlo.convolution")
    assert "stablehlo.while" in lowered(conv_general_dilated, "cpu")


def test_weight_gradient_by_taps_takes_an_eighth_of_the_input():
    x, w = arrays((24, 24), (3, 3), images=40, channels=24, features=32)
    g = jnp.ones((*x.shape[:-1], w.shape[-1]))

    def weight_gradient(x, w, g):
        def out(w):
            args = (x, w, (1, 1), "SAME")
            return conv_general_dilated(*args, dimension_numbers=NUMBERS[2])

        return jax.vjp(out, w)[1](g)[0]

    compiled = jax.jit(weight_gradient).lower(x, w, g).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= x.nbytes / 8
