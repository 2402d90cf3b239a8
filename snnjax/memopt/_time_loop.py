"""Loops over the cut axis itself, run a chunk at a time.

A `lax.scan`, or a loop of ours that is marked (`_marks.py`): a carried state, and
operands and results that are sliced along time.
"""

from typing import Any

import jax.numpy as jnp

from .. import _marks
from ._layout import Chunks, Layout, Piece, over
from ._value import Value, bind


def mark_of(eqn: Any) -> str | None:
    """What a function of ours is vouched to do, by its name."""
    name = eqn.params.get("name")
    return name if name in _marks.ALL else None


def run_loop(
    chunks: Chunks,
    eqns: tuple[Any, ...],
    values: list[Value],
    carried: slice,
    where: list[Layout | None],
) -> tuple[list[Any], list[Any], list[Any]]:
    """Over all time: the last states, the results, and the states before each chunk."""
    whole = [jnp.asarray(v.full) for v in values]
    place, inits = Layout(0, chunks.length), whole[carried]
    n, starts = len(inits), [chunks.stack(a) for a in inits]
    shapes = states_of(eqns[0], n, [v.aval for v in eqns[0].outvars])[1]
    tie = next(a for a, p in zip(whole, where) if p is not None)
    outs = [chunks.buffer(s, place, tie) for s in shapes]

    def step(piece: Piece, state: Any) -> Any:
        carry, starts, outs = state
        starts = piece.store(starts, carry)
        operands = [a if p is None else piece.cut(a, p) for a, p in zip(whole, where)]
        operands[carried] = carry
        eqn = eqns[2 if piece.index is None else 1]
        carry, parts = states_of(eqn, n, bind(eqn, operands))
        outs = [piece.paste(a, part) for a, part in zip(outs, parts)]
        return carry, starts, outs

    last, starts, outs = over(chunks, step, (inits, starts, outs))
    return last, [a.reshape(s.shape) for a, s in zip(outs, shapes)], starts


def states_of(eqn: Any, n: int, results: list[Any]) -> tuple[list[Any], list[Any]]:
    """The last states and the stacked results of a loop; its carry comes first."""
    if mark_of(eqn) == _marks.CAUSAL:
        return list(results[1:]), list(results[:1])
    return list(results[:n]), list(results[n:])


def in_order(eqn: Any, states: list[Value], results: list[Value]) -> list[Value]:
    """The inverse of `states_of`."""
    if mark_of(eqn) == _marks.CAUSAL:
        return [*results, *states]
    return [*states, *results]
