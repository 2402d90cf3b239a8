"""The spike: Heaviside forward, a smooth derivative of your choice backward.

    spike(x) = 1 if x >= 0 else 0              forward, exactly
    d spike / dx := derivative(x)              backward, by decree

Surrogate gradients are surveyed in Neftci, Mostafa and Zenke, "Surrogate Gradient
Learning in Spiking Neural Networks", IEEE Signal Processing Magazine 36(6), 2019. Each
function below is written as its derivative; `surrogate` turns it into the spike. Use
one with another width by `functools.partial(atan, alpha=4.0)`, or decorate your own.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ._types import Array, check_floating


def surrogate(derivative: Callable[..., Array]) -> Callable[..., Array]:
    """Turns a derivative `d(x, width)` into a spike function with that derivative.

    Args:
        derivative: elementwise, any shape, any floating dtype.

    Returns:
        A function of the same arguments: 1 where `x >= 0` and 0 elsewhere, in `x`'s
        dtype, whose derivative with respect to `x` is `derivative`. It raises a
        ValueError unless `x` has a floating dtype.
    """

    @functools.wraps(derivative)
    def spike(x: Array, *args: float, **kwargs: float) -> Array:
        @jax.custom_jvp
        def fire(x: Array) -> Array:
            return (x >= 0).astype(x.dtype)

        @fire.defjvp
        def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
            (x,), (dx,) = primals, tangents
            return fire(x), dx * derivative(x, *args, **kwargs)

        x = jnp.asarray(x)
        check_floating(x, "x")
        with jax.named_scope("snn.spike"):
            return fire(x)

    spike.is_spike = True  # pyright: ignore[reportAttributeAccessIssue]
    return spike


@surrogate
def atan(x: Array, alpha: float = 2.0) -> Array:
    """Arctangent surrogate: `alpha / 2 / (1 + (pi / 2 * alpha * x)**2)`.

    Args:
        x: membrane potential minus threshold, any shape.
        alpha: inverse width; the peak is `alpha / 2`.

    Returns:
        Spikes, 0 or 1, of `x`'s shape and dtype.

    Source: Fang et al., "Incorporating Learnable Membrane Time Constant to Enhance
    Learning of Spiking Neural Networks", ICCV 2021.
    """
    return alpha / 2 / (1 + jnp.square(jnp.pi / 2 * alpha * x))


@surrogate
def sigmoid(x: Array, alpha: float = 4.0) -> Array:
    """Sigmoid surrogate: `alpha * s * (1 - s)` with `s = 1 / (1 + exp(-alpha * x))`.

    Args:
        x: membrane potential minus threshold, any shape.
        alpha: inverse width; the peak is `alpha / 4`.

    Returns:
        Spikes, 0 or 1, of `x`'s shape and dtype.

    Source: Zenke and Vogels, "The Remarkable Robustness of Surrogate Gradient Learning
    for Instilling Complex Function in Spiking Neural Networks", Neural Computation
    2021.
    """
    s = jax.nn.sigmoid(alpha * x)
    return alpha * s * (1 - s)


@surrogate
def triangle(x: Array, width: float = 1.0) -> Array:
    """Triangular surrogate: `max(0, 1 - |x| / width) / width`, of area one.

    Args:
        x: membrane potential minus threshold, any shape.
        width: half of the base; beyond it the gradient is exactly zero.

    Returns:
        Spikes, 0 or 1, of `x`'s shape and dtype.

    Source: Bellec et al., "Long Short-Term Memory and Learning-to-Learn in Networks of
    Spiking Neurons", NeurIPS 2018 (there without the division by `width`).
    """
    return jnp.maximum(0, 1 - jnp.abs(x) / width) / width


@surrogate
def rectangle(x: Array, width: float = 1.0) -> Array:
    """Rectangular (boxcar) surrogate: `1 / width` where `|x| < width / 2`, else 0.

    Args:
        x: membrane potential minus threshold, any shape.
        width: length of the box.

    Returns:
        Spikes, 0 or 1, of `x`'s shape and dtype.

    Source: Wu et al., "Spatio-Temporal Backpropagation for Training High-Performance
    Spiking Neural Networks", Frontiers in Neuroscience 2018, its first curve.
    """
    return (jnp.abs(x) < width / 2).astype(x.dtype) / width


@surrogate
def super_spike(x: Array, beta: float = 10.0) -> Array:
    """SuperSpike (fast sigmoid) surrogate: `1 / (1 + beta * |x|)**2`.

    Args:
        x: membrane potential minus threshold, any shape.
        beta: inverse width; the peak is 1.

    Returns:
        Spikes, 0 or 1, of `x`'s shape and dtype.

    Source: Zenke and Ganguli, "SuperSpike: Supervised Learning in Multilayer Spiking
    Neural Networks", Neural Computation 2018.
    """
    return 1 / jnp.square(1 + beta * jnp.abs(x))


@surrogate
def gaussian(x: Array, sigma: float = 0.5) -> Array:
    """Gaussian surrogate: `exp(-x**2 / (2 * sigma**2)) / (sigma * sqrt(2 * pi))`.

    Args:
        x: membrane potential minus threshold, any shape.
        sigma: standard deviation; the area is one.

    Returns:
        Spikes, 0 or 1, of `x`'s shape and dtype.

    Source: Wu et al. 2018 (as `rectangle`), its fourth curve; Yin, Corradi and Bohté,
    "Accurate and Efficient Time-Domain Classification with Adaptive Spiking Recurrent
    Neural Networks", Nature Machine Intelligence 2021.
    """
    scale = 1 / (sigma * (2 * jnp.pi) ** 0.5)
    return scale * jnp.exp(-jnp.square(x / sigma) / 2)
