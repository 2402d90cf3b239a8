"""The planner's search on invented cost tables: no jax, no compiler."""

import dataclasses
import itertools
import math
import os
import threading
import time
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snnjax.memopt import MeasureError, _searching
from snnjax.memopt._contest import Contest
from snnjax.memopt._options import Options
from snnjax.memopt._plan import in_bytes
from snnjax.memopt._search import (
    Limits,
    climb,
    fastest,
    pareto,
    result,
    smallest,
    tightened,
)
from snnjax.memopt._searching import BudgetError, chosen_rows, in_words, search
from snnjax.memopt._table import (
    CURRENTS,
    GC,
    PLAIN,
    SPLIT,
    Choice,
    Cost,
    Row,
    Table,
    estimate,
)

KINDS = (PLAIN, GC, CURRENTS, SPLIT, Choice("time", 2))
B2, B4, B8 = (Choice("batch", k) for k in (2, 4, 8))
T2, T4 = (Choice("time", k) for k in (2, 4))
B2F, B4F = (Choice("batch", k, "chunks") for k in (2, 4))

costs = st.builds(
    Cost,
    saved=st.integers(0, 8),
    forward=st.integers(0, 8),
    backward=st.integers(0, 8),
    seconds=st.integers(0, 5).map(float),
)


@st.composite
def tables(draw, rows=5, choices=5):
    made = []
    for i in range(draw(st.integers(1, rows))):
        n = draw(st.integers(1, choices))
        offered = tuple((c, draw(costs)) for c in KINDS[:n])
        made.append(Row(f"r{i}", offered, draw(st.integers(0, 4))))
    # Large, so that a peak never ties with the fixed bytes alone.
    return Table(tuple(made), draw(st.integers(0, 20)), float(draw(st.integers(0, 9))))


def everything(table):
    """Every choice for every row."""
    return itertools.product(*(row.choices for row in table.rows))


def simulated(table, choices):
    """The step as it would run: what is alive at each moment."""
    costs = [row.cost(c) for row, c in zip(table.rows, choices, strict=True)]
    alive, moments = table.fixed, {i: [] for i in range(len(costs))}
    for i, cost in enumerate(costs):
        moments[i].append(alive + cost.forward)
        alive += cost.saved
    for i in reversed(range(len(costs))):
        moments[i].append(alive + costs[i].backward)  # what it kept is still there
        alive += table.rows[i].gradients - costs[i].saved
    heat = tuple(max(moments[i]) for i in range(len(costs)))
    return max(heat), table.seconds + sum(c.seconds for c in costs), heat


def row(path, gradients=0, **offered):
    """`gc=(saved, forward, backward, seconds)`; names as in `NAMES`."""
    named = tuple((NAMES[name], Cost(*cost)) for name, cost in offered.items())
    return Row(path, named, gradients)


NAMES = {"plain": PLAIN, "gc": GC, "currents": CURRENTS, "split": SPLIT}
NAMES |= {"b2": B2, "b4": B4, "b8": B8, "t2": T2, "t4": T4, "b2f": B2F, "b4f": B4F}


# --- the estimate ---------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(tables(), st.data())
def test_the_estimate_is_a_direct_simulation(table, data):
    choices = tuple(data.draw(st.sampled_from(r.choices)) for r in table.rows)
    came = estimate(table, choices)
    assert (came.peak, came.seconds, came.heat) == simulated(table, choices)


def test_the_estimate_by_hand():
    table = Table(
        (
            row("a", gradients=3, plain=(10, 4, 5, 1.0)),
            row("b", gradients=2, plain=(20, 1, 1, 2.0)),
        ),
        fixed=100,
        seconds=0.5,
    )
    came = estimate(table, (PLAIN, PLAIN))
    # a: forward 100 + 4; backward 100 + 10 + the gradients of b + 5.
    # b: forward 110 + 1; backward 130 + 1.
    assert came.heat == (117, 131)
    assert (came.peak, came.seconds) == (131, 3.5)


def test_an_estimate_of_too_few_choices_is_refused():
    table = Table((row("a", plain=(1, 1, 1, 1.0)),))
    with pytest.raises(ValueError):
        estimate(table, ())
    with pytest.raises(KeyError):
        estimate(table, (SPLIT,))


def test_a_step_without_targets_takes_what_is_fixed():
    assert estimate(Table((), 7, 2.0), ()).peak == 7
    assert estimate(Table((), 7, 2.0), ()).seconds == 2.0


