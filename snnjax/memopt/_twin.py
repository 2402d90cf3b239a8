"""Runs a traced program chunk by chunk, and proves that it may be.

The program is traced at its whole size and at the size of a chunk; the two say the same
equation by equation. One walk over the pair finds what a chunk of each value is:

* cut: it lies apart along the cut axis, and the chunk's own equation computes it,
* whole: it is the same for all chunks, and the whole program's equation computes it;
  where it meets a cut value, the part that belongs to the chunk is sliced out,
* a total: a sum over the cut axis, such as batch norm's moments. The chunk adds its
  part, and all that follows reads the total, which somebody has to know,
* carried: the state of a loop over time. The chunk takes up the one before it,
* after: the last state, known when all chunks are done.

Everything else mixes what is to be apart, and is refused with its reason. `Run` does
the walk with or without values, so analysis and evaluation are one piece of code.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _marks
from .._types import Array
from ._axis_rules import (
    Effect,
    Layouts,
    Mixes,
    effect,
    elementwise,
    marked_causal,
)
from ._jaxpr import (
    CALLS,
    abstract,
    body_of,
    carry_and_sliced,
    derivative,
    is_float,
    is_literal,
)
from ._layout import NAMES, TIME, Chunks, Layout, Piece
from ._same import Twins, check_consts, check_params
from ._time_loop import in_order, mark_of, run_loop, states_of
from ._units import UNITS
from ._value import (
    Value,
    bind,
    bind_full,
    bind_shared,
    is_linear,
    is_uniform,
    layouts_of,
    literal,
    stays_zero,
)


@dataclasses.dataclass
class Run:
    """One walk; what it is given and what it found.

    Args:
        chunks: how the axis is cut.
        piece: the chunk to evaluate, if any.
        totals, carries, lasts: known totals, states before the chunk, last states.
        sums: the chunk's part of each total.
        found: totals of the whole program, where that is evaluated.
        starts: per loop over time its states before each even chunk.
        inits, ends: per loop over time its first states, and its last ones.
        nexts: per loop over time its states after the chunk.
        depths, shapes: of each total; `states` are the shapes of all states.
        sealed: nothing may be taken apart: the equations are those of a unit.
        derivative: they are those of a derivative.
        trust: derivatives need no proof.
    """

    chunks: Chunks
    piece: Piece | None = None
    totals: Sequence[Any] | None = None
    carries: Sequence[Any] | None = None
    lasts: Sequence[Any] | None = None
    sealed: bool = False
    derivative: bool = False
    trust: bool = False
    sums: list[Any] = dataclasses.field(default_factory=list)
    found: list[Any] = dataclasses.field(default_factory=list)
    depths: list[int] = dataclasses.field(default_factory=list)
    shapes: list[Any] = dataclasses.field(default_factory=list)
    states: list[Any] = dataclasses.field(default_factory=list)
    starts: list[Any] = dataclasses.field(default_factory=list)
    inits: list[Any] = dataclasses.field(default_factory=list)
    nexts: list[Any] = dataclasses.field(default_factory=list)
    ends: list[Any] = dataclasses.field(default_factory=list)

    def run(self, programs: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
        """What each output of a program is.

        Args:
            programs: one jaxpr traced at several sizes: the whole, an even chunk and,
                if there is one, the rest.
            inputs: what is known of each input.
        """
        bodies = [getattr(p, "jaxpr", p) for p in programs]
        if self.sealed:
            check_consts(programs)
        whole = bodies[0]
        consts = [
            Value(full=row[0], numbered=len({np.shape(c) for c in row}) > 1)
            for row in zip(*(getattr(p, "consts", ()) for p in programs))
        ]
        env = dict(zip([*whole.constvars, *whole.invars], [*consts, *inputs]))

        def read(atom: Any) -> Value:
            return literal(atom.val) if is_literal(atom) else env[atom]

        for eqns in Twins(bodies, exact=self.sealed).equations():
            values = self._equation(eqns, [read(v) for v in eqns[0].invars])
            env.update(zip(eqns[0].outvars, values))
        return [read(v) for v in whole.outvars]

    def _equation(self, eqns: tuple[Any, ...], values: list[Value]) -> list[Value]:
        try:
            return self._any(eqns, values)
        except Mixes as reason:
            if hasattr(reason, "where"):
                raise
            reason.where = _where(eqns[0])  # pyright: ignore[reportAttributeAccessIssue]
            raise

    def _any(self, eqns: tuple[Any, ...], values: list[Value]) -> list[Value]:
        cut = any(v.layout is not None for v in values)
        if mark_of(eqns[0]) is None and eqns[0].primitive.name in CALLS:
            return self.run([body_of(e) for e in eqns], values)
        if mark_of(eqns[0]) == _marks.TRUSTED:
            return self._trusted(eqns, values)
        if eqns[0].primitive.name == "optimization_barrier":
            return values
        if any(v.additive for v in values):
            return self._additive(eqns, values)
        if any(v.after for v in values):
            return self._after(eqns, values, cut)
        if not cut:
            return self._whole(eqns, values)
        causal = self._causal_operands(eqns[0], values)
        if causal is not None:
            return self._causal(eqns, values, *causal)
        return self._cut(eqns, values)

    def _trusted(self, eqns: tuple[Any, ...], values: list[Value]) -> list[Value]:
        outer, self.trust = self.trust, True
        results = self.run([body_of(e) for e in eqns], values)
        self.trust = outer
        return results

    def _after(
        self, eqns: tuple[Any, ...], values: list[Value], cut: bool
    ) -> list[Value]:
        if cut:
            raise Mixes("it reads the state after the last of them beside them")
        return [Value(after=True, full=full) for full in bind_full(eqns[0], values)]

    def _whole(self, eqns: tuple[Any, ...], values: list[Value]) -> list[Value]:
        depth = max((v.depth for v in values), default=0)
        pairs = zip(eqns[0].outvars, eqns[1].outvars)
        sizes = [_shape(a) != _shape(b) for a, b in pairs]
        uniform = [sized and is_uniform(eqns[0], values) for sized in sizes]
        pieces: list[Any] = [None] * len(uniform)
        if any(uniform) and self.piece is not None:
            pieces = bind(self._own(eqns), [_own_value(v) for v in values])
        fulls = bind_full(eqns[0], values)
        self._check_whole(eqns, values, uniform)
        zero = stays_zero(eqns[0], values)
        return [
            Value(
                uniform=alike,
                numbered=sized and not alike,
                depth=depth,
                zero=zero,
                full=full,
                piece=piece if alike else None,
            )
            for sized, alike, full, piece in zip(sizes, uniform, fulls, pieces)
        ]

    def _check_whole(
        self, eqns: tuple[Any, ...], values: list[Value], uniform: list[bool]
    ) -> None:
        """What is evaluated as the chunk has it has to be the same as the whole's."""
        if self.sealed or any(uniform):
            check_params(eqns)
        if _is_unit(eqns[0]) and (self.sealed or _has_rule(eqns[0])):
            self._effect(eqns, values)
        if not self.sealed:
            return
        if any(v.uniform for v in values) and not is_uniform(eqns[0], values):
            raise Mixes("it counts them inside a loop or a rule of its own")
        for a, b, same in zip(eqns[0].outvars, eqns[1].outvars, uniform):
            if _shape(a) != _shape(b) and not same:
                raise Mixes("values that number them are made inside a loop or a rule")

    def _additive(self, eqns: tuple[Any, ...], values: list[Value]) -> list[Value]:
        """Sums of cotangents over chunks, and what is linear in them."""
        if any(v.layout or v.uniform for v in values):
            raise Mixes("a rule of its own mixes their cotangents")
        if not is_linear(eqns[0], values):
            raise Mixes("a rule of its own is not linear in a sum of cotangents")
        check_params(eqns)
        return [Value(additive=True)] * len(eqns[0].outvars)

    def _cut(self, eqns: tuple[Any, ...], values: list[Value]) -> list[Value]:
        check_params(eqns)
        happens = self._effect(eqns, values)
        if happens.total and self.derivative:
            return [Value(additive=True)]
        if happens.total and self.sealed:
            raise Mixes("it sums over them inside a loop or a rule of its own")
        operands = [self._given(v, p) for v, p in zip(values, happens.operands)]
        pieces = bind(self._own(eqns), operands)
        fulls = bind_full(eqns[0], values)
        depth = max(v.depth for v in values)
        known = self.totals is not None and pieces[0] is None
        if known and None in happens.results and not happens.total:
            pieces = bind_shared(eqns[1], values, happens.operands)
        if happens.total:
            self.shapes.append(abstract(eqns[0].outvars[0]))
            return [self._total(depth + 1, fulls[0], pieces[0])]
        self._check_shapes(eqns, happens.results)
        return [
            _result(eqns, i, layout, depth, fulls[i], pieces[i])
            for i, layout in enumerate(happens.results)
        ]

    def _total(self, depth: int, full: Any, part: Any) -> Value:
        number = len(self.sums)
        self.sums.append(part)
        self.found.append(full)
        self.depths.append(depth)
        if self.totals is not None:
            full = self.totals[number]
        return Value(depth=depth, full=full)

    def _given(self, value: Value, place: Layout | None) -> Any:
        """An operand as the chunk's equation needs it."""
        if value.layout is not None:
            if value.layout != place:
                raise Mixes("operands have them on different axes")
            return value.piece
        if value.uniform:
            return value.piece
        if place is None or value.full is None or self.piece is None:
            return value.full if place is None else None
        return self.piece.cut(jnp.asarray(value.full), place)

    def _check_shapes(self, eqns: tuple[Any, ...], results: Layouts) -> None:
        for layout, *outs in zip(results, *(e.outvars for e in eqns)):
            shapes = [_shape(v) for v in outs]
            sizes = (self.chunks.size, self.chunks.rest)
            for shape, size in zip(shapes[1:], sizes):
                cut = layout and layout.shape_of_chunk(shapes[0], size)
                if cut is not None and shape != cut:
                    raise Mixes(
                        f"a chunk's result has shape {shape}; of {shapes[0]} it would "
                        f"be {cut}"
                    )

    def _own(self, eqns: tuple[Any, ...]) -> Any:
        """The equation of the chunk's own size."""
        return eqns[2 if self.piece is not None and self.piece.index is None else 1]

    # --- equations that hold programs -------------------------------------------------

    def _effect(self, eqns: tuple[Any, ...], values: list[Value]) -> Effect:
        layouts = [v.layout for v in values]
        name, mark = eqns[0].primitive.name, mark_of(eqns[0])
        if mark == _marks.ELEMENTWISE:
            return elementwise(eqns[0], layouts)
        if mark in _LOOPS and layouts[-1] and layouts[-1].axis > 0:
            return marked_causal(eqns[0], layouts)
        if not _is_unit(eqns[0]):
            return effect(eqns[0], layouts)
        bare = [self._as_unit(eqns, i, v) for i, v in enumerate(values)]
        if name in _RULES:
            return self._rule_effect(eqns, bare)
        return UNITS[name](self._inside, eqns, bare)

    def _as_unit(self, eqns: tuple[Any, ...], index: int, value: Value) -> Value:
        """An operand of a unit, which is given whole or as a chunk from the start."""
        shapes = [_shape(e.invars[index]) for e in eqns]
        if value.layout is not None or value.uniform or shapes[0] == shapes[1]:
            return value.bare
        axis = next(i for i, (a, b) in enumerate(zip(*shapes[:2])) if a != b)
        layout = Layout(axis, self.chunks.length)
        if shapes[1] != layout.shape_of_chunk(shapes[0], self.chunks.size):
            raise Mixes("a loop or a rule takes an array that folds them")
        return Value(layout=layout, depth=value.depth)

    def _inside(self, programs: Sequence[Any], inputs: list[Value]) -> list[Value]:
        return Run(self.chunks, sealed=True, trust=self.trust).run(programs, inputs)

    def _rule_effect(self, eqns: tuple[Any, ...], values: list[Value]) -> Effect:
        """`custom_jvp` and `custom_vjp` functions: they, and their derivatives."""
        results = self._inside([body_of(e) for e in eqns], values)
        if not self.trust:
            self._check_derivative(eqns, values, results)
        return Effect(layouts_of(values), layouts_of(results))

    def _check_derivative(
        self, eqns: tuple[Any, ...], values: list[Value], results: list[Value]
    ) -> None:
        """Raises unless chunks of cotangents make chunks and sums of cotangents."""
        given = [v for v, a in zip(results, eqns[0].outvars) if is_float(a.aval)]
        cotangents = [v if v.layout else Value(additive=True) for v in given]
        run = Run(self.chunks, sealed=True, derivative=True)
        found = run.run([derivative(e) for e in eqns], [*values, *cotangents])
        wanted = [v for v, a in zip(values, eqns[0].invars) if is_float(a.aval)]
        for value, cotangent in zip(wanted, found, strict=True):
            same = cotangent.layout == value.layout
            if not (cotangent.zero or same and (value.layout or cotangent.additive)):
                raise Mixes("a derivative of its own does not keep them apart")

    # --- loops over the cut axis itself -----------------------------------------------

    def _causal_operands(
        self, eqn: Any, values: list[Value]
    ) -> tuple[slice, list[int]] | None:
        """Of a loop over time: its carried operands, and the sliced ones."""
        if self.chunks.axis != TIME:
            return None
        place = Layout(0, self.chunks.length)
        if mark_of(eqn) == _marks.CAUSAL:
            last = len(values) - 1
            found = slice(last - 1, last), [last]
        elif eqn.primitive.name == "scan":
            consts, carry, _ = carry_and_sliced(eqn, values)
            end = len(consts) + len(carry)
            found = slice(len(consts), end), list(range(end, len(values)))
        else:
            return None
        if not any(values[i].layout == place for i in found[1]):
            return None
        self._check_causal(eqn, values, found[1])
        return found

    def _check_causal(self, eqn: Any, values: list[Value], sliced: list[int]) -> None:
        if self.sealed:
            raise Mixes("a loop runs over them inside a loop or a rule of its own")
        if eqn.params.get("reverse"):
            raise Mixes("a loop runs over them backwards")
        others = [v for i, v in enumerate(values) if i not in sliced]
        if any(v.layout or v.uniform for v in others):
            raise Mixes("every step of a loop over them reads several of them")

    def _causal(
        self,
        eqns: tuple[Any, ...],
        values: list[Value],
        carried: slice,
        sliced: list[int],
    ) -> list[Value]:
        if any(v.depth for v in values[carried]):
            raise Mixes("the first state of a loop over them depends on all of them")
        self._check_body(eqns, values, carried)
        place, number = Layout(0, self.chunks.length), len(self.inits)
        where = [place if i in sliced else None for i in range(len(values))]
        carry = self.carries and self.carries[number]
        operands = [self._given(v, p) for v, p in zip(values, where)]
        operands[carried] = carry or [None] * len(values[carried])
        n = len(operands[carried])
        after, pieces = states_of(eqns[0], n, bind(self._own(eqns), operands))
        self.states += [abstract(v) for v in eqns[0].invars[carried]]
        inits = [v.full for v in values[carried]]
        self.inits.append(inits)
        self.nexts.append(after)
        last, fulls = [None] * n, [None] * len(pieces)
        if all(v.full is not None for v in values):
            last, fulls, starts = run_loop(self.chunks, eqns, values, carried, where)
            self.starts.append(starts)
            self.ends.append(last)
        if self.lasts is not None:
            last = self.lasts[number]
        depth = max(v.depth for v in values)
        states = [Value(after=True, full=a) for a in last]
        results = [
            Value(layout=place, depth=depth, full=f, piece=p)
            for f, p in zip(fulls, pieces)
        ]
        return in_order(eqns[0], states, results)

    def _check_body(
        self, eqns: tuple[Any, ...], values: list[Value], carried: slice
    ) -> None:
        """What every step does must not depend on their number either."""
        for shapes in zip(*(map(_shape, e.invars[: carried.stop]) for e in eqns)):
            if len(set(shapes)) != 1:
                raise Mixes("every step of a loop over them reads several of them")
        if mark_of(eqns[0]) is None:
            check_params(eqns, but=("length",))
            bodies = [e.params["jaxpr"] for e in eqns]
            self._inside(bodies, [Value()] * len(values))


