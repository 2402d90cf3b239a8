"""The front of memory against time that a search found."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ._axes import COLORS, axes, finish, in_words, mebibytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class HasFront(Protocol):
    """Such as a `snnjax.memopt.Plan` that a search made.

    `pareto` gives pairs of peak bytes and slowdown; each of `trials` has `measured`,
    `peak_bytes`, `slowdown` and `verdict`.
    """

    def pareto(self) -> Sequence[tuple[int, float]]: ...

    @property
    def trials(self) -> Sequence[Any]: ...


def pareto(plan: HasFront, ax: "Axes | None" = None) -> "Axes":
    """Draws every best trade of memory against time, and the plans that were compiled.

    The line is the planner's estimate: at each time, the smallest peak that costs no
    more. Crosses have compiled bytes and estimated time; the plan taken has its size.

    Args:
        plan: from `memopt.make_plan` with a profile, a budget or a slowdown.
        ax: matplotlib axes to draw on; `None` makes a new figure.

    Returns:
        The axes, peaks in MiB over times of a step over plain's.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the plan was made without a search.
    """
    front = sorted(plan.pareto(), key=lambda trade: trade[1])
    if not front:
        raise ValueError(
            "`plan` has no front; make it with a `profile`, a `budget`, a "
            "`max_slowdown` or a `level` above 1."
        )
    ax = axes(ax)
    ax.step(
        [slowdown for _, slowdown in front],
        [mebibytes(peak, "plan.pareto()") for peak, _ in front],
        where="post",
        color=COLORS[1],
        label="best trades, estimated",
    )
    compiled = [t for t in plan.trials if t.measured and t.peak_bytes is not None]
    taken = [t for t in compiled if t.verdict == "taken"]
    _mark(ax, [t for t in compiled if t not in taken], "x", "compiled", "#555555")
    _mark(ax, taken, "o", "compiled and taken", COLORS[0])
    for trial in taken:
        _say(ax, trial)
    ax.set(xlabel="estimated time of a step over plain's", ylabel="peak memory (MiB)")
    ax.set_ylim(bottom=0)
    finish(ax)
    ax.legend(frameon=False)
    return ax


def _mark(ax: "Axes", trials: list[Any], marker: str, label: str, ink: str) -> None:
    if not trials:
        return
    x = [trial.slowdown for trial in trials]
    y = [mebibytes(trial.peak_bytes, "plan.trials") for trial in trials]
    ax.plot(x, y, marker, color=ink, label=label, markersize=7)


def _say(ax: "Axes", trial: Any) -> None:
    # Below and to the left, where no trade can be; the left edge has no room.
    peak = mebibytes(trial.peak_bytes, "plan.trials")
    first, last = ax.dataLim.intervalx
    side = "right" if trial.slowdown - first > 0.3 * (last - first) else "left"
    ax.annotate(
        f"{in_words(peak)}, {trial.slowdown:.2f}x",
        (trial.slowdown, peak),
        xytext=(-5 if side == "right" else 5, -15),
        textcoords="offset points",
        ha=side,
        color=COLORS[0],
        fontweight="bold",
    )
