"""The training step that ours and spyx's networks take alike: flax and optax alone."""

import optax
from flax import nnx


def loss(model, frames, labels):
    scores = model(frames).mean(0)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def step(model, optimizer, frames, labels):
    value, gradients = nnx.value_and_grad(loss)(model, frames, labels)
    optimizer.update(model, gradients)
    return value
