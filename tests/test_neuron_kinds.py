"""Adaptive, gated and parallel neurons against their equations at float64."""

import functools as ft
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import DERIVATIVES, assert_bits, assert_near, f64

import snnjax as snn
from snnjax import neuron

STEPS, BATCH, FEATURES = 5, 3, 4


class Dual:
    """A number and its derivative along one direction, in NumPy at float64."""

    def __init__(self, value, tangent=0.0):
        self.value, self.tangent = f64(value), f64(tangent) + 0 * f64(value)

    def __add__(self, other):
        other = as_dual(other)
        return Dual(self.value + other.value, self.tangent + other.tangent)

    def __mul__(self, other):
        other = as_dual(other)
        tangent = self.tangent * other.value + self.value * other.tangent
        return Dual(self.value * other.value, tangent)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other):
        return self + -1.0 * as_dual(other)

    def __rsub__(self, other):
        return as_dual(other) - self

    def sigmoid(self):
        y = 1 / (1 + np.exp(-self.value))
        return Dual(y, y * (1 - y) * self.tangent)

    def spike(self):
        slope = DERIVATIVES["atan"](self.value)
        assert np.abs(self.value).min() > 1e-4  # float32 fires just the same
        return Dual(self.value >= 0, slope * self.tangent)

    def detached(self):
        return Dual(self.value)


def as_dual(a):
    return a if isinstance(a, Dual) else Dual(a)


def adaptive(x, state, *, tau, tau_adaptation, beta, v_reset, decay_input, detach):
    v, b = state
    rest, rho = v_reset or 0.0, math.exp(-1 / tau_adaptation)
    for now in x:
        h = (
            v + (now - v + rest) * (1 / tau)
            if decay_input
            else (v - (v - rest) * (1 / tau) + now)
        )
        a = 1.0 + beta * b
        s = (h - a).spike()
        given = s.detached() if detach else s
        v = h - a * given if v_reset is None else h * (1 - given) + v_reset * given
        b = rho * b + (1 - rho) * s
        yield s
    yield v, b


def gated(x, p):
    gate = {name: value.sigmoid() for name, value in p.items() if name != "g"}
    a, b, c = gate["a"], gate["b"], gate["c"]
    u, s = Dual(np.zeros_like(x[0].value)), Dual(np.zeros_like(x[0].value))
    for now, g in zip(x, p["g"]):
        current = (1 - b * (1 - g.sigmoid())) * now
        left = (1 - a * (1 - gate["tau"])) * u * (1 - c * s)
        u = left - (1 - a) * gate["leak"] + current - (1 - c) * gate["v_reset"] * s
        s = (u - gate["v_threshold"]).spike()
        yield s


def drawn(*shape, seed, scale=1.0, mean=0.0):
    return np.random.default_rng(seed).normal(mean, scale, size=shape)


X = jnp.asarray(drawn(STEPS, BATCH, FEATURES, seed=5, scale=1.5, mean=0.8), "float32")
DS = drawn(STEPS, BATCH, FEATURES, seed=6)


def tangent_of(spikes):
    return sum((ds * s.tangent).sum() for ds, s in zip(DS, spikes))


@pytest.mark.parametrize(
    "v_reset, decay_input, detach", [(0.0, True, False), (None, False, False),
                                     (-0.3, False, True), (None, True, True)]
)  # fmt: skip
def test_adaptive_neuron_is_its_equations(v_reset, decay_input, detach):
    settings = {"tau": 1.7, "tau_adaptation": 3.0, "beta": 1.2, "v_reset": v_reset}
    settings["decay_input"] = decay_input
    model = neuron.ALIF(**settings, detach_reset=detach)
    start = drawn(BATCH, 2 * FEATURES, seed=7, scale=0.3)
    dstate = drawn(BATCH, 2 * FEATURES, seed=8)

    @jax.jit
    def run(x, state):
        def loss(x, state):
            s, last = model.multi_step(x, state)
            return jnp.sum(s * jnp.float32(DS)) + jnp.sum(last * jnp.float32(dstate)), s

        return jax.grad(loss, (0, 1), has_aux=True)(x, state)

    (dx, d0), spikes = run(X, jnp.float32(start))
    for seed in range(3):
        along_x = drawn(*X.shape, seed=20 + seed) * (seed != 2)
        along_0 = drawn(*start.shape, seed=30 + seed) * (seed != 1)
        halves = zip(np.split(start, 2, -1), np.split(along_0, 2, -1))
        state = tuple(Dual(np.float32(v), d) for v, d in halves)
        x = [Dual(a, d) for a, d in zip(X, along_x)]
        *wanted, last = adaptive(x, state, **settings, detach=detach)
        tangent = tangent_of(wanted)
        for d, part in zip(np.split(dstate, 2, -1), last):
            tangent += (d * part.tangent).sum()
        np.testing.assert_array_equal(spikes, [s.value for s in wanted])
        came = (f64(dx) * along_x).sum() + (f64(d0) * along_0).sum()
        assert_near(came, tangent)
    assert 0.1 < np.mean(spikes) < 0.9


