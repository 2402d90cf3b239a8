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
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PLANS = ("plain", "level 1", "batch 8", "batch 8 +", "time 5 +")
LIMIT = 360.0  # seconds, for everything
TORCH = ("torch", "triton", "spikingjelly")
DTYPES = ("float32", "bfloat16")

# --- the parts, each in a process of its own ------------------------------------------


def conditions(options):
    import jax

    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "memory_bytes": stats.get("bytes_limit"),
        "jax": jax.__version__,
        "python": sys.version.split()[0],
        "small": options.small,
        "copy_bytes_per_s": copy_bandwidth(sizes(options)["neuron"]),
    }


def sizes(options):
    """Shapes of the parts, `[time, ...]`; `small` is for a smoke test."""
    if options.small:
        return {
            "checks": [(3, 2, 5)],
            "neuron": (4, 2, 8, 8, 4),
            "vgg": (5, 8, 8, 8, 2),
            "repeats": 2,
            "steps": 3,
        }
    return {
        "checks": [(4, 33, 70), (16, 3, 1025), (17, 64, 130), (40, 7, 19), (10, 5000)],
        "neuron": (16, 32, 64, 64, 64),  # 512 MiB at float32
        "vgg": (10, 8, 48, 48, 2),
        "repeats": 10,
        "steps": 30,
    }


def rounds(thunks, repeats, count=5):
    """Median seconds a call; by turns, `repeats` calls in a row, the clock outside."""
    import jax

    found = {name: [] for name in thunks}
    for thunk in thunks.values():
        jax.block_until_ready(thunk())
    for _ in range(count):
        for name, thunk in thunks.items():
            start = time.perf_counter()
            for _ in range(repeats):
                last = thunk()
            jax.block_until_ready(last)
            found[name].append((time.perf_counter() - start) / repeats)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def copy_bandwidth(shape):
    """Bytes read and written a second by `x + 1`, in float32."""
    import jax
    import jax.numpy as jnp

    x, copy = jnp.zeros(shape, jnp.float32), jax.jit(lambda x: x + 1)
    return 2 * x.nbytes / rounds({"copy": lambda: copy(x)}, 10)["copy"]


# checks


def checks(options):
    import jax
    import numpy as np

    seed = time.time_ns() % 2**32
    rng, interpret = np.random.default_rng(seed), jax.default_backend() != "gpu"
    rows = [
        check_lif(rng, shape, dtype, interpret, **settings)
        for shape in sizes(options)["checks"]
        for dtype in DTYPES
        for settings in (
            {"name": "atan", "v_reset": 0.0, "decay_input": True},
            {"name": "sigmoid", "v_reset": None, "decay_input": False},
        )
    ]
    rows += [check_pack(rng, width, interpret) for width in (1, 2, 4)]
    return {"seed": seed, "rows": rows, "right": all(row["right"] for row in rows)}


