"""The planner, given what it cannot plan, or may not cut."""

import itertools

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from models import WIDTH, Block, chain, loss
from planner import X, gradients, plan_of

import snnjax as snn
from snnjax import memopt
from snnjax.memopt import MeasureError, Plan, _optimize, apply_plan

# --- what goes wrong ------------------------------------------------------------------


def test_a_loss_that_is_not_a_number_is_planned_all_the_same(cheap):
    def broken(model, x):
        return model(x).sum() * jnp.nan

    assert plan_of(chain(n=2), loss=broken, level=4).planned_bytes > 0
    assert plan_of(chain(n=2), loss=broken, budget=10**6).segments == ()


@pytest.mark.parametrize(
    "wish", [{"level": 4}, {"budget": 9000}, {"profile": "memory"}]
)
def test_a_loss_that_is_no_scalar_is_refused_by_name(wish):
    with pytest.raises(ValueError, match="`loss`.*"):
        plan_of(chain(n=1), loss=lambda m, x: m(x), **wish)
    with pytest.raises(ValueError, match="`loss`"):
        plan_of(chain(n=1), loss=lambda m, x: m(x).sum(0), **wish)


def test_an_optimizer_that_was_not_made_is_refused():
    with pytest.raises(ValueError, match="`optimizer` is <function adam.*Call it"):
        plan_of(chain(n=1), optimizer=optax.adam)


@pytest.mark.parametrize("wish", [{"level": 4}, {"budget": 9000}])
def test_missing_wheels_are_an_import_error_of_every_search(wish, monkeypatch):
    def prepare_step(*_):
        raise ImportError("pip install it")

    monkeypatch.setattr(_optimize, "prepare_step", prepare_step)
    with pytest.raises(ImportError, match="pip install it"):
        plan_of(chain(n=1), **wish)


@pytest.mark.parametrize("device", ["gtx9", "RTX4091", ""])
@pytest.mark.parametrize("wish", [{"level": 4}, {"budget": 0.5}])
def test_an_unknown_device_is_refused_with_those_there_are(device, wish):
    with pytest.raises(ValueError, match="`device`") as error:
        plan_of(chain(n=1), device=device, **wish)
    assert all(name in str(error.value) for name in memopt.DEVICES)


WISHES = [{"level": 4}, {"profile": "memory"}, {"max_slowdown": 2.0}, {"budget": 6000}]


@pytest.mark.parametrize("wish", WISHES)
def test_a_candidate_that_does_not_compile_loses(wish, cheap, monkeypatch):
    honest, seen = _optimize.prepare_step, []

    def fails_once(net, *args):
        segments = [m for m in net.layers if isinstance(m, memopt.GCContainer)]
        shape = tuple(type(m).__name__ for m in net.layers)
        if segments and (not seen or seen == [shape]):
            seen[:] = [shape]
            raise MeasureError("RESOURCE_EXHAUSTED: out of memory")
        return honest(net, *args)

    monkeypatch.setattr(_optimize, "prepare_step", fails_once)
    plan = plan_of(chain(n=3), **wish)
    failed = [t for t in plan.trials if t.measured and t.peak_bytes is None]
    assert failed and "RESOURCE_EXHAUSTED" in failed[0].verdict
    assert plan.planned_bytes is not None
    assert Plan.from_json(plan.to_json()) == plan


def test_where_nothing_compiles_the_reason_is_given(monkeypatch):
    def fails(*args):
        raise MeasureError("the reason")

    monkeypatch.setattr(_optimize, "prepare_step", fails)
    net = chain(n=1)
    for wish in ({"level": 2}, {"max_slowdown": 2.0}):
        with pytest.raises(MeasureError, match="the reason"):
            plan_of(net, **wish)
    gradients(net)  # as it was


