"""Packing kernels, interpreted, against the documented layout and XLA's program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from snnjax import kernels
from snnjax.kernels import _tile
from snnjax.memopt import BitSpikeCompressor, IntegerSpikeCompressor
from snnjax.memopt._compress import _pack_by_xla, _unpack_by_xla

WIDTHS = pytest.mark.parametrize("width", [1, 2, 4])
# No multiple of a byte, nor of a tile; one value; more than a tile of 1024 bytes.
SHAPES = [(3, 2, 1), (3, 2, 13), (5, 33), (7,), (1, 2, 16 * 1024 + 3)]
SHAPED = pytest.mark.parametrize("shape", SHAPES, ids=str)


def values(width, shape):
    drawn = np.random.default_rng(width).integers(0, 2**width, shape)
    return jnp.asarray(drawn, jnp.uint8)


def layout(width, x):
    """Value `j + i * m` of a row is at bit `i * width` of byte `j` of `m`."""
    per_byte, n = 8 // width, x.shape[-1]
    m = -(-n // per_byte)
    packed = np.zeros((*x.shape[:-1], m), np.uint8)
    for value in range(n):
        i, j = divmod(value, m)
        packed[..., j] |= np.asarray(x)[..., value] << (i * width)
    return packed


@WIDTHS
@SHAPED
def test_there_and_back(width, shape):
    x = values(width, shape)
    packed = kernels.pack(width, x, interpret=True)
    wanted = layout(width, x)
    np.testing.assert_array_equal(packed, wanted)
    np.testing.assert_array_equal(_pack_by_xla(width, x), wanted)
    n = shape[-1]
    np.testing.assert_array_equal(kernels.unpack(width, n, packed, interpret=True), x)
    np.testing.assert_array_equal(_unpack_by_xla(width, n, packed), x)


def test_many_small_tiles(monkeypatch):
    small = {name: _tile.Tuning(8, 1) for name in _tile.TUNING}
    monkeypatch.setattr("snnjax.kernels._bitpack.TUNING", small)
    x = values(2, (5, 3, 77))
    packed = kernels.pack(2, x, interpret=True)
    np.testing.assert_array_equal(packed, layout(2, x))
    np.testing.assert_array_equal(kernels.unpack(2, 77, packed, interpret=True), x)


def test_a_forced_kernel_needs_a_cuda_device():
    x = jnp.ones((2, 3, 9))
    for made in (
        BitSpikeCompressor("pallas"),
        IntegerSpikeCompressor(2, 0, 1, "pallas"),
    ):
        with pytest.raises(NotImplementedError, match="not for a CUDA device"):
            made.pack(x)


def test_a_forced_kernel_is_in_the_program_for_cuda(cuda_wheels):
    from snnjax.memopt._deviceless import described
    from snnjax.memopt._devices import device_spec

    bits = BitSpikeCompressor("pallas")
    with described(device_spec("rtx4090")):
        both = jax.jit(lambda x: bits.pack(x).unpack()).trace(jnp.ones((2, 3, 9)))
        text = both.lower(lowering_platforms=("cuda",)).as_text()
    assert "snnjax_pack" in text and "snnjax_unpack" in text


def test_nothing_and_too_much_are_refused():
    for shape in ((2, 0), (2**16, 2**15)):
        a = jax.ShapeDtypeStruct(shape, jnp.uint8)
        assert "its kernel counts 1 to" in kernels.bitpack_refusal(a)
    assert kernels.bitpack_refusal(jnp.zeros((2, 3), jnp.uint8)) is None