def check_lif(rng, shape, dtype, interpret, name, v_reset, decay_input):
    """Both passes, with everything that a neuron can be given."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from snnjax import kernels, surrogate
    from snnjax._membrane import Drive, Membrane

    sys.path.insert(0, str(ROOT / "tests"))
    from helpers import DERIVATIVES, driven_gradients, f64, neuron_loop

    settings = {"v_reset": v_reset, "decay_input": decay_input}
    rule = Membrane(
        leak=None,
        v_threshold=1.0,
        detach_reset=False,
        surrogate=getattr(surrogate, name),
        **settings,
    )
    step = shape[1:]
    feature = (1,) * (len(step) - 1) + step[-1:]
    x, ds = (jnp.asarray(rng.normal(0.3, 1.2, shape), dtype) for _ in range(2))
    v, dv = (jnp.asarray(rng.normal(size=step), jnp.float32) for _ in range(2))
    leak, scale, shift = (
        jnp.asarray(rng.uniform(0.3, 1, feature), jnp.float32) for _ in range(3)
    )
    tau = 1 / f64(leak)
    current = f64(x) * f64(scale) + f64(shift)
    s, h, v_steps = neuron_loop(current, v, tau, **settings)
    # Where a potential is so near the threshold that float32 may fire otherwise, a
    # whole neuron is left out: no cotangent comes to it.
    clear = np.abs(h - 1).min(0) > 1e-4
    ds, dv = ds * clear.astype(ds.dtype), dv * clear.astype(dv.dtype)

    def run(drive, v, x, ds, dv):
        forward = kernels.lif_forward(rule, drive, v, x, interpret=interpret)
        backward = kernels.lif_backward(rule, drive, v, x, ds, dv, interpret=interpret)
        return forward, backward

    drive = Drive(leak, scale, shift)
    arguments = drive, v, x, ds, dv
    compiled = jax.jit(run).lower(*arguments).compile()
    (spikes, last), (ddrive, dv0, dx) = compiled(*arguments)
    wanted = driven_gradients(
        x, scale, shift, v, tau, ds, dv, DERIVATIVES[name], **settings
    )
    dleak = -np.square(tau) * wanted[2]
    pairs = {
        "v": (f64(last) * clear, v_steps[-1] * clear),
        "dx": (f64(dx), wanted[0]),
        "dv": (f64(dv0), wanted[1]),
        "dleak": (f64(ddrive.leak).ravel(), dleak.reshape(-1, step[-1]).sum(0)),
        "dscale": (f64(ddrive.scale).ravel(), wanted[3]),
        "dshift": (f64(ddrive.shift).ravel(), wanted[4]),
    }
    errors = {
        what: float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))
        for what, (a, b) in pairs.items()
    }
    wrong = int(((f64(spikes) != s) & clear).sum())
    half = 2.0**-8  # dx is rounded to the dtype of x
    bounds = {"dx": half if dtype != "float32" else 2e-5}
    right = not wrong and all(e <= bounds.get(w, 2e-5) for w, e in errors.items())
    return {
        "kernel": "lif",
        "shape": list(shape),
        "dtype": dtype,
        "surrogate": name,
        **settings,
        "left_out": float(1 - clear.mean()),
        "wrong_spikes": wrong,
        "errors": errors,
        "right": right,
    }


def check_pack(rng, width, interpret):
    """Exactly, against NumPy."""
    import jax.numpy as jnp
    import numpy as np

    from snnjax import kernels

    n, per_byte = 4099, 8 // width
    values = rng.integers(0, 2**width, (3, n), dtype=np.uint8)
    packed = kernels.pack(width, jnp.asarray(values), interpret=interpret)
    back = kernels.unpack(width, n, packed, interpret=interpret)
    columns = -(-n // per_byte)
    padded = np.zeros((3, columns * per_byte), np.uint8)
    padded[:, :n] = values
    parts = padded.reshape(3, per_byte, columns).astype(int)
    wanted = (parts << (width * np.arange(per_byte))[:, None]).sum(1)
    right = np.array_equal(packed, wanted) and np.array_equal(back, values)
    return {"kernel": "pack", "width": width, "right": bool(right)}


# the neuron


def neuron(options):
    import jax

    shape, repeats = sizes(options)["neuron"], sizes(options)["repeats"]
    on_gpu = jax.default_backend() == "gpu"
    bandwidth = copy_bandwidth(shape)
    rows = [
        row
        for dtype in DTYPES
        for row in neuron_rows(shape, dtype, repeats, on_gpu, bandwidth)
    ]
    return {"shape": list(shape), "copy_bytes_per_s": bandwidth, "rows": rows}


def neuron_rows(shape, dtype, repeats, on_gpu, bandwidth):
    """Each way forward, and backward from a cotangent that is given up."""
    import jax
    import jax.numpy as jnp

    x = jax.random.normal(jax.random.key(0), shape, dtype)
    ways = {"scan": scan_lif, **in_place_ways(on_gpu)}
    forward = {name: functools.partial(jax.jit(f), x) for name, f in ways.items()}
    backward = {name: pulling(f, x) for name, f in ways.items()}
    for what, thunks, activations in (
        ("forward", forward, 2),
        ("backward", backward, 3),
    ):
        floor = activations * x.nbytes / bandwidth
        seconds = rounds(thunks, repeats)
        for name in ways:
            yield {
                "pass": what,
                "way": name,
                "dtype": jnp.dtype(dtype).name,
                "seconds": seconds[name],
                "floor_seconds": floor,
                "over_floor": seconds[name] / floor,
            }


def in_place_ways(on_gpu):
    """The kernel cannot run on a CPU."""
    from snnjax.neuron import LIF

    names = ("xla", "pallas") if on_gpu else ("xla",)
    return {name: LIF(implementation=name) for name in names}


def scan_lif(x):
    """As it is usually written: a scan, and what autodiff makes of it."""
    import jax.numpy as jnp

    from snnjax import neuron, surrogate

    def step(x, v):
        h = v + (x.astype(v.dtype) - v) / 2
        s = surrogate.atan(h - 1)
        return s.astype(x.dtype), h * (1 - s)

    return neuron.scan(step, x, jnp.zeros(x.shape[1:], jnp.float32))[0]


def pulling(f, x):
    """The gradient by the current; each one is the cotangent of the next.

    A scan runs forward, too: autodiff keeps what its backward pass needs.
    """
    import jax
    import jax.numpy as jnp

    back = jax.jit(lambda x, ds: jax.vjp(f, x)[1](ds)[0], donate_argnums=1)
    held = [jnp.ones_like(x)]

    def thunk():
        held[0] = back(x, held[0])
        return held[0]

    return thunk


# the network


def tiny():
    """For the smoke test."""
    from flax import nnx

    import snnjax as snn

    class Tiny(nnx.Module):
        def __init__(self, rngs):
            block = snn.models.VGGBlock
            self.features = snn.layer.Sequential(
                block(2, 8, pool=True, rngs=rngs), block(8, 10, rngs=rngs)
            )

        def __call__(self, x):
            return self.features(x).mean((2, 3))

    return Tiny(nnx.Rngs(0))


def network(options):
    from flax import nnx

    import snnjax as snn

    return tiny() if options.small else snn.models.CIFAR10DVSVGG(rngs=nnx.Rngs(0))


def loss(model, frames, labels):
    import optax

    scores = model(frames).mean(0)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def step(model, optimizer, frames, labels):
    from flax import nnx

    value, gradients = nnx.value_and_grad(loss)(model, frames, labels)
    optimizer.update(model, gradients)
    return value


def plans(options):
    """Level 1 with its proofs, made on the CPU: they are the same for every device."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    import snnjax as snn
    from snnjax import memopt

    net = nnx.eval_shape(lambda: network(options))
    shape = sizes(options)["vgg"]
    batch = (
        jax.ShapeDtypeStruct(shape, jnp.float32),
        jax.ShapeDtypeStruct(shape[1:2], jnp.int32),
    )
    plan = memopt.make_plan(net, (snn.models.VGGBlock,), batch, loss=loss)
    paths = [segment.path for segment in plan.segments]
    made = {
        "level 1": plan,
        "batch 8": plan.with_chunks(*paths, batch=8),
        "batch 8 +": plan.with_chunks(*paths, batch=8, forward_by="chunks"),
        "time 5 +": plan.with_chunks(*paths, time=5, forward_by="chunks"),
    }
    return {name: plan.to_json() for name, plan in made.items()}


