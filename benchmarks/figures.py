"""Draws the project's pictures, `docs/figures/*.png`.

From `benchmarks/results/*.json` where the figures are there; curves of memory and the
Pareto front are compiled for an RTX 4090 that need not be here (about two minutes on
two cores). A picture whose JSON is missing is left out, with a line that says so.

    JAX_PLATFORMS=cpu python benchmarks/figures.py
    JAX_PLATFORMS=cpu python benchmarks/figures.py --only spikes,networks
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from flax import nnx
from memory import OPTIMIZER, RESULTS, batch, plan_for, report, vgg, vgg_plans
from networks import bytes_of
from training import loss

import snnjax as snn
from snnjax import memopt, plot

DEVICE = "rtx4090"
FIGURES = Path(__file__).parents[1] / "docs" / "figures"
BLOCKS = [str(i) for i in range(1, 9)]
NAMES = {
    "plain": "plain",
    "level 1": "level 1",
    "batch 8": "8 batch chunks",
    "batch 8 +": "8 batch chunks,\nforward too",
}


class ScopedVGG(snn.models.CIFAR10DVSVGG):
    """The VGG with a scope around each block, which changes no byte."""

    def __call__(self, x):
        for name, block in zip(BLOCKS, self.features.layers):
            with jax.named_scope(name):
                x = block(x)
        with jax.named_scope("classifier"):
            return self.classifier(x)


def result(name):
    return json.loads((RESULTS / name).read_text())


def planned(make, plan):
    net = nnx.eval_shape(make)
    return net if plan is None else memopt.apply_plan(net, plan)


def breakdown():
    """What the VGG's peak consists of: kept is counted whole, the rest is left."""
    peaks = result("memory.json")["vgg"][DEVICE]
    held = bytes_of(nnx.state(nnx.eval_shape(vgg), nnx.Param))
    variants = {}
    for name, plan in vgg_plans(plan_for(vgg, batch())).items():
        kept = memopt.residual_bytes(loss, planned(vgg, plan), *batch())
        known = {
            "parameters": held,
            "batch": bytes_of(batch()),
            "kept for the backward pass": kept,
        }
        rest = peaks[name] - sum(known.values())
        variants[NAMES[name]] = known | {"the rest": rest}
    ax = plot.memory_breakdown(variants)
    ax.set_title("CIFAR10-DVS VGG, T=10, batch 8, RTX 4090", pad=28, loc="left")
    return ax.figure


def networks():
    """ImageNet networks, plain and as planned, from networks.json."""
    found = result("networks.json")
    rows = found["networks"]
    figure, all_axes = plt.subplots(
        len(rows), figsize=(7.2, 2.1 * len(rows)), layout="constrained"
    )
    for (name, row), ax in zip(rows.items(), all_axes):
        fixed = {"parameters and optimizer": row["parameters"], "batch": row["batch"]}
        plain = fixed | {"activations": row["activations"]}
        fewer = fixed | {"activations": row["activations as planned"]}
        plot.memory_breakdown({"plain": plain, "planned": fewer}, ax)
        title = f"{name}, {found['step']}, {found['device']}"
        ax.set_title(title, loc="left", pad=26, fontsize=10)
    return figure


def scoped():
    return ScopedVGG(rngs=nnx.Rngs(0))


def timeline(plan):
    return report(scoped, plan, batch(), DEVICE, timeline=True).timeline


def program():
    """Live memory over the compiled step, by block, for three of the VGG's plans."""
    plans = vgg_plans(plan_for(scoped, batch()))
    shown = {name: plans[name] for name in ("plain", "level 1", "batch 8 +")}
    figure, all_axes = plt.subplots(
        len(shown), figsize=(7.2, 7), sharex=True, sharey=True, layout="constrained"
    )
    for (name, plan), ax in zip(shown.items(), all_axes):
        curve = {NAMES[name].replace("\n", " "): timeline(plan)}
        plot.memory_over_program(curve, ax, segments=BLOCKS).label_outer()
    figure.suptitle(
        "One training step of the CIFAR10-DVS VGG, colored by block, RTX 4090",
        fontsize=11,
    )
    return figure


def growth():
    """Peaks of a chain of blocks over time steps and over depth, from peers.json."""
    rows = result("peers.json")["chain"]
    figure, all_axes = plt.subplots(1, 2, figsize=(9.6, 4), layout="constrained")
    labels = {"time": "time steps", "depth": "blocks"}
    for ax, (over, other) in zip(all_axes, (("time", "depth"), ("depth", "time"))):
        fixed = most_common(rows, over, other)
        lines = {}
        for row in (r for r in rows if r[other] == fixed):
            lines.setdefault(row["variant"], {})[row[over]] = row["peak_bytes"]
        plot.peak_over(lines, ax, over=labels[over])
        ax.set_title(f"{fixed} {labels[other]}")
    return figure


def most_common(rows, over, other):
    """The value of `other` that was measured at most values of `over`."""
    pairs = {(row[other], row[over]) for row in rows}
    return Counter(value for value, _ in sorted(pairs)).most_common(1)[0][0]


def pareto():
    """The VGG's front, and what the exhaustive search compiled."""
    plan = memopt.make_plan(
        nnx.eval_shape(vgg),
        (snn.models.VGGBlock,),
        batch(),
        loss=loss,
        optimizer=OPTIMIZER,
        device=DEVICE,
        profile="exhaustive",
    )
    ax = plot.pareto(plan)
    ax.set_title('CIFAR10-DVS VGG, RTX 4090, profile="exhaustive"')
    return ax.figure


def spikes():
    """Forty LIF neurons on currents that grow, and the potentials of two of them."""
    noise = jax.random.normal(jax.random.key(0), (80, 40))
    current = jnp.linspace(0.8, 1.8, 40) + 0.3 * noise
    v, spikes, potentials = jnp.zeros(40), [], []
    for now in current:
        fired, v = snn.neuron.lif(now[None], v, tau=8.0)
        spikes.append(fired[0])
        potentials.append(v)
    spikes, potentials = jnp.stack(spikes), jnp.stack(potentials)
    figure, (top, bottom) = plt.subplots(
        2, figsize=(7.2, 5.4), sharex=True, layout="constrained"
    )
    plot.raster(spikes, top).label_outer()
    plot.membrane(potentials, bottom, spikes=spikes, neurons=[10, 38])
    return figure


DRAW = {f.__name__: f for f in (breakdown, networks, program, growth, pareto, spikes)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of pictures, separated by commas")
    parser.add_argument("--out", type=Path, default=FIGURES)
    arguments = parser.parse_args()
    plt.switch_backend("agg")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only.split(",") if arguments.only else DRAW:
        try:
            figure = DRAW[name]()
        except FileNotFoundError as error:
            print(f"{name}: left out, as there is no {error.filename}")
            continue
        figure.savefig(arguments.out / f"{name}.png", dpi=110)
        print(arguments.out / f"{name}.png", flush=True)


if __name__ == "__main__":
    main()
