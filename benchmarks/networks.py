"""ImageNet networks of the field on a GPU that is not here: plain, and as planned.

SEW-ResNet-34 and Spikformer-8-512, images of 224x224, T=4, batch 32, the whole training
step with its optimizer in float32, under `profile="memory"`. Peaks are divided as in
figure 1 of the paper (Huang et al., ICLR 2026): parameters with what the optimizer
keeps, the batch, and activations, which is everything that the step itself allocates:
what is kept from the forward to the backward pass, what is alive for a moment, and
gradients that are there at the peak.

    JAX_PLATFORMS=cpu python benchmarks/networks.py
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
from memory import MIB, RESULTS
from rich.console import Console
from rich.table import Table
from training import loss

import snnjax as snn
from snnjax import memopt

TIME, BATCH, SIDE = 4, 32, 224
MODELS, LAYERS = snn.models, snn.layer
NETWORKS = {
    "SEW-ResNet-34": (
        lambda: MODELS.SEWResNet(34, rngs=nnx.Rngs(0)),
        (MODELS.SEWBlock, LAYERS.ConvBlock),
        optax.sgd(0.1, momentum=0.9),
    ),
    "Spikformer-8-512": (
        lambda: MODELS.Spikformer(512, 8, heads=8, rngs=nnx.Rngs(0)),
        (MODELS.SpikformerBlock, MODELS.SpikingPatchSplitting),
        optax.adamw(5e-4, weight_decay=0.05),
    ),
}


def bytes_of(tree):
    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))


def run(name, device, profile):
    make, blocks, optimizer = NETWORKS[name]
    net = nnx.eval_shape(make)
    parameters = nnx.state(net, nnx.Param)
    held = bytes_of(parameters) + bytes_of(jax.eval_shape(optimizer.init, parameters))
    frames = jax.ShapeDtypeStruct((TIME, BATCH, SIDE, SIDE, 3), jnp.float32)
    example = frames, jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    outside = held + bytes_of(example)
    start = time.perf_counter()
    plan = memopt.make_plan(
        net,
        blocks,
        example,
        loss=loss,
        optimizer=optimizer,
        device=device,
        profile=profile,
    )
    return {
        "seconds": time.perf_counter() - start,
        "compiled": sum(trial.measured for trial in plan.trials),
        "plain": plan.plain_bytes,
        "parameters": held,
        "batch": bytes_of(example),
        "activations": plan.plain_bytes - outside,
        "planned": plan.planned_bytes,
        "activations as planned": plan.planned_bytes - outside,
        "slowdown": plan.slowdown,
        "segments": [f"{s.path}: {s.kind}, {s.keeps}" for s in plan.segments],
        "notes": plan.notes,
    }


COLUMNS = (
    *("plain", "parameters", "batch", "activations"),
    *("planned", "activations as planned"),
)


def show(result):
    title = f'"{result["profile"]}" plans for {result["device"]}, MiB'
    table = Table("network", *COLUMNS, "plain / planned", title=title)
    for name, row in result["networks"].items():
        figures = [f"{row[column] / MIB:.0f}" for column in COLUMNS]
        table.add_row(name, *figures, f"{row['plain'] / row['planned']:.1f}")
    Console(width=120).print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="a100")
    parser.add_argument("--profile", default="memory")
    parser.add_argument("--only", choices=NETWORKS, help="one of the networks")
    parser.add_argument("--out", type=Path, default=RESULTS / "networks.json")
    arguments = parser.parse_args()
    networks = {}
    for name in [arguments.only] if arguments.only else NETWORKS:
        networks[name] = run(name, arguments.device, arguments.profile)
        print(name, networks[name], flush=True)
    what = f"T={TIME}, N={BATCH}, {SIDE}x{SIDE}, donated, float32"
    result = conditions(step=what) | {
        "device": arguments.device,
        "profile": arguments.profile,
        "networks": networks,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
