"""One computation, two programs: a kernel where it can run, XLA's own elsewhere.

Which it is to be is known when a program is lowered, for this platform or another one,
for one device or many; not when it is traced.
"""

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from .._types import Array

_TRITON = (8, 0)  # the smallest compute capability that it compiles for
_IMPLEMENTATIONS = (None, "xla", "pallas")
Flat = Callable[..., Sequence[Array]]


def check_implementation(implementation: str | None) -> None:
    """Raises a ValueError unless it is None, "xla" or "pallas"."""
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(
            f"`implementation` is {implementation!r}; allowed are None, which chooses, "
            '"xla" and "pallas".'
        )


def choose(
    implementation: str | None,
    xla: Callable[..., Any],
    kernel: Callable[..., Any],
    *args: Any,
    refused: str | None = None,
) -> Any:
    """`xla(*args)` or `kernel(*args)`, which return the same.

    Args:
        implementation: "xla" or "pallas" force one; None takes the kernel on a CUDA
            device, if the program is not one that XLA partitions over several.
        xla, kernel: functions of pytrees of arrays, not differentiated.
        refused: why the kernel cannot serve these arguments, if so.

    Raises:
        NotImplementedError: the kernel is forced and cannot serve: now, or when the
            program is lowered for a platform or a partition where it cannot run.
    """
    if implementation == "pallas" and refused:
        raise NotImplementedError(f'`implementation` is "pallas", but {refused}.')
    if implementation == "xla" or refused:
        return xla(*args)
    flat, structure = jax.tree.flatten(args)

    def of_leaves(f: Callable[..., Any], *leaves: Array) -> Any:
        return f(*jax.tree.unflatten(structure, leaves))

    trace = jax.make_jaxpr(functools.partial(of_leaves, xla), return_shape=True)
    closed, shapes = trace(*flat)
    leaves = _choice.bind(
        *flat,
        jaxpr=closed,
        kernel=lambda *leaves: jax.tree.leaves(of_leaves(kernel, *leaves)),
        forced=implementation == "pallas",
    )
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


_choice = Primitive("snnjax_choice")
_choice.multiple_results = True


@_choice.def_abstract_eval
def _abstract(*avals: Any, jaxpr: ClosedJaxpr, **params: Any) -> Sequence[Any]:
    del avals, params
    return jaxpr.out_avals


@_choice.def_impl
def _eager(*args: Array, jaxpr: ClosedJaxpr, forced: bool, **params: Any) -> Any:
    """Only under `jax.disable_jit`: whoever chooses does so inside a `jax.jit`."""
    del params
    if forced:
        raise NotImplementedError(_unable("jax.disable_jit runs one operation a time"))
    return jaxpr_as_fun(jaxpr)(*args)


def _batched(
    args: Sequence[Array], dims: Any, *, jaxpr: Any, kernel: Flat, forced: bool
) -> Any:
    over = functools.partial(jax.vmap, in_axes=tuple(dims))
    xla = jax.make_jaxpr(over(jaxpr_as_fun(jaxpr)))(*args)
    leaves = _choice.bind(*args, jaxpr=xla, kernel=over(kernel), forced=forced)
    return leaves, (0,) * len(leaves)


def _jvp(primals: Any, tangents: Any, *, jaxpr: Any, forced: bool, **params: Any):
    """Of XLA's program: a derivative of what is one already is nothing for a kernel."""
    del params
    if forced:
        raise NotImplementedError(_unable("it is differentiated a second time"))
    tangents = tuple(ad.instantiate_zeros(t) for t in tangents)
    return jax.jvp(lambda *a: list(jaxpr_as_fun(jaxpr)(*a)), tuple(primals), tangents)


def _lower(reason: str, ctx: Any, *args: Any, jaxpr: Any, forced: bool, **params: Any):
    del params
    if forced:
        raise NotImplementedError(_unable(reason))
    return mlir.lower_fun(jaxpr_as_fun(jaxpr), multiple_results=True)(ctx, *args)


def _lower_on_cuda(ctx: Any, *args: Any, kernel: Flat, **params: Any):
    reason = _hindrance(ctx)
    if reason is not None:
        return _lower(reason, ctx, *args, **params)
    with warnings.catch_warnings():
        # From jax 0.11 on; what will replace Pallas' Triton has no name yet.
        warnings.filterwarnings("ignore", message=".*Pallas Triton.*")
        return mlir.lower_fun(kernel, multiple_results=True)(ctx, *args)


def _hindrance(ctx: Any) -> str | None:
    """Why no kernel can be part of this program for a CUDA device, or None."""
    if not is_local(ctx.module_context.axis_context):
        return "XLA partitions this program over several devices; use jax.shard_map"
    capability = _compute_capability()
    if capability is None and jax.__version_info__ >= (0, 11):
        return (
            "no CUDA device is here or described, which Pallas asks for from jax 0.11 "
            "on"
        )
    if capability and tuple(map(int, capability.split("."))) < _TRITON:
        here = f"the device has compute capability {capability}"
        return f"{here}; Triton asks for {'.'.join(map(str, _TRITON))}"
    return None


def is_local(context: Any) -> bool:
    """Whether the program is one device's own: of one, or inside a `shard_map`."""
    mesh = getattr(context, "mesh", None)
    if mesh is None:
        return getattr(context, "num_devices", 1) in (1, None)
    manual = set(context.manual_axes) | set(getattr(mesh, "manual_axes", ()))
    return mesh.size == 1 or manual == set(mesh.axis_names)


def _compute_capability() -> str | None:
    """Such as "9.0", of the device that is described, or here; None if neither is."""
    described = jax.sharding.get_abstract_mesh().abstract_device
    if described is not None:
        found = re.search(r"compute capability ([0-9.]+)", described.device_kind)
        return found and found[1]
    here = [d for d in jax.devices() if d.platform == "gpu"]
    return str(here[0].compute_capability) if here else None


def _unable(reason: str) -> str:
    return (
        f'`implementation` is "pallas", but {reason}. Allowed there are None and "xla".'
    )


ad.primitive_jvps[_choice] = _jvp
batching.primitive_batchers[_choice] = _batched
mlir.register_lowering(
    _choice, functools.partial(_lower, "this program is not for a CUDA device")
)
mlir.register_lowering(_choice, _lower_on_cuda, platform="cuda")
