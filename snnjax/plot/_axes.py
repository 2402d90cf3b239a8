"""What all pictures share: axes, colors, and sizes in MiB."""

import math
from typing import TYPE_CHECKING, Any

from .._extra import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIB = 2**20
# Okabe and Ito's palette, which color-blind readers can tell apart, dark colors first.
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
_DARK = COLORS[:3]


def axes(ax: "Axes | None", size: tuple[float, float] = (7.2, 4)) -> "Axes":
    """The axes that were given, or those of a new figure."""
    if ax is not None:
        return ax
    plt = optional("matplotlib.pyplot", "plot")
    return plt.subplots(figsize=size, layout="constrained")[1]


def color(i: int) -> str:
    """The i-th color; they start again after the last."""
    return COLORS[i % len(COLORS)]


def text_on(background: str) -> str:
    """A color that can be read on a color of the palette."""
    return "white" if background in _DARK else "black"


def mebibytes(size: Any, where: str) -> float:
    """Bytes as MiB.

    Args:
        size: a number of bytes.
        where: what the caller calls it.

    Raises:
        ValueError: it is no number from 0 up.
    """
    try:
        right = 0 <= size < math.inf
    except TypeError:
        right = False
    if not right:
        raise ValueError(
            f"`{where}` is {size!r}; allowed are bytes, a number from 0 up. Leave out "
            "what was not measured."
        )
    return size / _MIB


def in_words(mib: float) -> str:
    """Such as 1234 MiB, 45.6 MiB or 0.12 MiB."""
    if mib >= 1000:
        return f"{mib:.0f} MiB"
    return f"{mib:.1f} MiB" if mib >= 1 else f"{mib:.2g} MiB"


def finish(ax: "Axes", grid: Any = "y") -> None:
    """Takes away the lines that carry nothing, and adds a light grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis=grid, alpha=0.25)
    ax.set_axisbelow(True)