def vgg(options):
    """One training step many times over: seconds, and bytes held."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    from snnjax import memopt

    shape, steps = sizes(options)["vgg"], sizes(options)["steps"]
    net = network(options)
    if options.plan is not None:
        net = memopt.apply_plan(net, memopt.Plan.load(options.plan))
    optimizer = nnx.Optimizer(net, optax.sgd(0.01), wrt=nnx.Param)
    frames = jax.random.bernoulli(jax.random.key(0), 0.1, shape).astype(jnp.float32)
    batch = frames, jnp.arange(shape[1]) % 10
    jitted = nnx.jit(step, donate_argnums=(0, 1))
    start = time.perf_counter()
    compiled = jitted.lower(net, optimizer, *batch).compile()
    compile_seconds = time.perf_counter() - start
    if options.compile_only:
        return {"compile_seconds": compile_seconds}
    return {
        "compiled_bytes": peak_of(compiled.memory_analysis()),
        "steps": steps,
        **held_and_timed(lambda: compiled(net, optimizer, *batch), steps),
    }


def held_and_timed(run, steps):
    """Peaks of the allocator before the first step and after the last."""
    import jax

    before = allocator_peak()
    seconds, values = [], []
    for _ in range(steps):
        start = time.perf_counter()
        values.append(float(jax.block_until_ready(run())))
        seconds.append(time.perf_counter() - start)
    return {
        "seconds": statistics.median(seconds[1:]),
        "first_seconds": seconds[0],
        "loss": [values[0], values[-1]],
        "allocator_bytes_before": before,
        "allocator_bytes": allocator_peak(),
    }


def allocator_peak():
    """None where the backend does not say, as on a CPU."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def peak_of(memory):
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return memory.temp_size_in_bytes + held - memory.alias_size_in_bytes


