"""Compressors: there and back is the identity, bit for bit, at one bit a value."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from snnjax.memopt import (
    BaseSpikeCompressor,
    BitSpikeCompressor,
    Grid,
    NullSpikeCompressor,
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
def test_bits_are_those_of_numpy(shape):
    x = spikes(shape, "float32")
    lead, features = shape[:2], int(np.prod(shape[2:]))
    packed = BitSpikeCompressor().pack(jnp.asarray(x)).data
    assert packed.dtype == jnp.uint8
    expected = np.packbits(x.reshape(*lead, features).astype(bool), axis=-1)
    np.testing.assert_array_equal(packed, expected)
    if 0 not in shape:
        assert packed.shape == (*lead, -(-features // 8))


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
