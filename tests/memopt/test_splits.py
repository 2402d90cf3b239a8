"""Targets that are split into their parts, repeated, nested, or the whole model."""

import numpy as np
import pytest
from flax import nnx
from models import Block, Residual, chain
from planner import gradients, plan_of, split_all, stages

import snnjax as snn
from snnjax.memopt import Plan, apply_plan


class Skip(nnx.Module):
    """Two blocks that may be apart, and a skip around them."""

    def __init__(self, rngs):
        self.first, self.second = Block(rngs), Block(rngs)

    def __call__(self, x):
        return self.second(self.first(x)) + x

    def __spatial_split__(self):
        return self.first, self.second


def skips():
    return snn.layer.Sequential(Skip(nnx.Rngs(0)), Skip(nnx.Rngs(1)))


@pytest.mark.parametrize("case", ["skip", "sequential"])
def test_a_split_target_has_its_parts_as_segments(case, cheap, monkeypatch):
    split_all(monkeypatch)
    if case == "skip":
        make, instance = skips, Skip
        parts = [f"layers.{i}.{n}" for i in range(2) for n in ("first", "second")]
    else:
        make, instance = stages, snn.layer.Sequential
        parts = [f"{n}.layers.{i}" for n in "abc" for i in range(2)]
    net = make()
    plan = plan_of(net, instance, level=2)
    assert [s.path for s in plan.segments] == parts
    # Spikes between the parts are proven, and kept at one bit each.
    compressors = {s.path: s.compressor for s in plan.segments}
    assert all(compressors[p] == "BitSpikeCompressor" for p in parts[1::2])
    want, came = gradients(make()), gradients(apply_plan(net, plan))
    assert came.keys() == want.keys()
    for path, expected in want.items():
        size = max(np.abs(expected).max(initial=0), 1e-6)
        np.testing.assert_allclose(came[path], expected, rtol=0, atol=1e-5 * size)
    assert Plan.from_json(plan.to_json()) == plan


class Odd(Skip):
    """Parts that are none of its modules."""

    def __spatial_split__(self):
        return Block(nnx.Rngs(5)), Block(nnx.Rngs(6))


def test_parts_that_are_elsewhere_are_no_split(cheap):
    net = snn.layer.Sequential(Odd(nnx.Rngs(0)), Odd(nnx.Rngs(1)))
    plan = plan_of(net, Odd, level=2)
    assert [s.path for s in plan.segments] == ["layers.0", "layers.1"]


@pytest.mark.parametrize("wish", [{"level": 4}, {"budget": 9000}])
def test_a_module_that_is_called_twice_is_one_target(wish, cheap):
    class Twice(nnx.Module):
        def __init__(self):
            self.block, self.last = Block(nnx.Rngs(0)), Block(nnx.Rngs(1))
            self.again = self.block

        def __call__(self, x):
            return self.last(self.again(self.block(x)))

    net = Twice()
    plan = plan_of(net, **wish)
    paths = [s.path for s in plan.segments]
    assert len(paths) == len(set(paths)) <= 2
    planned = apply_plan(net, plan)
    assert planned.again is planned.block
    for one, two in zip(nnx.state(net), nnx.state(planned)):
        assert one == two


@pytest.mark.parametrize("level", [2, 4])
def test_a_split_of_a_sequential_with_a_repeated_layer(level, cheap):
    block = Block(nnx.Rngs(0))

    class Net(nnx.Module):
        def __init__(self):
            self.body = snn.layer.Sequential(block, block)

        def __call__(self, x):
            return self.body(x)

    plan = plan_of(Net(), snn.layer.Sequential, level=level)
    paths = [s.path for s in plan.segments]
    assert len(paths) == len(set(paths))


def test_of_nested_targets_the_outermost_is_searched(cheap):
    plan = plan_of(chain(Residual, n=2), (Block, Residual), level=4)
    assert plan.candidates == ("layers.0", "layers.1")
    assert {s.path for s in plan.segments} <= set(plan.candidates)


def test_the_model_itself_may_be_the_target(cheap):
    plan = plan_of(chain(n=2), snn.layer.Sequential, level=4)
    assert plan.candidates == ("",)
    apply_plan(chain(n=2), plan)
