"""The climb on invented cost tables: no jax, no compiler."""

import itertools

import pytest
from cost_tables import B2, B2F, B4, B4F, TWO, row, tables
from hypothesis import given, settings
from hypothesis import strategies as st

from snnjax.memopt._climb import Limits, climb, result
from snnjax.memopt._table import GC, PLAIN, SPLIT, Cost, Row, Table, estimate


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
