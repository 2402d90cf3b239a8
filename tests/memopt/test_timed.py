"""A plan's time, measured by running steps by turns."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from models import Block, chain, frames, loss

from snnjax import memopt

X = frames((3, 2, 8))


def test_a_slowdown_is_measured_where_there_are_values():
    net = chain()
    before = jax.tree.map(jnp.copy, nnx.state(net))
    plan = memopt.make_plan(net, (Block,), (X,), loss=loss, time_repeats=1)
    assert plan.timed and plan.slowdown > 0
    assert "measured time of a step" in str(plan)
    assert memopt.Plan.from_json(plan.to_json()) == plan
    same = jax.tree.map(lambda a, b: bool((a == b).all()), before, nnx.state(net))
    assert all(jax.tree.leaves(same))
    assert not plan.without(plan.segments[0].path).timed


@pytest.mark.parametrize("repeats", [-1, "3", 1.0, True])
def test_repeats_are_a_whole_number(repeats):
    with pytest.raises(ValueError, match="`time_repeats` is .*whole numbers from 0"):
        memopt.make_plan(chain(), (Block,), (X,), loss=loss, time_repeats=repeats)


def test_nothing_is_timed_without_a_batch():
    with pytest.raises(ValueError, match="`time_repeats` is 1"):
        memopt.make_plan(chain(), (Block,), None, time_repeats=1)


def test_nothing_runs_on_abstract_values():
    net = nnx.eval_shape(chain)
    with pytest.raises(ValueError, match="`time_repeats` is 2.*abstract"):
        memopt.make_plan(net, (Block,), (X,), loss=loss, time_repeats=2)
