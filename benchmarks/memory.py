"""Bytes of a training step: plain, level 1 and in chunks.

Three workloads: the tutorial's VGG; a growing chain of blocks; a long sequence, T=256
of one sample through two blocks. `batch 8` runs the backward pass of all blocks over 8
batch chunks, `batch 8 +` the forward pass too. Both are hand-written plans.

Peak is temp + argument + output - alias of the whole donated step (loss, gradient,
update), compiled and not run, for this machine's CPU and for GPUs that need not be
here. Residual bytes are what is kept from forward to backward. `--time` also runs all
of them by turns in this process and gives the medians of the paired ratios.

    JAX_PLATFORMS=cpu python benchmarks/memory.py
    JAX_PLATFORMS=cpu python benchmarks/memory.py --devices cpu --time 5
"""

import argparse
import json
import re
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from conditions import conditions
from flax import nnx
from rich.console import Console
from rich.table import Table
from training import loss, step

import snnjax as snn
from snnjax import memopt

MIB = 2**20
TIME, BATCH, SIDE = 10, 8, 48
OPTIMIZER = optax.sgd(0.01)
RESULTS = Path(__file__).parent / "results"
STEP = f"VGG, T={TIME}, N={BATCH}, {SIDE}x{SIDE}, sgd, donated, float32"


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


def vgg_plans(plan):
    """The plans that are compared, by name; None is the plain model."""
    blocks = [segment.path for segment in plan.segments]
    return {
        "plain": None,
        "level 1": plan,
        "batch 8": plan.with_chunks(*blocks, batch=8),
        "batch 8 +": plan.with_chunks(*blocks, batch=8, forward_by="chunks"),
    }


class Long(nnx.Module):
    """Two blocks with their pools, and a linear readout."""

    def __init__(self, rngs: nnx.Rngs):
        block = snn.models.VGGBlock
        self.blocks = snn.layer.Sequential(
            block(2, 32, pool=True, rngs=rngs), block(32, 64, pool=True, rngs=rngs)
        )
        self.head = snn.layer.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(self.blocks(x).mean((2, 3)))


def long_plans(plan):
    blocks = [segment.path for segment in plan.segments]
    return {
        "plain": None,
        "level 1": plan,
        "time 16 +": plan.with_chunks(*blocks, time=16, forward_by="chunks"),
    }


def report(make, plan, example, device, **settings):
    """Memory of the compiled, donated step under a plan, or of plain's."""
    net = nnx.eval_shape(make)
    if plan is not None:
        net = memopt.apply_plan(net, plan)
    optimizer = nnx.eval_shape(
        lambda m: nnx.Optimizer(m, OPTIMIZER, wrt=nnx.Param), net
    )
    jitted = nnx.jit(step, donate_argnums=(0, 1))
    return memopt.measure(jitted, net, optimizer, *example, device=device, **settings)


def peak(make, plan, example, device):
    return report(make, plan, example, device).peak_bytes


def peaks(make, plans, example, devices):
    rows = {}
    for name in devices:
        device = None if name == "cpu" else name
        rows[name] = {n: peak(make, p, example, device) for n, p in plans.items()}
    return rows


def program_growth(plan):
    """Instructions of the compiled step with 2 and with 8 batch chunks."""
    blocks = [segment.path for segment in plan.segments]
    counts = []
    for k in (2, 8):
        net = memopt.apply_plan(vgg(), plan.with_chunks(*blocks, batch=k))
        optimizer = nnx.Optimizer(net, OPTIMIZER, wrt=nnx.Param)
        lowered = nnx.jit(step, donate_argnums=(0, 1)).lower(net, optimizer, *batch())
        counts.append(
            len(re.findall(r"(?m)^ +(?:ROOT )?%", lowered.compile().as_text()))
        )
    return {"k=2": counts[0], "k=8": counts[1], "growth": counts[1] / counts[0] - 1}


def compiled_and_timed(plans, repeats):
    """Convolutions in the compiled steps, and times of all plans over plain."""
    key = jax.random.key(0)
    frames = jax.random.bernoulli(key, 0.1, (TIME, BATCH, SIDE, SIDE, 2))
    example = frames.astype(jnp.float32), jnp.arange(BATCH) % 10
    thunks, counts = {}, {}
    for name, plan in plans.items():
        net = vgg() if plan is None else memopt.apply_plan(vgg(), plan)
        optimizer = nnx.Optimizer(net, OPTIMIZER, wrt=nnx.Param)
        jitted = nnx.jit(step, donate_argnums=(0, 1))
        text = jitted.lower(net, optimizer, *example).compile().as_text()
        counts[name] = count_products(text)
        thunks[name] = lambda j=jitted, n=net, o=optimizer: j(n, o, *example)
    return counts, alternating(thunks, repeats)


def count_products(text):
    """Convolutions and matrix products in a compiled program.

    On CPU the first block's convolution is XLA's, and its weight gradient two products.
    A pass of one of the seven others, forward or a gradient, is 17 products, and the
    classifier has three. So a plain step is 1 convolution and 2 + 7 * 3 * 17 + 3
    products, and one that repeats its forward pass 1 and 7 * 17 more.
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
    ratios = {
        name: [b / a for a, b in zip(runs["plain"], seconds)]
        for name, seconds in runs.items()
    }
    return {
        name: {
            "median_s": statistics.median(seconds),
            "over_plain": statistics.median(ratios[name]),
            "ratios": ratios[name],
        }
        for name, seconds in runs.items()
    }


def table_of(title, rows):
    table = Table(title=title)
    for i, name in enumerate(("device", *next(iter(rows.values())))):
        table.add_column(name, justify="right" if i else "left")
    for device, row in rows.items():
        table.add_row(device, *(f"{n / MIB:.1f}" for n in row.values()))
    return table


def show(result):
    console = Console()
    console.print(table_of("VGG, peak of one training step, MiB", result["vgg"]))
    console.print(table_of("T=256, N=1, peak, MiB", result["long"]))
    chain, growth = result["chain"], result["program"]
    console.print(
        f"kept an added layer: {chain['slope_plain']:.3f} activations plain, "
        f"{chain['slope_level1']:.4f} at level 1"
    )
    console.print(
        f"instructions: {growth['k=2']} with 2 chunks, {growth['k=8']} with 8 "
        f"({growth['growth']:+.1%})"
    )
    for name, row in result.get("time", {}).items():
        console.print(f"{name}: {row['over_plain']:.3f} of plain's time")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="cpu,h200,rtx4090")
    parser.add_argument("--time", type=int, default=0, metavar="REPEATS")
    parser.add_argument("--out", type=Path, default=RESULTS / "memory.json")
    arguments = parser.parse_args()
    devices = arguments.devices.split(",")
    plan = plan_for(vgg, batch())
    long, example = lambda: Long(nnx.Rngs(0)), batch(256, 1, 32)
    result = {
        "conditions": conditions(step=STEP),
        "vgg": peaks(vgg, vgg_plans(plan), batch(), devices),
        "vgg_residual": {
            "plain": plan.plain_residual_bytes,
            "level 1": plan.planned_residual_bytes,
        },
        "long": peaks(long, long_plans(plan_for(long, example)), example, devices),
        "chain": chain_growth(),
        "program": program_growth(plan),
    }
    if arguments.time:
        timed = compiled_and_timed(vgg_plans(plan), arguments.time)
        result["compiled"], result["time"] = timed
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
