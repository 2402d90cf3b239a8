"""Where the chunks of an array lie: an axis, or a part of one that was folded."""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Self, TypeVar

from jax import lax

from .._types import Array

T = TypeVar("T")
TIME, BATCH = 0, 1
NAMES = {TIME: "time steps", BATCH: "samples"}


@dataclasses.dataclass(frozen=True)
class Layout:
    """The cut axis within an array.

    `shape[axis] == outer * length * inner`: folding time and batch into one axis gives
    the batch an `outer` of the number of time steps.

    Args:
        axis: that holds it.
        length: of the cut axis itself.
        outer, inner: sizes of what is folded around it.
    """

    axis: int
    length: int
    outer: int = 1
    inner: int = 1

    @property
    def size(self) -> int:
        """Of the axis that holds it."""
        return self.outer * self.length * self.inner

    def at(self, axis: int) -> "Layout":
        """The same in another place."""
        return dataclasses.replace(self, axis=axis)

    def reshaped(self, old: tuple[int, ...], new: tuple[int, ...]) -> "Layout | None":
        """Where it is after a reshape; None if that tears it apart."""
        before = math.prod(old[: self.axis]) * self.outer
        behind = math.prod(old[self.axis + 1 :]) * self.inner
        for axis, size in enumerate(new):
            around = math.prod(new[:axis]), math.prod(new[axis + 1 :])
            if 0 in around or before % around[0] or behind % around[1]:
                continue
            found = Layout(axis, self.length, before // around[0], behind // around[1])
            if found.size == size:
                return found
        return None

    def shape_of_chunk(self, shape: tuple[int, ...], length: int) -> tuple[int, ...]:
        """The shape of a chunk of `length` of an array of `shape`."""
        size = self.outer * length * self.inner
        return (*shape[: self.axis], size, *shape[self.axis + 1 :])


@dataclasses.dataclass(frozen=True)
class Chunks:
    """`count` chunks of `size`, after one of `rest` if the length is no multiple.

    Batch chunks without a rest are strided, sample `c` of each group of `count`: where
    the batch is sharded over devices, every device cuts its own part.

    Args:
        axis: TIME or BATCH.
        length: of that axis.
        size: of a chunk.
    """

    axis: int
    length: int
    size: int

    @classmethod
    def of(cls, axis: int, length: int, count: int) -> Self:
        """At most `count` chunks, and as even as that allows."""
        if count > length:
            warnings.warn(
                f"{count} chunks were asked for, of {length} {NAMES[axis]}; there "
                f"will be {length}.",
                stacklevel=2,
            )
        return cls(axis, length, -(-length // min(count, length)))

    @property
    def count(self) -> int:
        return self.length // self.size

    @property
    def rest(self) -> int:
        return self.length % self.size

    @property
    def strided(self) -> bool:
        return self.axis == BATCH and not self.rest


@dataclasses.dataclass(frozen=True)
class Piece:
    """One chunk: number `index` of the even ones, or the rest, which comes first."""

    chunks: Chunks
    index: Array | None = None

    @property
    def size(self) -> int:
        return self.chunks.rest if self.index is None else self.chunks.size

    def cut(self, a: Array, layout: Layout) -> Array:
        """This chunk of `a`."""
        view = self._view(a, layout)
        if self.index is None:
            part = lax.slice_in_dim(view, 0, self.size, axis=layout.axis + 1)
        elif self.chunks.strided:
            part = lax.dynamic_index_in_dim(view, self.index, layout.axis + 2, False)
        else:
            part = lax.dynamic_slice_in_dim(
                view, self._start(), self.size, layout.axis + 1
            )
        return part.reshape(layout.shape_of_chunk(a.shape, self.size))

    def paste(self, a: Array, layout: Layout, part: Array) -> Array:
        """`a` with this chunk replaced."""
        view, axis = self._view(a, layout), layout.axis + 1
        shape = list(view.shape)
        if self.chunks.strided:
            shape[axis + 1] = 1
            start: Array | int = 0 if self.index is None else self.index
            axis += 1
        else:
            shape[axis] = self.size
            start = 0 if self.index is None else self._start()
        part = part.astype(a.dtype).reshape(shape)
        return lax.dynamic_update_slice_in_dim(view, part, start, axis).reshape(a.shape)

    def _start(self) -> Array:
        assert self.index is not None
        return self.chunks.rest + self.index * self.chunks.size

    def _view(self, a: Array, layout: Layout) -> Array:
        """The folded axis as `(outer, length, inner)`, or with the stride apart."""
        chunks = self.chunks
        cut = (chunks.size, chunks.count) if chunks.strided else (chunks.length,)
        axis = layout.axis
        folded = (layout.outer, *cut, layout.inner)
        return a.reshape(*a.shape[:axis], *folded, *a.shape[axis + 1 :])


def over(
    chunks: Chunks, step: Callable[[Piece, T], T], carry: T, *, reverse: bool = False
) -> T:
    """`carry = step(piece, carry)` for each chunk, in one loop after the rest."""

    def rest(carry: T) -> T:
        return step(Piece(chunks), carry) if chunks.rest else carry

    def even(carry: T) -> T:
        def body(i: Array, carry: T) -> T:
            return step(Piece(chunks, chunks.count - 1 - i if reverse else i), carry)

        return lax.fori_loop(0, chunks.count, body, carry)

    return rest(even(carry)) if reverse else even(rest(carry))
