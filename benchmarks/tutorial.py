"""The tables and the log of SpikingJelly's memopt tutorial, ours beside theirs.

Its VGG for CIFAR10-DVS, T=10, 48x48: the profiles and `prefer` at batch 8, the log's
level 4 at batch 32. Theirs were measured on an RTX 4090 by their authors, allocated
megabytes of 2**20 bytes (tutorial "Training Memory Optimization"). Ours are compiled
for one that need not be here: peak bytes of the whole donated step, a roofline's
estimate of its time, and the seconds that planning took on this machine, with the cache
of compiled figures off. Where a GPU is present, `--measure` runs the steps by turns.

    JAX_PLATFORMS=cpu python benchmarks/tutorial.py
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import jax
from conditions import conditions
from flax import nnx
from memory import MIB, OPTIMIZER, RESULTS, SIDE, TIME, batch, vgg
from rich.console import Console
from rich.table import Table
from search import run
from training import loss, step

import snnjax as snn
from snnjax import memopt


class Theirs(NamedTuple):
    """A row of the tutorial: allocated MiB, milliseconds a step and of planning."""

    peak: float
    step_ms: float | None = None
    optimize_ms: float | None = None


class Case(NamedTuple):
    samples: int
    settings: dict[str, object]
    theirs: Theirs


CASES = {
    "safe": Case(8, {"profile": "safe"}, Theirs(833.94, 36.60, 2605.76)),
    "balanced": Case(8, {"profile": "balanced"}, Theirs(787.94, 33.88, 37038.26)),
    "memory": Case(8, {"profile": "memory"}, Theirs(671.56, 35.83, 89788.63)),
    "exhaustive": Case(8, {"profile": "exhaustive"}, Theirs(589.16, 27.66, 450972.60)),
    'prefer="speed"': Case(8, {"prefer": "speed"}, Theirs(922.39, 34.43, 2726.53)),
    'prefer="balanced"': Case(
        8, {"prefer": "balanced"}, Theirs(877.14, 34.35, 34360.89)
    ),
    'prefer="memory"': Case(8, {"prefer": "memory"}, Theirs(699.17, 43.36, 92689.79)),
    "batch 32, level 4": Case(
        32, {"level": 4}, Theirs(1973.12, step_ms=32 / 315.77 * 1000)
    ),
}
# By samples a step; the log of batch 32 has samples a second, 383.55.
PLAIN = {8: Theirs(1022.23, 27.57), 32: Theirs(3830.31, 32 / 383.55 * 1000)}


def row(case, device):
    """Plan one case, ours beside theirs."""
    net, blocks = nnx.eval_shape(vgg), (snn.models.VGGBlock,)
    example = batch(batch=case.samples)
    ours = run(net, blocks, example, OPTIMIZER, device, **case.settings)
    theirs = case.theirs._asdict() | {"plain_peak": PLAIN[case.samples].peak}
    plain_ms = PLAIN[case.samples].step_ms
    if case.theirs.step_ms:
        theirs["slowdown"] = case.theirs.step_ms / plain_ms
    return {"samples": case.samples, "ours": ours, "theirs": theirs}


def measured(cases, repeats):
    """Milliseconds a step on the GPU of this machine, by turns, batch 8."""
    thunks = {"plain": thunk(None)}
    for name, case in cases.items():
        if case.samples == 8:
            thunks[name] = thunk(planned(case))
    seconds = memopt.time_alternating(thunks, repeats=repeats)
    return {name: 1000 * s for name, s in seconds.items()}


def planned(case):
    blocks = (snn.models.VGGBlock,)
    net = nnx.eval_shape(vgg)
    return memopt.make_plan(
        net, blocks, batch(), loss=loss, optimizer=OPTIMIZER, **case.settings
    )


def thunk(plan):
    """A training step of real arrays."""
    net = vgg() if plan is None else memopt.apply_plan(vgg(), plan)
    optimizer = nnx.Optimizer(net, OPTIMIZER, wrt=nnx.Param)
    frames, labels = batch()
    frames = jax.random.bernoulli(jax.random.key(0), 0.1, frames.shape)
    arrays = frames.astype("float32"), jax.numpy.arange(len(labels)) % 10
    jitted = nnx.jit(step, donate_argnums=(0, 1))
    return lambda: jitted(net, optimizer, *arrays)


def show(result):
    table = Table(title=f"the tutorial's VGG, {result['device']}, MiB and seconds")
    columns = ("ours", "theirs", "step over plain (estimated)", "theirs", "planning, s")
    table.add_column("asked for")
    for column in (*columns, "theirs, s"):
        table.add_column(column, justify="right")
    for name, found in result["cases"].items():
        table.add_row(name, *cells(found["ours"], found["theirs"]))
    Console(width=110).print(table)


def cells(ours, theirs):
    """The figures of one row, as text."""
    optimize = theirs["optimize_ms"]
    return (
        f"{ours['plain'] / MIB:.0f} -> {ours['planned'] / MIB:.0f}",
        f"{theirs['plain_peak']:.0f} -> {theirs['peak']:.0f}",
        "" if ours["slowdown"] is None else f"{ours['slowdown']:.2f}",
        f"{theirs['slowdown']:.2f}",
        f"{ours['seconds']:.1f}",
        "" if optimize is None else f"{optimize / 1000:.1f}",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="rtx4090")
    parser.add_argument("--only", help="names of cases, separated by commas")
    parser.add_argument("--measure", type=int, default=0, metavar="REPEATS")
    parser.add_argument("--out", type=Path, default=RESULTS / "tutorial.json")
    arguments = parser.parse_args()
    if arguments.measure and jax.default_backend() != "gpu":
        parser.error("--measure needs a GPU as jax's present backend")
    wanted = arguments.only.split(",") if arguments.only else [*CASES]
    cases = {name: CASES[name] for name in wanted}
    found = {}
    for name, case in cases.items():
        found[name] = row(case, arguments.device)
        print(name, found[name], flush=True)
    what = f"VGG, T={TIME}, N of each case, {SIDE}x{SIDE}, sgd, donated, float32"
    result = conditions(step=what) | {"device": arguments.device, "cases": found}
    if arguments.measure:
        result["measured_ms"] = measured(cases, arguments.measure)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
