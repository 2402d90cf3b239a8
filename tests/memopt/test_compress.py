"""Compressors: there and back is the identity, bit for bit, at one bit a value."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from snnjax.memopt import (
    BaseSpikeCompressor,
    BitSpikeCompressor,
    BooleanSpikeCompressor,
    Grid,
    IntegerSpikeCompressor,
    NullSpikeCompressor,
    SparseSpikeCompressor,
    Uint8SpikeCompressor,
    gc_segment,
)
from snnjax.memopt._compress import compressor_for, compressor_named

COMPRESSORS = (NullSpikeCompressor(), BitSpikeCompressor())
DTYPES = ("float32", "bfloat16", "float16", "bool", "int8", "uint8", "int32")
# Sizes that are no multiple of eight, no features at all, nothing at all.
SHAPES = (
    (2, 3, 8),
    (1, 1, 1),
    (3, 2, 13),
    (2, 2, 3, 3, 5),
    (2, 3),
    (2, 0, 9),
    (2, 3, 0),
)
SHAPES += ((4,), (), (0, 2, 3))


def spikes(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, shape).astype(jnp.dtype(dtype))


def bits_of(a: Any) -> bytes:
    return np.asarray(a).tobytes()


@dataclasses.dataclass(frozen=True)
class HalfSpikeCompressor(BaseSpikeCompressor):
    """A user's own: one byte a value, for multiples of a step of its own."""

    step: float = 0.25
    holds: ClassVar[Grid | None] = Grid(0, 4, -2)

    def compress(self, x):
        return {"bytes": (x / x.dtype.type(self.step)).astype(jnp.uint8)}

    def decompress(self, data, shape, dtype):
        assert data["bytes"].shape == shape
        return data["bytes"].astype(dtype) * jnp.dtype(dtype).type(self.step)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: type(c).__name__)
def test_round_trip_is_bit_exact(compressor, jit):
    cases = [spikes(shape, dtype) for shape in SHAPES for dtype in DTYPES]
    if jit:  # all of them in one program, compiled once
        there = jax.jit(lambda xs: [compressor.pack(x) for x in xs])
        back = jax.jit(lambda ps: [p.unpack() for p in ps])
    else:
        cases = cases[:: len(DTYPES) + 1]
        there = lambda xs: [compressor.pack(jnp.asarray(x)) for x in xs]  # noqa: E731
        back = lambda ps: [p.unpack() for p in ps]  # noqa: E731
    for x, y in zip(cases, back(there(cases))):
        assert y.shape == x.shape and y.dtype == x.dtype
        assert bits_of(y) == bits_of(x)


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_where_they_are_said_to_be(shape):
    """Value `j + i * m` of `m` bytes is bit `i` of byte `j`."""
    x = spikes(shape, "float32")
    lead, features = shape[:2], int(np.prod(shape[2:]))
    packed = BitSpikeCompressor().pack(jnp.asarray(x)).data
    assert packed.dtype == jnp.uint8
    columns = -(-features // 8)
    padded = np.zeros((*lead, 8 * columns), np.uint8)
    padded[..., :features] = x.reshape(*lead, features)
    fields = padded.reshape(*lead, 8, columns)
    expected = np.packbits(fields, axis=-2, bitorder="little")
    np.testing.assert_array_equal(packed, expected.reshape(*lead, columns))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_null_keeps_every_bit(dtype):
    odd = np.array([[-0.0, np.nan, np.inf, 1e-40, 3.5]]).astype(jnp.dtype(dtype))
    null = NullSpikeCompressor()
    assert bits_of(null.pack(jnp.asarray(odd)).unpack()) == bits_of(odd)


def test_time_and_batch_axes_stay_apart():
    x = spikes((3, 4, 2, 5), "float32")
    packed = BitSpikeCompressor().pack(jnp.asarray(x)).data
    for t in range(3):
        for b in range(4):
            alone = BitSpikeCompressor().pack(jnp.asarray(x[t : t + 1, b : b + 1]))
            np.testing.assert_array_equal(packed[t, b], alone.data[0, 0])


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: type(c).__name__)
def test_a_batch_sharded_over_eight_devices_is_not_gathered(compressor):
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec(None, "batch"))
    x = jax.device_put(spikes((2, 16, 3, 7), "float32"), sharding)
    there, back = jax.jit(compressor.pack), jax.jit(lambda p: p.unpack())
    payload = there(x)
    for compiled in (there.lower(x).compile(), back.lower(payload).compile()):
        text = compiled.as_text()
        for collective in ("all-gather", "all-to-all", "all-reduce", "permute"):
            assert collective not in text
    assert payload.data.sharding.shard_shape(payload.data.shape)[1] == 2
    y = back(payload)
    assert y.sharding.is_equivalent_to(sharding, y.ndim)
    np.testing.assert_array_equal(y, x)


