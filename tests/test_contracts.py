"""What every surrogate and every neuron promises, asked of all that are public.

And the promise of the gate, on which every gradient rests: a value goes through whole.
"""

import functools as ft
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers import DERIVATIVES, assert_bits, assert_near

from snnjax import layer, neuron, surrogate
from snnjax._gate import gate, never, start_after
from snnjax._step import make_step

SURROGATES = {
    name: f
    for name, f in vars(surrogate).items()
    if hasattr(f, "__wrapped__") and not name.startswith("_")
}
NEURONS = {
    name: c
    for name, c in vars(neuron).items()
    if inspect.isclass(c)
    and issubclass(c, neuron.Neuron)
    and not (inspect.isabstract(c) or name.startswith("_"))
}
surrogates = pytest.mark.parametrize("name", SURROGATES)
# Made of their own arguments, and tested in `test_neuron_kinds.py`.
OTHERS = {n: NEURONS.pop(n) for n in ("GLIF", "PSN", "MaskedPSN", "SlidingPSN")}
neurons = pytest.mark.parametrize("make", NEURONS.values(), ids=NEURONS)
CURRENT = jnp.asarray(np.random.default_rng(5).normal(0.6, 1.5, (4, 2, 3)), jnp.float32)


def test_the_public_lists():
    assert set(SURROGATES) == set(DERIVATIVES)  # each has its formula in the oracle
    assert set(NEURONS) == {"IF", "LIF", "PLIF", "ALIF"}


# --- surrogates -----------------------------------------------------------------------


@surrogates
def test_surrogate_is_a_spike_with_a_bump_for_a_slope(name):
    spike = SURROGATES[name]
    right = np.linspace(0, 3, 301, dtype="float32")[1:]
    x = jnp.asarray(np.concatenate([-right, right]))

    @jax.jit
    def both(x, dx):
        return *jax.jvp(spike, (x,), (dx,)), jax.vjp(spike, x)[1](dx)[0]

    s, tangent, slope = map(np.asarray, both(x, np.ones_like(x)))
    np.testing.assert_array_equal(slope, tangent)
    np.testing.assert_array_equal(s, np.asarray(x) >= 0)
    left, right = np.split(slope, 2)
    assert_near(left, right)  # even
    assert (slope >= 0).all() and slope.max() > 0.5
    assert (np.diff(right) <= 1e-6).all()  # the peak is at the threshold


@surrogates
def test_surrogate_documents_itself(name):
    width = list(inspect.signature(SURROGATES[name]).parameters.values())[1:]
    assert len(width) == 1 and width[0].default > 0
    for word in ("Args:", f"{width[0].name}:", "Source:"):
        assert word in SURROGATES[name].__doc__


@surrogates
def test_surrogate_refuses_integers(name):
    with pytest.raises(ValueError, match="`x` has dtype int.*floating"):
        SURROGATES[name](jnp.arange(3))


# --- neurons --------------------------------------------------------------------------


def check_run(model, x):
    """A run from rest: the declared shapes and dtypes; the module is its method."""
    start = model.initial_state(x[0])
    spikes, state = nnx.jit(lambda m, x, v: m.multi_step(x, v))(model, x, start)
    assert (spikes.shape, spikes.dtype) == (x.shape, x.dtype)
    assert set(np.unique(np.asarray(spikes, np.float32))) == {0, 1}
    for before, after in zip(*map(jax.tree.leaves, (start, state)), strict=True):
        assert before.shape[0] == x.shape[1]
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
        assert before.dtype == jnp.float32
    assert_bits(nnx.jit(lambda m, x: m(x))(model, x), spikes)


@neurons
@pytest.mark.parametrize("v_reset", [0.0, -0.5, None])
def test_neuron_runs_as_declared(make, v_reset):
    model = make(v_reset=v_reset)
    check_run(model, CURRENT)
    (rest,) = jax.tree.leaves(model.initial_state(CURRENT[0]))
    rest = np.asarray(rest)[:, : CURRENT.shape[-1]]  # behind it, an adaptation
    assert (rest == np.float32(v_reset or 0.0)).all()


