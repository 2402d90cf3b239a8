"""Measuring: exact figures, donation, abstract arguments, and a child that fails."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.experimental import pallas, topologies
from jax.experimental.pallas import triton
from measured import IMAGE_BYTES, Net, X, leaves, struct

from snnjax.memopt import _deviceless, _deviceless_worker, _measure
from snnjax.memopt._buffers import buffer_figures
from snnjax.memopt._deviceless_worker import FIGURES
from snnjax.memopt._devices import device_spec, target_config
from snnjax.memopt._measure import (
    MeasureError,
    MemoryReport,
    measure,
    time_alternating,
)

MIB = 2**20
# Half the compile time, and the same temporaries.
FAST = {"xla_backend_optimization_level": 0}


@pytest.fixture(params=[None, "h200"])
def device(request) -> str | None:
    if request.param is not None:
        request.getfixturevalue("cuda_wheels")
    return request.param


def make() -> tuple[Net, nnx.Optimizer]:
    net = Net(nnx.Rngs(0))
    return net, nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)


def train(net: Net, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(lambda net: jnp.square(net(x)).mean())(net)
    optimizer.update(net, grads)
    return loss


def nbytes(tree) -> int:
    return sum(x.nbytes for x in leaves(tree))


# --- the figures ----------------------------------------------------------------------


def test_peak_is_the_sum():
    report = MemoryReport(100, 30, 20, 10, "cpu")
    assert report.peak_bytes == 100 + 30 + 20 - 10


def test_text_is_in_mib():
    report = MemoryReport(100 * MIB, 30 * MIB, MIB // 4, 0, "t4")
    assert str(report) == (
        "peak 130.2 MiB on t4: temp 100.0 MiB + arguments 30.0 MiB "
        "+ outputs 0.250 MiB - aliased 0.000 MiB"
    )


def test_arguments_and_outputs_exactly(device):
    # The second argument is not used, so the program does not have it.
    shapes = struct(64, 32), struct(1000), struct(32, 8)
    report = measure(lambda a, b, c: a @ c, *shapes, device=device)
    assert report.argument_bytes == 4 * (64 * 32 + 32 * 8)
    assert report.output_bytes == 4 * 64 * 8
    assert report.alias_bytes == 0
    assert report.device == (device or jax.default_backend())
    assert report.timeline is None


def test_nothing_is_allocated():
    report = measure(lambda x: x * 2.0, struct(2**38), donate_argnums=0)
    assert report.argument_bytes == report.alias_bytes == 2**40
    assert report.peak_bytes >= 2**40


def test_name_of_the_present_backend_means_it():
    here = jax.default_backend()
    assert measure(jnp.sin, X, device=here) == measure(jnp.sin, X)


def test_jitted_functions_keep_their_static_arguments():
    step = jax.jit(lambda x, n: (x * 2.0, x[:n]), static_argnums=1, donate_argnums=0)
    report = measure(step, struct(8), 3)
    assert report.alias_bytes == 4 * 8
    assert report.output_bytes == 4 * (8 + 3) + 16  # and the tuple of two


def test_compiler_options_are_used():
    with pytest.raises(Exception, match="xla_no_such_option"):
        measure(jnp.sin, X, compiler_options={"xla_no_such_option": True})


# --- modules and donation -------------------------------------------------------------

WAYS = {
    "nnx.jit": lambda donate: (nnx.jit(train, donate_argnums=donate), {}),
    "plain": lambda donate: (train, {"donate_argnums": donate}),
}


@pytest.mark.parametrize("way", WAYS)
def test_donated_training_step(way, device):
    net, optimizer = nnx.eval_shape(make)
    state = nbytes(make())
    fn, settings = WAYS[way]((0, 1))
    if device is None:
        settings["compiler_options"] = FAST
    report = measure(fn, net, optimizer, X, device=device, **settings)
    assert report.argument_bytes == state + IMAGE_BYTES
    assert report.output_bytes == pytest.approx(state + 4, abs=512)  # a tuple of them
    assert report.alias_bytes == state
    assert report.peak_bytes < report.temp_bytes + state + IMAGE_BYTES + 1024


def test_not_donated():
    step = nnx.jit(train)
    report = measure(step, *nnx.eval_shape(make), X, compiler_options=FAST)
    assert report.alias_bytes == 0


def test_concrete_modules_are_measured_alike_and_left_alone():
    net, optimizer = make()
    before = leaves((net, optimizer))
    step = nnx.jit(train, donate_argnums=(0, 1))
    report = measure(step, net, optimizer, jnp.ones(X.shape), compiler_options=FAST)
    abstract = nnx.eval_shape(make)
    assert report == measure(step, *abstract, X, compiler_options=FAST)
    for a, b in zip(before, leaves((net, optimizer)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert net(jnp.ones(X.shape)).shape == (4, 16, 16, 16)  # usable, not deleted


def test_random_keys_are_donated():
    key = jax.eval_shape(lambda: jax.random.key(0))

    def step(key):
        key, own = jax.random.split(key)
        return key, jax.random.normal(own, (256,))

    report = measure(step, key, donate_argnums=0)
    assert (report.argument_bytes, report.alias_bytes) == (8, 8)


# --- a GPU that is not there ----------------------------------------------------------


def conv_step(params, key, x):
    def loss(w):
        y = jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        with jax.named_scope("noise"):
            y = y + jax.random.normal(own, y.shape)
        return jnp.square(jax.nn.relu(y)).mean()

    key, own = jax.random.split(key)
    return params - jax.grad(loss)(params), key


def test_same_figures_as_in_process(cuda_wheels, capfd):
    if os.environ.get("JAX_PLATFORMS") != "cpu":
        pytest.skip("JAX_PLATFORMS=cpu must be set to compile in this process")
    key = jax.eval_shape(lambda: jax.random.key(0))
    args = struct(3, 3, 2, 64), key, struct(8, 32, 32, 2)
    report = measure(conv_step, *args, device="h200", donate_argnums=(0, 1))
    assert capfd.readouterr() == ("", "")
    topology = topologies.get_topology_desc(
        platform="cuda",
        topology="1x1x1",
        target_config=target_config(device_spec("h200")),
    )
    here = jax.sharding.SingleDeviceSharding(topology.devices[0])
    args = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here) for a in args]
    lowered = jax.jit(conv_step, donate_argnums=(0, 1)).lower(*args)
    oracle = lowered.compile().memory_analysis()
    assert report == MemoryReport(
        temp_bytes=oracle.temp_size_in_bytes,
        argument_bytes=oracle.argument_size_in_bytes,
        output_bytes=oracle.output_size_in_bytes,
        alias_bytes=oracle.alias_size_in_bytes,
        device="h200",
    )
    assert report.alias_bytes == 4 * 3 * 3 * 2 * 64 + 8
    assert report.temp_bytes > 4 * 8 * 32 * 32 * 64


def test_the_autotuner_changes_no_byte(cuda_wheels):
    """A convolution and products, for which it prepares candidates."""
    args = *nnx.eval_shape(make), X
    tuned = {"xla_gpu_autotune_level": 4}  # XLA's own
    figures = [
        measure(train, *args, device="h200", compiler_options=options)
        for options in ({}, tuned)
    ]
    assert figures[0] == figures[1]


def test_the_buffers_before_machine_code_are_those_after(cuda_wheels):
    key = jax.eval_shape(lambda: jax.random.key(0))
    args = struct(3, 3, 2, 64), key, struct(8, 32, 32, 2)
    spec = device_spec("rtx4090")
    traced = jax.jit(conv_step, donate_argnums=(0, 1)).trace(*args)
    early, late = (
        _deviceless.compile_deviceless(traced, spec, {}, True, 300.0, machine_code=m)()
        for m in (False, True)
    )
    assert dataclasses.replace(early, hlo=None) == dataclasses.replace(late, hlo=None)
    assert early.hlo is not None and early.temp_bytes > 4 * 8 * 32 * 32 * 64
    # A file that is still being written is not mistaken for a whole one.
    for size in range(0, len(early.hlo), 997):
        assert buffer_figures(early.hlo[:size]) is None


@pytest.mark.parametrize("platforms", [None, "cpu"])
def test_parent_need_not_set_jax_platforms(cuda_wheels, monkeypatch, platforms):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if platforms:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert measure(jnp.sin, struct(2**18), device=device_spec("l4")).device == "l4"


@pytest.mark.filterwarnings("ignore:.*(Triton|triton).*")
@pytest.mark.parametrize("name", ["a100", "rtx4090"])
def test_pallas_kernels_are_exported(name, cuda_wheels):
    def kernel(x, y):
        y[...] = x[...] * 2.0

    double = pallas.pallas_call(
        kernel,
        out_shape=struct(64, 64),
        compiler_params=triton.CompilerParams(num_warps=4),
    )
    report = measure(double, struct(64, 64), device=name)
    assert report.output_bytes == 4 * 64 * 64


def test_callbacks_cannot_be_measured_for_a_gpu(cuda_wheels):
    def step(x):
        jax.debug.print("{}", x)
        return x * 2.0

    with pytest.raises(MeasureError, match="'step' cannot be lowered for a CUDA GPU"):
        measure(step, struct(8), device="h200")


# --- a child that fails ---------------------------------------------------------------

SAY = "import os, pathlib, subprocess, sys, time; folder = pathlib.Path(sys.argv[1]);"
FAILURES = {
    "raises": ("print('going', flush=True); raise MemoryError('no room')", "no room"),
    "exits": ("print('last words'); sys.exit(3)", "exit status 3.*last words"),
    "is killed": ("os.kill(os.getpid(), 9)", "was killed .SIGKILL.*out of memory"),
    "aborts": ("os.abort()", "signal 6 .Aborted"),
    "says nothing": ("pass", "without a result that can be read"),
    "writes garbage": (
        "(folder / 'result.json').write_bytes(bytes(range(256)))",
        "without a result that can be read",
    ),
    "writes something else": (
        "(folder / 'result.json').write_text('{\"temp\": null}')",
        "without a result that can be read",
    ),
    "explains at length": (
        "sys.exit('at first\\nx.SomeError: INTERNAL: why\\n' + 'here\\n' * 30)",
        "INTERNAL: why",
    ),
    "prints garbage": (
        "sys.stdout.buffer.write(bytes(range(256)) * 99); sys.exit(1)",
        "exit status 1",
    ),
    "has no figures": (
        "(folder / 'result.json').write_text('{}')",
        "reports no memory figures",
    ),
}


@pytest.fixture
def fake_worker(monkeypatch):
    monkeypatch.setattr(_deviceless, "_PLUGINS", ("json",))

    def install(script: str) -> None:
        command = (sys.executable, "-c", SAY + script)
        monkeypatch.setattr(_deviceless, "_WORKER", command)

    return install


def is_running(pid: int) -> bool:
    try:
        # The third field is the state; Z is one that only waits to be reaped.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("failure", FAILURES)
def test_child_that_fails(failure, fake_worker):
    script, message = FAILURES[failure]
    fake_worker(script)
    with pytest.raises(MeasureError, match=f"(?s){message}") as caught:
        measure(jnp.sin, struct(8), device="t4")
    assert "device=None" in str(caught.value) or "on the CPU" in str(caught.value)


def test_child_that_hangs_is_stopped_with_all_it_started(fake_worker, tmp_path):
    fake_worker(
        "own = subprocess.Popen(['sleep', '60']);"
        f"pathlib.Path({str(tmp_path / 'pids')!r}).write_text("
        "f'{os.getpid()} {own.pid}'); print('still here', flush=True); time.sleep(60)"
    )
    start = time.monotonic()
    with pytest.raises(MeasureError, match=r"(?s)`time_limit`=1\.5.*still here.*Raise"):
        measure(jnp.sin, struct(8), device="t4", time_limit=1.5)
    assert 1.5 <= time.monotonic() - start < 5
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    deadline = time.monotonic() + 5
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, pids))
    with pytest.raises(ProcessLookupError):  # reaped: no zombie is left
        os.kill(pids[0], 0)


def test_child_that_is_slow_to_print_does_not_block(fake_worker):
    # More than a pipe holds.
    fake_worker("print('x' * 10**7); sys.exit(1)")
    with pytest.raises(MeasureError, match="exit status 1") as caught:
        measure(jnp.sin, struct(8), device="t4", time_limit=20)
    assert len(str(caught.value)) < 2000


def test_products_that_no_tile_suits_go_to_cublas(cuda_wheels, monkeypatch, tmp_path):
    """XLA finds tiles by trying them out on a device."""

    def left(folder, *_):
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        (folder / "result.json").write_text(json.dumps(dict.fromkeys(FIGURES, 8)))

    tried = []

    def compile_lowered(lowered, options, dump):
        tried.append(options)
        if len(tried) == 1:
            raise jax.errors.JaxRuntimeError(
                "INTERNAL: Couldn't find output tile sizes"
            )
        return dict.fromkeys(FIGURES, 1)

    monkeypatch.setattr(_deviceless, "_run_child", left)
    measure(jnp.sin, struct(8), device="t4")
    monkeypatch.setattr(_deviceless_worker, "compile_lowered", compile_lowered)
    assert _deviceless_worker._compile(tmp_path) == dict.fromkeys(FIGURES, 1)
    assert [options["xla_gpu_enable_triton_gemm"] for options in tried[1:]] == [False]
    assert [options["xla_gpu_autotune_level"] for options in tried] == [0, 0]


def test_no_plugin(monkeypatch):
    monkeypatch.setattr(_deviceless, "_PLUGINS", ("no_such_package.xla_cuda12",))
    with pytest.raises(ImportError, match=r"pip install \"snnjax\[plan-cuda\]\""):
        measure(jnp.sin, struct(8), device="t4")


@pytest.mark.parametrize(
    "words",
    [
        "INTERNAL: libdevice not found at ./libdevice.10.bc",
        "UNAVAILABLE: No PTX compilation provider is available.",
    ],
)
def test_no_ptxas(fake_worker, words):
    fake_worker(f"sys.exit({words!r})")
    with pytest.raises(ImportError, match=r"nvcc.*pip install \"snnjax\[plan-cuda\]\""):
        measure(jnp.sin, struct(8), device="t4")


def test_worker_imports_nothing_of_ours():
    script = (
        "import runpy, sys;"
        f"runpy.run_path({_deviceless._WORKER[-1]!r}, run_name='worker');"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('snnjax', 'flax')))"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "[]\n"


# --- errors ---------------------------------------------------------------------------


def test_fn_must_be_callable():
    with pytest.raises(TypeError, match="`fn` is 3, which cannot be called"):
        measure(3, X)


def test_unknown_device():
    with pytest.raises(ValueError, match="`device` is 'h300'.*'h200'"):
        measure(jnp.sin, X, device="h300")


def test_donation_is_given_once():
    with pytest.raises(ValueError, match="`donate_argnums` is 0, but `fn` is jitted"):
        measure(jax.jit(jnp.sin), X, donate_argnums=0)


@pytest.mark.parametrize("time_limit", [0, -1.0, float("nan"), float("inf")])
def test_time_limit_is_positive(time_limit):
    with pytest.raises(ValueError, match="`time_limit` is"):
        measure(jnp.sin, X, device="t4", time_limit=time_limit)


@pytest.mark.parametrize("device", [None, "t4"])
def test_step_that_cannot_be_traced_keeps_its_error(device):
    def step(x):
        raise KeyError("mine")

    with pytest.raises(MeasureError, match="`fn` .step. cannot be traced.*mine") as e:
        measure(step, X, device=device)
    assert isinstance(e.value.__cause__, KeyError)


def test_step_that_cannot_be_compiled_here_is_told():
    def twice(x):
        return x + x

    options = {"xla_no_such_option": 1}
    with pytest.raises(MeasureError, match="'twice'.*cpu.*xla_no_such_option"):
        measure(twice, X, compiler_options=options)
    with pytest.raises(MeasureError, match="xla_no_such_option"):
        measure(twice, X, compiler_options=options, timeline=True)


def test_module_that_is_closed_over_is_told():
    net = make()[0]
    with pytest.raises(MeasureError, match="A module must be an argument"):
        measure(lambda x: net(x), X)


def test_closed_over_arrays_are_told():
    table = jnp.zeros(MIB // 4)
    with pytest.warns(UserWarning, match=r"closes over 1\.000 MiB of arrays"):
        measure(lambda i: table[i], struct(3, dtype=jnp.int32))


@pytest.mark.parametrize("figures", [{}, dict.fromkeys(_deviceless.FIGURES, 0)])
def test_backend_without_figures(monkeypatch, figures):
    monkeypatch.setattr(_deviceless, "compile_lowered", lambda *_: figures)
    with pytest.raises(MeasureError, match="memory figures"):
        measure(jnp.sin, X)


# --- time -----------------------------------------------------------------------------


def test_time_alternates(monkeypatch):
    clock, calls = [0.0], []

    def thunk(name, seconds):
        calls.append(name)
        clock[0] += seconds.pop(0)

    monkeypatch.setattr(_measure.time, "perf_counter", lambda: clock[0])
    a, b = [9.0, 1.0, 5.0, 2.0], [9.0, 4.0, 4.0, 3.0]
    medians = time_alternating(
        {"a": partial(thunk, "a", a), "b": partial(thunk, "b", b)}, repeats=3
    )
    assert medians == {"a": 2.0, "b": 4.0}
    assert "".join(calls) == "abababab"


def test_repeats_is_positive():
    with pytest.raises(ValueError, match="`repeats` is 0"):
        time_alternating({}, repeats=0)
