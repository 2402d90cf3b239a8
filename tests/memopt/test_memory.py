"""The headline: the tutorial's VGG, a whole donated training step, in compiled bytes.

N=8, T=10, 48x48. SpikingJelly on an RTX 4090: 1022 MB plain, 834 MB at level 1. The
bounds are those of the issue for the GPUs, and ours with 5 % of margin for the CPU.
"""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import snnjax as snn
from snnjax import memopt
from snnjax._step import make_step
from snnjax.memopt._profile import Training, measure_step

MIB = 2**20
BATCH = (
    jax.ShapeDtypeStruct((10, 8, 48, 48, 2), jnp.float32),
    jax.ShapeDtypeStruct((8,), jnp.int32),
)


def loss(model, frames, labels):
    scores = model(frames).mean(0)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def vgg():
    return nnx.eval_shape(lambda: snn.models.CIFAR10DVSVGG(rngs=nnx.Rngs(0)))


def plan(device=None):
    blocks, sgd = (snn.models.VGGBlock,), optax.sgd(0.01)
    return memopt.make_plan(
        vgg(), blocks, BATCH, loss=loss, optimizer=sgd, device=device
    )


@pytest.fixture(scope="module")
def cpu_plan():
    return plan()


def assert_peaks(made, plain, level1):
    assert made.plain_bytes / MIB <= plain
    assert made.planned_bytes / MIB <= level1


def test_peak_on_cpu(cpu_plan):
    assert_peaks(cpu_plan, 900, 530)


@pytest.mark.parametrize("device", ["h200", "rtx4090"])
def test_peak_on_a_gpu_that_is_not_there(device, cuda_wheels):
    assert_peaks(plan(device), 810, 395)


def chunked(made, **settings):
    return memopt.apply_plan(
        vgg(), made.with_chunks(*(s.path for s in made.segments), **settings)
    )


def peak(net, device=None):
    training = Training(loss, optax.sgd(0.01), BATCH)
    return measure_step(net, training, device).peak_bytes / MIB


@pytest.mark.slow
def test_batch_chunks_on_cpu(cpu_plan):
    """370 MiB is the first bound of issue 4, 300 its target; ours with 5 %."""
    assert peak(chunked(cpu_plan, batch=8)) <= 265
    assert peak(chunked(cpu_plan, batch=8, forward_by="chunks")) <= 180


def test_batch_chunks_on_a_gpu_that_is_not_there(cuda_wheels, cpu_plan):
    """255 MiB is the first bound, 200 its target; SpikingJelly's best is 589 MB."""
    assert peak(chunked(cpu_plan, batch=8), "rtx4090") <= 230
    both = chunked(cpu_plan, batch=8, forward_by="chunks")
    assert peak(both, "rtx4090") <= 165


class Long(nnx.Module):
    """Two blocks with their pools over a long sequence."""

    def __init__(self, rngs):
        block = snn.models.VGGBlock
        self.blocks = snn.layer.Sequential(
            block(2, 32, pool=True, rngs=rngs), block(32, 64, pool=True, rngs=rngs)
        )
        self.head = snn.layer.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(self.blocks(x).mean((2, 3)))


def test_time_chunks_of_a_long_sequence():
    """T=256, N=1: a quarter of level 1's peak at most."""
    batch = (
        jax.ShapeDtypeStruct((256, 1, 32, 32, 2), jnp.float32),
        jax.ShapeDtypeStruct((1,), jnp.int32),
    )
    training = Training(loss, optax.sgd(0.01), batch)
    net = nnx.eval_shape(lambda: Long(nnx.Rngs(0)))
    level1 = memopt.make_plan(
        net, (snn.models.VGGBlock,), batch, loss=loss, optimizer=training.optimizer
    )
    blocks = [s.path for s in level1.segments]
    made = level1.with_chunks(*blocks, time=16, forward_by="chunks")
    chunks = measure_step(memopt.apply_plan(net, made), training, None)
    assert chunks.peak_bytes * 4 <= level1.planned_bytes


def test_saved_bytes(cpu_plan):
    """Seven inputs at a bit a value, the frames, and a small rest: 13 MiB of 1034."""
    assert cpu_plan.planned_residual_bytes / MIB < 14


def test_level_1_repeats_every_convolution(cpu_plan):
    """On CPU, too, where XLA undoes `jax.checkpoint`.

    The first block's convolution is XLA's, and its weight gradient takes 2 products. A
    pass of the seven others takes 16 products and one for its weights; the classifier
    takes three in all.
    """

    def count(net):
        optimizer = nnx.eval_shape(
            lambda m: nnx.Optimizer(m, optax.sgd(0.01), wrt=nnx.Param), net
        )
        step = nnx.jit(make_step(loss), donate_argnums=(0, 1))
        text = step.lower(net, optimizer, *BATCH).compile().as_text()
        found = (re.findall(rf" {name}\(", text) for name in ("convolution", "dot"))
        return tuple(map(len, found))

    assert count(vgg()) == (1, 2 + 7 * 3 * 17 + 3)
    assert count(memopt.apply_plan(vgg(), cpu_plan)) == (2, 2 + 7 * 4 * 17 + 3)
