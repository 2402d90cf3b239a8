"""A function that runs in parts: traced whole and at the size of a chunk."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from .._marks import carrying_state
from .._types import Array
from ._axis_rules import Mixes
from ._compress import Payload
from ._layout import TIME, Chunks, Layout, Piece
from ._twin import Run, abstract_chunk, inputs_of, refusal
from ._value import Value


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class States:
    """Of each loop over time: before all, before each even chunk, and after all."""

    inits: list[Any]
    starts: list[Any]
    lasts: list[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A function traced whole and at the size of each chunk, and what was found in it.

    Args:
        chunks: how its axis is cut.
        jaxprs: whole, even chunk and, if there is one, the rest.
        inputs: abstract; `layouts` says where they are cut.
        structure, output: of the arguments after the first, and of the results.
        results, shapes: what each result is; abstract.
        totals, states: abstract; states of loops over time, at the start of a chunk.
        sweeps: over the chunks that they take.
    """

    chunks: Chunks
    jaxprs: tuple[Any, ...]
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    layouts: tuple[Layout | None, ...]
    structure: Any
    output: Any
    results: tuple[Value, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    totals: tuple[jax.ShapeDtypeStruct, ...]
    states: tuple[jax.ShapeDtypeStruct, ...]
    sweeps: int

    def whole(self, inputs: list[Array]) -> tuple[Any, list[Any], States]:
        """The function, its totals and its states."""
        run = Run(self.chunks)
        found = run.run(self.jaxprs, inputs_of(inputs, self.layouts, cut=False))
        y = jax.tree.unflatten(self.output, [v.full for v in found])
        return y, run.found, States(run.inits, run.starts, run.ends)

    def part(
        self, piece: Piece, inputs: list[Any], totals: list[Any], carries: list[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """A chunk's part of the cut results and of the totals, and its last states."""
        run = Run(self.chunks, piece, totals=totals, carries=carries)
        found = run.run(self.jaxprs, inputs_of(inputs, self.layouts, cut=True))
        return [v.piece for v in found if v.layout], run.sums, run.nexts

    def around(
        self, inputs: list[Any], totals: list[Any] | None, lasts: list[Any] | None
    ) -> tuple[list[Any], list[Any]]:
        """The results that are not cut, and the first states; None where unknown."""
        run = Run(self.chunks, totals=totals, lasts=lasts)
        found = run.run(self.jaxprs, inputs_of(inputs, self.layouts, cut=True))
        return [v.full for v in found if not v.layout], run.inits


def trace_program(
    f: Callable[..., Any],
    structure: Any,
    chunks: Chunks,
    inputs: list[Any],
    layouts: list[Layout | None],
) -> Program:
    """Traces `f` and finds out whether it can be cut.

    Raises:
        ValueError: it cannot; the message says which equation, and why.
    """
    sizes = [chunks.length, chunks.size, *([chunks.rest] if chunks.rest else [])]

    def flat(x: Array, *leaves: Any) -> Any:
        return f(x, *jax.tree.unflatten(structure, leaves))

    def trace(size: int) -> tuple[Any, Any]:
        shapes = [abstract_chunk(a, p, size) for a, p in zip(inputs, layouts)]
        # Marks are names of jitted functions; chunks of time hand states on.
        states = carrying_state() if chunks.axis == TIME else contextlib.nullcontext()
        with jax.disable_jit(False), states:
            return jax.make_jaxpr(flat, return_shape=True)(*shapes)

    run, whole = Run(chunks), trace(chunks.length)
    try:
        traced = [whole, *(trace(size) for size in sizes[1:])]
        jaxprs = tuple(jaxpr for jaxpr, _ in traced)
        results = run.run(jaxprs, [Value(layout) for layout in layouts])
    except Mixes as reason:
        raise ValueError(refusal(reason, chunks)) from reason
    except (TypeError, ValueError) as error:
        raise ValueError(
            refusal(Mixes(f"on a chunk it fails: {error}"), chunks)
        ) from error
    return Program(
        chunks,
        jaxprs,
        tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inputs),
        tuple(layouts),
        structure,
        jax.tree.structure(traced[0][1]),
        tuple(v.bare for v in results),
        tuple(jax.tree.leaves(traced[0][1])),
        tuple(run.shapes),
        tuple(run.states),
        max(run.depths, default=0),
    )


class Inputs:
    """The inputs of a program, `x` of them packed, and those of a chunk."""

    def __init__(self, program: Program, x: Payload, leaves: list[Any]) -> None:
        self.chunks, self.layouts = program.chunks, program.layouts
        self.leaves, self._cut_x = leaves, _cutter(x, self.layouts[0])

    @property
    def wholes(self) -> list[Any]:
        """Those that are not cut, and None in place of the others."""
        whole = zip(self.leaves, self.layouts[1:])
        return [None, *(None if p else a for a, p in whole)]

    def at(self, piece: Piece) -> list[Any]:
        """Those of a chunk."""
        cut = zip(self.leaves, self.layouts[1:])
        return [self._cut_x(piece), *(piece.cut(a, p) if p else a for a, p in cut)]


def _cutter(payload: Payload, layout: Layout | None) -> Callable[[Piece], Array]:
    """The function that gives a chunk of what was packed."""
    assert layout is not None
    if not payload.by.separable:
        whole = payload.unpack()
        return lambda piece: piece.cut(whole, layout)

    def cut(piece: Piece) -> Array:
        data = jax.tree.map(lambda a: piece.cut(a, layout), payload.data)
        shape = layout.shape_of_chunk(payload.shape, piece.size)
        return dataclasses.replace(payload, data=data, shape=shape).unpack()

    return cut
