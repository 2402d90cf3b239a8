"""Pictures: what the artists hold, read back, and errors."""

import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snnjax import memopt, neuron, plot
from snnjax.plot._spans import segment_of, spans

MIB = 2**20

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed_figures():
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


def searched(**changes):
    trial = SimpleNamespace(peak_bytes=3 * MIB, slowdown=1.5, measured=True, verdict="")
    fields = {
        "pareto": lambda: [(4 * MIB, 1.0), (2 * MIB, 1.5)],
        "trials": [
            trial,
            SimpleNamespace(**vars(trial) | {"verdict": "taken", "slowdown": 1.2}),
            SimpleNamespace(**vars(trial) | {"peak_bytes": None}),
            SimpleNamespace(**vars(trial) | {"measured": False}),
        ],
    }
    return SimpleNamespace(**fields | changes)


# --- all of them ----------------------------------------------------------------------

PICTURES = {
    "memory_breakdown": {"plain": {"parameters": MIB, "the rest": 2 * MIB}},
    "memory_over_program": {"plain": [MIB, 0]},
    "peak_over": {"plain": {4: MIB, 8: 2 * MIB}},
    "pareto": searched(),
    "raster": np.eye(3),
    "membrane": np.ones((4, 2)),
}
pictures = pytest.mark.parametrize(("name", "data"), PICTURES.items())


@pictures
def test_draws_on_the_axes_that_it_is_given(name, data):
    ax = pyplot.figure().subplots()
    assert getattr(plot, name)(data, ax) is ax
    assert ax.get_xlabel() and ax.has_data()
    assert len(pyplot.get_fignums()) == 1


@pictures
def test_saves_a_picture_of_its_own(name, data, tmp_path):
    ax = getattr(plot, name)(data)
    ax.figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pictures
def test_without_matplotlib_the_message_names_the_extra(name, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "snnjax\[plot\]"'):
        getattr(plot, name)(data)


def test_every_picture_is_tested_here():
    public = {name for name, value in vars(plot).items() if callable(value)}
    assert public - {"HasFront", "HasLiveBytes"} == set(PICTURES)


def test_importing_imports_no_matplotlib():
    code = (
        "import sys; before = set(sys.modules); import snnjax.plot; "
        "assert not {'matplotlib'} & (set(sys.modules) - before)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- memory over the program ----------------------------------------------------------


def test_curves_are_in_mib_over_the_fraction_of_the_program():
    ax = plot.memory_over_program({"plain": [0, 4 * MIB, 2 * MIB]})
    x, y = ax.lines[0].get_data()
    assert list(x) == [0, 0.5, 1]
    assert list(y) == [0, 4, 2]
    assert "MiB" in ax.get_ylabel()


def test_every_variant_has_its_name_and_its_peak():
    curves = {
        "plain": SimpleNamespace(live_bytes=(0, 300 * MIB, 0)),
        "optimized": SimpleNamespace(live_bytes=(0, 0, 0, 45 * MIB)),
    }
    ax = plot.memory_over_program(curves)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(curves)
    assert [text.get_text() for text in ax.texts] == ["300.0 MiB", "45.0 MiB"]


@pytest.mark.parametrize("curves", [{}, {"plain": []}])
def test_no_curve(curves):
    with pytest.raises(ValueError, match="`curves"):
        plot.memory_over_program(curves)


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf"), "1 MiB", None])
def test_what_is_no_number_of_bytes(size):
    with pytest.raises(ValueError, match=r"`curves\['plain'\]\[1\]` is .*from 0 up"):
        plot.memory_over_program({"plain": [0, size]})
    with pytest.raises(ValueError, match=r"`variants\['plain'\]\['rest'\]` is "):
        plot.memory_breakdown({"plain": {"rest": size}})
    with pytest.raises(ValueError, match=r"`lines\['plain'\]\[4\]` is "):
        plot.peak_over({"plain": {4: size}})


def test_nothing_but_zeros_is_drawn():
    for ax in (
        plot.memory_over_program({"plain": [0, 0]}),
        plot.memory_breakdown({"plain": {"rest": 0}}),
        plot.peak_over({"plain": {4: 0}}),
    ):
        ax.figure.canvas.draw()


# --- segments of a program ------------------------------------------------------------


def timeline(scopes, live=None):
    return SimpleNamespace(scopes=scopes, live_bytes=live or [MIB] * len(scopes))


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        (["a", "a/conv", "b"], [(0, 2, "a"), (2, 3, "b")]),
        (["net/a (backward)", "a/a/x (recomputed)"], [(0, 2, "a")]),
        # without a scope: with the neighbors where they agree, else with none
        (["", "a", "", "a", "", "b", ""], [(1, 4, "a"), (5, 6, "b")]),
        # one alone between two of another
        (["a", "b", "a", "b"], [(0, 3, "a"), (3, 4, "b")]),
        (["a", "b", "b", "a"], [(0, 1, "a"), (1, 3, "b"), (3, 4, "a")]),
        (["ab", "other/b2"], []),
        ([], []),
    ],
)
def test_spans(scopes, expected):
    assert spans(scopes, ["a", "b"]) == expected


