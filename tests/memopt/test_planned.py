"""Planned models of known architectures: what they keep, and the plain gradients."""

import dataclasses
import functools
import json
import re
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import (
    FRAMES,
    WIDTH,
    Block,
    ConvBlock,
    Residual,
    assert_same,
    chain,
    frames,
    loss,
    planned,
    values,
)
from planning import BIT, FAILED, GRAD, NULL, STEP, integer, keeps, two

import snnjax as snn
from snnjax import memopt
from snnjax.memopt import Grid


class Iand(nnx.Module):
    """A residual block of SEW-ResNet's IAND."""

    def __init__(self, rngs: nnx.Rngs):
        self.block = Block(rngs)

    def __call__(self, x):
        return (1 - self.block(x)) * x


class Between(nnx.Module):
    """Two blocks, and something in between."""

    def __init__(self, block: Any, f: Any):
        rngs = nnx.Rngs(0)
        self.first, self.f, self.second = block(rngs), f(rngs), block(rngs)

    def __call__(self, x):
        return self.second(self.f(self.first(x)))


class Attention(nnx.Module):
    """Spiking self-attention: query, key and value read one spike train."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed, self.q, self.k, self.v = (Block(rngs) for _ in range(4))
        self.proj = Block(rngs)

    def __call__(self, x):
        s = self.embed(x)
        q, k, v = self.q(s), self.k(s), self.v(s)
        weights = jnp.einsum("tbnd,tbmd->tbnm", q, k)
        return self.proj(jnp.einsum("tbnm,tbmd->tbnd", weights, v))


class Readers(nnx.Module):
    """One spike train, read by three segments."""

    def __init__(self, *compressors: Any):
        rngs = nnx.Rngs(0)
        self.first, self.a, self.b, self.c = (Block(rngs) for _ in range(4))
        for block, compressor in zip((self.a, self.b, self.c), compressors):
            if compressor is not None:
                block.x_compressor = compressor

    def __call__(self, x):
        s = self.first(x)
        return self.a(s) + 2 * self.b(s) + 3 * self.c(s)


class Twice(nnx.Module):
    """A segment that is called with two different inputs, and one of them again."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first, self.again = Block(rngs), Block(rngs)

    def __call__(self, x):
        s = self.first(x)
        return self.again(s) + 2 * self.again(1 - s) + 3 * self.again(s)


def residuals(n: int, block: Any = Residual) -> nnx.Module:
    first = Block(nnx.Rngs(7))
    return snn.layer.Sequential(first, *chain(block, n=n).layers)


def dropping() -> nnx.Module:
    return Between(Block, lambda rngs: snn.layer.Dropout(0.3, rngs=rngs))


TARGETS = (Block, Residual, ConvBlock, Iand)
IMAGES = (2, 1, 2, 2, 4)
CASES = {
    "ADD": (
        lambda: residuals(4),
        FRAMES,
        [NULL, BIT, integer(2), integer(2), integer(3)],
    ),
    "IAND": (lambda: residuals(2, Iand), FRAMES, [NULL, BIT, BIT]),
    "average pool": (
        lambda: Between(ConvBlock, lambda _: snn.layer.AvgPool(2)),
        IMAGES,
        [NULL, integer(3, scale=0.25)],
    ),
    "max pool": (
        lambda: Between(ConvBlock, lambda _: snn.layer.MaxPool(2)),
        IMAGES,
        [NULL, BIT],
    ),
    "dropout on spikes": (dropping, FRAMES, [NULL, NULL]),
    # 8 features of 3 tokens: 0..24.
    "attention": (Attention, (2, 2, 3, WIDTH), [NULL, BIT, BIT, BIT, integer(5)]),
    "three readers": (Readers, FRAMES, [NULL, BIT, BIT, BIT]),
    "called twice": (Twice, FRAMES, [NULL, BIT]),
}


@functools.cache
def plan_of(case: str) -> memopt.Plan:
    make, shape, _ = CASES[case]
    return planned(make(), frames(shape), targets=TARGETS)


