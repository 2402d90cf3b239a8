"""Trains SEW-ResNet-34 or Spikformer-8-512 on ImageNet, with a memory plan.

    python examples/imagenet.py --data ~/imagenet --out runs/sew        # 320 epochs
    python examples/imagenet.py --data ~/imagenet --net spikformer --epochs 300
    python examples/imagenet.py --synthetic --device a100 --profile memory --plan-only
    python examples/imagenet.py --synthetic --steps 2 --size 32 --width 8 --batch 2

Images are repeated for 4 time steps. The rates are those of the networks' own code: SGD
at 0.1 for 256 images (here in proportion to the batch) with momentum 0.9 for SEW-ResNet
(Fang et al., NeurIPS 2021), with the TET loss in place of its own; AdamW at 5e-4 with
weight decay 0.05 and label smoothing 0.1 for Spikformer (Zhou et al., ICLR 2023); both
with a cosine schedule. Left out, but for flips: augmentation; and warming up.

`--data` names the folder that holds `train` and `val`, each with one folder a class.
With `--out`, the same command again goes on from the last checkpoint, by the plan that
is kept with it.
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

CODE = snn.data.Repeat(steps=4, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
BLOCKS = {
    "sew_resnet": (snn.models.SEWBlock, snn.layer.ConvBlock),  # the latter is the stem
    "spikformer": (snn.models.SpikformerBlock, snn.models.SpikingPatchSplitting),
}
LOSSES = {
    "sew_resnet": snn.train.Classifier(snn.loss.tet),
    "spikformer": snn.train.Classifier(
        functools.partial(snn.loss.cross_entropy, smoothing=0.1)
    ),
}


def load(args: argparse.Namespace) -> tuple[snn.data.Samples, snn.data.Samples]:
    """ImageNet, or random images: training and test."""
    if args.synthetic:
        return synthetic(8 * args.batch, args.size), synthetic(args.batch, args.size)
    parts = args.data / "train", args.data / "val"
    try:
        training, test = (snn.data.image_folder(p, size=args.size) for p in parts)
    except (FileNotFoundError, ImportError) as error:
        sys.exit(str(error))
    return training, test


def synthetic(samples: int, size: int) -> snn.data.Samples:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (samples, size, size, 3), np.uint8)
    classes, labels = [str(i) for i in range(1000)], rng.integers(0, 1000, samples)
    return snn.data.from_arrays(images, labels, classes=classes)


def network(args: argparse.Namespace, classes: int) -> nnx.Module:
    """SEW-ResNet-34 or Spikformer-8-512, unless args say otherwise."""
    settings = {"num_classes": classes, "rngs": nnx.Rngs(0)}
    if args.net == "sew_resnet":
        depth, width = args.depth or 34, args.width or 64
        return snn.models.SEWResNet(depth, width=width, **settings)
    depth, width = args.depth or 8, args.width or 512
    return snn.models.Spikformer(width, depth, heads=8, **settings)


def optimizer(net: str, batch: int, steps: int) -> optax.GradientTransformation:
    if net == "sew_resnet":
        rate = optax.cosine_decay_schedule(0.1 * batch / 256, steps)
        return optax.sgd(rate, momentum=0.9)
    return optax.adamw(optax.cosine_decay_schedule(5e-4, steps), weight_decay=0.05)


def arguments() -> argparse.Namespace:
    parser = workload.flags(
        "Deep spiking networks on ImageNet.",
        data="the folder that holds train and val",
        synthetic="random images",
        epochs=320,
        batch=32,
    )
    parser.add_argument("--net", choices=BLOCKS, default="sew_resnet")
    parser.add_argument("--depth", type=int, help="34; for Spikformer, 8 blocks")
    parser.add_argument("--width", type=int, help="channels, 64; for Spikformer, 512")
    parser.add_argument("--size", type=int, default=224, help="pixels along a side")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    training, test = load(args)
    steps, test = workload.length(args, training, test)
    batches = functools.partial(snn.data.batches, encoder=CODE, batch_size=args.batch)

    def shuffled(number: int) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        flip = [snn.data.Flip()]
        return batches(training, shuffle=True, seed=number, augment=flip)

    tx = optimizer(args.net, args.batch, args.epochs * steps)
    net = network(args, len(training.classes))
    tested = batches(test, fill=True)
    workload.train(
        net,
        BLOCKS[args.net],
        LOSSES[args.net],
        tx,
        shuffled,
        tested,
        args,
        steps_per_epoch=steps,
        save_every=1000,
    )


if __name__ == "__main__":
    main()
