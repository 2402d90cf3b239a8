"""What the input of each segment can hold, by tracing the model once for each mode.

Every target's input is named in the traced program; `_ranges.py` then interprets the
program up to each name. Nothing runs, and no sample is ever looked at. A proof is for
the shapes that were traced, since a sum over the batch depends on them, and for
training and evaluation alike, since a plan outlives both.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from ._model import become, copy_structure, derived, describe, modules_at, shape_of
from ._ranges import Analysis, Known, of_dtype, union

_PREFIX = "snnjax.boundary/"


@dataclasses.dataclass(frozen=True)
class Boundary:
    """What arrives at a module: what is known of it, and as which arrays it came."""

    known: Known | None
    arrays: tuple[str, ...]


def boundaries(
    net: nnx.Module,
    paths: tuple[str, ...],
    loss: Callable[..., Any],
    batch: tuple[Any, ...],
) -> dict[str, Boundary]:
    """What can arrive at each module of `net` that `paths` names.

    Args:
        net: the model; it is traced on abstract values and left as it is.
        paths: of modules of `net`.
        loss: `loss(model, *batch)`; only what it calls of the model matters.
        batch: arrays or `jax.ShapeDtypeStruct`s.

    Returns:
        A `Boundary` for each path that the forward pass reaches, in the order in which
        it does; paths that it does not reach are left out.

    Raises:
        ValueError: the model cannot be traced on this batch, or `loss` is no scalar.
    """
    marked = copy_structure(net)
    for path, module in modules_at(marked, paths).items():
        _mark(module, path)
    seen: dict[str, list[tuple[Known | None, Any]]] = {}
    for jaxpr in _traces(marked, loss, batch):
        analysis = Analysis()
        analysis.run(jaxpr, [of_dtype(v.aval.dtype) for v in jaxpr.jaxpr.invars])
        for name, values in analysis.named.items():
            seen.setdefault(name, []).extend(values)
    ours = {n: v for n, v in seen.items() if n.startswith(_PREFIX)}
    return {n.removeprefix(_PREFIX): _boundary(v) for n, v in ours.items()}


def _boundary(values: list[tuple[Known | None, Any]]) -> Boundary:
    arrays = dict.fromkeys(describe(array) for _, array in values)
    return Boundary(union([known for known, _ in values]), tuple(arrays))


def _mark(module: nnx.Module, path: str) -> None:
    cls = type(module)

    def call(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        return cls.__call__(self, checkpoint_name(x, _PREFIX + path), *args, **kwargs)

    become(module, derived((cls,), cls.__name__, {"__call__": call}))


def _traces(
    model: nnx.Module, loss: Callable[..., Any], batch: tuple[Any, ...]
) -> Iterator[Any]:
    """Traces of the model as it stands, in training and in evaluation."""
    graphdefs = set()
    for switch in (lambda: None, model.train, model.eval):
        switch()
        graphdef, state = nnx.split(model)
        if graphdef not in graphdefs:
            graphdefs.add(graphdef)
            yield _trace(type(model).__name__, graphdef, state, loss, batch)


def _trace(
    name: str,
    graphdef: Any,
    state: Any,
    loss: Callable[..., Any],
    batch: tuple[Any, ...],
) -> Any:
    def forward(state: Any, batch: tuple[Any, ...]) -> Any:
        return loss(nnx.merge(graphdef, state, copy=True), *batch)

    abstract = jax.tree.map(shape_of, (state, batch))
    try:
        jaxpr = jax.make_jaxpr(forward)(*abstract)
    except Exception as error:
        arrays = ", ".join(describe(a) for a in jax.tree.leaves(abstract[1]))
        raise ValueError(
            f"`batch` (or `dummy_input`) is {arrays}; {name} cannot be traced on it: "
            f"{error}"
        ) from error
    outputs = [describe(a) for a in jaxpr.out_avals]
    if [a.shape for a in jaxpr.out_avals] != [()]:
        raise ValueError(
            f"`loss` returns {', '.join(outputs) or 'nothing'}; allowed is one scalar."
        )
    return jaxpr