def test_the_outermost_segment_counts():
    assert segment_of("net/block1/block2/conv (backward)", ["block2", "block1"]) == (
        "block1"
    )
    assert segment_of("net/conv", ["block1"]) is None


def test_the_space_under_the_curve_has_the_color_of_its_segment():
    scopes = ["", "a", "b", "b (backward)", "a (backward)"]
    live = [0, MIB, 2 * MIB, 3 * MIB, MIB]
    curves = {"plain": timeline(scopes, live)}
    ax = plot.memory_over_program(curves, segments=["a", "b"])
    first, middle, last = (
        patch.get_paths()[0].get_extents() for patch in ax.collections
    )
    assert (first.x0, first.x1, first.y1) == (0.25, 0.5, 1)
    assert (middle.x0, middle.x1, middle.y1) == (0.5, 1, 3)
    assert last.x0 == 1
    colors = [tuple(patch.get_facecolor()[0]) for patch in ax.collections]
    assert colors[0] == colors[2] != colors[1]
    assert [text.get_text() for text in ax.texts] == ["3.0 MiB", "a", "b"]
    assert ax.get_title("left") == "plain"


def test_axes_that_share_their_height_show_all():
    _, (top, bottom) = pyplot.subplots(2, sharey=True)
    plot.memory_over_program({"plain": timeline(["a"] * 2, [0, 8 * MIB])}, top)
    plot.memory_over_program({"level 1": timeline(["a"] * 2)}, bottom, segments=["a"])
    assert top.get_ylim() == bottom.get_ylim() and top.get_ylim()[1] > 8


def test_segments_of_a_compiled_program():
    """Two scopes, forward and backward: what XLA schedules is colored in this order."""

    def step(ws, x):
        def loss(ws):
            y = x
            for name, w in zip("ab", ws):
                with jax.named_scope(name):
                    y = jnp.tanh(y @ w)
            return (y**2).mean()

        return jax.grad(loss)(ws)

    ws = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 2
    x = jax.ShapeDtypeStruct((256, 64), jnp.float32)
    curve = memopt.measure(step, ws, x, timeline=True).timeline
    named = [name for _, _, name in spans(curve.scopes, ["a", "b"])]
    assert (named[0], "b" in named, named[-1]) == ("a", True, "a")
    ax = plot.memory_over_program({"plain": curve}, segments=["a", "b"])
    assert len(ax.collections) == len(named)


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ({"a": timeline(["a"]), "b": timeline(["a"])}, "`curves` has 2.*axes of its"),
        ({"a": [MIB]}, "has not a scope for each instruction"),
        ({"a": timeline(["a"], [1, 2])}, "has not a scope for each instruction"),
        ({"a": timeline(["", "net/c"])}, "'x', 'y', none of which.*'net/c'.*within"),
    ],
)
def test_segments_that_cannot_be_shown(curves, message):
    with pytest.raises(ValueError, match=message):
        plot.memory_over_program(curves, segments=["x", "y"])


# --- breakdown ------------------------------------------------------------------------


