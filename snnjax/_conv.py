"""A convolution whose gradients are quick and small on XLA's CPU backend.

To whatever reads a traced program it is `jax.lax.conv_general_dilated`. A CPU's program
is ours: windows of three over many channels go by Winograd's algorithm, and so do the
gradients; other weight gradients are matrix products, since XLA's own runs at a third
of the rate of one and keeps copies of the whole input. Inside a loop both of XLA's
gradients are slower still, by 4 to 80 times. Other platforms keep XLA's own. Groups,
dilation, channels-first layouts and forward-mode differentiation are left out: what is
not served falls back to `jax.lax`, except that a served convolution has no `jax.jvp`.
Blocks cut the image axis, so each device that shares it cuts blocks of its own; without
`jax.set_mesh` nothing says that devices do, and each gathers the whole axis.
"""

import functools as ft
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import _winograd, kernels
from ._marks import TRUSTED, marked
from ._shards import alike, batch_shards

# Measured on two cores: longer products hardly gain and take more scratch.
_POSITIONS_PER_BLOCK = 1024
_SERVED_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


class _Window(NamedTuple):
    """The static part of a served convolution, hashable for `custom_vjp`."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    precision: Any


def conv_general_dilated(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Convolve as `jax.lax.conv_general_dilated` does, with quick gradients on CPU.

    out[n, p, o] = sum over q, i of lhs[n, strides * p + q - padding, i] * rhs[q, i, o]

    Args:
        lhs: the input; `[images, *space, channels]` where our gradients serve.
        rhs: the kernel; `[*window, channels, features]` where our gradients serve.
        window_strides: one stride a spatial axis.
        padding: `"SAME"`, `"VALID"` or a pair of widths a spatial axis.
        lhs_dilation: as in `jax.lax`; anything but ones falls back.
        rhs_dilation: as in `jax.lax`; anything but ones falls back.
        dimension_numbers: as in `jax.lax`; channels must come last, or it falls back.
        feature_group_count: as in `jax.lax`; anything but 1 falls back.
        batch_group_count: as in `jax.lax`; anything but 1 falls back.
        precision: as in `jax.lax`, used by the gradients too.
        preferred_element_type: as in `jax.lax`; another dtype falls back.
        out_sharding: as in `jax.lax`; anything but None falls back.

    Returns:
        The convolved array, as `jax.lax` gives it.
    """
    ones = (1,) * (lhs.ndim - 2)
    plain = (
        tuple(lhs_dilation or ones) == tuple(rhs_dilation or ones) == ones
        and feature_group_count == batch_group_count == 1
        and out_sharding is None
        and preferred_element_type in (None, lhs.dtype)
        and _channels_last(lhs, rhs, dimension_numbers)
    )
    if plain:
        window = _window(lhs, rhs, window_strides, padding, precision)
        if _served(lhs, rhs, window):
            return _trusted_conv(window, *alike((lhs, rhs)))
    return lax.conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=dimension_numbers,
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )


def _channels_last(lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any) -> bool:
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    return numbers == _numbers(lhs.ndim)


def _numbers(ndim: int) -> lax.ConvDimensionNumbers:
    space = tuple(range(1, ndim - 1))
    kernel = (ndim - 1, ndim - 2, *range(ndim - 2))
    images = (0, ndim - 1, *space)
    return lax.ConvDimensionNumbers(images, kernel, images)


def _window(lhs, rhs, strides, padding, precision) -> _Window:
    if isinstance(padding, str):
        sizes = rhs.shape[:-2]
        padding = lax.padtype_to_pads(lhs.shape[1:-1], sizes, strides, padding)
    pads = tuple((int(low), int(high)) for low, high in padding)
    if isinstance(precision, list):
        precision = tuple(precision)
    return _Window(tuple(int(s) for s in strides), pads, precision)


def _served(lhs: jax.Array, rhs: jax.Array, window: _Window) -> bool:
    # Padding wider than the window would ask the input gradient to crop.
    sizes = rhs.shape[:-2]
    pads_fit = all(
        0 <= p < size for pair, size in zip(window.padding, sizes) for p in pair
    )
    fits = all(
        n + sum(pair) >= size
        for n, pair, size in zip(lhs.shape[1:-1], window.padding, sizes)
    )
    dtypes = lhs.dtype == rhs.dtype and lhs.dtype in _SERVED_DTYPES
    return dtypes and pads_fit and fits and min(lhs.size, rhs.size) > 0


def _lax_conv(window: _Window, lhs, rhs, preferred_element_type=None) -> jax.Array:
    return lax.conv_general_dilated(
        lhs,
        rhs,
        window.strides,
        window.padding,
        dimension_numbers=_numbers(lhs.ndim),
        precision=window.precision,
        preferred_element_type=preferred_element_type,
    )