# SpikingJelly


def spikingjelly_neuron(options):
    """Its LIF node, on the same shapes and floors."""
    import torch
    from spikingjelly.activation_based import neuron, surrogate

    device = torch_device(options)
    shape, repeats = sizes(options)["neuron"], sizes(options)["repeats"]
    surrogate_function = surrogate.ATan()
    node = neuron.LIFNode(step_mode="m", surrogate_function=surrogate_function)
    node = node.to(device)
    rows = []
    for dtype in DTYPES:
        x = torch.randn(shape, device=device, dtype=getattr(torch, dtype))
        x.requires_grad_(True)
        ds = torch.ones_like(x)

        def forward(x=x):
            node.reset()
            return node(x)

        def both(x=x, ds=ds):
            forward(x).backward(ds)

        with torch.no_grad():
            alone = torch_seconds(forward, repeats, device)
        together = torch_seconds(both, repeats, device)
        for what, seconds in (("forward", alone), ("backward", together - alone)):
            row = {"pass": what, "way": "spikingjelly", "dtype": dtype}
            rows.append(row | {"seconds": seconds})
    return {"rows": rows}


def torch_device(options):
    """Where 2.0.0 chooses its kernels by itself."""
    return "cpu" if options.small else "cuda"


def torch_seconds(f, repeats, device):
    import torch

    def wait():
        torch.cuda.synchronize() if device == "cuda" else None

    f()
    found = []
    for _ in range(5):
        wait()
        start = time.perf_counter()
        for _ in range(repeats):
            f()
        wait()
        found.append((time.perf_counter() - start) / repeats)
    return statistics.median(found)


