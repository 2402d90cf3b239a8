"""A plan and a model make the same model, segmented."""

from typing import Any, TypeVar

import jax
from flax import nnx

from ._compress import BaseSpikeCompressor, compressor_named
from ._container import make_gc
from ._model import copy_structure, modules_at, named_modules, path_name
from ._plan import Plan, difference

Model = TypeVar("Model", bound=nnx.Module)
_SHOWN = 8  # lines of a difference in an error


def apply_plan(net: Model, plan: Plan) -> Model:
    """A new model that runs by the plan, with the same Variables at the same paths.

    Args:
        net: the model that the plan was made for; it stays as it is, and sees every
            update of the new one, since they share their Variables.
        plan: from `make_plan`, or `Plan.load`.

    Returns:
        The segmented model.

    Raises:
        ValueError: the plan was made for another model; the message lists what differs.
    """
    _check_fingerprint(net, plan)
    planned = copy_structure(net)
    modules = modules_at(planned, [s.path for s in plan.segments])
    for segment in plan.segments:
        module = modules[segment.path]
        make_gc(module, _compressor(module, segment.compressor))
    return planned


def fingerprint(net: nnx.Module, paths: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """What a plan remembers of its model: all variables, and the classes at `paths`."""
    modules = named_modules(net)
    classes = [(p, type(modules[p]).__name__) for p in paths if p in modules]
    flat = nnx.to_flat_state(nnx.state(net))
    return (*classes, *((path_name(p), _describe(v)) for p, v in flat))


def _describe(variable: Any) -> str:
    leaves = jax.tree.leaves(variable)
    arrays = ", ".join(f"{a.dtype}{list(a.shape)}" for a in leaves)
    return f"{type(variable).__name__} {arrays}"


def _check_fingerprint(net: nnx.Module, plan: Plan) -> None:
    lines = difference(plan.fingerprint, fingerprint(net, plan.candidates))
    if lines:
        shown = "\n  ".join(lines[:_SHOWN])
        more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise ValueError(
            f"`plan` was made for another model than `net`, {type(net).__name__}; make "
            f"one for this model, or load the plan that belongs to it:\n  {shown}{more}"
        )


def _compressor(module: nnx.Module, name: str) -> BaseSpikeCompressor:
    """An instance that the user gave keeps its settings; else one made by name."""
    own = getattr(module, "x_compressor", None)
    return own if type(own).__name__ == name else compressor_named(name)