@neurons
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_neuron_keeps_half_precision(make, dtype):
    check_run(make(), CURRENT.astype(dtype))


@neurons
def test_neuron_settings_count(make):
    x = jnp.full((3, 1, 1), 2.6)
    steep = ft.partial(surrogate.rectangle, width=1e-3)

    @jax.jit
    def run(x):
        quiet, loud = (make(v_threshold=th)(x).sum() for th in (100.0, -1.0))
        return quiet, loud, jax.grad(lambda x: make(surrogate=steep)(x).sum())(x)

    quiet, loud, gradient = run(x)
    assert (quiet, loud) == (0, 3)
    assert not np.any(gradient)


@neurons
def test_neuron_trains_under_jit(make):
    model = make()

    @nnx.jit
    def gradients(model, x):
        return nnx.grad(lambda m, x: jnp.square(m(x) - 0.3).sum(), argnums=(0, 1))(
            model, x
        )

    dmodel, dx = gradients(model, CURRENT)
    params = nnx.state(model, nnx.Param)
    assert jax.tree.structure(dmodel) == jax.tree.structure(params)
    for gradient in (*jax.tree.leaves(dmodel), dx):
        assert np.isfinite(gradient).all() and np.any(gradient)


@neurons
def test_neuron_on_a_stream(make):
    model, run = make(), nnx.jit(lambda model, x: model(x))
    wanted = run(model, CURRENT)
    neuron.keep_state(model)
    got = [run(model, CURRENT[t : t + 1]) for t in range(4)]
    assert_bits(jnp.concatenate(got), wanted)
    with pytest.raises(ValueError, match="kept state .*reset_state"):
        run(model, CURRENT[:, :1])
    neuron.reset_state(model)
    assert_bits(run(model, CURRENT), wanted)


@neurons
@pytest.mark.parametrize("shape", [(0, 2, 3), (3,)])
def test_neuron_refuses_what_has_no_time_or_batch(make, shape):
    with pytest.raises(ValueError, match=r"`x` has shape .*\[?time, batch, \.\.\."):
        make()(jnp.zeros(shape))


@neurons
def test_neuron_refuses_integers(make):
    with pytest.raises(ValueError, match="`x` has dtype int.*floating"):
        make()(jnp.ones((2, 2, 3), int))


# --- the gate -------------------------------------------------------------------------

FLOATS = [0.0, -0.0, 1.5, -3.25, math.inf, -math.inf, math.nan, 6e4, 1e-40]
VALUES = {t: jnp.asarray(FLOATS, t) for t in ("float32", "bfloat16", "float16")}
VALUES |= {t: jnp.asarray([0, 1, 100], t) for t in ("int32", "int8", "uint8")}
VALUES |= {
    "bool": jnp.asarray([True, False]),
    "scalar": jnp.asarray(1.5),
    "empty": jnp.zeros((0, 3)),
    "complex64": jnp.asarray([1 + 2j, complex(math.nan, math.inf)], "complex64"),
}
COTANGENTS = {
    "finite": jnp.asarray([1.0, 2.0]),
    "nan": jnp.asarray([math.nan, 2.0]),
    "inf": jnp.asarray([math.inf, 2.0]),
    "minus_inf": jnp.asarray([-math.inf, math.nan], "bfloat16"),
    "inf_minus_inf": (jnp.asarray([math.inf]), jnp.asarray([[-math.inf]], "float16")),
    "nan_and_inf": [jnp.asarray([math.nan]), jnp.asarray([math.inf])],
    "zero": jnp.zeros((3,)),
    "with_empty": (jnp.zeros((0, 2)), jnp.ones(1)),
    "only_empty": jnp.zeros((0, 2)),
    "with_float0": (np.zeros(2, jax.dtypes.float0), jnp.ones(1)),
    "with_integers": (jnp.arange(2), jnp.ones(1)),
}
cotangents = pytest.mark.parametrize("g", COTANGENTS.values(), ids=COTANGENTS)


