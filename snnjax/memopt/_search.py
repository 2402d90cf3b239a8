"""The search: the tutorial's levels, one move at a time, and the exact optimum.

`climb` is Algorithm 2 of Huang et al., ICLR 2026: at each level the segment that owns
the peak is changed, and the change is kept if the peak falls. `fastest` and
`smallest` solve the chain exactly, by dynamic programming over the kept bytes. Both
see a `Table` (`_table.py`) and nothing else.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator

from ._table import (
    GC,
    PLAIN,
    SPLIT,
    Choice,
    Choices,
    Cost,
    Estimate,
    Row,
    Table,
    estimate,
)

Evaluate = Callable[[Choices], Estimate]
_LONG = 12  # rows from which the front is coarse


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of one stage: rounds, and candidates that a round tries; None is no limit."""

    rounds: int | None = None
    candidates: int | None = None


@dataclasses.dataclass(frozen=True)
class Trial:
    """A plan that was looked at: the stage, what was changed, and whether it stayed."""

    stage: str
    choices: Choices
    changed: int | None
    peak: int
    seconds: float
    kept: bool


def climb(
    table: Table, level: int, factor: int = 2, limits: Limits = Limits()
) -> list[Trial]:
    """The levels one after the other; the last trial that was kept is the result.

    Args:
        table: every row must offer GC, and what the level is to try.
        level: 0 changes nothing; 1 makes every target a segment; 2 splits into parts; 3
            cuts into chunks; 4 makes targets plain again where the peak allows.
        factor: by which a number of chunks grows.
        limits: of the levels 2 and 3, each.
    """
    evaluate = _evaluated(table)
    wrapped = [GC if GC in row.choices else row.choices[0] for row in table.rows]
    if not level:
        wrapped = [PLAIN if PLAIN in r.choices else r.choices[0] for r in table.rows]
    start = tuple(wrapped)
    found = evaluate(start)
    trials = [Trial("wrap", start, None, found.peak, found.seconds, True)]
    stages = [
        ("split", _split),
        ("chunk", lambda t, c, i: _more_chunks(t, c, i, factor)),
    ]
    for number, (name, moves) in enumerate(stages, start=2):
        if level >= number:
            trials += _stage(name, table, evaluate, result(trials), moves, limits)
    if level >= 4:
        trials += _restore(table, evaluate, result(trials))
    return trials


def result(trials: list[Trial]) -> Choices:
    """What was kept last."""
    return [trial.choices for trial in trials if trial.kept][-1]


def _evaluated(table: Table) -> Evaluate:
    return lambda choices: estimate(table, choices)


def _split(table: Table, choices: Choices, row: int) -> Iterator[Choice]:
    if choices[row] == GC and SPLIT in table.rows[row].choices:
        yield SPLIT


def _more_chunks(
    table: Table, choices: Choices, row: int, factor: int
) -> Iterator[Choice]:
    """The next number of chunks of each kind, and the forward pass in chunks too."""
    now, offered = choices[row], table.rows[row].choices
    begins = now in (GC, SPLIT)
    for kind in ("batch", "time") if begins else (now.kind,):
        more = [
            c
            for c in offered
            if (c.kind, c.forward_by) == (kind, now.forward_by)
            and c.chunks >= (factor if begins else now.chunks * factor)
        ]
        largest = [c for c in offered if c.kind == kind and c.chunks > now.chunks]
        alike = [c for c in largest if c.forward_by == now.forward_by]
        yield from sorted(more or alike, key=lambda c: c.chunks)[:1]
    yield from (
        c
        for c in offered
        if (c.kind, c.chunks) == (now.kind, now.chunks)
        and c.forward_by != now.forward_by == "whole"
    )


def _stage(
    name: str,
    table: Table,
    evaluate: Evaluate,
    choices: Choices,
    moves: Callable[[Table, Choices, int], Iterator[Choice]],
    limits: Limits,
) -> Iterator[Trial]:
    """Changes the hottest target, the next where that does not help; strictly down."""
    now, blocked, rounds = evaluate(choices), set(), 0
    while limits.rounds is None or rounds < limits.rounds:
        rounds += 1
        tried = 0
        hottest = sorted(range(len(choices)), key=lambda i: (-now.heat[i], i))
        for row in hottest:
            options = list(moves(table, choices, row))
            if row in blocked or not options:
                continue
            if limits.candidates is not None and tried >= limits.candidates:
                return
            tried += 1
            better = [(evaluate(_with(choices, row, o)), o) for o in options]
            after, option = min(better, key=lambda b: (b[0].peak, b[0].seconds))
            kept = after.peak < now.peak
            new = _with(choices, row, option)
            yield Trial(name, new, row, after.peak, after.seconds, kept)
            if kept:
                choices, now, blocked = new, after, set()
                break
            blocked.add(row)
        else:
            return


def _restore(table: Table, evaluate: Evaluate, choices: Choices) -> Iterator[Trial]:
    """Makes targets plain, the slowest first, as long as the peak does not rise."""
    now = evaluate(choices)

    def slowness(row: int) -> tuple[float, int]:
        costs = table.rows[row]
        gain = costs.cost(choices[row]).seconds - costs.cost(PLAIN).seconds
        return -gain, row

    plain = [i for i, row in enumerate(table.rows) if PLAIN in row.choices]
    for row in sorted(plain, key=slowness):
        if choices[row] == PLAIN:
            continue
        new = _with(choices, row, PLAIN)
        after = evaluate(new)
        kept = after.peak <= now.peak
        yield Trial("restore", new, row, after.peak, after.seconds, kept)
        if kept:
            choices, now = new, after


def _with(choices: Choices, row: int, choice: Choice) -> Choices:
    return (*choices[:row], choice, *choices[row + 1 :])


# --- the exact optimum ----------------------------------------------------------------


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
            new = _with(choices, row, step)
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
