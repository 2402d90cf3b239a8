"""Neurons against Python loops in NumPy at float64, forward and backward."""

import functools as ft
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import (
    DERIVATIVES,
    assert_bits,
    assert_clear,
    assert_near,
    f64,
    neuron_gradients,
    neuron_loop,
)

from snnjax import layer, neuron, surrogate
from snnjax.neuron import IF, LIF, PLIF, ScanNeuron, keep_state, lif, reset_state

RESETS = {"hard": 0.0, "hard_below": -0.3, "soft": None}
KINDS = {
    "IF": (IF, {}, False),
    "LIF": (LIF, {"tau": 2.3}, False),
    "LIF_input": (LIF, {"tau": 2.3}, True),
    "PLIF": (PLIF, {"tau": 1.7}, False),
    "PLIF_input": (PLIF, {"tau": 1.7}, True),
}
resets = pytest.mark.parametrize("v_reset", RESETS.values(), ids=RESETS)
decays = pytest.mark.parametrize("decay_input", [False, True], ids=["x", "decay_x"])


def draw(tau, shape=(2, 2, 4), **settings):
    """Current, start and cotangents, away from where float32 might fire otherwise.

    Away, too, from the edges of the rectangle, half a unit off the threshold.
    """
    threshold = settings.get("v_threshold", 1.0)
    for seed in itertools.count():
        rng = np.random.default_rng(seed)
        x, ds = rng.normal((0.7, 0), 1.2, (*shape, 2)).transpose(-1, *range(len(shape)))
        v0, dv = rng.normal(size=(2, *shape[1:]))
        x, v0, ds, dv = (jnp.asarray(a, jnp.float32) for a in (x, v0, ds, dv))
        spikes, h, _ = neuron_loop(x, v0, tau, **settings)
        edges = np.abs(np.abs(h - threshold)[..., None] - [0, 0.5])
        if edges.min() > 1e-3 and 0 < spikes.mean() < 1:
            return x, v0, ds, dv


def check(outputs, gradients, x, v0, tau, ds, dv, derivative, **settings):
    """Against the oracle; gradients by x, v0 and, if there is a third, tau."""
    s, h, v = neuron_loop(x, v0, tau, **settings)
    assert_clear(h, settings.get("v_threshold", 1.0))
    np.testing.assert_array_equal(f64(outputs[0]), s)
    assert_near(outputs[1], v[-1])
    wanted = neuron_gradients(x, v0, tau, ds, dv, derivative, **settings)
    for ours, theirs in zip(gradients, wanted):
        axes = tuple(
            i for i, (a, b) in enumerate(zip(ours.shape, theirs.shape)) if a != b
        )
        theirs = theirs.sum(axes, keepdims=True) if ours.ndim else theirs.sum()
        assert_near(ours, theirs)


# --- the mathematics ------------------------------------------------------------------


@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("detach_reset", [False, True], ids=["", "detach"])
@resets
@pytest.mark.parametrize("kind", KINDS)
def test_module_is_the_loop(kind, v_reset, detach_reset, name):
    make, given, decay_input = KINDS[kind]
    settings = {"v_reset": v_reset, "detach_reset": detach_reset}
    given = {**given, **settings, "surrogate": getattr(surrogate, name)}
    tau = given.get("tau")
    settings |= {} if make is IF else {"decay_input": decay_input}
    given |= {} if make is IF else {"decay_input": decay_input}
    x, v0, ds, dv = draw(tau, **settings)
    split, params = nnx.split(make(**given), nnx.Param)

    def run(params, x, v):
        return nnx.merge(split, params).multi_step(x, v)

    # Step by step, which is quicker than compiling 180 programs; compiled ones follow.
    with jax.disable_jit():
        outputs, back = jax.vjp(run, params, x, v0)
        (dparams, *gradients) = back((ds, dv))
    if make is PLIF:  # tau = 1 + exp(-w)
        gradients.append(dparams["w"][...] / -(tau - 1))
    check(outputs, gradients, x, v0, tau, ds, dv, DERIVATIVES[name], **settings)


@resets
@decays
def test_compiled_with_a_tau_of_each_channel(v_reset, decay_input):
    settings = {"v_reset": v_reset, "decay_input": decay_input, "v_threshold": 0.8}
    tau = jnp.asarray([[1.0, 1.6, 5.0]])
    x, v0, ds, dv = draw(f64(tau), (7, 2, 3), **settings)

    @jax.jit
    def both(x, v, tau):
        outputs, back = jax.vjp(lambda x, v, t: lif(x, v, tau=t, **settings), x, v, tau)
        return outputs, back((ds, dv))

    outputs, gradients = both(x, v0, tau)
    assert gradients[2].shape == tau.shape
    formula = DERIVATIVES["atan"]
    check(outputs, gradients, x, v0, f64(tau), ds, dv, formula, **settings)


