"""The benchmark beside the peers: ours, tiny; what died or hung; and what it claims."""

import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def peers():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("peers")


@pytest.fixture
def start(peers, tmp_path):
    """Starts a worker from its code."""
    with peers.Session(tmp_path) as session:
        yield lambda code: launch(session, tmp_path, code)


def launch(session, folder, code):
    script = folder / f"{len(session.workers)}.py"
    script.write_text(code)
    return session.start(sys.executable, str(script))


SERVES = (
    'import sys; print("{}", flush=True)\nfor _ in sys.stdin: print("[1]", flush=1)'
)


def test_a_worker_answers_until_it_is_stopped(start):
    worker = start(SERVES)
    assert worker.answer(30) == {}
    assert [worker.ask(30) for _ in range(2)] == [[1], [1]]
    worker.stop()
    assert worker.process.returncode == 0


def test_a_worker_that_dies_has_its_last_words(start):
    worker = start("raise SystemExit('out of memory')")
    assert worker.answer(30) == {"error": "out of memory"}
    assert start("import os; os._exit(3)").answer(30) == {"error": "ended with 3"}


def test_a_worker_that_hangs_is_killed(start):
    worker = start("import time; time.sleep(60)")
    before = time.monotonic()
    assert worker.answer(0.5) == {"error": "stopped after 0 s"}
    assert worker.ended and time.monotonic() - before < 30


def test_those_that_are_left_are_killed(peers, tmp_path):
    with pytest.raises(KeyError), peers.Session(tmp_path) as session:
        worker = launch(session, tmp_path, "import time; time.sleep(60)")
        raise KeyError
    assert worker.ended


def entry(peers, library, variant, runs, **facts):
    facts = {"compiled_bytes": 100, "loss": 2.0} | facts
    return peers.Entry(library, variant, facts, runs=runs)


def test_ratios_are_medians_of_the_rounds_ratios(peers):
    plain = entry(peers, "ours", "plain", [1.0, 2.0, 4.0])
    base = entry(peers, "spikingjelly", "base", [2.0, 4.0, 2.0])
    dead = peers.Entry("spyx", "run", {"error": "it died"}, runs=[1.0])
    rows = peers.rows_of([plain, base, dead])
    assert rows[0]["seconds"] == 2 and rows[0]["over_plain"] == 1
    assert rows[0]["over_base"] == 0.5 and rows[1]["over_plain"] == 2
    assert rows[2] == {"library": "spyx", "variant": "run", "error": "it died"}
    assert peers.rows_of([plain])[0]["over_base"] is None


def all_rows(peers):
    return peers.rows_of(
        [
            entry(peers, "spikingjelly", "base", [2.0]),
            entry(peers, "spikingjelly", "level 1", [4.0], resident_growth_bytes=100),
            entry(peers, "ours", "plain", [1.0]),
            entry(peers, "ours", "level 1", [3.4], compiled_bytes=70),
            entry(peers, "ours", "nnx.remat", [3.2], compiled_bytes=80),
            entry(peers, "ours", "memory", [3.0], compiled_bytes=90),
            entry(peers, "ours", "chunked", [5.0], resident_growth_bytes=40),
        ]
    )


def test_the_claims(peers):
    found = peers.claims(all_rows(peers))
    measured = [row["measured"] for row in found]
    assert measured == pytest.approx([0.5, 3.4 / 4, 0.4, 3.4 / 3.2])
    assert [row["holds"] for row in found] == [True, False, True, False]
    assert found[3]["variant"] == "ours/level 1"  # "memory" is faster, and larger


def test_a_claim_without_figures_neither_holds_nor_fails(peers):
    for row in peers.claims([{"library": "ours", "variant": "plain", "error": "x"}]):
        assert row["measured"] is None and row["holds"] is None


def test_the_table_says_where_we_lose(peers):
    report = importlib.import_module("peers_report")
    rows = all_rows(peers)
    said = {row["variant"]: report.beside(row, report.by_name(rows)) for row in rows}
    assert said["nnx.remat"] == "our level 1: 1.06 of its time; we lose in time"
    assert said["base"] == "our plain: 0.50 of its time"
    assert said["plain"] == said["memory"] == ""
    assert report.words("plain", {"time": 0.0049}) == "our plain: 0.005 of its time"


def test_a_slow_variant_has_one_step_for_all_rounds(peers, start):
    slow = entry(peers, "spyx", "run", [], seconds=70.0, note="n")
    slow.worker = start("")
    peers.take_one(slow, growth=500, rounds=2)
    peers.take_turn(slow)
    assert slow.runs == [70, 70] and slow.worker is None
    assert slow.facts["note"] == "one step, in the process that compiled it; n"
    assert peers.rows_of([slow])[0]["resident_growth_bytes"] == 500


def test_a_peer_that_cannot_be_installed_is_a_row(peers, tmp_path, monkeypatch):
    failed = RuntimeError("not installed: no such version")
    monkeypatch.setattr(peers, "python_of", lambda *a: (_ for _ in ()).throw(failed))
    options = peers.parse(["--only", "spyx", "--envs", str(tmp_path)])
    with peers.Session(tmp_path) as session:
        rows = list(peers.run_vgg(session, options))[-1]
    assert [row["error"] for row in rows] == [str(failed)] * 2


def test_only_names_what_there_is(peers, capsys):
    with pytest.raises(SystemExit):
        peers.parse(["--only", "ours,norse"])
    assert "`--only` has 'norse'; allowed are chain" in capsys.readouterr().err


@pytest.mark.slow
def test_ours_and_the_chain_on_tiny_sizes(peers, tmp_path):
    out = tmp_path / "results" / "peers.json"
    command = ["--small", "--only", "ours,chain", "--rounds", "3", "--out", out]
    done = subprocess.run(
        [sys.executable, peers.__file__, *command],
        env=os.environ | {"XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["conditions"]["versions"]["ours"].keys() >= {"jax", "flax", "snnjax"}
    check_vgg(peers, result["vgg"])
    check_chain(result["chain"])
    assert [row["holds"] is None for row in result["claims"]] == [1, 1, 1, 0]
    assert "our level 1" in done.stdout and "not measured" in done.stdout


def check_vgg(peers, rows):
    assert [row["variant"] for row in rows] == list(peers.PEERS["ours"].variants)
    for row in rows:
        assert "error" not in row, row
        assert len(row["runs"]) == 3 and min(row["runs"]) > 0
        assert row["seconds"] == statistics.median(row["runs"])
        assert row["over_plain"] > 0 and row["over_base"] is None
        assert row["compiled_bytes"] > 0 and row["resident_growth_bytes"] >= 0
        assert math.isclose(row["loss"], rows[0]["loss"], rel_tol=1e-4)


def check_chain(rows):
    points = {}
    for row in rows:
        point = points.setdefault((row["time"], row["depth"]), {})
        point[row["variant"]] = row["peak_bytes"]
    assert list(points) == [(2, 2), (4, 2), (2, 3)]
    names = {"plain", "nnx.remat", "level 1", "balanced", "chunked"}
    for peaks in points.values():
        assert peaks.keys() == names and peaks["chunked"] < peaks["plain"]
