"""The VGG of spyx neurons and flax layers: layer by layer, or step by step.

"layer-wise" gives each layer all time steps at once, and each neuron to `spyx.nn.run`
alone, so that `nnx.BatchNorm` stays outside the scan. "run" scans the whole network by
`spyx.nn.run`, as spyx is meant to be used; no batch norm in training can stand in it.
"""

import jax.numpy as jnp
import optax
import spyx
import worker
from flax import nnx
from training import step
from workload import DROPOUT, RATE, TAU, batch, layout, peak_of, sizes

# Without a batch norm, deep layers are silent at a smaller variance than this.
WIDE = nnx.initializers.variance_scaling(16.0, "fan_in", "normal")
NEURON = "soft reset, a learnable decay, spikes from the potential a step before"
NOTES = {
    "layer-wise": f"nnx.BatchNorm outside the scan; {NEURON}",
    "run": f"no batch norm: it cannot stand inside spyx.nn.run; no dropout; {NEURON}",
}


def neuron(shape, rngs):
    """The surrogate is 1 / (pi (1 + (pi x)^2)), ours over pi."""
    activation = spyx.axn.arctan(1)
    return spyx.nn.LIF(shape, beta=1 - 1 / TAU, activation=activation, rngs=rngs)


def conv(inputs, outputs, rngs):
    return nnx.Conv(inputs, outputs, (3, 3), kernel_init=WIDE, rngs=rngs)


def halved(x):
    return nnx.avg_pool(x, (2, 2), (2, 2))


class Block(nnx.Module):
    def __init__(self, inputs, outputs, side, pool, rngs):
        self.conv = conv(inputs, outputs, rngs)
        self.norm = nnx.BatchNorm(outputs, rngs=rngs)
        self.neuron = neuron((side, side, outputs), rngs)
        self.pool = pool

    def __call__(self, x):
        time, current = x.shape[0], self.norm(self.conv(x.reshape(-1, *x.shape[2:])))
        spikes, _ = spyx.nn.run(
            self.neuron, current.reshape(time, -1, *current.shape[1:])
        )
        return folded(halved, spikes) if self.pool else spikes


def folded(f, x):
    y = f(x.reshape(-1, *x.shape[2:]))
    return y.reshape(*x.shape[:2], *y.shape[1:])


class LayerWise(nnx.Module):
    def __init__(self, rows, side, rngs):
        blocks = []
        for inputs, outputs, pool in rows:
            blocks.append(Block(inputs, outputs, side, pool, rngs))
            side //= 1 + pool
        self.blocks = nnx.List(blocks)
        self.dropout = nnx.Dropout(DROPOUT, rngs=rngs)
        self.linear = nnx.Linear(rows[-1][1] * side**2, 10, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.linear(self.dropout(x.reshape(*x.shape[:2], -1)))


class StepByStep(nnx.Module):
    def __init__(self, rows, side, rngs):
        layers = []
        for inputs, outputs, pool in rows:
            layers.append(conv(inputs, outputs, rngs))
            layers.append(neuron((side, side, outputs), rngs))
            layers += [halved] * pool
            side //= 1 + pool
        linear = nnx.Linear(rows[-1][1] * side**2, 10, rngs=rngs)
        self.net = spyx.nn.Sequential(*layers, spyx.nn.Flatten(), linear)

    def __call__(self, x):
        return spyx.nn.run(self.net, x)[0]


def build(options):
    frames, labels = map(jnp.asarray, batch(options))
    make = {"layer-wise": LayerWise, "run": StepByStep}[options.variant]
    net = make(layout(options), sizes(options)["vgg"][2], nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.sgd(RATE), wrt=nnx.Param)
    jitted = nnx.jit(step, donate_argnums=(0, 1))
    compiled = jitted.lower(net, optimizer, frames, labels).compile()
    facts = {"compiled_bytes": peak_of(compiled.memory_analysis())}
    facts["note"] = NOTES[options.variant]
    return lambda: float(compiled(net, optimizer, frames, labels)), facts


if __name__ == "__main__":
    worker.main(build)
