"""The exact optimum on invented cost tables, against brute force."""

import itertools
import math

from cost_tables import B2, B4, everything, row, tables
from hypothesis import given, settings
from hypothesis import strategies as st

from snnjax.memopt._optimum import fastest, pareto, smallest, tightened
from snnjax.memopt._table import GC, Table, estimate


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

    monkeypatch.setattr("snnjax.memopt._optimum.fastest", counted)
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
