"""Compiles a traced step for a described GPU that is not there, in a child process.

The step is lowered here, for CUDA, which needs no plugin and no GPU; the child
(`_deviceless_worker.py`) compiles it with jax's CUDA plugin and an environment of its
own, since JAX_PLATFORMS is process-wide and a compiler can hang or die. It is stopped
once the buffers are assigned: machine code is not wanted. Left out: steps over several
devices, and the workspace that cuDNN would ask for on a real card.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.extend.core

from ._buffers import buffer_figures
from ._cache import cached
from ._deviceless_worker import FIGURES, compile_lowered, read_dump
from ._devices import DeviceSpec, target_config

# -P: the folder of the worker must not shadow modules of the same name.
_WORKER = (sys.executable, "-P", str(Path(__file__).with_name("_deviceless_worker.py")))
_POLL = 0.05  # seconds between looks at what the child has left
_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
_INSTALL = 'pip install "snnjax[plan-cuda]"'
_NO_WHEELS = (
    "Compiling for a GPU that is not there needs jax's CUDA compiler, without a GPU or "
    f"a driver, and it is not installed here ({{missing}}). Do: {_INSTALL}"
)
# Lines of XLA's logging, which say nothing about a failure.
_NOISE = re.compile(r"[IW]\d{4} |WARNING: All log messages|\s*$")
_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")
# What XLA says where the nvcc wheel is missing, by version of jaxlib.
_NO_PTXAS = re.compile(r"No PTX compilation|libdevice not found|find (\S+ )*ptxas")
# jax.export lists the custom calls that stay stable over versions. Here the module is
# compiled at once by the version that wrote it, so every one will do (Triton's too).
_ANY_CUSTOM_CALL = jax.export.DisabledSafetyCheck.custom_call("ALL")


class MeasureError(RuntimeError):
    """A step could not be measured; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class CompiledMemory:
    """What XLA says about a compiled program: bytes, and the module if asked for.

    `hlo` is a serialized HloProto: the scheduled module and its buffer assignment.
    """

    temp_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    hlo: bytes | None = None


@contextlib.contextmanager
def described(spec: DeviceSpec) -> Iterator[None]:
    """Tells jax, while it traces, that the step is for the GPU that `spec` describes.

    From jax 0.12, Pallas asks for it where no GPU is there; the choice of kernels
    (`kernels/_choice.py`) reads the compute capability.
    """
    if not jax.sharding.get_abstract_mesh().empty:  # the user's own mesh holds
        yield
        return
    capability = ".".join(map(str, spec.compute_capability))
    kind = f"{spec.description} (compute capability {capability})"
    device = jax.sharding.AbstractDevice(kind, spec.sm_count, "gpu")
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield


def compile_here(
    traced: jax.stages.Traced, compiler_options: Mapping[str, Any], keep_hlo: bool
) -> Callable[[], CompiledMemory]:
    """Lowers for the backend that jax uses now, in this process.

    Args:
        traced: The traced step.
        compiler_options: XLA's options.
        keep_hlo: Whether to bring back the compiled module.

    Returns:
        What compiles it and gives XLA's figures; any thread may call it. It raises
        MeasureError where XLA refuses it, has no figures, or left no module.

    Raises:
        MeasureError: The step cannot be lowered.
    """
    step, backend = traced.fun_name, jax.default_backend()
    with _refused(step, backend):
        lowered = traced.lower()

    def finish() -> CompiledMemory:
        with tempfile.TemporaryDirectory(prefix="snnjax-") as name:
            dump = Path(name) if keep_hlo else None
            with _refused(step, backend):
                figures = _compiled_here(lowered, compiler_options, dump)
            return _memory(figures, _kept_hlo(dump), f"The {backend} backend")

    return finish


@contextlib.contextmanager
def _refused(step: str, backend: str) -> Iterator[None]:
    """Makes jax's own error a MeasureError."""
    try:
        yield
    except Exception as error:
        raise MeasureError(
            f"The step {step!r} cannot be compiled for the {backend} backend: "
            f"{type(error).__name__}: {error}\n"
            "See that its kernels, callbacks and `compiler_options` are of this "
            'backend, or measure for a GPU by name, `device="h200"`.'
        ) from error


def _compiled_here(
    lowered: jax.stages.Lowered, options: Mapping[str, Any], dump: Path | None
) -> dict[str, int]:
    def compiled() -> dict[str, int]:
        return compile_lowered(lowered, options, dump)

    if dump is not None:
        return compiled()
    device = jax.devices()[0]
    versions = device.client.platform_version  # of CUDA, too
    where = f"{device.platform} {device.device_kind} {len(jax.devices())} {versions}"
    key = lowered.as_text(), repr(sorted(options.items())), where
    return cached(key, compiled)