def test_bars_are_stacked_part_by_part():
    variants = {
        "plain": {"parameters": MIB, "kept": 8 * MIB},
        "level 1": {"parameters": MIB, "the rest": 2 * MIB},
    }
    ax = plot.memory_breakdown(variants)
    parts = {bars.get_label(): bars for bars in ax.containers}
    spread = {
        name: [(bar.get_x(), bar.get_width()) for bar in bars]
        for name, bars in parts.items()
    }
    assert spread == {
        "parameters": [(0, 1), (0, 1)],
        "kept": [(1, 8), (1, 0)],
        "the rest": [(9, 0), (1, 2)],
    }
    assert [text.get_text() for text in ax.get_yticklabels()] == list(variants)
    assert {"9.0 MiB", "3.0 MiB"} <= {text.get_text() for text in ax.texts}
    assert ax.yaxis_inverted()  # the first variant is on top


@pytest.mark.parametrize("variants", [{}, {"plain": {}}])
def test_no_bar(variants):
    with pytest.raises(ValueError, match="`variants.*pass at least one"):
        plot.memory_breakdown(variants)


# --- growth ---------------------------------------------------------------------------


def test_lines_are_sorted_and_named_at_their_ends():
    lines = {"plain": {16: 4 * MIB, 4: MIB}, "level 1": {4: MIB, 8: 2 * MIB}}
    ax = plot.peak_over(lines, over="blocks")
    drawn = [tuple(map(list, line.get_data())) for line in ax.lines]
    assert drawn == [([4, 16], [1, 4]), ([4, 8], [1, 2])]
    assert {text.get_text(): text.xy for text in ax.texts} == {
        "plain": (16, 4),
        "level 1": (8, 2),
    }
    assert ax.get_xlabel() == "blocks" and "MiB" in ax.get_ylabel()
    assert list(ax.get_xticks()) == [4, 8, 16]


def test_names_have_the_color_of_their_line_on_axes_that_have_others():
    ax = pyplot.figure().subplots()
    ax.plot([0, 1], [0, 0], color="black")
    plot.peak_over({"plain": {4: MIB, 8: 2 * MIB}, "level 1": {4: MIB, 8: MIB}}, ax)
    lines = {line.get_label(): line.get_color() for line in ax.lines}
    colors = {text.get_text(): text.get_color() for text in ax.texts}
    assert colors and all(lines[name] == color for name, color in colors.items())


def test_names_at_the_same_height_do_not_overlap():
    lines = {name: {4: MIB, 8: 2 * MIB} for name in ("one", "two", "three")}
    ax = plot.peak_over(lines)
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for a in boxes for b in boxes if a is not b)


@pytest.mark.parametrize("lines", [{}, {"plain": {}}])
def test_no_line(lines):
    with pytest.raises(ValueError, match="`lines.*pass at least one"):
        plot.peak_over(lines)


# --- front ----------------------------------------------------------------------------


def test_a_front_is_drawn_with_what_was_compiled():
    ax = plot.pareto(searched())
    front, compiled, taken = (line.get_data() for line in ax.lines)
    assert (list(front[0]), list(front[1])) == ([1.0, 1.5], [4, 2])
    assert (list(compiled[0]), list(compiled[1])) == ([1.5], [3])
    assert (list(taken[0]), list(taken[1])) == ([1.2], [3])
    assert "MiB" in ax.get_ylabel() and "estimated" in ax.get_xlabel()
    assert [text.get_text() for text in ax.texts] == ["3.0 MiB, 1.20x"]


def test_the_legend_names_only_what_is_there():
    ax = plot.pareto(searched(trials=[]))
    (label,) = ax.get_legend().get_texts()
    assert "estimated" in label.get_text()


def test_a_plan_without_a_search_has_no_front():
    with pytest.raises(ValueError, match="`profile`.*`level` above 1"):
        plot.pareto(searched(pareto=lambda: ()))


# --- spikes ---------------------------------------------------------------------------


def strokes(ax):
    """Where `vlines` drew: (x, middle)."""
    segments = [s for lines in ax.collections for s in lines.get_segments()]
    return sorted((float(s[0, 0]), round(float(s[:, 1].mean()), 6)) for s in segments)


