"""What a plan is worth: a whole donated training step, compiled, before and after.

Everything is abstract: no array of the model's size is made, on any device.
"""

import dataclasses
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import jax
import optax
from flax import nnx

from .._step import Loss, make_step
from ._apply import apply_plan
from ._devices import DeviceSpec
from ._measure import MemoryReport, prepare, time_alternating
from ._model import abstract, shape_of
from ._plan import Plan
from ._residuals import residual_bytes
from ._work import size

_PACKAGES = ("jax", "jaxlib", "flax")
# Machine code that nobody runs: the buffers are assigned before it is made, and are the
# same to the byte.
_QUICK = {"xla_backend_optimization_level": 0}
_QUICK_CUDA = _QUICK | {"xla_gpu_disable_gpuasm_optimizations": True}


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """What a plan is made for: the donated step of `make_step`.

    Args:
        loss: `loss(model, *batch)`, a scalar.
        optimizer: from optax.
        batch: arrays or `jax.ShapeDtypeStruct`s.
    """

    loss: Loss
    optimizer: optax.GradientTransformation
    batch: tuple[Any, ...]


def with_figures(
    net: nnx.Module,
    plan: Plan,
    training: Training,
    device: str | DeviceSpec | None,
) -> Plan:
    """The plan, with the bytes of the step that it was made for.

    Without the check of a declared `input_range`, which cannot be compiled for a GPU
    that is not there and takes no memory to speak of.

    Args:
        net: the plain model.
        plan: for `net`.
        training: the step.
        device: as for `measure`.
    """
    plain = abstract(net)
    before = measure_step(plain, training, device)
    after = before  # the same program, not to be compiled twice
    if plan.segments:
        planned = apply_plan(plain, plan, check_input=False)
        after = measure_step(planned, training, device)
    return with_peaks(
        net, plan, training, before.device, before.peak_bytes, after.peak_bytes
    )


def with_peaks(
    net: nnx.Module,
    plan: Plan,
    training: Training,
    device: str,
    plain_bytes: int | None,
    planned_bytes: int | None,
) -> Plan:
    """The plan, with known peaks and with what is kept from forward to backward."""
    loss, batch = training.loss, training.batch
    plain = abstract(net)
    planned = apply_plan(plain, plan, check_input=False)
    return dataclasses.replace(
        plan,
        device=device,
        plain_bytes=plain_bytes,
        planned_bytes=planned_bytes,
        plain_residual_bytes=residual_bytes(loss, plain, *batch),
        planned_residual_bytes=residual_bytes(loss, planned, *batch),
        versions=tuple((name, version(name)) for name in _PACKAGES),
    )


def timed(
    net: nnx.Module,
    plan: Plan,
    training: Training,
    repeats: int,
) -> Plan:
    """The plan with a measured slowdown: steps of both models by turns, here.

    Args:
        net: the plain model, with values; its parameters are copied.
        plan: for `net`.
        training: the step; its batch has values.
        repeats: timed steps of each.
    """

    def stepping(model: nnx.Module) -> Callable[[], Any]:
        state = nnx.Optimizer(model, training.optimizer, wrt=nnx.Param)
        step = nnx.jit(make_step(training.loss), donate_argnums=(0, 1))
        return lambda: step(model, state, *training.batch)

    def copied() -> nnx.Module:
        return nnx.merge(*jax.tree.map(jax.numpy.copy, nnx.split(net)))

    models = {"plain": copied(), "planned": apply_plan(copied(), plan)}
    thunks = {name: stepping(model) for name, model in models.items()}
    seconds = time_alternating(thunks, repeats)
    slowdown = seconds["planned"] / seconds["plain"]
    return dataclasses.replace(plan, slowdown=slowdown, timed=True)


def held_bytes(net: nnx.Module, training: Training) -> int:
    """Bytes of parameters, states, optimizer and batch."""
    plain = abstract(net)
    state = _abstract_optimizer(plain, training.optimizer)
    held = nnx.state(plain), nnx.state(state, nnx.OptState), training.batch
    return sum(size(shape_of(a)) for a in jax.tree.leaves(held))


def measure_step(
    net: nnx.Module,
    training: Training,
    device: str | DeviceSpec | None,
) -> MemoryReport:
    """`measure` of the donated step on an abstract model."""
    return prepare_step(net, training, device)()


def prepare_step(
    net: nnx.Module,
    training: Training,
    device: str | DeviceSpec | None,
) -> Callable[[], MemoryReport]:
    """As `measure_step`, traced; what is returned compiles it, in any thread."""
    state = _abstract_optimizer(net, training.optimizer)
    step = nnx.jit(make_step(training.loss), donate_argnums=(0, 1))
    arguments, options = (net, state, *training.batch), _quick(device)
    return prepare(step, *arguments, device=device, compiler_options=options)


def _abstract_optimizer(
    net: nnx.Module, optimizer: optax.GradientTransformation
) -> nnx.Optimizer:
    return nnx.eval_shape(lambda m: nnx.Optimizer(m, optimizer, wrt=nnx.Param), net)


def _quick(device: str | DeviceSpec | None) -> Mapping[str, Any] | None:
    if device is not None:
        return _QUICK_CUDA
    return _QUICK if jax.default_backend() == "cpu" else None
