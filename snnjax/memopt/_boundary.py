"""What the input of each segment can hold, proven when a call of the model is traced.

Every target's input is named in the traced program; `_ranges.py` then interprets the
program up to each name. Nothing runs, and no sample is ever looked at. A proof is of
one program, so it is made anew for each shape, dtype and mode that the model is called
with: a sum over the batch, or an `if` on a shape, makes another program.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from .._types import Array
from ._compress import Payload
from ._grid import Grid
from ._model import (
    as_class,
    as_function,
    copy_structure,
    describe,
    intercept,
    modules_at,
    shape_of,
)
from ._ranges import Analysis, Known, of_dtype, union

Proofs = dict[str, Known | None]
_PREFIX = "snnjax.boundary/"


class CallProof:
    """What can arrive at modules of `model` when it is called with some arguments.

    It is found out when first asked for, by tracing the call on abstract values; a call
    that nobody differentiates never asks. Two proofs are equal if they say the same, so
    that a compiled part of a model is used again exactly where it may be.

    Args:
        model: it is left as it is.
        paths: of modules of `model`.
        args, kwargs: of the call; of arrays only shape and dtype matter.
        declared: what the first positional argument, an array, is declared to hold.

    Attributes:
        packed: (array, payload) of this call's boundaries: an array that several
            segments read is packed once.
    """

    def __init__(
        self,
        model: nnx.Module,
        paths: tuple[str, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        declared: Grid | None = None,
    ) -> None:
        if declared is not None:
            check_first_is_array(args)
        self.packed: list[tuple[Array, Payload]] = []
        self._paths, self._declared = paths, declared
        self._graphdef, state = nnx.split(model)
        self._first = len(jax.tree.leaves(state))
        leaves, self._structure = jax.tree.flatten((state, args, kwargs))
        self._leaves = [shape_of(a) if hasattr(a, "dtype") else a for a in leaves]

    @functools.cached_property
    def known(self) -> Proofs:
        """For each path that the call reaches, in that order, what is known there."""
        abstract = jax.ShapeDtypeStruct
        where = [i for i, a in enumerate(self._leaves) if isinstance(a, abstract)]

        def call(arrays: list[Any]) -> Any:
            return self._call(self._leaves, dict(zip(where, arrays)))

        jaxpr = jax.make_jaxpr(call)([self._leaves[i] for i in where])
        analysis = Analysis()
        inputs = [of_dtype(v.aval.dtype) for v in jaxpr.jaxpr.invars]
        if self._declared is not None:
            first = where.index(self._first)
            inputs[first] = Known(self._declared, ("declared input",))
        analysis.run(jaxpr, inputs)
        named = {n: v for n, v in analysis.named.items() if n.startswith(_PREFIX)}
        return {n.removeprefix(_PREFIX): union(v) for n, v in named.items()}

    def _call(self, leaves: list[Any], arrays: dict[int, Any]) -> Any:
        values = [arrays.get(i, a) for i, a in enumerate(leaves)]
        state, args, kwargs = jax.tree.unflatten(self._structure, values)
        model = nnx.merge(self._graphdef, state, copy=True)
        for path, module in modules_at(model, self._paths).items():
            _mark(module, path)
        return jax.tree.leaves(model(*args, **kwargs))

    def __eq__(self, other: object) -> bool:
        if self is other:  # without working it out
            return True
        return isinstance(other, CallProof) and self.known == other.known

    def __hash__(self) -> int:
        return hash(CallProof)


def check_first_is_array(args: tuple[Any, ...]) -> None:
    """Raises unless there is an array for an `input_range` to speak of."""
    if not args or not hasattr(args[0], "dtype"):
        came = type(args[0]).__name__ if args else "none"
        raise ValueError(
            "`input_range` declares the model's first positional argument, which must "
            f"be an array; {came} came. Call the model with the array first."
        )


def _mark(module: nnx.Module, path: str) -> None:
    cls = type(module)

    def call(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        return cls.__call__(self, checkpoint_name(x, _PREFIX + path), *args, **kwargs)

    intercept(module, call)


def prove_loss(
    net: nnx.Module,
    paths: tuple[str, ...],
    loss: Callable[..., Any],
    batch: tuple[Any, ...],
    declared: Grid | None = None,
) -> Proofs:
    """What every call of `net` that `loss(net, *batch)` makes proves, together.

    Raises:
        ValueError: the model cannot be traced on this batch, or `loss` is no scalar.
    """
    calls: list[Proofs] = []
    watched = copy_structure(net)
    cls = type(watched)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = as_class(cls, self)
        calls.append(CallProof(plain, paths, args, kwargs, declared).known)
        return cls.__call__(self, *args, **kwargs)

    intercept(watched, call)
    _check_scalar(_trace(watched, loss, batch))
    order = dict.fromkeys(path for proofs in calls for path in proofs)
    return {p: union([c[p] for c in calls if p in c]) for p in order}


def _trace(model: nnx.Module, loss: Callable[..., Any], batch: tuple[Any, ...]) -> Any:
    forward, state = as_function(model, loss)
    abstract = jax.tree.map(shape_of, (state, *batch))
    try:
        return jax.eval_shape(forward, *abstract)
    except Exception as error:
        arrays = ", ".join(describe(a) for a in jax.tree.leaves(abstract[1:]))
        raise ValueError(
            f"`batch` (or `dummy_input`) is {arrays}; {type(model).__name__} cannot be "
            f"traced on it: {error}"
        ) from error


def _check_scalar(output: Any) -> None:
    leaves = jax.tree.leaves(output)
    scalar = [a.shape for a in leaves] == [()]
    if not scalar or not jax.numpy.issubdtype(leaves[0].dtype, jax.numpy.floating):
        came = ", ".join(describe(a) for a in leaves) or "nothing"
        raise ValueError(f"`loss` returns {came}; allowed is one floating scalar.")
