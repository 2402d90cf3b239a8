"""Measures a step: the bytes of the compiled program, and its time.

Nothing of the model's size is allocated and no step is run, but in `time_alternating`.

    peak = temp + argument + output - alias

XLA's own `peak_memory_in_bytes` is never used: on the CPU it leaves the temporaries
out. Arrays that a step closes over are constants of the program and in no figure.
"""

import contextlib
import dataclasses
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core
from flax import nnx

from ._deviceless import CompiledMemory, compile_deviceless, compile_here, described
from ._deviceless import MeasureError as MeasureError
from ._devices import DeviceSpec, device_spec
from ._timeline import Timeline, read_timeline

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """Bytes of one compiled step, as XLA's buffer assignment has them.

    On a GPU that is not there, the workspace that cuDNN would ask for is missing.

    Args:
        temp_bytes: The block of temporaries.
        argument_bytes: Arguments: parameters, state, batch.
        output_bytes: Outputs.
        alias_bytes: Outputs that take the place of donated arguments.
        device: The backend, such as "cpu", or the name of the described GPU.
        timeline: Live bytes over the program, if it was asked for.
    """

    temp_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    device: str
    timeline: Timeline | None = dataclasses.field(default=None, repr=False)

    @property
    def peak_bytes(self) -> int:
        """temp + argument + output - alias."""
        held = self.argument_bytes + self.output_bytes - self.alias_bytes
        return self.temp_bytes + held

    def __str__(self) -> str:
        text = (
            f"peak {_mib(self.peak_bytes)} on {self.device}: "
            f"temp {_mib(self.temp_bytes)} + arguments {_mib(self.argument_bytes)} "
            f"+ outputs {_mib(self.output_bytes)} - aliased {_mib(self.alias_bytes)}"
        )
        return text if self.timeline is None else f"{text}\n{self.timeline}"


