"""The public entry: model and example batch in, plan or segmented model out."""

import dataclasses
import functools
import operator
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, Unpack, overload

import jax
import optax
from flax import nnx

from .._step import Loss
from .._types import Array
from ._apply import apply_plan, fingerprint
from ._boundary import prove_loss
from ._cost import Costs, Roofline
from ._devices import DeviceSpec
from ._measure import spec_of
from ._model import abstract, modules_at
from ._options import Options, Search, resolve
from ._plan import Plan, PlannedSegment
from ._profile import (
    Training,
    held_bytes,
    prepare_step,
    timed,
    with_figures,
    with_peaks,
)
from ._propose import Parts, propose
from ._searching import search
from ._summary import MemOptSummary, summarize
from ._table import Choices
from ._targets import (
    Targets,
    check_batch,
    check_input_range,
    check_loss,
    check_optimizer,
    check_time_repeats,
    find_targets,
    parts_of,
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
    compress_x: bool = True,
    input_range: tuple[int, int] | None = None,
    unchecked: bool = False,
    device: str | DeviceSpec | None = None,
    time_repeats: int = 0,
    **search: Unpack[Search],
) -> Plan:
    """Decides what becomes of each target, and measures what that is worth.

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
        compress_x: whether to compress the segments' inputs.
        input_range: `(lo, hi)` if the model's first input holds whole numbers from `lo`
            to `hi` only: (0, 1) for binary event frames, (0, 255) for counts. Every
            call of the planned model then checks its data. Bool inputs need none.
        unchecked: allow a compressor that a module's `x_compressor` names although
            nothing proves that it is exact there.
        device: GPU that the bytes are for, such as "rtx4090" or a `DeviceSpec`, present
            or not; None is jax's default backend.
        time_repeats: steps of the plain and of the planned model that are run by turns,
            here, for a measured slowdown; needs values. 0 runs nothing: the slowdown is
            a roofline's estimate.
        **search: what to look for. By `level` alone, the tutorial's climb: 0 leaves all
            as it is; 1, the default, makes every target a segment; 2 splits the one at
            the peak into its parts; 3 cuts it into chunks; 4 makes targets plain again
            where the peak allows. `budget` ("6GiB", bytes, or a share of a described
            device): the fastest plan that fits. `max_slowdown` (1.2): the smallest peak
            within that estimated time. `profile` ("safe", "balanced", "memory",
            "exhaustive") and `prefer` ("speed", "balanced", "memory") are presets.
            `checkpoint_budget` ("speed", "balanced", "memory"),
            `gc_target_budget_ratio` and `max_gc_wrapped_modules` bound how many targets
            become segments, those that save most for a second first.
            `temporal_split_factor`: by which numbers of chunks grow.
            `max_split_rounds`, `max_candidates_per_round`: of the levels 2 and 3.
            `allow_expensive_profiling=False`: compile one candidate only.

    Returns:
        A frozen `Plan`: print it, save it, apply it.

    Raises:
        ValueError: an argument is out of range, `instance` matches nothing, the model
            cannot be traced, or a named compressor is not proven exact.
        BudgetError: no plan fits in the `budget`; it is a ValueError.
        ImportError: the wheels for `device` are not installed.
        MeasureError: a step does not compile.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import snnjax as snn
        >>> from flax import nnx
        >>> from snnjax import memopt
        >>> net = snn.layer.Sequential(snn.layer.ConvBlock(2, 4, rngs=nnx.Rngs(0)))
        >>> frames = jax.ShapeDtypeStruct((4, 8, 6, 6, 2), jnp.float32)
        >>> targets = (snn.layer.ConvBlock,)
        >>> plan = memopt.make_plan(net, targets, (frames,), input_range=(0, 1))
        >>> plan.segments[0].path, plan.segments[0].keeps
        ('layers.0', 'BitSpikeCompressor')
    """
    check_batch(batch)
    options = _options(batch, device, search)
    declared = check_input_range(input_range)
    targets = find_targets(net, instance)
    loss = _sum_of_outputs if loss is None else loss
    check_loss(loss)
    check_optimizer(optimizer)
    check_time_repeats(time_repeats, net, batch)
    make = functools.partial(_segments, compress=compress_x, unchecked=unchecked)
    named = parts_of(net, targets) if "split" in options.kinds else {}
    inner = modules_at(net, [part for inside in named.values() for part in inside])
    known = {}
    if batch is not None:
        known = prove_loss(net, (*targets, *inner), loss, batch, declared)
    outside = [path for path in targets if path not in known]
    called = known | dict.fromkeys(outside)
    segments = make(targets, called)
    plan = Plan(
        level=options.level,
        segments=segments if options.level else (),
        candidates=tuple(path for path in called if path in targets),
        input_range=input_range,
        fingerprint=fingerprint(net),
        notes=(*options.notes, *_notes(outside, options.level, batch)),
    )
    if batch is None:
        return plan.first(options.most_of(len(segments)))
    training = Training(loss, optimizer or optax.sgd(1e-2), batch)
    if options.searches:
        parts = {
            path: make({part: inner[part] for part in inside}, known)
            for path, inside in named.items()
            if all(part in known for part in inside)
        }
        plan = _searched(net, plan, parts, options, training, device)
    else:
        plan = with_figures(net, plan, training, device)
    return timed(net, plan, training, time_repeats) if time_repeats > 0 else plan


