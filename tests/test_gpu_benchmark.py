"""The benchmark for a GPU, all of it on a CPU; and what it says of what did not run."""

import importlib
import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def gpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("gpu")


@pytest.fixture
def run(gpu, tmp_path):
    return gpu.Runner(gpu.parse(["--small"]), tmp_path)


def test_a_part_that_fails_has_its_error_and_no_figure(gpu, run, monkeypatch):
    monkeypatch.setitem(gpu.PARTS, "conditions", "nowhere.py")
    assert "nowhere" in run("conditions", limit=60)["error"]


def test_a_part_that_hangs_is_stopped(gpu, run, monkeypatch, tmp_path):
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text("import time; time.sleep(60)")
    monkeypatch.setitem(gpu.PARTS, "conditions", str(sleeper))
    assert run("conditions", limit=1)["error"] == "stopped after 1 s"


def test_without_time_nothing_is_run(gpu, run):
    run.end = 0
    assert "no time" in run("conditions", limit=60)["error"]


def test_the_workspace_is_the_difference_or_nothing(gpu):
    both = {"allocator_bytes": 300, "compiled_bytes": 200}
    assert gpu.with_workspace(both)["workspace_bytes"] == 100
    for row in ({"error": "x"}, both | {"allocator_bytes": None}):
        assert gpu.with_workspace(row) == row


def test_a_table_of_errors(gpu):
    error = {"error": "it died"}
    assert "\n".join(gpu.lines({"conditions": error})) == "nothing ran: it died"
    where = {"device": "d", "platform": "p", "jax": "j", "copy_bytes_per_s": 1e9}
    rest = dict.fromkeys(("checks", "neuron", "spikingjelly"), error)
    text = "\n".join(gpu.lines({"conditions": where, "vgg": {"plain": error}, **rest}))
    assert text.count("it died") == 4


def test_packages_that_are_missing_are_named(gpu, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "rich" else found(name)
    )
    with pytest.raises(SystemExit, match="needs rich.*pip install rich"):
        gpu.check_packages()


@pytest.mark.slow
def test_all_of_it_on_a_cpu(gpu, tmp_path):
    out = tmp_path / "results" / "gpu.json"
    done = subprocess.run(
        [sys.executable, gpu.__file__, "--small", "--limit", "1500", "--out", out],
        env=os.environ | {"XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=1600,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["checks"]["right"] and len(result["checks"]["rows"]) == 7
    ways = {(row["pass"], row["way"]) for row in result["neuron"]["rows"]}
    assert ways == {(p, w) for p in ("forward", "backward") for w in ("scan", "xla")}
    assert all(row["over_floor"] > 0 for row in result["neuron"]["rows"])
    assert list(result["vgg"]) == list(gpu.PLANS)
    for row in result["vgg"].values():
        assert row["seconds"] > 0 and row["compiled_bytes"] > 0
        assert math.isclose(*map(float, first_losses(result, row)), rel_tol=1e-4)
        assert row["allocator_bytes"] is None and "workspace_bytes" not in row
    assert "checks: 7 run, 0 wrong" in done.stdout
    assert set(gpu.PLANS) <= {line[:24].strip() for line in done.stdout.splitlines()}


def first_losses(result, row):
    """Of the first step: the same under every plan."""
    return result["vgg"]["plain"]["loss"][0], row["loss"][0]
