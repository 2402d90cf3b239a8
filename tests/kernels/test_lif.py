"""The fused LIF, interpreted: against a loop in NumPy at float64, and XLA's program."""

import contextlib
import dataclasses
import functools as ft
import math
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    DERIVATIVES,
    assert_bits,
    assert_clear,
    assert_near,
    driven_gradients,
    f64,
    neuron_loop,
    sum_to,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from snnjax import kernels, surrogate
from snnjax._membrane import Drive, Membrane
from snnjax.kernels import _lif as code
from snnjax.kernels._tile import TUNING, Tuning
from snnjax.neuron import _lif as xla

# Half the compile time; the values are those of the equations all the same.
FAST = {"xla_backend_optimization_level": 0}
RESETS = (0.0, -0.3, None)
LEAKS = ("number", "scalar", "feature", "element")
GAP = 1e-4  # of every potential from where float32 might take another branch


@dataclasses.dataclass(frozen=True)
class Case:
    """One call: shapes, settings, and what it is given; `tau` is in time steps."""

    shape: tuple[int, ...]
    leak: str = "number"
    affine: bool = False
    start: bool = True
    end: bool = True
    surrogate: str = "atan"
    decay_input: bool = True
    v_threshold: float = 1.0
    v_reset: float | None = 0.0
    detach_reset: bool = False
    tau: float = 2.3
    dtype: str = "float32"
    seed: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        names = "decay_input", "v_threshold", "v_reset", "detach_reset"
        return {name: getattr(self, name) for name in names}

    @property
    def rule(self) -> Membrane:
        number = 1 / self.tau if self.leak == "number" else None
        spike = getattr(surrogate, self.surrogate)
        return Membrane(leak=number, surrogate=spike, **self.settings)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Arrays of a call, and the same for the oracle; no leak is a `tau` of None."""

    arguments: tuple[Any, ...]
    tau: Any
    scale: Any
    shift: Any


def features(case: Case) -> tuple[int, ...]:
    """The shape of what is given per feature, at the rank of a time step."""
    step = case.shape[1:]
    return (1,) * (len(step) - 1) + step[-1:]


def drawn(case: Case) -> Drawn:
    """Arguments of the kernels; a neuron near a branch of float32 is drawn again."""
    rng, wide = np.random.default_rng(case.seed), membrane(case)
    step, feature = case.shape[1:], features(case)
    size = {"number": (), "scalar": (), "feature": feature, "element": step}[case.leak]
    leak = jnp.asarray(rng.uniform(1 / 5, 1, size), wide)
    scale, shift = (jnp.asarray(rng.normal(m, 0.3, feature), wide) for m in (1.2, 0.2))
    v0, dv = (jnp.asarray(rng.normal(size=step), wide) for _ in range(2))
    ds = jnp.asarray(rng.normal(size=case.shape), case.dtype)
    drive = Drive(
        None if case.leak == "number" else leak, *((scale, shift) * case.affine)
    )
    v0 = v0 if case.start else jnp.full(step, case.v_reset or 0.0, wide)
    number = None if case.tau == math.inf else case.tau
    tau = number if case.leak == "number" else 1 / f64(leak)
    factors = (f64(scale), f64(shift)) if case.affine else (np.ones(()), np.zeros(()))
    x = clear_current(case, rng, v0, tau, *factors)
    v, dv = v0 if case.start else None, dv if case.start and case.end else None
    return Drawn((drive, v, x, ds, dv), tau, *factors)


def membrane(case: Case) -> str:
    return "float64" if case.dtype == "float64" else "float32"


def clear_current(case, rng, v0, tau, scale, shift):
    """Away, too, from the edges of the rectangle, half a unit off the threshold."""

    def draw():
        return f64(jnp.asarray(rng.normal(0.7, 1.2, case.shape), case.dtype))

    x, near = draw(), True
    while np.any(near):
        x = np.where(near, draw(), x)
        _, h, _ = neuron_loop(x * scale + shift, v0, tau, **case.settings)
        edges = np.abs(np.abs(h - case.v_threshold)[..., None] - [0, 0.5])
        near = edges.min((0, -1)) < 1.1 * GAP
    return jnp.asarray(x, case.dtype)


def compiled(f, *args):
    return jax.jit(f).lower(*args).compile(compiler_options=FAST)(*args)


def both_programs(case: Case, arguments: Any) -> Any:
    """Spikes, last potential and cotangents: of the kernels, and of XLA's program."""

    def run(forward, backward, drive, v, x, ds, dv):
        spikes, last = forward(case.rule, drive, v, x)
        return (spikes, last), backward(case.rule, drive, v, x, ds, dv)

    ours = [
        ft.partial(kernel, interpret=True)
        for kernel in (kernels.lif_forward, kernels.lif_backward)
    ]
    theirs = xla._forward, xla._backward
    return compiled(lambda *args: (run(*ours, *args), run(*theirs, *args)), *arguments)


