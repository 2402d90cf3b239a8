"""The contest of candidate plans on invented figures: no jax, no compiler."""

import itertools

import pytest
from cost_tables import PLAINS, TWO, Measured

from snnjax.memopt import MeasureError
from snnjax.memopt._contest import Contest
from snnjax.memopt._table import GC, PLAIN, SPLIT, estimate


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