def test_a_payload_is_data_with_static_shape_and_dtype():
    x = jnp.ones((2, 3, 9), jnp.bfloat16)
    payload = BitSpikeCompressor().pack(x)
    assert [a.shape for a in jax.tree.leaves(payload)] == [(2, 3, 2)]
    assert payload.shape == (2, 3, 9) and payload.dtype == jnp.bfloat16
    doubled = jax.tree.map(lambda a: a, payload)
    assert (doubled.shape, doubled.dtype) == (payload.shape, payload.dtype)


@pytest.mark.parametrize(
    "grid, bit",
    [(Grid(0, 1), True), (Grid(1, 1), True), (Grid(0, 0, 5), True)]
    + [(Grid(0, 2), False), (Grid(0, 1, 1), False), (Grid(0, 1, -1), False)]
    + [(Grid(-1, 0), False), (None, False)],
)
def test_the_smallest_exact_compressor_is_chosen(grid, bit):
    chosen = compressor_for(grid)
    assert isinstance(chosen, BitSpikeCompressor) == bit
    assert chosen.covers(grid)
    assert NullSpikeCompressor().covers(grid)
    assert BitSpikeCompressor().covers(grid) == bit


def test_compressors_of_ones_own_are_known_by_name():
    assert compressor_named("HalfSpikeCompressor") == HalfSpikeCompressor()
    assert compressor_named("BitSpikeCompressor") == BitSpikeCompressor()
    x = jnp.asarray([[[0, 0.25, 1.0, 0.75]]], jnp.float16)
    own = HalfSpikeCompressor()
    y = own.pack(x).unpack()
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)
    assert own.covers(Grid(0, 1)) and own.covers(Grid(0, 2, -1))
    assert not own.covers(Grid(0, 2)) and not own.covers(None)


@pytest.mark.parametrize("name", ["BitSpikeCompresor", "", 3, None])
def test_an_unknown_name_lists_what_is_allowed(name):
    with pytest.raises(ValueError, match="x_compressor.*BitSpikeCompressor") as error:
        compressor_named(name)
    assert repr(name) in str(error.value)


@pytest.mark.parametrize(
    "make",
    [BitSpikeCompressor, functools.partial(IntegerSpikeCompressor, 2)],
    ids=["bit", "integer"],
)
def test_an_unknown_implementation_is_refused(make):
    with pytest.raises(ValueError, match="`implementation` is 'palas'.*pallas"):
        make(implementation="palas")


