"""A bias that is added in place on a CPU, and its gradient."""

import jax
import jax.numpy as jnp
from jax import lax

from ._marks import ELEMENTWISE, TRUSTED, marked
from ._types import with_axes_of


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """`y + bias`, written over `y` on CPU.

    XLA:CPU fuses a plain addition into everything that reads the sum, which keeps `y`
    alive beside the sum: one activation a layer, 280 MiB of the tutorial's VGG. It
    cannot copy a loop. The loop is as fast as the addition.

    Args:
        y: `[time, ..., features]`.
        bias: `[features]`.
    """
    return _trusted_add(y, with_axes_of(y, bias.astype(y.dtype)))


@jax.custom_jvp
def _add(y: jax.Array, bias: jax.Array) -> jax.Array:
    return _in_place_add(y, bias)


@_add.defjvp
def _add_jvp(primals, tangents):
    (y, bias), (dy, dbias) = primals, tangents
    # Transposed, a barrier before the bias sums its cotangent up: XLA:GPU would fuse
    # that sum with whatever makes the cotangent, which then cannot be written over what
    # it is made of. One activation at the peak: 90 MiB of the tutorial's VGG.
    return _add(y, bias), lax.optimization_barrier(dy + dbias)


@marked(TRUSTED)
def _trusted_add(y: jax.Array, bias: jax.Array) -> jax.Array:
    return _add(y, bias)


@marked(ELEMENTWISE)
def _in_place_add(y: jax.Array, bias: jax.Array) -> jax.Array:
    def in_place(y: jax.Array, bias: jax.Array) -> jax.Array:
        def step(t: jax.Array, y: jax.Array) -> jax.Array:
            row = lax.dynamic_slice_in_dim(y, t, 1) + bias
            return lax.dynamic_update_slice_in_dim(y, row, t, 0)

        return lax.fori_loop(0, y.shape[0], step, y)

    return lax.platform_dependent(y, bias, cpu=in_place, default=jnp.add)
