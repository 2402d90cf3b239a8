"""What the scripts of the paper's workloads share: flags, a memory plan, the training.

With `--out`, a script that is started again goes on from the last checkpoint there, by
the plan that is kept with it.
"""

import argparse
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import optax
from flax import nnx

import snnjax as snn
from snnjax import memopt

Batch = tuple[np.ndarray, np.ndarray]


def flags(
    description: str, *, data: str, synthetic: str, epochs: int, batch: int
) -> argparse.ArgumentParser:
    """A parser of what all scripts take; `data` and `synthetic` are help texts."""
    parser = argparse.ArgumentParser(description=description)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help=data)
    source.add_argument("--synthetic", action="store_true", help=synthetic)
    parser.add_argument("--out", type=Path, help="save here, and go on from there")
    parser.add_argument("--profile", default="balanced", help="of the planner")
    parser.add_argument("--budget", help='fit in "2GiB"; in place of --profile')
    parser.add_argument("--device", help='plan for this GPU, such as "rtx4090"')
    parser.add_argument("--plan-only", action="store_true", help="do not train")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--batch", type=int, default=batch, help="samples in a batch")
    parser.add_argument("--steps", type=int, help="one epoch of so many, for a trial")
    return parser


def length(
    args: argparse.Namespace, training: snn.data.Samples, test: snn.data.Samples
) -> tuple[int, snn.data.Samples]:
    """Steps of an epoch, and what to test on; a trial is one short epoch."""
    if not args.steps:
        return len(training) // args.batch, test
    args.epochs = 1
    return args.steps, test.take(np.arange(min(len(test), args.steps * args.batch)))


def random_events(
    samples: int, *, count: int, span: int, classes: int
) -> snn.data.Samples:
    """Recordings of a DVS128: `count` events each, in `span` microseconds."""
    rng = np.random.default_rng(0)
    fields = [("t", "i8"), ("x", "i2"), ("y", "i2"), ("p", "i1")]
    events = np.zeros((samples, count), fields)
    for field, end in (("t", span), ("x", 128), ("y", 128), ("p", 2)):
        events[field] = rng.integers(0, end, events.shape)
    labels = rng.integers(0, classes, samples)
    return snn.data.from_arrays(events, labels, size=(128, 128, 2))


def make_plan(
    net: nnx.Module,
    targets: Any,
    loss: Any,
    tx: optax.GradientTransformation,
    batch: Batch,
    args: argparse.Namespace,
) -> memopt.Plan:
    """The plan that the run in `--out` has, or a new one."""
    if args.out:
        with contextlib.closing(snn.train.Checkpoints(args.out)) as saved:
            if saved.latest is not None:
                return memopt.Plan.from_json(saved.notes()["plan"])
    wanted = {"budget": args.budget} if args.budget else {"profile": args.profile}
    step = {"loss": loss, "optimizer": tx, "device": args.device}
    return memopt.make_plan(net, targets, batch, **step, **wanted)


def train(
    net: nnx.Module,
    targets: Any,
    loss: Any,
    tx: optax.GradientTransformation,
    shuffled: Callable[[int], Iterable[Batch]],
    tested: Iterable[Batch],
    args: argparse.Namespace,
    **fit: Any,
) -> None:
    """Plans, trains by the plan, and prints the figures of each epoch.

    Args:
        net: what to train.
        targets: which of its modules become segments.
        loss: what to minimize, a `Classifier`.
        tx: the optimizer.
        shuffled: batches of a pass, by its number.
        tested: batches to evaluate on.
        args: what `flags` read.
        **fit: more arguments of `Trainer.fit`.
    """
    plan = make_plan(net, targets, loss, tx, next(iter(shuffled(0))), args)
    print(plan)  # with the compiled step's bytes, plain and planned
    if args.plan_only:
        return
    model, kept = memopt.apply_plan(net, plan), {"plan": plan.to_json()}
    trainer = snn.train.Trainer(model, loss, tx, checkpoints=args.out, **kept)
    history = trainer.fit(shuffled, tested, epochs=args.epochs, **fit)
    for epoch, figures in enumerate(history, 1):
        print(f"epoch {epoch}:", *(f"{k}={v:.4g}" for k, v in figures.items()))