# By the name and the parameters of lax's own it is read as what it computes; a switch
# over platforms in the traced program would be in the way of all who read it.
_LAX = lax.conv_general_dilated_p
_conv_p = Primitive(_LAX.name)
_conv_p.def_effectful_abstract_eval(_LAX.abstract_eval)


def _our_conv(window: _Window, lhs, rhs, preferred_element_type=None) -> jax.Array:
    like = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (lhs, rhs))
    of_lax = ft.partial(
        _lax_conv, window, preferred_element_type=preferred_element_type
    )
    return _conv_p.bind(lhs, rhs, **jax.make_jaxpr(of_lax)(*like).eqns[0].params)


@_conv_p.def_impl
def _eager(lhs: jax.Array, rhs: jax.Array, **params: Any) -> jax.Array:
    with jax.disable_jit(False):
        return jax.jit(ft.partial(_conv_p.bind, **params))(lhs, rhs)


def _batched(args: Sequence[jax.Array], dims: Sequence[Any], **params: Any) -> Any:
    return jax.vmap(ft.partial(_LAX.bind, **params), in_axes=tuple(dims))(*args), 0


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    """Of a gradient that is differentiated again: by XLA's own."""
    tangents = tuple(ad.instantiate_zeros(t) for t in tangents)
    return jax.jvp(ft.partial(_LAX.bind, **params), tuple(primals), tangents)


def _on_cpu(lhs: jax.Array, rhs: jax.Array, **params: Any) -> jax.Array:
    padding, precision = params["padding"], params["precision"]
    strided = max(params["window_strides"]) > 1
    if strided or not _winograd.convolves_faster(lhs, rhs, padding):
        return _LAX.bind(lhs, rhs, **params)
    out = _winograd.convolve(lhs, rhs, padding, precision)
    return out.astype(params["preferred_element_type"] or lhs.dtype)


def _lower_on_cpu(ctx: Any, *args: Any, **params: Any) -> Any:
    # Blocks cut the images, which XLA may have cut among devices.
    one = kernels.is_local(ctx.module_context.axis_context)
    f = _on_cpu if one else _LAX.bind
    return mlir.lower_fun(f, multiple_results=False)(ctx, *args, **params)


ad.primitive_jvps[_conv_p] = _jvp
batching.primitive_batchers[_conv_p] = _batched
mlir.register_lowering(_conv_p, mlir.lower_fun(_LAX.bind, multiple_results=False))
mlir.register_lowering(_conv_p, _lower_on_cpu, platform="cpu")