# --- the exact optimum ----------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(tables(), st.integers(0, 70))
def test_fastest_is_the_fastest_of_all_that_fit(table, budget):
    fitting = [
        now.seconds
        for now in (estimate(table, c) for c in everything(table))
        if now.peak <= budget
    ]
    came = fastest(table, budget)
    if not fitting:
        assert came is None
    else:
        now = estimate(table, came)
        assert now.peak <= budget and now.seconds == min(fitting)


def brute_front(table):
    points = {
        (now.seconds, now.peak)
        for now in (estimate(table, c) for c in everything(table))
    }
    return sorted(
        p
        for p in points
        if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)
    )


@settings(max_examples=80, deadline=None)
@given(tables())
def test_pareto_is_every_best_trade_and_nothing_else(table):
    came = pareto(table)
    assert all(estimate(table, choices) == now for choices, now in came)
    assert [(now.seconds, now.peak) for _, now in came] == brute_front(table)


@settings(max_examples=80, deadline=None)
@given(tables(), st.integers(0, 30))
def test_smallest_is_the_smallest_of_all_within_the_time(table, seconds):
    everyone = [estimate(table, c) for c in everything(table)]
    within = [now.peak for now in everyone if now.seconds <= seconds]
    came = estimate(table, smallest(table, float(seconds)))
    if within:
        assert came.seconds <= seconds and came.peak == min(within)
    else:
        assert came.seconds == min(now.seconds for now in everyone)


def test_the_optimum_of_a_step_without_targets_ends(monkeypatch):
    """`pareto` asks `fastest` again and again until nothing fits."""
    calls = itertools.count()

    def counted(table, budget):
        assert next(calls) < 10, "it goes on for ever"
        return fastest(table, budget)

    monkeypatch.setattr("snnjax.memopt._search.fastest", counted)
    assert fastest(Table((), 10), 9) is None
    assert fastest(Table((), 10), 10) == ()
    assert [choices for choices, _ in pareto(Table((), 10))] == [()]


@settings(max_examples=80, deadline=None)
@given(tables(), st.integers(0, 30), st.data())
def test_tightening_keeps_within_the_time_and_never_raises_the_peak(
    table, seconds, data
):
    choices = tuple(data.draw(st.sampled_from(r.choices)) for r in table.rows)
    tight = tightened(table, choices, float(seconds))
    before, after = estimate(table, choices), estimate(table, tight)
    assert after.peak <= before.peak
    assert after.seconds <= max(seconds, before.seconds)
    if before.seconds > seconds and tight != choices:
        assert after.seconds <= seconds
    assert tightened(table, tight, float(seconds)) == tight
    for r, old, new in zip(table.rows, choices, tight):
        assert r.cost(new).saved <= r.cost(old).saved


def test_tightening_spends_the_time_that_is_left_where_it_is_hottest():
    table = Table(
        (
            row("a", gc=(0, 0, 50, 4.0), b2=(0, 0, 20, 5.0)),
            row("b", gc=(0, 0, 90, 4.0), b2=(0, 0, 40, 5.0), b4=(0, 0, 10, 6.0)),
        )
    )
    gc = (GC, GC)
    assert tightened(table, gc, 8.0) == gc
    assert tightened(table, gc, 9.0) == (GC, B2)
    assert tightened(table, gc, 10.0) == (B2, B2)  # then a is the hottest
    assert tightened(table, gc, 11.0) == (B2, B4)
    assert tightened(table, gc, math.inf) == (B2, B4)


# --- the climb ------------------------------------------------------------------------

TWO = Table(
    (
        # b is hot at first; its split helps, then a is hot and cannot be split.
        row("a", plain=(50, 5, 9, 3.0), gc=(5, 10, 60, 4.0)),
        row(
            "b",
            plain=(80, 5, 9, 3.0),
            gc=(5, 10, 90, 4.0),
            split=(5, 10, 40, 4.0),
        ),
        row("c", plain=(20, 5, 9, 6.0), gc=(5, 10, 30, 8.0), split=(7, 9, 35, 8.0)),
    ),
    fixed=1000,
)


def story(trials):
    return [(t.stage, t.choices, t.changed, t.peak, t.kept) for t in trials]


def test_level_0_is_plain():
    # a: 1050 + 9; b: 1130 + 9; c: 1150 + 9.
    assert story(climb(TWO, 0)) == [("wrap", (PLAIN,) * 3, None, 1159, True)]


def test_level_1_wraps_every_target():
    # a: 1005 + 60; b: 1010 + 90; c: 1015 + 30.
    assert story(climb(TWO, 1)) == [("wrap", (GC,) * 3, None, 1100, True)]


