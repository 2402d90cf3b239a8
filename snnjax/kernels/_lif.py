"""Multi-step LIF in Pallas (Triton): the membrane stays in registers over time.

Forward, a current is read once and eight spikes are written as a byte. Backward, the
current and the spikes' cotangent are read once, potentials are computed again, and the
current's cotangent is written over the spikes'. For more than `_STEPS` steps the
backward pass reads the current twice, and keeps a potential every `_STEPS` steps.

Equations as in `snnjax.neuron`; the order of operations too, so that both programs
round alike but for fused multiply-adds. Arrays are seen as `[time, row, column]`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from .._membrane import Drive, Membrane
from .._types import Array, float32_at_least
from ._tile import TUNING, Tile, View, made, size_refusal

_BYTE = 8  # spikes to a byte
_STEPS = 16  # potentials of a value that the backward pass holds in registers


def lif_refusal(rule: Membrane, x: Array) -> str | None:
    """Why the kernels cannot serve a neuron with a current `x`, or None."""
    if not rule.is_binary:
        name = getattr(rule.surrogate, "__name__", repr(rule.surrogate))
        return f"`surrogate` {name} was not made by `snnjax.surrogate.surrogate`"
    return size_refusal(x, "the current")


# Jitted, so that equal layers share one trace of their kernel, and one lowering.
_jit = functools.partial(jax.jit, static_argnums=0, static_argnames="interpret")


@_jit
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
    view, steps = _view("lif_forward", x, drive), x.shape[0]
    bits = made(x, (-(-steps // _BYTE), *view.shape), jnp.uint8)
    last = None if v is None else made(x, view.shape, v.dtype)
    inputs = _drive(drive, view), _flat(v, view), x.reshape(steps, *view.shape)
    run = functools.partial(_call, "lif_forward", _forward, rule, view)
    bits, last = run(inputs, (bits, last), {}, interpret)
    return _spikes(bits, steps, x), None if v is None else last.reshape(v.shape)


@_jit
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
    """Cotangents of `drive`, `v` and `x` from those of the spikes and the last `v`.

    Args:
        rule, drive, v, x, interpret: as for `lif_forward`.
        ds: of the spikes, `[time, ...]` in `x`'s dtype; `x`'s is written over it.
        dv: of the last potential, `[...]`; None with `v`.
    """
    view, like = _view("lif_backward", x, drive), functools.partial(made, ds)
    over, dtype = (x.shape[0], *view.shape), float32_at_least(x.dtype)
    parts = -(-x.shape[0] // _STEPS)
    outputs = _Gradients(
        dx=like(over, x.dtype),
        dv=None if v is None else like(view.shape, dtype),
        ddrive=_partial_sums(drive, view, like),
        starts=like((parts, *view.shape), dtype) if parts > 1 else None,
    )
    given = _drive(drive, view), _flat(v, view), x.reshape(over)
    inputs = *given, ds.reshape(over), _flat(dv, view)
    written_over = {len(jax.tree.leaves(given)): 0}  # dx over ds
    run = functools.partial(_call, "lif_backward", _backward, rule, view)
    found = run(inputs, outputs, written_over, interpret)
    ddrive = jax.tree.map(_sum_to, found.ddrive, drive)
    dv0 = None if v is None else found.dv.reshape(v.shape)
    # A barrier, or XLA fuses the reshape into what reads `dx`, which then cannot be
    # written over it: shapes differ.
    return ddrive, dv0, lax.optimization_barrier(found.dx.reshape(x.shape))


class _Gradients(NamedTuple):
    """What the backward kernel writes; `starts` is its own notebook."""

    dx: Any
    dv: Any
    ddrive: Any
    starts: Any


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


# --- what the kernels see -------------------------------------------------------------


def _view(kernel: str, x: Array, drive: Drive) -> View:
    """A time step: one long row, unless `drive` has some per feature, the last axis."""
    size = math.prod(x.shape[1:])
    per_feature = any(1 < a.size < size for a in jax.tree.leaves(drive))
    columns = x.shape[-1] if per_feature else size
    return View(size // columns, columns, TUNING[kernel].elements)


def _drive(drive: Drive, view: View) -> Drive:
    """Its arrays as `[1, 1]`, `[1, column]` or `[row, column]`."""
    shapes = {1: (1, 1), view.columns: (1, view.columns)}
    return jax.tree.map(lambda a: a.reshape(shapes.get(a.size, view.shape)), drive)


def _partial_sums(drive: Drive, view: View, like: Callable[..., Any]) -> Drive:
    """Shapes of what the programs sum of the cotangents of `drive`."""
    rows, _ = view.tiles
    shapes = {1: view.tiles, view.columns: (rows, view.columns)}
    return jax.tree.map(lambda a: like(shapes.get(a.size, view.shape), a.dtype), drive)


def _flat(a: Array | None, view: View) -> Array | None:
    return None if a is None else a.reshape(view.shape)


def _call(
    name: str,
    body: Callable[..., None],
    rule: Membrane,
    view: View,
    inputs: Any,
    outputs: Any,
    aliases: dict[int, int],
    interpret: bool,
) -> Any:
    """Runs a kernel of trees of references: `body(rule, tile, *inputs, *outputs)`."""
    (given, taken), (results, making) = map(jax.tree.flatten, (inputs, outputs))

    def kernel(*refs: Any) -> None:
        ins = jax.tree.unflatten(taken, refs[: len(given)])
        outs = jax.tree.unflatten(making, refs[len(given) :])
        body(rule, Tile(view), *ins, *outs)

    leaves = pl.pallas_call(
        kernel,
        out_shape=results,
        grid=view.grid,
        input_output_aliases=aliases,
        compiler_params=TUNING[name].params,
        interpret=interpret,
        name=f"snnjax_{name}",
    )(*given)
    return jax.tree.unflatten(making, leaves)


# --- the kernels ----------------------------------------------------------------------

# A time step's equations, which a kernel repeats: traced once.


@functools.partial(jax.jit, static_argnums=0)
def _step(rule: Membrane, drive: Drive, v: Array, x: Array) -> tuple[Array, ...]:
    """The charged potential, the spike and the potential after it."""
    h = rule.charge(drive, v, x)
    return h, *rule.fire_and_reset(h)


@functools.partial(jax.jit, static_argnums=0)
def _step_back(
    rule: Membrane, drive: Drive, v: Array, x: Array, h: Array, ds: Array, dv: Array
) -> tuple[Drive, Array, Array]:
    """Cotangents of `drive`, `v` and `x` from those of the spike and the potential."""
    _, pullback = jax.vjp(rule.fire_and_reset, h)
    (dh,) = pullback((ds, dv))
    _, pullback = jax.vjp(rule.charge, drive, v, x)
    return pullback(dh)


def _forward(
    rule: Membrane, tile: Tile, drive: Any, v: Any, x: Any, bits: Any, last: Any
) -> None:
    dtype = float32_at_least(x.dtype)
    drive = jax.tree.map(lambda ref: tile.read(ref, dtype), drive)

    def byte(number: Array | int, v: Array, steps: int = _BYTE) -> Array:
        spikes = jnp.zeros(v.shape, jnp.int32)
        for i in range(steps):
            _, s, v = _step(rule, drive, v, tile.read(x, dtype, number * _BYTE + i))
            spikes |= s.astype(jnp.int32) << i
        tile.write(bits, spikes, number)
        return v

    v = _start(rule, tile, v, dtype)
    whole, rest = divmod(x.shape[0], _BYTE)
    v = lax.fori_loop(np.int32(0), np.int32(whole), byte, v)
    v = byte(whole, v, rest) if rest else v
    if last is not None:
        tile.write(last, v)


def _start(rule: Membrane, tile: Tile, v: Any, dtype: Any) -> Array:
    if v is not None:
        return tile.read(v, dtype)
    return jnp.full(tile.shape, rule.rest, dtype)


def _backward(
    rule: Membrane,
    tile: Tile,
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
            *_, v = _step(rule, drive, v, read(part * _STEPS + i))
        return v

    def retreat(part: Array | int, v: Array, carry: Any, steps: int = _STEPS) -> Any:
        """Through a part forward, in registers, and back."""
        before, charged, dv, dd = [], [], *carry
        for i in range(steps):
            before.append(v)
            h, _, v = _step(rule, drive, v, read(part * _STEPS + i))
            charged.append(h)
        for i in reversed(range(steps)):
            t = part * _STEPS + i
            at = before[i], read(t), charged[i], tile.read(ds, dtype, t), dv
            step, dv, dcurrent = _step_back(rule, drive, *at)
            dd = jax.tree.map(jnp.add, dd, step)
            tile.write(dx, dcurrent, t)
        return dv, dd

    v = _start(rule, tile, v, dtype)
    start, stop = np.int32(0), np.int32(whole)  # under x64 too
    last = lax.fori_loop(start, stop, advance, v) if whole else v
    dv = jnp.zeros(v.shape, dtype) if dv is None else tile.read(dv, dtype)
    carry = retreat(whole, last, (dv, jax.tree.map(jnp.zeros_like, drive)), rest)

    def earlier(i: Array, carry: Any) -> Any:
        part = whole - 1 - i
        return retreat(part, tile.read(starts, dtype, part), carry)

    dv, dd = lax.fori_loop(start, stop, earlier, carry) if whole else carry
    if dv0 is not None:
        tile.write(dv0, dv)
    jax.tree.map(tile.write_sum, ddrive, given, dd)
