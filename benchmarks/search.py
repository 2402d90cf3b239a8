"""The planner's search: seconds, peaks and estimated times, for a GPU that is not here.

The tutorial's VGG, N=8, T=10, 48x48, under each preset, three budgets and a slowdown;
and a 24-block SEW ResNet. SpikingJelly on an RTX 4090 takes 37, 90 and 451 s for
balanced, memory and exhaustive, and ends at 788, 672 and 589 MB. The cache of compiled
figures is off.

    JAX_PLATFORMS=cpu python benchmarks/search.py
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ["SNNJAX_CACHE_DIR"] = ""

import jax
import jax.numpy as jnp
import optax
from conditions import conditions
from flax import nnx
from memory import MIB, OPTIMIZER, RESULTS, STEP, batch, vgg
from rich.console import Console
from rich.table import Table
from training import loss

import snnjax as snn
from snnjax import memopt

SEARCHES = {
    "safe": {"profile": "safe"},
    "balanced": {"profile": "balanced"},
    "memory": {"profile": "memory"},
    "exhaustive": {"profile": "exhaustive"},
    "level 4": {"level": 4},
    "300 MiB": {"budget": "300MiB"},
    "400 MiB": {"budget": "400MiB"},
    "500 MiB": {"budget": "500MiB"},
    "600 MiB": {"budget": "600MiB"},
    "1.2x": {"max_slowdown": 1.2},
}
STEPS = f"{STEP}; 24 blocks: SEW, T=4, N=16, 48x48, adam"


class SEWNet(nnx.Module):
    """A convolution, 24 blocks with a pool after each six, and a linear readout."""

    def __init__(self, rngs: nnx.Rngs):
        block = snn.models.SEWBlock
        self.stem = snn.layer.ConvBlock(2, 32, neuron=snn.neuron.IF, rngs=rngs)
        self.blocks = nnx.List([block(32, 32, rngs=rngs) for _ in range(24)])
        self.pool = snn.layer.MaxPool(2)
        self.head = snn.layer.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            x = block(x)
            x = self.pool(x) if i % 6 == 5 else x
        return self.head(x.mean((2, 3)))


def run(net, blocks, example, optimizer, device, **settings):
    start = time.perf_counter()
    plan = memopt.make_plan(
        net, blocks, example, loss=loss, optimizer=optimizer, device=device, **settings
    )
    seconds = time.perf_counter() - start
    # Level 1 has no trials; plain and planned are compiled.
    compiled = sum(trial.measured for trial in plan.trials) or 2
    return {
        "seconds": seconds,
        "compiled": compiled,
        "plain": plan.plain_bytes,
        "planned": plan.planned_bytes,
        "slowdown": plan.slowdown,
        "segments": [f"{s.path}: {s.kind}" for s in plan.segments],
    }


def show(result):
    table = Table(title=f"search, {result['device']}, peaks in MiB")
    for name in (
        "search",
        "seconds",
        "compiled",
        "plain",
        "planned",
        "time, estimated",
    ):
        table.add_column(name, justify="left" if name == "search" else "right")
    for name, row in result["searches"].items():
        slowdown = row["slowdown"]
        table.add_row(
            name,
            f"{row['seconds']:.1f}",
            str(row["compiled"]),
            f"{row['plain'] / MIB:.1f}",
            f"{row['planned'] / MIB:.1f}",
            "" if slowdown is None else f"{slowdown:.2f}x",
        )
    Console().print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="rtx4090")
    parser.add_argument("--only", help="names of searches, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS / "search.json")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else [*SEARCHES, "24 blocks"]
    net, searches = nnx.eval_shape(vgg), {}
    for name in (n for n in SEARCHES if n in wanted):
        blocks = (snn.models.VGGBlock,)
        searches[name] = run(
            net, blocks, batch(), OPTIMIZER, arguments.device, **SEARCHES[name]
        )
        print(name, searches[name], flush=True)
    if "24 blocks" in wanted:
        deep = nnx.eval_shape(lambda: SEWNet(nnx.Rngs(0)))
        frames = jax.ShapeDtypeStruct((4, 16, 48, 48, 2), jnp.float32)
        example = frames, jax.ShapeDtypeStruct((16,), jnp.int32)
        adam = optax.adam(1e-3)
        blocks = (snn.models.SEWBlock,)
        searches["24 blocks"] = run(
            deep, blocks, example, adam, arguments.device, profile="balanced"
        )
    result = conditions(step=STEPS) | {"device": arguments.device, "searches": searches}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
