"""Pictures of memory; matplotlib is imported when one is drawn.

pip install "snnjax[plot]"
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ._extra import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIB = 2**20
# Okabe and Ito's palette, which color-blind readers can tell apart, dark colors first.
_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


class HasLiveBytes(Protocol):
    """Such as `snnjax.memopt.measure(..., timeline=True).timeline`."""

    @property
    def live_bytes(self) -> Sequence[int]: ...


def memory_over_program(
    curves: Mapping[str, HasLiveBytes | Sequence[int]], ax: "Axes | None" = None
) -> "Axes":
    """Draws the live memory over a compiled program, one curve a variant.

    The programs differ in length, so the horizontal axis is the fraction of each. The
    peaks are marked with their sizes.

    Args:
        curves: by name, live bytes after each instruction, or an object that has
            them as `live_bytes`.
        ax: matplotlib axes to draw on; `None` makes a new figure.

    Returns:
        The axes; `ax.figure.savefig("memory.png")` saves the picture.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: nothing to draw.

    Source: figure 3 of Huang et al., ICLR 2026, drawn over instructions, not seconds.
    """
    lines = {name: _mebibytes(name, curve) for name, curve in curves.items()}
    if not lines:
        raise ValueError(
            "`curves` is empty; pass at least one curve, such as "
            '{"plain": report.timeline}.'
        )
    ax = _new_axes() if ax is None else ax
    for i, (name, line) in enumerate(lines.items()):
        _draw(ax, name, line, _COLORS[i % len(_COLORS)])
    _label(ax)
    return ax


class HasFront(Protocol):
    """Such as a `snnjax.memopt.Plan` that a search made."""

    def pareto(self) -> Sequence[tuple[int, float]]: ...

    @property
    def trials(self) -> Sequence[Any]: ...


def pareto(plan: HasFront, ax: "Axes | None" = None) -> "Axes":
    """Draws every best trade of memory against time, and the plans that were compiled.

    The line is the planner's estimate; crosses have compiled bytes and estimated time.

    Args:
        plan: from `memopt.make_plan` with a profile, a budget or a slowdown.
        ax: matplotlib axes to draw on; `None` makes a new figure.

    Returns:
        The axes.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the plan was made without a search.
    """
    front = list(plan.pareto())
    if not front:
        raise ValueError(
            "`plan` has no front; make it with a `profile`, a `budget`, a "
            "`max_slowdown` or a `level` above 1."
        )
    ax = _new_axes() if ax is None else ax
    ax.step(
        [slowdown for _, slowdown in front],
        [peak / _MIB for peak, _ in front],
        where="post",
        color=_COLORS[1],
        label="best trades (estimated)",
    )
    measured = [t for t in plan.trials if t.measured and t.peak_bytes is not None]
    for taken in (False, True):
        shown = [t for t in measured if (t.verdict == "taken") == taken]
        ax.plot(
            [t.slowdown for t in shown],
            [t.peak_bytes / _MIB for t in shown],
            "o" if taken else "x",
            color=_COLORS[0],
            label="taken" if taken else "compiled",
        )
    ax.set(xlabel="estimated time of a step over plain", ylabel="peak (MiB)")
    ax.set_ylim(bottom=0)
    _finish(ax)
    return ax


def _mebibytes(name: str, curve: HasLiveBytes | Sequence[int]) -> list[float]:
    live: Any = getattr(curve, "live_bytes", curve)
    line = [size / _MIB for size in live]
    if not line:
        raise ValueError(
            f"`curves[{name!r}]` has no instructions; measure it with `timeline=True`."
        )
    return line


def _new_axes() -> "Axes":
    plt = optional("matplotlib.pyplot", "plot")
    return plt.subplots(figsize=(7.2, 4), layout="constrained")[1]


def _draw(ax: "Axes", name: str, line: list[float], color: str) -> None:
    n = len(line)
    x = [i / max(n - 1, 1) for i in range(n)]
    ax.plot(x, line, color=color, linewidth=1.6, drawstyle="steps-post", label=name)
    ax.fill_between(x, line, step="post", color=color, alpha=0.12, linewidth=0)
    peak = max(line)
    at = x[line.index(peak)]
    ax.plot(at, peak, "o", color=color, markersize=5)
    # Away from the nearer edge, so that the figure does not cut it off.
    side: dict[str, Any] = {"ha": "left", "xytext": (7, 4)}
    if at > 0.7:
        side = {"ha": "right", "xytext": (-7, 4)}
    ax.annotate(
        f"{peak:.1f} MiB" if peak >= 1 else f"{peak:.2g} MiB",
        (at, peak),
        textcoords="offset points",
        color=color,
        fontweight="bold",
        # readable where another curve runs behind it
        bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1},
        **side,
    )


def _label(ax: "Axes") -> None:
    ax.set_xlabel("fraction of the compiled program")
    ax.set_ylabel("live memory (MiB)")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.08 * ax.dataLim.ymax)
    _finish(ax)


def _finish(ax: "Axes") -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", alpha=0.25)
    ax.legend(frameon=False)
