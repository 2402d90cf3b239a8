"""The backward pass of a chunked segment: sweeps for the totals, then all gradients.

Cotangents of parameters are added up, those of cut inputs written to their place, and
those of a loop's states handed back to the chunk before.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

from .._gate import start_after
from .._types import Array
from ._accumulate import accumulator, added
from ._compress import Payload
from ._jaxpr import is_float
from ._layout import Chunks, Layout, Piece, over
from ._program import Inputs, Program, States


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kept:
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
        self.values = [a for a in self._leaves if is_float(a)]

    def fill(self, values: list[Any]) -> Any:
        floats = iter(values)
        leaves = [next(floats) if is_float(a) else a for a in self._leaves]
        return jax.tree.unflatten(self._structure, leaves)


def _floats(tree: Any) -> list[Any]:
    return _Floats(tree).values


class Backward:
    """One backward pass; `d...` are cotangents of what the name says, floats only.

    Args:
        kept: from the forward pass.
        cotangents: of the flat results.
    """

    def __init__(self, kept: Kept, cotangents: list[Any]) -> None:
        self.program, self.states = kept.program, kept.states
        self.inputs = Inputs(self.program, kept.x, kept.leaves)
        self.totals = _Floats(kept.totals)
        layouts, abstract = self.program.layouts, self.program.inputs
        self.places = [p for a, p in zip(abstract, layouts) if is_float(a)]
        results = [v.layout for v in self.program.results]
        pairs = [(g, p) for g, p in zip(cotangents, results) if is_float(g)]
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
        return [next(floats).astype(a.dtype) if is_float(a) else None for a in inputs]

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
                dys = [g.at(piece) for g in self.dcut]
                pull = self._pull(piece, "totals")
                new, dcarry = pull((dys, moments, state[1]))
                return added(state[0], new), dcarry

            start = [accumulator(a) for a in self._late(dtotals)], dlasts
            sums = over(self.program.chunks, step, start, reverse=True)[0]
            return [a.astype(t.dtype) for a, t in zip(sums, self.totals.values)]

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
            pull = self._pull(piece, "inputs")
            over_it = {i: a for a, i in zip(dvalues, sources) if i is not None}
            dys = [g.at(piece, over_it.get(i)) for i, g in enumerate(self.dcut)]
            new, dcarry = pull((dys, moments, dcarry))
            merged = [
                old + a.astype(old.dtype) if p is None else piece.paste(old, a)
                for old, a, p in zip(dvalues, new, self.places)
            ]
            return merged, dcarry

        dvalues, dinits = over(self.program.chunks, step, (start, dlasts), reverse=True)
        shaped = [d.reshape(a.shape) for d, a in zip(dvalues, inputs)]
        return shaped, dinits

    def _pull(self, piece: Piece, by: str) -> Callable[..., Any]:
        """The derivative of a chunk by its "inputs" or "totals", and by its states."""
        given = {
            "inputs": _Floats(self.inputs.at(piece)),
            "totals": self.totals,
            "carries": _Floats(self._carries(piece)),
        }

        def part(values: list[Any], carries: list[Any]) -> Any:
            chosen = {by: values, "carries": carries}
            filled = [t.fill(chosen.get(name, t.values)) for name, t in given.items()]
            return tuple(map(_floats, self.program.part(piece, *filled)))

        return jax.vjp(part, given[by].values, given["carries"].values)[1]

    def _starts(
        self, inputs: list[Any], dwholes: list[Any], sources: list[int | None]
    ) -> list[Array]:
        """Accumulators, and the buffers that chunks are written to."""
        wholes = iter(dwholes)

        def start(a: Any, place: Layout | None, source: int | None) -> Array:
            if source is not None:
                return self.dcut[source].view
            if place is None:
                return start_after(accumulator(next(wholes)), self.due)
            return self.program.chunks.buffer(a, place, self.due)

        return [start(*row) for row in zip(inputs, self.places, sources)]

    def _written_over(self, inputs: list[Any]) -> list[int | None]:
        """For each cotangent to come, the number of one that it can be written over."""
        free = dict(enumerate(self.dcut))
        found: list[int | None] = []
        for a, place in zip(inputs, self.places):
            wanted = place, a.shape, a.dtype
            same = [
                i
                for i, g in free.items()
                if (g.layout, g.shape, g.view.dtype) == wanted
            ]
            for i in same[:1]:
                del free[i]
            found.append(same[0] if same else None)
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