@ft.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _conv(window: _Window, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return _our_conv(window, lhs, rhs)


def _conv_fwd(window: _Window, lhs: jax.Array, rhs: jax.Array):
    return _our_conv(window, lhs, rhs), (lhs, rhs)


def _conv_bwd(window: _Window, residuals: tuple[jax.Array, jax.Array], g: jax.Array):
    # Two switches, so that an input gradient nobody asks for is dropped whole.
    gradients = (
        lax.platform_dependent(
            *residuals,
            g,
            cpu=ft.partial(ours, window),
            default=ft.partial(_transposed, window, argument),
        )
        for argument, ours in enumerate((_input_gradient, _weight_gradient))
    )
    return tuple(gradients)


_conv.defvjp(_conv_fwd, _conv_bwd)


@marked(TRUSTED, static_argnums=0)
def _trusted_conv(window: _Window, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return _conv(window, lhs, rhs)


def _transposed(window: _Window, argument: int, lhs, rhs, g) -> jax.Array:
    """Give XLA's own gradient: the transpose of the convolution in one argument."""
    if argument == 0:
        return jax.linear_transpose(lambda x: _lax_conv(window, x, rhs), lhs)(g)[0]
    return jax.linear_transpose(lambda w: _lax_conv(window, lhs, w), rhs)(g)[0]


def _input_gradient(window: _Window, lhs, rhs, g) -> jax.Array:
    """Convolve the cotangent with the flipped, transposed kernel.

    dlhs[n, p, i] = sum over q, o of g[n, (p + padding - q) / strides, o] * rhs[q, i, o]

    Args:
        window: the strides and the padding.
        lhs: `[images, *space, channels]`, for its shape.
        rhs: `[*window, channels, features]`, the kernel.
        g: `[images, *out_space, features]`, the cotangent.

    Returns:
        `[images, *space, channels]` in the dtype of `lhs`.
    """
    g = _dilate(g, window.strides)
    sizes = rhs.shape[:-2]
    lows = [size - 1 - low for size, (low, _) in zip(sizes, window.padding)]
    wanted, given = lhs.shape[1:-1], g.shape[1:-1]
    highs = map(lambda a, b, k, low: a + k - 1 - b - low, wanted, given, sizes, lows)
    back = _Window((1,) * len(sizes), tuple(zip(lows, highs)), window.precision)
    flipped = jnp.flip(rhs, tuple(range(len(sizes)))).swapaxes(-1, -2)
    return _our_conv(back, g, flipped, jnp.float32).astype(lhs.dtype)


def _dilate(g: jax.Array, strides: tuple[int, ...]) -> jax.Array:
    if max(strides) == 1:
        return g
    between = [(0, 0, 0), *((0, 0, stride - 1) for stride in strides), (0, 0, 0)]
    return lax.pad(g, jnp.zeros((), g.dtype), between)


def _weight_gradient(window: _Window, lhs, rhs, g) -> jax.Array:
    """Sum one matrix product for each kernel tap and each block of images.

    drhs[q, i, o] = sum over n, p of lhs[n, strides * p + q - padding, i] * g[n, p, o]

    Args:
        window: the strides and the padding.
        lhs: `[images, *space, channels]`, the input.
        rhs: `[*window, channels, features]`, for its shape and dtype.
        g: `[images, *out_space, features]`, the cotangent.

    Returns:
        `[*window, channels, features]` in the dtype of `rhs`, accumulated in float32.
    """
    shards = batch_shards()
    if shards > 1 and lhs.shape[0] % shards == 0:  # each sums over images of its own
        lhs, g = (a.reshape((shards, -1, *a.shape[1:])) for a in (lhs, g))
        own = jax.vmap(ft.partial(_weight_gradient_of, window), (0, None, 0))
        return own(lhs, rhs, g).sum(0).astype(rhs.dtype)
    return _weight_gradient_of(window, lhs, rhs, g).astype(rhs.dtype)


def _weight_gradient_of(window: _Window, lhs, rhs, g) -> jax.Array:
    """`_weight_gradient` in float32, of images on one device."""
    unit = max(window.strides) == 1
    if unit and _winograd.weighs_faster(lhs, rhs, window.padding):
        return _winograd.weight_gradient(lhs, g, window.padding, window.precision)
    images, block = lhs.shape[0], _images_per_block(window, lhs, rhs, g)
    # The odd images go first: their products start the accumulator, because XLA hoists
    # an accumulator of plain zeros out of enclosing loops and keeps it alive.
    head = images % block or block
    product = _tap_products(window, rhs.shape[:-2], lhs, g, 0, head)
    total = lax.map(product, jnp.arange(math.prod(rhs.shape[:-2])))

    def step(i, total):
        start = head + i * block
        product = _tap_products(window, rhs.shape[:-2], lhs, g, start, block)
        # A loop and not nine products: only one tap's copy of the block is then alive.
        return lax.fori_loop(0, len(total), ft.partial(_add_tap, product), total)

    total = lax.fori_loop(0, (images - head) // block, step, total)
    return total.reshape(rhs.shape)


def _images_per_block(window: _Window, lhs, rhs, g) -> int:
    taps = math.prod(rhs.shape[:-2])
    if taps == 1 and max(window.strides) == 1:
        return lhs.shape[0]  # a plain matrix product: nothing is copied
    positions = math.prod(g.shape[1:-1])
    return min(lhs.shape[0], max(1, _POSITIONS_PER_BLOCK // positions))


def _add_tap(product, tap, total: jax.Array) -> jax.Array:
    new = lax.dynamic_index_in_dim(total, tap, keepdims=False) + product(tap)
    return lax.dynamic_update_index_in_dim(total, new, tap, 0)


def _tap_products(window: _Window, sizes, lhs, g, start, images: int):
    """Give the function from a tap's number to its product over one block of images."""
    block = lax.dynamic_slice_in_dim(lhs, start, images)
    block = jnp.pad(block, ((0, 0), *window.padding, (0, 0)))
    g = lax.dynamic_slice_in_dim(g, start, images)
    spans = [(n - 1) * s + 1 for n, s in zip(g.shape[1:-1], window.strides)]
    dims = tuple(range(g.ndim - 1))

    def product(tap):
        corner = (0, *jnp.unravel_index(tap, sizes), 0)
        shifted = lax.dynamic_slice(block, corner, (images, *spans, block.shape[-1]))
        shifted = shifted[
            (slice(None), *(slice(None, None, s) for s in window.strides))
        ]
        return lax.dot_general(
            shifted,
            g,
            ((dims, dims), ((), ())),
            precision=window.precision,
            preferred_element_type=jnp.float32,
        )

    return product