def check(case: Case, tolerance: float = 1e-5) -> None:
    """Kernels and XLA's program against the loop, and against one another."""
    found = drawn(case)
    drive, v, x, _, _ = found.arguments
    kernel, program = both_programs(case, found.arguments)
    for outputs, gradients in (kernel, program):
        check_outputs(case, found, *outputs)
        check_gradients(case, found, gradients, tolerance)
    assert_bits(kernel[0][0], program[0][0])
    for ours, theirs in zip(*map(jax.tree.leaves, (kernel, program)), strict=True):
        assert ours.dtype == theirs.dtype
        assert_near(ours, theirs, tolerance)
    assert (kernel[0][0].dtype, kernel[1][2].dtype) == (x.dtype, x.dtype)
    assert jax.tree.structure(kernel[1][:2]) == jax.tree.structure((drive, v))


def current(found: Drawn) -> np.ndarray:
    return f64(found.arguments[2]) * found.scale + found.shift


def start_of(case: Case, found: Drawn) -> np.ndarray:
    v = found.arguments[1]
    return np.full(case.shape[1:], case.v_reset or 0.0) if v is None else f64(v)


def check_outputs(case: Case, found: Drawn, spikes: Any, last: Any) -> None:
    arguments = current(found), start_of(case, found), found.tau
    s, h, v = neuron_loop(*arguments, **case.settings)
    assert_clear(h, case.v_threshold, GAP)
    np.testing.assert_array_equal(f64(spikes), s)
    if found.arguments[1] is None:
        assert last is None
    else:
        assert last.dtype == membrane(case)
        assert_near(last, v[-1], 1e-5)


def check_gradients(case, found, gradients, tolerance):
    drive, v, x, ds, dv = found.arguments
    dv = np.zeros(case.shape[1:]) if dv is None else dv
    dx, dv0, dtau, dscale, dshift = driven_gradients(
        x,
        *(found.scale, found.shift, start_of(case, found), found.tau, ds, dv),
        DERIVATIVES[case.surrogate],
        **case.settings,
    )
    ddrive, dv_found, dx_found = gradients
    assert_near(dx_found, dx, tolerance)
    if v is not None:
        assert_near(dv_found, dv0, tolerance)
    if drive.leak is not None:  # tau = 1 / leak
        dleak = sum_to(-np.square(f64(found.tau)) * dtau, drive.leak.shape)
        assert_near(ddrive.leak, dleak, tolerance)
    if case.affine:
        assert_near(ddrive.scale.ravel(), dscale, tolerance)
        assert_near(ddrive.shift.ravel(), dshift, tolerance)


@contextlib.contextmanager
def cut(steps: int, elements: int):
    """Small parts and tiles, so that small arrays have many; real ones are below."""
    tuning = dict.fromkeys(TUNING, Tuning(elements, 4))
    with mock.patch.object(code, "_STEPS", steps), mock.patch.dict(TUNING, tuning):
        yield


# --- shapes ---------------------------------------------------------------------------


