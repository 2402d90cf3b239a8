"""GC segments of nnx modules, with every parameter path as it was.

A segment is the module itself with another class: a subclass made on the fly, so that
attributes, paths, Variables and `isinstance` stay. Its call is a pure function of the
module's variables (`_segment.py`); what the call changed, such as batch statistics and
random counters, is an output of that function and is written back once.

The class says how the backward pass runs: at once (GCContainer), over chunks of the
batch (BCGCContainer) or of the time steps (TCGCContainer).
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from .._types import Array
from ._arguments import ARRAYS, Arrays, arrays_of
from ._axes import axes_of
from ._boundary import CallProof
from ._chunked import chunked_segment
from ._compress import BaseSpikeCompressor, NullSpikeCompressor, Payload
from ._layout import BATCH, TIME
from ._model import become, describe, wrapper_class
from ._per_chunk import call_per_chunk
from ._segment import gc_segment, keep_products

Run = Callable[..., Any]


class GCContainer(nnx.Module):
    """Marks a module whose call is a GC segment.

    Args:
        x_compressor: what keeps the input.
        gc_trusted: whether that needs no proof.
        gc_currents: whether to keep results of convolutions and matrix products too.
        gc_proof: the segment's path and what the running call of the model proves.
    """

    x_compressor: BaseSpikeCompressor
    gc_trusted: bool
    gc_currents: bool
    gc_proof: tuple[str, CallProof] | None

    @property
    def compresses(self) -> bool:
        """Whether it may keep something else than the input itself."""
        return not isinstance(self.x_compressor, NullSpikeCompressor)

    def _run(self, one: Run, x: Array, args: Any, kwargs: Any) -> Any:
        """The module's call by `one`, which makes one segment of a call."""
        return one(self, x, *args, **kwargs)

    def _segment(
        self, run: Run, keep: BaseSpikeCompressor, x: Array, *args: Any
    ) -> Run:
        """`run(x, *args)` as a segment."""
        del x, args
        return gc_segment(run, keep, keep_products if self.gc_currents else None)


class _Chunked(GCContainer):
    """What batch and time chunks share: `gc_chunks` of them along an axis."""

    gc_axis: ClassVar[int]
    gc_chunks: int
    gc_shards: int
    gc_forward: str
    gc_statistics: str

    def _run(self, one: Run, x: Array, args: Any, kwargs: Any) -> Any:
        if self.gc_statistics == "exact":
            return one(self, x, *args, **kwargs)
        cut = self.gc_axis, self.gc_chunks
        return call_per_chunk(one, self, *cut, x, args, kwargs)

    def _segment(
        self, run: Run, keep: BaseSpikeCompressor, x: Array, *args: Any
    ) -> Run:
        if self.gc_statistics == "per_chunk":
            return super()._segment(run, keep, x, *args)
        axes = axes_of(run, self.gc_axis, self.gc_chunks, x, *args)
        return chunked_segment(
            run,
            keep,
            self.gc_axis,
            self.gc_chunks,
            in_axes=axes,
            shards=self.gc_shards,
            forward_by=self.gc_forward,
        )


class BCGCContainer(_Chunked):
    """Marks a module whose call is a segment with its backward pass in batch chunks."""

    gc_axis = BATCH


class TCGCContainer(_Chunked):
    """Marks a module whose call is a segment with its backward pass in time chunks."""

    gc_axis = TIME


def make_segment(
    module: Any,
    compressor: BaseSpikeCompressor,
    *,
    trusted: bool = False,
    currents: bool = False,
    cut: str | None = None,
    chunks: int = 1,
    shards: int = 1,
    forward_by: str = "whole",
    chunk_statistics: str = "exact",
) -> None:
    """Turns `module` into a segment, in place; the class is what changes.

    Args:
        module: maps one array `[time, batch, ...]` to another.
        compressor: what keeps its input.
        trusted: whether the compressor needs no proof.
        currents: whether to keep results of convolutions and matrix products too.
        cut: "batch" or "time", what its backward pass takes in chunks; None is nothing.
        chunks: how many.
        shards, forward_by: as for `chunked_segment`.
        chunk_statistics: "exact", or "per_chunk" as in `_per_chunk.py`.
    """
    module.x_compressor = compressor
    module.gc_trusted = trusted or compressor.covers(None)
    module.gc_currents = currents
    module.gc_proof = None
    if cut is not None:
        module.gc_chunks = chunks
        module.gc_shards, module.gc_forward = shards, forward_by
        module.gc_statistics = chunk_statistics
    become(module, _CLASSES[cut](type(module)))


@functools.cache
def _gc_class(cls: type[nnx.Module]) -> type[GCContainer]:
    """The subclass of `cls` whose call is a segment; the same one every time."""
    return _segment_class(_gc_class, GCContainer, cls)


@functools.cache
def _bcgc_class(cls: type[nnx.Module]) -> type[GCContainer]:
    return _segment_class(_bcgc_class, BCGCContainer, cls)


