"""How kernels cut an array of rows and columns, or of time steps of these, into tiles.

A tile has powers of two of rows and columns, as Triton asks for; what lies beyond the
array is neither read nor written.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from .._types import Array


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Elements of a tile, and the warps that run it."""

    elements: int
    num_warps: int
    num_stages: int = 1

    @property
    def params(self) -> plgpu.CompilerParams:
        return plgpu.CompilerParams(
            num_warps=self.num_warps, num_stages=self.num_stages
        )


# Not tuned on a device yet: registers of the backward pass allow 4 values a thread.
TUNING = {
    "lif_forward": Tuning(1024, 4),
    "lif_backward": Tuning(512, 4),
    "pack": Tuning(1024, 4),
    "unpack": Tuning(1024, 4),
}


@dataclasses.dataclass(frozen=True)
class View:
    """An array of rows and columns, cut into tiles of `elements`."""

    rows: int
    columns: int
    elements: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def tile(self) -> tuple[int, int]:
        columns = min(pl.next_power_of_2(self.columns), self.elements)
        rows = min(pl.next_power_of_2(self.rows), self.elements // columns)
        return rows, columns

    @property
    def tiles(self) -> tuple[int, int]:
        rows, columns = self.tile
        return pl.cdiv(self.rows, rows), pl.cdiv(self.columns, columns)

    @property
    def grid(self) -> tuple[int]:
        """One axis, the only one of a CUDA grid that may be long."""
        return (math.prod(self.tiles),)


def size_refusal(a: Array, what: str) -> str | None:
    """Why no kernel can count the values of `a`, or None."""
    if 0 < a.size < 2**31:
        return None
    return f"{what} has {a.size} values; its kernel counts 1 to 2**31 - 1"


def made(a: Array, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """A result of a kernel, that varies over devices inside `shard_map` as `a` does."""
    varies = jax.typeof(a).manual_axis_type
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=varies)


def _count(n: int) -> Array:
    return jnp.arange(n, dtype=jnp.int32)  # as `pl.program_id`, under x64 too


class Tile:
    """Where one program stands: its rows and columns, and which of them exist."""

    def __init__(self, view: View) -> None:
        self.shape = rows, columns = view.tile
        across = view.tiles[1]
        self.program = pl.program_id(0) // across, pl.program_id(0) % across
        self.row = self.program[0] * rows + _count(rows)[:, None]
        self.column = self.program[1] * columns + _count(columns)[None]
        self.exists = (self.row < view.rows) & (self.column < view.columns)

    def read(self, ref: Any, dtype: Any, *step: Any, shift: int = 0) -> Array:
        """The tile of a step, or of an array that broadcasts to one; zero beyond it.

        Args:
            shift: columns to the right.
        """
        *_, rows, columns = ref.shape
        row = self.row if rows > 1 else jnp.zeros_like(self.row)
        wide = columns > 1 or shift
        column = self.column + shift if wide else jnp.zeros_like(self.column)
        place = ref.at[(*step, *jnp.broadcast_arrays(row, column))]
        mask = self.exists & (column < columns)
        return plgpu.load(place, mask=mask, other=0).astype(dtype)

    def write(self, ref: Any, a: Array, *step: Any, shift: int = 0) -> None:
        column = self.column + shift
        place = ref.at[(*step, *jnp.broadcast_arrays(self.row, column))]
        mask = self.exists & (column < ref.shape[-1])
        plgpu.store(place, a.astype(ref.dtype), mask=mask)

    def write_sum(self, ref: Any, like: Any, a: Array) -> None:
        """Into partial sums for an operand `like`; what does not exist is zero."""
        if like.shape[0] > 1:
            self.write(ref, a)
        elif like.shape[1] > 1:
            column = self.column[0]
            place = ref.at[jnp.full_like(column, self.program[0]), column]
            plgpu.store(place, a.sum(0), mask=column < like.shape[1])
        else:
            ref[self.program] = a.sum()