@cotangents
def test_gate_changes_no_bit(g):
    keys = {"key": jax.random.key(3), "keys": jax.random.split(jax.random.key(4), 2)}
    residuals = VALUES | keys
    out, out_g = gate(residuals, g)
    assert jax.tree.structure((out, out_g)) == jax.tree.structure((residuals, g))
    for name in keys:
        assert out[name].dtype == keys[name].dtype
        assert_bits(*(jax.random.key_data(r.pop(name)) for r in (out, residuals)))
        residuals = dict(residuals)
    jax.tree.map(assert_bits, (out, out_g), (residuals, g))


def test_gate_changes_no_bit_when_compiled():
    g = COTANGENTS["nan_and_inf"]
    jax.tree.map(assert_bits, jax.jit(gate)(VALUES, g), (VALUES, g))


def test_gate_ties_what_it_returns_to_the_cotangent():
    """XLA's CPU compiler deletes barriers, but not a choice it cannot foresee."""
    text = jax.jit(gate).lower(jnp.ones(8), jnp.ones(4)).compile().as_text()
    assert "select" in text or "conditional" in text
    jaxpr = str(jax.make_jaxpr(gate)(jnp.ones(8), jnp.ones(4)))
    assert "optimization_barrier" in jaxpr


@cotangents
def test_never_is_false(g):
    if any(a.dtype == jax.dtypes.float0 for a in jax.tree.leaves(g)):
        g = g[1:]
    for no in (never(g), jax.jit(never)(g)):
        assert (no.shape, no.dtype, bool(no)) == ((), jnp.bool_, False)


def test_never_without_a_float_is_false():
    assert not never((jnp.arange(3), jnp.asarray(True), jax.random.key(0)))
    assert not never(())


@cotangents
def test_start_after_changes_no_value(g):
    due = jax.tree.leaves(g)[-1]
    for a in VALUES.values():
        if jnp.issubdtype(a.dtype, jnp.floating):  # but: see below
            a = a[(a != 0) & ~(jnp.abs(a) < 1e-30)]
        assert_bits(start_after(a, due), a)


@pytest.mark.parametrize("value", [-0.0, 2e-40], ids=["minus_zero", "subnormal"])
def test_start_after_changes_no_bit(value):
    a = jnp.asarray([value])
    assert_bits(start_after(a, jnp.ones(1)), a)


# --- the training step ----------------------------------------------------------------


def test_step_is_a_step_by_hand():
    """Two in a row; the second depends on the momentum of the first."""
    kernel = jnp.asarray(np.random.default_rng(1).normal(size=(3, 2)), jnp.float32)
    model = layer.Sequential(
        layer.Linear(3, 2, kernel_init=nnx.initializers.zeros_init(), rngs=nnx.Rngs(0)),
        neuron.LIF(),
    )
    model.layers[0].kernel[...] = kernel + 0.0  # a copy: the step donates it
    x, target, tx = CURRENT, jnp.full((2, 2), 0.4), optax.sgd(0.1, momentum=0.9)

    def loss(model, x, target):
        return jnp.square(model(x).mean(0) - target).sum()

    def by_hand(params, state):
        def loss(params):
            s, _ = neuron.lif(jnp.dot(x, params["kernel"]) + params["bias"][None, None])
            return jnp.square(s.mean(0) - target).sum()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    params = {"bias": jnp.zeros(2), "kernel": kernel}
    state, by_hand = tx.init(params), jax.jit(by_hand)
    step = nnx.jit(make_step(loss), donate_argnums=(0, 1))
    for _ in range(2):
        params, state, wanted = by_hand(params, state)
        assert_near(step(model, optimizer, x, target), wanted)
    assert_near(model.layers[0].kernel[...], params["kernel"])
    assert_near(model.layers[0].bias[...], params["bias"])
    assert np.abs(params["kernel"] - kernel).min() > 0.001
