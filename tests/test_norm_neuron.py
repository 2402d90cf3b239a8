"""Normalisation and neuron in one pass: the same function as one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import assert_bits, assert_near, f64

from snnjax import layer, surrogate
from snnjax._marks import carrying_state
from snnjax.layer import BatchNorm, NormNeuron
from snnjax.neuron import IF, LIF, PLIF, ScanNeuron, keep_state, lif, reset_state


class Adaptive(ScanNeuron):
    """A user's own: the threshold rises with every spike, and a leak is learned."""

    def __init__(self):
        super().__init__()
        self.leak = nnx.Param(jnp.float32(0.6))

    def initial_state(self, x):
        return {"v": jnp.zeros_like(x), "up": jnp.zeros_like(x)}

    def step(self, x, state):
        h = self.leak[...].astype(x.dtype) * state["v"] + x
        s = surrogate.atan(h - 0.4 - state["up"])
        return s, {"v": h * (1 - s), "up": 0.8 * state["up"] + 0.1 * s}


NEURONS = {
    "IF": lambda: IF(v_threshold=0.6),
    "LIF": lambda: LIF(tau=1.7, v_threshold=0.5),
    "LIF, soft reset": lambda: LIF(v_reset=None, v_threshold=0.4, detach_reset=True),
    "LIF, rest below": lambda: LIF(v_reset=-0.3, decay_input=False),
    "PLIF": lambda: PLIF(v_threshold=0.4),
    "PLIF, soft reset": lambda: PLIF(v_reset=None, decay_input=False),
    "user's": Adaptive,
}
neurons = pytest.mark.parametrize("make", NEURONS.values(), ids=NEURONS)


class Apart(nnx.Module):
    """What it has to be."""

    def __init__(self, norm, neuron):
        self.norm, self.neuron = norm, neuron

    def __call__(self, x):
        return self.neuron(self.norm(x))


def normal(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def norm(**settings):
    made = BatchNorm(4, rngs=nnx.Rngs(0), **settings)
    for seed, name in enumerate(("scale", "bias", "mean", "var")):
        if (variable := getattr(made, name)) is not None:
            variable[...] = jnp.abs(normal(4, seed=seed)) + 0.3
    return made


def pair(make, **settings):
    """Both, from the same values."""
    return NormNeuron(norm(**settings), make()), Apart(norm(**settings), make())


@nnx.jit
def run(net, x, g):
    """Spikes, gradients by the parameters and `x`, and all values after the call."""

    def loss(net, x):
        s = net(x)
        return (s * g.astype(s.dtype)).sum().astype(jnp.float32), s

    (_, s), gradients = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)(net, x)
    return s, gradients, nnx.state(net)


def assert_same(ours, wanted, tolerance=1e-5):
    """Spikes bit for bit, and everything that each has."""
    assert_bits(ours[0], wanted[0])
    assert 0 < f64(ours[0]).mean() < 1
    assert jax.tree.structure(ours[1:]) == jax.tree.structure(wanted[1:])
    for a, b in zip(*map(jax.tree.leaves, (ours[1:], wanted[1:])), strict=True):
        assert a.dtype == b.dtype
        assert_near(a, b, tolerance)


X, G = 2 * normal(5, 3, 2, 4) + 0.5, normal(5, 3, 2, 4, seed=1)


# --- as one after the other -----------------------------------------------------------


@pytest.mark.parametrize("mode", ["train", "eval"])
@neurons
def test_values_gradients_and_statistics(make, mode):
    fused, apart = pair(make)
    for net in (fused, apart):
        getattr(net, mode)()
    before = f64(fused.norm.mean[...])
    assert_same(run(fused, X, G), run(apart, X, G))
    assert np.any(f64(fused.norm.mean[...]) != before) == (mode == "train")


@pytest.mark.parametrize(
    "settings",
    [
        {"use_scale": False},
        {"use_bias": False},
        {"use_scale": False, "use_bias": False},
        {"momentum": 0.5, "epsilon": 1e-2},
    ],
)
def test_every_normalisation(settings):
    fused, apart = pair(NEURONS["LIF"], **settings)
    assert_same(run(fused, X, G), run(apart, X, G))


def test_a_frozen_normalisation_still_learns_its_scale():
    fused, apart = pair(NEURONS["PLIF"])
    for net in (fused, apart):
        net.norm.use_running_average = True
    ours = run(fused, X, G)
    assert_same(ours, run(apart, X, G))
    assert all(np.any(f64(a)) for a in jax.tree.leaves(ours[1]))


def test_by_hand():
    """One time step, no memory: a comparison of the normalized current."""
    net = NormNeuron(BatchNorm(4, rngs=nnx.Rngs(0)), IF(v_threshold=0.3))
    x = normal(1, 6, 5, 4)
    y = (f64(x) - f64(x).mean((0, 1, 2))) / np.sqrt(f64(x).var((0, 1, 2)) + 1e-5)
    assert np.abs(y - 0.3).min() > 1e-5
    np.testing.assert_array_equal(net(x), y >= 0.3)


def test_vectors_and_images():
    for shape in ((4, 2, 4), (4, 2, 3, 2, 4), (1, 1, 4), (3, 1, 2, 2, 1, 4)):
        fused, apart = pair(NEURONS["LIF"])
        fused.eval(), apart.eval()
        assert_bits(fused(normal(*shape)), apart(normal(*shape)))


def test_parameter_paths():
    net = NormNeuron(norm(), PLIF())
    paths = {"/".join(p) for p, _ in nnx.to_flat_state(nnx.state(net, nnx.Param))}
    assert paths == {"norm/scale", "norm/bias", "neuron/w"}