@functools.cache
def _tcgc_class(cls: type[nnx.Module]) -> type[GCContainer]:
    return _segment_class(_tcgc_class, TCGCContainer, cls)


_CLASSES = {None: _gc_class, "batch": _bcgc_class, "time": _tcgc_class}


def _segment_class(
    factory: Callable[[type], Any], container: type[GCContainer], cls: type[nnx.Module]
) -> Any:
    def one(self: Any, x: Array, *args: Any, **kwargs: Any) -> Any:
        return _call_segment(cls, self, x, args, kwargs)

    def call(self: Any, x: Array, *args: Any, **kwargs: Any) -> Any:
        return self._run(one, x, args, kwargs)

    name = f"{container.__name__}[{cls.__name__}]"
    return wrapper_class(factory, container, cls, name, call)


def _call_segment(
    cls: type[nnx.Module],
    self: GCContainer,
    x: Array,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    run, inputs = pure_call(cls, self, x, args, kwargs)
    keep = _Boundary(self.x_compressor, self.gc_trusted, self.gc_proof)
    y, changes = self._segment(run, keep, *inputs)(*inputs)
    nnx.update(self, changes)
    return y


def pure_call(
    cls: type[nnx.Module],
    module: nnx.Module,
    x: Array,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Run, tuple[Any, ...]]:
    """A module's call as a pure function, and its arguments.

    Returns:
        `run(x, state, arrays) -> (y, changed variables)`, and what to give it.
    """
    graphdef, state = nnx.split(module)
    _check_arguments(cls, x, (args, kwargs))
    arrays, rebuild = arrays_of((args, kwargs))

    def run(x: Array, state: nnx.State, arrays: Arrays) -> Any:
        module = nnx.merge(graphdef, state, copy=True)
        args, kwargs = rebuild(arrays)
        y = cls.__call__(module, x, *args, **kwargs)
        return y, _changes(cls, graphdef, state, module)

    return run, (jnp.asarray(x), state, arrays)


@dataclasses.dataclass(frozen=True)
class _Boundary(NullSpikeCompressor):
    """Packs by `compressor` where that is proven exact; otherwise keeps the array.

    The proof is worked out here, when the input is packed, and not when the segment is
    called: a forward pass without a gradient packs nothing. An array that several
    segments of one call read is packed once.
    """

    compressor: BaseSpikeCompressor
    trusted: bool
    proof: tuple[str, CallProof] | None

    def pack(self, x: Array) -> Payload:
        if not self._exact():
            warnings.warn(self._warning(x), stacklevel=2)
            return super().pack(x)
        packed = [] if self.proof is None else self.proof[1].packed
        for array, payload in packed:
            if array is x and payload.by == self.compressor:
                return payload
        payload = self.compressor.pack(x)
        packed.append((x, payload))
        return payload

    def _exact(self) -> bool:
        if self.trusted or self.proof is None:
            return self.trusted
        path, proof = self.proof
        known = proof.known.get(path)
        return self.compressor.covers(None if known is None else known.grid)

    def _warning(self, x: Array) -> str:
        where = f" at {self.proof[0]!r}" if self.proof else ""
        return (
            f"the input of a segment{where}, {describe(x)}, is kept uncompressed: "
            f"nothing proves that {self.compressor} is exact on it. A proof is of a "
            "call of the planned model: call that, not a part of it, with inputs that "
            "it was planned for."
        )


def _changes(
    cls: type[nnx.Module], graphdef: Any, before: nnx.State, module: nnx.Module
) -> nnx.State:
    """The variables that a call gave another value; only these need writing back."""
    after_graphdef, after = nnx.split(module)
    if after_graphdef != graphdef:
        raise ValueError(
            f"calling {cls.__name__} inside a segment added, removed or changed an "
            "attribute of the module. A segment writes back values of variables that "
            "exist beforehand: make them in `__init__`, or leave this module out of "
            "the targets."
        )
    old = dict(nnx.to_flat_state(before))
    changed = [
        (path, variable)
        for path, variable in nnx.to_flat_state(after)
        if not _same(variable, old[path])
    ]
    return nnx.from_flat_state(changed)


def _same(a: Any, b: Any) -> bool:
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(a) == len(b) and all(x is y for x, y in zip(a, b))


def _is_nnx(a: Any) -> bool:
    return isinstance(a, nnx.Pytree | nnx.Variable)


def _check_arguments(cls: type[nnx.Module], x: Any, others: Any) -> None:
    if not isinstance(x, ARRAYS):
        raise ValueError(
            f"{cls.__name__} is a segment and takes one array [time, batch, ...] as "
            f"its first positional argument; {type(x).__name__} came."
        )
    leaves = jax.tree.leaves(others, is_leaf=_is_nnx)
    nodes = [type(a).__name__ for a in leaves if _is_nnx(a)]
    if nodes:
        raise ValueError(
            f"{cls.__name__} is a segment and takes arrays and plain values; "
            f"{', '.join(nodes)} came, whose updates would be lost. Give it to the "
            "module's `__init__` instead."
        )
