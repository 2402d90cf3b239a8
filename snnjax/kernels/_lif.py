"""Multi-step LIF in Pallas (Triton): the membrane stays in registers over time.

Forward, a current is read once and eight spikes are written as a byte. Backward, the
current and the spikes' cotangent are read once, potentials are computed again, and the
current's cotangent is written over the spikes'. For more than `_STEPS` steps the
backward pass reads the current twice, and keeps a potential every `_STEPS` steps.

Equations as in `snnjax.neuron`; the order of operations too, so that both programs
round alike but for fused multiply-adds. Arrays are seen as `[time, row, column]`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from .._membrane import Drive, Membrane
from .._types import Array, float32_at_least

_BYTE = 8  # spikes to a byte
_STEPS = 16  # potentials of a value that the backward pass holds in registers


@dataclasses.dataclass(frozen=True)
class _Tuning:
    """Elements of a time step that one program runs over time, and its warps."""

    elements: int
    num_warps: int
    num_stages: int = 1

    @property
    def params(self) -> plgpu.CompilerParams:
        return plgpu.CompilerParams(
            num_warps=self.num_warps, num_stages=self.num_stages
        )


TUNING = {"forward": _Tuning(1024, 4), "backward": _Tuning(512, 4)}


def lif_refusal(x: Array) -> str | None:
    """Why the kernels cannot serve a current `x`, or None."""
    if x.size == 0:
        return "the current has no values"
    if x.size >= 2**31:
        return f"the current has {x.size} values; its kernel counts up to 2**31 - 1"
    return None


def lif_forward(
    rule: Membrane, drive: Drive, v: Array | None, x: Array, *, interpret: bool = False
) -> tuple[Array, Array | None]:
    """Spikes and the last potential; `v=None` starts at rest and returns no potential.

    Args:
        rule: charge, fire and reset.
        drive: arrays that broadcast to one time step, in the membrane's dtype.
        v: potential before the first step, `[...]`.
        x: current, or what `drive` makes the current of, `[time, ...]`.
        interpret: run as ordinary JAX, on any platform.
    """
    view = _View.of(x, drive)
    steps = x.shape[0]
    bits = jax.ShapeDtypeStruct(view.over(-(-steps // _BYTE)), jnp.uint8)
    last = None if v is None else jax.ShapeDtypeStruct(view.step, _membrane(x))
    inputs = view.drive(drive), _flat(v, view.step), x.reshape(view.over(steps))
    bits, last = _call(_forward, rule, view, inputs, (bits, last), {}, interpret)
    return _spikes(bits, steps, x), None if v is None else last.reshape(v.shape)


def lif_backward(
    rule: Membrane,
    drive: Drive,
    v: Array | None,
    x: Array,
    ds: Array,
    dv: Array | None,
    *,
    interpret: bool = False,
) -> tuple[Drive, Array | None, Array]:
    """Cotangents of `drive`, `v` and `x` from those of the spikes and the last `v`."""
    view = _View.of(x, drive)
    over, like = view.over(x.shape[0]), jax.ShapeDtypeStruct
    dtype = _membrane(x)
    starts = -(-x.shape[0] // _STEPS)
    outputs = _Gradients(
        dx=like(over, x.dtype),
        dv=None if v is None else like(view.step, dtype),
        ddrive=view.partial_sums(drive, dtype),
        starts=like(view.over(starts), dtype) if starts > 1 else None,
    )
    inputs = (
        view.drive(drive),
        _flat(v, view.step),
        x.reshape(over),
        ds.reshape(over),
        _flat(dv, view.step),
    )
    written_over = {len(jax.tree.leaves(inputs[:3])): 0}  # dx over ds
    found = _call(_backward, rule, view, inputs, outputs, written_over, interpret)
    ddrive = jax.tree.map(_sum_to, found.ddrive, drive)
    dv0 = None if v is None else found.dv.reshape(v.shape)
    return ddrive, dv0, found.dx.reshape(x.shape)


class _Gradients(NamedTuple):
    """What the backward kernel writes; `starts` is its own notebook."""

    dx: Any
    dv: Any
    ddrive: Any
    starts: Any


def _membrane(x: Array) -> Any:
    return float32_at_least(x.dtype)


def _flat(a: Array | None, shape: tuple[int, ...]) -> Array | None:
    return None if a is None else a.reshape(shape)


def _spikes(bits: Array, steps: int, like: Array) -> Array:
    """`[time, ...]` of bytes along time; by a comparison, which proves them 0 or 1."""
    shifts = jnp.arange(_BYTE, dtype=jnp.uint8).reshape(1, _BYTE, 1, 1)
    spikes = (bits[:, None] >> shifts) & 1 != 0
    spikes = spikes.reshape(-1, *bits.shape[1:])[:steps]
    return spikes.reshape(like.shape).astype(like.dtype)


def _sum_to(partial: Array, like: Array) -> Array:
    """Of sums by program, those of an array that was broadcast to a time step."""
    if partial.size == like.size:
        return partial.reshape(like.shape)
    return partial.sum(0 if like.size > 1 else None).reshape(like.shape)


# --- how arrays are cut ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _View:
    """A time step as `[row, column]`, and the tile of it that one program runs."""

    rows: int
    columns: int

    @classmethod
    def of(cls, x: Array, drive: Drive) -> "_View":
        """One long row, unless some of `drive` is given per feature, the last axis."""
        size = x[0].size if x.ndim > 1 else 1
        per_feature = any(1 < a.size < size for a in jax.tree.leaves(drive))
        columns = x.shape[-1] if per_feature else size
        return cls(size // columns, columns)

    @property
    def step(self) -> tuple[int, int]:
        return self.rows, self.columns

    def over(self, steps: int) -> tuple[int, int, int]:
        return steps, self.rows, self.columns

    def tile(self, elements: int) -> tuple[int, int]:
        """Rows and columns, powers of two, of a tile of `elements`."""
        columns = min(pl.next_power_of_2(self.columns), elements)
        rows = min(pl.next_power_of_2(self.rows), elements // columns)
        return rows, columns

    def grid(self, elements: int) -> tuple[int, int]:
        rows, columns = self.tile(elements)
        return pl.cdiv(self.rows, rows), pl.cdiv(self.columns, columns)

    def drive(self, drive: Drive) -> Drive:
        """Its arrays as `[1, 1]`, `[1, column]` or `[row, column]`."""
        return jax.tree.map(self._drive, drive)

    def _drive(self, a: Array) -> Array:
        if a.size == 1:
            return a.reshape(1, 1)
        rows = self.rows if a.size == self.rows * self.columns else 1
        return a.reshape(rows, self.columns)

    def partial_sums(self, drive: Drive, dtype: Any) -> Drive:
        """Shapes of what the programs sum of the cotangents of `drive`."""
        rows, columns = self.grid(TUNING["backward"].elements)
        shapes = {1: (rows, columns), self.columns: (rows, self.columns)}
        return jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(shapes.get(a.size, self.step), dtype), drive
        )


class _Tile:
    """Where one program stands: its rows, its columns, and which of them exist."""

    def __init__(self, view: _View, elements: int) -> None:
        self.rows, self.columns = view.tile(elements)
        across = view.grid(elements)[1]
        self.program = pl.program_id(0) // across, pl.program_id(0) % across
        self.row = self.program[0] * self.rows + jnp.arange(self.rows)[:, None]
        self.column = self.program[1] * self.columns + jnp.arange(self.columns)[None]
        self.exists = (self.row < view.rows) & (self.column < view.columns)

    def read(self, ref: Any, dtype: Any, *step: Any) -> Array:
        """The tile of a time step, or of an array that broadcasts to one."""
        *_, rows, columns = ref.shape
        row = self.row if rows > 1 else jnp.zeros_like(self.row)
        column = self.column if columns > 1 else jnp.zeros_like(self.column)
        place = ref.at[(*step, *jnp.broadcast_arrays(row, column))]
        return plgpu.load(place, mask=self.exists, other=0).astype(dtype)

    def write(self, ref: Any, a: Array, *step: Any) -> None:
        place = ref.at[(*step, *jnp.broadcast_arrays(self.row, self.column))]
        plgpu.store(place, a.astype(ref.dtype), mask=self.exists)

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


def _call(
    body: Callable[..., None],
    rule: Membrane,
    view: _View,
    inputs: Any,
    outputs: Any,
    aliases: dict[int, int],
    interpret: bool,
) -> Any:
    """Runs a kernel of trees of references: `body(rule, tile, *inputs, *outputs)`."""
    tuning = TUNING[body.__name__.removeprefix("_")]
    (given, taken), (made, making) = map(jax.tree.flatten, (inputs, outputs))

    def kernel(*refs: Any) -> None:
        ins = jax.tree.unflatten(taken, refs[: len(given)])
        outs = jax.tree.unflatten(making, refs[len(given) :])
        body(rule, _Tile(view, tuning.elements), *ins, *outs)

    kernel.__name__ = f"snnjax_lif{body.__name__}"
    leaves = pl.pallas_call(
        kernel,
        out_shape=made,
        grid=(math.prod(view.grid(tuning.elements)),),
        input_output_aliases=aliases,
        compiler_params=tuning.params,
        interpret=interpret,
        name=kernel.__name__,
    )(*given)
    return jax.tree.unflatten(making, leaves)


# --- the kernels ----------------------------------------------------------------------


def _forward(
    rule: Membrane, tile: _Tile, drive: Any, v: Any, x: Any, bits: Any, last: Any
) -> None:
    dtype = float32_at_least(x.dtype)
    drive = jax.tree.map(lambda ref: tile.read(ref, dtype), drive)

    def byte(number: Array | int, v: Array, steps: int = _BYTE) -> Array:
        spikes = jnp.zeros(v.shape, jnp.int32)
        for i in range(steps):
            h = rule.charge(drive, v, tile.read(x, dtype, number * _BYTE + i))
            s, v = rule.fire_and_reset(h)
            spikes |= s.astype(jnp.int32) << i
        tile.write(bits, spikes, number)
        return v

    v = _start(rule, tile, v, dtype)
    whole, rest = divmod(x.shape[0], _BYTE)
    v = lax.fori_loop(0, whole, byte, v)
    v = byte(whole, v, rest) if rest else v
    if last is not None:
        tile.write(last, v)


def _start(rule: Membrane, tile: _Tile, v: Any, dtype: Any) -> Array:
    if v is not None:
        return tile.read(v, dtype)
    return jnp.full((tile.rows, tile.columns), rule.rest, dtype)


def _backward(
    rule: Membrane,
    tile: _Tile,
    drive: Any,
    v: Any,
    x: Any,
    ds: Any,
    dv: Any,
    dx: Any,
    dv0: Any,
    ddrive: Any,
    starts: Any,
) -> None:
    dtype = float32_at_least(x.dtype)
    given = drive
    drive = jax.tree.map(lambda ref: tile.read(ref, dtype), drive)
    read = functools.partial(tile.read, x, dtype)
    whole, rest = divmod(x.shape[0] - 1, _STEPS)
    rest += 1  # of the last part, which is never empty

    def advance(part: Array, v: Array) -> Array:
        """Notes the potential before a part, and runs through it."""
        tile.write(starts, v, part)
        for i in range(_STEPS):
            h = rule.charge(drive, v, read(part * _STEPS + i))
            _, v = rule.fire_and_reset(h)
        return v

    def retreat(part: Array | int, v: Array, carry: Any, steps: int = _STEPS) -> Any:
        """Through a part forward, in registers, and back."""
        before, charged, dv, dd = [], [], *carry
        for i in range(steps):
            before.append(v)
            charged.append(rule.charge(drive, v, read(part * _STEPS + i)))
            _, v = rule.fire_and_reset(charged[i])
        for i in reversed(range(steps)):
            t = part * _STEPS + i
            _, pullback = jax.vjp(rule.fire_and_reset, charged[i])
            (dh,) = pullback((tile.read(ds, dtype, t), dv))
            _, pullback = jax.vjp(rule.charge, drive, before[i], read(t))
            step, dv, dcurrent = pullback(dh)
            dd = jax.tree.map(jnp.add, dd, step)
            tile.write(dx, dcurrent, t)
        return dv, dd

    v = _start(rule, tile, v, dtype)
    last = lax.fori_loop(0, whole, advance, v) if whole else v
    dv = jnp.zeros(v.shape, dtype) if dv is None else tile.read(dv, dtype)
    carry = retreat(whole, last, (dv, jax.tree.map(jnp.zeros_like, drive)), rest)

    def earlier(i: Array, carry: Any) -> Any:
        part = whole - 1 - i
        return retreat(part, tile.read(starts, dtype, part), carry)

    dv, dd = lax.fori_loop(0, whole, earlier, carry) if whole else carry
    if dv0 is not None:
        tile.write(dv0, dv)
    jax.tree.map(tile.write_sum, ddrive, given, dd)
