"""Runs that are killed: they go on as if nothing had happened, bit for bit."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from children import HERE, environment

from snnjax import train

LIMIT = 300  # seconds a child; it takes 5 on two quiet cores


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Of compiled programs, for the children."""
    return tmp_path_factory.mktemp("cache")


def run(folder, cache, *end):
    """A run to its end, or to the one that it puts to itself."""
    script = str(HERE / "resumed_run.py")
    return subprocess.run(
        [sys.executable, "-W", "error", script, str(folder), *end],
        env=environment(cache),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def result(folder):
    with np.load(folder / "result.npz") as found:
        return dict(found)


def steps(folder):
    """Steps with a complete checkpoint, and whether a part of one is left."""
    names = [path.name for path in (folder / "checkpoints").iterdir()]
    return sorted(int(n) for n in names if n.isdigit()), any("tmp" in n for n in names)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("uninterrupted")
    came = run(folder, cache)
    assert came.returncode == 0, came.stderr
    return result(folder)


def assert_same(folder, wanted):
    found = result(folder)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.slow
def test_killed_three_times(tmp_path, cache, uninterrupted):
    """In an epoch, while a checkpoint is written, and just before it is complete.

    Five batches an epoch, four epochs, a checkpoint every other step and at each end.
    """
    ends = [
        ("batch", "4", [2], False),  # step 2 is saved, step 3 is lost
        ("make", "4", [5, 6], True),  # steps 4, 5 and 6 are saved, 8 has no content
        ("rename", "3", [8, 10], True),  # 8 and 10 are saved, 12 has no name
    ]
    for event, number, complete, rest in ends:
        came = run(tmp_path, cache, "SIGKILL", event, number)
        assert came.returncode == -signal.SIGKILL, came.stderr
        assert steps(tmp_path) == (complete, rest)
        assert not (tmp_path / "result.npz").exists()
    came = run(tmp_path, cache)
    assert came.returncode == 0, came.stderr
    assert steps(tmp_path) == ([18, 20], False)
    assert_same(tmp_path, uninterrupted)
    history = json.loads(str(uninterrupted["history"]))
    assert len(history) == 4
    assert history[0]["loss"] != history[3]["loss"]


def test_sigterm_while_it_evaluates(tmp_path, cache, uninterrupted):
    """The epoch's pass is over then, and the next one has not begun."""
    came = run(tmp_path, cache, "SIGTERM", "eval", "2")
    assert came.returncode == 143, came.stderr
    notes = train.Checkpoints(tmp_path / "checkpoints").notes()
    assert (notes["place"]["epoch"], notes["place"]["step_of_epoch"]) == (0, 5)
    assert notes["data"] == {"pass": 1, "taken": 0}
    came = run(tmp_path, cache)
    assert came.returncode == 0, came.stderr
    assert_same(tmp_path, uninterrupted)


def test_sigterm_saves_and_leaves(tmp_path, cache, uninterrupted):
    came = run(tmp_path, cache, "SIGTERM", "batch", "8")
    assert came.returncode == 143, came.stderr
    assert steps(tmp_path) == ([6, 8], False)  # at the end of the present step
    notes = train.Checkpoints(tmp_path / "checkpoints").notes()
    assert notes["plan"] == {"level": 1}
    assert notes["place"]["step"] == 8 and notes["data"] == {"pass": 1, "taken": 3}
    came = run(tmp_path, cache)
    assert came.returncode == 0, came.stderr
    assert_same(tmp_path, uninterrupted)
