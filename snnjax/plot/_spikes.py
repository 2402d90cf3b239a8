"""Spikes and membrane potentials over time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._axes import COLORS, axes, color, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def raster(
    spikes: npt.ArrayLike, ax: "Axes | None" = None, *, sample: int | None = None
) -> "Axes":
    """Draws a stroke for every spike, neurons over time steps.

        a stroke at (t, n) where spikes[t, n] == 1

    Args:
        spikes: `[time, neurons]`, of 0 and 1 in any dtype; with `sample`,
            `[time, batch, ...]`, of which all axes behind the batch become neurons.
        ax: matplotlib axes to draw on; `None` makes a new figure.
        sample: which of the batch.

    Returns:
        The axes.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: another rank, no values, values that are no spikes, no such sample.
    """
    shown = _of_one_sample(spikes, "spikes", sample)
    _check_spikes(shown)
    time, neuron = np.nonzero(shown)
    ax = axes(ax)
    ax.vlines(time, neuron - 0.4, neuron + 0.4, color="black", linewidth=1)
    ax.set_ylim(-0.6, shown.shape[1] - 0.4)
    _label_time(ax, len(shown), "neuron")
    ax.locator_params(axis="y", integer=True)
    finish(ax, grid="x")
    return ax


def membrane(
    v: npt.ArrayLike,
    ax: "Axes | None" = None,
    *,
    spikes: npt.ArrayLike | None = None,
    v_threshold: float | None = 1.0,
    neurons: Sequence[int] | None = None,
    sample: int | None = None,
) -> "Axes":
    """Draws membrane potentials over time steps, one line a neuron.

    The threshold is a dashed line, and every spike a stroke above it, a row a neuron.
    A neuron fires where its charged potential reaches the threshold (`h[t]` of
    `snnjax.neuron`); `v[t]`, which `lif` returns, comes after the reset and is below.

    Args:
        v: `[time, neurons]`; with `sample`, `[time, batch, ...]`, of which all axes
            behind the batch become neurons.
        ax: matplotlib axes to draw on; `None` makes a new figure.
        spikes: of the shape of `v`, of 0 and 1; `None` marks none.
        v_threshold: where the line is, in the units of `v`; `None` draws none.
        neurons: which to draw, at most six; `None` is all.
        sample: which of the batch.

    Returns:
        The axes.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: another rank, no values, more than six neurons, `spikes` of another
            shape or values that are no spikes, no such sample or neuron.
    """
    traces = _of_one_sample(v, "v", sample).astype(float)
    fired = None if spikes is None else _fired(spikes, v, sample)
    shown = _which(traces.shape[1], neurons)
    ax = axes(ax)
    for i, n in enumerate(shown):
        ax.plot(traces[:, n], color=color(i), linewidth=1.4, label=f"neuron {n}")
    if v_threshold is not None:
        ax.axhline(v_threshold, color="black", linestyle="--", linewidth=1)
        _say(ax, "threshold", v_threshold)
    if fired is not None:
        _mark_spikes(ax, fired[:, shown])
    _label_time(ax, len(traces), "membrane potential")
    finish(ax, grid="x")
    if len(shown) > 1:
        ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return ax


def _of_one_sample(values: Any, name: str, sample: int | None) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 2 if sample is None else array.ndim < 2:
        raise ValueError(
            f"`{name}` has shape {array.shape} of rank {array.ndim}; allowed is [time, "
            "neurons], or [time, batch, ...] with `sample`, such as `sample=0`. One "
            "neuron alone needs a second axis, `x[:, None]`."
        )
    if not array.size:
        raise ValueError(
            f"`{name}` has shape {array.shape}, without a single value; pass at least "
            "one time step of one neuron."
        )
    return array if sample is None else _chosen(array, name, sample)


def _chosen(array: np.ndarray, name: str, sample: int) -> np.ndarray:
    count = array.shape[1]
    if not 0 <= sample < count:
        raise ValueError(
            f"`sample` is {sample}; allowed is 0 to {count - 1}, as `{name}` has shape "
            f"{array.shape}, [time, batch, ...]."
        )
    return array[:, sample].reshape(len(array), -1)


def _check_spikes(spikes: np.ndarray) -> None:
    others = spikes[(spikes != 0) & (spikes != 1)]
    if others.size:
        raise ValueError(
            f"`spikes` has values such as {others[0]}; allowed are 0 and 1. Membrane "
            "potentials are drawn by `membrane`; counts are spikes where `x > 0`."
        )


def _which(count: int, neurons: Sequence[int] | None) -> list[int]:
    shown = list(range(count) if neurons is None else neurons)
    if not 0 < len(shown) <= len(COLORS):
        raise ValueError(
            f"`v` has {len(shown)} neurons to draw; allowed are 1 to {len(COLORS)}, so "
            "that lines can be told apart. Choose some, `neurons=[0, 1]`."
        )
    missing = [n for n in shown if not 0 <= n < count]
    if missing:
        raise ValueError(
            f"`neurons` has {missing[0]}; allowed is 0 to {count - 1}, as `v` has "
            f"{count} neurons."
        )
    return shown


def _fired(spikes: Any, v: Any, sample: int | None) -> np.ndarray:
    if np.shape(spikes) != np.shape(v):
        raise ValueError(
            f"`spikes` has shape {np.shape(spikes)}; allowed is that of `v`, "
            f"{np.shape(v)}."
        )
    fired = _of_one_sample(spikes, "spikes", sample)
    _check_spikes(fired)
    return fired


def _mark_spikes(ax: "Axes", fired: np.ndarray) -> None:
    low, high = ax.get_ylim()
    row = 0.06 * (high - low)
    for n, one in enumerate(fired.T):
        middle = high + (n + 1) * row
        at = np.flatnonzero(one)
        ax.vlines(at, middle - 0.4 * row, middle + 0.4 * row, color=color(n))
    rows = fired.shape[1]
    _say(ax, "spikes", high + (rows + 1) / 2 * row)
    ax.set_ylim(low, high + (rows + 1) * row)


def _say(ax: "Axes", text: str, y: float) -> None:
    ax.annotate(
        text,
        (1, y),
        xycoords=ax.get_yaxis_transform(),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        annotation_clip=False,
    )


def _label_time(ax: "Axes", steps: int, ylabel: str) -> None:
    ax.set(xlabel="time step", ylabel=ylabel)
    ax.set_xlim(-0.5, steps - 0.5)
    ax.locator_params(axis="x", integer=True)
