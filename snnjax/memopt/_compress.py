"""Lossless compressors for the input that a segment keeps until its backward pass.

Packing touches the feature axes only and leaves time and batch as they are, so an array
sharded over its batch stays sharded. What is kept (the payload) is arrays; shape and
dtype travel beside them as static data, and the dtype comes back as it was.
"""

import abc
import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from .._types import Array
from ._grid import BINARY, Grid


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Payload:
    """A compressed array: `data` is kept; the rest says what it was and how it went."""

    data: Any
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})
    by: "BaseSpikeCompressor" = dataclasses.field(metadata={"static": True})

    def unpack(self) -> Array:
        """The array that was packed."""
        return self.by.decompress(self.data, self.shape, self.dtype)


@dataclasses.dataclass(frozen=True)
class BaseSpikeCompressor(abc.ABC):
    """A pair of pure functions, inverse to each other on every value in `holds`.

    A compressor of your own is a frozen dataclass that derives from this one and says
    what it `holds`, None being any value; put it, or the name of its class, in a
    module's `x_compressor` attribute.
    """

    holds: ClassVar[Grid | None]

    @abc.abstractmethod
    def compress(self, x: Array) -> Any:
        """The arrays to keep for `x`, `[time, batch, ...]`."""

    @abc.abstractmethod
    def decompress(self, data: Any, shape: tuple[int, ...], dtype: Any) -> Array:
        """What `compress` was given: an array of `shape` and `dtype`."""

    def covers(self, grid: Grid | None) -> bool:
        """Whether it is exact on every value in `grid`; None is any value."""
        return self.holds is None or (grid is not None and grid.within(self.holds))

    def pack(self, x: Array) -> Payload:
        """`compress` with shape and dtype alongside."""
        return Payload(self.compress(x), tuple(x.shape), x.dtype, self)


@dataclasses.dataclass(frozen=True)
class NullSpikeCompressor(BaseSpikeCompressor):
    """Keeps the array itself: right for every value."""

    holds: ClassVar[Grid | None] = None

    def compress(self, x: Array) -> Array:
        return x

    def decompress(self, data: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return data


@dataclasses.dataclass(frozen=True)
class BitSpikeCompressor(BaseSpikeCompressor):
    """Keeps one bit a value, eight to a byte along the flattened features; for {0, 1}.

    A payload for `x` of `[time, batch, ...]` is uint8 `[time, batch, ceil(n / 8)]`,
    where `n` is the number of values in `...`.
    """

    holds: ClassVar[Grid | None] = BINARY

    def compress(self, x: Array) -> Array:
        features = x.reshape((*x.shape[:2], math.prod(x.shape[2:])))
        return jnp.packbits(features.astype(bool), axis=-1)

    def decompress(self, data: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        if 0 in shape:
            return jnp.zeros(shape, dtype)
        bits = jnp.unpackbits(data, axis=-1, count=math.prod(shape[2:]))
        return bits.reshape(shape).astype(dtype)


def compressor_named(name: str) -> BaseSpikeCompressor:
    """The compressor of a class name, ours or one of your own that is defined."""
    known = {cls.__name__: cls for cls in _subclasses(BaseSpikeCompressor)}
    if name not in known:
        raise ValueError(
            f"`x_compressor` is {name!r}; allowed are {', '.join(sorted(known))}. A "
            "class of your own must derive from BaseSpikeCompressor and be imported."
        )
    return known[name]()


def compressor_for(grid: Grid | None) -> BaseSpikeCompressor:
    """The smallest of ours that is exact on every value in `grid`."""
    bit = BitSpikeCompressor()
    return bit if bit.covers(grid) else NullSpikeCompressor()


def _subclasses(cls: type) -> list[type]:
    return [s for c in cls.__subclasses__() for s in (c, *_subclasses(c))]