def test_tau_of_lower_rank_than_the_current():
    tau = jnp.asarray([1.5, 2.0, 3.0, 4.0])
    x, v0, ds, dv = draw(f64(tau))

    @jax.jit
    def both(tau):
        outputs, back = jax.vjp(lambda x, v, t: lif(x, v, tau=t), x, v0, tau)
        return outputs, back((ds, dv))

    with jax.numpy_rank_promotion("allow"):
        outputs, gradients = both(tau)
    assert gradients[2].shape == (4,)
    gradients = (*gradients[:2], gradients[2][None])
    check(outputs, gradients, x, v0, f64(tau), ds, dv, DERIVATIVES["atan"])


@decays
def test_two_calls_with_the_state_handed_on_are_one(decay_input):
    settings = {"decay_input": decay_input, "v_reset": None}
    x, v0, ds, dv = draw(2.0, (7, 2, 3), **settings)
    run = ft.partial(lif, **settings)

    def halves(x, v, tau):
        first, v = run(x[:3], v, tau=tau)
        second, v = run(x[3:], v, tau=tau)
        return jnp.concatenate([first, second]), v

    @jax.jit
    def both(x, v, tau):
        results = []
        for f in (halves, lambda x, v, t: run(x, v, tau=t)):
            outputs, back = jax.vjp(f, x, v, tau)
            results.append((outputs, back((ds, dv))))
        return results

    (split, dsplit), (whole, dwhole) = both(x, v0, jnp.asarray(2.0))
    assert dwhole[2].shape == ()
    formula = DERIVATIVES["atan"]
    check(whole, dwhole, x, v0, 2.0, ds, dv, formula, **settings)
    assert_bits(split[0], whole[0])
    for ours, wanted in zip((split[1], *dsplit), (whole[1], *dwhole), strict=True):
        assert_near(ours, wanted, 1e-6)


def test_one_time_step():
    x, v0, ds, dv = draw(2.0, (1, 2, 3))
    with jax.disable_jit():
        outputs, back = jax.vjp(lif, x, v0)
        gradients = back((ds, dv))
    check(outputs, gradients, x, v0, 2.0, ds, dv, DERIVATIVES["atan"])


def test_without_a_start_it_is_at_rest():
    x, *_ = draw(2.0, v_reset=-0.3)
    spikes, v = jax.jit(ft.partial(lif, v_reset=-0.3))(x)
    wanted, _, steps = neuron_loop(x, np.full((2, 4), -0.3), 2.0, v_reset=-0.3)
    np.testing.assert_array_equal(spikes, wanted)
    assert_near(v, steps[-1])


def test_exactly_at_the_threshold_it_fires():
    assert lif(jnp.asarray([[1.0], [0.5], [0.5]]), tau=math.inf, decay_input=False)[
        0
    ].ravel().tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_has_a_float32_membrane(dtype):
    x, v0, ds, dv = draw(2.0, (6, 2, 3))
    x, v0, ds = (a.astype(dtype) for a in (x, v0, ds))
    settings = {"decay_input": False, "tau": 2.0}

    @jax.jit
    def both(x, v, ds):
        outputs, back = jax.vjp(lambda x, v: lif(x, v, **settings), x, v)
        return outputs, back((ds, dv))

    (spikes, v), gradients = both(x, v0, ds)
    wide = [a.astype("float32") for a in (x, v0, ds)]
    (wide_spikes, wide_v), wide_gradients = both(*wide)
    assert (spikes.dtype, v.dtype) == (x.dtype, jnp.float32)
    assert_bits(spikes, wide_spikes.astype(dtype))
    assert_bits(v, wide_v)
    # Rounded once, at the end: not a digit was lost on the way through time.
    for ours, wanted in zip(gradients, wide_gradients, strict=True):
        assert_bits(ours, wanted.astype(dtype))


def test_under_vmap_every_sample_is_its_own():
    x, v0, ds, dv = draw(2.0)

    def gradient(x, v, ds, dv):
        return jax.vjp(lif, x, v)[1]((ds, dv))

    mapped = jax.jit(jax.vmap(gradient, (1, 0, 1, 0), (1, 0)))(x, v0, ds, dv)
    wanted = neuron_gradients(x, v0, 2.0, ds, dv, DERIVATIVES["atan"])
    assert_near(mapped[0], wanted[0])
    assert_near(mapped[1], wanted[1])


def test_no_samples_no_spikes():
    x = jnp.zeros((3, 0, 2))
    gradient = jax.jit(jax.grad(lambda x: lif(x)[0].sum()))(x)
    assert gradient.shape == x.shape


def test_parameter_of_plif_starts_at_tau():
    plif = PLIF(tau=1.333)
    assert (plif.w.dtype, plif.w.shape) == (jnp.float32, ())
    assert_near(plif.time_constant, 1.333, 1e-6)


