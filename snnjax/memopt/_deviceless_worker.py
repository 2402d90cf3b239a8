"""The child process that compiles one exported step for a GPU that is not there.

    JAX_PLATFORMS=cpu python _deviceless_worker.py FOLDER

reads `request.json` and `module.bin` in FOLDER and writes `result.json` there; XLA
leaves the module with its buffers there on the way. It is run by its path, and imports
nothing of snnjax, so that it starts in the time that jax takes. The parent is
`_deviceless.py`; both sides ask XLA for figures and for a dump in the same way.
"""

import dataclasses
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.experimental import topologies

# XLA has Triton make matrix products, in tiles that it tries out on the device. Where
# there is no device, its first choice may suit none; cuBLAS always does.
_NO_TILES = "Couldn't find output tile sizes"
_BY_CUBLAS = {"xla_gpu_enable_triton_gemm": False}
# From jax 0.12 on, XLA's autotuner prepares candidates for seconds that no device will
# run. Without it the same program comes, of the same bytes, in a third of the time.
_UNTUNED = {"xla_gpu_autotune_level": 0}

FIGURES = ("temp", "argument", "output", "alias")


def compile_lowered(
    lowered: jax.stages.Lowered,
    compiler_options: Mapping[str, Any],
    dump: Path | None,
) -> dict[str, int]:
    """Compiles, and asks XLA for the bytes of the program.

    Args:
        lowered: A lowered step.
        compiler_options: XLA's options.
        dump: A folder in which XLA leaves the compiled module with its buffer
            assignment, or `None`. The figures are the same with it and without.

    Returns:
        Bytes by the names of `FIGURES`; empty if the backend has no figures.
    """
    options = dict(compiler_options)
    if dump is not None:
        options |= {"xla_dump_to": str(dump), "xla_dump_hlo_as_proto": True}
    stats = lowered.compile(compiler_options=options or None).memory_analysis()
    if stats is None:
        return {}
    return {name: getattr(stats, f"{name}_size_in_bytes") for name in FIGURES}


def read_dump(dump: Path) -> bytes | None:
    """The compiled module that XLA left in `dump` (an HloProto), if it did."""
    found = sorted(dump.glob("*after_optimizations.hlo.pb"))
    return found[-1].read_bytes() if found else None


def _structs(pairs: Sequence[Any], **kwargs: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(s, jnp.dtype(d), **kwargs) for s, d in pairs]


def _rebuild(request: Mapping[str, Any], module: bytes) -> jax.export.Exported:
    # An Exported travels as its module and its types: its own serialization would need
    # flatbuffers. A stand-in of the same types gives all the other fields.
    inputs, outputs = _structs(request["inputs"]), _structs(request["outputs"])

    def stand_in(*_: jax.Array) -> list[jax.Array]:
        return [jnp.zeros(out.shape, out.dtype) for out in outputs]

    stand_in.__name__ = request["name"]
    exported = jax.export.export(jax.jit(stand_in), platforms=["cuda"])(*inputs)
    return dataclasses.replace(
        exported,
        mlir_module_serialized=module,
        module_kept_var_idx=tuple(range(len(inputs))),
    )


def _compile(folder: Path) -> dict[str, int]:
    request = json.loads((folder / "request.json").read_text())
    exported = _rebuild(request, (folder / "module.bin").read_bytes())
    topology = topologies.get_topology_desc(
        platform="cuda", topology="1x1x1", target_config=request["target"]
    )
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    step = jax.jit(exported.call, donate_argnums=request["donated"])
    lowered = step.lower(*_structs(request["inputs"], sharding=device))
    options = _UNTUNED | request["compiler_options"]
    try:
        return compile_lowered(lowered, options, folder)
    except jax.errors.JaxRuntimeError as error:
        if _NO_TILES not in str(error):
            raise
        return compile_lowered(lowered, options | _BY_CUBLAS, folder)


def main(folder: Path) -> None:
    """Answers the request in `folder`."""
    # Should the parent be gone by then, nobody else will stop this process.
    signal.alarm(json.loads((folder / "request.json").read_text())["alarm_seconds"])
    # The step's types are fixed by its module; jax must not narrow its 64-bit ones.
    jax.config.update("jax_enable_x64", True)
    (folder / "result.json").write_text(json.dumps(_compile(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
