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
import functools
import sys
from collections.abc import Iterable

import numpy as np
import optax
import workload
from flax import nnx

import snnjax as snn

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
    return workload.random_events(samples, count=20_000, span=6 * 10**6, classes=11)


def arguments() -> argparse.Namespace:
    parser = workload.flags(
        "The PLIF net on DVS Gesture.",
        data="the folder that holds DVSGesture",
        synthetic="random events",
        epochs=192,
        batch=16,
    )
    parser.add_argument("--frames", type=int, default=20, help="time steps")
    parser.add_argument("--size", type=int, default=128, help="pixels along a side")
    parser.add_argument("--width", type=int, default=128, help="channels")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    training, test = load(args)
    steps, test = workload.length(args, training, test)
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
    tested = batches(test, fill=True)
    workload.train(
        net, TARGETS, LOSS, tx, shuffled, tested, args, steps_per_epoch=steps
    )


if __name__ == "__main__":
    main()