# --- what the backward pass keeps, and in how much memory it runs ---------------------


def kept(f, *args):
    """What the backward pass of `f` keeps, largest first."""
    arrays = jax.tree.leaves(jax.eval_shape(lambda *args: jax.vjp(f, *args)[1], *args))
    arrays = sorted(arrays, key=lambda a: -a.size)
    return [(a.shape, a.dtype.name) for a in arrays]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tau", [(), (1, 4)], ids=["scalar", "per_channel"])
def test_residuals_are_the_current_and_one_step(dtype, tau):
    x, v0 = jnp.ones((9, 2, 4), dtype), jnp.zeros((2, 4))
    arrays = kept(lambda x, v, t: lif(x, v, tau=t), x, v0, jnp.full(tau, 2.0))
    assert arrays[:2] == [((9, 2, 4), dtype), ((2, 4), "float32")]
    # The leak, and what the division 1 / tau keeps for itself.
    assert 1 <= len(arrays[2:]) <= 3
    assert set(arrays[2:]) <= {(tau, "float32"), ((), "float32")}


def test_residuals_of_a_constant_tau():
    arrays = kept(lambda x: lif(x)[0], jnp.ones((9, 2, 4)))
    assert arrays[0] == ((9, 2, 4), "float32")
    assert set(arrays[1:]) <= {((2, 4), "float32"), ((), "float32")}


@decays
def test_the_loops_write_in_place(decay_input):
    """Potentials over the current, gradient over the potentials: measured 2 + 1 / T.

    `lax.scan` and autodiff take 4.2 activations for the same. As in a network, the
    current is computed and the gradient depends on the spikes: XLA copies what is still
    to be read when it is written over.
    """
    steps, x = 16, jax.ShapeDtypeStruct((16, 16, 1024), jnp.float32)

    def loss(x):
        return jnp.square(lif(jnp.sin(x), decay_input=decay_input)[0]).sum()

    memory = jax.jit(jax.value_and_grad(loss)).lower(x).compile().memory_analysis()
    activation = 4 * math.prod(x.shape)
    assert memory.temp_size_in_bytes <= (2 + 2 / steps) * activation


# --- what it refuses ------------------------------------------------------------------


@pytest.mark.parametrize(
    "x, settings, words",
    [
        (jnp.zeros((0, 2)), {}, r"`x` has shape \(0, 2\).*at least 1"),
        (jnp.zeros(()), {}, r"`x` has shape \(\) of rank 0.*\[time, \.\.\.\]"),
        (jnp.zeros((2, 3), int), {}, r"`x` has dtype int.*floating.*astype"),
        (jnp.zeros((2, 3), bool), {}, r"`x` has dtype bool.*floating.*astype"),
        (jnp.zeros((2, 3)), {"tau": 0.5}, r"`tau` is 0.5.*at least 1.*math\.inf"),
        (jnp.zeros((2, 3)), {"tau": 0}, r"`tau` is 0;"),
        (jnp.zeros((2, 3)), {"tau": math.nan}, r"`tau` is nan;"),
        (jnp.zeros((2, 3)), {"tau": math.inf}, "`tau` is inf with `decay_input=True`"),
        (jnp.zeros((2, 4)), {"tau": jnp.ones(3)}, r"`tau` has shape \(3,\).*\(4,\)"),
        (jnp.zeros((2, 4)), {"tau": jnp.ones((2, 1, 4))}, r"`tau` has shape \(2, 1"),
        (jnp.zeros(2), {"scale": jnp.ones(2), "shift": jnp.ones(2)}, "no feature axis"),
        (jnp.zeros((2, 3)), {"v": jnp.zeros((4,))}, r"`v` has shape \(4,\)"),
        (jnp.zeros((2, 3)), {"v": jnp.zeros((2, 3))}, r"`v` has shape \(2, 3\)"),
    ],
)
def test_lif_refuses(x, settings, words):
    with pytest.raises(ValueError, match=words):
        lif(x, **settings)


@pytest.mark.parametrize("tau", [1, 1.0, 0.2, math.inf, math.nan])
def test_plif_refuses_a_tau_that_no_sigmoid_gives(tau):
    with pytest.raises(ValueError, match=r"`tau` is .*above 1"):
        PLIF(tau=tau)


def test_lif_module_refuses_a_small_tau():
    with pytest.raises(ValueError, match=r"`tau` is 0.9.*at least 1"):
        LIF(tau=0.9)
    with pytest.raises(ValueError, match=r"`tau` is inf.*snnjax.neuron.IF"):
        LIF(tau=math.inf)
    assert LIF(tau=math.inf, decay_input=False).time_constant == math.inf


def test_base_classes_are_not_neurons():
    for base in (neuron.Neuron, ScanNeuron):
        with pytest.raises(TypeError, match="abstract"):
            base()