def test_gated_neuron_is_its_equations():
    model = neuron.GLIF(STEPS + 1, gates=(0.3, 0.6, 0.7), tau=0.4)
    names = ("a", "b", "c", "tau", "v_threshold", "v_reset", "leak")

    @nnx.jit
    def run(model, x):
        def loss(model, x):
            s = model(x)
            return jnp.sum(s * jnp.float32(DS)), s

        return nnx.grad(loss, argnums=(0, 1), has_aux=True)(model, x)

    (dmodel, dx), spikes = run(model, X)
    gradients = {n: dmodel[n][...] for n in (*names, "conductance")}
    assert gradients["conductance"][STEPS] == 0

    def oracle(along_x, along):
        x = [Dual(a, d) for a, d in zip(X, along_x)]
        p = {n: Dual(getattr(model, n)[...], along.get(n, 0.0)) for n in names}
        g = np.zeros(STEPS) + along.get("conductance", 0.0)
        steady = model.conductance[...]
        return list(gated(x, p | {"g": [Dual(v, d) for v, d in zip(steady, g)]}))

    np.testing.assert_array_equal(spikes, [s.value for s in oracle(0 * DS, {})])
    assert 0.1 < np.mean(spikes) < 0.9
    for name in names:
        assert_near(gradients[name], tangent_of(oracle(0 * DS, {name: 1.0})))
    along = drawn(STEPS, seed=9)
    came = f64(gradients["conductance"])[:STEPS] @ along
    assert_near(came, tangent_of(oracle(0 * DS, {"conductance": along})))
    along = drawn(*X.shape, seed=10)
    assert_near((f64(dx) * along).sum(), tangent_of(oracle(along, {})))


# --- parallel neurons -----------------------------------------------------------------


def band(model):
    """The matrix of each kind, from its definition."""
    w = f64(model.weight[...])
    if isinstance(model, neuron.SlidingPSN):
        order = len(w)
        return [[w[order - 1 - (t - s)] if 0 <= t - s < order else 0.0
                 for s in range(STEPS)] for t in range(STEPS)]  # fmt: skip
    if isinstance(model, neuron.MaskedPSN):
        inside = [
            [0 <= t - s < model.order for s in range(STEPS)] for t in range(STEPS)
        ]
        return np.where(inside, w, w * (1 - model.masking))
    return w


PARALLEL = {
    "psn": lambda: neuron.PSN(STEPS, rngs=nnx.Rngs(2)),
    "masked": lambda: neuron.MaskedPSN(2, STEPS, rngs=nnx.Rngs(2)),
    "half masked": lambda: neuron.MaskedPSN(3, STEPS, masking=0.5, rngs=nnx.Rngs(2)),
    "sliding": lambda: neuron.SlidingPSN(3),
    "sliding, longer than the sequence": lambda: neuron.SlidingPSN(STEPS + 2),
    "sliding, no memory": lambda: neuron.SlidingPSN(1),
}


@pytest.mark.parametrize("kind", PARALLEL)
def test_parallel_neuron_is_its_equations(kind):
    model = PARALLEL[kind]()
    model.threshold[...] = model.threshold[...] * 0.6

    @nnx.jit
    def run(model, x):
        def loss(model, x):
            s = model(x)
            return jnp.sum(s * jnp.float32(DS)), s

        return nnx.grad(loss, argnums=(0, 1), has_aux=True)(model, x)

    (dmodel, dx), spikes = run(model, X)
    w, threshold = np.asarray(band(model)), f64(model.threshold[...])
    h = np.einsum("ts,sbf->tbf", w, f64(X)) - np.reshape(threshold, (-1, 1, 1))
    assert np.abs(h).min() > 1e-4
    np.testing.assert_array_equal(spikes, h >= 0)
    assert 0.05 < np.mean(spikes) < 0.95
    dh = DS * DERIVATIVES["atan"](h)
    assert_near(dx, np.einsum("ts,tbf->sbf", w, dh))
    dthreshold = -dh.sum((1, 2))
    assert_near(
        dmodel["threshold"][...], dthreshold if threshold.ndim else dthreshold.sum()
    )
    dw = np.einsum("tbf,sbf->ts", dh, f64(X))
    if isinstance(model, neuron.SlidingPSN):
        order = model.weight.shape[0]
        dw = np.array([np.trace(dw, -(order - 1 - i)) for i in range(order)])
    if isinstance(model, neuron.MaskedPSN):
        dw = dw * np.divide(w, f64(model.weight[...]))
    assert_near(dmodel["weight"][...], dw)


