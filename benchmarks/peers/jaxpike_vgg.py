"""The VGG of jaxpike's layers: `unroll`, or `unroll_checkpointed` over time.

jaxpike has no batch norm and no dropout. Its step is that of `jaxpike.make_step`,
written out so that the model is donated.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxpike
import optax
import worker
from workload import RATE, TAU, batch, layout, peak_of, sizes

WAYS = {
    "unroll": jaxpike.unroll,
    "unroll_checkpointed": jaxpike.unroll_checkpointed,
}
GAIN = 4  # over the library's own, with which the fourth layer is silent
NOTE = (
    "no batch norm and no dropout in the library; "
    "decay exp(-1/tau), input scaled by 1 - decay, a learnable tau"
)


def network(rows, side, key):
    keys = iter(jax.random.split(key, len(rows) + 1))
    gain, layers = GAIN * jaxpike.lif_gain(TAU), []
    for inputs, outputs, pool in rows:
        layers.append(jaxpike.Conv2d(inputs, outputs, 3, key=next(keys), gain=gain))
        layers.append(jaxpike.LIF(TAU, reset="zero", surrogate=jaxpike.ATan()))
        layers += [jaxpike.Pool2d(2)] * pool
        side //= 1 + pool
    dense = jaxpike.Dense(rows[-1][1] * side**2, 10, key=next(keys))
    return jaxpike.Sequential(*layers, jaxpike.Flatten(), dense)


def build(options):
    frames, labels = map(jnp.asarray, batch(options))
    net = network(layout(options), sizes(options)["vgg"][2], jax.random.key(0))
    parameters, static = eqx.partition(net, eqx.is_inexact_array)
    optimizer, unroll = optax.sgd(RATE), WAYS[options.variant]

    def loss(parameters, frames, labels):
        scores, _ = unroll(eqx.combine(parameters, static), frames)
        return jaxpike.cross_entropy(scores.mean(0), labels)

    def step(parameters, state, frames, labels):
        value, gradients = jax.value_and_grad(loss)(parameters, frames, labels)
        updates, state = optimizer.update(gradients, state, parameters)
        return eqx.apply_updates(parameters, updates), state, value

    held = [parameters, optimizer.init(parameters)]
    jitted = jax.jit(step, donate_argnums=(0, 1))
    compiled = jitted.lower(*held, frames, labels).compile()

    def run():
        *held[:], value = compiled(*held, frames, labels)
        return float(value)

    facts = {"compiled_bytes": peak_of(compiled.memory_analysis()), "note": NOTE}
    return run, facts


if __name__ == "__main__":
    worker.main(build)