def compile_deviceless(
    traced: jax.stages.Traced,
    spec: DeviceSpec,
    compiler_options: Mapping[str, Any],
    keep_hlo: bool,
    time_limit: float,
    machine_code: bool = False,
) -> Callable[[], CompiledMemory]:
    """Lowers for the GPU that `spec` describes; a child process is to compile it.

    Args:
        traced: The traced step; its donated arguments stay donated.
        spec: The GPU.
        compiler_options: XLA's options.
        keep_hlo: Whether to bring back the compiled module.
        time_limit: Seconds after which the child is stopped.
        machine_code: Whether the compiler is to go on until the end, which changes no
            figure and shows whether each kernel can be made.

    Returns:
        What compiles it and gives XLA's figures; any thread may call it. It raises
        MeasureError where the child failed, hung, or wrote something else than a
        result, and ImportError where the CUDA wheels lack a part.

    Raises:
        ImportError: The CUDA wheels are not installed.
        MeasureError: The step cannot be exported.
    """
    _check_wheels()
    exported = _export(traced)
    request = _request(traced, exported) | {
        "target": target_config(spec),
        "compiler_options": dict(compiler_options),
    }
    module, who = exported.mlir_module_serialized, f"The compiler for {spec.name}"

    def compiled(folder: Path) -> tuple[dict[str, int], bytes | None]:
        alarm = {"alarm_seconds": math.ceil(time_limit) + 10}
        (folder / "request.json").write_text(json.dumps(request | alarm))
        (folder / "module.bin").write_bytes(module)
        look = (lambda: None) if machine_code else (lambda: _left(folder))
        left = _run_child(folder, spec.name, time_limit, look)
        return left or (_read_result(folder, spec.name), None)

    def finish() -> CompiledMemory:
        with tempfile.TemporaryDirectory(prefix="snnjax-") as name:
            folder = Path(name)
            if keep_hlo or machine_code:
                figures, hlo = compiled(folder)
                kept = (hlo or _kept_hlo(folder)) if keep_hlo else None
                return _memory(figures, kept, who)
            key = json.dumps(request, sort_keys=True), module, _compilers()
            return _memory(cached(key, lambda: compiled(folder)[0]), None, who)

    return finish


@functools.cache
def _compilers() -> str:
    """The CUDA wheels that compile, with their versions."""
    found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    names = sorted(name for name in found if name and name.startswith("jax-cuda"))
    return " ".join(f"{name}=={found[name]}" for name in names)


def _check_wheels() -> None:
    if not any(map(_importable, _PLUGINS)):
        raise ImportError(_NO_WHEELS.format(missing="no jax-cuda12-plugin"))


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def _export(traced: jax.stages.Traced) -> jax.export.Exported:
    run = jax.extend.core.jaxpr_as_fun(traced.jaxpr)

    def step(*leaves: jax.Array) -> list[jax.Array]:
        return run(*leaves)

    step.__name__ = traced.fun_name
    leaves = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in traced.jaxpr.in_avals]
    export = jax.export.export(
        jax.jit(step), platforms=["cuda"], disabled_checks=[_ANY_CUSTOM_CALL]
    )
    try:
        exported = export(*leaves)
    except Exception as error:
        raise MeasureError(
            f"The step {traced.fun_name!r} cannot be lowered for a CUDA GPU: {error}\n"
            "Take out callbacks (jax.debug.print too; the check of an `input_range`, "
            "by `apply_plan(..., check_input=False)`; a SparseSpikeCompressor) and "
            "operations that exist on the CPU only, or measure on the present backend "
            "with `device=None`."
        ) from error
    if exported.nr_devices != 1:
        raise MeasureError(
            f"The step {traced.fun_name!r} is laid out over {exported.nr_devices} "
            "devices; a `device` by name is one GPU. Measure the step of one of them, "
            "with its share of the batch, or use `device=None`."
        )
    return exported


def _request(traced: jax.stages.Traced, exported: jax.export.Exported) -> dict:
    # Arguments that the step does not use are left out, as jax.jit leaves them out.
    kept = exported.module_kept_var_idx
    donated = [info.donated for info in jax.tree.leaves(traced.args_info)]
    return {
        "name": traced.fun_name,
        "inputs": [_type(exported.in_avals[i]) for i in kept],
        "outputs": [_type(aval) for aval in exported.out_avals],
        "donated": [place for place, i in enumerate(kept) if donated[i]],
    }


