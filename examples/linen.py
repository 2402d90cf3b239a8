"""Trains a spiking network written in Flax Linen, block by block checkpointed.

    python examples/linen.py                # scikit-learn's digits, a minute
    python examples/linen.py --synthetic    # random images, a few steps

`memopt.checkpoint` takes any pure function of parameters and one input, here
`Block.apply`; with Equinox it would be `lambda block, x: block(x)`. Between blocks are
spikes, which the compressor declares: one bit a value is kept.
"""

import argparse
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import snnjax as snn
from snnjax import memopt

STEPS, BATCH, MIB = 4, 50, 2**20
BITS = functools.partial(memopt.checkpoint, compressor=memopt.BitSpikeCompressor())


class Block(nn.Module):
    """Convolution, batch norm, LIF over `[time, batch, height, width, channel]`."""

    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        x = nn.Conv(self.features, (3, 3), self.stride, use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        return snn.neuron.lif(x, tau=2.0, v_threshold=0.5)[0]


BLOCKS = Block(16), Block(16), Block(32, stride=2), Block(32), Block(64, stride=2)
READOUT = nn.Dense(10)


def init(key: jax.Array, x: jax.Array) -> tuple[list[Any], Any]:
    """Variables of every block, and of the readout."""
    variables = []
    for block in BLOCKS:
        variables.append(block.init(key, x))
        x = block.apply(variables[-1], x, False)
    return variables, READOUT.init(key, x.mean((2, 3)))


def scores(
    params: Any, stats: list[Any], x: jax.Array, train: bool, segmented: bool
) -> tuple[jax.Array, list[Any]]:
    """Scores `[batch, 10]`, and the new statistics of batch norm."""
    moved = []
    for i, block in enumerate(BLOCKS):
        call = functools.partial(block.apply, train=train, mutable=["batch_stats"])
        if segmented:  # the first block's input is an image, of which nothing is known
            call = BITS(call) if i else memopt.checkpoint(call)
        x, new = call({"params": params[0][i], **stats[i]}, x)
        moved.append(new)
    return READOUT.apply(params[1], x.mean((2, 3))).mean(0), moved


def make_step(tx: optax.GradientTransformation, segmented: bool) -> Any:
    def loss(params: Any, stats: Any, x: jax.Array, labels: jax.Array) -> Any:
        y, moved = scores(params, stats, x, True, segmented)
        each = optax.softmax_cross_entropy_with_integer_labels(y, labels)
        return each.mean(), moved

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params: Any, stats: Any, state: Any, x: Any, labels: Any) -> Any:
        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, moved), gradients = gradient(params, stats, x, labels)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), moved, state, value

    return step


def load(synthetic: bool) -> snn.data.Samples:
    if synthetic:
        rng = np.random.default_rng(0)
        images, labels = rng.random((250, 8, 8, 1)), rng.integers(0, 10, 250)
        return snn.data.from_arrays(images.astype(np.float32), labels)
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)
    return snn.data.from_arrays(images, digits.target)


def main() -> None:
    parser = argparse.ArgumentParser(description="A Linen network, checkpointed.")
    parser.add_argument("--synthetic", action="store_true", help="random images")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    code = snn.data.Repeat(steps=STEPS)
    training, test = snn.data.split(load(args.synthetic), fraction=0.2, seed=0)
    epochs = 1 if args.synthetic else args.epochs
    settings = {"shuffle": True, "epochs": epochs, "augment": [snn.data.Shift(1)]}

    tx = optax.adam(
        optax.cosine_decay_schedule(3e-3, epochs * (len(training) // BATCH))
    )
    losses = {}
    for name, segmented in (("plain", False), ("checkpointed", True)):
        variables, readout = init(jax.random.key(0), jnp.zeros((STEPS, BATCH, 8, 8, 1)))
        params = [v.pop("params") for v in variables], readout
        stats, state = variables, tx.init(params)
        step, losses[name] = make_step(tx, segmented), []
        for x, labels in snn.data.batches(training, code, BATCH, **settings):
            if not losses[name]:
                report = memopt.measure(step, params, stats, state, x, labels)
            params, stats, state, value = step(params, stats, state, x, labels)
            losses[name].append(float(value))
        right = [
            np.argmax(scores(params, stats, x, False, False)[0], -1) == labels
            for x, labels in snn.data.batches(test, code, BATCH)
        ]
        peak = f"{report.peak_bytes / MIB:.1f} MiB at the peak of a step"
        print(f"{name}: {peak}, last loss {value:.5f}, accuracy {np.mean(right):.2%}")
    difference = np.abs(np.subtract(*losses.values())).max()
    print(f"largest difference of two losses: {difference:.2g}")


if __name__ == "__main__":
    main()
