"""The public entry: model and example batch in, plan or segmented model out."""

import functools
import operator
import time
from collections.abc import Iterator
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

import jax
import optax
from flax import nnx

from .._step import Loss
from .._types import Array
from ._apply import apply_plan, fingerprint
from ._boundary import prove_loss
from ._devices import DeviceSpec
from ._plan import Plan
from ._profile import with_figures
from ._summary import MemOptSummary, summarize
from ._targets import (
    Targets,
    check_batch,
    check_device,
    check_input_range,
    check_level,
    check_loss,
    find_targets,
    plan_segment,
)

Model = TypeVar("Model", bound=nnx.Module)


def make_plan(
    net: nnx.Module,
    instance: Targets,
    batch: tuple[Any, ...] | None,
    *,
    loss: Loss | None = None,
    optimizer: optax.GradientTransformation | None = None,
    level: int = 1,
    compress_x: bool = True,
    input_range: tuple[int, int] | None = None,
    unchecked: bool = False,
    device: str | DeviceSpec | None = None,
) -> Plan:
    """Decides which modules become GC segments, and measures what that is worth.

    Nothing runs and nothing of the model's size is allocated: the whole training step,
    loss, gradient and update, is compiled on abstract values, with donation.

    Args:
        net: an nnx model; it stays as it is. Abstract ones (`nnx.eval_shape`) will do.
        instance: type or types of the modules that may become segments. Each maps one
            array `[time, batch, ...]` to another; residual blocks are fine. Of nested
            ones the outermost is taken.
        batch: what `loss` takes after the model; arrays or `jax.ShapeDtypeStruct`s.
            Without it (None) nothing can be measured, nor an input be compressed.
        loss: `loss(model, *batch)`, a scalar; None is the sum of `net(*batch)`.
        optimizer: from optax; None is plain gradient descent.
        level: 0 leaves all as it is; 1 makes every target a segment.
        compress_x: whether to compress the segments' inputs.
        input_range: `(lo, hi)` if the model's first input holds whole numbers from `lo`
            to `hi` only: (0, 1) for binary event frames, (0, 255) for counts. Every
            call of the planned model then checks its data. Bool inputs need none.
        unchecked: allow a compressor that a module's `x_compressor` names although
            nothing proves that it is exact there.
        device: GPU that the bytes are for, such as "rtx4090" or a `DeviceSpec`, present
            or not; None is jax's default backend.

    Returns:
        A frozen `Plan`: print it, save it, apply it.

    Raises:
        ValueError: an argument is out of range, `instance` matches nothing, the model
            cannot be traced, or a named compressor is not proven exact.
        ImportError: the wheels for `device` are not installed.
        MeasureError: a step does not compile.
    """
    check_level(level, batch)
    check_batch(batch)
    check_device(device)
    declared = check_input_range(input_range)
    targets = find_targets(net, instance)
    loss = _sum_of_outputs if loss is None else loss
    check_loss(loss)
    if batch is None:
        reached = {}
    else:
        reached = prove_loss(net, tuple(targets), loss, batch, declared)
    outside = [path for path in targets if path not in reached]
    segments = [
        plan_segment(path, targets[path], known, compress_x, unchecked)
        for path, known in (reached | dict.fromkeys(outside)).items()
    ]
    plan = Plan(
        level=level,
        segments=tuple(segments if level else ()),
        candidates=tuple(targets),
        input_range=input_range,
        fingerprint=fingerprint(net),
        notes=tuple(_notes(outside, level, batch)),
    )
    if batch is None:
        return plan
    return with_figures(net, plan, loss, optimizer or optax.sgd(1e-2), batch, device)


class _PlanSettings(TypedDict, total=False):
    loss: Loss | None
    optimizer: optax.GradientTransformation | None
    input_range: tuple[int, int] | None
    unchecked: bool
    device: str | DeviceSpec | None


class _Settings(_PlanSettings, total=False):
    compress_x: bool
    level: int
    verbose: bool


@overload
def memory_optimization(
    net: Model,
    instance: Targets,
    dummy_input: tuple[Any, ...] | None = None,
    *,
    return_summary: Literal[False] = False,
    **settings: Unpack[_Settings],
) -> Model: ...


@overload
def memory_optimization(
    net: Model,
    instance: Targets,
    dummy_input: tuple[Any, ...] | None = None,
    *,
    return_summary: Literal[True],
    **settings: Unpack[_Settings],
) -> tuple[Model, MemOptSummary]: ...


def memory_optimization(
    net: Model,
    instance: Targets,
    dummy_input: tuple[Any, ...] | None = None,
    *,
    compress_x: bool = True,
    level: int = 0,
    verbose: bool = False,
    return_summary: bool = False,
    **settings: Unpack[_PlanSettings],
) -> Model | tuple[Model, MemOptSummary]:
    """Segments a model so that it trains in less memory: `make_plan` and `apply_plan`.

    Args:
        net: an nnx model; it stays as it is. The new one has the same Variables.
        instance: type or types of the modules that may become GC segments.
        dummy_input: positional inputs of `net`, `(frames,)`; only shapes and dtypes
            matter. With a `loss`, what that takes after the model.
        compress_x: whether to compress the segments' inputs.
        level: 0 leaves all as it is; 1 makes every target a segment that keeps only its
            compressed input.
        verbose: print what is done and what it is worth.
        return_summary: return `(model, MemOptSummary)`.
        **settings: `loss`, `optimizer`, `input_range`, `unchecked`, `device`, as for
            `make_plan`.

    Returns:
        The segmented model, or with `return_summary` a pair.

    Raises:
        ValueError, ImportError, MeasureError: as `make_plan`.

    Source: Algorithm 2 of Huang et al., ICLR 2026, levels 0 and 1.
    """
    start = time.perf_counter()
    plan = make_plan(
        net, instance, dummy_input, compress_x=compress_x, level=level, **settings
    )
    summary = summarize(plan, compress_x, time.perf_counter() - start)
    if verbose:
        print(summary)
    model = apply_plan(net, plan)
    return (model, summary) if return_summary else model


def _sum_of_outputs(model: nnx.Module, *inputs: Any) -> Array:
    outputs: Any = model(*inputs)
    return functools.reduce(operator.add, (y.sum() for y in jax.tree.leaves(outputs)))


def _notes(outside: list[str], level: int, batch: Any) -> Iterator[str]:
    if level == 0:
        yield "level 0 leaves the model as it is; `level=1` makes segments"
    if batch is None:
        yield (
            "without an example batch nothing is known of what the segments' inputs "
            "can hold, so they are kept as they are, and nothing was measured"
        )
    elif outside:
        yield (
            "not met when the model itself is called on this batch, so that nothing is "
            f"known of their inputs: {', '.join(outside)}"
        )
