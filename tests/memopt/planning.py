"""Models for the tests of plans, and what a plan keeps of them."""

import jax
import jax.numpy as jnp
from flax import nnx
from models import (
    Block,
    loss,
)

import snnjax as snn
from snnjax import memopt

# jax's own for a failed callback; by its fast path it comes as a ValueError.
FAILED = (jax.errors.JaxRuntimeError, ValueError)
GRAD = nnx.jit(nnx.grad(loss))
STEP = nnx.jit(nnx.value_and_grad(loss))
BIT, NULL = "BitSpikeCompressor", "NullSpikeCompressor"


def integer(bits: int, lo: int = 0, scale: float = 1.0) -> str:
    return f"IntegerSpikeCompressor(bits={bits}, lo={lo}, scale={scale})"


class First(Block):
    """A block for frames of any dtype."""

    def __call__(self, x):
        return super().__call__(jnp.asarray(x).astype(jnp.float32))


def keeps(plan: memopt.Plan) -> list[str]:
    return [s.keeps for s in plan.segments]


def two(rngs_seed: int = 0) -> nnx.Module:
    rngs = nnx.Rngs(rngs_seed)
    return snn.layer.Sequential(First(rngs), Block(rngs))
