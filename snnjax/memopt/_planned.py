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

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._gate import start_after
from .._types import Array
from ._boundary import CallProof
from ._container import GCContainer
from ._fault import raise_where
from ._grid import Grid
from ._model import as_class, become, named_modules, wrapper_class


class PlannedModel(nnx.Module):
    """Marks a model that a plan was applied to.

    Args:
        declared_input: what the first input is declared to hold; None is anything.
        check_input: whether a call makes sure of that.
    """

    declared_input: Grid | None
    check_input: bool


def make_planned(model: Any, declared: Grid | None, check_input: bool) -> None:
    """Makes calls of `model` prove the inputs of its segments, in place."""
    model.declared_input = declared
    model.check_input = check_input
    become(model, _planned_class(type(model)))


@functools.cache
def _planned_class(cls: type[nnx.Module]) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.declared_input is not None:
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
        if isinstance(module, GCContainer) and module.needs_proof
    }
    if segments:
        # Of the unplanned class: the planned one's call would prove for ever.
        plain, declared = as_class(cls, model), model.declared_input
        proof = CallProof(plain, tuple(segments), args, kwargs, declared)
        for path, attributes in segments.items():
            attributes["proof"] = (path, proof)
    try:
        yield
    finally:
        for attributes in segments.values():
            attributes["proof"] = None


def _checked(model: PlannedModel, x: Any = None) -> Array:
    """The first input, and a failure of the program where it breaks its declaration."""
    if not isinstance(x, jax.Array | np.ndarray):
        raise ValueError(
            f"the plan declares an `input_range`; {type(model).__name__} then takes an "
            f"array as its first positional argument, and {type(x).__name__} came."
        )
    x, grid = jnp.asarray(x), model.declared_input
    if grid is None or not model.check_input or not x.size or x.dtype == jnp.bool_:
        return x
    outside = (x < grid.lo) | (x > grid.hi) | (x != jnp.round(x)) | jnp.signbit(x)

    def message(value: np.ndarray) -> str:
        return (
            f"`input_range` is ({grid.lo}, {grid.hi}), but the input of the model "
            f"holds {value:g}. Clip or round the data, or plan without an "
            "`input_range`."
        )

    worst = x.reshape(-1)[jnp.argmax(outside)].astype(jnp.float32)
    return start_after(x, raise_where(outside, worst, message))
