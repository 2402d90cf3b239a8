"""Convolution by windows of three with fewer products: Winograd's F(2, 3).

Along each axis of space two neighbouring outputs read four inputs `x` and three weights
`w`, and four products suffice instead of six:

    y = A^T [(G w) * (B^T x)]

          1  0 -1  0           1    0    0          1  1  1  0
    B^T = 0  1  1  0     G =  1/2  1/2  1/2   A^T = 0  1 -1 -1
          0 -1  1  0          1/2 -1/2  1/2
          0  1  0 -1           0    0    1

Over two axes 16 matrix products over the channels do the work of 36, on blocks of
images that stay in the cache. What is around them only adds and halves, so it rounds
about as a sum over nine taps does; but an infinity or NaN in the input also reaches the
outputs that share its tile.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
The weight gradient is the transpose of `w -> y`.
"""

import functools as ft
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._gate import start_after

# Of what the products of a block read and write. Measured on two cores with 2 MiB of
# cache each: 8 to 32 MiB are about as fast, 4 MiB are slower by a fifth.
_BLOCK_BYTES, _FEWEST_TILES = 16 * 2**20, 64
Padding = Sequence[tuple[int, int]]
Parts = list[jax.Array]


def convolves_faster(lhs: jax.Array, rhs: jax.Array, padding: Padding) -> bool:
    """Whether `convolve` of these is quicker than `jax.lax`, as measured."""
    return _fits(lhs, rhs, padding) and math.prod(rhs.shape[-2:]) >= 64 * 128


def weighs_faster(lhs: jax.Array, rhs: jax.Array, padding: Padding) -> bool:
    """Whether `weight_gradient` of these is quicker than a product for each tap."""
    return _fits(lhs, rhs, padding) and math.prod(rhs.shape[-2:]) >= 32 * 32


def convolve(
    lhs: jax.Array, rhs: jax.Array, padding: Padding, precision: Any = None
) -> jax.Array:
    """Convolve by a window of three, with strides of one.

    Args:
        lhs: `[images, *space, channels]`.
        rhs: `[3, ..., channels, features]`.
        padding: a pair of widths for each axis of space.
        precision: of the products, as in `jax.lax`.

    Returns:
        `[images, *out_space, features]` in float32.
    """
    space = _out_space(lhs, padding)
    weights = _weights_in(rhs.astype(jnp.float32))
    product = ft.partial(jnp.matmul, precision=precision)
    count = _images_per_block(len(lhs), space, sum(rhs.shape[-2:]))
    blocks = lhs.reshape(-1, count, *lhs.shape[1:])

    def step(i: jax.Array, out: jax.Array) -> jax.Array:
        block = lax.dynamic_index_in_dim(blocks, i, keepdims=False)
        tiles = map(product, _inputs(block, space, padding), weights)
        y = _crop(_fold(_outputs, list(tiles), len(space)), space)
        return lax.dynamic_update_index_in_dim(out, y, i, 0)

    # Not a scan, which starts from zeros that XLA allocates when the program starts.
    zeros = jnp.zeros((*blocks.shape[:2], *space, rhs.shape[-1]), jnp.float32)
    out = lax.fori_loop(0, len(blocks), step, start_after(zeros, lhs))
    return out.reshape(-1, *out.shape[2:])


def weight_gradient(
    lhs: jax.Array, g: jax.Array, padding: Padding, precision: Any = None
) -> jax.Array:
    """The gradient of `convolve` in its second argument.

    Args:
        lhs: `[images, *space, channels]`.
        g: `[images, *out_space, features]`, the cotangent.
        padding: a pair of widths for each axis of space.
        precision: of the products, as in `jax.lax`.

    Returns:
        `[3, ..., channels, features]` in float32.
    """
    space = g.shape[1:-1]

    def over_tiles(x: jax.Array, g: jax.Array) -> jax.Array:
        # As matrices: XLA would copy arrays of more axes to make them so.
        x, g = (a.reshape(-1, a.shape[-1]) for a in (x, g))
        return jnp.matmul(x.T, g, precision=precision)

    def add(totals: Parts, blocks: tuple[jax.Array, jax.Array]) -> tuple[Parts, None]:
        inputs = _inputs(blocks[0], space, padding)
        products = map(over_tiles, inputs, _cotangents(blocks[1], space))
        return [total + p for total, p in zip(totals, products)], None

    # Tied, because XLA takes plain zeros out of enclosing loops and keeps them alive.
    channels = lhs.shape[-1], g.shape[-1]
    zeros = start_after(jnp.zeros(channels, jnp.float32), g)
    count = _images_per_block(len(lhs), space, sum(channels))
    x, g = (a.reshape(-1, count, *a.shape[1:]) for a in (lhs, g))
    totals, _ = lax.scan(add, [zeros] * 4 ** len(space), (x, g))
    return _weights_out(totals, len(space))