def _type(aval: Any) -> tuple[tuple[int, ...], str]:
    # A typed key is an array of integers to the compiler.
    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        struct = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        aval = jax.eval_shape(jax.random.key_data, struct)
    return aval.shape, str(aval.dtype)


def _child_environment() -> dict[str, str]:
    # JAX_PLATFORMS=cpu keeps the plugin from looking for a driver. A cached executable
    # would leave no module behind.
    cpu = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    return os.environ | cpu


Left = tuple[dict[str, int], bytes]  # figures, and the module that they are of


def _left(folder: Path) -> Left | None:
    """What a child has left behind so far, if that is whole."""
    hlo = read_dump(folder)
    figures = None if hlo is None else buffer_figures(hlo)
    return None if hlo is None or figures is None else (figures, hlo)


def _run_child(
    folder: Path, name: str, time_limit: float, look: Callable[[], Left | None]
) -> Left | None:
    """Until the child ends, or a look at what it has left finds enough."""
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [*_WORKER, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_child_environment(),
            start_new_session=True,
        )
        try:
            code, left = _wait(child, time_limit, look)
        finally:
            _end(child)
    if code is None:
        raise _failure(folder, name, f"did not finish within `time_limit`={time_limit}")
    left = left or look()  # it may have ended between two looks
    if code and left is None:
        raise _failure(folder, name, _ending(code))
    return left


def _wait(
    child: subprocess.Popen, time_limit: float, look: Callable[[], Left | None]
) -> tuple[int | None, Left | None]:
    """The exit status (None: out of time), and what was found before the end."""
    end = time.monotonic() + time_limit
    while time.monotonic() < end:
        try:
            return child.wait(_POLL), None
        except subprocess.TimeoutExpired:
            if left := look():
                return 0, left
    return None, None


def _end(child: subprocess.Popen) -> None:
    # The whole group: ptxas, which the compiler starts, must not outlive it.
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # all of it has ended already
        pass
    child.wait()


def _ending(code: int) -> str:
    if code > 0:
        return f"ended with exit status {code}"
    if -code == signal.SIGKILL:
        return "was killed (SIGKILL; the machine may be out of memory)"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"


def _read_result(folder: Path, name: str) -> dict[str, int]:
    try:
        figures = json.loads((folder / "result.json").read_text())
        return {key: int(figures[key]) for key in FIGURES} if figures else {}
    except (OSError, ValueError, KeyError, TypeError):
        failure = _failure(folder, name, "ended without a result that can be read")
        raise failure from None


def _failure(folder: Path, name: str, what: str) -> Exception:
    log = (folder / "log").read_text(errors="replace")
    if _NO_PTXAS.search(log):
        return ImportError(_NO_WHEELS.format(missing="no nvidia-cuda-nvcc-cu12"))
    lines = [line for line in log.splitlines() if not _NOISE.match(line)]
    last_words = "\n".join(f"    {line[:300]}" for line in _telling(lines))
    return MeasureError(
        f"Compiling for `device`={name!r} failed: the compiler process {what}. Its "
        f"last words:\n{last_words or '    (none)'}\n"
        "Raise `time_limit` if it was slow, free memory if it was killed, see that "
        f"jax, jaxlib and the CUDA wheels have one version ({_INSTALL}), or measure on "
        "the present backend with `device=None`."
    )


def _telling(lines: list[str]) -> list[str]:
    """The last error and what follows, or the end."""
    errors = [i for i, line in enumerate(lines) if _ERROR.match(line)]
    return lines[errors[-1] :][:12] if errors else lines[-12:]


def _kept_hlo(dump: Path | None) -> bytes | None:
    if dump is None:
        return None
    hlo = read_dump(dump)
    if hlo is None:
        raise MeasureError(
            "`timeline`: XLA left no compiled module to read. Turn off jax's "
            "compilation cache (jax_enable_compilation_cache), or pass timeline=False."
        )
    return hlo


def _memory(figures: Mapping[str, int], hlo: bytes | None, who: str) -> CompiledMemory:
    if not figures:
        raise MeasureError(
            f"{who} reports no memory figures (memory_analysis() is None). Measure for "
            'a GPU by name, for example `device="h200"`, or on the CPU.'
        )
    return CompiledMemory(**{f"{k}_bytes": figures[k] for k in FIGURES}, hlo=hlo)
