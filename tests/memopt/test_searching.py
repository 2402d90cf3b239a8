"""Searches for a budget or a slowdown on invented cost tables: no jax, no compiler."""

import dataclasses
import itertools
import math
import os
import threading
import time
import zlib

import pytest
from cost_tables import (
    B2F,
    B8,
    T2,
    TWO,
    Measured,
    costs,
    everything,
    row,
    tables,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from snnjax.memopt import MeasureError, _searching
from snnjax.memopt._climb import climb, result
from snnjax.memopt._contest import Contest
from snnjax.memopt._optimum import fastest, smallest
from snnjax.memopt._options import Options
from snnjax.memopt._plan import in_bytes
from snnjax.memopt._searching import BudgetError, chosen_rows, in_words, search
from snnjax.memopt._table import (
    GC,
    PLAIN,
    Cost,
    Row,
    Table,
    estimate,
)


def searched(table, measure, batch_size=8, **options):
    options = {"level": 4, "climbs": False, "compiles": 4} | options
    return search(table, Options(**options), measure, batch_size)


@pytest.fixture
def patient(monkeypatch):
    """Fails a search that goes on for ever, instead of waiting."""
    run, calls = Contest.run, itertools.count()

    def counted(self, proposals):
        assert next(calls) < 100, "the search goes on for ever"
        return run(self, proposals)

    monkeypatch.setattr(Contest, "run", counted)


def like(table, scale, noise=0.0):
    """Peaks as a multiple of the table's moving bytes, each off by up to `noise`."""

    def measure(choices):
        moving = estimate(table, choices).peak - table.fixed
        off = zlib.crc32(repr(choices).encode()) / 2**32 * 2 - 1
        return table.fixed + round(moving * scale * (1 + noise * off))

    return measure


@st.composite
def trainings(draw):
    """Tables whose rows offer plain and GC, in kilobytes."""
    table = draw(tables(rows=4, choices=5))
    rows = []
    for r in table.rows:
        offered = dict(r.costs)
        for c in (PLAIN, GC):
            offered.setdefault(c, draw(costs))
        kilo = tuple(
            (
                c,
                Cost(
                    1000 * k.saved,
                    1000 * k.forward,
                    1000 * k.backward + 1000,
                    k.seconds + 1,
                ),
            )
            for c, k in offered.items()
        )
        rows.append(Row(r.path, kilo, 1000 * r.gradients))
    return Table(tuple(rows), 1000 * table.fixed, table.seconds)


@settings(max_examples=60, deadline=None)
@given(trainings(), st.sampled_from([0.5, 0.7, 1.0, 1.5, 3.0]), st.integers(0, 60))
def test_a_budget_gives_the_fastest_plan_that_fits(table, scale, kilos):
    measure = Measured(like(table, scale))
    budget = table.fixed + int(scale * (1000 * kilos + 500))
    fitting = [
        estimate(table, c).seconds
        for c in everything(table)
        if measure.figures(c) <= budget
    ]
    try:
        found = searched(table, measure, budget=budget)
    except BudgetError as error:
        assert not fitting
        least = min(measure.figures(c) for c in everything(table))
        assert error.peak_bytes == least == measure.figures(error.smallest)
        assert in_bytes(least) in str(error)
        assert in_words(error.smallest) in str(error)
        assert "batch of" in str(error)
    else:
        assert found.peak_bytes == measure.figures(found.choices) <= budget
        assert estimate(table, found.choices).seconds == min(fitting)
    assert len(measure.calls) <= 5 and len(set(measure.calls)) == len(measure.calls)


@settings(max_examples=60, deadline=None)
@given(trainings(), st.sampled_from([0.5, 0.7, 1.5, 3.0]), st.integers(0, 60))
def test_a_noisy_budget_fits_or_says_so(table, scale, kilos):
    measure = Measured(like(table, scale, noise=0.3))
    budget = table.fixed + int(scale * (1000 * kilos + 500))
    try:
        found = searched(table, measure, budget=budget)
    except BudgetError as error:
        measured = {c: measure.figures(c) for c in measure.calls}
        assert error.peak_bytes == min(measured.values()) > budget
        assert measured[error.smallest] == error.peak_bytes
        # The smallest by the table's own account was looked at before giving up.
        least = estimate(table, smallest(table, math.inf)).peak
        assert min(estimate(table, c).peak for c in measured) == least
    else:
        assert found.peak_bytes == measure.figures(found.choices) <= budget
    assert len(measure.calls) <= 5 and len(set(measure.calls)) == len(measure.calls)


# A chain of four alike: plain keeps 100 each, GC 10, chunks 10 and less in its pass.
CHAIN = Table(
    tuple(
        row(
            f"r{i}",
            plain=(100, 20, 40, 3.0),
            gc=(10, 40, 150, 4.0),
            b2=(10, 40, 75, 4.5),
            b4=(10, 40, 40, 5.0),
        )
        for i in range(4)
    ),
    fixed=1000,
)
EVERY = [estimate(CHAIN, c) for c in everything(CHAIN)]


@pytest.mark.parametrize("expensive", [1, 4])
def test_giving_up_names_the_smallest_there_is(expensive, patient):
    """However few compiles there are: what is refused must have been looked at."""
    measure = Measured(like(CHAIN, 3.0))
    with pytest.raises(BudgetError) as error:
        searched(CHAIN, measure, budget=1150, compiles=expensive)
    least = min(measure.figures(c) for c in everything(CHAIN))
    assert error.value.peak_bytes == least
    assert "batch 4 x4" in str(error.value)


@pytest.mark.parametrize("expensive", [1, 4])
def test_a_plan_that_fits_is_found_with_few_compiles(expensive):
    """The first guess is wrong by a factor of two; a smaller plan fits."""
    measure = Measured(like(CHAIN, 1.4))
    budget = 1000 + 200
    assert min(measure.figures(c) for c in everything(CHAIN)) <= budget
    found = searched(CHAIN, measure, budget=budget, compiles=expensive)
    assert found.peak_bytes <= budget


def test_a_budget_below_what_is_fixed_is_refused_without_compiling():
    measure = Measured(like(CHAIN, 1.0))
    held = dataclasses.replace(CHAIN, held=900)
    with pytest.raises(BudgetError, match="parameters, optimizer and batch") as error:
        searched(held, measure, budget=899)
    assert not measure.calls and isinstance(error.value, ValueError)


def test_no_batch_is_promised_where_none_fits():
    """What is held alone is more than the budget, or nearly."""
    for budget in (950, 1000, 1010):
        with pytest.raises(BudgetError) as error:
            searched(CHAIN, Measured(like(CHAIN, 1.0)), budget=budget)
        assert "batch of about 0" not in str(error.value)


def test_the_batch_that_would_fit_is_named():
    # Chunks in four: 1000 + 30 + 10 + 40 at the last; half of that moves in 40.
    with pytest.raises(BudgetError, match=r"batch of about 4 \(of 8\)") as error:
        searched(CHAIN, Measured(like(CHAIN, 1.0)), budget=1040)
    assert error.value.peak_bytes == 1080


def test_a_budget_that_plain_fits_leaves_all_plain():
    found = searched(CHAIN, Measured(like(CHAIN, 0.7)), budget=10**6)
    assert found.choices == (PLAIN,) * 4 and found.slowdown == 1.0
    assert found.plain_bytes == found.peak_bytes


def test_a_budget_and_a_slowdown_together():
    limit = 1.2
    for budget in range(1050, 1500, 50):
        fitting = [e for e in EVERY if e.peak <= budget and e.seconds <= 12 * limit]
        measure = Measured(like(CHAIN, 1.0))
        try:
            found = searched(CHAIN, measure, budget=budget, max_slowdown=limit)
        except BudgetError as error:
            assert not fitting
            assert "max_slowdown" in str(error) or "smallest peak" in str(error)
        else:
            assert found.peak_bytes <= budget and found.slowdown <= limit
            assert found.slowdown * 12 == pytest.approx(min(e.seconds for e in fitting))


@pytest.mark.parametrize("budget", [1100, 1200, 1300, 1400])
@pytest.mark.parametrize("broken", ["gc", "batch 4", "batch 2"])
def test_a_budget_where_some_do_not_compile(broken, budget, patient):
    """A failure counts as infinite, and the search goes on: it ends, at least."""

    def measure(choices):
        if any(str(c) == broken for c in choices):
            raise MeasureError(f"{broken} breaks")
        return like(CHAIN, 0.7)(choices)

    fitting = [
        c
        for c in everything(CHAIN)
        if broken not in map(str, c) and measure(c) <= budget
    ]
    try:
        found = searched(CHAIN, measure, budget=budget)
    except BudgetError:
        assert not fitting
    else:
        assert found.peak_bytes <= budget and broken not in map(str, found.choices)


def test_a_budget_where_only_plain_compiles_ends(patient):
    def measure(choices):
        if set(choices) != {PLAIN}:
            raise MeasureError("no segments here")
        return like(CHAIN, 0.7)(choices)

    with pytest.raises(BudgetError) as error:
        searched(CHAIN, measure, budget=1200)
    assert error.value.smallest == (PLAIN,) * 4


def test_a_budget_where_nothing_compiles_is_a_measure_error(patient):
    with pytest.raises(MeasureError, match="the reason"):
        searched(CHAIN, Measured(lambda c: MeasureError("the reason")), budget=1200)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_budget_at_a_lower_level_has_a_before_as_well(level):
    found = searched(CHAIN, Measured(like(CHAIN, 0.7)), budget=1500, level=level)
    assert found.plain_bytes == like(CHAIN, 0.7)((PLAIN,) * 4)


@pytest.mark.parametrize("limit", [1.0, 1.1, 1.2, 1.34, 1.5, 2.0])
def test_a_slowdown_gives_the_smallest_within_it(limit):
    found = searched(CHAIN, Measured(like(CHAIN, 0.7)), max_slowdown=limit)
    least = min(e.peak for e in EVERY if e.seconds <= 12 * limit)
    assert estimate(CHAIN, found.choices).peak == least
    assert found.slowdown <= limit
    assert found.plain_bytes == like(CHAIN, 0.7)((PLAIN,) * 4)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_slowdown_that_a_level_cannot_keep_is_not_passed_over(level):
    """Every target is a segment at level 1, and that takes 1.33."""
    try:
        found = searched(
            CHAIN, Measured(like(CHAIN, 0.7)), max_slowdown=1.05, level=level
        )
    except ValueError as error:
        assert "max_slowdown" in str(error)
    else:
        assert found.slowdown <= 1.05 or "max_slowdown" in " ".join(found.notes)


@pytest.mark.parametrize("options", [{"max_slowdown": 1.4}, {"budget": 1700}])
def test_what_is_measured_larger_than_plain_is_not_taken(options):
    """The table is wrong here: no segment saves a byte."""

    def measure(choices):
        return 1600 + 10 * sum(c != PLAIN for c in choices)

    found = searched(CHAIN, measure, **options)
    assert found.choices == (PLAIN,) * 4 and found.peak_bytes == 1600


def test_an_unbounded_search_finds_the_smallest():
    found = searched(CHAIN, Measured(like(CHAIN, 0.7)))
    assert estimate(CHAIN, found.choices).peak == min(e.peak for e in EVERY)


@pytest.mark.parametrize("level", range(1, 5))
def test_a_search_by_level_takes_what_the_climb_found(level):
    measure = Measured(like(TWO, 0.7))
    found = searched(TWO, measure, level=level, climbs=True, compiles=2)
    climbed = climb(TWO.only(Options(level=level).kinds) if level < 4 else TWO, level)
    assert found.choices == result(climbed)
    assert len(measure.calls) <= 3
    stages = [t.stage for t in found.trials if not t.measured]
    assert stages == [t.stage for t in climbed]
    taken = [t for t in found.trials if t.verdict == "taken"]
    assert [t.choices for t in taken] == [tuple(map(str, found.choices))]
    assert taken[0].measured and taken[0].peak_bytes == found.peak_bytes
    assert all(t.verdict for t in found.trials)


def test_a_trial_says_that_the_peak_falls_only_where_it_does():
    """Restoring keeps what leaves the peak as it is."""
    found = searched(TWO, Measured(like(TWO, 0.7)), climbs=True)
    before = None
    for trial in found.trials:
        if trial.measured:
            continue
        if before is not None and trial.verdict == "the peak falls":
            assert trial.peak_bytes < before, trial
        before = trial.peak_bytes if "falls" in trial.verdict else before


@pytest.mark.parametrize("options", [{"climbs": True}, {}, {"max_slowdown": 1.3}])
def test_a_failing_candidate_is_told_and_the_search_goes_on(options):
    first = []

    def measure(choices):
        if choices != (PLAIN,) * 4 and (not first or first[0] == choices):
            first.append(choices)
            raise MemoryError("does not fit")
        return like(CHAIN, 0.7)(choices)

    found = searched(CHAIN, measure, **options)
    failed = [t for t in found.trials if t.measured and t.peak_bytes is None]
    assert len(failed) == 1 and "does not fit" in failed[0].verdict
    assert found.peak_bytes is not None and found.choices != first[0]


def test_where_plain_does_not_compile_a_plan_is_found_all_the_same():
    def measure(choices):
        if choices == (PLAIN,) * 4:
            raise MemoryError("does not fit")
        return like(CHAIN, 0.7)(choices)

    for options in ({"climbs": True}, {}, {"budget": 1300}, {"max_slowdown": 1.3}):
        found = searched(CHAIN, measure, **options)
        assert found.plain_bytes is None and found.peak_bytes is not None


@pytest.mark.parametrize("options", [{"climbs": True}, {}, {"budget": 1110}])
def test_an_interrupted_search_gives_the_best_so_far(options):
    def measure(choices):
        if choices != (PLAIN,) * 4:
            raise KeyboardInterrupt
        return 1500

    try:
        found = searched(CHAIN, measure, **options)
    except ValueError as error:  # a budget was asked for: plain does not fit
        assert "budget" in options and "interrupted" in str(error)
    else:
        assert found.choices == (PLAIN,) * 4
        assert any("interrupted" in note for note in found.notes)


def test_an_interrupt_does_not_lose_what_was_measured_beside_it(monkeypatch):
    """Candidates are compiled side by side; the second is done before the first."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    first, done = smallest(CHAIN, math.inf), threading.Event()

    def compiled(choices):
        if choices == (PLAIN,) * 4:
            return 1500
        if choices == first:
            assert done.wait(10)
            time.sleep(0.05)  # for the other thread to hand its figure over
            raise KeyboardInterrupt
        done.set()
        return 1100

    def measure(choices):  # to compile is what runs in other threads
        return lambda: compiled(choices)

    found = searched(CHAIN, measure, compiles=2)
    assert found.peak_bytes == 1100
    assert any("interrupted" in note for note in found.notes)


@pytest.mark.parametrize("options", [{"climbs": True}, {}, {"budget": 10}])
def test_a_search_without_targets_ends(options, monkeypatch):
    calls = itertools.count()

    def counted(table, budget):
        assert next(calls) < 100, "it goes on for ever"
        return fastest(table, budget)

    monkeypatch.setattr("snnjax.memopt._optimum.fastest", counted)
    monkeypatch.setattr(_searching, "fastest", counted)
    found = searched(Table((), 7), Measured(lambda c: 9), **options)
    assert found.choices == () and found.peak_bytes == 9


def test_a_target_that_takes_no_time_is_no_error():
    nothing = Table((row("a", plain=(0, 0, 0, 0.0), gc=(4, 4, 4, 0.0)),), 7)
    for options in ({"climbs": True}, {}, {"budget": 99}, {"max_slowdown": 1.2}):
        found = searched(nothing, Measured(lambda c: 9), **options)
        assert found.peak_bytes == 9


def test_targets_that_save_most_for_a_second_are_chosen():
    table = Table(
        (
            row("a", plain=(100, 0, 0, 1.0), gc=(90, 0, 0, 2.0)),  # 10 for a second
            row("b", plain=(50, 0, 0, 1.0), gc=(10, 0, 0, 3.0)),  # 20
            row("c", plain=(50, 0, 0, 1.0), gc=(10, 0, 0, 2.0)),  # 40
            row("d", plain=(50, 0, 0, 1.0), gc=(60, 0, 0, 2.0)),  # -10
        )
    )
    for most, chosen in enumerate([set(), {2}, {1, 2}, {0, 1, 2}, {0, 1, 2, 3}]):
        assert chosen_rows(table, Options(most=most)) == chosen
    assert chosen_rows(table, Options(ratio=0.5)) == {1, 2}
    found = searched(table, Measured(lambda c: 9), climbs=True, level=1, most=2)
    assert found.choices in ((PLAIN, GC, GC, PLAIN), (PLAIN,) * 4)


@settings(max_examples=20, deadline=None)
@given(trainings(), st.integers(0, 3), st.integers(1, 4))
def test_no_more_targets_than_allowed_become_segments(table, most, level):
    found = searched(table, Measured(like(table, 0.7)), level=level, most=most)
    assert sum(c != PLAIN for c in found.choices) <= most


def test_choices_in_words():
    assert in_words((GC, B8, B8, B8, PLAIN)) == "gc, batch 8 x3, plain"
    assert in_words((B2F, T2)) == "batch 2 +, time 2"
    assert in_words(()) == ""


def test_the_same_search_finds_the_same():
    one, two = (searched(CHAIN, Measured(like(CHAIN, 0.9, 0.2))) for _ in range(2))
    assert one == two


def test_the_front_falls_from_plain():
    found = searched(CHAIN, Measured(like(CHAIN, 0.7)))
    assert found.front[0] == (pytest.approx(found.plain_bytes, rel=0.01), 1.0)
    for before, after in itertools.pairwise(found.front):
        assert after[0] < before[0] and after[1] > before[1]
