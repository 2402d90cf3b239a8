"""A planned model proves its segments' inputs anew, for each program that it becomes.

The plan says which compressor a segment is to use; whether it is exact is a question of
the program, and shapes, dtypes, modes and flags make other programs. So every call of
the model brings a proof of its own, which is worked out when a segment first asks: in
the forward pass of a gradient, when it is traced. That takes a fraction of a second.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from flax import nnx

from ._boundary import CallProof
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
        with _proof_at_hand(cls, self, args, kwargs):
            return cls.__call__(self, *args, **kwargs)

    def reduce(self: Any) -> tuple[Any, ...]:
        return _revive, (cls,), vars(self)

    body = {"__call__": call, "__reduce__": reduce, "__module__": cls.__module__}
    return derived((PlannedModel, cls), cls.__name__, body)


def _revive(cls: type[nnx.Module]) -> Any:
    """For copy and pickle, which cannot find a class made on the fly."""
    return object.__new__(_planned_class(cls))


@contextlib.contextmanager
def _proof_at_hand(
    cls: type[nnx.Module], model: nnx.Module, args: Any, kwargs: Any
) -> Iterator[None]:
    """Gives the segments in need of one a proof for this call, and takes it back."""
    segments = {
        path: vars(module)  # nnx forbids setattr on a module of an outer trace
        for path, module in named_modules(model).items()
        if isinstance(module, GCContainer) and module.needs_proof
    }
    if segments:
        # Of the unplanned class: the planned one's call would prove for ever.
        proof = CallProof(as_class(cls, model), tuple(segments), args, kwargs)
        for path, attributes in segments.items():
            attributes["proof"] = (path, proof)
    try:
        yield
    finally:
        for attributes in segments.values():
            attributes["proof"] = None
