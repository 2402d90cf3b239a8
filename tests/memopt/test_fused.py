"""Segments around a normalisation and a neuron in one pass, whole and in chunks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import LIVELY, WIDTH, assert_same, frames, loss, planned, train, values

import snnjax as snn
from snnjax import memopt
from snnjax.neuron import IF, LIF, PLIF, ScanNeuron, keep_state

X = frames((5, 6, WIDTH))


class Own(ScanNeuron):
    """A user's neuron."""

    def initial_state(self, x):
        return {"v": jnp.zeros_like(x)}

    def step(self, x, state):
        h = 0.7 * state["v"] + x
        s = snn.surrogate.atan(h - 0.4)
        return s, {"v": h * (1 - s)}


class Fused(nnx.Module):
    """Linear, then batch norm and a neuron in one."""

    def __init__(self, rngs: nnx.Rngs, neuron: Any):
        layer = snn.layer
        self.linear = layer.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)
        self.norm_neuron = layer.NormNeuron(layer.BatchNorm(WIDTH, rngs=rngs), neuron())

    def __call__(self, x):
        return self.norm_neuron(self.linear(x))

    def __spatial_split__(self):
        return self.linear, self.norm_neuron


NEURONS = {
    "LIF": lambda: LIF(**LIVELY),
    "PLIF, soft": lambda: PLIF(v_reset=None, **LIVELY),
    "IF, below": lambda: IF(v_reset=-0.3, **LIVELY),
    "user's": Own,
}
neurons = pytest.mark.parametrize("neuron", NEURONS.values(), ids=NEURONS)


def net(neuron: Any) -> nnx.Module:
    rngs = nnx.Rngs(0)
    return snn.layer.Sequential(*(Fused(rngs, neuron) for _ in range(2)))


def chunked(neuron: Any, **settings: Any) -> nnx.Module:
    made = net(neuron)
    plan = memopt.make_plan(made, (Fused,), None)
    paths = [s.path for s in plan.segments]
    return memopt.apply_plan(made, plan.with_chunks(*paths, **settings))


def graded(model: nnx.Module) -> dict[str, np.ndarray]:
    """The loss, its gradients by parameters and input, and all values after it."""
    found = nnx.jit(nnx.value_and_grad(loss, argnums=(0, 1)))
    value, (by_net, by_x) = found(model, X)
    grads = {f"grad {k}": v for k, v in values(by_net).items()}
    assert all(np.any(g) for g in grads.values())
    one = {"loss": np.asarray(value), "x": np.asarray(by_x)}
    return one | grads | values(model)


@neurons
def test_level_1_trains_alike(neuron):
    planned_net = memopt.apply_plan(
        net(neuron), planned(net(neuron), X, targets=(Fused,))
    )
    assert_same(train(planned_net, X), train(net(neuron), X))


@pytest.mark.parametrize("way", ["whole", "sums", "chunks"])
@pytest.mark.parametrize("chunks", [{"batch": 3}, {"time": 5}, {"time": 2}], ids=str)
def test_chunks_keep_gradients_and_statistics(chunks, way):
    neuron = NEURONS["LIF"]
    assert_same(graded(chunked(neuron, forward_by=way, **chunks)), graded(net(neuron)))


@pytest.mark.parametrize("chunks", [{"batch": 2}, {"time": 2}], ids=str)
@pytest.mark.parametrize("name", ["PLIF, soft", "IF, below", "user's"])
def test_chunks_with_any_neuron(name, chunks):
    neuron = NEURONS[name]
    assert_same(graded(chunked(neuron, **chunks)), graded(net(neuron)))


def test_time_chunks_with_a_kept_state():
    def made(**settings):
        model = chunked(NEURONS["LIF"], **settings) if settings else net(NEURONS["LIF"])
        keep_state(model)
        model(X[:2])
        return model

    ours, wanted = graded(made(time=5)), graded(made())
    assert any("kept" in path for path in wanted)
    assert_same(ours, wanted)


def test_the_spatial_split_leaves_it_in_one_piece():
    halves = (snn.layer.Linear, snn.layer.NormNeuron)
    made = net(NEURONS["LIF"])
    split = memopt.apply_plan(made, planned(made, X, targets=halves))
    assert_same(graded(split), graded(net(NEURONS["LIF"])))


def test_its_boundary_is_proven_binary():
    made = net(NEURONS["LIF"])
    second = planned(made, X, targets=(Fused,)).segments[1]
    assert "Bit" in str(second.compressor)


def test_under_vmap_the_kernel_of_a_segment_is_reached():
    """A segment's program, lowered for CUDA, has the kernels, forward and backward."""
    from snnjax.memopt._deviceless import described
    from snnjax.memopt._devices import device_spec

    model = chunked(NEURONS["LIF"], batch=3)
    graph, state = nnx.split(model)

    def gradient(state, x):
        return jax.grad(lambda s: loss(nnx.merge(graph, s), x), allow_int=True)(state)

    with described(device_spec("rtx4090")):
        traced = jax.jit(gradient).trace(state, X)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "snnjax_lif_forward" in text and "snnjax_lif_backward" in text