@pytest.mark.parametrize("case", CASES)
def test_known_architectures_are_kept_in_the_bits_they_need(case):
    assert keeps(plan_of(case)) == CASES[case][-1]


# These compiled, the others primitive by primitive; both ways for what is shared.
BITWISE = ("dropout on spikes", "three readers")
COMPILED = ("ADD", "IAND", "average pool", "attention", "called twice")


@pytest.mark.parametrize("case", BITWISE)
def test_their_gradients_are_equal_bit_for_bit(case):
    """Primitive by primitive, so that no compiler can round differently."""
    make, shape, _ = CASES[case]
    plain, x = make(), frames(shape)
    seg = memopt.apply_plan(make(), plan_of(case))
    with jax.disable_jit():
        expected = nnx.value_and_grad(loss)(plain, x)
        came = nnx.value_and_grad(loss)(seg, x)
    assert float(came[0]) == float(expected[0]) != 0
    assert_same(came[1], expected[1], tolerance=0)
    assert_same(seg, plain, tolerance=0)


@pytest.mark.parametrize("case", COMPILED)
def test_their_compiled_gradients_are_those_of_the_plain_model(case):
    make, shape, _ = CASES[case]
    plain, x = make(), frames(shape)
    seg = memopt.apply_plan(make(), plan_of(case))
    expected, came = STEP(plain, x), STEP(seg, x)
    assert_same({"loss": np.asarray(came[0])}, {"loss": np.asarray(expected[0])})
    assert_same(came[1], expected[1])
    assert_same(seg, plain)


# --- one edge, one payload ------------------------------------------------------------


