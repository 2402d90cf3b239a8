"""Chunks with statistics of their own: another function, for those who ask for it.

Each chunk is a call of its own, one after the other: batch norm sees the moments of the
chunk, and running statistics move once a chunk. So did the time chunks of Huang et al.,
ICLR 2026. Neurons take up where the chunk before ended.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from .._types import Array
from ..neuron import Neuron, State
from ._layout import BATCH, TIME, Chunks


def call_per_chunk(
    call: Callable[..., Array],
    module: nnx.Module,
    axis: int,
    count: int,
    x: Array,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Array:
    """`call(module, chunk, ...)` for each chunk of `x`, joined; `module` is updated.

    Arguments that start as `x` does, `[time, batch, ...]`, are cut with it.

    Raises:
        ValueError: batch chunks of a module with kept states, which would mix samples.
    """
    chunks = Chunks.of(axis, x.shape[axis], count)
    streaming = nnx.merge(*nnx.split(module), copy=True)
    added = _start_streams(streaming, axis)
    sizes = [*([chunks.rest] if chunks.rest else []), *[chunks.size] * chunks.count]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = []
    for end, size in zip(ends, sizes):

        def cut(a: Any, start: int = end - size, end: int = end) -> Any:
            with_it = getattr(a, "ndim", 0) > 1 and a.shape[:2] == x.shape[:2]
            return lax.slice_in_dim(a, start, end, axis=axis) if with_it else a

        chunk, args_, kwargs_ = jax.tree.map(cut, (x, args, kwargs))
        parts.append(call(streaming, chunk, *args_, **kwargs_))
    for neuron in added:
        neuron.kept = None
    nnx.update(module, nnx.state(streaming))
    return jnp.concatenate(parts, axis)


def _start_streams(module: nnx.Module, axis: int) -> list[Neuron]:
    """Makes neurons go on from chunk to chunk of time; those that did not before."""
    neurons = [m for _, m in nnx.iter_graph(module) if isinstance(m, Neuron)]
    if axis == BATCH and any(n.kept is not None for n in neurons):
        raise ValueError(
            "`chunk_statistics` is 'per_chunk' for batch chunks of neurons that keep "
            "their state (`keep_state`), which have a state for every sample; use "
            "'exact', or time chunks."
        )
    added = [n for n in neurons if n.kept is None] if axis == TIME else []
    for neuron in added:
        neuron.kept = State(())
    return added
