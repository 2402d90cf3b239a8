"""The picture of memory over the program."""

import sys
from types import SimpleNamespace

import pytest

from snnjax import plot

MIB = 2**20

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed_figures():
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


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


def test_draws_on_the_axes_that_it_is_given():
    ax = pyplot.figure().subplots()
    assert plot.memory_over_program({"plain": [MIB]}, ax) is ax


def test_saves_a_picture(tmp_path):
    ax = plot.memory_over_program({"plain": [MIB, 0]})
    ax.figure.savefig(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("curves", [{}, {"plain": []}])
def test_nothing_to_draw(curves):
    with pytest.raises(ValueError, match="`curves"):
        plot.memory_over_program(curves)


def test_without_matplotlib_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "snnjax\[plot\]"'):
        plot.memory_over_program({"plain": [MIB]})


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


def test_a_front_is_drawn_with_what_was_compiled():
    ax = plot.pareto(searched())
    front, compiled, taken = (line.get_data() for line in ax.lines)
    assert (list(front[0]), list(front[1])) == ([1.0, 1.5], [4, 2])
    assert (list(compiled[0]), list(compiled[1])) == ([1.5], [3])
    assert (list(taken[0]), list(taken[1])) == ([1.2], [3])
    assert "MiB" in ax.get_ylabel() and "estimated" in ax.get_xlabel()


def test_a_plan_without_a_search_has_no_front():
    with pytest.raises(ValueError, match="`profile`.*`level` above 1"):
        plot.pareto(searched(pareto=lambda: ()))