def _fits(lhs: jax.Array, rhs: jax.Array, padding: Padding) -> bool:
    if set(rhs.shape[:-2]) != {3}:
        return False
    space = _out_space(lhs, padding)
    count = _images_per_block(len(lhs), space, sum(rhs.shape[-2:]))
    return _tiles(space) * count >= _FEWEST_TILES


# --- blocks of images, cut into tiles of two by two outputs ---------------------------


def _out_space(lhs: jax.Array, padding: Padding) -> tuple[int, ...]:
    return tuple(n + sum(pair) - 2 for n, pair in zip(lhs.shape[1:-1], padding))


def _tiles(space: Sequence[int]) -> int:
    return math.prod(-(-n // 2) for n in space)


def _images_per_block(images: int, space: Sequence[int], channels: int) -> int:
    """The most that divide the images and take `_BLOCK_BYTES`, or one.

    And not over a quarter of the images: a block then takes no more bytes than the
    input and the output together.
    """
    each = 4 * 4 ** len(space) * channels * _tiles(space)
    most = max(1, min(images // 4, _BLOCK_BYTES // each))
    return next(n for n in range(most, 0, -1) if images % n == 0)


def _inputs(block: jax.Array, space: Sequence[int], padding: Padding) -> Parts:
    """`B^T x` of every tile: 4^axes arrays `[images, *tiles, channels]`."""
    even = [(low, high + n % 2, 0) for (low, high), n in zip(padding, space)]
    block = lax.pad(block, jnp.zeros((), block.dtype), [(0, 0, 0), *even, (0, 0, 0)])
    axes = range(1, block.ndim - 1)
    return _unfold(_inputs_in, block.astype(jnp.float32), axes)


def _cotangents(g: jax.Array, space: Sequence[int]) -> Parts:
    """`A g` of every tile: 4^axes arrays `[images, *tiles, features]`."""
    even = [(0, 0), *((0, n % 2) for n in space), (0, 0)]
    return _unfold(
        _cotangents_in, jnp.pad(g, even).astype(jnp.float32), range(1, g.ndim - 1)
    )


def _crop(y: jax.Array, space: Sequence[int]) -> jax.Array:
    return y[(slice(None), *map(slice, space))]


# --- G, as one product over the taps of all axes --------------------------------------

_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)


def _of_all_axes(axes: int) -> np.ndarray:
    return ft.reduce(np.kron, [_G] * axes)


def _weights_in(rhs: jax.Array) -> Parts:
    """`G w`: 4^axes arrays `[channels, features]`."""
    matrix = _of_all_axes(rhs.ndim - 2)
    # A product, so that a kernel which is a view of another one is copied once, and not
    # read against its order for each of the arrays.
    taps = rhs.reshape(matrix.shape[1], -1)
    return list(jnp.matmul(matrix, taps).reshape(-1, *rhs.shape[-2:]))


def _weights_out(totals: Parts, axes: int) -> jax.Array:
    """`G^T` of the gradients of `_weights_in`'s arrays."""
    channels = totals[0].shape
    stacked = jnp.stack(totals).reshape(len(totals), -1)
    taps = jnp.matmul(_of_all_axes(axes).T, stacked)
    return taps.reshape(*(3,) * axes, *channels)


# --- the other two matrices along one axis, and along all -----------------------------


def _unfold(f: Callable[..., Parts], a: jax.Array, axes: Sequence[int]) -> Parts:
    """`f` along each axis in turn: a list of 4 times as many arrays each time."""
    parts = [a]
    for axis in axes:
        parts = [q for p in parts for q in f(p, axis)]
    return parts


def _fold(f: Callable[..., jax.Array], parts: Parts, axes: int) -> jax.Array:
    """The way back: `f` of four neighbours and an axis, from the last axis on."""
    for axis in reversed(range(axes)):
        parts = [f(*parts[i : i + 4], axis) for i in range(0, len(parts), 4)]
    return parts[0]


def _inputs_in(x: jax.Array, axis: int) -> Parts:
    even, odd = _pairs(x, axis)
    cut = ft.partial(lax.slice_in_dim, axis=axis)
    a, b, c, d = (
        cut(even, 0, -1),
        cut(odd, 0, -1),
        cut(even, 1, None),
        cut(odd, 1, None),
    )
    return [a - c, b + c, c - b, b - d]


def _cotangents_in(g: jax.Array, axis: int) -> Parts:
    a, b = _pairs(g, axis)
    return [a, a + b, a - b, -b]


def _outputs(a, b, c, d, axis: int) -> jax.Array:
    y = jnp.stack([a + b + c, b - c - d], axis + 2)
    return y.reshape(*a.shape[: axis + 1], -1, *a.shape[axis + 2 :])


def _pairs(a: jax.Array, axis: int) -> Parts:
    """Every first and every second one along an axis of even length."""
    a = a.reshape(*a.shape[:axis], -1, 2, *a.shape[axis + 1 :])
    return [lax.index_in_dim(a, i, axis + 1, keepdims=False) for i in range(2)]