@pytest.mark.parametrize("dtype", [bool, "int8", "float32", jnp.bfloat16])
def test_a_stroke_for_every_spike(dtype):
    spikes = np.zeros((5, 3))
    spikes[[0, 2, 2, 4], [1, 0, 2, 1]] = 1
    ax = plot.raster(jnp.asarray(spikes, dtype))
    assert strokes(ax) == [(0, 1), (2, 0), (2, 2), (4, 1)]
    assert (ax.get_xlim(), ax.get_ylim()) == ((-0.5, 4.5), (-0.6, 2.6))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time step", "neuron")


def test_one_sample_of_a_batch_of_images():
    spikes = np.zeros((4, 2, 3, 5))
    spikes[3, 1, 2, 4] = spikes[0, 0, 0, 0] = 1
    assert strokes(plot.raster(spikes, sample=1)) == [(3, 14)]


def test_silence_is_drawn():
    assert strokes(plot.raster(np.zeros((4, 2)))) == []


def test_potentials_threshold_and_spikes():
    spikes, potentials, v = [], [], jnp.zeros(2)
    for _ in range(6):
        fired, v = neuron.lif(jnp.full((1, 2), 1.5), v, v_threshold=1.2)
        spikes.append(fired[0])
        potentials.append(v)
    spikes, potentials = np.stack(spikes), np.stack(potentials)
    assert 0 < spikes.sum() < spikes.size
    ax = plot.membrane(potentials, spikes=spikes, v_threshold=1.2)
    first, second, threshold = ax.lines
    np.testing.assert_array_equal(first.get_ydata(), potentials[:, 0])
    np.testing.assert_array_equal(second.get_ydata(), potentials[:, 1])
    assert list(threshold.get_ydata()) == [1.2, 1.2]
    at = strokes(ax)
    assert [x for x, _ in at] == sorted(np.nonzero(spikes)[0])
    assert min(y for _, y in at) > 1.2
    assert {text.get_text() for text in ax.texts} == {"threshold", "spikes"}


def test_chosen_neurons_keep_their_numbers():
    v = np.arange(40.0).reshape(4, 10)
    ax = plot.membrane(v, neurons=[7, 2], v_threshold=None)
    assert [line.get_label() for line in ax.lines] == ["neuron 7", "neuron 2"]
    assert list(ax.lines[0].get_ydata()) == [7, 17, 27, 37]


@pytest.mark.parametrize(
    ("shape", "sample", "message"),
    [
        ((4,), None, r"shape \(4,\) of rank 1; allowed is \[time, neurons\]"),
        ((4, 2, 3), None, r"of rank 3.*with `sample`"),
        ((4,), 0, r"of rank 1"),
        ((0, 3), None, r"shape \(0, 3\), without a single value"),
        ((4, 2, 3), 2, r"`sample` is 2; allowed is 0 to 1"),
        ((4, 2, 3), -1, r"`sample` is -1; allowed is 0 to 1"),
    ],
)
def test_another_shape(shape, sample, message):
    with pytest.raises(ValueError, match=message):
        plot.raster(np.zeros(shape), sample=sample)
    with pytest.raises(ValueError, match=message):
        plot.membrane(np.zeros(shape), sample=sample)


@pytest.mark.parametrize("value", [2, -1, 0.5, float("nan")])
def test_values_that_are_no_spikes(value):
    spikes = np.array([[0, 1], [1, value]])
    with pytest.raises(ValueError, match=f"`spikes` has values such as {value}.*0 and"):
        plot.raster(spikes)
    with pytest.raises(ValueError, match="`spikes` has values"):
        plot.membrane(np.zeros((2, 2)), spikes=spikes)


def test_spikes_of_another_shape():
    with pytest.raises(ValueError, match=r"`spikes` has shape \(4, 1\).*\(4, 2\)"):
        plot.membrane(np.zeros((4, 2)), spikes=np.zeros((4, 1)))


@pytest.mark.parametrize(
    ("neurons", "message"),
    [
        (None, "`v` has 8 neurons to draw; allowed are 1 to 6"),
        ([], "`v` has 0 neurons to draw"),
        ([0, 8], "`neurons` has 8; allowed is 0 to 7"),
        ([-1], "`neurons` has -1"),
    ],
)
def test_neurons_that_cannot_be_drawn(neurons, message):
    with pytest.raises(ValueError, match=message):
        plot.membrane(np.zeros((4, 8)), neurons=neurons)
