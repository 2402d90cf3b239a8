"""The kernels on a GPU: right, how fast, and the tutorial's VGG step by step.

One script, within six minutes on an H200-class card, from a bare checkout with jax,
flax, optax and rich. Every part is a process of its own, with a time limit, so that an
allocator's peak is one program's and a part that dies costs nobody else's figures. What
did not run has no figure: it has an error.

* checks: every kernel against NumPy at float64, on inputs drawn afresh.
* neuron: LIF forward and backward as `lax.scan` with autodiff, as XLA's loops in place,
  and as the kernel; milliseconds, and times over those that a copy of the same bytes
  takes on this card (2 activations forward, 3 backward).
* vgg: milliseconds a step, plain and under four plans; the compiled peak, the
  allocator's, and the difference, which is the workspace of cuDNN and cuBLAS. Each runs
  twice: first to compile (tuning takes memory too), then from the compilation cache.
* spikingjelly: its LIF and VGG, where torch, triton and spikingjelly are installed.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --small        # all of it on a CPU, as a smoke test
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_report import lines

HERE = Path(__file__).parent
SCRIPTS, RESULTS = HERE / "gpu", HERE / "results"
PLANS = ("plain", "level 1", "batch 8", "batch 8 +", "time 5 +")
LIMIT = 360.0  # seconds, for everything
TORCH = ("torch", "triton", "spikingjelly")
PARTS = {  # the script of each
    "conditions": "vgg.py",
    "checks": "checks.py",
    "neuron": "lif.py",
    "plans": "vgg.py",
    "vgg": "vgg.py",
    "spikingjelly_neuron": "torch_parts.py",
    "spikingjelly_vgg": "torch_parts.py",
}


class Runner:
    """Runs parts as children, within what is left of the time."""

    def __init__(self, options, folder):
        self.small, self.folder = options.small, folder
        self.end = time.monotonic() + options.limit
        self.pace = options.limit / LIMIT
        self.number = 0

    def __call__(self, part, *arguments, limit, cpu=False):
        """The part's result, or `{"error": ...}`."""
        left = self.end - time.monotonic()
        if left < 5:
            return {"error": "not run: no time was left"}
        self.number += 1
        out = self.folder / f"{self.number}.json"
        command = [sys.executable, str(SCRIPTS / PARTS[part]), part, "--out", str(out)]
        command += ["--small"] * self.small + list(arguments)
        print(f"{part} {' '.join(arguments)}", flush=True)
        try:
            done = subprocess.run(
                command,
                env=self.environment(cpu or self.small),
                capture_output=True,
                text=True,
                timeout=min(limit * self.pace, left),
            )
        except subprocess.TimeoutExpired as stopped:
            return {"error": f"stopped after {stopped.timeout:.0f} s"}
        if done.returncode or not out.exists():
            return {"error": (done.stderr or done.stdout)[-2000:] or "no result"}
        return json.loads(out.read_text())

    def environment(self, cpu):
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            # Other processes may use the card.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        return os.environ | cache | ({"JAX_PLATFORMS": "cpu"} if cpu else {})


def run_all(run):
    result = {"conditions": run("conditions", limit=60)}
    if "error" in result["conditions"]:
        return result
    result["checks"] = run("checks", limit=90)
    result["neuron"] = run("neuron", limit=60)
    result["vgg"] = run_vgg(run)
    missing = [name for name in TORCH if importlib.util.find_spec(name) is None]
    if missing:
        error = {"error": f"not installed: {', '.join(missing)}"}
        return result | {"spikingjelly": error}
    ours = {"neuron": run("spikingjelly_neuron", limit=40)}
    for name, level in (("plain", "0"), ("level 1", "1")):
        ours[name] = run("spikingjelly_vgg", "--level", level, limit=40)
    return result | {"spikingjelly": ours}


def run_vgg(run):
    made, rows = run("plans", limit=90, cpu=True), {}
    for name in PLANS:
        arguments = []
        if name != "plain":
            if "error" in made:
                rows[name] = {"error": f"no plan: {made['error']}"}
                continue
            file = run.folder / f"{PLANS.index(name)}.plan.json"
            file.write_text(made[name])
            arguments = ["--plan", str(file)]
        first = run("vgg", "--compile-only", *arguments, limit=60)
        row = first if "error" in first else run("vgg", *arguments, limit=40) | first
        rows[name] = with_workspace(row)
    return rows


def with_workspace(row):
    """What the allocator held beyond the compiled program: the libraries' workspace."""
    if row.get("allocator_bytes") is None or "compiled_bytes" not in row:
        return row
    return row | {"workspace_bytes": row["allocator_bytes"] - row["compiled_bytes"]}


def check_packages():
    """Before anything runs: what a bare checkout may lack."""
    needed = ("jax", "flax", "optax", "numpy", "rich")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"snnjax needs {', '.join(missing)}, not installed here. Do: "
            f"pip install {' '.join(missing)}"
        )


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a smoke test on a CPU")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds in all")
    return parser.parse_args(arguments)


def main():
    options = parse()
    check_packages()
    with tempfile.TemporaryDirectory(prefix="snnjax-gpu-") as folder:
        result = run_all(Runner(options, Path(folder)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(lines(result)))


if __name__ == "__main__":
    main()
