"""A plan and a model make the same model, segmented."""

from typing import Any, TypeVar

import jax
from flax import nnx
from flax.errors import TraceContextError

from ._compress import BaseSpikeCompressor, compressor_named, settings_of
from ._container import make_segment
from ._grid import Grid
from ._model import (
    check_net,
    copy_structure,
    describe,
    modules_at,
    named_modules,
    path_name,
    shape_of,
)
from ._plan import Plan, PlannedSegment, difference
from ._planned import make_planned

Model = TypeVar("Model", bound=nnx.Module)
_SHOWN = 8  # lines of a difference in an error


def apply_plan(net: Model, plan: Plan, *, check_input: bool = True) -> Model:
    """A new model that runs by the plan, with the same Variables at the same paths.

    Args:
        net: the model that the plan was made for; it stays as it is, and sees every
            update of the new one, since they share their Variables.
        plan: from `make_plan`, or `Plan.load`.
        check_input: whether each call checks its first input against the plan's
            `input_range`, if it has one; data outside it is then an error when the
            program runs. Without the check, that is up to you.

    Returns:
        The segmented model.

    Raises:
        ValueError: `net` is no nnx model, or `plan` no Plan; the plan was made for
            another model, and the message lists what differs; a compressor cannot be
            made from its name; `net` is from outside of the running transformation.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import snnjax as snn
        >>> from flax import nnx
        >>> from snnjax import memopt
        >>> net = snn.layer.Sequential(snn.layer.ConvBlock(2, 4, rngs=nnx.Rngs(0)))
        >>> frames = jax.ShapeDtypeStruct((4, 8, 6, 6, 2), jnp.float32)
        >>> plan = memopt.make_plan(net, (snn.layer.ConvBlock,), (frames,), level=1)
        >>> planned = memopt.apply_plan(net, plan)
        >>> planned.layers[0].projection.kernel is net.layers[0].projection.kernel
        True
    """
    check_net(net)
    if not isinstance(plan, Plan):
        raise ValueError(
            f"`plan` is of type {type(plan).__name__}; allowed is a Plan, from "
            "`make_plan` or `Plan.load(path)`."
        )
    _check_fingerprint(net, plan)
    planned = copy_structure(net)
    try:
        _apply(planned, plan, check_input)
    except TraceContextError as error:
        raise ValueError(
            f"`net` is {type(net).__name__} from outside of the running transformation "
            "(jit, grad, ...); apply the plan before it, or to a model that the "
            "transformed function takes as an argument."
        ) from error
    return planned


def _apply(planned: nnx.Module, plan: Plan, check_input: bool) -> None:
    modules = modules_at(planned, (s.path for s in plan.segments))
    for segment in plan.segments:
        module = modules[segment.path]
        make_segment(
            module,
            compressor_of(module, segment),
            trusted=segment.unchecked,
            currents=segment.currents,
            cut=segment.cut,
            chunks=segment.chunks,
            shards=segment.shards,
            forward_by=segment.forward_by,
            chunk_statistics=segment.chunk_statistics,
        )
    if plan.segments:
        declared = None if plan.input_range is None else Grid(*plan.input_range)
        make_planned(planned, declared, check_input)


def fingerprint(net: nnx.Module) -> tuple[tuple[str, str], ...]:
    """What a plan remembers of its model, as pairs of a path and a description.

    All variables by type, dtype and shape, and all modules by class.
    """
    flat = nnx.to_flat_state(nnx.state(net))
    variables = [(path_name(path), _describe(variable)) for path, variable in flat]
    modules = named_modules(net).items()
    classes = [
        (path or "(the model)", type(module).__name__) for path, module in modules
    ]
    return (*variables, *classes)


def _describe(variable: Any) -> str:
    arrays = ", ".join(describe(shape_of(a)) for a in jax.tree.leaves(variable))
    return f"{type(variable).__name__} {arrays}".strip()


def _check_fingerprint(net: nnx.Module, plan: Plan) -> None:
    lines = difference(plan.fingerprint, fingerprint(net))
    if lines:
        shown = "\n  ".join(lines[:_SHOWN])
        more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise ValueError(
            f"`plan` was made for another model than `net`, {type(net).__name__}; make "
            f"one for this model, or load the plan that belongs to it:\n  {shown}{more}"
        )


def compressor_of(module: nnx.Module, segment: PlannedSegment) -> BaseSpikeCompressor:
    """The planned compressor: the module's own instance, or one made by name."""
    own: Any = getattr(module, "x_compressor", None)
    if not isinstance(own, BaseSpikeCompressor) or not _is_planned(own, segment):
        own = compressor_named(segment.compressor, **dict(segment.settings))
    if not _is_planned(own, segment):
        raise ValueError(
            f"`plan` keeps the input of {segment.path} by {segment.keeps}, which "
            "cannot be made from a file; give the module that very compressor as its "
            "`x_compressor`."
        )
    return own


def _is_planned(own: BaseSpikeCompressor, segment: PlannedSegment) -> bool:
    name = type(own).__name__
    return name == segment.compressor and settings_of(own) == segment.settings
