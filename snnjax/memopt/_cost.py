"""The cost table: each target under each choice, from its traced program alone.

The bytes are a model, good enough to rank plans; those that are ranked best are then
compiled. With `kept` what the plain backward pass keeps and `largest` its largest
array, a segment's backward pass holds `kept + largest`, a chunk its share of that; a
forward pass holds two of the largest. Seconds are a roofline, and called an estimate.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from flax import nnx

from ._axes import axes_of
from ._chunked import cut_program
from ._compress import BaseSpikeCompressor
from ._devices import DeviceSpec
from ._jaxpr import is_float
from ._layout import BATCH, TIME, Chunks
from ._survey import Seen
from ._table import CURRENTS, GC, PLAIN, SPLIT, Choice, Cost, Row
from ._work import Operations, Work, size, work

_KINDS = {"batch": BATCH, "time": TIME}
_PER_DOUBLING = 0.03
# Of a CPU core nothing is known; only the ratio of the two matters, and little.
_CPU_FLOPS, _CPU_BANDWIDTH = 1.5e11, 1.5e10


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Peak rates, per second: of operations, on operands of two bytes, of bytes."""

    full: float
    half: float
    traffic: float

    @classmethod
    def of(cls, spec: DeviceSpec | None) -> "Roofline":
        """Of a described GPU; None is the CPU."""
        if spec is None:
            return cls(_CPU_FLOPS, _CPU_FLOPS, _CPU_BANDWIDTH)
        full = spec.tf32_flops or spec.fp32_flops
        return cls(full, spec.bf16_flops or full, spec.memory_bandwidth)

    def seconds(self, operations: Operations) -> float:
        """Of these operations at these rates."""
        return operations.full / self.full + operations.half / self.half


@dataclasses.dataclass(frozen=True)
class Cut:
    """What a cut takes: sweeps for its totals, and bytes of states kept a chunk."""

    sweeps: int = 0
    state: int = 0


@dataclasses.dataclass(frozen=True)
class _Alike:
    """Targets alike in all shapes: what one does, and its cuts or why there are none.

    Args:
        work: of each.
        cuts: by kind; a string says why chunks of that kind are refused.
        paths: of the targets, in the order in which they were asked for.
    """

    work: Work
    cuts: dict[str, Cut | str]
    paths: list[str] = dataclasses.field(default_factory=list)


class Costs:
    """Makes rows; targets alike in all shapes are worked out once.

    Args:
        roofline: of the device.
        factor: by which numbers of chunks grow.
        kinds: of chunks to offer, "batch" and "time".
    """

    def __init__(self, roofline: Roofline, factor: int, kinds: tuple[str, ...]) -> None:
        self._roofline, self._factor, self._kinds = roofline, factor, kinds
        self._known: dict[Any, _Alike] = {}
        self._works: dict[str, Work] = {}

    @property
    def refused(self) -> dict[str, str]:
        """By targets and kind of chunks, why these are not offered."""
        return {
            f"{_in_words(alike.paths)}, {kind} chunks": cut
            for alike in self._known.values()
            for kind, cut in alike.cuts.items()
            if isinstance(cut, str)
        }

    def row(
        self,
        seen: Seen,
        compressor: BaseSpikeCompressor,
        module: nnx.Module,
        parts: tuple[Row, ...] = (),
        cuts: bool = True,
    ) -> Row:
        """The choices of one target.

        Args:
            seen: what it does.
            compressor: what would keep its input.
            module: the target.
            parts: rows of its parts, if it may be split.
            cuts: whether chunks are offered, which takes a trace for each kind.
        """
        alike = self._worked_out(seen, module, self._kinds if cuts else ())
        self._works[seen.path] = done = alike.work
        packed = jax.eval_shape(compressor.pack, seen.x)
        kept = sum(map(size, jax.tree.leaves(packed)))
        one = _Segment(seen, kept, done, self._roofline)
        costs = [(choice, one.cost(choice)) for choice in (PLAIN, GC, CURRENTS)]
        if parts:
            costs.append((SPLIT, _together(parts)))
        for kind, axis in _KINDS.items():
            cut = alike.cuts.get(kind)
            if isinstance(cut, Cut):
                choices = _chunkings(kind, seen.x.shape[axis], self._factor)
                costs += [(c, one.cost(c, cut)) for c in choices]
        return Row(seen.path, tuple(costs), _gradients(module))

    def outside(self, whole: Operations, targets: Sequence[Seen]) -> float:
        """Seconds of a step's products outside of targets whose rows were made.

        Args:
            whole: operations of the whole forward pass.
            targets: that it calls.
        """
        inside = sum(
            self._roofline.seconds(self._works[seen.path].operations) * seen.calls
            for seen in targets
        )
        return 3 * max(self._roofline.seconds(whole) - inside, 0.0)

    def _worked_out(
        self, seen: Seen, module: nnx.Module, kinds: tuple[str, ...]
    ) -> _Alike:
        shapes = [(a.shape, str(a.dtype)) for a in jax.tree.leaves(seen.inputs)]
        key = type(module), nnx.graphdef(module), tuple(shapes), kinds
        if key not in self._known:
            long = [k for k in kinds if seen.x.shape[_KINDS[k]] > 1]
            cuts = {k: _cut(k, seen) for k in _KINDS if k in long}
            self._known[key] = _Alike(work(seen.run, *seen.inputs), cuts)
        self._known[key].paths.append(seen.path)
        return self._known[key]


