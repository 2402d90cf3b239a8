"""One training step of an nnx model: loss, gradient, update."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from ._types import Array

Loss = Callable[..., Array]


def make_step(loss: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """A step `(model, optimizer, *batch) -> loss` that updates both in place.

    Compile it with `nnx.jit(make_step(loss), donate_argnums=(0, 1))`.

    Args:
        loss: `loss(model, *batch)`, a scalar.
        has_aux: whether the loss is a pair, a scalar and what else the step returns.
    """
    gradient = nnx.value_and_grad(loss, has_aux=has_aux)

    def step(model: nnx.Module, optimizer: nnx.Optimizer, *batch: Any) -> Any:
        value, gradients = gradient(model, *batch)
        optimizer.update(model, gradients)
        return value

    return step
