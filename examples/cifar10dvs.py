"""Trains the tutorial's spiking VGG on CIFAR10-DVS, with a memory plan.

    python examples/cifar10dvs.py --data ~/data               # 100 epochs
    python examples/cifar10dvs.py --synthetic --steps 10      # random events, no data
    python examples/cifar10dvs.py --synthetic --device rtx4090 --save-plan vgg.json
    python examples/cifar10dvs.py --data ~/data --plan vgg.json

The settings are those of SpikingJelly's tutorial "Training Memory Optimization": 10
frames of 48x48 pixels, batches of 32, 100 epochs of SGD at 0.1 with momentum 0.9,
weight decay 5e-4 and a cosine schedule, and the TET loss. Left out: augmentation.

`--data` names the folder that holds `CIFAR10DVS`. The set has no official split; here
the first nine tenths of every class, in the order of their names, train and the rest
test. Reading the recordings takes minutes; their frames are then kept beside them.
"""

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from rich.progress import track

import snnjax as snn
from snnjax import memopt

SIZE, TIME, CLASSES = 48, 10, 10  # pixels along a side, frames a recording
TONIC_MINIMUM = 1000  # recordings below which tonic would download again
MIB = 2**20
Batch = tuple[np.ndarray, np.ndarray]

HOW_TO_GET_IT = """\
tonic's own download does not work: the host answers programs with a test for browsers,
which leaves an archive of 0 bytes. By hand, it takes three steps:

  1. In a browser, download {url}
     and save it as {archive}
  2. Unpack it there, and then each of the ten archives in it, such as airplane.zip:
         cd {folder}
         unzip CIFAR10DVS.zip && for class in [a-z]*.zip; do unzip "$class"; done
  3. See that there are ten folders of 1,000 recordings each, such as
         {folder}/airplane/cifar10_airplane_0.aedat4
     Keep CIFAR10DVS.zip, or an empty file of that name: tonic looks for it.
"""


# --- data: recordings to frames [time, sample, height, width, polarity], 0 or 1 -------


class Split(NamedTuple):
    """Frames, kept at one bit a pixel, and classes."""

    packed: np.ndarray
    labels: np.ndarray


def check(data: Path) -> None:
    """Exits with what to do unless tonic would find the set in the folder `data`.

    tonic is not asked, since it would go to the network.
    """
    folder = data / "CIFAR10DVS"
    archive, recordings = folder / "CIFAR10DVS.zip", list(folder.glob("**/*.aedat4"))
    if len(recordings) >= TONIC_MINIMUM and archive.exists():
        return
    if len(recordings) >= TONIC_MINIMUM:
        problem = f"{archive} is missing, which tonic looks for; an empty file will do"
    elif recordings:
        problem = f"{folder} holds {len(recordings)} recordings; the set has 10,000"
    elif archive.exists() and archive.stat().st_size == 0:
        problem = f"{archive} has 0 bytes; delete it, it is not the data set"
    elif archive.exists():
        problem = f"{archive} is there, but not unpacked: {folder} has no .aedat4 file"
    else:
        problem = f"there is no CIFAR10-DVS in {folder}"
    url = tonic_datasets().CIFAR10DVS.url
    how = HOW_TO_GET_IT.format(url=url, archive=archive, folder=folder)
    sys.exit(f"{problem}.\n\n{how}")


def tonic_datasets():
    try:
        # tonic itself would only miss aedat when it reads the first recording.
        import aedat  # noqa: F401
        from tonic import datasets
    except ImportError as error:
        sys.exit(f'{error}. CIFAR10-DVS needs: pip install "snnjax[data]"')
    return datasets


def load(data: Path) -> tuple[Split, Split]:
    """CIFAR10-DVS in the folder `data`: training and test."""
    recordings = tonic_datasets().CIFAR10DVS(str(data), transform=to_frames)
    # tonic lists files in the order of the disk, which differs between machines.
    order = sorted(range(len(recordings)), key=lambda i: recordings.data[i])
    labels = np.array([recordings.targets[i] for i in order])
    packed = read_all(recordings, order, data / "CIFAR10DVS" / "frames_10x48x48.npz")
    train = np.concatenate([first_nine_tenths(labels, c) for c in range(CLASSES)])
    test = np.setdiff1d(np.arange(len(labels)), train)
    return Split(packed[train], labels[train]), Split(packed[test], labels[test])


