"""Lossless compressors for the input that a segment keeps until its backward pass.

Packing touches the feature axes only and leaves time and batch as they are, so an array
sharded over its batch stays sharded. What is kept (the payload) is arrays; shape, dtype
and compressor travel beside them as static data, and the dtype comes back as it was.
"""

import abc
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import kernels
from .._types import Array
from ._checks import check_whole
from ._fault import raise_where
from ._grid import BINARY, Grid

_EXACT = 2**24  # whole numbers up to this size are exact in float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Payload:
    """A compressed array: a pytree whose leaves are what is kept.

    Args:
        data: what the compressor's `compress` returned.
        shape, dtype: of the array that was packed.
        by: the compressor.
    """

    data: Any
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})
    by: "BaseSpikeCompressor" = dataclasses.field(metadata={"static": True})

    def unpack(self) -> Array:
        """The array that was packed."""
        return self.by.decompress(self.data, self.shape, self.dtype)


class BaseSpikeCompressor(abc.ABC):
    """A pair of pure functions, inverse to each other on every value in `holds`.

    A compressor of your own is a frozen dataclass that derives from this one and says
    what it `holds`; put it, or the name of its class, in a module's `x_compressor`
    attribute.

    Attributes:
        holds: the values on which it is exact; None is any.
        separable: whether what it keeps is arrays `[time, batch, ...]`, each time step
            of each sample by itself. A chunk of the input is then unpacked from a chunk
            of these; otherwise the whole input is unpacked, and cut.
    """

    holds: Grid | None
    separable = False

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
        """`compress` with shape, dtype and compressor alongside."""
        return Payload(self.compress(x), tuple(x.shape), x.dtype, self)