@pytest.mark.parametrize("wish", [{"level": 2}, {"level": 4}, {"max_slowdown": 1.5}])
def test_targets_that_the_loss_never_calls_are_no_error(wish, cheap, monkeypatch):
    class Idle(nnx.Module):
        def __init__(self):
            self.used, self.idle = snn.layer.Linear(8, 8, rngs=nnx.Rngs(0)), chain(n=2)

        def __call__(self, x):
            return self.used(x)

    calls, fastest = itertools.count(), _optimize.search.__globals__["fastest"]

    def counted(table, budget):
        assert next(calls) < 1000, "it goes on for ever"
        return fastest(table, budget)

    monkeypatch.setattr("snnjax.memopt._optimum.fastest", counted)
    plan = plan_of(Idle(), **wish)
    assert plan.planned_bytes is not None
    assert any("not met" in note for note in plan.notes)


@pytest.mark.parametrize("level", [1, 2])
def test_a_batch_may_begin_with_a_number(level, cheap):
    def scaled(model, scale, x):
        return loss(model, x) * scale

    plan = plan_of(chain(n=1), batch=(2.0, X), loss=scaled, level=level)
    assert plan.planned_bytes is not None


class Identity(nnx.Module):
    def __call__(self, x):
        return x


@pytest.mark.parametrize("wish", [{"level": 4}, {"max_slowdown": 1.5}])
def test_a_target_that_does_nothing_is_no_error(wish, cheap):
    plan = plan_of(snn.layer.Sequential(Identity(), Identity()), Identity, **wish)
    assert plan.planned_bytes is not None


@pytest.mark.parametrize("level", [1, 2])
def test_the_users_promotion_of_dtypes_holds_while_planning(level, cheap):
    """Candidates are traced in other threads, where a `with` of jax does not reach."""

    def mixed(model, x):
        return (model(x) + x.astype(jnp.bfloat16)).sum()

    with jax.numpy_dtype_promotion("standard"):
        plan = plan_of(chain(n=1), loss=mixed, level=level)
    assert plan.planned_bytes is not None
    assert all(t.peak_bytes is not None for t in plan.trials)


# --- models that refuse a move --------------------------------------------------------


class OverBatch(nnx.Module):
    """Each sample attends to the others."""

    def __init__(self, rngs):
        self.block = Block(rngs)

    def __call__(self, x):
        y = self.block(x)
        weights = jax.nn.softmax(jnp.einsum("tbc,tdc->tbd", y, y))
        return jnp.einsum("tbd,tdc->tbc", weights, y) + x


class OverTime(nnx.Module):
    """A convolution over time, both ways."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(WIDTH, WIDTH, (3,), rngs=rngs)
        self.neuron = snn.neuron.LIF(v_threshold=0.4)

    def __call__(self, x):
        y = self.conv(jnp.swapaxes(x, 0, 1))
        return self.neuron(jnp.swapaxes(y, 0, 1))


@pytest.mark.parametrize("cls, refused", [(OverBatch, "batch"), (OverTime, "time")])
@pytest.mark.parametrize("wish", [{"level": 3}, {"profile": "memory"}])
def test_a_block_that_refuses_chunks_is_offered_the_other_moves(
    cls, refused, wish, cheap
):
    net = snn.layer.Sequential(cls(nnx.Rngs(0)), cls(nnx.Rngs(1)))
    plan = plan_of(net, cls, **wish)
    cuts = {s.cut for s in plan.segments}
    assert refused not in cuts
    told = [n for n in plan.notes if f"{refused} chunks" in n]
    assert told and any("layers.0" in n for n in told)
    assert any(len(n.split(": ", 1)[1]) > 20 for n in told)
    other = {"batch": "time", "time": "batch"}[refused]
    if wish == {"level": 3} and not any(f"{other} chunks" in n for n in plan.notes):
        tried = {c for t in plan.trials for c in t.choices}
        assert any(c.startswith(other) for c in tried)
    apply_plan(net, plan)


def test_of_blocks_alike_the_note_names_the_first_and_counts_the_rest(cheap):
    net = snn.layer.Sequential(*(OverBatch(nnx.Rngs(i)) for i in range(3)))
    notes = [n for n in plan_of(net, OverBatch, level=3).notes if "chunks" in n]
    assert len(notes) == 1
    assert notes[0].startswith("layers.0 and 2 alike, batch chunks: ")
