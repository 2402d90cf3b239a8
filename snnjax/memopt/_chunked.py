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

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

from .._gate import after, gate, start_after
from .._types import Array, float32_at_least
from ._axis_rules import Mixes
from ._compress import BaseSpikeCompressor, Payload
from ._layout import Chunks, Layout, Piece, over
from ._twin import Run, Value, abstract_chunk, inputs_of, refusal

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
            `[time, batch, ...]`. It must not close over traced values.
        compressor: what keeps `x`; it must be exact on every value that `x` can hold.
        axis: 0 cuts time, 1 the batch.
        count: of chunks; more than there are steps or samples are that many.
        in_axes: the cut axis in each leaf of `args`; None, for one or all, is none.
        shards: devices that the batch is divided over. Each cuts its own part.
        forward_by: "whole" runs the forward pass at once. "sums" does so for sums over
            the cut axis, such as batch norm's moments, and then runs over chunks, which
            computes what leads to the sums twice. "chunks" runs over chunks for the
            sums too; these are then equal to the whole ones up to rounding.

    Returns:
        A function with the values and gradients of `f`.

    Raises:
        ValueError: when differentiated, if `f` mixes what is to be kept apart.
    """
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
        return y, _Kept(payload, leaves, totals, states, program)

    def backward(kept: "_Kept", cotangents: Any) -> tuple[Any, ...]:
        kept, cotangents = gate(kept, cotangents)
        dx, *leaves = _Backward(kept, jax.tree.leaves(cotangents)).run()
        return (dx, *jax.tree.unflatten(kept.program.structure, leaves))

    segment.defvjp(forward, backward)
    return segment


def check_cut(
    f: Callable[..., Any],
    axis: int,
    count: int,
    x: Array,
    args: tuple[Any, ...],
    in_axes: InAxes | None = None,
) -> str | None:
    """Why `f` cannot be cut, as for `chunked_segment`; None if it can."""
    leaves, structure = jax.tree.flatten(args)
    chunks = Chunks.of(axis, x.shape[axis], min(count, x.shape[axis]))
    layouts = _layouts(chunks, leaves, in_axes)
    try:
        trace_program(f, structure, chunks, [x, *leaves], layouts)
    except Exception as error:  # a trace may fail in any way at another shape
        return str(error)
    return None


def _layouts(
    chunks: Chunks, leaves: list[Any], in_axes: InAxes | None
) -> list[Layout | None]:
    axes = [None] * len(leaves) if in_axes is None else list(in_axes)
    places = [None if a is None else Layout(a, chunks.length) for a in axes]
    return [Layout(chunks.axis, chunks.length), *places]


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
        totals: abstract.
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
    sweeps: int

    def whole(self, inputs: list[Array]) -> tuple[Any, list[Any], "States"]:
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
        return jax.make_jaxpr(flat, return_shape=True)(*shapes)

    traced = [trace(size) for size in sizes]
    jaxprs = tuple(jaxpr for jaxpr, _ in traced)
    run = Run(chunks)
    try:
        results = run.run(jaxprs, [Value(layout) for layout in layouts])
    except Mixes as reason:
        raise ValueError(refusal(reason, chunks)) from reason
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
        max(run.depths, default=0),
    )


# --- forward --------------------------------------------------------------------------


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
    given = _Inputs(program, payload, inputs[1:])
    inits = program.around(given.wholes, None, None)[1]
    if totals is None:
        totals = _swept_totals(program, given, inits)
    place = [i for i, v in enumerate(program.results) if v.layout]
    zeros = [jnp.zeros(program.shapes[i].shape, program.shapes[i].dtype) for i in place]
    layouts = [program.results[i].layout for i in place]
    outs = [
        program.chunks.view(start_after(a, inputs[0]), p) for a, p in zip(zeros, layouts)
    ]
    starts = jax.tree.map(
        lambda a: jnp.zeros((program.chunks.count, *a.shape), a.dtype), inits
    )

    def step(piece: Piece, state: Any) -> Any:
        carries, starts, outs = state
        starts = piece.store(starts, carries)
        parts, _, carries = program.part(piece, given.at(piece), totals, carries)
        return carries, starts, [piece.paste(a, b) for a, b in zip(outs, parts)]

    lasts, starts, outs = over(program.chunks, step, (inits, starts, outs))
    uncut = iter(program.around(given.wholes, totals, lasts)[0])
    cut = iter(a.reshape(z.shape) for a, z in zip(outs, zeros))
    leaves = [next(cut if v.layout else uncut) for v in program.results]
    y = jax.tree.unflatten(program.output, leaves)
    return y, totals, States(inits, starts, lasts)


def _swept_totals(program: Program, given: "_Inputs", inits: list[Any]) -> list[Array]:
    """Totals as sums over chunks; a sweep for each that depends on another."""
    zeros = [jnp.zeros(a.shape, a.dtype) for a in program.totals]

    def sweep(_: Any, totals: list[Array]) -> list[Array]:
        def step(piece: Piece, state: Any) -> Any:
            sums, carries = state
            new, carries = program.part(piece, given.at(piece), totals, carries)[1:]
            return _sum(sums, new), carries

        return over(program.chunks, step, (zeros, inits))[0]

    return lax.fori_loop(0, program.sweeps, sweep, zeros)


FORWARD = {"whole": _whole, "sums": _by_sums, "chunks": _by_chunks}


class _Inputs:
    """The inputs of a program, and those of a chunk."""

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


# --- backward -------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Kept:
    """From forward to backward: the packed input, parameters, totals and states."""

    x: Payload
    leaves: list[Any]
    totals: list[Any]
    states: States
    program: Program = dataclasses.field(metadata={"static": True})


class _Floats:
    """The floating leaves of a tree, and the tree with others in their place."""

    def __init__(self, tree: Any) -> None:
        self._leaves, self._structure = jax.tree.flatten(tree)
        self.values = [a for a in self._leaves if _is_float(a)]

    def fill(self, values: list[Any]) -> Any:
        floats = iter(values)
        leaves = [next(floats) if _is_float(a) else a for a in self._leaves]
        return jax.tree.unflatten(self._structure, leaves)


def _floats(tree: Any) -> list[Any]:
    return _Floats(tree).values


def _is_float(a: Any) -> bool:
    return jnp.issubdtype(a.dtype, jnp.inexact)


class _Backward:
    """One backward pass; `d...` are cotangents of what the name says, floats only."""

    def __init__(self, kept: _Kept, cotangents: list[Any]) -> None:
        self.program, self.states = kept.program, kept.states
        self.inputs = _Inputs(self.program, kept.x, kept.leaves)
        self.totals = _Floats(kept.totals)
        layouts, abstract = self.program.layouts, self.program.inputs
        self.places = [p for a, p in zip(abstract, layouts) if _is_float(a)]
        results = [v.layout for v in self.program.results]
        pairs = [(g, p) for g, p in zip(cotangents, results) if _is_float(g)]
        self.dcut = [_Cut.of(self.program.chunks, g, p) for g, p in pairs if p]
        self.duncut = [g for g, p in pairs if not p]
        self.due = pairs[0][0]

    def run(self) -> list[Any]:
        """The cotangent of every input; None for those that have none."""
        pull = self._around()
        inits = [jnp.zeros_like(a) for a in _floats(self.states.inits)]
        dwholes, dtotals, dlasts = pull((self.duncut, inits))
        moments = self._moments(dtotals, dlasts)
        dvalues, dinits = self._gradients(moments, dwholes, dlasts)
        if dinits:
            nothing = [jnp.zeros_like(g) for g in self.duncut]
            dvalues = self._with_wholes(dvalues, pull((nothing, dinits))[0])
        floats = iter(dvalues)
        inputs = self.program.inputs
        return [next(floats).astype(a.dtype) if _is_float(a) else None for a in inputs]

    def _around(self) -> Callable[..., Any]:
        """The derivative of what does not run over chunks."""
        trees = _Floats(self.inputs.wholes), self.totals, _Floats(self.states.lasts)

        def around(*values: list[Any]) -> Any:
            given = [tree.fill(v) for tree, v in zip(trees, values)]
            return tuple(map(_floats, self.program.around(*given)))

        return jax.vjp(around, *(tree.values for tree in trees))[1]

    def _moments(self, dtotals: list[Any], dlasts: list[Any]) -> list[Any]:
        """Cotangents of the totals: as many sweeps as they depend on each other."""

        def sweep(_: Any, moments: list[Any]) -> list[Any]:
            def step(piece: Piece, state: Any) -> Any:
                trees = self.totals, _Floats(self._carries(piece))
                inputs = self.inputs.at(piece)

                def part(*values: list[Any]) -> Any:
                    totals, carry = (t.fill(v) for t, v in zip(trees, values))
                    found = self.program.part(piece, inputs, totals, carry)
                    return tuple(map(_floats, found))

                pull = jax.vjp(part, *(tree.values for tree in trees))[1]
                dys = [g.at(piece) for g in self.dcut]
                new, dcarry = pull((dys, moments, state[1]))
                return _sum(state[0], new), dcarry

            start = self._late(dtotals), dlasts
            return over(self.program.chunks, step, start, reverse=True)[0]

        sweeps = self.program.sweeps
        moments = self._late([jnp.zeros_like(a) for a in self.totals.values])
        if sweeps == 1:  # not a loop, which copies what it carries
            return sweep(0, moments)
        return lax.fori_loop(0, sweeps, sweep, moments)

    def _gradients(
        self, moments: list[Any], dwholes: list[Any], dlasts: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Cotangents of all inputs, and of the first states."""
        inputs = _floats(self.program.inputs)
        sources = self._written_over(inputs)
        start = self._starts(inputs, dwholes, sources)

        def step(piece: Piece, state: Any) -> Any:
            dvalues, dcarry = state
            trees = _Floats(self.inputs.at(piece)), _Floats(self._carries(piece))
            totals = self.totals.fill(self.totals.values)

            def part(*values: list[Any]) -> Any:
                inputs, carry = (t.fill(v) for t, v in zip(trees, values))
                found = self.program.part(piece, inputs, totals, carry)
                return tuple(map(_floats, found))

            pull = jax.vjp(part, *(tree.values for tree in trees))[1]
            over_it = {i: a for a, i in zip(dvalues, sources) if i is not None}
            dys = [g.at(piece, over_it.get(i)) for i, g in enumerate(self.dcut)]
            new, dcarry = pull((dys, moments, dcarry))
            merged = [
                old + a.astype(old.dtype) if p is None else piece.paste(old, a)
                for old, a, p in zip(dvalues, new, self.places)
            ]
            return merged, dcarry

        dvalues, dinits = over(
            self.program.chunks, step, (start, dlasts), reverse=True
        )
        shaped = [d.reshape(a.shape) for d, a in zip(dvalues, inputs)]
        return shaped, dinits

    def _starts(
        self, inputs: list[Any], dwholes: list[Any], sources: list[int | None]
    ) -> list[Array]:
        """Accumulators, and the buffers that chunks are written to."""
        wholes = iter(dwholes)

        def start(a: Any, place: Layout | None, source: int | None) -> Array:
            if source is not None:
                return self.dcut[source].view
            if place is None:
                first = next(wholes).astype(float32_at_least(a.dtype))
                return start_after(first, self.due)
            zeros = jnp.zeros(a.shape, a.dtype)
            return start_after(self.program.chunks.view(zeros, place), self.due)

        return [start(*row) for row in zip(inputs, self.places, sources)]

    def _written_over(self, inputs: list[Any]) -> list[int | None]:
        """For each cotangent to come, the number of one that it can be written over."""
        free = dict(enumerate(self.dcut))
        found: list[int | None] = []
        for a, place in zip(inputs, self.places):
            wanted = place, a.shape, a.dtype
            same = [
                i for i, g in free.items() if (g.layout, g.shape, g.view.dtype) == wanted
            ]
            found.append(same[0] if same else None)
            free.pop(found[-1], None)
        return found

    def _with_wholes(self, dvalues: list[Any], dwholes: list[Any]) -> list[Any]:
        """With the cotangents of what is not cut added."""
        more = iter(dwholes)
        return [
            a + next(more).astype(a.dtype) if p is None else a
            for a, p in zip(dvalues, self.places)
        ]

    def _late(self, arrays: list[Array]) -> list[Array]:
        return [start_after(a, self.due) for a in arrays]

    def _carries(self, piece: Piece) -> list[Any]:
        if piece.index is None:
            return self.states.inits
        return piece.stored(self.states.starts)


@dataclasses.dataclass(frozen=True)
class _Cut:
    """An array as the view that chunks are cut from."""

    view: Array
    layout: Layout
    shape: tuple[int, ...]

    @classmethod
    def of(cls, chunks: Chunks, a: Array, layout: Layout) -> Self:
        return cls(chunks.view(a, layout), layout, a.shape)

    def at(self, piece: Piece, view: Array | None = None) -> Array:
        """The chunk, of this view or of another in its place."""
        given = self.view if view is None else view
        return piece.cut_view(given, self.layout, self.shape)


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


def _sum(a: list[Array], b: list[Array]) -> list[Array]:
    return [x + y for x, y in zip(a, b, strict=True)]
