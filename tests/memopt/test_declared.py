"""Inputs with a declared range: what is kept of them, and what breaks the word."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from models import (
    FRAMES,
    WIDTH,
    Block,
    assert_same,
    frames,
    loss,
    planned,
)
from planning import BIT, FAILED, GRAD, NULL, STEP, First, integer, keeps, two

from snnjax import memopt

RANGES = {(0, 1): BIT, (0, 255): integer(8), (-2, 1): integer(2, -2)}
RANGES |= {(0, 3): integer(2), (0, 256): NULL, (0, 0): BIT}


def declared(x: Any, input_range: tuple[int, int] = (0, 1), **settings: Any) -> Any:
    """A model that was planned with an `input_range`."""
    plan = planned(two(), x, input_range=input_range)
    return memopt.apply_plan(two(), plan, **settings)


@pytest.mark.parametrize("input_range", RANGES)
def test_a_declared_input_is_kept_in_the_bits_it_needs(input_range):
    plan = planned(two(), frames(), input_range=input_range)
    assert keeps(plan) == [RANGES[input_range], BIT]
    assert plan.input_range == input_range
    assert memopt.Plan.from_json(plan.to_json()) == plan
    if RANGES[input_range] != NULL:
        assert "declared input" in plan.segments[0].boundary


def test_without_a_declaration_only_booleans_are_known():
    for dtype, expected in ((jnp.float32, NULL), (jnp.uint8, NULL), (jnp.bool_, BIT)):
        plan = planned(two(), frames(dtype=jnp.float32).astype(dtype))
        assert keeps(plan)[0] == expected


INSIDE = {
    "float32": ((0, 1), [0, 1]),
    "bfloat16": ((0, 1), [0, 1]),
    "float16": ((-3, 4), [-3, 0, 4]),
    "int8": ((-3, 4), [-3, 0, 4]),
    "int32": ((0, 255), [0, 1, 255]),
    "uint8": ((0, 255), [0, 1, 255]),
    "bool": ((0, 1), [0, 1]),
}


@pytest.mark.parametrize("dtype", INSIDE)
def test_data_within_the_range_gives_the_plain_gradients(dtype):
    input_range, members = INSIDE[dtype]
    x = np.random.default_rng(0).choice(members, FRAMES).astype(jnp.dtype(dtype))
    came, by_ours = STEP(declared(jnp.asarray(x), input_range), x)
    expected, by_theirs = STEP(two(), x.astype(np.float32))
    np.testing.assert_allclose(came, expected, rtol=1e-5)
    assert_same(by_ours, by_theirs)


def test_eager_calls_and_gradients_are_those_of_the_plain_model():
    x, plain = (frames() > 0).astype(jnp.float32), two()
    seg = declared(x)
    (came, by_ours), (expected, by_theirs) = (
        nnx.value_and_grad(loss)(seg, x),
        STEP(plain, x),
    )
    np.testing.assert_allclose(came, expected, rtol=1e-5)
    assert_same(by_ours, by_theirs)
    assert_same(seg, plain)


WAYS = {
    "jit": nnx.jit(lambda m, x: m(x)),
    "grad": GRAD,
    "eager": lambda m, x: m(x),
}
OUTSIDE = {
    "float32": (3, 0.5, -1, math.nan, -0.0, math.inf, -math.inf),
    "bfloat16": (3, 0.5, -1, math.nan, -0.0, math.inf),
    "int32": (3, -1),
    "uint8": (3,),
}


@pytest.mark.parametrize(
    "way, dtype",
    [("jit", dtype) for dtype in OUTSIDE]
    + [("grad", "float32"), ("grad", "uint8"), ("eager", "float32")],
)
def test_data_outside_the_range_fails_the_program_and_names_the_value(dtype, way):
    zeros = jnp.zeros(FRAMES, dtype)
    seg, run = declared(zeros), WAYS[way]
    jax.block_until_ready(run(seg, zeros.at[1, 1, 4].set(1)))
    for value in OUTSIDE[dtype]:
        with pytest.raises(FAILED) as error:
            jax.block_until_ready(run(seg, zeros.at[1, 1, 4].set(value)))
        text = str(error.value)
        assert "`input_range` is (0, 1)" in text
        assert f"holds {value:g}." in text, (value, text[-300:])


@pytest.mark.parametrize(
    "dtype, input_range, value",
    [("int8", (0, 255), -1), ("uint8", (-1, 1), 2), ("float16", (0, 100_000), 0.5)]
    + [("int8", (-1000, 1000), None), ("uint8", (0, 256), None)],
)
def test_a_range_beyond_that_of_the_dtype_is_checked(dtype, input_range, value):
    zeros = jnp.zeros(FRAMES, dtype)
    seg = declared(zeros, input_range)
    jax.block_until_ready(seg(zeros))
    if value is not None:
        with pytest.raises(FAILED, match=f"holds {value:g}"):
            jax.block_until_ready(seg(zeros.at[1, 1, 4].set(value)))


@pytest.mark.parametrize("input_range, bad", [((0, 0), 1), ((1, 1), 0), ((4, 9), 0)])
def test_booleans_outside_the_range_are_no_exception(input_range, bad):
    x = jnp.full(FRAMES, bool(bad))
    seg = declared(x, input_range)
    with pytest.raises(FAILED, match=f"holds {bad}"):
        jax.block_until_ready(GRAD(seg, x))


def test_a_double_beside_a_member_is_none():
    """As float32 it would be 1, and be packed as that."""
    with jax.enable_x64(True):
        x = (frames() > 0).astype(jnp.float64).at[0, 0, 0].set(1 + 1e-9)
        layer = memopt.checkpoint(
            lambda w, x: w * x, compressor=memopt.BitSpikeCompressor()
        )
        gradient = jax.grad(lambda w, x: layer(w, x).sum())
        with pytest.raises(FAILED, match="holds 1"):
            jax.block_until_ready(gradient(jnp.float64(2), x))
        good = jax.block_until_ready(gradient(jnp.float64(2), jnp.round(x)))
    assert float(good) == np.round(np.asarray(x)).sum()


def test_data_outside_the_range_fails_at_other_shapes_and_as_numpy():
    seg = declared(frames())
    x = np.zeros((2, 5, WIDTH), np.float32)
    jax.block_until_ready(seg(x))
    x[0, 4, 7] = 2
    with pytest.raises(FAILED, match="holds 2"):
        jax.block_until_ready(seg(x))


def test_without_the_check_nothing_is_asked():
    x = jnp.full(FRAMES, 3.0)
    for check in (True, False):
        seg = declared(x, check_input=check)
        text = WAYS["jit"].lower(seg, x).as_text()
        assert ("callback" in text) == check
    jax.block_until_ready(seg(x))
    jax.block_until_ready(WAYS["grad"](seg, x))


def test_the_gradient_by_a_checked_input_is_that_of_the_plain_model():
    x = (frames() > 0).astype(jnp.float32)
    by_input = lambda m: jax.jit(jax.grad(lambda x: loss(nnx.clone(m), x)))(x)  # noqa: E731
    assert_same({"x": np.asarray(by_input(declared(x)))}, {"x": by_input(two())})


def test_checking_a_batch_sharded_input_gathers_nothing():
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec(None, "batch"))
    x = jax.device_put(jnp.ones((2, 16, WIDTH)), sharding)
    compiled = WAYS["grad"].lower(declared(x), x).compile()
    text = getattr(compiled, "compiled", compiled).as_text()
    assert "u8[2,2,1]" in text  # bits of a device's share of the batch
    gathered = [a for a in text.splitlines() if "all-gather" in a]
    assert not [a for a in gathered if "[2,16,8]" in a or "[256]" in a]


class ByKeyword(nnx.Module):
    def __init__(self):
        self.block = First(nnx.Rngs(0))

    def __call__(self, x=None, *, y=None, n=None):
        return self.block(y if x is None or isinstance(x, int | dict) else x)


NO_ARRAY = {
    "keyword": lambda m, x: m(x=x),
    "another keyword": lambda m, x: m(y=x),
    "None": lambda m, x: m(None, y=x),
    "a number": lambda m, x: m(3, y=x),
    "a dict": lambda m, x: m({"x": x}, y=x),
}


@pytest.mark.parametrize("case", NO_ARRAY)
def test_an_input_range_needs_an_array_first(case):
    x = jnp.zeros(FRAMES)
    call = NO_ARRAY[case]
    plan = planned(ByKeyword(), x, input_range=(0, 1))
    seg = memopt.apply_plan(ByKeyword(), plan)
    for run in (call, nnx.jit(call), nnx.grad(lambda m, x: call(m, x).sum())):
        with pytest.raises(ValueError, match="`input_range`.*positional"):
            run(seg, x)


@pytest.mark.parametrize("case", NO_ARRAY)
def test_planning_an_input_range_needs_an_array_first(case):
    x = jnp.zeros(FRAMES)
    total = lambda m, x: NO_ARRAY[case](m, x).sum()  # noqa: E731
    errors = (ValueError, memopt.MeasureError)
    with pytest.raises(errors, match="`input_range`.*positional"):
        memopt.make_plan(ByKeyword(), Block, (x,), loss=total, input_range=(0, 1))


@pytest.mark.parametrize(
    "bad",
    [(1, 0), (0.0, 1.0), [0, 1], "01", (0,), (), (0, 1, 2), 1, (False, True)]
    + [(0, None), ("0", "1"), {0: 1}, (np.int64(0), np.int64(1)), float("nan")],
    ids=repr,
)
def test_a_wrong_input_range_is_refused(bad):
    with pytest.raises(ValueError, match="`input_range` is") as error:
        memopt.make_plan(two(), Block, None, input_range=bad)
    assert repr(bad) in str(error.value) and "(0, 1)" in str(error.value)


@pytest.mark.parametrize("dtype, input_range", [("float32", (0, 1)), ("bool", None)])
def test_declared_inputs_are_planned_for_an_absent_gpu(cuda_wheels, dtype, input_range):
    x = jax.ShapeDtypeStruct((16, 64, WIDTH), dtype)
    plan = memopt.make_plan(
        two(), Block, (x,), loss=loss, input_range=input_range, device="rtx4090"
    )
    assert keeps(plan) == [BIT, BIT] and plan.device == "rtx4090"
    assert 0 < plan.planned_residual_bytes < plan.plain_residual_bytes
    assert plan.planned_bytes > 0 and plan.input_range == input_range
