"""Ties between values that XLA cannot undo: nothing starts before it is due.

XLA is free to run a recomputation right after the forward pass, which saves nothing,
and to allocate a buffer of zeros when the program starts. Two ties hold it back, and
both are needed: a data dependency, which XLA's CPU compiler respects while it deletes
barriers, and an optimization barrier, which is what works on a GPU.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ._types import Array


def gate(residuals: Any, cotangents: Any) -> tuple[Any, Any]:
    """Returns both trees unchanged in value; no residual is usable before a cotangent.

    Args:
        residuals: pytree of arrays, PRNG keys included.
        cotangents: pytree of arrays; the tie is to the floating ones if there are any,
            else to all numbers.
    """
    no = never(cotangents)
    return _barrier((jax.tree.map(lambda a: _tie(a, no), residuals), cotangents))


def start_after(a: Array, due: Array) -> Array:
    """`a`, where `a` may be a constant, allocated no earlier than `due` exists."""
    # Not a zero in its place, which XLA would fold where `a` is a constant zero.
    return jnp.where(never(due), jnp.ones_like(a), a)


def after(tree: Any, done: Any) -> Any:
    """The tree, unchanged in value, not usable before the arrays in `done` exist."""
    if not any(a.size for a in jax.tree.leaves(done)):
        return tree
    return gate(tree, done)[0]


def never(tree: Any) -> Array:
    """A scalar that is always False; XLA cannot know, since it depends on the data.

    On all the data: a leaf that is a constant zero would let XLA fold it.
    """
    leaves = [a for a in jax.tree.leaves(tree) if _is_number(a) and a.size]
    floats = [a for a in leaves if jnp.issubdtype(a.dtype, jnp.inexact)] or leaves
    # By an index, not by flattening: that would gather an array sharded over its batch.
    a = sum(a[(0,) * a.ndim].real.astype(jnp.float32) for a in floats)
    return jnp.isnan(a) & jnp.isinf(a)


def _is_number(a: Any) -> bool:
    numbers = jnp.issubdtype(a.dtype, jnp.number) or a.dtype == jnp.bool_
    return numbers and a.dtype != jax.dtypes.float0


def _tie(a: Array, never: Array) -> Array:
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        data = _tie(jax.random.key_data(a), never)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(a))
    return jnp.where(never, jnp.zeros_like(a), a)


def _barrier(tree: Any) -> Any:
    """`lax.optimization_barrier` on what it accepts: no keys, no float0."""
    leaves, structure = jax.tree.flatten(tree)
    through = [i for i, a in enumerate(leaves) if _passes(a)]
    for i, a in zip(through, lax.optimization_barrier([leaves[i] for i in through])):
        leaves[i] = a
    return jax.tree.unflatten(structure, leaves)


def _passes(a: Any) -> bool:
    return a.dtype != jax.dtypes.float0 and not jnp.issubdtype(
        a.dtype, jax.dtypes.extended
    )
