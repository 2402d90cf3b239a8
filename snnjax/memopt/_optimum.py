"""The exact optimum of a `Table`, by dynamic programming over the kept bytes.

The fastest plan in a budget, the smallest in a time, and every best trade of the two.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterator

from ._table import Choice, Choices, Cost, Estimate, Row, Table, estimate, with_choice

_LONG = 12  # rows from which the front is coarse


@dataclasses.dataclass(frozen=True)
class _State:
    """Some rows decided: bytes kept, seconds spent, and the choices, last first."""

    saved: int
    seconds: float
    choice: Choice | None = None
    before: "_State | None" = None

    def choices(self) -> Choices:
        found, state = [], self
        while state is not None and state.choice is not None:
            found.append(state.choice)
            state = state.before
        return tuple(found[::-1])


_Step = tuple[int, float, Choice, _State]  # to be a state, if none beats it


def fastest(table: Table, budget: int) -> Choices | None:
    """The choices of least time whose peak is at most `budget`; None if none fit.

    Exact: of states with as many rows decided, one that keeps no more and takes no
    longer than another replaces it.
    """
    if table.fixed > budget:
        return None
    states = [_State(table.fixed, table.seconds)]
    gradients = sum(row.gradients for row in table.rows)
    for row in table.rows:
        gradients -= row.gradients
        alike = _alike(row, budget, gradients)
        states = _undominated([step for few in alike for step in _steps(states, few)])
    return min(states, key=lambda s: s.seconds).choices() if states else None


# A choice for a row: the most that may be kept before it, what it keeps, its seconds.
_Option = tuple[int, int, float, Choice]


def _alike(row: Row, budget: int, gradients: int) -> list[list[_Option]]:
    """The choices that keep as much as one another, the fastest first.

    Only those that fit behind more than all that are faster.
    """
    alike: dict[int, list[_Option]] = {}
    for choice, cost in sorted(row.costs, key=lambda c: c[1].seconds):
        held = max(cost.forward, cost.saved + gradients + cost.backward)
        few = alike.setdefault(cost.saved, [])
        if not few or few[-1][0] < budget - held:
            few.append((budget - held, cost.saved, cost.seconds, choice))
    return list(alike.values())


def _steps(states: list[_State], few: list[_Option]) -> Iterator[_Step]:
    """Each state, which are in order of bytes, with the fastest that fits behind it."""
    options = iter(few)
    option = next(options)
    for before in states:
        while before.saved > option[0]:
            option = next(options, None)
            if option is None:
                return
        _, saved, seconds, choice = option
        yield before.saved + saved, before.seconds + seconds, choice, before


def _undominated(reached: list[_Step]) -> list[_State]:
    """The states that none beats; of hundreds reached, only these are made."""
    kept: list[_State] = []
    for found in sorted(reached, key=operator.itemgetter(0, 1)):
        if not kept or found[1] < kept[-1].seconds:
            kept.append(_State(*found))
    return kept


@functools.lru_cache(maxsize=8)
def pareto(table: Table) -> tuple[tuple[Choices, Estimate], ...]:
    """Every best trade of peak against time, the fastest first.

    Of long chains, trades that differ by less than 1/64 in the peak are passed over;
    the smallest peak is always among them.
    """
    found: list[tuple[Choices, Estimate]] = []
    coarse = 1 / 64 if len(table.rows) > _LONG else 0.0
    choices = fastest(table, 2**62)
    while choices is not None:
        now = estimate(table, choices)
        if found and now.seconds <= found[-1][1].seconds:  # of equals the smallest
            found.pop()
        found.append((choices, now))
        choices = fastest(table, int(now.peak * (1 - coarse)) - 1)
        if choices is None and coarse:
            coarse, choices = 0.0, fastest(table, now.peak - 1)
    return tuple(found)


def smallest(table: Table, seconds: float) -> Choices:
    """The choices of least peak within `seconds`, or the fastest there are."""
    front = pareto(table)
    within = [choices for choices, now in front if now.seconds <= seconds]
    return within[-1] if within else front[0][0]


def tightened(table: Table, choices: Choices, seconds: float) -> Choices:
    """Choices that hold less in some rows, within the time; the peak does not rise.

    The table is a model. Where time is left, it buys room for its errors: the hottest
    rows first, the cheapest step down for each.
    """
    while True:
        now = estimate(table, choices)
        hottest = sorted(range(len(choices)), key=lambda i: (-now.heat[i], i))
        for row in hottest:
            step = _step_down(table, choices, row)
            if step is None:
                continue
            new = with_choice(choices, row, step)
            after = estimate(table, new)
            if after.seconds <= seconds and after.peak <= now.peak:
                choices = new
                break
        else:
            return choices


def _step_down(table: Table, choices: Choices, row: int) -> Choice | None:
    """The choice of least time that keeps and holds no more, and holds less."""
    now = table.rows[row].cost(choices[row])

    def holds(cost: Cost) -> tuple[int, int]:
        return max(cost.forward, cost.backward), cost.forward + cost.backward

    less = [
        (cost.seconds, *holds(cost), choice)
        for choice, cost in table.rows[row].costs
        if cost.saved <= now.saved and holds(cost) < holds(now)
    ]
    return min(less, key=lambda c: c[:3])[-1] if less else None
