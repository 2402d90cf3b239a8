"""The tutorial's climb: one level after the other, one move at a time.

Algorithm 2 of Huang et al., ICLR 2026: at each level the segment that owns the peak is
changed, and the change is kept if the peak falls. It sees a `Table` and nothing else.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

from ._table import (
    GC,
    PLAIN,
    SPLIT,
    Choice,
    Choices,
    Estimate,
    Table,
    estimate,
    with_choice,
)

Evaluate = Callable[[Choices], Estimate]


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
    evaluate = functools.partial(estimate, table)
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
            better = [(evaluate(with_choice(choices, row, o)), o) for o in options]
            after, option = min(better, key=lambda b: (b[0].peak, b[0].seconds))
            kept = after.peak < now.peak
            new = with_choice(choices, row, option)
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
        new = with_choice(choices, row, PLAIN)
        after = evaluate(new)
        kept = after.peak <= now.peak
        yield Trial("restore", new, row, after.peak, after.seconds, kept)
        if kept:
            choices, now = new, after
