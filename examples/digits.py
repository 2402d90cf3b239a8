"""Trains a spiking VGG on handwritten digits in a fraction of the memory.

    python examples/digits.py            # all of it, a few minutes on two cores
    python examples/digits.py --quick    # every step of it, in less than a minute
    python examples/digits.py --plain    # trains the plain network, too, and compares

scikit-learn's 1,797 digits are seen by a simulated event camera (`event_camera.py`),
and tonic bins the events into frames. First the plain and the memory-optimized network
are compared: the same losses, in fewer bytes. Then the memory-optimized one is trained,
on frames that are moved by up to a pixel. That, and the number of epochs, was chosen on
a fifth of the training digits, never on those to test on. The plan and a picture of
both networks' memory go to the folder `--out`.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import snnjax as snn
from snnjax import memopt, plot

try:
    import matplotlib  # noqa: F401, drawing comes late; that it is missing, now
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn
    from rich.table import Table
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from tonic.transforms import ToFrame
except ImportError as error:
    sys.exit(f'{error}. This example needs: pip install "snnjax[data,plot]"')

from event_camera import record

SIZE, STEPS, BATCH = 16, 8, 64  # pixels along a side, time steps, samples
TARGET = 0.985  # test accuracy that the full run must reach
MIB = 2**20
Batch = tuple[np.ndarray, np.ndarray]


# --- data ---------------------------------------------------------------------------


class Split(NamedTuple):
    """Frames `[time, sample, height, width, polarity]`, 0 or 1, and their digits."""

    frames: np.ndarray
    labels: np.ndarray


def load(samples: int | None) -> tuple[Split, Split]:
    """The first `samples` digits, or all of them, for training and for testing."""
    digits = load_digits()
    images = digits.images[:samples] / 16
    labels = digits.target[:samples].astype(np.int32)  # jax has no int64 by default
    frames = np.stack([to_frames(image) for image in images], axis=1)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
    )
    return (
        Split(frames[:, train], labels[train]),
        Split(frames[:, test], labels[test]),
    )


def to_frames(image: np.ndarray) -> np.ndarray:
    """Whether each pixel had an event in each bin: [time, height, width, polarity]."""
    binned = ToFrame(sensor_size=(SIZE, SIZE, 2), n_time_bins=STEPS)
    counts = binned(record(image, size=SIZE))  # [time, polarity, height, width]
    # Booleans, so that the planner can prove that the first block's input is 0 or 1.
    return np.moveaxis(counts > 0, 1, -1)


def batches(data: Split, order: np.ndarray) -> Iterator[Batch]:
    """Batches of `data` in that order; an incomplete last one is dropped."""
    for i in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[i : i + BATCH]
        yield data.frames[:, chosen], data.labels[chosen]


def moved(frames: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each sample moved by up to one pixel along both axes; zeros come in."""
    padded = np.pad(frames, ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)))
    corners = rng.integers(0, 3, (frames.shape[1], 2))
    samples = [
        padded[:, i, y : y + SIZE, x : x + SIZE] for i, (y, x) in enumerate(corners)
    ]
    return np.stack(samples, axis=1)


# --- the network and its training step ------------------------------------------------


class SpikingVGG(nnx.Module):
    """Five Conv-BatchNorm-LIF blocks and a linear readout, averaged over time."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        block = functools.partial(snn.models.VGGBlock, detach_reset=True, rngs=rngs)
        self.features = snn.layer.Sequential(
            block(2, 16),
            block(16, 16),
            block(16, 16, pool=True),
            block(16, 48, pool=True),
            block(48, 96),
        )
        self.readout = snn.layer.Sequential(
            snn.layer.Flatten(), snn.layer.Linear(96 * (SIZE // 4) ** 2, 10, rngs=rngs)
        )

    def __call__(self, frames: jax.Array) -> jax.Array:
        """Frames `[time, batch, height, width, 2]` to scores `[batch, 10]`."""
        return self.readout(self.features(frames.astype(jnp.float32))).mean(0)


def loss_and_accuracy(
    model: nnx.Module, frames: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy against smoothed labels, and the share of right answers."""
    scores = model(frames)
    wanted = optax.smooth_labels(jax.nn.one_hot(labels, 10), 0.1)
    losses = optax.softmax_cross_entropy(scores, wanted)
    return losses.mean(), (scores.argmax(-1) == labels).mean()