def test_first_values_of_parallel_neurons():
    model = neuron.PSN(200, rngs=nnx.Rngs(0))
    w = np.asarray(model.weight[...])
    assert abs(np.abs(w).max() * math.sqrt(200) - 1) < 0.01  # kaiming_uniform_(5**0.5)
    assert (model.threshold[...] == 1).all()
    np.testing.assert_array_equal(neuron.SlidingPSN(3).weight[...], [0.25, 0.5, 1])


def test_sliding_neuron_on_a_stream():
    model, run = neuron.SlidingPSN(4), nnx.jit(lambda model, x: model(x))
    wanted = run(model, X)
    neuron.keep_state(model)
    got = [run(model, X[t : t + 1]) for t in range(STEPS)]
    assert_bits(jnp.concatenate(got), wanted)


@pytest.mark.parametrize("make", [PARALLEL["psn"], PARALLEL["sliding"]])
def test_parallel_neuron_keeps_half_precision(make):
    x = X.astype("bfloat16")
    s = nnx.jit(lambda model, x: model(x))(make(), x)
    assert (s.shape, s.dtype) == (x.shape, x.dtype)
    assert set(np.unique(np.asarray(s, np.float32))) <= {0, 1}


def residuals(f, *args):
    """Sizes of what the backward pass keeps, largest first."""
    _, pullback = jax.eval_shape(lambda *a: jax.vjp(f, *a), *args)
    return sorted((a.size for a in jax.tree.leaves(pullback)), reverse=True)


KEPT = {k: (make, 1) for k, make in PARALLEL.items() if "longer" not in k}
KEPT |= {"adaptive": (neuron.ALIF, 1), "gated": (ft.partial(neuron.GLIF, STEPS), 2)}


@pytest.mark.parametrize("make, most", KEPT.values(), ids=KEPT)
def test_no_more_than_the_current_is_kept(make, most):
    """A sliding neuron's has zeros in front; a gated one keeps it scaled as well."""
    graphdef, state = nnx.split(make())
    wide = jax.ShapeDtypeStruct((STEPS, 50, 40), jnp.float32)
    kept = residuals(lambda s, x: nnx.merge(graphdef, s)(x), state, wide)
    assert len([n for n in kept if n >= wide.size]) == most


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: neuron.PSN(4, rngs=nnx.Rngs(0)), "`x` has shape .* 5 time steps.* 4"),
        (lambda: neuron.GLIF(4), "`x` has shape .* 5 time steps.*4.*`time_steps=5`"),
        (lambda: kept(PARALLEL["psn"]()), "`keep_state` is on.*SlidingPSN"),
        (lambda: kept(neuron.GLIF(STEPS)), "`keep_state` is on"),
        (lambda: neuron.SlidingPSN(0), "`order` is 0"),
        (lambda: neuron.MaskedPSN(0, 3, rngs=nnx.Rngs(0)), "`order` is 0"),
        (
            lambda: neuron.GLIF(4, gates=(1.0, 0.5, 0.5)),
            r"`gates.0.` is 1.0; .* \(0, 1\)",
        ),
        (lambda: neuron.ALIF(tau=0.5), "`tau` is 0.5"),
        (lambda: neuron.ALIF(tau=math.inf), "`tau` is inf"),
        (lambda: neuron.ALIF(tau_adaptation=0.0), "`tau_adaptation` is 0.0"),
    ],
)
def test_refuses(make, words):
    with pytest.raises(ValueError, match=words):
        nnx.eval_shape(lambda model, x: model(x), make(), X)


@pytest.mark.parametrize("kind", [neuron.ALIF, lambda: neuron.GLIF(STEPS)])
def test_a_shift_without_a_scale_is_refused(kind):
    with pytest.raises(ValueError, match="`scale` and `shift` have shapes None and"):
        kind()(X, shift=jnp.ones(FEATURES))


def kept(model):
    neuron.keep_state(model)
    return model


def test_spikes_of_all_kinds_are_proven_binary():
    """So that whatever reads them packs one bit."""
    blocks = [
        snn.layer.LinearBlock(FEATURES, FEATURES, neuron=make, rngs=nnx.Rngs(0))
        for make in (*PARALLEL.values(), neuron.ALIF, ft.partial(neuron.GLIF, STEPS))
    ]
    net = snn.layer.Sequential(*blocks, snn.layer.LinearBlock(4, 4, rngs=nnx.Rngs(0)))
    plan = snn.memopt.make_plan(net, (snn.layer.LinearBlock,), None)
    known = snn.memopt._boundary.prove_loss(
        net, [s.path for s in plan.segments], lambda net, x: net(x).sum(), (X,), None
    )
    boundaries = {path: str(known[path]).split(":")[0] for path in known}
    assert boundaries.pop("layers.0") == "None"
    assert set(boundaries.values()) == {"{0, 1}"}