def measure(
    fn: Callable[..., Any],
    *args: Any,
    device: str | DeviceSpec | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    time_limit: float = 300.0,
    timeline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> MemoryReport:
    """The memory of `fn(*args)` as one compiled program, without running it.

    peak = temp + argument + output - alias

    Args:
        fn: The step: a plain function, or one wrapped by `jax.jit` or `nnx.jit`, whose
            donation is kept.
        *args: Its arguments: arrays, `jax.ShapeDtypeStruct`s, nnx modules (those of
            `nnx.eval_shape` too), optimizers, pytrees of them. They are not changed.
        device: `None` for jax's present backend, or a GPU by name ("rtx4090") or
            `DeviceSpec`, which need not be there: a child process compiles for it, as
            far as XLA assigns buffers. No machine code is made, so a kernel that only
            its own compiler would refuse is not found out.
        donate_argnums: The arguments that a plain `fn` gives up.
        time_limit: Seconds that the child process may take.
        timeline: Whether to bring back the curve of live bytes.
        compiler_options: XLA's options, by name.

    Returns:
        A `MemoryReport`.

    Raises:
        TypeError: `fn` cannot be called.
        ValueError: An argument is not what it must be; no such device.
        ImportError: The wheels for a `device` by name are not installed.
        MeasureError: The step cannot be traced or compiled, or there are no figures.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from snnjax import memopt
        >>> x = jax.ShapeDtypeStruct((256,), jnp.float32)
        >>> report = memopt.measure(lambda x: 2 * x, x)
        >>> report.argument_bytes, report.output_bytes
        (1024, 1024)
    """
    return prepare(
        fn,
        *args,
        device=device,
        donate_argnums=donate_argnums,
        time_limit=time_limit,
        timeline=timeline,
        compiler_options=compiler_options,
    )()


def prepare(
    fn: Callable[..., Any],
    *args: Any,
    device: str | DeviceSpec | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    time_limit: float = 300.0,
    timeline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> Callable[[], MemoryReport]:
    """The first half of `measure`, which traces; what it returns compiles.

    jax's settings (`jax.enable_x64`, a mesh) are those of the thread that traces; the
    second half may run in any.
    """
    _check(fn, donate_argnums, time_limit)
    spec = spec_of(device)
    with contextlib.nullcontext() if spec is None else described(spec):
        traced = _trace(fn, args, donate_argnums)
    _warn_of_constants(traced)
    options = compiler_options or {}
    if spec is None:
        finish = compile_here(traced, options, timeline)
    else:
        finish = compile_deviceless(traced, spec, options, timeline, time_limit)
    name = jax.default_backend() if spec is None else spec.name
    return lambda: _report(finish(), name, traced)


def _report(
    memory: CompiledMemory, device: str, traced: jax.stages.Traced
) -> MemoryReport:
    report = MemoryReport(
        temp_bytes=memory.temp_bytes,
        argument_bytes=memory.argument_bytes,
        output_bytes=memory.output_bytes,
        alias_bytes=memory.alias_bytes,
        device=device,
        timeline=None if memory.hlo is None else read_timeline(memory.hlo),
    )
    _check_figures(report, traced)
    return report


def time_alternating(
    thunks: Mapping[str, Callable[[], Any]], repeats: int = 5
) -> dict[str, float]:
    """Median seconds of several calls, run by turns in this process.

    By turns, so that a busy machine slows all of them alike. One call of each comes
    first, for compilation. The clock stops when the results are there.

    Args:
        thunks: Functions without arguments, by name.
        repeats: Timed calls of each.

    Returns:
        Median seconds, by name.

    Raises:
        ValueError: `repeats` is less than one.
    """
    if repeats < 1:
        raise ValueError(f"`repeats` is {repeats}; it must be 1 or more.")
    for thunk in thunks.values():
        _seconds(thunk)
    rounds = [
        {k: _seconds(thunk) for k, thunk in thunks.items()} for _ in range(repeats)
    ]
    return {name: statistics.median(r[name] for r in rounds) for name in thunks}


def _seconds(thunk: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(thunk())
    return time.perf_counter() - start


def _mib(size: int) -> str:
    return f"{size / _MIB:.{1 if size >= 10 * _MIB else 3}f} MiB"


def check_callable(fn: Any) -> None:
    if not callable(fn):
        raise TypeError(
            f"`fn` is {fn!r}, which cannot be called; pass the step itself, then its "
            "arguments: measure(step, model, batch)."
        )


def _check(fn: Any, donate_argnums: Any, time_limit: float) -> None:
    check_callable(fn)
    if _is_jitted(fn) and donate_argnums is not None:
        raise ValueError(
            f"`donate_argnums` is {donate_argnums}, but `fn` is jitted already and its "
            "own donation holds. Give it to jax.jit or nnx.jit, or pass the plain "
            "function."
        )
    if not 0 < time_limit < math.inf:
        raise ValueError(
            f"`time_limit` is {time_limit}; it must be a number of seconds above 0."
        )


def _is_jitted(fn: Any) -> bool:
    # What jax.jit and nnx.jit return; both have these two stages, and no common class.
    return all(callable(getattr(fn, stage, None)) for stage in ("trace", "lower"))


def spec_of(device: str | DeviceSpec | None) -> DeviceSpec | None:
    """The GPU that a `device` argument describes; None is the present backend.

    Raises:
        ValueError: there is no GPU of that name.
    """
    # The name of the present backend is what a report says, so it means that backend.
    if device is None or isinstance(device, DeviceSpec):
        return device
    return None if device == jax.default_backend() else device_spec(device)


def _trace(fn: Any, args: tuple, donate_argnums: Any) -> jax.stages.Traced:
    if not _is_jitted(fn):
        # nnx.jit alone carries the changes of modules out of the step.
        jit = nnx.jit if holds_modules(args) else jax.jit
        fn = jit(_plain(fn), donate_argnums=donate_argnums)
    traced = traced_or_error(fn, lambda: fn.trace(*args))
    return traced if isinstance(traced, jax.stages.Traced) else traced.traced


def _plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any) -> Any:
        return fn(*args)

    step.__name__ = _name(fn)
    return step


def holds_modules(tree: Any) -> bool:
    def is_object(node: Any) -> bool:
        return isinstance(node, nnx.Pytree | nnx.Variable)

    return any(map(is_object, jax.tree.leaves(tree, is_leaf=is_object)))


def traced_or_error(fn: Any, trace: Callable[[], Any]) -> Any:
    try:
        return trace()
    except Exception as error:
        raise MeasureError(
            f"`fn` ({_name(fn)}) cannot be traced with these arguments: "
            f"{type(error).__name__}: {error}\n"
            "It must run under jax.jit as it is called here. A module must be an "
            "argument, measure(lambda net, x: net(x), net, x); what is no array "
            "belongs in functools.partial, or in a jax.jit with static_argnums."
        ) from error


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def struct_bytes(struct: Any) -> int:
    if jax.numpy.issubdtype(struct.dtype, jax.dtypes.prng_key):
        key = jax.ShapeDtypeStruct(struct.shape, struct.dtype)
        return struct_bytes(jax.eval_shape(jax.random.key_data, key))
    if struct.dtype == jax.dtypes.float0:
        return 0
    return math.prod(struct.shape) * struct.dtype.itemsize


def _warn_of_constants(traced: jax.stages.Traced) -> None:
    size = sum(struct_bytes(const) for const in traced.jaxpr.consts)
    if size >= _MIB:
        warnings.warn(
            f"the step closes over {_mib(size)} of arrays, which are constants of the "
            "program and in no figure; pass them to `measure` as arguments",
            stacklevel=3,
        )


def _check_figures(report: MemoryReport, traced: jax.stages.Traced) -> None:
    outputs = sum(struct_bytes(aval) for aval in jax.tree.leaves(traced.out_info))
    if outputs and not report.output_bytes:
        raise MeasureError(
            f"The {report.device} backend reports 0 bytes for a step that returns "
            f"{outputs}: it has no memory figures. Measure for a GPU by name, for "
            'example `device="h200"`, or on the CPU.'
        )
