"""Trains the network of the PLIF paper on DVS Gesture, with a memory plan.

    python examples/dvs_gesture.py --data ~/data --out runs/gesture     # 192 epochs
    python examples/dvs_gesture.py --data ~/data --budget 4GiB
    python examples/dvs_gesture.py --synthetic --steps 2 --size 32 --width 16 --batch 2
    python examples/dvs_gesture.py --synthetic --device rtx4090 --plan-only

The network, 20 frames of 128x128 pixels, batches of 16, Adam at 1e-3 with a cosine
schedule, and the squared error of the rates are those of Fang et al., "Incorporating
Learnable Membrane Time Constant to Enhance Learning of Spiking Neural Networks", ICCV
2021. Here frames last equally long and say whether there was an event; there they hold
counts of equally many events (`snn.data.EventBins(20, max_count=None)`), and the cosine
rises again after 64 epochs.

`--data` names the folder that holds `DVSGesture`. Frames are made once, and then kept
beside the recordings. With `--out`, the same command again goes on from the last
checkpoint, by the plan that is kept with it.
"""

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import optax
from flax import nnx

import snnjax as snn
from snnjax import memopt

TARGETS = snn.layer.ConvBlock
LOSS = snn.train.Classifier(snn.loss.rate_mse)


def load(args: argparse.Namespace) -> tuple[snn.data.Samples, snn.data.Samples]:
    """DVS Gesture, or recordings of random events: training and test."""
    if args.synthetic:
        return synthetic(8 * args.batch), synthetic(args.batch)
    gesture = functools.partial(snn.data.dvs_gesture, args.data)
    try:
        return gesture(train=True), gesture(train=False)
    except (FileNotFoundError, ImportError) as error:
        sys.exit(str(error))


def synthetic(samples: int) -> snn.data.Samples:
    rng = np.random.default_rng(0)
    fields = [("t", "i8"), ("x", "i2"), ("y", "i2"), ("p", "i1")]
    events = np.zeros((samples, 20_000), fields)
    for field, end in (("t", 6 * 10**6), ("x", 128), ("y", 128), ("p", 2)):
        events[field] = rng.integers(0, end, events.shape)
    labels = rng.integers(0, 11, samples)
    return snn.data.from_arrays(events, labels, size=(128, 128, 2))


def make_plan(
    net: nnx.Module,
    tx: optax.GradientTransformation,
    batch: tuple[np.ndarray, np.ndarray],
    args: argparse.Namespace,
) -> memopt.Plan:
    """The plan that the run in `--out` has, or a new one."""
    if args.out:
        with contextlib.closing(snn.train.Checkpoints(args.out)) as saved:
            if saved.latest is not None:
                return memopt.Plan.from_json(saved.notes()["plan"])
    wanted = {"budget": args.budget} if args.budget else {"profile": args.profile}
    step = {"loss": LOSS, "optimizer": tx, "device": args.device}
    return memopt.make_plan(net, TARGETS, batch, **step, **wanted)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The PLIF net on DVS Gesture.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="the folder that holds DVSGesture")
    source.add_argument("--synthetic", action="store_true", help="random events")
    parser.add_argument("--out", type=Path, help="save here, and go on from there")
    parser.add_argument("--profile", default="balanced", help="of the planner")
    parser.add_argument("--budget", help='fit in "2GiB"; in place of --profile')
    parser.add_argument("--device", help='plan for this GPU, such as "rtx4090"')
    parser.add_argument("--plan-only", action="store_true", help="do not train")
    parser.add_argument("--frames", type=int, default=20, help="time steps")
    parser.add_argument("--size", type=int, default=128, help="pixels along a side")
    parser.add_argument("--width", type=int, default=128, help="channels")
    parser.add_argument("--epochs", type=int, default=192)
    parser.add_argument("--batch", type=int, default=16, help="samples in a batch")
    parser.add_argument("--steps", type=int, help="one epoch of so many, for a trial")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    training, test = load(args)
    steps = args.steps or len(training) // args.batch
    if args.steps:
        args.epochs = 1
        test = test.take(np.arange(min(len(test), steps * args.batch)))
    frames = snn.data.TimeBins(args.frames, size=(args.size, args.size))  # bool: {0, 1}
    cache = args.data.expanduser() / "DVSGesture" / "frames" if args.data else None
    batches = functools.partial(
        snn.data.batches, encoder=frames, batch_size=args.batch, cache=cache
    )

    def shuffled(number: int) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        return batches(training, shuffle=True, seed=number)

    tx = optax.adam(optax.cosine_decay_schedule(1e-3, args.epochs * steps))
    net = snn.models.DVSGestureNet(
        image_size=args.size, width=args.width, rngs=nnx.Rngs(0)
    )
    plan = make_plan(net, tx, next(iter(shuffled(0))), args)
    print(plan)  # with the compiled step's bytes, plain and planned
    if args.plan_only:
        return
    model, kept = memopt.apply_plan(net, plan), {"plan": plan.to_json()}
    trainer = snn.train.Trainer(model, LOSS, tx, checkpoints=args.out, **kept)
    tested = batches(test, fill=True)
    history = trainer.fit(shuffled, tested, epochs=args.epochs, steps_per_epoch=steps)
    for epoch, figures in enumerate(history, 1):
        print(f"epoch {epoch}:", *(f"{k}={v:.4g}" for k, v in figures.items()))


if __name__ == "__main__":
    main()
