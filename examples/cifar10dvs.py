"""Trains the tutorial's spiking VGG on CIFAR10-DVS, with a memory plan.

    python examples/cifar10dvs.py --data ~/data               # 100 epochs
    python examples/cifar10dvs.py --synthetic --steps 10      # random events, no data
    python examples/cifar10dvs.py --synthetic --device rtx4090 --save-plan vgg.json
    python examples/cifar10dvs.py --data ~/data --plan vgg.json

The settings are those of SpikingJelly's tutorial "Training Memory Optimization": 10
frames of 48x48 pixels, batches of 32, 100 epochs of SGD at 0.1 with momentum 0.9,
weight decay 5e-4 and a cosine schedule, and the TET loss. Left out: augmentation.

`--data` names the folder that holds `CIFAR10DVS`. The set has no official split; here
a seeded tenth of every class is for testing (`snn.data.split`). Frames are made once,
and then kept beside the recordings.
"""

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import workload
from flax import nnx

import snnjax as snn
from snnjax import memopt

SIZE, TIME, CLASSES = 48, 10, 10  # pixels along a side, frames a recording
FRAMES = snn.data.TimeBins(TIME, size=(SIZE, SIZE))  # bool, which proves {0, 1}
MIB = 2**20
Batch = tuple[np.ndarray, np.ndarray]


# --- data: recordings to frames [time, sample, height, width, polarity], 0 or 1 -------


def load(data: Path) -> tuple[snn.data.Samples, snn.data.Samples]:
    """CIFAR10-DVS in the folder `data`: training and test."""
    try:
        return snn.data.split(snn.data.cifar10_dvs(data), fraction=0.1, seed=0)
    except (FileNotFoundError, ImportError) as error:
        sys.exit(str(error))


def synthetic(samples: int) -> snn.data.Samples:
    """Recordings of random events, with random classes."""
    return workload.random_events(samples, count=5000, span=10**6, classes=CLASSES)


# --- loss and training step -----------------------------------------------------------


def loss_and_accuracy(
    model: nnx.Module, frames: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean over time of each step's cross-entropy, and accuracy of the mean scores.

    Source: TET, Deng et al., ICLR 2022, equation 9; its regularizer is left out.
    """
    scores = model(frames)  # bool in, so that {0, 1} is proven; [time, batch, class]
    each = jnp.broadcast_to(labels, scores.shape[:2])
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, each)
    return losses.mean(), (scores.mean(0).argmax(-1) == labels).mean()


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
    return model(frames).mean(0).argmax(-1)


def sgd(steps: int) -> optax.GradientTransformation:
    """SGD with momentum, a cosine schedule, and weight decay added to the gradient."""
    rate = optax.cosine_decay_schedule(0.1, steps)
    return optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(rate, momentum=0.9))


# --- plan, train, test ----------------------------------------------------------------


def make_plan(
    net: nnx.Module, tx: optax.GradientTransformation, args: argparse.Namespace
) -> memopt.Plan:
    """Reads the plan of `--plan`, or makes one from nothing but the batch's shape."""
    if args.plan:
        return memopt.Plan.load(args.plan)
    frames = jax.ShapeDtypeStruct((TIME, args.batch, SIZE, SIZE, 2), bool)
    labels = jax.ShapeDtypeStruct((args.batch,), jnp.int32)
    return memopt.make_plan(
        net,
        (snn.models.VGGBlock,),
        (frames, labels),
        loss=loss,
        optimizer=tx,
        level=args.level,
        device=args.device,
    )


def train_epoch(
    model: nnx.Module, optimizer: nnx.Optimizer, some: Iterable[Batch]
) -> str:
    """Trains on every batch; says how fast, and with what loss and accuracy."""
    model.train()
    begin, values, samples = time.perf_counter(), [], 0
    for frames, labels in some:
        values.append(train_step(model, optimizer, frames, labels))
        samples += len(labels)
    mean_loss, mean_accuracy = np.mean(values, axis=0)
    rate = samples / (time.perf_counter() - begin)
    result = f"train_loss={mean_loss:.4f}, train_acc={mean_accuracy:.2%}"
    return f"{rate:.2f} samples/s, {result}"


def test_accuracy(model: nnx.Module, some: Iterable[Batch]) -> float:
    """The share of right answers; what only fills up the last batch does not count."""
    model.eval()
    right = [
        (predict(model, frames) == labels)[labels != snn.data.FILLER]
        for frames, labels in some
    ]
    return float(np.mean(np.concatenate(right)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The spiking VGG on CIFAR10-DVS.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="the folder that holds CIFAR10DVS")
    source.add_argument("--synthetic", action="store_true", help="random events")
    parser.add_argument("--plan", type=Path, help="load this plan; do not make one")
    parser.add_argument("--save-plan", type=Path, help="write the plan to this file")
    parser.add_argument("--level", type=int, default=1, help="of the planner")
    parser.add_argument("--device", help='plan for this GPU, such as "rtx4090"')
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="samples in a batch")
    parser.add_argument("--steps", type=int, help="stop after so many, for a trial")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.data:
        args.data = args.data.expanduser()
        training, test = load(args.data)
    else:
        training, test = synthetic(8 * args.batch), synthetic(args.batch)
    cache = args.data / "CIFAR10DVS" / "frames" if args.data else None
    batches = functools.partial(
        snn.data.batches, encoder=FRAMES, batch_size=args.batch, cache=cache
    )

    tx = sgd(args.epochs * (len(training) // args.batch))
    net = snn.models.CIFAR10DVSVGG(rngs=nnx.Rngs(0))
    plan = make_plan(net, tx, args)
    print(plan)
    if args.save_plan:
        plan.save(args.save_plan)

    model = memopt.apply_plan(net, plan)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    sample = next(iter(batches(training)))
    report = memopt.measure(train_step, model, optimizer, *sample, device=args.device)
    peak = f"compiled_peak={report.peak_bytes / MIB:.1f} MiB on {report.device}"

    for epoch in range(1, args.epochs + 1):
        shuffled = batches(training, shuffle=True, seed=epoch)
        some = itertools.islice(shuffled, args.steps)
        print(f"Epoch {epoch}/{args.epochs}: {train_epoch(model, optimizer, some)}")
        print(f"Epoch {epoch}/{args.epochs}: {peak}")
        if args.steps:
            return
        accuracy = test_accuracy(model, batches(test, fill=True))
        print(f"Epoch {epoch}/{args.epochs}: test_acc={accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