# --- dynamics of one's own ------------------------------------------------------------


class MyLIF(ScanNeuron):
    """The equations at the head of `snnjax.neuron`, written as a user would."""

    def __init__(self):
        super().__init__()
        self.leak = nnx.Param(jnp.asarray(0.4))

    def initial_state(self, x):
        return {"v": jnp.zeros_like(x)}

    def step(self, x, state):
        h = state["v"] + (x - state["v"]) * self.leak[...]
        s = surrogate.atan(h - 1)
        return s, {"v": h * (1 - s)}


def test_scan_neuron_is_the_shipped_one():
    x, _, ds, _ = draw(2.5, (6, 2, 3))

    def mine(leak, x):
        model = MyLIF()
        model.leak[...] = leak
        return model(x)

    def ours(leak, x):
        return lif(x, tau=1 / leak)[0]

    leak = jnp.asarray(0.4)

    @jax.jit
    def both(leak, x):
        results = []
        for f in (mine, ours):
            s, back = jax.vjp(f, leak, x)
            results.append((s, back(ds)))
        return results

    (my_spikes, dmine), (spikes, dours) = both(leak, x)
    assert_bits(spikes, my_spikes)
    jax.tree.map(assert_near, dours, dmine)


def test_scan_neuron_on_a_stream():
    x, *_ = draw(2.5, (6, 2, 3))
    model = MyLIF()
    wanted = model(x)
    keep_state(model)
    assert_bits(jnp.concatenate([model(x[:1]), model(x[1:])]), wanted)
    with pytest.raises(ValueError, match=r"\{'v': \(2, 3\)\}.*\{'v': \(1, 3\)\}"):
        model(x[:, :1])


def test_scan_refuses_no_time():
    with pytest.raises(ValueError, match="`x` has shape .*at least 1"):
        neuron.scan(lambda x, v: (x, v), jnp.zeros((0, 2)), jnp.zeros(2))


# --- running on a stream --------------------------------------------------------------


def network():
    first, second = (layer.Linear(i, 4, rngs=nnx.Rngs(0)) for i in (3, 4))
    return layer.Sequential(first, LIF(), second, PLIF(v_threshold=0.2))


STREAM = jnp.asarray(np.random.default_rng(3).normal(size=(4, 2, 3)) * 5, jnp.float32)


@pytest.mark.parametrize(
    "make, run",
    [(LIF, lambda model, x: model(x)), (network, nnx.jit(lambda model, x: model(x)))],
    ids=["eager", "jit"],
)
def test_step_mode_is_multi_step_mode(make, run):
    model = make()
    wanted = run(model, STREAM)
    assert 0 < wanted.mean() < 1
    keep_state(model)
    got = [run(model, STREAM[t : t + 1]) for t in range(4)]
    np.testing.assert_array_equal(jnp.concatenate(got), wanted)
    reset_state(model)
    got = [run(model, STREAM[:3]), run(model, STREAM[3:])]
    np.testing.assert_array_equal(jnp.concatenate(got), wanted)
    keep_state(model, False)
    np.testing.assert_array_equal(run(model, STREAM), wanted)


def test_a_second_step_outside_jit_compiles_nothing():
    """A stream is as slow as its compiler otherwise: 0.1 s a step and neuron."""
    model, compiled = LIF(), []

    def listen(event, *_, **__):
        compiled.append(event) if "backend_compile" in event else None

    keep_state(model)
    model(STREAM[:1])
    model(STREAM[1:2])
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        model(STREAM[2:3])
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 0


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_another_batch_size_needs_a_reset(jit):
    model, run = LIF(), lambda model, x: model(x)
    run = nnx.jit(run) if jit else run
    keep_state(model)
    run(model, STREAM)
    words = r"kept state has shape \(2, 3\).*asks for \(1, 3\).*reset_state"
    with pytest.raises(ValueError, match=words):
        run(model, STREAM[:, :1])
    reset_state(model)
    np.testing.assert_array_equal(
        run(model, STREAM[:, :1]), lif(STREAM[:, :1], jnp.zeros((1, 3)))[0]
    )


def test_without_keep_state_nothing_is_kept():
    model, run = network(), nnx.jit(lambda model, x: model(x))
    before = nnx.state(model)
    first = run(model, STREAM)
    np.testing.assert_array_equal(run(model, STREAM), first)
    jax.tree.map(assert_bits, nnx.state(model), before)


def test_kept_states_are_states_and_no_parameters():
    model = network()
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))]
    keep_state(model)
    nnx.jit(lambda model: model(STREAM))(model)
    kept = jax.tree.leaves(nnx.state(model, neuron.State))
    assert [a.shape for a in kept] == [(2, 4), (2, 4)]
    now = [path for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))]
    assert now == paths
