"""Packing small integers into bytes in Pallas (Triton): one, two or four bits a value.

Value `j + i * m` of a row goes to byte `j`, bits `i * width` and up, where `m` is the
number of bytes of a row. Neighbours in memory are read, and written, by neighbours.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax.experimental import pallas as pl

from .._types import Array
from ._tile import TUNING, Tile, View, made, size_refusal


def pack(width: int, values: Array, *, interpret: bool = False) -> Array:
    """Bytes, `[..., ceil(n * width / 8)]`, of values, `[..., n]`.

    Args:
        width: bits of a value: 1, 2 or 4.
        values: uint8 below `2**width`.
        interpret: run as ordinary JAX, on any platform.
    """
    per_byte = 8 // width
    columns = -(-values.shape[-1] // per_byte)

    def body(tile: Tile, values: Array, packed: Array) -> None:
        byte = jnp.zeros(tile.shape, jnp.int32)
        for i in range(per_byte):
            value = tile.read(values, jnp.int32, shift=i * columns)
            byte |= value << (i * width)
        tile.write(packed, byte)

    shape = (*values.shape[:-1], columns)
    return _run("pack", body, columns, values, shape, interpret)


def unpack(width: int, n: int, packed: Array, *, interpret: bool = False) -> Array:
    """The values that `pack` was given, uint8, `[..., n]`.

    Args:
        width: as for `pack`.
        n: values of a row.
        packed: uint8, `[..., ceil(n * width / 8)]`.
        interpret: as for `pack`.
    """
    columns = packed.shape[-1]

    def body(tile: Tile, packed: Array, values: Array) -> None:
        byte = tile.read(packed, jnp.int32)
        for i in range(8 // width):
            value = (byte >> (i * width)) & (2**width - 1)
            tile.write(values, value, shift=i * columns)

    return _run("unpack", body, columns, packed, (*packed.shape[:-1], n), interpret)


def bitpack_refusal(a: Array) -> str | None:
    """Why the kernels cannot serve an array of `a`'s shape, or None."""
    return size_refusal(a, "the array")


def _run(
    name: str,
    body: Callable[..., None],
    columns: int,
    given: Array,
    shape: tuple[int, ...],
    interpret: bool,
) -> Array:
    rows = given.size // given.shape[-1]
    view = View(rows, columns, TUNING[name].elements)
    result = pl.pallas_call(
        lambda *refs: body(Tile(view), *refs),
        out_shape=made(given, (rows, shape[-1]), jnp.uint8),
        grid=view.grid,
        compiler_params=TUNING[name].params,
        interpret=interpret,
        name=f"snnjax_{name}",
    )(given.reshape(rows, -1))
    return result.reshape(shape)
