"""Where the chunks of an array lie: an axis, or a part of one that was folded."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from .._gate import start_after
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

    Args:
        axis: TIME or BATCH.
        length: of that axis.
        each: steps or samples that a chunk takes of every shard.
        shards: devices that the axis is divided over; each cuts its own part.
    """

    axis: int
    length: int
    each: int
    shards: int = 1

    @classmethod
    def of(cls, axis: int, length: int, count: int, shards: int = 1) -> Self:
        """At most `count` chunks, and as even as that allows.

        Raises:
            ValueError: the axis cannot be divided over the shards.
        """
        if shards < 1 or length % shards or (axis == TIME and shards > 1):
            raise ValueError(
                f"`shards` is {shards} of {length} {NAMES[axis]}; allowed is the "
                "number of devices that share the batch, a divisor, and 1 for time."
            )
        local = length // shards
        if count > local:
            warnings.warn(
                f"{count} chunks were asked for, of {local} {NAMES[axis]}; there will "
                f"be {local}.",
                stacklevel=2,
            )
        return cls(axis, length, -(-local // min(count, local)), shards)

    @property
    def count(self) -> int:
        """Chunks of `size`."""
        return self.length // self.size

    @property
    def size(self) -> int:
        return self.each * self.shards

    @property
    def rest(self) -> int:
        """What is left over, less than `size`."""
        return self.length % self.size

    def view(self, a: Array, layout: Layout) -> Array:
        """The array as `[before, shards, length / shards, behind]`.

        What lies behind is one axis, which keeps it in order: XLA's layout assignment
        would otherwise carry the layout that a convolution in the loop prefers out of
        the loop, and copy the whole array to it.
        """
        before = math.prod(a.shape[: layout.axis]) * layout.outer
        behind = math.prod(a.shape[layout.axis + 1 :]) * layout.inner
        cut = self.shards, self.length // self.shards
        # An axis of one would do no harm but to XLA:CPU, which copies.
        return a.reshape(before, *(cut if self.shards > 1 else cut[1:]), behind)

    def buffer(self, like: Any, layout: Layout, due: Array) -> Array:
        """The view of zeros that chunks are pasted in, no earlier than `due`."""
        zeros = jnp.zeros(like.shape, like.dtype)
        return start_after(self.view(zeros, layout), due)

    def stack(self, like: Array) -> Array:
        """Zeros for an array of each chunk."""
        return jnp.zeros((self.count, *like.shape), like.dtype)


@dataclasses.dataclass(frozen=True)
class Piece:
    """One chunk: number `index` of the even ones, or the rest, which comes first."""

    chunks: Chunks
    index: Array | None = None

    @property
    def size(self) -> int:
        """Steps or samples in it."""
        return self.chunks.rest if self.index is None else self.chunks.size

    def cut(self, a: Array, layout: Layout) -> Array:
        """This chunk of `a`."""
        return self.cut_view(self.chunks.view(a, layout), layout, a.shape)

    def cut_view(self, view: Array, layout: Layout, shape: tuple[int, ...]) -> Array:
        """This chunk of an array of `shape`, given as its view."""
        each = self.size // self.chunks.shards
        part = lax.dynamic_slice_in_dim(view, self._start(), each, view.ndim - 2)
        return part.reshape(layout.shape_of_chunk(shape, self.size))

    def paste(self, view: Array, part: Array) -> Array:
        """The view with this chunk replaced."""
        each = self.size // self.chunks.shards
        part = part.astype(view.dtype)
        part = part.reshape(*view.shape[:-2], each, view.shape[-1])
        return lax.dynamic_update_slice_in_dim(view, part, self._start(), view.ndim - 2)

    def store(self, stacks: T, values: T) -> T:
        """Arrays stacked by chunk with those of this one; those of the rest are not."""
        index = self.index
        if index is None:
            return stacks
        put = functools.partial(lax.dynamic_update_index_in_dim, index=index, axis=0)
        return jax.tree.map(put, stacks, values)

    def stored(self, stacks: T) -> T:
        """What `store` stored."""
        at = functools.partial(
            lax.dynamic_index_in_dim, index=self.index, keepdims=False
        )
        return jax.tree.map(at, stacks)

    def _start(self) -> Array | int:
        if self.index is None:
            return 0
        return self.chunks.rest // self.chunks.shards + self.index * self.chunks.each


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
