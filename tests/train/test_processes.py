"""Two real processes, joined by gloo: they train as one, and stop as one."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import optax
import pytest
from children import HERE, environment
from helpers import assert_near
from nets import Net, batches, values

from snnjax import loss, train

LIMIT = 300  # seconds for all that a test starts; it takes 15 on two quiet cores


def free_address():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return f"localhost:{s.getsockname()[1]}"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Of compiled programs, for all processes."""
    return tmp_path_factory.mktemp("cache")


@contextlib.contextmanager
def two_processes(folder, cache, epochs, *last):
    """Both of them, running; whatever happens they end."""
    command = [sys.executable, "-W", "error", str(HERE / "process.py"), str(folder)]
    command += [free_address(), "2"]
    running = []
    try:
        for i in range(2):
            with open(folder / f"log-{i}", "w") as log:
                each = [*command, str(i), *map(str, (epochs, *last))]
                pipes = {"stdout": log, "stderr": subprocess.STDOUT}
                running.append(subprocess.Popen(each, env=environment(cache), **pipes))
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def codes(running, folder):
    """Exit codes, waited for; the logs where one is late."""
    end = time.monotonic() + LIMIT
    try:
        return [p.wait(max(0, end - time.monotonic())) for p in running]
    except subprocess.TimeoutExpired as error:
        raise AssertionError(logs(folder)) from error


def logs(folder):
    return "\n".join((folder / f"log-{i}").read_text() for i in range(2))


def results(folder):
    """What each process has come to."""
    found = []
    for i in range(2):
        with np.load(folder / f"result-{i}.npz") as result:
            found.append(dict(result))
    return found


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path, cache):
    with two_processes(tmp_path, cache, epochs=2) as running:
        assert codes(running, tmp_path) == [0, 0], logs(tmp_path)
    with jax.numpy_dtype_promotion("standard"):
        trainer = train.Trainer(
            Net(), train.Classifier(loss.cross_entropy), optax.sgd(0.1, momentum=0.9)
        )
        history = trainer.fit(batches(3), batches(3), epochs=2, show=False)
    wanted = values(trainer.model) | values(trainer.optimizer)
    for found in results(tmp_path):
        assert found.pop("devices") == 2
        for came, want in zip(json.loads(str(found.pop("history"))), history):
            assert came.keys() == want.keys() - {"samples_per_second"}
            assert_near(list(came.values()), [want[name] for name in came])
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert_near(found[name], value)


def test_one_asked_to_stop_stops_both(tmp_path, cache):
    """Both save the same step, and go on from there."""
    with two_processes(tmp_path, cache, epochs=100_000) as running:
        end = time.monotonic() + LIMIT
        while not all((tmp_path / f"running-{i}").exists() for i in range(2)):
            assert time.monotonic() < end, logs(tmp_path)
            assert all(p.poll() is None for p in running), logs(tmp_path)
            time.sleep(0.1)
        running[1].send_signal(signal.SIGTERM)
        assert codes(running, tmp_path) == [143, 143], logs(tmp_path)
    saved = train.Checkpoints(tmp_path / "checkpoints")
    assert saved.notes()["place"]["step"] == saved.latest >= 2


@pytest.mark.slow
def test_killed_processes_go_on_as_if_nothing_had_happened(tmp_path, cache):
    """Both are killed in their third epoch of three batches; two are saved."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    with two_processes(whole, cache, 4) as running:
        assert codes(running, whole) == [0, 0], logs(whole)
    with two_processes(killed, cache, 4, 8) as running:
        # One may first notice that the other is gone, and give up.
        ends = codes(running, killed)
        assert all(ends) and -signal.SIGKILL in ends, logs(killed)
    assert train.Checkpoints(killed / "checkpoints").latest == 6
    with two_processes(killed, cache, 4) as running:
        assert codes(running, killed) == [0, 0], logs(killed)
    for came, want in zip(results(killed), results(whole)):
        assert came.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_array_equal(came[name], value, err_msg=name)