def test_a_compressor_without_both_halves_cannot_be_made():
    @dataclasses.dataclass(frozen=True)
    class Half(BaseSpikeCompressor):
        def compress(self, x):
            return x

    with pytest.raises(TypeError, match="abstract"):
        Half()


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: type(c).__name__)
def test_compressors_are_stateless_data(compressor):
    assert compressor == type(compressor)() and hash(compressor) == hash(
        type(compressor)()
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        compressor.holds = None


# --- every compressor -----------------------------------------------------------------

EVERY = {
    "null": NullSpikeCompressor(),
    "bit": BitSpikeCompressor(),
    "boolean": BooleanSpikeCompressor(),
    "uint8": Uint8SpikeCompressor(),
    "1 bit": IntegerSpikeCompressor(1),
    "1 bit of -1, 0": IntegerSpikeCompressor(1, -1),
    "3 bits at 1/4": IntegerSpikeCompressor(3, scale=0.25),
    "3 bits from -3 at 1/2": IntegerSpikeCompressor(3, -3, 0.5),
    "5 bits from -7 at 4": IntegerSpikeCompressor(5, lo=-7, scale=4.0),
    "8 bits from -128": IntegerSpikeCompressor(8, -128),
    "16 bits from -40000": IntegerSpikeCompressor(16, -40_000),
    "sparse": SparseSpikeCompressor(3),
}
FLOATS = ("float32", "bfloat16", "float16")
# jax's own for a failed callback; by its fast path it comes as a ValueError.
FAILED = (jax.errors.JaxRuntimeError, ValueError)
# Sizes that are no multiple of eight, of rank 2 to 5, and nothing at all.
RANKS = ((2, 3), (3, 2, 13), (2, 2, 3, 7), (2, 1, 3, 5, 2), (2, 3, 0))
RANKS += ((0, 2, 3),)


def members(compressor: BaseSpikeCompressor, shape: Any, dtype: Any) -> np.ndarray:
    """Random values that the compressor holds and the dtype represents."""
    rng, dtype = np.random.default_rng(sum(shape)), jnp.dtype(dtype)
    if compressor.holds is None:  # any bits at all, NaN with payload included
        return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[
            ..., 0
        ]
    if isinstance(compressor, SparseSpikeCompressor):
        order = rng.random((*shape[:2], math.prod(shape[2:]))).argsort(-1)
        return (order < compressor.capacity).reshape(shape).astype(dtype)
    grid = compressor.holds
    unit = 2.0**grid.exponent
    k = rng.integers(grid.lo, grid.hi + 1, shape)
    # Both ends, where there is room.
    k.flat[:1], k.flat[1:2] = grid.hi, grid.lo
    x = k * unit
    exact = x.astype(dtype).astype(np.float64) == x
    nearest = min(max(0, grid.lo), grid.hi) * unit
    return np.where(exact, x, nearest).astype(dtype)


def cases_of(compressor: BaseSpikeCompressor) -> list[np.ndarray]:
    cases = [members(compressor, s, d) for s in RANKS for d in FLOATS]
    holds = compressor.holds
    others = [
        d for d in ("int8", "uint8", "int32") if holds and holds.fits(np.dtype(d))
    ]
    if holds is None or (holds.lo <= 0 and holds.hi >= 1 and holds.exponent == 0):
        cases.append(spikes((3, 2, 13), "bool"))
        if isinstance(compressor, SparseSpikeCompressor):
            cases[-1] = members(compressor, (3, 2, 13), "bool")
    return cases + [members(compressor, (2, 3, 11), d) for d in others]


@pytest.mark.parametrize("name", EVERY)
def test_every_compressor_gives_back_every_bit(name):
    compressor = EVERY[name]
    cases = cases_of(compressor)
    # All of them in one program, compiled once.
    packed = jax.jit(lambda xs: [compressor.pack(x) for x in xs])(cases)
    back = jax.jit(lambda ps: [p.unpack() for p in ps])(packed)
    for x, y in zip(cases, back, strict=True):
        assert y.shape == x.shape and y.dtype == x.dtype
        assert bits_of(y) == bits_of(x), (x.dtype, x.shape)


@pytest.mark.parametrize("name", EVERY)
def test_every_compressor_gives_back_every_bit_eagerly(name):
    compressor = EVERY[name]
    for shape, dtype in (((3, 2, 13), "bfloat16"), ((2, 3, 0), "float32")):
        x = members(compressor, shape, dtype)
        y = compressor.pack(jnp.asarray(x)).unpack()
        assert y.shape == x.shape and y.dtype == x.dtype
        assert bits_of(y) == bits_of(x)


@pytest.mark.parametrize("bits, lo, scale", [(3, 0, 0.25), (4, -5, 2.0), (1, 7, 1.0)])
def test_every_member_of_an_integer_grid_comes_back(bits, lo, scale):
    x = (np.arange(lo, lo + 2**bits) * scale).astype(np.float32).reshape(1, 1, -1)
    compressor = IntegerSpikeCompressor(bits, lo, scale)
    assert compressor.holds.contains(x).all()
    np.testing.assert_array_equal(compressor.pack(jnp.asarray(x)).unpack(), x)


@pytest.mark.parametrize("name", EVERY)
def test_no_compressor_gathers_a_batch_sharded_over_eight_devices(name):
    compressor = EVERY[name]
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec(None, "batch"))
    x = jax.device_put(members(compressor, (2, 16, 3, 7), "float32"), sharding)
    there, back = jax.jit(compressor.pack), jax.jit(lambda p: p.unpack())
    compiled = there.lower(x).compile()
    assert "all-gather" not in compiled.as_text()
    payload = compiled(x)
    for a in jax.tree.leaves(payload):
        assert a.sharding.shard_shape(a.shape)[1] == 2
    compiled = back.lower(payload).compile()
    assert "all-gather" not in compiled.as_text()
    y = compiled(payload)
    assert y.sharding.is_equivalent_to(sharding, y.ndim)
    assert bits_of(y) == bits_of(x)


