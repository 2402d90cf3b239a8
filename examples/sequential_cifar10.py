"""Trains a spiking network that reads CIFAR-10 column by column, with a memory plan.

    python examples/sequential_cifar10.py --data ~/data --out runs/seq    # 256 epochs
    python examples/sequential_cifar10.py --data ~/data --by pixels --epochs 64
    python examples/sequential_cifar10.py --synthetic --steps 2 --width 16 --batch 4
    python examples/sequential_cifar10.py --synthetic --device a100 --plan-only

An image is 32 time steps, a column each, or by `--by pixels` 1024, a pixel each, for a
network of linear blocks. The network, SGD at 0.1 with momentum 0.9 and a cosine
schedule, batches of 128, 256 epochs and label smoothing are those of Fang et al.,
"Parallel Spiking Neurons with High Efficiency and Ability to Learn Long-term
Dependencies", NeurIPS 2023, and its code. Left out, but for flips: augmentation.

`--data` names the folder that holds `cifar-10-batches-py`. With `--out`, the same
command again goes on from the last checkpoint, by the plan that is kept with it.
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

STATISTICS = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
CODES = {
    "columns": snn.data.Columns(**STATISTICS),  # [32, batch, 32, 3]
    "pixels": snn.data.Pixels(**STATISTICS),  # [1024, batch, 3]
}
TARGETS = snn.layer.ConvBlock, snn.layer.LinearBlock
LOSS = snn.train.Classifier(functools.partial(snn.loss.cross_entropy, smoothing=0.1))


def load(args: argparse.Namespace) -> tuple[snn.data.Samples, snn.data.Samples]:
    """CIFAR-10, or random images: training and test."""
    if args.synthetic:
        return synthetic(8 * args.batch), synthetic(args.batch)
    try:
        return snn.data.cifar10(args.data), snn.data.cifar10(args.data, train=False)
    except FileNotFoundError as error:
        sys.exit(str(error))


def synthetic(samples: int) -> snn.data.Samples:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (samples, 32, 32, 3), np.uint8)
    return snn.data.from_arrays(images, rng.integers(0, 10, samples))


def network(by: str, width: int) -> nnx.Module:
    """Convolutions over columns; over pixels, which have no height, linear blocks."""
    rngs = nnx.Rngs(0)
    if by == "columns":
        return snn.models.SequentialCIFARNet(width=width, rngs=rngs)
    block = functools.partial(snn.layer.LinearBlock, rngs=rngs)
    readout = snn.layer.Linear(width, 10, rngs=rngs)
    return snn.layer.Sequential(
        block(3, width), block(width, width), block(width, width), readout
    )


def arguments() -> argparse.Namespace:
    parser = workload.flags(
        "Sequential CIFAR-10.",
        data="the folder that holds cifar-10-batches-py",
        synthetic="random images",
        epochs=256,
        batch=128,
    )
    parser.add_argument("--by", choices=CODES, default="columns", help="a time step")
    parser.add_argument("--width", type=int, default=128, help="channels")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    training, test = load(args)
    steps, test = workload.length(args, training, test)
    batches = functools.partial(
        snn.data.batches, encoder=CODES[args.by], batch_size=args.batch
    )

    def shuffled(number: int) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        flip = [snn.data.Flip()]
        return batches(training, shuffle=True, seed=number, augment=flip)

    tx = optax.sgd(optax.cosine_decay_schedule(0.1, args.epochs * steps), momentum=0.9)
    net = network(args.by, args.width)
    tested = batches(test, fill=True)
    workload.train(
        net, TARGETS, LOSS, tx, shuffled, tested, args, steps_per_epoch=steps
    )


if __name__ == "__main__":
    main()
