"""How a peak of memory grows with the time steps, or with the depth."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._axes import MARKERS, axes, color, finish, mebibytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def peak_over(
    lines: Mapping[str, Mapping[float, int]],
    ax: "Axes | None" = None,
    *,
    over: str = "time steps",
) -> "Axes":
    """Draws how the peak grows, one line a variant, named at its end.

    Args:
        lines: by the name of the variant, then of the number of time steps, or of
            layers, or of anything: peak bytes.
        ax: matplotlib axes to draw on; `None` makes a new figure.
        over: what the number is, the label of the horizontal axis.

    Returns:
        The axes, in MiB.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: nothing to draw; bytes that are no number from 0 up.
    """
    points = {name: _points(name, line) for name, line in lines.items()}
    if not points:
        raise ValueError(
            "`lines` is empty; pass at least one, such as "
            '{"plain": {4: 100_000_000, 8: 200_000_000}}.'
        )
    ax = axes(ax)
    for i, (name, (x, y)) in enumerate(points.items()):
        marker = MARKERS[i % len(MARKERS)]
        ax.plot(x, y, marker=marker, markersize=5, color=color(i), label=name)
    ax.set(xlabel=over, ylabel="peak memory (MiB)")
    ax.set_xticks(sorted({value for x, _ in points.values() for value in x}))
    ax.set_ylim(0, 1.05 * max(max(y) for _, y in points.values()) or 1)
    finish(ax)
    _name_at_ends(ax, {name: (x[-1], y[-1]) for name, (x, y) in points.items()})
    return ax


def _points(name: str, line: Mapping[float, int]) -> tuple[list[float], list[float]]:
    if not line:
        raise ValueError(
            f"`lines[{name!r}]` has no points; pass at least one, such as "
            "{4: 100_000_000}."
        )
    x = sorted(line)
    return x, [mebibytes(line[value], f"lines[{name!r}][{value!r}]") for value in x]


def _name_at_ends(ax: "Axes", ends: dict[str, tuple[float, float]]) -> None:
    gap = 0.06 * ax.get_ylim()[1]
    lowest = 0.0
    for name, (x, y) in sorted(ends.items(), key=lambda end: end[1][1]):
        at = max(y, lowest)
        ax.annotate(
            name,
            (x, at),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=color(list(ends).index(name)),
            annotation_clip=False,
        )
        lowest = at + gap
