"""What a peak of memory consists of."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._axes import COLORS, axes, finish, in_words, mebibytes, text_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Parts that training cannot do without come first, in quiet colors.
_PARTS = (COLORS[1], COLORS[5], COLORS[4], COLORS[0], COLORS[2], COLORS[3])


def memory_breakdown(
    variants: Mapping[str, Mapping[str, int]], ax: "Axes | None" = None
) -> "Axes":
    """Draws what the peak of each variant consists of, as stacked bars.

        peak = sum of the parts

    A part keeps its color and its place from bar to bar; the sums stand at the ends.
    The legend is above the axes; `ax.set_title(..., pad=24)` leaves it its room.

    Args:
        variants: by the name of the variant, then of the part, such as "parameters and
            optimizer", "batch", "kept for backward", "the rest": bytes. A variant may
            lack a part.
        ax: matplotlib axes to draw on; `None` makes a new figure.

    Returns:
        The axes, in MiB.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: nothing to draw; bytes that are no number from 0 up.

    Source: figure 1 of Huang et al., ICLR 2026.
    """
    bars = {name: _parts(name, parts) for name, parts in variants.items()}
    if not bars:
        raise ValueError(
            "`variants` is empty; pass at least one bar, such as "
            '{"plain": {"parameters": 37_000_000, "activations": 790_000_000}}.'
        )
    ax = axes(ax, size=(7.2, 1.3 + 0.55 * len(bars)))
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    most = max(sum(bar.values()) for bar in bars.values())
    left = [0.0] * len(bars)
    for i, part in enumerate(parts):
        widths = [bar.get(part, 0.0) for bar in bars.values()]
        _draw_part(ax, part, left, widths, _PARTS[i % len(_PARTS)], 0.09 * most)
        left = [a + b for a, b in zip(left, widths)]
    for row, total in enumerate(left):
        _say_sum(ax, total, row)
    ax.set_yticks(range(len(bars)), labels=list(bars))
    ax.set_xlim(0, 1.17 * most or 1)  # room for the sums
    _label(ax, len(parts))
    return ax


def _parts(name: str, parts: Mapping[str, int]) -> dict[str, float]:
    if not parts:
        raise ValueError(
            f"`variants[{name!r}]` has no parts; pass at least one, such as "
            '{"activations": 790_000_000}.'
        )
    where = f"variants[{name!r}]"
    return {k: mebibytes(size, f"{where}[{k!r}]") for k, size in parts.items()}


def _draw_part(
    ax: "Axes",
    part: str,
    left: list[float],
    widths: list[float],
    fill: str,
    least: float,
) -> None:
    rows = range(len(widths))
    bars = ax.barh(
        rows,
        widths,
        left=left,
        height=0.62,
        color=fill,
        edgecolor="white",
        linewidth=0.5,
        label=part,
    )
    # A number only where there is room for it.
    labels = [f"{w:.0f}" if w > least else "" for w in widths]
    ax.bar_label(bars, labels, label_type="center", color=text_on(fill), fontsize=9)


def _say_sum(ax: "Axes", total: float, row: int) -> None:
    ax.annotate(
        in_words(total),
        (total, row),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontweight="bold",
    )


def _label(ax: "Axes", parts: int) -> None:
    ax.set_xlabel("peak memory (MiB)")
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()  # the first variant on top
    finish(ax, grid="x")
    ax.legend(
        frameon=False,
        ncols=min(parts, 4),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderpad=0,
        columnspacing=1.2,
        handlelength=1,
        handleheight=1,
    )