@dataclasses.dataclass(frozen=True)
class NullSpikeCompressor(BaseSpikeCompressor):
    """Keeps the array itself: right for every value."""

    holds = None
    separable = True

    def compress(self, x: Array) -> Array:
        return x

    def decompress(self, data: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return data


@dataclasses.dataclass(frozen=True)
class BooleanSpikeCompressor(BaseSpikeCompressor):
    """Keeps one byte a value, `bool`; for {0, 1}."""

    holds = BINARY
    separable = True

    def compress(self, x: Array) -> Array:
        return x.astype(bool)

    def decompress(self, data: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return data.astype(dtype)


@dataclasses.dataclass(frozen=True)
class Uint8SpikeCompressor(BaseSpikeCompressor):
    """Keeps one byte a value, `uint8`; for counts 0..255."""

    holds = Grid(0, 255)
    separable = True

    def compress(self, x: Array) -> Array:
        return x.astype(jnp.uint8)

    def decompress(self, data: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return data.astype(dtype)


@dataclasses.dataclass(frozen=True)
class BitSpikeCompressor(BaseSpikeCompressor):
    """Keeps one bit a value, eight to a byte along the flattened features; for {0, 1}.

    A payload for `x` of `[time, batch, ...]` is uint8 `[time, batch, ceil(n / 8)]`,
    where `n` is the number of values in `...`.

    Args:
        implementation: `None` and `"xla"` are XLA's own program, which fuses with what
            is around it; `"pallas"` forces a kernel, on CUDA devices.

    Raises:
        ValueError: `implementation` is another.
    """

    implementation: str | None = dataclasses.field(default=None, repr=False)
    holds = BINARY
    separable = True

    def __post_init__(self) -> None:
        kernels.check_implementation(self.implementation)

    def compress(self, x: Array) -> Array:
        return _pack(1, self.implementation, _flat(x).astype(bool).astype(jnp.uint8))

    def decompress(self, data: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        n = math.prod(shape[2:])
        return _unpack(1, n, self.implementation, data).reshape(shape).astype(dtype)


@dataclasses.dataclass(frozen=True)
class IntegerSpikeCompressor(BaseSpikeCompressor):
    """Keeps `bits` bits a value; for `scale * {lo .. lo + 2**bits - 1}`.

    Sums of spikes (SEW-ResNet's ADD) and pooled spikes: 0..3 take two bits, multiples
    of 1/4 in 0..1 three. A payload for `x` of `[time, batch, ...]` is one array for
    each of the widths 8, 4, 2 and 1 that sum to `bits`, uint8 `[time, batch, ceil(n *
    width / 8)]`.

    Args:
        bits: 1 to 16.
        lo: smallest member, in units of `scale`.
        scale: a power of two.
        implementation: as for `BitSpikeCompressor`.

    Raises:
        ValueError: an argument is out of range.
    """

    bits: int
    lo: int = 0
    scale: float = 1.0
    implementation: str | None = dataclasses.field(default=None, repr=False)
    separable = True

    def __post_init__(self) -> None:
        kernels.check_implementation(self.implementation)
        whole = type(self.bits) is int and type(self.lo) is int
        number = type(self.scale) in (int, float)
        mantissa, exponent = math.frexp(self.scale if number else 0.0)
        if not whole or not 1 <= self.bits <= 16 or mantissa != 0.5:
            raise ValueError(
                f"`bits` is {self.bits!r}, `lo` {self.lo!r}, `scale` {self.scale!r}; "
                "allowed are 1 to 16 bits, a whole number and a positive power of two."
            )
        if abs(self.lo) + 2**self.bits > _EXACT:
            raise ValueError(
                f"`lo` is {self.lo} with {self.bits} bits; allowed are members up to "
                f"{_EXACT} units in size, which float32 holds."
            )
        holds = Grid(self.lo, self.lo + 2**self.bits - 1, exponent - 1)
        object.__setattr__(self, "holds", holds)

    @classmethod
    def of(cls, grid: Grid) -> "IntegerSpikeCompressor":
        """The one with the fewest bits that holds `grid`."""
        return cls(max(grid.bits, 1), grid.lo, 2.0**grid.exponent)

    def compress(self, x: Array) -> tuple[Array, ...]:
        # At most 2**24 units of a power of two: float32 holds both steps.
        units = _flat(x).astype(jnp.float32) / self.scale - self.lo
        units = units.astype(jnp.int32)
        return tuple(
            _pack(width, self.implementation, _field(units, width, at))
            for width, at in self._fields()
        )

    def decompress(self, data: Any, shape: tuple[int, ...], dtype: Any) -> Array:
        n = math.prod(shape[2:])
        fields = (
            _unpack(width, n, self.implementation, packed).astype(jnp.int32) << at
            for packed, (width, at) in zip(data, self._fields())
        )
        units = (sum(fields) + jnp.int32(self.lo)).astype(jnp.float32)
        return (units * self.scale).reshape(shape).astype(dtype)

    def _fields(self) -> list[tuple[int, int]]:
        """Widths that sum to `bits`, widest first, each with the place of its bits."""
        fields, at = [], 0
        while at < self.bits:
            width = next(w for w in (8, 4, 2, 1) if at + w <= self.bits)
            fields.append((width, at))
            at += width
        return fields


@dataclasses.dataclass(frozen=True)
class SparseSpikeCompressor(BaseSpikeCompressor):
    """Keeps the positions of the ones; for {0, 1} with few of them.

    A payload for `x` of `[time, batch, ...]` is `[time, batch, capacity]`, in the
    smallest unsigned integer that counts the features. It is smaller than a bit a value
    where fewer than one in 16 or 32 values is 1.

    Args:
        capacity: ones that a time step of a sample may hold. More are an error when the
            program runs; nothing is cut off.

    Raises:
        ValueError: `capacity` is no whole number from 0.
    """

    capacity: int
    holds = BINARY
    separable = True

    def __post_init__(self) -> None:
        check_whole("capacity", self.capacity, 0, "Give the most ones of a time step.")

    def compress(self, x: Array) -> Array:
        flat = _flat(x).astype(bool)
        count, absent = flat.sum(-1), flat.shape[-1]
        most = count.max(initial=0)  # one number, so that no sharded axis is gathered
        most = raise_where(most > self.capacity, most, self._overflow)

        def positions(row: Array) -> Array:
            return jnp.nonzero(row, size=self.capacity, fill_value=absent)[0]

        found = jax.vmap(jax.vmap(positions))(flat)
        places = jnp.arange(self.capacity).reshape(1, 1, -1)
        found = jnp.where(places < jnp.minimum(count, most)[..., None], found, absent)
        return found.astype(np.min_scalar_type(absent))

    def decompress(self, data: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        n = math.prod(shape[2:])

        def row(found: Array) -> Array:
            return jnp.zeros(n, dtype).at[found].set(jnp.ones((), dtype), mode="drop")

        return jax.vmap(jax.vmap(row))(data).reshape(shape)

    def _overflow(self, most: float) -> str:
        return (
            f"SparseSpikeCompressor has a `capacity` of {self.capacity}; a time step "
            f"of a sample has {most:g} spikes. Raise it, or use "
            "BitSpikeCompressor."
        )


def check_compressor(compressor: Any) -> None:
    """Raises ValueError unless `compressor` is one."""
    if not isinstance(compressor, BaseSpikeCompressor):
        raise ValueError(
            f"`compressor` is {compressor!r}; allowed is an instance, such as "
            "`BitSpikeCompressor()`. Make one."
        )


def compressor_named(name: str, **settings: Any) -> BaseSpikeCompressor:
    """The compressor of a class name, ours or one of your own that is defined."""
    found = _subclasses(BaseSpikeCompressor)
    known = {cls.__name__: cls for cls in found if cls.__name__[0] != "_"}
    if name not in known:
        raise ValueError(
            f"`x_compressor` is {name!r}; allowed are {', '.join(sorted(known))}. A "
            "class of your own must derive from BaseSpikeCompressor and be imported."
        )
    try:
        return known[name](**settings)
    except TypeError as error:
        raise ValueError(
            f"`x_compressor` is {name!r}, which takes arguments ({error}); give an "
            f"instance, such as `{name}(...)`."
        ) from error


def compressor_for(grid: Grid | None) -> BaseSpikeCompressor:
    """The smallest of ours that is exact on every value in `grid`."""
    small = grid is not None and max(abs(grid.lo), abs(grid.hi)) < _EXACT // 2
    if grid is None or grid.bits > 8 or not small:
        return NullSpikeCompressor()
    bit = BitSpikeCompressor()
    return bit if bit.covers(grid) else IntegerSpikeCompressor.of(grid)


def settings_of(compressor: BaseSpikeCompressor) -> tuple[tuple[str, Any], ...]:
    """(name, value) of a compressor's arguments; of what JSON cannot hold, the repr.

    Without those that its own repr leaves out, unless they were given.
    """
    if not dataclasses.is_dataclass(compressor):
        return ()
    values = [(f, getattr(compressor, f.name)) for f in dataclasses.fields(compressor)]
    said = [(f.name, _plain(v)) for f, v in values if f.repr or v != f.default]
    return tuple(said)


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return ("repr", repr(value))


def _flat(x: Array) -> Array:
    """`[time, batch, feature]`."""
    return x.reshape((*x.shape[:2], math.prod(x.shape[2:])))


def _field(units: Array, width: int, at: int) -> Array:
    return ((units >> at) & (2**width - 1)).astype(jnp.uint8)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _pack(width: int, implementation: str | None, values: Array) -> Array:
    """Bytes of values of `width` bits, along the last axis; `kernels.pack` says how."""
    if width == 8:
        return values
    return kernels.choose(
        implementation or "xla",
        functools.partial(_pack_by_xla, width),
        functools.partial(kernels.pack, width),
        values,
        refused=kernels.bitpack_refusal(values),
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _unpack(width: int, n: int, implementation: str | None, packed: Array) -> Array:
    if width == 8:
        return packed
    return kernels.choose(
        implementation or "xla",
        functools.partial(_unpack_by_xla, width, n),
        functools.partial(kernels.unpack, width, n),
        packed,
        refused=kernels.bitpack_refusal(packed),
    )


def _pack_by_xla(width: int, values: Array) -> Array:
    """By `or` over the values of a byte.

    A reduction and a barrier behind it, so that it is done when and where it is
    written: elementwise, XLA:CPU packs no more than the element that the forward pass
    waits for, and XLA:GPU keeps wider integers and narrows them in the backward pass.
    """
    per_byte = 8 // width
    columns = -(-values.shape[-1] // per_byte)
    pad = per_byte * columns - values.shape[-1]
    values = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, pad)])
    fields = values.reshape(*values.shape[:-1], per_byte, columns)
    placed = fields << _places(width, fields.ndim)
    packed = lax.reduce(placed, np.uint8(0), lax.bitwise_or, (fields.ndim - 2,))
    return lax.optimization_barrier(packed)


def _places(width: int, ndim: int) -> Array:
    """First bits of the values of a byte, along the last axis but one."""
    places = jnp.arange(0, 8, width, dtype=jnp.uint8)
    return places.reshape((1,) * (ndim - 2) + (-1, 1))


def _unpack_by_xla(width: int, n: int, packed: Array) -> Array:
    per_byte = 8 // width
    fields = packed[..., None, :]
    values = (fields >> _places(width, fields.ndim)) & (2**width - 1)
    *leading, columns = packed.shape
    return values.reshape(*leading, per_byte * columns)[..., :n]


def _subclasses(cls: type) -> list[type]:
    return [s for c in cls.__subclasses__() for s in (c, *_subclasses(c))]