def _options(
    batch: tuple[Any, ...] | None, device: str | DeviceSpec | None, search: Search
) -> Options:
    """What a call asks its search for."""
    spec = spec_of(device)
    memory = None if spec is None else spec.memory_bytes
    return resolve(has_batch=batch is not None, device_bytes=memory, **search)


def _segments(
    targets: dict[str, nnx.Module],
    known: dict[str, Any],
    compress: bool,
    unchecked: bool,
) -> tuple[PlannedSegment, ...]:
    """Each target as a segment, in the order in which they are known."""
    return tuple(
        plan_segment(path, targets[path], what, compress, unchecked)
        for path, what in known.items()
        if path in targets
    )


def _searched(
    net: nnx.Module,
    plan: Plan,
    parts: Parts,
    options: Options,
    training: Training,
    device: str | DeviceSpec | None,
) -> Plan:
    """The plan that the search finds, with its figures."""
    plain, spec = abstract(net), spec_of(device)
    chunks = tuple(k for k in options.kinds if k in ("batch", "time"))
    proposal = propose(
        plain,
        plan.segments,
        parts,
        training.loss,
        training.batch,
        held_bytes(plain, training),
        Costs(Roofline.of(spec), options.factor, chunks),
    )

    def made(choices: Choices) -> Plan:
        return dataclasses.replace(plan, segments=proposal.chosen(choices))

    def measure(choices: Choices) -> Callable[[], int]:
        planned = apply_plan(plain, made(choices), check_input=False)
        finish = prepare_step(planned, training, device)
        return lambda: finish().peak_bytes

    found = search(proposal.table, options, measure, _batch_size(training.batch))
    name = jax.default_backend() if spec is None else spec.name
    refused = tuple(f"{what}: {why}" for what, why in proposal.refused)
    better = dataclasses.replace(
        made(found.choices),
        slowdown=found.slowdown,
        trials=found.trials,
        front=found.front,
        notes=(*plan.notes, *found.notes, *refused),
    )
    peaks = found.plain_bytes, found.peak_bytes
    return with_peaks(net, better, training, name, *peaks)


def _batch_size(batch: tuple[Any, ...]) -> int | None:
    arrays = [a for a in jax.tree.leaves(batch) if getattr(a, "ndim", 0) > 1]
    return arrays[0].shape[1] if arrays else None


class _PlanSettings(Search, total=False):
    loss: Loss | None
    optimizer: optax.GradientTransformation | None
    input_range: tuple[int, int] | None
    unchecked: bool
    device: str | DeviceSpec | None
    time_repeats: int


class _Settings(_PlanSettings, total=False):
    compress_x: bool
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
        verbose: print what is done and what it is worth.
        return_summary: return `(model, MemOptSummary)`.
        **settings: `level` (0 unless `profile`, `prefer`, `budget` or `max_slowdown` is
            given) and the rest, `loss`, `optimizer`, `input_range`, `unchecked`,
            `device` and `time_repeats`, as for `make_plan`.

    Returns:
        The segmented model, or with `return_summary` a pair.

    Raises:
        ValueError, BudgetError, ImportError, MeasureError: as `make_plan`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import snnjax as snn
        >>> from flax import nnx
        >>> from snnjax import memopt
        >>> net = snn.layer.Sequential(snn.layer.ConvBlock(2, 4, rngs=nnx.Rngs(0)))
        >>> frames = jax.ShapeDtypeStruct((4, 8, 6, 6, 2), jnp.float32)
        >>> targets = (snn.layer.ConvBlock,)
        >>> planned = memopt.memory_optimization(net, targets, (frames,), level=1)
        >>> type(planned.layers[0]).__name__
        'GCContainer[ConvBlock]'

    Source: Algorithm 2 of Huang et al., ICLR 2026.
    """
    start = time.perf_counter()
    names = "level", "profile", "prefer", "budget", "max_slowdown"
    if not any(settings.get(name) is not None for name in names):
        settings["level"] = 0
    plan = make_plan(net, instance, dummy_input, compress_x=compress_x, **settings)
    seconds = time.perf_counter() - start
    search: Any = {k: v for k, v in settings.items() if k in Search.__annotations__}
    options = _options(dummy_input, settings.get("device"), search)
    expensive = search.get("allow_expensive_profiling")
    summary = summarize(plan, options, compress_x, expensive, seconds)
    if verbose:
        print(summary.log() + "\n" + str(summary))
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
