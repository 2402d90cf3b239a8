"""A planned model proves its segments' inputs anew, for each program that it becomes.

The plan says which compressor a segment is to use; whether it is exact is a question of
the program, and shapes, dtypes and modes make other programs. So the model's own call
finds that out when it is traced, and tells its segments. It takes a fraction of a
second and happens once for each program.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from flax import nnx

from ._boundary import prove_call
from ._container import GCContainer
from ._model import as_class, become, derived, named_modules


class PlannedModel(nnx.Module):
    """Marks a model that a plan was applied to."""


def make_planned(model: nnx.Module) -> None:
    """Makes calls of `model` prove the inputs of its segments, in place."""
    become(model, _planned_class(type(model)))


@functools.cache
def _planned_class(cls: type[nnx.Module]) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _proven(cls, self, args, kwargs):
            return cls.__call__(self, *args, **kwargs)

    def reduce(self: Any) -> tuple[Any, ...]:
        return _revive, (cls,), vars(self)

    body = {"__call__": call, "__reduce__": reduce, "__module__": cls.__module__}
    return derived((PlannedModel, cls), cls.__name__, body)


def _revive(cls: type[nnx.Module]) -> Any:
    """For copy and pickle, which cannot find a class made on the fly."""
    return object.__new__(_planned_class(cls))


@contextlib.contextmanager
def _proven(
    cls: type[nnx.Module], model: nnx.Module, args: Any, kwargs: Any
) -> Iterator[None]:
    segments = {
        path: module
        for path, module in named_modules(model).items()
        if isinstance(module, GCContainer) and module.needs_proof
    }
    if segments:
        # Not by setattr, which nnx forbids on a module of an outer trace; this is no
        # state, and it is gone when the call ends.
        proofs = prove_call(as_class(cls, model), tuple(segments), args, kwargs)
        for path, segment in segments.items():
            known = proofs.get(path)
            grid = None if known is None else known.grid
            vars(segment)["proven"] = segment.x_compressor.covers(grid)
    try:
        yield
    finally:
        for segment in segments.values():
            vars(segment)["proven"] = False
