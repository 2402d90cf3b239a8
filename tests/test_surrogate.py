"""Every surrogate against its formula in NumPy, through every door: vjp, jvp, jit."""

import functools as ft
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import DERIVATIVES, assert_bits, assert_near, f64

from snnjax import surrogate

WIDTHS = {"atan": 3.0, "sigmoid": 2.5, "triangle": 0.4, "rectangle": 1.6}
WIDTHS |= {"super_spike": 25.0, "gaussian": 0.9}
AREAS = {"super_spike": 0.2}  # 2 / beta; all the others have area one
X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)), jnp.float32)

each = pytest.mark.parametrize("name", DERIVATIVES)


def slope(spike, x):
    return jax.jit(jax.grad(lambda x: spike(x).sum()))(x)


@each
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_forward_is_the_heaviside_step(name, dtype):
    tiny = float(jnp.finfo(dtype).smallest_normal)
    x = jnp.asarray([-math.inf, -2, -tiny, -0.0, 0, tiny, 2, math.inf], dtype)
    wanted = jnp.asarray([0, 0, 0, 1, 1, 1, 1, 1], dtype)
    assert_bits(getattr(surrogate, name)(x), wanted)


@each
def test_backward_is_the_formula(name):
    spike, formula = getattr(surrogate, name), DERIVATIVES[name]
    assert_near(slope(spike, X), formula(f64(X)))
    width = WIDTHS[name]
    assert_near(slope(lambda x: spike(x, width), X), formula(f64(X), width))
    _, tangent = jax.jvp(spike, (X,), (2 * X,))
    assert_near(tangent, 2 * f64(X) * formula(f64(X)))


@each
def test_width_by_partial(name):
    keyword = {"super_spike": "beta", "gaussian": "sigma"}
    keyword |= dict.fromkeys(("atan", "sigmoid"), "alpha")
    settings = {keyword.get(name, "width"): WIDTHS[name]}
    spike = ft.partial(getattr(surrogate, name), **settings)
    assert_near(slope(spike, X), DERIVATIVES[name](f64(X), WIDTHS[name]))


@each
def test_area_of_the_default_width(name):
    x = np.linspace(-400, 400, 800_001, dtype="float32")
    area = f64(slope(getattr(surrogate, name), x)).sum() * 1e-3
    assert abs(area - AREAS.get(name, 1)) < 2e-3


@each
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_far_from_the_threshold_nothing_overflows(name, dtype):
    big = float(jnp.finfo(dtype).max)
    x = jnp.asarray([-math.inf, -big, -300, 300, big, math.inf], dtype)
    got = slope(getattr(surrogate, name), x)
    assert got.dtype == x.dtype
    assert_near(got, np.zeros(6), 1e-4)


@each
def test_nan_fires_not_and_is_not_hidden(name):
    x = jnp.asarray([math.nan])
    assert getattr(surrogate, name)(x) == 0
    if name != "rectangle":  # its comparison is False on either side
        assert np.isnan(slope(getattr(surrogate, name), x)).all()


@pytest.mark.parametrize("bad", [jnp.arange(3), jnp.asarray(True), 1])
def test_only_floats_have_a_gradient(bad):
    with pytest.raises(ValueError, match=r"`x` has dtype (int|bool).*floating.*astype"):
        surrogate.atan(bad)


def test_a_surrogate_of_your_own():
    @surrogate.surrogate
    def leaky(x, outside=0.1):
        """Mine."""
        return jnp.where(jnp.abs(x) < 0.5, 1, outside).astype(x.dtype)

    assert (leaky.__name__, leaky.__doc__) == ("leaky", "Mine.")
    x = jnp.asarray([-1.0, 0.2, 1.0])
    assert_bits(leaky(x), jnp.asarray([0.0, 1.0, 1.0]))
    assert_near(slope(leaky, x), [0.1, 1, 0.1])
    assert_near(slope(ft.partial(leaky, outside=0.0), x), [0, 1, 0])
