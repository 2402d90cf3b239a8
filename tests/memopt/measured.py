"""What the tests of measuring measure: a small net, its input, its leaves."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Net(nnx.Module):
    """Convolution, batch norm and dropout: parameters, statistics and random keys."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(2, 16, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.drop(jnp.tanh(self.norm(self.conv(x))))


def struct(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def leaves(tree) -> list[np.ndarray]:
    def raw(x):
        is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return [raw(x) for x in jax.tree.leaves(nnx.state(tree))]


X = struct(4, 16, 16, 2)
IMAGE_BYTES = 4 * 4 * 16 * 16 * 2
