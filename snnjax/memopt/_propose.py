"""From segments to a table of costs, and from choices back to segments."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from ._apply import compressor_of
from ._cost import Costs
from ._model import as_function, modules_at, shape_of
from ._plan import PlannedSegment
from ._residuals import residual_bytes
from ._survey import Seen, survey
from ._table import PLAIN, SPLIT, Choice, Choices, Row, Table
from ._work import Operations, operations

Parts = dict[str, tuple[PlannedSegment, ...]]


@dataclasses.dataclass(frozen=True)
class Proposal:
    """What there is to choose from, and how to make segments of a choice.

    Args:
        table: of costs; rows are the targets that are called.
        segments: of each row, the whole target as a segment.
        parts: of each target that may be split, its parts as segments.
        refused: (target and move, reason).
    """

    table: Table
    segments: tuple[PlannedSegment, ...]
    parts: Parts
    refused: tuple[tuple[str, str], ...]

    def chosen(self, choices: Choices) -> tuple[PlannedSegment, ...]:
        """The segments of a choice for each row."""
        rows = zip(self.segments, self.table.rows, choices, strict=True)
        return tuple(made for row in rows for made in self._made(*row))

    def _made(
        self, segment: PlannedSegment, row: Row, choice: Choice
    ) -> Sequence[PlannedSegment]:
        if choice == PLAIN:
            return ()
        if choice == SPLIT:
            return self.parts[segment.path]
        changed = dataclasses.replace(
            segment,
            currents=choice.kind == "currents",
            cut=choice.kind if choice.kind in ("batch", "time") else None,
            chunks=choice.chunks,
            forward_by=choice.forward_by,
            kept_bytes=row.cost(choice).saved,
            seconds=row.cost(choice).seconds,
        )
        return (changed,)


def propose(
    net: nnx.Module,
    segments: tuple[PlannedSegment, ...],
    parts: Parts,
    loss: Callable[..., Any],
    batch: tuple[Any, ...],
    held: int,
    costs: Costs,
) -> Proposal:
    """The table of a model's targets.

    Args:
        net: the plain model.
        segments: every target as a segment, in the order of the forward pass.
        parts: of each target that may be split, its parts as segments.
        loss, batch: of the step.
        held: bytes of parameters, optimizer and batch.
        costs: what works out a row.
    """
    inner = [part for found in parts.values() for part in found]
    # Apart, since a part is called inside its target.
    seen = survey(net, tuple(s.path for s in segments), loss, batch)
    if inner:
        seen |= survey(net, tuple(s.path for s in inner), loss, batch)
    modules = modules_at(net, seen)

    def row(segment: PlannedSegment, split: tuple[Row, ...] = (), **cuts: bool) -> Row:
        module = modules[segment.path]
        compressor = compressor_of(module, segment)
        return costs.row(seen[segment.path], compressor, module, split, **cuts)

    called = tuple(s for s in segments if s.path in seen)
    part = functools.partial(row, cuts=False)
    rows = [row(s, _rows(parts.get(s.path, ()), seen, part)) for s in called]
    kept = sum(r.cost(PLAIN).saved for r in rows)
    rest = max(0, residual_bytes(loss, net, *batch) - kept)
    targets = [seen[s.path] for s in called]
    seconds = costs.outside(_operations(net, loss, batch), targets)
    table = Table(tuple(rows), held + rest, seconds, held)
    return Proposal(table, called, parts, tuple(costs.refused.items()))


def _operations(
    net: nnx.Module, loss: Callable[..., Any], batch: tuple[Any, ...]
) -> Operations:
    """Of the forward pass of the whole model."""
    forward, state = as_function(net, loss)
    return operations(forward, *jax.tree.map(shape_of, (state, *batch)))


def _rows(
    parts: tuple[PlannedSegment, ...],
    seen: dict[str, Seen],
    row: Callable[[PlannedSegment], Row],
) -> tuple[Row, ...]:
    """Of a target's parts; none where one of them is not called by itself."""
    return tuple(map(row, parts)) if all(p.path in seen for p in parts) else ()