def first_nine_tenths(labels: np.ndarray, label: int) -> np.ndarray:
    of_class = np.flatnonzero(labels == label)
    return of_class[: len(of_class) * 9 // 10]


def to_frames(events: np.ndarray) -> np.ndarray:
    """Whether each pixel had an event in each bin: [time, height, width, polarity].

    The sensor's 128x128 coordinates are multiplied by 3/8 and rounded down.
    """
    from tonic.transforms import Downsample, ToFrame

    small = Downsample(sensor_size=(128, 128, 2), target_size=(SIZE, SIZE))(events)
    counts = ToFrame(sensor_size=(SIZE, SIZE, 2), n_time_bins=TIME)(small)
    return np.moveaxis(counts > 0, 1, -1)


def read_all(recordings, order: list[int], cache: Path) -> np.ndarray:
    """The packed frames of all recordings, read once and then kept in a file."""
    files = [Path(recordings.data[i]) for i in order]
    content = np.array([f"{file.name} {file.stat().st_size}" for file in files])
    if cache.exists():
        kept = np.load(cache)
        if np.array_equal(kept["content"], content):
            return kept["packed"]
    shown = track(order, "reading recordings, once")
    packed = np.stack([np.packbits(_read(recordings, i)) for i in shown])
    partial = cache.with_suffix(".partial.npz")
    np.savez(partial, content=content, packed=packed)
    partial.replace(cache)
    return packed


def _read(recordings, index: int) -> np.ndarray:
    try:
        return recordings[index][0]
    except Exception as error:  # whatever the decoder raises; the file is the news
        file = recordings.data[index]
        raise ValueError(f"{file} cannot be read; download it again") from error


def synthetic(samples: int) -> Split:
    """Random event frames, one in ten pixels, with random classes."""
    rng = np.random.default_rng(0)
    frames = rng.random((samples, TIME, SIZE, SIZE, 2)) < 0.1
    packed = np.packbits(frames.reshape(samples, -1), axis=1)
    return Split(packed, rng.integers(0, CLASSES, samples))


def batches(data: Split, order: np.ndarray, size: int) -> Iterator[Batch]:
    """Batches of `data` in that order; an incomplete last one is dropped."""
    for i in range(0, len(order) - size + 1, size):
        chosen = order[i : i + size]
        frames = np.unpackbits(data.packed[chosen], axis=1).astype(bool)
        frames = frames.reshape(size, TIME, SIZE, SIZE, 2)
        yield np.moveaxis(frames, 1, 0), data.labels[chosen].astype(np.int32)


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
    model: nnx.Module, optimizer: nnx.Optimizer, some: list[Batch] | Iterator[Batch]
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


def test_accuracy(model: nnx.Module, data: Split, size: int) -> float:
    """The share of right answers; the last batch is filled up, so that all count."""
    model.eval()
    count = len(data.labels)
    padded = np.arange(-(-count // size) * size) % count
    answers = [predict(model, frames) for frames, _ in batches(data, padded, size)]
    return float(np.mean(np.concatenate(answers)[:count] == data.labels))


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
        check(args.data)
        training, test = load(args.data)
    else:
        training, test = synthetic(8 * args.batch), synthetic(args.batch)

    tx = sgd(args.epochs * (len(training.labels) // args.batch))
    net = snn.models.CIFAR10DVSVGG(rngs=nnx.Rngs(0))
    plan = make_plan(net, tx, args)
    print(plan)
    if args.save_plan:
        plan.save(args.save_plan)

    model = memopt.apply_plan(net, plan)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    sample = next(batches(training, np.arange(args.batch), args.batch))
    report = memopt.measure(train_step, model, optimizer, *sample, device=args.device)
    peak = f"compiled_peak={report.peak_bytes / MIB:.1f} MiB on {report.device}"

    for epoch in range(1, args.epochs + 1):
        order = np.random.default_rng(epoch).permutation(len(training.labels))
        some = itertools.islice(batches(training, order, args.batch), args.steps)
        print(f"Epoch {epoch}/{args.epochs}: {train_epoch(model, optimizer, some)}")
        print(f"Epoch {epoch}/{args.epochs}: {peak}")
        if args.steps:
            return
        accuracy = test_accuracy(model, test, args.batch)
        print(f"Epoch {epoch}/{args.epochs}: test_acc={accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