def spikingjelly_vgg(options):
    """The tutorial's VGG as the tutorial has it, plain or at its level 1."""
    import torch

    device = torch_device(options)
    time_steps, batch, side, _, _ = sizes(options)["vgg"]
    net, block = torch_vgg(options)
    net = net.to(device)
    frames = (torch.rand(batch, time_steps, 2, side, side, device=device) < 0.1).float()
    if options.level:
        from spikingjelly.activation_based import memopt

        net = memopt.optimize_memory(
            net, block, lambda net: net(frames), level=options.level
        )
    labels = torch.arange(batch, device=device) % 10
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def run():
        optimizer.zero_grad(set_to_none=True)
        scores = net(frames).mean(0)
        torch.nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()

    on_gpu = device == "cuda"
    seconds = torch_seconds(run, sizes(options)["steps"] // 5 or 1, device)
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    return {"seconds": seconds, "allocator_bytes": peak}


def torch_vgg(options):
    """Conv, batch norm and LIF; a pool stands before a convolution, as there."""
    import torch
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    class Block(torch.nn.Module):
        def __init__(self, inputs, outputs, pool):
            super().__init__()
            parts = [layer.AvgPool2d(2)] if pool else []
            parts.append(layer.Conv2d(inputs, outputs, 3, 1, 1))
            self.current = torch.nn.Sequential(*parts, layer.BatchNorm2d(outputs))
            self.neuron = neuron.LIFNode(
                tau=1.333,
                decay_input=False,
                detach_reset=True,
                surrogate_function=surrogate.ATan(),
                step_mode="m",
            )

        def forward(self, x):
            return self.neuron(self.current(x))

    class Net(torch.nn.Module):
        def __init__(self, layout, side):
            super().__init__()
            blocks = [Block(*row) for row in layout]
            self.features = torch.nn.Sequential(*blocks, layer.AvgPool2d(2))
            last = layout[-1][1] * (side // 2 ** (1 + sum(r[2] for r in layout))) ** 2
            self.classifier = torch.nn.Sequential(
                torch.nn.Dropout(0.25), torch.nn.Linear(last, 10)
            )
            functional.set_step_mode(self, "m")

        def forward(self, x):
            functional.reset_net(self)
            x = self.features(x.transpose(0, 1).contiguous())
            return self.classifier(x.flatten(2))

    side = sizes(options)["vgg"][2]
    if options.small:
        return Net([(2, 8, False), (8, 10, True)], side), Block
    widths = (2, 64, 128, 256, 256, 512, 512, 512, 512)
    pools = (False, False, True, False, True, False, True, False)
    return Net([*zip(widths, widths[1:], pools)], side), Block


# --- the parent, which never touches the GPU ------------------------------------------

PARTS = {
    f.__name__: f
    for f in (
        *(conditions, checks, neuron, plans, vgg),
        *(spikingjelly_neuron, spikingjelly_vgg),
    )
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
        command = [sys.executable, __file__, "--part", part, "--out", str(out)]
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


# --- the table ------------------------------------------------------------------------


def lines(result):
    """Of the table, the errors among them."""
    where = result["conditions"]
    if "error" in where:
        yield f"nothing ran: {where['error']}"
        return
    yield f"{where['device']} ({where['platform']}), jax {where['jax']}"
    yield f"a copy: {where['copy_bytes_per_s'] / 1e9:.0f} GB/s"
    yield from check_lines(result["checks"])
    yield from neuron_lines(result["neuron"], result["spikingjelly"].get("neuron", {}))
    theirs = result["spikingjelly"]
    yield from vgg_lines(result["vgg"])
    if "error" in theirs:
        yield f"SpikingJelly: {theirs['error']}"
        return
    yield from vgg_lines({f"SpikingJelly {n}": theirs[n] for n in ("plain", "level 1")})


def check_lines(found):
    if "error" in found:
        yield f"checks: {found['error']}"
        return
    wrong = [row for row in found["rows"] if not row["right"]]
    yield f"checks: {len(found['rows'])} run, {len(wrong)} wrong (seed {found['seed']})"
    yield from (f"  wrong: {row}" for row in wrong)


def neuron_lines(found, theirs):
    rows = [*found.get("rows", ()), *theirs.get("rows", ())]
    yield f"{'LIF':10s} {'dtype':10s} {'way':20s} {'ms':>10s} {'over a copy':>12s}"
    for row in rows:
        over = f"{row['over_floor']:12.2f}" if "over_floor" in row else ""
        names = f"{row['pass']:10s} {row['dtype']:10s} {row['way']:20s}"
        yield f"{names} {row['seconds'] * 1e3:10.3f} {over}"
    for what, part in (("LIF", found), ("SpikingJelly's LIF", theirs)):
        if "error" in part:
            yield f"{what}: {part['error']}"


def vgg_lines(rows):
    heads = ("ms/step", "compiled MiB", "allocator MiB", "workspace MiB")
    yield f"{'VGG':24s}" + "".join(f"{head:>15s}" for head in heads)
    for name, row in rows.items():
        if "error" in row:
            yield f"{name:24s} {row['error']}"
            continue
        sizes = (row.get(f"{n}_bytes") for n in ("compiled", "allocator", "workspace"))
        cells = ["" if n is None else f"{n / 2**20:.1f}" for n in sizes]
        cells = [f"{row['seconds'] * 1e3:.2f}", *cells]
        yield f"{name:24s}" + "".join(f"{cell:>15s}" for cell in cells)


# --- starting -------------------------------------------------------------------------


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
    for_children = parser.add_argument_group("of a child process")
    for_children.add_argument("--part", choices=PARTS)
    for_children.add_argument("--plan", type=Path)
    for_children.add_argument("--compile-only", action="store_true")
    for_children.add_argument("--level", type=int, default=0)
    return parser.parse_args(arguments)


def main():
    options = parse()
    check_packages()
    if options.part:
        sys.path.insert(0, str(ROOT))
        options.out.write_text(json.dumps(PARTS[options.part](options)))
        return
    with tempfile.TemporaryDirectory(prefix="snnjax-gpu-") as folder:
        result = run_all(Runner(options, Path(folder)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(lines(result)))


if __name__ == "__main__":
    main()
