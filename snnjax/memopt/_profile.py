"""What a plan is worth: a whole donated training step, compiled, before and after.

Everything is abstract: no array of the model's size is made, on any device.
"""

import dataclasses
from importlib.metadata import version
from typing import Any

import jax
import optax
from flax import nnx

from .._step import Loss, make_step
from ._apply import apply_plan
from ._devices import DeviceSpec
from ._measure import MemoryReport, measure, residual_bytes
from ._model import abstract
from ._plan import Plan

_PACKAGES = ("jax", "jaxlib", "flax")
# Machine code that nobody runs: the buffers are assigned before it is made, and are the
# same to the byte.
_QUICK = {"xla_backend_optimization_level": 0}


def with_figures(
    net: nnx.Module,
    plan: Plan,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    batch: tuple[Any, ...],
    device: str | DeviceSpec | None,
) -> Plan:
    """The plan, with the bytes of the step that it was made for.

    Without the check of a declared `input_range`, which cannot be compiled for a GPU
    that is not there and takes no memory to speak of.

    Args:
        net: the plain model.
        plan: for `net`.
        loss: `loss(model, *batch)`.
        optimizer: of the training step.
        batch: arrays or `jax.ShapeDtypeStruct`s.
        device: as for `measure`.
    """
    plain = abstract(net)
    planned = apply_plan(plain, plan, check_input=False)
    before = measure_step(plain, loss, optimizer, batch, device)
    after = before  # the same program, not to be compiled twice
    if plan.segments:
        after = measure_step(planned, loss, optimizer, batch, device)
    return dataclasses.replace(
        plan,
        device=before.device,
        plain_bytes=before.peak_bytes,
        planned_bytes=after.peak_bytes,
        plain_residual_bytes=residual_bytes(loss, plain, *batch),
        planned_residual_bytes=residual_bytes(loss, planned, *batch),
        versions=tuple((name, version(name)) for name in _PACKAGES),
    )


def measure_step(
    net: nnx.Module,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    batch: tuple[Any, ...],
    device: str | DeviceSpec | None,
) -> MemoryReport:
    """`measure` of the donated step `make_step(loss)` on an abstract model."""
    state = nnx.eval_shape(lambda m: nnx.Optimizer(m, optimizer, wrt=nnx.Param), net)
    step = nnx.jit(make_step(loss), donate_argnums=(0, 1))
    quick = _QUICK if device is None and jax.default_backend() == "cpu" else None
    return measure(step, net, state, *batch, device=device, compiler_options=quick)
