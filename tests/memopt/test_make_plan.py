"""The planner as a whole on tiny models: every preset and wish.

Most tests take what is kept from forward to backward for the peak, which needs no
compiler; the last ones compile.
"""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from models import WIDTH, Block, ConvBlock, Residual, chain, loss, values
from planner import WAYS, X, gradients, plan_of, without_compiling

import snnjax as snn
from snnjax.memopt import Plan, _optimize, _profile, apply_plan, residual_bytes
from snnjax.memopt._profile import Training
from snnjax.memopt._searching import BudgetError
from snnjax.memopt._table import PLAIN, estimate

# --- every way to ask -----------------------------------------------------------------


@pytest.fixture(scope="module")
def plain():
    return gradients(chain(n=3))


CHECKED = {}


LONG = ("exhaustive", "prefer speed", "prefer memory", "one round", "checkpoint")


@pytest.mark.parametrize(
    "way",
    [pytest.param(w, marks=[pytest.mark.slow] if w in LONG else []) for w in WAYS],
)
def test_every_plan_trains_as_the_plain_model_does(way, plain, cheap):
    net = chain(n=3)
    before, structure = values(net), str(nnx.graphdef(net))
    plan = plan_of(net, **WAYS[way])
    assert str(nnx.graphdef(net)) == structure
    for path, value in values(net).items():
        np.testing.assert_array_equal(value, before[path])
    planned = apply_plan(net, plan)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.plain_bytes is not None and plan.planned_bytes is not None
    assert plan.device == "cpu" and plan.candidates == tuple(
        f"layers.{i}" for i in range(3)
    )
    assert plan.planned_residual_bytes == residual_bytes(loss, planned, X)
    # The figures are of this very plan.
    held = _profile.held_bytes(net, Training(loss, optax.sgd(1e-2), (X,)))
    assert plan.planned_bytes == held + plan.planned_residual_bytes
    if plan.segments not in CHECKED:
        CHECKED[plan.segments] = gradients(planned)
    came = CHECKED[plan.segments]
    assert came.keys() == plain.keys()
    for path, want in plain.items():
        size = max(np.abs(want).max(initial=0), 1e-6)
        np.testing.assert_allclose(came[path], want, rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize("way", ["level 4", "slowdown"])
def test_the_same_plan_every_time(way, cheap):
    one, two = (plan_of(chain(n=3), **WAYS[way]) for _ in range(2))
    assert one == two and str(one) == str(two)


@pytest.mark.parametrize("budget", [6500, 7000, 9000, 12000])
def test_a_budget_is_kept(budget, cheap):
    plan = plan_of(chain(n=3), budget=budget)
    assert plan.planned_bytes <= budget
    assert len(cheap) <= 5


def test_a_budget_that_cannot_be_kept_names_the_best(cheap):
    least = plan_of(chain(n=3), profile="memory").planned_bytes
    with pytest.raises(BudgetError, match="smallest peak") as error:
        plan_of(chain(n=3), budget=least - 200)
    text = str(error.value)
    assert re.search("KiB|MiB", text) and "gc" in text.lower() or "batch" in text
    assert error.value.peak_bytes > 0 and len(error.value.smallest) == 3
    with pytest.raises(BudgetError, match="parameters, optimizer and batch"):
        plan_of(chain(n=3), budget="100 B")


@pytest.mark.parametrize("beside", [{"level": 0}, {"level": 1}, {"profile": "safe"}])
def test_a_budget_beside_a_low_level_is_never_passed_over(beside, cheap):
    try:
        plan = plan_of(chain(n=2), budget=1000, **beside)
    except ValueError as error:
        assert "budget" in str(error)
    else:
        assert plan.planned_bytes <= 1000


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_slowdown_beside_a_level_is_never_passed_over(level, cheap):
    try:
        plan = plan_of(chain(n=2), max_slowdown=1.01, level=level)
    except ValueError as error:
        assert "max_slowdown" in str(error)
    else:
        within = plan.slowdown is not None and plan.slowdown <= 1.01
        assert within or "max_slowdown" in " ".join(plan.notes)


@pytest.mark.parametrize("most", range(4))
@pytest.mark.parametrize("level", [1, 4])
def test_no_more_than_so_many_become_segments(most, level, cheap):
    plan = plan_of(chain(n=3), level=level, max_gc_wrapped_modules=most)
    assert len(plan.segments) <= most
    if level == 1:
        assert len(plan.segments) == most


def test_no_plan_of_the_table_is_better(monkeypatch):
    """Brute force over all choices of three blocks, peaks half the table's."""
    tables = []

    def half(table, choices):
        return table.fixed + (estimate(table, choices).peak - table.fixed) // 2

    def search(table, options, measure, batch_size):
        tables.append(table)
        return real(table, options, lambda c: half(table, c), batch_size)

    real = _optimize.search
    monkeypatch.setattr(_optimize, "search", search)
    net = chain(n=3)
    small = plan_of(net, max_slowdown=1.3)
    table = tables[0]
    every = list(itertools.product(*(r.choices for r in table.rows)))
    known = {c: estimate(table, c) for c in every}
    assert len(every) > 500
    unit = known[(PLAIN,) * 3].seconds
    within = [half(table, c) for c, e in known.items() if e.seconds <= 1.3 * unit]
    assert small.planned_bytes == min(within) and small.slowdown <= 1.3
    assert small.plain_bytes == half(table, (PLAIN,) * 3)
    least = min(half(table, c) for c in every)
    for share in (0.1, 0.4, 0.7):
        budget = int(least + share * (small.plain_bytes - least)) + 3
        fits = [e.seconds for c, e in known.items() if half(table, c) <= budget]
        plan = plan_of(net, budget=budget)
        assert plan.planned_bytes <= budget
        assert plan.slowdown * unit == pytest.approx(min(fits), rel=1e-6)
    with pytest.raises(BudgetError) as error:
        plan_of(net, budget=least - 1)
    assert error.value.peak_bytes == least


def test_a_slowdown_is_near_one_where_the_targets_are_few(cheap):
    """The rest of the model takes time as well, most of it here."""

    class Heavy(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.block = Block(rngs)
            self.up = snn.layer.Linear(WIDTH, 4096, rngs=rngs)
            self.down = snn.layer.Linear(4096, WIDTH, rngs=rngs)

        def __call__(self, x):
            return self.down(jnp.tanh(self.up(self.block(x))))

    plan = plan_of(nnx.eval_shape(Heavy), level=2)
    assert len(plan.segments) == 1
    assert 1.0 <= plan.slowdown < 1.1


# --- the plan as data -----------------------------------------------------------------


@pytest.fixture(scope="module")
def thorough():
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_compiling(monkeypatch)
        return plan_of(chain(n=3), profile="exhaustive")


def test_a_plan_with_trials_and_front_comes_back(thorough, tmp_path):
    assert thorough.trials and thorough.front and thorough.pareto() == thorough.front
    thorough.save(tmp_path / "plan.json")
    came = Plan.load(tmp_path / "plan.json")
    assert came == thorough and hash(came) == hash(thorough)
    assert str(came) == str(thorough)
    (tmp_path / "plan.json").write_text(
        thorough.to_json().replace('"taken"', '"not taken"', 1)
    )
    with pytest.raises(ValueError, match="changed after it was saved"):
        Plan.load(tmp_path / "plan.json")


def test_the_trials_say_what_was_measured_and_why_it_lost(thorough):
    measured = [t for t in thorough.trials if t.measured]
    assert 1 < len(measured) <= 7
    taken = [t for t in measured if t.verdict == "taken"]
    assert len(taken) == 1 and taken[0].peak_bytes == thorough.planned_bytes
    assert taken[0].slowdown == thorough.slowdown
    assert min(t.peak_bytes for t in measured) == thorough.planned_bytes
    assert all(t.verdict and len(t.choices) == 3 for t in measured)
    assert all(t.slowdown <= 1.35 for t in measured)


def test_the_front_has_only_best_trades(thorough):
    for before, after in itertools.pairwise(thorough.front):
        assert after[0] < before[0] and after[1] > before[1]
    assert thorough.front[0][1] == pytest.approx(1.0)


def test_a_plan_prints_its_segments_time_and_peak(thorough):
    text = str(thorough)
    for segment in thorough.segments:
        assert segment.path in text and segment.kind in text
    assert "estimated time of a step" in text and "peak of a training step" in text


def test_a_plan_is_refused_by_a_changed_model(thorough):
    with pytest.raises(ValueError, match="another model") as error:
        apply_plan(chain(n=2), thorough)
    assert "layers.2" in str(error.value)
    with pytest.raises(ValueError, match="another model"):
        apply_plan(chain(Residual, n=3), thorough)


# --- against the compiler -------------------------------------------------------------


def compiled_peak(net, plan, x):
    planned = apply_plan(net, plan, check_input=False)
    training = Training(loss, optax.sgd(1e-2), (x,))
    return _profile.measure_step(planned, training, None).peak_bytes


def test_a_real_budget_states_what_the_compiled_step_takes():
    net = chain(n=3)
    x = jax.ShapeDtypeStruct((8, 16, WIDTH), jnp.float32)
    plan = plan_of(net, batch=(x,), budget="40 KB")
    assert plan.segments and plan.planned_bytes <= 40_000 < plan.plain_bytes
    assert plan.planned_bytes == compiled_peak(net, plan, x)


def test_what_xla_saves_outside_of_the_targets_is_not_held_against_a_budget():
    """Elementwise functions keep nothing in XLA, though their derivative would."""

    class Tail(nnx.Module):
        def __init__(self):
            self.block = Block(nnx.Rngs(0))

        def __call__(self, x):
            y = self.block(x)
            for _ in range(12):
                y = jnp.sin(y)
            return y

    net, x = Tail(), jax.ShapeDtypeStruct((8, 64, WIDTH), jnp.float32)
    peak = compiled_peak(net, dataclasses.replace(plan_of(net, level=0)), x)
    assert plan_of(net, batch=(x,), budget=peak).planned_bytes <= peak


def ranks(numbers):
    return np.argsort(np.argsort(numbers))


def test_the_table_ranks_plans_as_the_compiler_does(monkeypatch):
    tables = []

    def search(table, options, measure, batch_size):
        tables.append((table, measure))
        return real(table, options, lambda c: estimate(table, c).peak, batch_size)

    real = _optimize.search
    monkeypatch.setattr(_optimize, "search", search)
    net, x = chain(ConvBlock), jax.ShapeDtypeStruct((4, 4, 8, 8, 4), jnp.float32)
    plan_of(net, ConvBlock, batch=(x,), max_slowdown=2.0)
    table, measure = tables[0]
    by_name = {str(c): c for c in table.rows[0].choices}
    words = [
        ("plain", "plain"),
        ("gc", "gc"),
        ("currents", "currents"),
        ("batch 2", "batch 2"),
        ("batch 4", "batch 4"),
        ("gc", "plain"),
        ("plain", "gc"),
        ("batch 4 +", "batch 4 +"),
    ]
    plans = [tuple(by_name[w] for w in names) for names in words]
    guessed = [estimate(table, c).peak for c in plans]
    compiled = [measure(c)() for c in plans]
    together = np.corrcoef(ranks(guessed), ranks(compiled))[0, 1]
    assert together > 0.7, list(zip(words, guessed, compiled))