def test_level_2_splits_the_hottest_then_the_next_that_can_be_split():
    assert story(climb(TWO, 2)) == [
        ("wrap", (GC, GC, GC), None, 1100, True),
        ("split", (GC, SPLIT, GC), 1, 1065, True),  # a is hottest now: 1065
        # a cannot be split: the next that can is c, and that does not help.
        ("split", (GC, SPLIT, SPLIT), 2, 1065, False),
    ]
    assert result(climb(TWO, 2)) == (GC, SPLIT, GC)


def test_a_split_that_leaves_the_peak_is_not_kept():
    table = Table((row("a", gc=(1, 1, 9, 1.0), split=(1, 1, 9, 0.1)),))
    assert [t.kept for t in climb(table, 2)] == [True, False]
    assert result(climb(table, 2)) == (GC,)


HOT = Table(
    (
        # Splitting `a` alone leaves the peak to `b`; only after `b` does it help.
        row("a", gc=(0, 0, 90, 1.0), split=(0, 0, 10, 1.0)),
        row("b", gc=(0, 0, 90, 1.0), split=(0, 0, 50, 1.0)),
        row("c", gc=(0, 0, 70, 1.0), split=(0, 0, 60, 1.0)),
    )
)


def test_ties_go_to_the_first_and_two_that_are_equally_hot_block_each_other():
    assert story(climb(HOT, 2))[1:] == [
        ("split", (SPLIT, GC, GC), 0, 90, False),
        ("split", (GC, SPLIT, GC), 1, 90, False),
        ("split", (GC, GC, SPLIT), 2, 90, False),
    ]


def test_success_clears_what_was_blocked():
    table = Table(
        (
            row("a", gc=(0, 0, 100, 1.0), split=(20, 0, 40, 1.0)),
            row("b", gc=(0, 100, 85, 1.0), split=(0, 60, 30, 1.0)),
        )
    )
    # a and b both at 100. a split: b's forward is 20 + 100. b split: a stays at 100.
    assert story(climb(table, 2))[1:] == [
        ("split", (SPLIT, GC), 0, 120, False),
        ("split", (GC, SPLIT), 1, 100, False),
    ]
    # b does not help; a does; b is asked again.
    table = Table(
        (
            row("a", gc=(30, 0, 10, 1.0), split=(5, 0, 10, 1.0)),
            row("b", gc=(10, 0, 60, 1.0), split=(0, 0, 80, 1.0), b2=(0, 0, 1, 1.0)),
            row("c", gc=(0, 0, 55, 1.0)),
        )
    )
    # b: 30+10+60 = 100, c: 40+55 = 95, a: 40. b split: 110 in b.
    # a split: b 75, c 70. Then b again: 5 + 80 = 85, no better.
    assert story(climb(table, 2))[1:] == [
        ("split", (GC, SPLIT, GC), 1, 110, False),
        ("split", (SPLIT, GC, GC), 0, 75, True),
        ("split", (SPLIT, SPLIT, GC), 1, 85, False),
    ]


def test_rounds_and_candidates_are_limits():
    table = Table(
        tuple(row(n, gc=(0, 0, h, 1.0), split=(0, 0, 1, 1.0)) for n, h in ABC)
    )
    assert [t.changed for t in climb(table, 2)] == [None, 2, 1, 0]
    assert [t.changed for t in climb(table, 2, limits=Limits(rounds=2))] == [None, 2, 1]
    assert [t.changed for t in climb(table, 2, limits=Limits(rounds=0))] == [None]
    assert [t.changed for t in climb(table, 2, limits=Limits(candidates=0))] == [None]


ABC = (("a", 10), ("b", 20), ("c", 30))


def test_the_candidates_of_a_round_are_those_that_can_be_split():
    # c is hottest and cannot be split, so that it takes no one's place; b does not
    # help; a would.
    table = Table(
        (
            row("a", gc=(9, 0, 1, 1.0), split=(0, 0, 1, 1.0)),
            row("b", gc=(0, 0, 20, 1.0), split=(0, 0, 25, 1.0)),
            row("c", gc=(0, 0, 30, 1.0)),
        )
    )
    one = climb(table, 2, limits=Limits(candidates=1))
    assert [(t.changed, t.kept) for t in one] == [(None, True), (1, False)]
    two = climb(table, 2, limits=Limits(candidates=2))
    assert [(t.changed, t.kept) for t in two] == [
        (None, True),
        (1, False),
        (0, True),
        (1, False),
    ]