_LOOPS = (_marks.CAUSAL, _marks.FROM_REST)
_RULES = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


def refusal(reason: Mixes, chunks: Chunks) -> str:
    """What to tell about a program that cannot be cut."""
    where = getattr(reason, "where", "")
    return f"{NAMES[chunks.axis]} cannot be kept apart{where}: {reason}"


def _where(eqn: Any) -> str:
    scope = str(eqn.source_info.name_stack)
    return f" at `{eqn.primitive.name}`" + (f" in {scope}" if scope else "")


def _is_unit(eqn: Any) -> bool:
    return eqn.primitive.name in (*UNITS, *_RULES)


def _has_rule(eqn: Any) -> bool:
    """Whether its derivative may be anything."""
    return eqn.primitive.name.startswith("custom_vjp")


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)


def _own_value(value: Value) -> Any:
    return value.piece if value.uniform else value.full


def _result(
    eqns: tuple[Any, ...],
    index: int,
    layout: Layout | None,
    depth: int,
    full: Any,
    piece: Any,
) -> Value:
    if layout is not None:
        return Value(layout, depth=depth, full=full, piece=piece)
    shapes = [_shape(e.outvars[index]) for e in eqns[:2]]
    if shapes[0] != shapes[1]:
        return Value(uniform=True, depth=depth, full=full, piece=piece)
    return Value(depth=depth, full=piece if full is None else full)


def inputs_of(arrays: Sequence[Any], layouts: Layouts, cut: bool) -> list[Value]:
    """Inputs with their values: of cut ones the chunk's, or the whole."""
    return [
        Value(layout, **({"piece": a} if layout is not None and cut else {"full": a}))
        for a, layout in zip(arrays, layouts)
    ]


def abstract_chunk(a: Array, layout: Layout | None, size: int) -> jax.ShapeDtypeStruct:
    shape = a.shape if layout is None else layout.shape_of_chunk(a.shape, size)
    return jax.ShapeDtypeStruct(shape, a.dtype)
