"""The forward pass of a chunked segment, at once or over chunks.

Each way gives the result, the totals and the states that the backward pass starts from.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._types import Array
from ._accumulate import accumulator, added
from ._compress import Payload
from ._layout import Piece, over
from ._program import Inputs, Program, States


def _whole(program: Program, inputs: list[Array], payload: Payload) -> Any:
    del payload
    return program.whole(inputs)


def _by_sums(program: Program, inputs: list[Array], payload: Payload) -> Any:
    return _by_chunks(program, inputs, payload, program.whole(inputs)[1])


def _by_chunks(
    program: Program,
    inputs: list[Array],
    payload: Payload,
    totals: list[Array] | None = None,
) -> Any:
    """The forward pass over chunks, which are cut from what is kept of the input."""
    given = Inputs(program, payload, inputs[1:])
    inits = program.around(given.wholes, None, None)[1]
    if totals is None:
        totals = _swept_totals(program, given, inits)
    cut = [(a, v.layout) for a, v in zip(program.shapes, program.results) if v.layout]
    outs = [program.chunks.buffer(a, p, inputs[0]) for a, p in cut]
    starts = jax.tree.map(program.chunks.stack, inits)

    def step(piece: Piece, state: Any) -> Any:
        carries, starts, outs = state
        starts = piece.store(starts, carries)
        parts, _, carries = program.part(piece, given.at(piece), totals, carries)
        return carries, starts, [piece.paste(a, b) for a, b in zip(outs, parts)]

    lasts, starts, outs = over(program.chunks, step, (inits, starts, outs))
    uncut = iter(program.around(given.wholes, totals, lasts)[0])
    whole = iter(a.reshape(like.shape) for a, (like, _) in zip(outs, cut))
    leaves = [next(whole if v.layout else uncut) for v in program.results]
    y = jax.tree.unflatten(program.output, leaves)
    return y, totals, States(inits, starts, lasts)


def _swept_totals(program: Program, given: Inputs, inits: list[Any]) -> list[Array]:
    """Totals as sums over chunks; a sweep for each that depends on another."""
    zeros = [jnp.zeros(a.shape, a.dtype) for a in program.totals]
    if not zeros:
        return zeros

    def sweep(_: Any, totals: list[Array]) -> list[Array]:
        def step(piece: Piece, state: Any) -> Any:
            sums, carries = state
            new, carries = program.part(piece, given.at(piece), totals, carries)[1:]
            return added(sums, new), carries

        start = [accumulator(a) for a in zeros]
        sums = over(program.chunks, step, (start, inits))[0]
        return [a.astype(like.dtype) for a, like in zip(sums, zeros)]

    return lax.fori_loop(0, program.sweeps, sweep, zeros)


# What `forward_by` names.
FORWARD: dict[str, Callable[..., Any]] = {
    "whole": _whole,
    "sums": _by_sums,
    "chunks": _by_chunks,
}
