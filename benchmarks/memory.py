"""Bytes of a training step, plain and level 1: the tutorial's VGG, and a growing chain.

Peak is temp + argument + output - alias of the whole donated step (loss, gradient,
update), compiled and not run, for this machine's CPU and for GPUs that need not be
here. Residual bytes are what is kept from forward to backward. `--time` also runs plain
and level 1 by turns in this process and gives the median of the paired ratios.

    JAX_PLATFORMS=cpu python benchmarks/memory.py
    JAX_PLATFORMS=cpu python benchmarks/memory.py --devices cpu --time 5
"""

import argparse
import json
import os
import platform
import re
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from rich.console import Console
from rich.table import Table

import snnjax as snn
from snnjax import memopt

MIB = 2**20
TIME, BATCH, SIDE = 10, 8, 48
OPTIMIZER = optax.sgd(0.01)
RESULTS = Path(__file__).parent / "results"


def loss(model, frames, labels):
    rate = model(frames).mean(0)
    return optax.softmax_cross_entropy_with_integer_labels(rate, labels).mean()


def step(model, optimizer, frames, labels):
    value, gradients = nnx.value_and_grad(loss)(model, frames, labels)
    optimizer.update(model, gradients)
    return value


class Chain(nnx.Module):
    """Convolution, batch norm and LIF, `depth` times over, 32 channels."""

    def __init__(self, depth: int, rngs: nnx.Rngs):
        self.blocks = snn.layer.Sequential(
            *(snn.models.VGGBlock(32, 32, rngs=rngs) for _ in range(depth))
        )

    def __call__(self, x):
        return self.blocks(x).mean((2, 3))


def vgg():
    return snn.models.CIFAR10DVSVGG(rngs=nnx.Rngs(0))


def batch(time=TIME, batch=BATCH, side=SIDE, channels=2):
    shape = (time, batch, side, side, channels)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return jax.ShapeDtypeStruct(shape, jnp.float32), labels


def plan_for(make, example, device=None):
    net = nnx.eval_shape(make)
    blocks = (snn.models.VGGBlock,)
    return memopt.make_plan(
        net, blocks, example, loss=loss, optimizer=OPTIMIZER, device=device
    )


def chain_growth():
    """Saved activations an added layer: plain, and level 1."""
    unit = 8 * 8 * 16 * 16 * 32 * 4  # bytes of one activation, float32
    rows = []
    for depth in (6, 12, 24):
        plan = plan_for(
            lambda depth=depth: Chain(depth, nnx.Rngs(0)), batch(8, 8, 16, 32)
        )
        kept = plan.plain_residual_bytes, plan.planned_residual_bytes
        rows.append((depth, *(b / unit for b in kept)))
    slopes = [(rows[-1][i] - rows[0][i]) / (24 - 6) for i in (1, 2)]
    return {"rows": rows, "slope_plain": slopes[0], "slope_level1": slopes[1]}


def compiled_and_timed(plan, repeats):
    """Convolutions in the compiled steps, and the time of level 1 over plain."""
    key = jax.random.key(0)
    frames = jax.random.bernoulli(key, 0.1, (TIME, BATCH, SIDE, SIDE, 2))
    example = frames.astype(jnp.float32), jnp.arange(BATCH) % 10
    thunks, counts = {}, {}
    for name, net in (("plain", vgg()), ("level1", memopt.apply_plan(vgg(), plan))):
        optimizer = nnx.Optimizer(net, OPTIMIZER, wrt=nnx.Param)
        jitted = nnx.jit(step, donate_argnums=(0, 1))
        text = jitted.lower(net, optimizer, *example).compile().as_text()
        counts[name] = count_products(text)
        thunks[name] = lambda j=jitted, n=net, o=optimizer: j(n, o, *example)
    return counts, alternating(thunks, repeats)


def count_products(text):
    """Convolutions and matrix products in a compiled program.

    On CPU a weight gradient is two products, the first block of images and the others;
    the classifier has three. So 8 + 7 convolutions and 8 * 2 + 3 products are a plain
    step, 8 convolutions more one that repeats its forward pass.
    """
    return {
        "convolutions": len(re.findall(r" convolution\(", text)),
        "products": len(re.findall(r" dot\(", text)),
    }


def alternating(thunks, repeats):
    runs = {name: [] for name in thunks}
    for thunk in thunks.values():
        jax.block_until_ready(thunk())
    for _ in range(repeats):
        for name, thunk in thunks.items():
            start = time.perf_counter()
            value = jax.block_until_ready(thunk())
            runs[name].append(time.perf_counter() - start)
            print(f"{name}: {runs[name][-1]:.2f} s, loss {float(value):.6f}")
    ratios = [b / a for a, b in zip(runs["plain"], runs["level1"])]
    medians = {name: statistics.median(seconds) for name, seconds in runs.items()}
    return medians | {"ratio": statistics.median(ratios), "ratios": ratios}


def conditions():
    return {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "step": f"VGG, T={TIME}, N={BATCH}, {SIDE}x{SIDE}, sgd, donated, float32",
    }


def show(result):
    table = Table(title="peak of one training step, MiB")
    for name in ("device", "plain", "level 1"):
        table.add_column(name, justify="right" if name != "device" else "left")
    for device, row in result["vgg"].items():
        table.add_row(device, *(f"{row[k] / MIB:.1f}" for k in ("plain", "level1")))
    console = Console()
    console.print(table)
    chain = result["chain"]
    console.print(
        f"kept an added layer: {chain['slope_plain']:.3f} activations plain, "
        f"{chain['slope_level1']:.4f} at level 1"
    )
    if "time" in result:
        console.print(f"level 1 / plain time: {result['time']['ratio']:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="cpu,h200,rtx4090")
    parser.add_argument("--time", type=int, default=0, metavar="REPEATS")
    parser.add_argument("--out", type=Path, default=RESULTS / "memory.json")
    arguments = parser.parse_args()
    result = {"conditions": conditions(), "vgg": {}, "chain": chain_growth()}
    for device in arguments.devices.split(","):
        plan = plan_for(vgg, batch(), None if device == "cpu" else device)
        result["vgg"][device] = {
            "plain": plan.plain_bytes,
            "level1": plan.planned_bytes,
            "plain_residual": plan.plain_residual_bytes,
            "level1_residual": plan.planned_residual_bytes,
        }
    if arguments.time:
        result["compiled"], result["time"] = compiled_and_timed(plan, arguments.time)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
