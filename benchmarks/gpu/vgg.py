"""The card itself, plans for the VGG, and its training step under each of them."""

import statistics
import sys
import time

import child
import jax
import optax
from clock import copy_bandwidth
from flax import nnx
from our_vgg import network
from training import loss, step
from workload import RATE, batch, peak_of, sizes

import snnjax as snn
from snnjax import memopt


def conditions(options):
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


def plans(options):
    """Level 1 with its proofs, made on the CPU: they are the same for every device."""
    net = nnx.eval_shape(lambda: network(options))
    block = snn.models.VGGBlock
    plan = memopt.make_plan(net, (block,), batch(options), loss=loss)
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
    steps, example = sizes(options)["steps"], batch(options)
    net = network(options)
    if options.plan is not None:
        net = memopt.apply_plan(net, memopt.Plan.load(options.plan))
    optimizer = nnx.Optimizer(net, optax.sgd(RATE), wrt=nnx.Param)
    jitted = nnx.jit(step, donate_argnums=(0, 1))
    start = time.perf_counter()
    compiled = jitted.lower(net, optimizer, *example).compile()
    compile_seconds = time.perf_counter() - start
    if options.compile_only:
        return {"compile_seconds": compile_seconds}
    return {
        "compiled_bytes": peak_of(compiled.memory_analysis()),
        "steps": steps,
        **held_and_timed(lambda: compiled(net, optimizer, *example), steps),
    }


def held_and_timed(run, steps):
    """Peaks of the allocator before the first step and after the last."""
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
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


if __name__ == "__main__":
    child.main(conditions, plans, vgg)