@st.composite
def cases(draw) -> Case:
    """Any shape from `[time]` on, any setting that goes with it."""
    steps = draw(st.integers(1, 40))
    step = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    per_feature = step != ()
    return Case(
        (steps, *step),
        leak=draw(st.sampled_from(LEAKS if per_feature else LEAKS[:2])),
        affine=per_feature and draw(st.booleans()),
        start=draw(st.booleans()),
        end=draw(st.booleans()),
        surrogate=draw(st.sampled_from([*DERIVATIVES])),
        decay_input=draw(st.booleans()),
        v_threshold=draw(st.sampled_from([1.0, 0.7])),
        v_reset=draw(st.sampled_from(RESETS)),
        detach_reset=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


# A failing example takes seconds, so that shrinking it would take minutes.
@settings(
    max_examples=8,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(case=cases(), steps=st.sampled_from([3, 4]), elements=st.sampled_from([4, 16]))
def test_any_shape_and_setting(case, steps, elements):
    with cut(steps, elements):
        check(case)


SHAPES = {
    "only time": Case((5,), leak="scalar"),
    "only time, one step": Case((1,), start=False),
    "one sample": Case((4, 1, 6), leak="feature", affine=True),
    "one vector": Case((4, 6), leak="element", affine=True),
    "one feature": Case((4, 6, 1), leak="feature", affine=True),
    "one value": Case((4, 1, 1), leak="element", affine=True),
    "more features than a tile": Case((3, 2, 19), leak="feature", affine=True),
    "more rows than a tile": Case((3, 19, 2), leak="feature", affine=True),
    "a leak of each value": Case((3, 5, 7), leak="element", affine=True),
    "a scalar leak, affine": Case((3, 5, 7), leak="scalar", affine=True),
    "as many features as rows": Case((3, 4, 4), leak="feature"),
    "two parts of the time": Case((8, 3), leak="scalar", v_reset=None),
    "two bytes and a bit": Case((17, 3), start=False, affine=True),
}


@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
def test_shapes_at_an_edge(case):
    with cut(4, 16):
        check(case)


REAL = {
    "one part, rows of features": Case((16, 3, 389), leak="feature", affine=True),
    "a part and a step, flat": Case((17, 2, 1201), leak="scalar", v_reset=None),
    "no whole byte, more features than a tile": Case((3, 2, 1100), affine=True),
}


@pytest.mark.parametrize("case", REAL.values(), ids=REAL)
def test_tiles_and_parts_of_the_real_size(case):
    assert math.prod(case.shape[1:]) % TUNING["lif_backward"].elements
    check(case)


# --- settings -------------------------------------------------------------------------


def settings_of_every_surrogate():
    """Each with two settings, so that all settings are met in all pairs."""
    for i, name in enumerate(DERIVATIVES):
        for detach in (False, True):
            decay, reset = (i + detach) % 2 == 0, RESETS[(i + 2 * detach) % 3]
            yield Case(
                (3, 2, 5),
                leak=LEAKS[(2 * i + detach) % 4],
                affine=i % 3 == 0,
                surrogate=name,
                decay_input=decay,
                v_reset=reset,
                detach_reset=detach,
            )


@pytest.mark.parametrize(
    "case", [*settings_of_every_surrogate()], ids=lambda c: f"{c.surrogate}-{c.v_reset}"
)
def test_every_surrogate(case):
    check(case)


@pytest.mark.parametrize("v_reset", RESETS)
def test_integrate_and_fire(v_reset):
    check(Case((4, 7), tau=math.inf, decay_input=False, v_reset=v_reset, end=False))


def test_a_leak_of_exactly_zero_and_one():
    """tau = inf and tau = 1, in one array; the derivative by the leak is finite."""
    case = Case((4, 2, 2), leak="feature", decay_input=False)
    found = drawn(case)
    drive, *rest = found.arguments
    kernel, program = both_programs(
        case, (drive._replace(leak=jnp.asarray([[0.0, 1.0]])), *rest)
    )
    for ours, theirs in zip(*map(jax.tree.leaves, (kernel, program)), strict=True):
        assert np.isfinite(ours).all()
        assert_near(ours, theirs, 1e-5)


# --- dtypes ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_has_a_float32_membrane(dtype):
    """Rounded once, at the end: as from the same current at float32."""
    case = Case((5, 2, 3), leak="feature", affine=True, dtype=dtype)
    drive, v, x, ds, dv = drawn(case).arguments
    with cut(4, 16):
        kernel, _ = both_programs(case, (drive, v, x, ds, dv))
        wide = x.astype("float32"), ds.astype("float32")
        wanted, _ = both_programs(case, (drive, v, *wide, dv))
    for ours, theirs in zip(*map(jax.tree.leaves, (kernel, wanted)), strict=True):
        # XLA may sum in another order, and round the other way of two: no more.
        assert_near(ours, theirs, max(1e-6, 0.5 * jnp.finfo(ours.dtype).eps))
    (spikes, last), (ddrive, dv0, dx) = kernel
    assert spikes.dtype == dx.dtype == dtype
    assert last.dtype == dv0.dtype == ddrive.scale.dtype == jnp.float32
    check_outputs(case, drawn(case), spikes, last)


def test_float64_stays_float64():
    with jax.enable_x64(True), cut(4, 16):
        check(Case((6, 2, 3), leak="feature", affine=True, dtype="float64"), 1e-12)


# --- batching, and what is refused ----------------------------------------------------


def test_under_vmap_every_sample_is_its_own():
    """Over an axis in the middle; the cotangent of the spikes is shared by all."""
    case = Case((5, 4, 3), leak="feature", affine=True)
    drive, v, x, ds, dv = drawn(case).arguments
    drive = jax.tree.map(lambda a: a[0], drive)

    def both(v, x, dv):
        forward = kernels.lif_forward(case.rule, drive, v, x, interpret=True)
        cotangents = ds[:, 0], dv
        return forward, kernels.lif_backward(
            case.rule, drive, v, x, *cotangents, interpret=True
        )

    mapped = compiled(jax.vmap(both, (0, 1, None)), v, x, dv[0])
    alone = jax.jit(both)
    for i in range(4):
        wanted = alone(v[i], x[:, i], dv[0])
        jax.tree.map(assert_near, jax.tree.map(lambda a, i=i: a[i], mapped), wanted)


RULE = Membrane(0.5, True, 1.0, 0.0, False, surrogate.atan)


@pytest.mark.parametrize(
    "shape, words",
    [((4, 0, 2), "has 0 values"), ((2**20, 2**11), "2147483648 values.*1 to 2")],
)
def test_what_the_kernels_cannot_serve(shape, words):
    refused = kernels.lif_refusal(RULE, jax.ShapeDtypeStruct(shape, jnp.float32))
    assert refused is not None
    with pytest.raises(ValueError, match=words):
        raise ValueError(refused)


def test_what_the_kernels_can_serve():
    for shape in ((1,), (2**20, 2**11 - 1)):
        assert (
            kernels.lif_refusal(RULE, jax.ShapeDtypeStruct(shape, jnp.float32)) is None
        )