def _cut(kind: str, seen: Seen) -> Cut | str:
    """What chunks of this kind take, or why they are refused."""
    try:
        cut = seen.run, _KINDS[kind], 2, *seen.inputs
        program = cut_program(*cut, in_axes=axes_of(*cut))
    except ValueError as reason:
        return str(reason)
    return Cut(program.sweeps, sum(map(size, program.states)))


def _in_words(paths: list[str]) -> str:
    more = len(paths) - 1
    return paths[0] + (f" and {more} alike" if more else "")


def _chunkings(kind: str, length: int, factor: int) -> Iterator[Choice]:
    counts = {min(factor**i, length) for i in range(1, 6)}
    even = {-(-length // Chunks(0, length, -(-length // k)).size) for k in counts}
    for count in sorted(even - {1}):
        for forward_by in ("whole", "chunks"):
            yield Choice(kind, count, forward_by)


@dataclasses.dataclass(frozen=True)
class _Segment:
    seen: Seen
    packed: int
    work: Work
    roofline: Roofline

    def cost(self, choice: Choice, cut: Cut = Cut()) -> Cost:
        cost = self._bytes(choice, cut)
        calls = self.seen.calls
        seconds = self._seconds(choice, cut)
        return Cost(cost[0] * calls, *cost[1:], seconds * calls)

    def _bytes(self, choice: Choice, cut: Cut) -> tuple[int, int, int]:
        """Kept, alive forward, alive backward."""
        done, x, y = self.work, size(self.seen.x), self.work.result
        kept, ahead, inside = self.packed, x + 2 * done.largest, done.kept
        if choice == PLAIN:
            return done.kept, done.largest, y + 2 * done.largest
        if choice == CURRENTS:
            left = max(inside - done.products, 0) + done.largest
            return kept + done.products, x + done.largest, x + y + left
        if choice == GC:
            return kept, ahead, x + y + inside + done.largest
        length = self.seen.x.shape[_KINDS[choice.kind]]
        share = -(-length // choice.chunks) / length
        if choice.forward_by == "chunks":
            ahead = y + math.ceil(2 * done.largest * share)
        back = x + y + math.ceil((inside + done.largest) * share)
        return kept + choice.chunks * cut.state, ahead, back

    def _seconds(self, choice: Choice, cut: Cut) -> float:
        """Of a step: the forward pass, a backward pass, and what is done again.

        A backward pass is two products for each one, and moves three times the bytes:
        it reads the cotangent and what was kept, and writes both back. A sweep is a
        forward pass; sums are half of one, their products and half of the bytes.
        """
        products = self.roofline.seconds(self.work.operations)
        moved = self.work.traffic / self.roofline.traffic
        forward, plain, sums = products + moved, 3 * products + 4 * moved, moved / 2
        if choice == PLAIN:
            return plain
        if choice == CURRENTS:
            return plain + moved
        again = forward * (1 + cut.sweeps)
        if choice.forward_by == "chunks":
            again += (products + sums) * cut.sweeps
        # More chunks are more and smaller kernels.
        return plain + again * (1 + _PER_DOUBLING * math.log2(max(choice.chunks, 1)))


def _together(parts: tuple[Row, ...]) -> Cost:
    """Of a target whose parts are segments, one after the other."""
    costs = [row.cost(GC) for row in parts]
    before = [sum(c.saved for c in costs[:i]) for i in range(len(costs))]
    return Cost(
        sum(c.saved for c in costs),
        max(b + c.forward for b, c in zip(before, costs)),
        # What is kept is counted once, for the whole target.
        max(b + c.saved + c.backward for b, c in zip(before, costs))
        - sum(c.saved for c in costs),
        sum(c.seconds for c in costs),
    )


def _gradients(module: nnx.Module) -> int:
    state = jax.tree.leaves(nnx.state(module, nnx.Param))
    return sum(size(a) for a in state if is_float(a))