def payload_of(
    compressor: BaseSpikeCompressor, n: int, dtype: Any = jnp.float32
) -> Any:
    """Shape and dtype of what is kept for `[2, 3, n]`."""
    x = jax.ShapeDtypeStruct((2, 3, n), dtype)
    kept = jax.tree.leaves(jax.eval_shape(compressor.pack, x))
    shapes = [(a.shape, a.dtype) for a in kept]
    return shapes[0] if len(shapes) == 1 else shapes


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 21, 255, 256])
@pytest.mark.parametrize("dtype", FLOATS)
def test_payloads_have_the_documented_bytes(n, dtype):
    kept = functools.partial(payload_of, n=n, dtype=dtype)
    octets, crumbs = -(-n // 8), -(-n // 4)  # of bits, of pairs of bits
    assert kept(NullSpikeCompressor()) == ((2, 3, n), jnp.dtype(dtype))
    assert kept(BitSpikeCompressor()) == ((2, 3, octets), jnp.uint8)
    assert kept(BooleanSpikeCompressor()) == ((2, 3, n), jnp.bool_)
    assert kept(Uint8SpikeCompressor()) == ((2, 3, n), jnp.uint8)
    fields = {1: [octets], 3: [crumbs, octets], 16: [n, n], 6: [-(-n // 2), crumbs]}
    for bits, sizes in fields.items():
        made = kept(IntegerSpikeCompressor(bits, -1, 0.5))
        wanted = [((2, 3, size), jnp.uint8) for size in sizes]
        assert made == (wanted[0] if bits == 1 else wanted)


@pytest.mark.parametrize(
    "n, width", [(0, 1), (1, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4)]
)
def test_sparse_positions_have_the_smallest_unsigned_integer(n, width):
    kept = payload_of(SparseSpikeCompressor(5), n)
    assert kept == ((2, 3, 5), jnp.dtype(f"uint{8 * width}"))


@pytest.mark.parametrize("n", [255, 256, 257])
def test_sparse_tells_the_last_feature_from_none(n):
    x = np.zeros((1, 2, n), np.float32)
    x[0, 0, -1] = x[0, 1, 0] = 1
    compressor = SparseSpikeCompressor(4)
    np.testing.assert_array_equal(compressor.pack(jnp.asarray(x)).unpack(), x)


def test_integers_are_fields_of_their_low_and_high_bits():
    """Value `j + i * m` of `m` bytes, `width` bits from bit `i * width` of byte `j`."""
    x = np.random.default_rng(3).integers(0, 2**7, (2, 3, 9))
    packed = IntegerSpikeCompressor(7).pack(jnp.asarray(x, jnp.float32)).data
    for data, (width, at) in zip(packed, [(4, 0), (2, 4), (1, 6)], strict=True):
        data, m = np.asarray(data), -(-9 * width // 8)
        assert data.shape == (2, 3, m)
        for value in range(9):
            i, j = divmod(value, m)
            found = (data[..., j] >> (i * width)) & (2**width - 1)
            wanted = (x[..., value] >> at) & (2**width - 1)
            np.testing.assert_array_equal(found, wanted)


# --- sparse: an overflow is an error, never a truncation ------------------------------


def with_ones(count: int, dtype: Any = "float32") -> np.ndarray:
    """`[2, 3, 10]` with `count` ones in the last step of the second sample, 1 else."""
    x = np.zeros((2, 3, 10), jnp.dtype(dtype))
    x[..., 4] = 1
    x[1, 1, :count] = 1
    x[1, 1, count:] = 0
    return x


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_sparse_overflow_fails_the_program(jit, dtype):
    compressor = SparseSpikeCompressor(capacity=3)
    trip = lambda x: compressor.pack(x).unpack()  # noqa: E731
    trip = jax.jit(trip) if jit else trip
    for count in (0, 2, 3):  # exactly full is fine
        x = with_ones(count, dtype)
        np.testing.assert_array_equal(trip(jnp.asarray(x)), x)
    with pytest.raises(FAILED) as error:
        jax.block_until_ready(trip(jnp.asarray(with_ones(5, dtype))))
    for words in ("`capacity` of 3", "has 5 spikes", "BitSpikeCompressor"):
        assert words in str(error.value)


@pytest.mark.parametrize("jit", [True, False])
def test_sparse_overflow_fails_the_gradient_of_a_segment(jit):
    segment = gc_segment(lambda x, w: jnp.sin(x @ w), SparseSpikeCompressor(3))
    plain = lambda x, w: jnp.sin(x @ w)  # noqa: E731
    w = jnp.ones((10, 2), jnp.float32)

    def gradient(f: Any) -> Any:
        g = jax.grad(lambda w, x: f(x, w).sum())
        return jax.jit(g) if jit else g

    full = jnp.asarray(with_ones(3))
    came, expected = gradient(segment)(w, full), gradient(plain)(w, full)
    np.testing.assert_allclose(came, expected, rtol=1e-6)
    with pytest.raises(FAILED, match="has 4 spikes"):
        jax.block_until_ready(gradient(segment)(w, jnp.asarray(with_ones(4))))


# --- wrong settings -------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [{"bits": 0}, {"bits": 17}, {"bits": -1}, {"bits": 2.5}, {"bits": "2"}]
    + [{"scale": s} for s in (0.0, -0.5, 0.3, 3.0, math.inf, math.nan)]
    + [{"lo": 0.5}, {"lo": None}, {"scale": "1"}, {"bits": None}],
    ids=str,
)
def test_wrong_settings_of_the_integer_compressor_are_refused(bad):
    with pytest.raises(ValueError) as error:
        IntegerSpikeCompressor(**({"bits": 2} | bad))
    ((name, value),) = bad.items()
    assert f"`{name}` is" in str(error.value) or name in str(error.value)
    assert str(value) in str(error.value)


@pytest.mark.parametrize("capacity", [-1, 1.5, "3", None])
def test_a_wrong_capacity_is_refused(capacity):
    with pytest.raises(ValueError, match="capacity"):
        SparseSpikeCompressor(capacity)


@pytest.mark.parametrize("name", ["IntegerSpikeCompressor", "SparseSpikeCompressor"])
def test_a_name_alone_that_needs_arguments_says_how_to_give_them(name):
    with pytest.raises(ValueError, match="`x_compressor` is") as error:
        compressor_named(name)
    assert "takes arguments" in str(error.value) and f"{name}(...)" in str(error.value)
    with pytest.raises(ValueError, match="takes arguments.*nonsense"):
        compressor_named(name, nonsense=1)


def test_names_with_arguments_make_the_compressor():
    made = compressor_named("IntegerSpikeCompressor", bits=3, lo=-1, scale=0.25)
    assert made == IntegerSpikeCompressor(3, -1, 0.25)
    assert compressor_named("SparseSpikeCompressor", capacity=9).capacity == 9
    with pytest.raises(
        ValueError, match="allowed are.*Integer.*Sparse.*Uint8"
    ) as error:
        compressor_named("Uint9SpikeCompressor")
    assert " _" not in str(error.value)  # those that segments use themselves


@pytest.mark.parametrize(
    "grid, expected",
    [(Grid(0, 2), "IntegerSpikeCompressor(bits=2, lo=0, scale=1.0)")]
    + [(Grid(0, 3), "IntegerSpikeCompressor(bits=2, lo=0, scale=1.0)")]
    + [(Grid(0, 4, -2), "IntegerSpikeCompressor(bits=3, lo=0, scale=0.25)")]
    + [(Grid(-1, 1), "IntegerSpikeCompressor(bits=2, lo=-1, scale=1.0)")]
    + [(Grid(0, 255), "IntegerSpikeCompressor(bits=8, lo=0, scale=1.0)")]
    + [(Grid(3, 3), "IntegerSpikeCompressor(bits=1, lo=3, scale=1.0)")]
    + [(Grid(0, 256), "NullSpikeCompressor()"), (None, "NullSpikeCompressor()")],
)
def test_the_fewest_bits_that_hold_a_grid_are_chosen(grid, expected):
    assert repr(compressor_for(grid)) == expected


# Beyond 2**24 float32 has gaps; int32 has none.
FAR = Grid(2**24 + 1, 2**24 + 4)


def test_integers_beyond_the_precision_of_float32_come_back():
    chosen = compressor_for(FAR)
    x = np.arange(FAR.lo, FAR.hi + 1, dtype=np.int32).reshape(1, 1, -1)
    np.testing.assert_array_equal(chosen.pack(jnp.asarray(x)).unpack(), x)
