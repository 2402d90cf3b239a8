"""What the input of each segment can hold, by tracing the model once.

Every target's input is named in the traced program; `_ranges.py` then interprets the
program up to each name. Nothing runs, and no sample is ever looked at.
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from ._model import copy_structure, modules_at, shape_of, subclassed
from ._ranges import Analysis, Known

_PREFIX = "snnjax.boundary/"


def boundaries(
    net: nnx.Module,
    paths: tuple[str, ...],
    loss: Callable[..., Any],
    batch: tuple[Any, ...],
) -> dict[str, Known | None]:
    """What can arrive at each module of `net` that `paths` names.

    Args:
        net: the model; it is traced on abstract values and left as it is.
        paths: of modules of `net`.
        loss: `loss(model, *batch)`; only what it calls of the model matters.
        batch: arrays or `jax.ShapeDtypeStruct`s.

    Returns:
        For each path that the forward pass reaches, a grid and its proof, or None where
        nothing is known; paths that it does not reach are left out.

    Raises:
        ValueError: the model cannot be traced on this batch.
    """
    marked = copy_structure(net)
    for path, module in modules_at(marked, paths).items():
        _mark(module, path)
    analysis = Analysis()
    jaxpr = _trace(marked, loss, batch)
    analysis.run(jaxpr, [None] * len(jaxpr.jaxpr.invars))
    named = analysis.named.items()
    return {n.removeprefix(_PREFIX): v for n, v in named if n.startswith(_PREFIX)}


def _mark(module: nnx.Module, path: str) -> None:
    cls = type(module)

    def call(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        return cls.__call__(self, checkpoint_name(x, _PREFIX + path), *args, **kwargs)

    subclassed(module, type(cls)(cls.__name__, (cls,), {"__call__": call}))


def _trace(model: nnx.Module, loss: Callable[..., Any], batch: tuple[Any, ...]) -> Any:
    graphdef, state = nnx.split(model)

    def forward(state: Any, batch: tuple[Any, ...]) -> Any:
        return loss(nnx.merge(graphdef, state, copy=True), *batch)

    abstract = jax.tree.map(shape_of, (state, batch))
    try:
        return jax.make_jaxpr(forward)(*abstract)
    except Exception as error:
        shapes = [f"{a.dtype}{list(a.shape)}" for a in jax.tree.leaves(abstract[1])]
        raise ValueError(
            f"`dummy_input` is {', '.join(shapes)}; {type(model).__name__} cannot be "
            f"traced on it: {error}"
        ) from error
