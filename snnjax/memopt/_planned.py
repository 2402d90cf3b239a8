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

import jax.numpy as jnp
from flax import nnx

from .._types import Array
from ._boundary import CallProof, check_first_is_array
from ._container import GCContainer
from ._declared import held_to
from ._grid import Grid
from ._model import as_class, become, named_modules, wrapper_class


class PlannedModel(nnx.Module):
    """Marks a model that a plan was applied to.

    Args:
        gc_declared: what the first input is declared to hold; None is anything.
        gc_checks: whether a call makes sure of that.
    """

    gc_declared: Grid | None
    gc_checks: bool


def make_planned(model: Any, declared: Grid | None, check_input: bool) -> None:
    """Makes calls of `model` prove the inputs of its segments, in place."""
    model.gc_declared = declared
    model.gc_checks = check_input
    become(model, _planned_class(type(model)))


@functools.cache
def _planned_class(cls: type[nnx.Module]) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.gc_declared is not None:
            args = (_checked(self, *args[:1]), *args[1:])
        with _proof_at_hand(cls, self, args, kwargs):
            return cls.__call__(self, *args, **kwargs)

    return wrapper_class(_planned_class, PlannedModel, cls, cls.__name__, call)


@contextlib.contextmanager
def _proof_at_hand(
    cls: type[nnx.Module], model: PlannedModel, args: Any, kwargs: Any
) -> Iterator[None]:
    """Gives the segments in need of one a proof for this call, and takes it back."""
    segments = {
        path: vars(module)  # nnx forbids setattr on a module of an outer trace
        for path, module in named_modules(model).items()
        if isinstance(module, GCContainer) and module.compresses
    }
    before = {path: attributes["gc_proof"] for path, attributes in segments.items()}
    if segments:
        # Of the unplanned class: the planned one's call would prove for ever.
        plain, declared = as_class(cls, model), model.gc_declared
        proof = CallProof(plain, tuple(segments), args, kwargs, declared)
        for path, attributes in segments.items():
            attributes["gc_proof"] = (path, proof)
    try:
        yield
    finally:
        for path, attributes in segments.items():
            attributes["gc_proof"] = before[path]  # a model may call itself


def _checked(model: PlannedModel, x: Any = None) -> Array:
    """The first input, and a failure of the program where it breaks its declaration."""
    check_first_is_array((x,))
    x, grid = jnp.asarray(x), model.gc_declared
    if grid is None or not model.gc_checks:
        return x

    def message(worst: float) -> str:
        return (
            f"`input_range` is ({grid.lo}, {grid.hi}), but the input of the model "
            f"holds {worst:g}. Clip or round the data, or plan without an "
            "`input_range`."
        )

    return held_to(x, grid, message)