def loss(model: nnx.Module, frames: jax.Array, labels: jax.Array) -> jax.Array:
    return loss_and_accuracy(model, frames, labels)[0]


# Donated, so that the new parameters take the place of the old ones.
@functools.partial(nnx.jit, donate_argnums=(0, 1))
def train_step(
    model: nnx.Module, optimizer: nnx.Optimizer, frames: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    gradient = nnx.value_and_grad(loss_and_accuracy, has_aux=True)
    values, gradients = gradient(model, frames, labels)
    optimizer.update(model, gradients)
    return values


@nnx.jit
def predict(model: nnx.Module, frames: jax.Array) -> jax.Array:
    return model(frames).argmax(-1)


def adamw(steps: int) -> optax.GradientTransformation:
    """AdamW; the rate warms up over a tenth of the steps, then follows a cosine."""
    rate = optax.warmup_cosine_decay_schedule(1e-3, 5e-3, steps // 10, steps)
    return optax.adamw(rate, weight_decay=0.05)


class Run(NamedTuple):
    """What a step changes."""

    model: nnx.Module
    optimizer: nnx.Optimizer


def start(tx: optax.GradientTransformation, plan: memopt.Plan | None = None) -> Run:
    """A new network, always from the same seed, with its optimizer."""
    model = SpikingVGG(nnx.Rngs(0))
    model = model if plan is None else memopt.apply_plan(model, plan)
    model.train()
    return Run(model, nnx.Optimizer(model, tx, wrt=nnx.Param))


# --- plan, compare, train, test -------------------------------------------------------


def optimize(tx: optax.GradientTransformation, batch: Batch) -> memopt.Plan:
    """Plans the network's memory; `memory_optimization` returns the new model, too."""
    _, summary = memopt.memory_optimization(
        SpikingVGG(nnx.Rngs(0)),
        (snn.models.VGGBlock,),
        dummy_input=batch,
        level=1,
        loss=loss,
        optimizer=tx,
        verbose=True,
        return_summary=True,
    )
    return summary.plan


def compare(
    runs: dict[str, Run], some: list[Batch], console: Console
) -> dict[str, memopt.MemoryReport]:
    """Prints what a step of each network takes; returns their memory reports."""
    reports, kept, losses, thunks = {}, {}, {}, {}
    for name, run in runs.items():
        reports[name] = memopt.measure(train_step, *run, *some[0], timeline=True)
        kept[name] = memopt.residual_bytes(loss, run.model, *some[0])
        losses[name] = [float(train_step(*run, *batch)[0]) for batch in some][-1]
        thunks[name] = functools.partial(train_step, *run, *some[0])
    seconds = memopt.time_alternating(thunks, repeats=5)

    table = Table("network", title=f"one training step of {BATCH} samples")
    headings = "compiled peak", "residuals", "step time", f"loss, step {len(some)}"
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, report in reports.items():
        table.add_row(
            name,
            f"{report.peak_bytes / MIB:.1f} MiB",
            f"{kept[name] / MIB:.1f} MiB",
            f"{1000 * seconds[name]:.0f} ms",
            f"{losses[name]:.6f}",
        )
    console.print(table)
    return reports


def train(run: Run, data: Split, epochs: int, console: Console) -> list[float]:
    """The loss of every step."""
    columns = (
        "epoch {task.fields[epoch]}",
        BarColumn(),
        "loss {task.fields[loss]:.3f}, accuracy {task.fields[accuracy]:.3f},",
        "{task.fields[rate]:.0f} samples/s,",
        TimeRemainingColumn(),
        "left",
    )
    shown = {"epoch": 1, "loss": 0.0, "accuracy": 0.0, "rate": 0.0}
    with Progress(*columns, console=console) as progress:
        total = epochs * (len(data.labels) // BATCH)
        task = progress.add_task("", total=total, **shown)
        losses = []
        for epoch in range(1, epochs + 1):
            show = functools.partial(progress.update, task, advance=1, epoch=epoch)
            losses += train_epoch(run, data, epoch, show)
    return losses


def train_epoch(
    run: Run, data: Split, epoch: int, show: Callable[..., None]
) -> list[float]:
    rng = np.random.default_rng(epoch)
    order = rng.permutation(len(data.labels))
    begin, values = time.perf_counter(), []
    for frames, labels in batches(data, order):
        values.append(train_step(*run, moved(frames, rng), labels))
        mean_loss, mean_accuracy = np.mean(values, axis=0)
        rate = len(values) * BATCH / (time.perf_counter() - begin)
        show(loss=mean_loss, accuracy=mean_accuracy, rate=rate)
    return [float(loss) for loss, _ in values]


def test_accuracy(model: nnx.Module, data: Split) -> float:
    """The share of right answers; the last batch is filled up, so that all count."""
    model.eval()
    count = len(data.labels)
    padded = np.arange(-(-count // BATCH) * BATCH) % count
    answers = [predict(model, frames) for frames, _ in batches(data, padded)]
    return float(np.mean(np.concatenate(answers)[:count] == data.labels))


def draw(reports: dict[str, memopt.MemoryReport], file: Path) -> None:
    curves = {name: report.timeline for name, report in reports.items()}
    axes = plot.memory_over_program(curves)
    axes.set_title(f"one training step of {BATCH} samples, {STEPS} time steps")
    axes.figure.savefig(file, dpi=150)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Digits seen by an event camera.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="output folder")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, help="take only the first, 500 or more")
    parser.add_argument("--plain", action="store_true", help="train it without a plan")
    parser.add_argument("--quick", action="store_true", help="600 samples, 2 epochs")
    args = parser.parse_args()
    if args.quick:
        args.samples, args.epochs = args.samples or 600, min(args.epochs, 2)
    if args.samples is not None and args.samples < 500:
        parser.error("--samples must be 500 or more: the comparison takes 5 batches")
    return args


def main() -> int:
    args, begin, console = arguments(), time.perf_counter(), Console()
    args.out.mkdir(parents=True, exist_ok=True)
    training, test = load(args.samples)
    print(f"{len(training.labels)} digits to train on, {len(test.labels)} to test on")

    tx = adamw(args.epochs * (len(training.labels) // BATCH))
    some = list(batches(training, np.arange(5 * BATCH)))
    plan = optimize(tx, some[0])
    plan.save(args.out / "plan.json")
    runs = {"plain": start(tx), "memory-optimized": start(tx, plan)}
    draw(compare(runs, some, console), args.out / "memory.png")

    accuracies, losses = [], []
    for its_plan in (plan, None)[: 1 + args.plain]:
        run = start(tx, its_plan)
        losses.append(train(run, training, args.epochs, console))
        accuracies.append(test_accuracy(run.model, test))
        print(
            f"{'plain' if its_plan is None else 'memory-optimized'}: test accuracy "
            f"{accuracies[-1]:.2%} on {len(test.labels)} digits never trained on"
        )
    if args.plain:
        apart = np.abs(np.subtract(*losses)).max()
        print(
            f"largest difference of two losses over {len(losses[0])} steps: {apart:g}"
        )
    if args.quick:
        print("(so few steps leave batch norm's running statistics cold)")
    print(f"plan: {args.out / 'plan.json'}, picture: {args.out / 'memory.png'}")
    print(f"{time.perf_counter() - begin:.0f} s in all")
    if min(accuracies) < TARGET and not args.quick:
        print(f"the test accuracy is below {TARGET:.1%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
