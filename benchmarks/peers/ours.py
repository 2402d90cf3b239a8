"""snnjax's VGG: plain, by JAX's own checkpoints, and as planned for the CPU."""

import jax
import jax.numpy as jnp
import optax
import worker
from flax import nnx
from our_vgg import network
from training import loss, step
from workload import RATE, batch, peak_of

import snnjax as snn
from snnjax import memopt

PLANS = {
    "level 1": {"level": 1},
    "balanced": {"profile": "balanced"},
    "memory": {"profile": "memory"},
    "exhaustive": {"profile": "exhaustive"},
    "300 MiB": {"budget": "300MiB"},
    "400 MiB": {"budget": "400MiB"},
    "chunked": {"level": 1},
}
DOTS = jax.checkpoint_policies.dots_saveable
NOTES = {
    "nnx.remat": "nnx.remat around every block",
    "dots policy": (
        "nnx.remat with dots_saveable around the whole network, as JAX's guide has it; "
        "a convolution is no dot, so around each block it saves what nnx.remat saves"
    ),
    "chunked": "level 1 .with_chunks(*blocks, batch=8, forward_by='chunks')",
}


class Rematted(nnx.Module):
    """A module whose activations are computed again in the backward pass."""

    def __init__(self, module, policy=None):
        self.module, self.policy = module, policy

    def __call__(self, x):
        again = nnx.remat(lambda module, x: module(x), policy=self.policy)
        return again(self.module, x)


def rematted(blocks):
    """A `Sequential` of these blocks, each of them rematted."""
    return snn.layer.Sequential(*map(Rematted, blocks.layers))


def make_plan(make, example, **settings):
    """For the CPU, from abstract values."""
    return memopt.make_plan(
        nnx.eval_shape(make),
        (snn.models.VGGBlock,),
        example,
        loss=loss,
        optimizer=optax.sgd(RATE),
        **settings,
    )


def in_chunks(plan):
    blocks = [segment.path for segment in plan.segments]
    return plan.with_chunks(*blocks, batch=8, forward_by="chunks")


def plan_of(options, example):
    """Made by the worker that comes first, then read."""
    file = options.folder / f"{options.variant}.plan.json"
    if file.exists():
        return memopt.Plan.load(file)
    plan = make_plan(lambda: network(options), example, **PLANS[options.variant])
    plan = in_chunks(plan) if options.variant == "chunked" else plan
    plan.save(file)
    return plan


def variant(options, example):
    net = network(options)
    if options.variant == "nnx.remat":
        net.features = rematted(net.features)
    elif options.variant == "dots policy":
        net = Rematted(net, DOTS)
    elif options.variant != "plain":
        net = memopt.apply_plan(net, plan_of(options, example))
    return net


def build(options):
    example = tuple(map(jnp.asarray, batch(options)))
    net = variant(options, example)
    optimizer = nnx.Optimizer(net, optax.sgd(RATE), wrt=nnx.Param)
    jitted = nnx.jit(step, donate_argnums=(0, 1))
    compiled = jitted.lower(net, optimizer, *example).compile()
    facts = {"compiled_bytes": peak_of(compiled.memory_analysis())}
    if options.variant in NOTES:
        facts["note"] = NOTES[options.variant]
    return lambda: float(compiled(net, optimizer, *example)), facts


if __name__ == "__main__":
    worker.main(build)
