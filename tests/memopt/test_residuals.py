"""Residuals: exact figures, and modules that stay as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from measured import IMAGE_BYTES, Net, X, leaves, struct

from snnjax.memopt import MeasureError, residual_bytes, residual_shapes


def make() -> Net:
    return Net(nnx.Rngs(0))


def test_residuals_exactly():
    # d sin(w x) keeps cos(w x) and x; w itself is not needed.
    def fn(w, x):
        return jnp.sin(w * x)

    assert residual_bytes(fn, struct(1, 8), struct(100, 8)) == 2 * 4 * 100 * 8
    assert [r.shape for r in residual_shapes(fn, struct(1, 8), struct(100, 8))] == [
        (100, 8),
        (100, 8),
    ]


def test_own_leaves_do_not_count():
    # Both weights are kept for the other's gradient, and nothing else is.
    params = {"a": struct(64), "b": struct(64), "steps": struct(dtype=jnp.int32)}
    assert residual_bytes(lambda p: p["a"] * p["b"], params) == 0


def test_a_residual_counts_once():
    def fn(w, x):
        y = jnp.exp(w + x)
        return y, y * 1.0

    assert residual_bytes(fn, struct(64), struct(64)) == 4 * 64


def test_integer_residuals():
    @jax.custom_vjp
    def packed(w):
        return w

    packed.defvjp(lambda w: (w, w > 0), lambda positive, g: (g * positive,))
    (kept,) = residual_shapes(packed, struct(64))
    assert (kept.shape, kept.dtype) == ((64,), jnp.bool_)


def test_checkpointed_module_keeps_its_input_alone():
    def fn(net, x):
        return nnx.remat(lambda net, x: net(x))(net, x)

    net = nnx.eval_shape(make)
    assert residual_bytes(fn, net, X) == IMAGE_BYTES
    assert residual_bytes(lambda net, x: net(x), net, X) > 4 * IMAGE_BYTES


def test_residuals_leave_modules_alone():
    net = make()
    before = leaves(net)
    size = residual_bytes(lambda net, x: net(x), net, jnp.ones(X.shape))
    assert size == residual_bytes(lambda net, x: net(x), nnx.eval_shape(make), X)
    for a, b in zip(before, leaves(net), strict=True):
        np.testing.assert_array_equal(a, b)


def test_residual_errors():
    with pytest.raises(TypeError, match="`fn` is None"):
        residual_bytes(None, X)
    with pytest.raises(ValueError, match="`args` is empty"):
        residual_bytes(jnp.sin)
    with pytest.raises(MeasureError, match="cannot be traced"):
        residual_bytes(lambda x: x + "a", X)