CHUNKS = Table(
    (
        row(
            "a",
            plain=(100, 1, 1, 3.0),
            gc=(1, 80, 100, 4.0),
            b2=(1, 80, 50, 5.0),
            b2f=(1, 40, 50, 6.0),
            b4=(1, 80, 25, 5.0),
            b4f=(1, 20, 25, 6.0),
            t2=(1, 80, 50, 6.0),
            t4=(1, 80, 25, 6.0),
        ),
    )
)


def test_level_3_grows_chunks_and_takes_the_forward_pass_too():
    assert story(climb(CHUNKS, 3)) == [
        ("wrap", (GC,), None, 101, True),
        ("chunk", (B2,), 0, 80, True),  # as small as t2, and faster
        ("chunk", (B2F,), 0, 51, True),  # 4 chunks alone would stay at 80
        ("chunk", (B4F,), 0, 26, True),
    ]


def test_the_limits_are_of_each_stage():
    assert len(climb(CHUNKS, 3, limits=Limits(rounds=1))) == 2
    assert len(climb(CHUNKS, 2)) == 1


def test_a_factor_of_four_skips_two():
    assert [t.choices for t in climb(CHUNKS, 3, factor=4)] == [(GC,), (B4,), (B4F,)]


def test_a_split_target_may_be_chunked_instead():
    table = Table(
        (
            row(
                "a",
                gc=(1, 1, 100, 4.0),
                split=(1, 1, 60, 4.0),
                b2=(1, 1, 50, 5.0),
                b4=(1, 1, 49, 5.0),
            ),
        )
    )
    assert [t.choices for t in climb(table, 3)] == [(GC,), (SPLIT,), (B2,), (B4,)]


