"""Applying plans: the same model, segmented; a foreign plan is refused with reasons."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import Block, Residual, assert_same, chain, frames, loss, planned, values

import snnjax as snn
from snnjax import memopt
from snnjax.memopt import GCContainer, Plan


def kinds(net: nnx.Module) -> list[type]:
    return [type(m) for _, m in nnx.iter_graph(net) if isinstance(m, nnx.Module)]


def assert_refused(net: nnx.Module, plan: Plan, *words: str) -> None:
    """Refused by name, and nothing applied."""
    before, held = kinds(net), values(net)
    with pytest.raises(ValueError, match="`plan`.*another model") as error:
        memopt.apply_plan(net, plan)
    for word in words:
        assert word in str(error.value)
    assert kinds(net) == before
    assert_same(net, held, tolerance=0)


def test_a_saved_plan_makes_the_same_model(tmp_path):
    net, x = chain(n=2), frames()
    plan = planned(net, x)
    plan.save(tmp_path / "plan.json")
    # In another process the model is made anew, with other values.
    fresh = chain(n=2, seed=5)
    seg = memopt.apply_plan(fresh, Plan.load(tmp_path / "plan.json"))
    assert [type(b.x_compressor).__name__ for b in seg.layers] == [
        "NullSpikeCompressor",
        "BitSpikeCompressor",
    ]
    assert_same(nnx.grad(loss)(seg, x), nnx.grad(loss)(chain(n=2, seed=5), x))


def with_a_head() -> nnx.Module:
    head = nnx.Linear(8, 9, rngs=nnx.Rngs(0))
    return snn.layer.Sequential(*chain().layers, head)


@pytest.mark.parametrize(
    "other, words",
    [
        (lambda: chain(n=3), ["layers.2", "nothing in the plan"]),
        (lambda: chain(n=1), ["layers.1", "nothing in the model"]),
        (lambda: chain(Residual), ["layers.0.linear", "nothing in the model"]),
        (lambda: chain(dropout=0.5), ["layers.0.dropout"]),
        (with_a_head, ["layers.2.kernel", "[8,9]"]),
    ],
    ids=["longer", "shorter", "class", "dropout", "head"],
)
def test_a_plan_for_another_model_is_refused_with_what_differs(other, words):
    assert_refused(other(), planned(chain(), frames()), *words)


def test_a_plan_for_another_dtype_or_shape_is_refused():
    def net(width, dtype):
        r = nnx.Rngs(0)
        return snn.layer.Sequential(
            Block(r), nnx.Linear(8, width, param_dtype=dtype, rngs=r)
        )

    plan = planned(net(8, jnp.float32), frames())
    assert_refused(net(8, jnp.float16), plan, "layers.1.kernel", "float16", "float32")
    assert_refused(net(4, jnp.float32), plan, "layers.1.bias", "[4]", "[8]")


def test_a_long_list_of_differences_is_cut():
    with pytest.raises(ValueError) as error:
        memopt.apply_plan(chain(n=8), planned(chain(n=1), frames()))
    assert len(str(error.value).splitlines()) < 15 and "more" in str(error.value)


def test_a_plan_is_not_applied_twice():
    net = chain()
    plan = planned(net, frames())
    assert_refused(memopt.apply_plan(net, plan), plan, "GCContainer[Block]")


def test_one_model_takes_several_plans():
    """Each new model has the same Variables and its own segments."""
    net, x = chain(), frames()
    plan = planned(net, x)
    one = memopt.apply_plan(net, plan)
    none = memopt.apply_plan(net, dataclasses.replace(plan, segments=()))
    half = dataclasses.replace(plan, segments=plan.segments[1:])
    second = memopt.apply_plan(net, half)
    count = lambda m: sum(issubclass(k, GCContainer) for k in kinds(m))  # noqa: E731
    assert [count(m) for m in (net, one, none, second)] == [0, 2, 0, 1]
    kernel = lambda m: m.layers[1].linear.kernel  # noqa: E731
    assert kernel(one) is kernel(none) is kernel(second) is kernel(net)


def test_a_tied_module_stays_one_object():
    block = Block(nnx.Rngs(0))
    net = snn.layer.Sequential(block, block)
    seg = memopt.apply_plan(net, planned(net, frames()))
    assert seg.layers[0] is seg.layers[1] is not block
    assert isinstance(seg.layers[0], GCContainer)


def test_the_model_itself_can_be_the_segment():
    net, x = Block(nnx.Rngs(0)), frames()
    seg = memopt.apply_plan(net, planned(net, x))
    assert isinstance(seg, GCContainer) and isinstance(seg, Block)
    assert not isinstance(net, GCContainer)
    assert_same(nnx.grad(loss)(seg, x), nnx.grad(loss)(Block(nnx.Rngs(0)), x))


def test_a_plan_with_a_segment_that_is_not_there_is_refused():
    net, x = chain(), frames()
    plan = planned(net, x)
    lost = dataclasses.replace(plan.segments[0], path="layers.7")
    with pytest.raises(ValueError, match="layers.7"):
        memopt.apply_plan(net, dataclasses.replace(plan, segments=(lost,)))


def test_a_plan_with_an_unknown_compressor_is_refused():
    net, x = chain(), frames()
    plan = planned(net, x)
    odd = dataclasses.replace(plan.segments[0], compressor="ZipSpikeCompressor")
    before = kinds(net)
    with pytest.raises(ValueError, match="ZipSpikeCompressor.*BitSpikeCompressor"):
        memopt.apply_plan(net, dataclasses.replace(plan, segments=(odd,)))
    assert kinds(net) == before


@pytest.mark.parametrize("plan", ["plan.json", None, {}])
def test_what_is_no_plan_is_refused_by_name(plan):
    with pytest.raises(ValueError, match="`plan` is .*Plan"):
        memopt.apply_plan(chain(), plan)


def test_numbers_kept_in_variables_are_described():
    class Counting(nnx.Module):
        def __init__(self):
            self.steps = nnx.Variable(0)
            self.block = Block(nnx.Rngs(0))

        def __call__(self, x):
            return self.block(x)

    net, x = Counting(), frames()
    seg = memopt.apply_plan(net, planned(net, x))
    np.testing.assert_array_equal(seg(x), Counting()(x))


@pytest.mark.parametrize("net", [None, 3, Block])
def test_what_is_no_model_is_refused_by_name(net):
    plan = planned(chain(), frames())
    with pytest.raises(ValueError, match="`net` is of type .*nnx.Module"):
        memopt.apply_plan(net, plan)
    with pytest.raises(ValueError, match="`net` is of type .*nnx.Module"):
        memopt.verify(net, plan, (jnp.ones(frames().shape),))
