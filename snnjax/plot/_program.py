"""The course of live memory over a compiled program."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .._extra import optional
from ._axes import axes, color, finish, in_words, mebibytes
from ._spans import Span, spans

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class HasLiveBytes(Protocol):
    """Such as `snnjax.memopt.measure(..., timeline=True).timeline`."""

    @property
    def live_bytes(self) -> Sequence[int]: ...


def memory_over_program(
    curves: Mapping[str, HasLiveBytes | Sequence[int]],
    ax: "Axes | None" = None,
    *,
    segments: Sequence[str] = (),
) -> "Axes":
    """Draws the live memory over a compiled program, one curve a variant.

    The programs differ in length, so the horizontal axis is the fraction of each. The
    peaks are marked with their sizes.

    With `segments`, the space under the curve is colored by the segment that is at
    work, forward and backward, in the colors of `viridis` from the first to the last
    name; what belongs to none stays white. A segment is found by the `jax.named_scope`
    around its call, which XLA keeps:

        for i, block in enumerate(self.blocks):
            with jax.named_scope(f"block{i}"):
                x = block(x)

    Args:
        curves: by name, live bytes after each instruction, or an object that has
            them as `live_bytes`.
        ax: matplotlib axes to draw on; `None` makes a new figure.
        segments: names of scopes, in the order of the forward pass. One curve only, of
            an object that has the `scopes` of its instructions, as a timeline does.

    Returns:
        The axes; `ax.figure.savefig("memory.png")` saves the picture.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: nothing to draw; bytes that are no number from 0 up; `segments` for
            several curves, for one without scopes, or none of which is in its scopes.

    Source: figure 3 of Huang et al., ICLR 2026, drawn over instructions, not seconds.
    """
    lines = {name: _line(name, curve) for name, curve in curves.items()}
    if not lines:
        raise ValueError(
            "`curves` is empty; pass at least one curve, such as "
            '{"plain": report.timeline}.'
        )
    stretches = _stretches(curves, segments) if segments else []
    ax = axes(ax)
    for i, (name, line) in enumerate(lines.items()):
        _draw(ax, name, line, "black" if segments else color(i), shaded=not segments)
    _label(ax)
    if segments:
        ((name, line),) = lines.items()
        _color_segments(ax, line, stretches, segments)
        _entitle(ax, name, segments)
    else:
        ax.legend(frameon=False)
    return ax


def _line(name: str, curve: HasLiveBytes | Sequence[int]) -> list[float]:
    live: Any = getattr(curve, "live_bytes", curve)
    where = f"curves[{name!r}]"
    line = [mebibytes(size, f"{where}[{i}]") for i, size in enumerate(live)]
    if not line:
        raise ValueError(
            f"`{where}` has no instructions; measure it with `timeline=True`."
        )
    return line


def _places(line: list[float]) -> list[float]:
    return [i / max(len(line) - 1, 1) for i in range(len(line))]


def _draw(ax: "Axes", name: str, line: list[float], ink: str, shaded: bool) -> None:
    x = _places(line)
    ax.plot(x, line, color=ink, linewidth=1.6, drawstyle="steps-post", label=name)
    if shaded:
        ax.fill_between(x, line, step="post", color=ink, alpha=0.12, linewidth=0)
    peak = max(line)
    at = x[line.index(peak)]
    ax.plot(at, peak, "o", color=ink, markersize=5)
    # Away from the nearer edge, so that the figure does not cut it off.
    side: dict[str, Any] = {"ha": "left", "xytext": (7, 4)}
    if at > 0.7:
        side = {"ha": "right", "xytext": (-7, 4)}
    ax.annotate(
        in_words(peak),
        (at, peak),
        textcoords="offset points",
        color=ink,
        fontweight="bold",
        # readable where another curve runs behind it
        bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1},
        **side,
    )


def _label(ax: "Axes") -> None:
    ax.set_xlabel("fraction of the compiled program")
    ax.set_ylabel("live memory (MiB)")
    ax.set_xlim(0, 1)
    together = ax.get_shared_y_axes().get_siblings(ax)  # of `plt.subplots(sharey=True)`
    highest = max(a.dataLim.ymax for a in together if a.has_data())
    ax.set_ylim(0, 1.15 * highest or 1)
    finish(ax)


def _stretches(curves: Mapping[str, Any], segments: Sequence[str]) -> list[Span]:
    if len(curves) > 1:
        raise ValueError(
            f"`segments` color one program; `curves` has {len(curves)}. Draw each on "
            "axes of its own, `plt.subplots(len(curves), sharey=True)`."
        )
    ((name, curve),) = curves.items()
    scopes = getattr(curve, "scopes", None)
    if scopes is None or len(scopes) != len(curve.live_bytes):
        raise ValueError(
            f"`curves[{name!r}]` has not a scope for each instruction, as `segments` "
            "need it; pass a timeline of `memopt.measure(..., timeline=True)`."
        )
    stretches = spans(scopes, segments)
    if not stretches:
        raise ValueError(
            f"`segments` are {', '.join(map(repr, segments))}, none of which is in the "
            f"scopes of `curves[{name!r}]`, such as {next(filter(None, scopes), '')!r}."
            " Call each block within `jax.named_scope(its name)`."
        )
    return stretches


def _color_segments(
    ax: "Axes", line: list[float], stretches: list[Span], segments: Sequence[str]
) -> None:
    inks = dict(zip(segments, _shades(len(segments))))
    x = [*_places(line), 1.0]
    for start, stop, name in stretches:
        y = [*line[start:stop], line[stop - 1]]
        within = x[start : stop + 1]
        ax.fill_between(within, y, step="post", color=inks[name], linewidth=0)
        if within[-1] - within[0] > 0.015:  # room for a letter
            _name_stretch(ax, name, (within[0] + within[-1]) / 2)


def _name_stretch(ax: "Axes", name: str, at: float) -> None:
    ax.annotate(
        name,
        (at, 1),
        xycoords=ax.get_xaxis_transform(),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        rotation=90 if len(name) > 2 else 0,
    )


def _entitle(ax: "Axes", name: str, segments: Sequence[str]) -> None:
    # Above the names of the stretches, which stand upright if they are long.
    longest = max(map(len, segments))
    ax.set_title(name, loc="left", fontsize=10, pad=6 * longest if longest > 2 else 14)


def _shades(count: int) -> list[Any]:
    matplotlib = optional("matplotlib", "plot")
    scale = matplotlib.colormaps["viridis"]
    return [scale(0.05 + 0.9 * i / max(count - 1, 1)) for i in range(count)]
