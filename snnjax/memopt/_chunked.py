"""The chunked segment: as a GC segment, but its backward pass runs over chunks.

Forward it is the function itself. Backward, a loop computes one chunk of the batch or
of the time steps again at a time, and differentiates it, so that no more than a chunk
of what happens inside is ever alive. Sums over the cut axis, such as batch norm's
moments, are those of the forward pass; their cotangents `m` are the solution of

    m = sum over chunks of  d(loss through outputs and sums) / d sums,

a triangular system where one sum depends on another. Each sweep over the chunks solves
one more of them; then a last one takes all gradients. States of loops over time are
kept at the start of each chunk, and their cotangents are handed back from chunk to
chunk. The gradients are those of the function, exactly.

Time chunks are those of Huang et al., ICLR 2026 (with per-chunk statistics there).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .._gate import after, gate
from .._shards import alike
from .._types import Array
from ._checks import check_one_of, check_whole
from ._chunk_backward import Backward, Kept
from ._chunk_forward import FORWARD
from ._compress import BaseSpikeCompressor, check_compressor
from ._layout import NAMES, Chunks, Layout
from ._program import Program, trace_program

InAxes = Sequence[int | None]


def chunked_segment(
    f: Callable[..., Any],
    compressor: BaseSpikeCompressor,
    axis: int,
    count: int,
    *,
    in_axes: InAxes | None = None,
    shards: int = 1,
    forward_by: str = "whole",
) -> Callable[..., Any]:
    """Makes a function keep only its input, and go backward over chunks of it.

    Args:
        f: pure function `f(x, *args)` of pytrees of arrays; `x` is one array,
            `[time, batch, ...]`. It must not close over traced values. Inside
            `jax.shard_map` it needs `check_vma=False`: its trace knows no devices.
        compressor: what keeps `x`; it must be exact on every value that `x` can hold.
        axis: 0 cuts time, 1 the batch.
        count: of chunks; more than there are steps or samples are that many.
        in_axes: the cut axis in each leaf of `args`, from 0, as long there as in `x`;
            None, for one or all, is none.
        shards: devices that the batch is divided over. Each cuts its own part.
        forward_by: "whole" runs the forward pass at once. "sums" does so for sums over
            the cut axis, such as batch norm's moments, and then runs over chunks, which
            computes what leads to the sums twice. "chunks" runs over chunks for the
            sums too; these are then equal to the whole ones up to rounding.

    Returns:
        A function with the values and gradients of `f`.

    Raises:
        ValueError: an argument is out of range; when differentiated, `in_axes` does
            not fit `args`, or `f` mixes what is to be kept apart.
    """
    check_compressor(compressor)
    _check(axis, count, forward_by)
    segment = jax.custom_vjp(f)

    def forward(x: Array, *args: Any) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(args)
        chunks = Chunks.of(axis, x.shape[axis], count, shards)
        layouts = _layouts(chunks, leaves, in_axes)
        program = trace_program(f, structure, chunks, [x, *leaves], layouts)
        payload = compressor.pack(x)
        # Packed before it is read: XLA:CPU would keep it until it must be packed.
        inputs = [x, *after(leaves, payload)]
        y, totals, states = FORWARD[forward_by](program, inputs, payload)
        return y, Kept(payload, leaves, totals, states, program)

    def backward(kept: Kept, cotangents: Any) -> tuple[Any, ...]:
        kept, cotangents = gate(kept, cotangents)
        dx, *leaves = Backward(kept, jax.tree.leaves(cotangents)).run()
        return (dx, *jax.tree.unflatten(kept.program.structure, leaves))

    segment.defvjp(forward, backward)
    return lambda x, *args: segment(*alike((x, *args)))


def _check(axis: Any, count: Any, forward_by: Any) -> None:
    if axis not in NAMES:
        raise ValueError(f"`axis` is {axis!r}; allowed are 0 (time) and 1 (batch).")
    check_whole("count", count, 1, "Give a number of chunks.")
    check_one_of("forward_by", forward_by, FORWARD)


def cut_program(
    f: Callable[..., Any],
    axis: int,
    count: int,
    x: Any,
    *args: Any,
    in_axes: InAxes | None = None,
) -> Program:
    """`f` as it would be cut by `chunked_segment`.

    Raises:
        ValueError: it cannot be cut; the message says why.
    """
    leaves, structure = jax.tree.flatten(args)
    chunks = Chunks.of(axis, x.shape[axis], min(count, x.shape[axis]))
    layouts = _layouts(chunks, leaves, in_axes)
    return trace_program(f, structure, chunks, [x, *leaves], layouts)


def _layouts(
    chunks: Chunks, leaves: list[Any], in_axes: InAxes | None
) -> list[Layout | None]:
    axes = [None] * len(leaves) if in_axes is None else list(in_axes)
    if not _fit(axes, leaves, chunks.length):
        raise ValueError(
            f"`in_axes` is {in_axes!r}; allowed is, for each of the {len(leaves)} "
            f"arrays in `args`, None or its axis of length {chunks.length}, from 0: "
            f"their shapes are {', '.join(str(np.shape(a)) for a in leaves)}."
        )
    places = [None if a is None else Layout(a, chunks.length) for a in axes]
    return [Layout(chunks.axis, chunks.length), *places]


def _fit(axes: list[Any], leaves: list[Any], length: int) -> bool:
    """Whether each axis is None, or one of that length."""

    def fits(axis: Any, leaf: Any) -> bool:
        shape = np.shape(leaf)
        known = type(axis) is int and 0 <= axis < len(shape)
        return axis is None or (known and shape[axis] == length)

    return len(axes) == len(leaves) and all(map(fits, axes, leaves))
