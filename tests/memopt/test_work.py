"""What a traced function computes and keeps, against numbers worked out by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from snnjax.memopt import DEVICES, residual_bytes
from snnjax.memopt._cost import Roofline
from snnjax.memopt._work import Operations, operations, work

X = jax.ShapeDtypeStruct((6, 8), jnp.float32)
W = jax.ShapeDtypeStruct((8, 4), jnp.float32)
IMAGES = jax.ShapeDtypeStruct((2, 5, 5, 3), jnp.float32)
KERNEL = jax.ShapeDtypeStruct((3, 3, 3, 7), jnp.float32)


def convolved(x, kernel, **settings):
    form = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=form, **settings
    )


def half(*structs):
    return [jax.ShapeDtypeStruct(s.shape, jnp.bfloat16) for s in structs]


def test_a_product_takes_two_operations_a_term():
    found = work(lambda x, w: x @ w, X, W)
    assert found.operations == Operations(full=2 * 6 * 4 * 8)
    assert (found.products, found.result) == (4 * 6 * 4, 4 * 6 * 4)
    assert found.largest == 4 * 6 * 4  # of what is computed, not of the operands


def test_a_convolution_takes_two_operations_a_tap():
    assert operations(convolved, IMAGES, KERNEL).full == 2 * (2 * 5 * 5 * 7) * 9 * 3
    grouped = jax.ShapeDtypeStruct((3, 3, 1, 6), jnp.float32)
    depthwise = operations(
        lambda x, k: convolved(x, k, feature_group_count=3), IMAGES, grouped
    )
    assert depthwise.full == 2 * (2 * 5 * 5 * 6) * 9


def test_a_loop_is_counted_for_each_of_its_steps():
    def loop(x, w):
        return lax.scan(lambda c, _: (c @ w, None), x, length=5)[0]

    square = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    assert operations(loop, X, square).full == 5 * 2 * 6 * 8 * 8


def test_operands_of_two_bytes_are_counted_apart():
    x, w = half(X, W)
    assert operations(lambda x, w: x @ w, x, w) == Operations(half=2 * 6 * 4 * 8)

    def both(x, w):
        return x @ w + jnp.float32(0) + x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)

    with jax.numpy_dtype_promotion("standard"):
        assert operations(both, X, W) == Operations(2 * 6 * 4 * 8, 2 * 6 * 4 * 8)


@pytest.mark.parametrize("name", DEVICES)
def test_tensor_cores_halve_the_time_where_they_have_the_format(name):
    spec = DEVICES[name]
    full, fast = (
        Roofline.of(spec).seconds(Operations(*n)) for n in ((1e12,), (0, 1e12))
    )
    assert fast == pytest.approx(full / (2 if spec.bf16_flops else 1), rel=0.02)
    without = Roofline.of(dataclasses.replace(spec, tf32_flops=None, bf16_flops=None))
    assert without.seconds(Operations(1e12)) == 1e12 / spec.fp32_flops


def test_a_cpu_is_as_fast_in_both():
    cpu = Roofline.of(None)
    assert cpu.seconds(Operations(1e9)) == cpu.seconds(Operations(half=1e9)) > 0


def test_elementwise_steps_write_nothing():
    plain = work(lambda x, w: x @ w, X, W)
    fused = work(lambda x, w: jnp.sin(x @ w) * 2 + 1, X, W)
    summed = work(lambda x, w: jnp.sin(x @ w).sum(0), X, W)
    assert plain.traffic == fused.traffic == 2 * 4 * 6 * 4
    assert summed.traffic == plain.traffic + 2 * 4 * 4


def test_what_is_kept_is_what_the_derivative_keeps_of_the_first_argument_on():
    def f(x, w):
        return jnp.exp(x @ w).sum()

    # Of the weights, which are a parameter, nothing is kept; x is.
    kept = work(f, X, W).kept
    assert kept == residual_bytes(lambda w, x: f(x, w), W, X)
    assert kept == 4 * (6 * 8 + 6 * 4)
