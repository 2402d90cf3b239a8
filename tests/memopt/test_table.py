"""Estimates of a step on invented cost tables, against a simulation."""

import pytest
from cost_tables import row, tables
from hypothesis import given, settings
from hypothesis import strategies as st

from snnjax.memopt._table import PLAIN, SPLIT, Table, estimate


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
