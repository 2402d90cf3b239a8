"""The losses against float64 NumPy, written from the equations."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers import DERIVATIVES, assert_near, f64, neuron_gradients

from snnjax import layer, loss, neuron

LOSSES = {
    name: f
    for name, f in vars(loss).items()
    if inspect.isfunction(f) and f.__module__ == loss.__name__ and name[0] != "_"
}
RNG = np.random.default_rng(3)
SCORES = RNG.normal(size=(5, 4, 3)).astype("float32")
SPIKES = (RNG.random((5, 4, 3)) < 0.3).astype("float32")
LABELS = np.array([2, 0, 1, 2], "int32")
ONE_HOT = np.eye(3)[LABELS]
all_losses = pytest.mark.parametrize("name", LOSSES)


def log_softmax(a):
    a = a - a.max(-1, keepdims=True)
    return a - np.log(np.exp(a).sum(-1, keepdims=True))


def entropy(scores, wanted):
    return -(wanted * log_softmax(scores)).sum(-1)


def first_spikes(spikes):
    fired = spikes > 0
    return np.where(fired.any(0), fired.argmax(0), len(spikes)).astype(float)


def test_the_public_list():
    assert set(LOSSES) == {"cross_entropy", "tet", "rate_mse", "count", "latency"}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing):
    wanted = (1 - smoothing) * ONE_HOT + smoothing / 3
    came = loss.cross_entropy(SCORES, LABELS, smoothing=smoothing)
    assert_near(came, entropy(f64(SCORES).mean(0), wanted).mean())


@pytest.mark.parametrize("weight, phi, smoothing", [(1e-3, 1, 0), (0.4, 0.5, 0.2)])
def test_tet(weight, phi, smoothing):
    scores, wanted = f64(SCORES), (1 - smoothing) * ONE_HOT + smoothing / 3
    want = (1 - weight) * np.mean([entropy(s, wanted).mean() for s in scores])
    want += weight * ((scores - phi) ** 2).mean()
    settings = {"weight": weight, "phi": phi, "smoothing": smoothing}
    assert_near(loss.tet(SCORES, LABELS, **settings), want)


def test_tet_has_the_defaults_of_the_authors():
    assert_near(
        loss.tet(SCORES, LABELS), loss.tet(SCORES, LABELS, weight=1e-3, phi=1.0)
    )


def test_rate_mse():
    want = ((f64(SPIKES).mean(0) - ONE_HOT) ** 2).mean()
    assert_near(loss.rate_mse(SPIKES, LABELS), want)


@pytest.mark.parametrize("on, off", [(1.0, 0.0), (0.8, 0.1)])
def test_count(on, off):
    target = 5 * np.where(ONE_HOT == 1, on, off)
    want = ((f64(SPIKES).sum(0) - target) ** 2).mean() / 5
    came = loss.count(SPIKES, LABELS, correct_rate=on, incorrect_rate=off)
    assert_near(came, want)


def test_latency():
    spikes = SPIKES.copy()
    spikes[:, 0, 1] = 0  # one that is silent all along
    spikes[:, 1, 2] = 1
    want = entropy(-first_spikes(spikes), ONE_HOT).mean()
    assert_near(loss.latency(spikes, LABELS), want)


def test_latency_has_a_derivative_in_every_spike_that_could_come_sooner():
    """By the polynomial's own derivative, a spike at a time."""
    spikes = np.zeros((4, 1, 2), "float32")
    spikes[2, 0, 0] = 1  # class 1 is silent
    came = jax.grad(loss.latency)(spikes, np.array([0]))
    first = np.array([2.0, 4.0])
    outer = np.array([1.0, 0.0]) - np.exp(log_softmax(-first))  # d loss / d first
    inner = np.zeros((4, 2))
    for s in range(4):
        for c in range(2):
            others = np.delete(1 - f64(spikes[:, 0, c]), s)
            factors = np.insert(others, s, 1.0)  # without the factor of step s
            inner[s, c] = -np.cumprod(factors)[s:].sum()
    assert_near(came[:, 0], outer * inner)
    assert np.all(came[:3, 0, 0] < 0)  # fire, and sooner
    assert np.all(came[:, 0, 1] > 0)