@pytest.mark.parametrize("length, factor", [(3, 2), (10, 2), (6, 8), (3, 4), (5, 3)])
def test_the_climb_reaches_the_largest_number_of_chunks(length, factor):
    """Their numbers are clamped to the length: 10 steps in 2, 4, 5, 10 chunks."""
    from snnjax.memopt._cost import _chunkings

    offered = [c for c in _chunkings("time", length, factor) if c.forward_by == "whole"]
    row = Row(
        "a",
        (
            (GC, Cost(0, 0, 1000, 1.0)),
            *((c, Cost(0, 0, 1000 // c.chunks, 1.0)) for c in offered),
        ),
    )
    (last,) = result(climb(Table((row,)), 3, factor))
    assert last.chunks == length


def test_level_4_makes_plain_what_may_be_by_descending_gain():
    table = Table(
        (
            row("a", plain=(9, 0, 0, 3.0), gc=(1, 0, 9, 4.0)),  # gains 1
            row("b", plain=(9, 0, 0, 1.0), gc=(1, 0, 9, 4.0)),  # 3
            row("c", plain=(9, 0, 0, 2.0), gc=(1, 0, 9, 4.0)),  # 2
            row("d", plain=(9, 0, 0, 2.0), gc=(1, 0, 9, 4.0)),  # 2, but later
            row("e", gc=(1, 0, 19, 4.0)),  # cannot be plain
        )
    )
    # e is at 4 + 1 + 19 = 24. Each plain one adds 8.
    assert story(climb(table, 4)) == [
        ("wrap", (GC,) * 5, None, 24, True),
        ("restore", (GC, PLAIN, GC, GC, GC), 1, 32, False),
        ("restore", (GC, GC, PLAIN, GC, GC), 2, 32, False),
        ("restore", (GC, GC, GC, PLAIN, GC), 3, 32, False),
        ("restore", (PLAIN, GC, GC, GC, GC), 0, 32, False),
    ]


def test_restoring_may_leave_the_peak_as_it_is_or_lower_it():
    table = Table(
        (
            row("a", plain=(1, 0, 5, 3.0), gc=(1, 0, 9, 4.0)),
            row("b", plain=(9, 0, 0, 1.0), gc=(1, 0, 50, 4.0)),
        )
    )
    assert story(climb(table, 4)) == [
        ("wrap", (GC, GC), None, 52, True),
        ("restore", (GC, PLAIN), 1, 10, True),
        ("restore", (PLAIN, PLAIN), 0, 10, True),
    ]


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(0, 4), st.integers(1, 3))
def test_every_climb_falls_strictly_and_ends(table, level, rounds):
    trials = climb(table, level, limits=Limits(rounds, 2))
    kept = [t for t in trials if t.kept]
    for before, after in itertools.pairwise(kept):
        rises = after.peak > before.peak
        assert not rises and (after.stage == "restore" or after.peak < before.peak)
    assert all(estimate(table, t.choices).peak == t.peak for t in trials)
    for stage in ("split", "chunk"):
        assert sum(t.kept for t in trials if t.stage == stage) <= rounds


# --- the contest ----------------------------------------------------------------------

PLAINS = (PLAIN,) * 3


class Measured:
    """A measure of invented figures that remembers its calls."""

    def __init__(self, figures):
        self.figures, self.calls = figures, []

    def __call__(self, choices):
        self.calls.append(choices)
        figure = self.figures(choices) if callable(self.figures) else None
        figure = self.figures[choices] if figure is None else figure
        if isinstance(figure, BaseException):
            raise figure
        return figure


def contest(figures, compiles=9):
    measure = Measured(figures)
    return Contest(TWO, measure, estimate(TWO, PLAINS).seconds, compiles), measure


def test_each_plan_is_measured_once():
    one, measure = contest(lambda c: 5000)
    came = one.run([PLAINS, (GC,) * 3, PLAINS])
    assert [c.choices for c in came] == [PLAINS, (GC,) * 3]
    assert [c.choices for c in one.run([(GC,) * 3, (GC, GC, SPLIT)])] == [
        (GC,) * 3,
        (GC, GC, SPLIT),
    ]
    assert sorted(map(str, measure.calls)) == sorted(
        map(str, [PLAINS, (GC,) * 3, (GC, GC, SPLIT)])
    )
    assert one.left == 6


def test_no_more_is_compiled_than_may_be():
    one, measure = contest(lambda c: 5000, compiles=2)
    came = one.run(list(itertools.product((PLAIN, GC), repeat=3)))
    assert len(came) == len(measure.calls) == 2 and one.left == 0
    assert one.run([(GC, GC, SPLIT)]) == [] and len(measure.calls) == 2
    none, measure = contest(lambda c: 5000, compiles=0)
    assert none.run([PLAINS]) == [] == measure.calls


@pytest.mark.parametrize("error", [MeasureError("no"), MemoryError("oom"), KeyError(3)])
def test_a_failure_counts_as_infinite(error):
    wrapped = (GC,) * 3
    one, _ = contest({PLAINS: 5000, wrapped: error})
    failed = one.run([wrapped, PLAINS])[0]
    assert failed.peak is None and failed.why.startswith("not compiled")
    assert one.smallest().choices == PLAINS
    assert one.smallest(but=PLAINS) is None
    assert one.fastest_within(10**12).choices == PLAINS
    assert one.fastest_within(4999) is None


def test_of_equals_the_faster_or_the_smaller_is_taken():
    wrapped, split = (GC,) * 3, (GC, SPLIT, GC)
    one, _ = contest({PLAINS: 100, wrapped: 100, split: 90})
    one.run([wrapped, PLAINS, split])
    assert one.smallest(but=split).choices == PLAINS  # faster than all segments
    assert one.fastest_within(100).choices == PLAINS
    assert one.fastest_within(95).choices == split


def test_the_scale_is_of_the_moving_bytes():
    one, _ = contest(lambda c: 1000 + (estimate(TWO, c).peak - 1000) // 2)
    assert 0 < one.scale < 1  # a prior
    one.run([(GC,) * 3])
    assert one.scale == pytest.approx(0.5)
    assert one.scaled(1050) == 1100


def test_a_measured_peak_below_what_is_fixed_does_no_harm():
    one, _ = contest(lambda c: 10)
    one.run([PLAINS])
    assert one.scale > 0 and one.scaled(1050) >= 1050


def test_when_nothing_compiles_the_reasons_are_given():
    one, _ = contest(lambda c: MeasureError("the reason"))
    one.run([PLAINS, (GC,) * 3])
    assert one.smallest() is None
    assert "the reason" in str(one.failure())
    assert str(one.failure()).count("the reason") == 1


def test_an_interrupt_keeps_what_was_measured():
    wrapped = (GC,) * 3
    one, measure = contest({PLAINS: 5000, wrapped: KeyboardInterrupt()})
    one.run([PLAINS])
    assert one.run([wrapped]) == [] and one.interrupted and one.left == 0
    assert one.smallest().choices == PLAINS
    one.run([(GC, GC, SPLIT)])
    assert measure.calls == [PLAINS, wrapped]


def test_an_interrupt_before_anything_was_measured_is_the_users():
    one, _ = contest(lambda c: KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        one.run([PLAINS])


# --- the search -----------------------------------------------------------------------


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

    monkeypatch.setattr("snnjax.memopt._search.fastest", counted)
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
