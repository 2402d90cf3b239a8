"""The search of a plan: what it asks of the table, and what it has compiled.

By `level` alone it climbs as the tutorial does; with a preset, a budget or a slowdown
it solves the chain exactly. Either way the last word is the compiled step's.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

from ._climb import Trial as Climbed
from ._climb import climb, result
from ._contest import Candidate, Contest, Measure
from ._optimum import fastest, pareto, smallest, tightened
from ._options import Options
from ._plan import Trial, in_bytes
from ._table import GC, PLAIN, Choices, Table, estimate

_NEAR = 0.02  # of the peak: a preset gives no time for so little


class BudgetError(ValueError):
    """No plan fits; the message says what was reached.

    Args:
        message: for people.
        smallest: what every target became in the nearest plan.
        peak_bytes: its measured peak; None if it was not compiled.
    """

    def __init__(self, message: str, smallest: Choices, peak_bytes: int | None) -> None:
        super().__init__(message)
        self.smallest, self.peak_bytes = smallest, peak_bytes


@dataclasses.dataclass(frozen=True)
class Found:
    """The outcome of a search.

    Args:
        choices: for each row.
        plain_bytes, peak_bytes: measured.
        slowdown: estimated.
        trials: in the order in which they were looked at.
        front: estimated (bytes, slowdown), already scaled by what was measured.
        notes: what could not be done, and why.
    """

    choices: Choices
    plain_bytes: int | None
    peak_bytes: int | None
    slowdown: float
    trials: tuple[Trial, ...]
    front: tuple[tuple[int, float], ...]
    notes: tuple[str, ...]


def search(
    table: Table,
    options: Options,
    measure: Measure,
    batch_size: int | None = None,
) -> Found:
    """Finds what to make of each row.

    Args:
        table: of costs; each row offers PLAIN.
        options: what is wanted.
        measure: the peak of a whole step under some choices.
        batch_size: samples, to say how many would fit.

    Raises:
        BudgetError: nothing fits in the budget, or not within the slowdown.
    """
    plain = tuple(PLAIN for _ in table.rows)
    contest = Contest(
        table, measure, estimate(table, plain).seconds, options.compiles + 1
    )
    allowed = _allowed(table, options)
    climbed: list[Climbed] = []
    if options.climbs:
        climbed = climb(allowed, options.level, options.factor, options.limits)
        winner = _best(contest, [plain, result(climbed), climbed[0].choices])
    elif options.budget is not None:
        winner = _within_budget(contest, allowed, options, plain, batch_size)
    else:
        contest.run([plain, *_small_ones(allowed, options, contest)])
        preset = options.lenient and options.max_slowdown is not None
        winner = contest.smallest(slack=_NEAR if preset else 0.0)
    if winner is None:
        raise contest.failure()
    return _found(contest, table, winner, climbed, plain)


def _allowed(table: Table, options: Options) -> Table:
    """The table with what the level offers, for as many rows as may be segments."""
    kinds = options.kinds
    chosen = chosen_rows(table, options)
    rows = (
        row.only(kinds) if i in chosen else row.only(("plain",))
        for i, row in enumerate(table.rows)
    )
    return dataclasses.replace(table, rows=tuple(rows))


def chosen_rows(table: Table, options: Options) -> set[int]:
    """The rows that may become segments: those that save most for a second."""

    def worth(i: int) -> tuple[float, int]:
        plain, gc = (table.rows[i].cost(c) for c in (PLAIN, GC))
        extra = max(gc.seconds - plain.seconds, 1e-12)
        return -(plain.saved - gc.saved) / extra, i

    ranked = sorted(range(len(table.rows)), key=worth)
    return set(ranked[: options.most_of(len(ranked))])


def _small_ones(table: Table, options: Options, contest: Contest) -> list[Choices]:
    """The plans of smallest peak within the slowdown, the smallest first."""
    limit = math.inf if options.max_slowdown is None else options.max_slowdown
    seconds = limit * contest.plain_seconds if contest.plain_seconds else math.inf
    front = pareto(table)
    within = [choices for choices, now in front if now.seconds <= seconds]
    if not within and not options.lenient:
        choices, now = front[0]
        raise BudgetError(
            f"`max_slowdown` is {limit:g}; at level {options.level} the fastest plan, "
            f"{in_words(choices)}, takes {contest.slowdown(now.seconds):.2f} times as "
            "long as plain (estimated). Raise it, or allow level 4.",
            choices,
            None,
        )
    small = (within or [front[0][0]])[::-1]
    few = small[: max(contest.left, 1)]  # of a long chain there are hundreds
    return [c for s in few for c in (tightened(table, s, seconds), s)]


def _best(contest: Contest, proposals: Sequence[Choices]) -> Candidate | None:
    """The smallest measured; the plain step is there to compare with."""
    plain, *others = proposals
    contest.run([plain, *others])
    return contest.smallest(but=plain) or contest.smallest()


def _within_budget(
    contest: Contest,
    table: Table,
    options: Options,
    plain: Choices,
    batch_size: int | None,
) -> Candidate | None:
    budget = options.budget or 0
    if table.held > budget:
        raise BudgetError(
            f"`budget` is {in_bytes(budget)}, but parameters, optimizer and batch "
            f"alone take {in_bytes(table.held)}; no plan saves those.",
            plain,
            None,
        )
    first = fastest(table, contest.scaled(budget))
    contest.run([plain, *([first] if first else [])])
    while contest.left > 0:
        wanted = _untried(contest, table, budget)
        if wanted is None:
            break
        contest.run([wanted])
    fits = contest.fastest_within(budget)
    if fits is None and not contest.interrupted:
        least = tightened(table, smallest(table, math.inf), math.inf)
        contest.left = max(contest.left, 1)  # nothing is refused untried
        contest.run([least])
        fits = contest.fastest_within(budget)
    if contest.interrupted:
        return fits or contest.smallest()
    if fits is None:
        raise _too_small(contest, table, budget, batch_size)
    _check_time(fits, options)
    return fits


def _untried(contest: Contest, table: Table, budget: int) -> Choices | None:
    """The fastest plan to compile next, faster than what fits already."""
    limit, fits = contest.scaled(budget), contest.fastest_within(budget)
    wanted = fastest(table, limit)
    while wanted is not None and wanted in contest.tried:
        wanted = fastest(table, estimate(table, wanted).peak - 1)
    if wanted is None or fits is None:
        return wanted
    seconds = estimate(table, wanted).seconds
    return wanted if contest.slowdown(seconds) < fits.slowdown else None


def _check_time(fits: Candidate, options: Options) -> None:
    limit = options.max_slowdown
    if limit is not None and not options.lenient and fits.slowdown > limit:
        budget = in_bytes(options.budget or 0)
        raise BudgetError(
            f"`budget` is {budget} and `max_slowdown` {limit:g}; the fastest plan "
            f"that fits takes {fits.slowdown:.2f} times as long as plain (estimated). "
            "Raise one of them.",
            fits.choices,
            fits.peak,
        )


def _too_small(
    contest: Contest, table: Table, budget: int, batch_size: int | None
) -> Exception:
    best = contest.smallest()
    if best is None or best.peak is None:
        return contest.failure()
    moving = best.peak - table.fixed
    share = max(budget - table.fixed, 0) / max(moving, 1)
    fits = ""
    if batch_size is not None:
        most = int(batch_size * share)
        fits = f" A batch of about {most} (of {batch_size}) would fit, by estimate."
        if not most:
            fits = " By estimate not even a batch of one would fit."
    return BudgetError(
        f"`budget` is {in_bytes(budget)}; the smallest peak that was reached is "
        f"{in_bytes(best.peak)}, with {in_words(best.choices)}.{fits}",
        best.choices,
        best.peak,
    )


def _found(
    contest: Contest,
    table: Table,
    winner: Candidate,
    climbed: list[Climbed],
    plain: Choices,
) -> Found:
    scale = contest.scale

    def measured_like(peak: int) -> int:
        return table.fixed + int((peak - table.fixed) * scale)

    trials = [
        Trial(
            t.stage,
            None if t.changed is None else table.rows[t.changed].path,
            tuple(map(str, t.choices)),
            measured_like(t.peak),
            contest.slowdown(t.seconds),
            False,
            _verdict(t, before),
        )
        for t, before in zip(climbed, _bars(climbed))
    ]
    trials += [_trial(c, winner) for c in contest.tried.values()]
    front = [
        (measured_like(e.peak), contest.slowdown(e.seconds)) for _, e in pareto(table)
    ]
    measured = contest.tried.get(plain)
    notes = ("interrupted: the best plan so far",) if contest.interrupted else ()
    return Found(
        winner.choices,
        None if measured is None else measured.peak,
        winner.peak,
        winner.slowdown,
        tuple(trials),
        tuple(front),
        notes,
    )


def _bars(climbed: list[Climbed]) -> list[int]:
    """For each trial the peak that it had to beat."""
    bars, now = [], 2**62
    for trial in climbed:
        bars.append(now)
        now = trial.peak if trial.kept else now
    return bars


def _verdict(trial: Climbed, bar: int) -> str:
    if not trial.kept:
        return "no better"
    return "the peak falls" if trial.peak < bar else "the peak does not rise"


def _trial(candidate: Candidate, winner: Candidate) -> Trial:
    verdict = candidate.why[:300] or "measured, and lost"
    if candidate is winner:
        verdict = "taken"
    return Trial(
        "candidate",
        None,
        tuple(map(str, candidate.choices)),
        candidate.peak,
        candidate.slowdown,
        True,
        verdict,
    )


def in_words(choices: Choices) -> str:
    """Choices with repetitions counted: "gc, batch 8 x3, plain x2"."""
    groups = [(str(c), len(list(g))) for c, g in itertools.groupby(choices)]
    return ", ".join(name + (f" x{n}" if n > 1 else "") for name, n in groups)