def test_latency_goes_on_through_the_surrogate():
    x = RNG.normal(0.5, 1, (4, 2, 3)).astype("float32")
    labels = np.array([1, 2])

    def through(x):
        return loss.latency(neuron.lif(x, v_threshold=0.7)[0], labels)

    spikes, pull = jax.vjp(lambda x: neuron.lif(x, v_threshold=0.7)[0], x)
    ds = jax.grad(loss.latency)(spikes, labels)

    zeros = np.zeros((2, 3))
    want, *_ = neuron_gradients(
        x, zeros, 2.0, ds, zeros, DERIVATIVES["atan"], v_threshold=0.7
    )
    assert_near(jax.grad(through)(x), want)
    assert np.abs(want).max() > 1e-3


@all_losses
def test_gradient_goes_the_way_of_the_loss(name):
    """A small step against the gradient makes the loss smaller by as much."""
    f, scores = LOSSES[name], jnp.asarray(0.3 + 0.1 * SCORES)
    value, gradient = jax.value_and_grad(f)(scores, LABELS)
    step = 1e-2 * gradient / jnp.linalg.norm(gradient)
    fall = f(scores - step, LABELS) - f(scores + step, LABELS)
    assert_near(fall, -2e-2 * jnp.linalg.norm(gradient), 1e-2)
    assert value > 0 and value.shape == ()


@all_losses
def test_samples_that_only_fill_up_are_left_out(name):
    f, more = LOSSES[name], np.array([2, -1, 0, -1, 1, 2])
    scores = 100 * np.ones((5, 6, 3), "float32")
    scores[:, [0, 2, 4, 5]] = SPIKES
    assert_near(f(scores, more), f(SPIKES, np.array([2, 0, 1, 2])))
    gradient = jax.grad(f)(scores, more)
    assert not np.any(gradient[:, [1, 3]])
    assert f(scores, np.full(6, -1)) == 0


@all_losses
def test_half_precision_is_summed_in_float32(name):
    half = SPIKES.astype(jnp.bfloat16)
    came = LOSSES[name](half, LABELS)
    assert came.dtype == jnp.float32
    assert_near(came, LOSSES[name](SPIKES, LABELS), 1e-6)
    assert jax.grad(LOSSES[name])(half, LABELS).dtype == jnp.bfloat16


@all_losses
@pytest.mark.parametrize(
    "scores, labels, what",
    [
        (SCORES[0], LABELS, "`scores` has shape .*time, batch, class"),
        (SCORES[:0], LABELS, "without a single time step"),
        (SCORES, LABELS[:3], "`labels` has shape .3,. .*one class index a sample"),
        (SCORES, ONE_HOT, "`labels` has shape"),
        (SCORES, LABELS.astype("float32"), "`labels` has dtype float32.*argmax"),
        (SCORES.astype("int32"), LABELS, "`scores` has dtype int32.*floating"),
    ],
)
def test_what_is_no_score_and_label_is_refused(name, scores, labels, what):
    came = "spikes" if name in ("count", "latency") else "scores"
    with pytest.raises(ValueError, match=what.replace("scores", came)):
        LOSSES[name](scores, labels)


@pytest.mark.parametrize(
    "name, setting",
    [
        ("cross_entropy", {"smoothing": 1.0}),
        ("tet", {"smoothing": -0.1}),
        ("tet", {"weight": 1.5}),
        ("count", {"correct_rate": 2.0}),
        ("count", {"incorrect_rate": -1.0}),
    ],
)
def test_numbers_out_of_range_are_refused(name, setting):
    (what,) = setting
    with pytest.raises(ValueError, match=f"`{what}` is .*allowed"):
        LOSSES[name](SCORES, LABELS, **setting)


@all_losses
def test_a_readout_learns_by_it(name):
    """Ten steps of a linear layer and neurons: the loss falls to half."""
    f = LOSSES[name]
    x = jnp.asarray(RNG.normal(size=(4, 4, 6)), jnp.float32)
    model = layer.Sequential(
        layer.Linear(6, 3, rngs=nnx.Rngs(0)), neuron.LIF(v_threshold=0.5)
    )
    optimizer = nnx.Optimizer(model, optax.sgd(1.0, momentum=0.9), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        value, gradient = nnx.value_and_grad(lambda m: f(m(x), LABELS))(model)
        optimizer.update(model, gradient)
        return value

    values = [float(step(model, optimizer)) for _ in range(25)]
    assert min(values) < 0.8 * values[0], values