def kept(net: Any, *batch: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Residuals in fewer than 32 bits, by dtype and shape."""
    shapes = memopt.residual_shapes(lambda m, *b: m(*b).sum(), net, *batch)
    found = [(str(s.dtype), s.shape) for s in shapes]
    return sorted(f for f in found if f[0] in ("uint8", "bool", "bfloat16"))


def segmented(net: Any, x: Any, **settings: Any) -> Any:
    return memopt.apply_plan(net, planned(net, x, targets=TARGETS, **settings))


PACKED = ("uint8", (3, 2, 1))
SHARED = {
    "bits": ((None, None, None), [PACKED]),
    "bits by name": ((BIT, None, BIT), [PACKED]),
    "bits and bytes": (
        (None, "BooleanSpikeCompressor", None),
        [PACKED, ("bool", FRAMES)],
    ),
    "two integers": (
        tuple(memopt.IntegerSpikeCompressor(b) for b in (2, 3, 2)),
        [
            PACKED,
            ("uint8", (3, 2, 2)),
            ("uint8", (3, 2, 2)),
        ],  # fields of 2, and of 2 and 1
    ),
    "sparse, as its instance": (
        (None, memopt.SparseSpikeCompressor(8), memopt.SparseSpikeCompressor(8)),
        [PACKED, ("uint8", (3, 2, 8))],
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_a_spike_train_is_kept_once_for_each_way_to_keep_it(case):
    compressors, expected = SHARED[case]
    net, x = Readers(*compressors), frames()
    seg = segmented(net, x)
    assert kept(seg, x) == sorted(expected)
    if case == "bits and bytes":  # the others are like `CASES`
        assert_same(GRAD(seg, x), GRAD(Readers(), x))


def test_query_key_and_value_share_one_payload():
    x = frames((2, 2, 3, WIDTH))
    seg = segmented(Attention(), x)
    # 24 features to 3 bytes; of the product's five bits, one to 3 and four to 12.
    sizes = (3, 3, 12)
    assert kept(seg, x) == [("uint8", (2, 2, size)) for size in sizes]


def test_a_skip_connection_shares_its_payload():
    """The block and the next block's shortcut read the same spikes."""

    class Skip(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.first, self.path, self.short = (Block(rngs) for _ in range(3))

        def __call__(self, x):
            s = self.first(x)
            return self.path(s) + self.short(s)

    assert kept(segmented(Skip(), frames()), frames()) == [PACKED]


def test_a_segment_called_twice_keeps_each_input_once():
    x = frames()
    assert kept(segmented(Twice(), x), x) == [PACKED, PACKED]


def test_an_unchecked_compressor_shares_as_well():
    net, x = Readers(*[BIT] * 3), frames()
    net.first = snn.layer.Dropout(0.5, rngs=nnx.Rngs(0))  # unknown to the planner
    seg = segmented(net, x, unchecked=True)
    assert kept(seg, x) == [PACKED]


def test_an_unknown_input_read_by_three_segments_is_kept_once():
    net, x = Readers(), frames()
    net.first = snn.layer.Dropout(0.5, rngs=nnx.Rngs(0))
    seg = segmented(net, x)
    shapes = memopt.residual_shapes(lambda m, x: m(x).sum(), seg, x)
    full = [s for s in shapes if s.shape == FRAMES and s.dtype == jnp.float32]
    assert len(full) == 1


def test_no_tracer_outlives_a_compiled_gradient():
    class Two(nnx.Module):
        def __init__(self):
            linear = lambda i: snn.layer.Linear(WIDTH, 2, rngs=nnx.Rngs(i))  # noqa: E731
            self.a, self.b = linear(0), linear(1)

        def __call__(self, x):
            return self.a(x) + self.b(x)

    x = jnp.ones(FRAMES)
    seg = memopt.apply_plan(
        Two(), planned(Two(), x, targets=snn.layer.Linear, input_range=(0, 1))
    )
    assert kept(seg, x) == [PACKED]
    with jax.checking_leaks():
        # Flax first, which must leak nothing itself.
        for model in (Two(), seg):
            nnx.jit(nnx.grad(loss)).trace(model, x)


def test_a_model_within_a_jitted_part_shares_and_leaks_nothing():
    """The spikes come from outside a jitted function that packs them, too."""

    class Nested(Readers):
        def __call__(self, x):
            s = self.first(x)
            inner = nnx.jit(lambda m, s: m(s))(self.a, s)
            return inner + 2 * self.b(s) + 3 * self.c(s)

    plain, x = Nested(), frames()
    seg = segmented(Nested(), x)
    assert_same(GRAD(seg, x), GRAD(plain, x))


# --- a silent dummy -------------------------------------------------------------------


SPIKES_AND_GRAD = nnx.jit(nnx.grad(lambda m, x: (loss(m, x), m(x)), has_aux=True))


@pytest.mark.parametrize("input_range, first", [(None, NULL), ((0, 255), integer(8))])
def test_a_silent_dummy_and_counts_at_run_time(input_range, first):
    """SpikingJelly's example, with sums of spikes inside."""
    zeros = jnp.zeros(FRAMES)
    plan = planned(residuals(2), zeros, input_range=input_range)
    assert keeps(plan) == [first, BIT, integer(2)]
    plain, seg = residuals(2), memopt.apply_plan(residuals(2), plan)
    counts = jax.random.poisson(jax.random.key(0), 5.0, zeros.shape).astype(jnp.float32)
    assert counts.max() > 3
    came, expected = (SPIKES_AND_GRAD(m, counts) for m in (seg, plain))
    np.testing.assert_array_equal(came[1], expected[1])
    assert_same(came[0], expected[0])


def test_a_silent_dummy_and_a_binary_declaration_refuse_counts():
    zeros = jnp.zeros(FRAMES)
    seg = memopt.apply_plan(two(), planned(two(), zeros, input_range=(0, 1)))
    with pytest.raises(FAILED, match="holds 2"):
        jax.block_until_ready(seg(zeros.at[2].set(2.0)))


# --- the plan as text and as a file ---------------------------------------------------


def test_settings_are_in_the_table_and_in_the_file(tmp_path):
    net = Between(ConvBlock, lambda _: snn.layer.AvgPool(2))
    plan = planned(net, frames(IMAGES))
    text = re.sub(r"\s+", " ", str(plan))
    for words in ("bits=3", "lo=0", "scale=0.25", "0..1 in steps of 1/4", "spike"):
        assert words in text
    plan.save(tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())["plan"]["segments"][1]
    assert written["compressor"] == "IntegerSpikeCompressor"
    assert dict(written["settings"]) == {"bits": 3, "lo": 0, "scale": 0.25}
    loaded = memopt.Plan.load(tmp_path / "plan.json")
    assert loaded == plan and hash(loaded) == hash(plan)
    seg = memopt.apply_plan(net, loaded)
    made = memopt.IntegerSpikeCompressor(3, 0, 0.25)
    assert seg.second.x_compressor == made and not seg.second.gc_trusted


def test_the_summary_counts_integers_as_neither_bits_nor_null():
    net, summary = memopt.memory_optimization(
        two(),
        Block,
        (jax.ShapeDtypeStruct(FRAMES, jnp.float32),),
        level=1,
        input_range=(0, 3),
        return_summary=True,
    )
    assert (summary.bit_compressor_count, summary.null_compressor_count) == (1, 0)
    assert summary.plan.input_range == (0, 3) and net.gc_declared == Grid(0, 3)


# --- compressors of one's own ---------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CappedCompressor(memopt.BaseSpikeCompressor):
    """Says more than it does: 2 comes back as 1."""

    holds: ClassVar[Grid | None] = Grid(0, 7)

    def compress(self, x):
        return jnp.minimum(x, 1).astype(jnp.uint8)

    def decompress(self, data, shape, dtype):
        return data.astype(dtype)


@dataclasses.dataclass(frozen=True)
class FloatCompressor(memopt.BaseSpikeCompressor):
    """Does not restore the dtype."""

    holds: ClassVar[Grid | None] = Grid(0, 7)

    def compress(self, x):
        return x.astype(jnp.float16)

    def decompress(self, data, shape, dtype):
        return data


@dataclasses.dataclass(frozen=True)
class FlatCompressor(memopt.BaseSpikeCompressor):
    """Does not restore the shape."""

    holds: ClassVar[Grid | None] = None

    def compress(self, x):
        return x.reshape(-1)

    def decompress(self, data, shape, dtype):
        return data


@dataclasses.dataclass(frozen=True)
class TableCompressor(memopt.BaseSpikeCompressor):
    """An index into a table of its own, which no JSON holds as it is."""

    table: tuple[float, ...] = (0.0, 1.0)
    holds: ClassVar[Grid | None] = Grid(0, 2)

    def compress(self, x):
        steps = [x > (a + b) / 2 for a, b in zip(self.table, self.table[1:])]
        return sum(s.astype(jnp.uint8) for s in steps)

    def decompress(self, data, shape, dtype):
        return jnp.asarray(self.table, dtype)[data]


@dataclasses.dataclass(frozen=True)
class StepCompressor(memopt.BaseSpikeCompressor):
    """A byte a value, in steps of its own."""

    step: float
    label: str = "a"
    wide: bool = False
    holds: ClassVar[Grid | None] = Grid(0, 4)

    def compress(self, x):
        dtype = jnp.uint16 if self.wide else jnp.uint8
        return (x / x.dtype.type(self.step)).astype(dtype)

    def decompress(self, data, shape, dtype):
        return data.astype(dtype) * jnp.dtype(dtype).type(self.step)


def naming(compressor: Any, make: Any = lambda: residuals(2)) -> nnx.Module:
    """Sums of two arrive at layer 2, which names its compressor."""
    net = make()
    net.layers[2].x_compressor = compressor
    return net


@pytest.mark.parametrize(
    "compressor, words",
    [("CappedCompressor", ("not exact", "2 came back as 1"))]
    + [(TableCompressor(), ("not exact", "2 came back as 1"))]
    + [(FloatCompressor(), ("float16", "float32")), (FlatCompressor(), ("(3,)",))],
    ids=str,
)
def test_a_round_trip_that_is_not_exact_is_refused(compressor, words):
    with pytest.raises(ValueError, match="`x_compressor` of layers.2") as error:
        planned(naming(compressor), frames())
    name = compressor if isinstance(compressor, str) else type(compressor).__name__
    for word in (name, *words):
        assert word in str(error.value)


def test_a_round_trip_is_asked_to_be_exact_on_what_arrives_only():
    """Spikes alone arrive at layer 1, and capped they are exact."""
    net = residuals(2)
    net.layers[1].x_compressor = "CappedCompressor"
    assert keeps(planned(net, frames()))[1] == "CappedCompressor"


OWN = (
    StepCompressor(0.5, "b", True),
    memopt.IntegerSpikeCompressor(4, -1),
    memopt.Uint8SpikeCompressor(),
)


@pytest.mark.parametrize("own", OWN, ids=repr)
def test_a_compressor_of_ones_own_survives_save_load_and_apply(own, tmp_path):
    x = frames()
    plan = planned(naming(own), x)
    plan.save(tmp_path / "plan.json")
    loaded = memopt.Plan.load(tmp_path / "plan.json")
    assert loaded == plan and loaded.segments[2].keeps in (repr(own), repr(own)[:-2])
    # A model that does not name it, and one that does.
    for net in (residuals(2), naming(own)):
        seg = memopt.apply_plan(net, loaded)
        assert seg.layers[2].x_compressor == own
    if own is OWN[0]:  # the others are ours
        assert_same(GRAD(seg, x), GRAD(residuals(2), x))


def test_the_plan_says_how_to_keep_an_input_and_not_what_the_model_names_later():
    plan = planned(naming(memopt.IntegerSpikeCompressor(4, -1)), frames())
    net = naming(memopt.IntegerSpikeCompressor(2))
    seg = memopt.apply_plan(net, plan)
    assert seg.layers[2].x_compressor == memopt.IntegerSpikeCompressor(4, -1)


def test_settings_that_no_file_holds_need_the_instance(tmp_path):
    own, x = TableCompressor((0.0, 1.0, 2.0)), frames()
    plan = planned(naming(own), x)
    plan.save(tmp_path / "plan.json")
    loaded = memopt.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    seg = memopt.apply_plan(naming(own), loaded)
    assert seg.layers[2].x_compressor == own
    assert_same(GRAD(seg, x), GRAD(residuals(2), x))
    # Without it, an error, or what was planned; never the defaults in silence.
    try:
        seg = memopt.apply_plan(residuals(2), loaded)
    except ValueError as error:
        assert "layers.2" in str(error) or "TableCompressor" in str(error)
    else:
        assert seg.layers[2].x_compressor == own


def test_an_overflow_of_sparse_fails_the_step():
    net, x = residuals(1), (frames() > 0).astype(jnp.float32)
    net.layers[1].x_compressor = memopt.SparseSpikeCompressor(1)
    seg = memopt.apply_plan(net, planned(net, x))
    with pytest.raises(FAILED, match="`capacity` of 1"):
        jax.block_until_ready(GRAD(seg, x))


# --- bad models -----------------------------------------------------------------------


def test_a_model_that_cannot_be_traced_is_refused_by_name():
    class Deciding(nnx.Module):
        def __init__(self):
            self.block = Block(nnx.Rngs(0))

        def __call__(self, x):
            return self.block(x) if x.sum() > 0 else x

    with pytest.raises(ValueError, match="Deciding cannot be traced") as error:
        memopt.make_plan(Deciding(), Block, (frames(),), input_range=(0, 1))
    assert "float32[3,2,8]" in str(error.value)


def test_planning_changes_neither_model_nor_data():
    net, x = dropping(), np.zeros(FRAMES, np.float32)
    before = values(net)
    planned(net, x, input_range=(0, 1))
    assert_same(net, before, tolerance=0)
    assert not x.any()