# --- dtypes ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_current_of_half_precision_is_float32(dtype):
    """It is not stored, so it is not rounded: spikes are those of a float32 current."""
    fused, wide = pair(NEURONS["LIF"])
    x, g = X.astype(dtype), G.astype(dtype)
    s, (dnet, dx), _ = run(fused, x, g)
    f32 = "float32"
    wanted, (wanted_dnet, wanted_dx), _ = run(wide, x.astype(f32), g.astype(f32))
    assert s.dtype == dx.dtype == dtype
    assert_bits(s, wanted.astype(dtype))
    assert_near(dx, wanted_dx, 1e-2)
    for a, b in zip(*map(jax.tree.leaves, (dnet, wanted_dnet)), strict=True):
        assert a.dtype == f32  # of cotangents that XLA's program rounds: design 4.2
        assert_near(a, b, 5e-3)
    assert_near(fused.norm.var[...], wide.norm.var[...], 1e-6)


def test_a_neuron_of_the_users_gets_the_dtype_that_came():
    fused, apart = pair(Adaptive)
    x, g = X.astype("bfloat16"), G.astype("bfloat16")
    assert_same(run(fused, x, g), run(apart, x, g), 2e-2)


def test_a_normalisation_asked_for_half_precision():
    """Its moments are of what came, and its output is of the dtype asked."""
    fused, apart = pair(NEURONS["LIF"], dtype=jnp.bfloat16)
    ours, wanted = run(fused, X, G), run(apart, X, G)
    assert ours[0].dtype == wanted[0].dtype == jnp.bfloat16
    assert ours[1][1].dtype == wanted[1][1].dtype == jnp.float32
    assert_near(fused.norm.mean[...], apart.norm.mean[...], 1e-6)
    assert_near(fused.norm.var[...], apart.norm.var[...], 1e-6)


def test_a_normalisation_asked_for_single_precision():
    fused, apart = pair(NEURONS["LIF"], dtype=jnp.float32)
    x = X.astype("bfloat16")
    assert_same(run(fused, x, G), run(apart, x, G), 2e-2)


# --- states ---------------------------------------------------------------------------


@neurons
def test_kept_states_go_on(make):
    """In training, calls of other moments; in evaluation, halves are the whole."""
    fused, apart = pair(make)
    for net in (fused, apart):
        keep_state(net)
    for part in (slice(0, 2), slice(2, 5)):
        assert_same(run(fused, X[part], G[part]), run(apart, X[part], G[part]))
    fused.eval(), reset_state(fused)
    halves = jnp.concatenate([fused(X[:2]), fused(X[2:])])
    keep_state(fused, False)
    assert_bits(halves, fused(X))


@pytest.mark.parametrize("make", [m for n, m in NEURONS.items() if n != "user's"])
def test_from_rest_is_from_an_explicit_rest(make):
    """Three ways: no state, a state at rest, and where the planner asks for states."""

    def explicit(neuron, x):
        return neuron.multi_step(x, neuron.initial_state(x[0]))[0]

    def carrying(neuron, x):
        with carrying_state():
            return neuron(x)

    def from_rest(neuron, x):
        return neuron(x)

    def found(f):
        def loss(neuron, x):
            s = f(neuron, x)
            return (s * G).sum(), s

        return nnx.jit(nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True))(
            make(), X
        )

    (_, wanted), wanted_gradients = found(explicit)
    assert 0 < wanted.mean() < 1
    for f in (from_rest, carrying):
        (_, s), gradients = found(f)
        assert_bits(s, wanted)
        jax.tree.map(assert_near, gradients, wanted_gradients)


def test_states_are_carried_where_asked_for_and_only_there():
    def traced():
        return str(jax.make_jaxpr(lambda x: LIF()(x))(X))

    with carrying_state():
        asked = traced()
    assert "snnjax_causal" in asked and "snnjax_from_rest" not in asked
    plain = traced()
    assert "snnjax_from_rest" in plain and "snnjax_causal" not in plain


# --- the affine map on its own --------------------------------------------------------


@pytest.mark.parametrize("frozen", [False, True])
def test_affine_is_what_the_call_does(frozen):
    one, other = norm(), norm()
    factor, shift = one.affine(X, use_running_average=frozen)
    assert factor.shape == shift.shape == (4,)
    wide = factor.reshape(1, 1, 1, 4), shift.reshape(1, 1, 1, 4)
    assert_near(X * wide[0] + wide[1], other(X, use_running_average=frozen), 1e-6)
    for name in ("mean", "var"):
        assert_bits(getattr(one, name)[...], getattr(other, name)[...])


def test_affine_refuses_what_the_call_refuses():
    with pytest.raises(ValueError, match="last axis must be the 4 channels"):
        norm().affine(normal(2, 3, 5))
    with pytest.raises(ValueError, match="last axis must be the 4 channels"):
        layer.NormNeuron(norm(), LIF())(normal(2, 3, 5))


SCALES = [
    (jnp.ones(4), None),
    (None, jnp.ones(4)),
    (jnp.ones(3), jnp.ones(3)),
    (jnp.ones((1, 4)), jnp.ones((1, 4))),
    (jnp.ones(()), jnp.ones(())),
]


@pytest.mark.parametrize("scale, shift", SCALES)
def test_scale_and_shift_that_are_refused(scale, shift):
    with pytest.raises(ValueError, match=r"`scale` and `shift` have shapes.*\(4,\)"):
        lif(X, scale=scale, shift=shift)


def test_a_current_without_features_has_no_scale():
    with pytest.raises(ValueError, match="`scale` and `shift`"):
        lif(X[:, 0, 0, 0], scale=jnp.ones(5), shift=jnp.ones(5))
