"""Flax's layers over `[time, batch, ...]`, thin on top of its own.

Flax's layers act on the last axis (Linear, BatchNorm), on every element (Dropout) or on
one batch axis (Conv, pooling). `fold` makes one batch axis of time and batch where that
is needed; BatchNorm's moments run over time, batch and space together, as they should.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from flax.typing import PaddingLike

from .._bias import add_bias
from .._conv import conv_general_dilated
from .._norm import affine_of, batch_moments, normalize
from .._shards import batch_shards
from .._types import Array, check_time_major

Linear = nnx.Linear
Dropout = nnx.Dropout
Sequential = nnx.Sequential


def fold(f: Callable[[Array], Array], x: Array) -> Array:
    """Applies `f` over a single batch axis: `[time, batch, ...]` as `[batch, ...]`.

    Where devices share the batch, time goes inside of it: each device's samples stay
    side by side. With time outside, XLA gathers the whole array on every device.

    Args:
        f: `[batch, *in]` to `[batch, *out]`, each sample by itself.
        x: `[time, batch, *in]`.

    Returns:
        `[time, batch, *out]`.
    """
    if batch_shards() > 1:
        return _fold(f, x.swapaxes(0, 1)).swapaxes(0, 1)
    return _fold(f, x)


def _fold(f: Callable[[Array], Array], x: Array) -> Array:
    y = f(x.reshape((-1, *x.shape[2:])))
    return y.reshape((*x.shape[:2], *y.shape[1:]))


class Conv(nnx.Conv):
    """Convolution over `[time, batch, *space, channel]`; 1 to 3 dimensions of space.

    Its gradients are fast on a CPU, inside loops too; a GPU's library is left alone.
    Reverse mode only: `jax.jvp` fails.

    Args:
        in_features: channels that come in.
        out_features: channels that go out.
        kernel_size: one integer for two dimensions of space, or a tuple of integers.
        strides, padding: as `flax.nnx.Conv`.
        use_bias, bias_init: whether there is a bias, and its first values.
        rngs: where the initial kernel comes from.
        **settings: the rest of `flax.nnx.Conv`.

    Raises:
        ValueError: at a call, `x` is not `[time, batch, *space, channel]` with 1 to 3
            dimensions of space, or has other channels.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        *,
        padding: PaddingLike = "SAME",
        use_bias: bool = True,
        bias_init: nnx.Initializer = nnx.initializers.zeros,
        rngs: nnx.Rngs,
        **settings: Any,
    ) -> None:
        if isinstance(kernel_size, int):
            kernel_size = (kernel_size, kernel_size)
        settings.setdefault("conv_general_dilated", conv_general_dilated)
        super().__init__(
            in_features,
            out_features,
            kernel_size,
            strides,
            padding=padding,
            use_bias=False,  # Flax's; ours is added by `add_bias`
            rngs=rngs,
            **settings,
        )
        if use_bias:
            values = bias_init(rngs.params(), (out_features,), self.param_dtype)
            self.bias = nnx.Param(values)

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        """`[time, batch, *space, in_features]` to `[..., out_features]`."""
        _check_image(inputs, len(self.kernel_size), self.in_features)
        with jax.named_scope("snn.conv"):
            conv = functools.partial(super().__call__, out_sharding=out_sharding)
            y = fold(conv, inputs)
            return y if self.bias is None else add_bias(y, self.bias[...])


class BatchNorm(nnx.BatchNorm):
    """Batch normalisation over time, batch and space; one scale and bias a channel.

        y = (x - mean) / sqrt(var + epsilon) * scale + bias

    The mathematics is `batch_moments` and `normalize` of `_norm.py`; parameters and
    running statistics are those of `flax.nnx.BatchNorm`.

    Args:
        num_features: channels, the last axis.
        momentum: of the running statistics, `new = momentum * old + (1 - momentum) *
            batch`; 0.9 is PyTorch's 0.1, whose running variance is the unbiased one;
            this is the biased one, as Flax's.
        epsilon: added to the variance.
        use_scale, use_bias: whether there is one.
        dtype: of the output; None is the dtype that came. Moments are float32 at least.
        rngs: where initial parameters come from.

    Raises:
        ValueError: at a call, `x` has another rank or other channels.

    Source: over time and batch in an SNN, Zheng et al., "Going Deeper With Directly-
    Trained Larger Spiking Neural Networks", AAAI 2021.
    """

    def __init__(
        self,
        num_features: int,
        *,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        use_scale: bool = True,
        use_bias: bool = True,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            num_features,
            momentum=momentum,
            epsilon=epsilon,
            use_scale=use_scale,
            use_bias=use_bias,
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(
        self,
        x: Array,
        use_running_average: bool | None = None,
        *,
        mask: Array | None = None,
    ) -> Array:
        """`[time, batch, ..., num_features]`, normalized per feature."""
        if mask is not None:
            return super().__call__(x, use_running_average, mask=mask)
        factor, shift = self.affine(x, use_running_average)
        with jax.named_scope("snn.batch_norm"):
            return normalize(x, factor, shift).astype(self.dtype or x.dtype)

    def affine(
        self, x: Array, use_running_average: bool | None = None
    ) -> tuple[Array, Array]:
        """`factor` and `shift`, `[num_features]` each, that normalize `x`.

        Moves the running statistics as a call does; `x * factor + shift` is what the
        call of a plain `BatchNorm` returns, for whoever has a better place for it.
        """
        check_time_major(x, "x", "time batch ...")
        _check_features(x, self.num_features)
        given = use_running_average
        frozen = self.use_running_average if given is None else given
        with jax.named_scope("snn.batch_norm"):
            return self.running_affine() if frozen else self._affine(*self._moments(x))

    def running_affine(self) -> tuple[Array, Array]:
        """`factor` and `shift` by the running statistics."""
        return self._affine(self.mean[...], self.var[...])

    def _affine(self, mean: Array, var: Array) -> tuple[Array, Array]:
        scale = self.scale[...] if self.scale is not None else 1.0
        bias = self.bias[...] if self.bias is not None else 0.0
        return affine_of(mean, var, scale, bias, self.epsilon)

    def _moments(self, x: Array) -> tuple[Array, Array]:
        """The batch's moments, which also move the running ones."""
        batch = batch_moments(x)
        for running, new in zip((self.mean, self.var), batch):
            new = self.momentum * running[...] + (1 - self.momentum) * new
            running[...] = jax.lax.stop_gradient(new)
        return batch


class _Pool(nnx.Module):
    """What pooling layers share: the window, its strides and the folded axes."""

    def __init__(
        self,
        window: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        *,
        padding: Any = "VALID",
    ) -> None:
        self.window = (window, window) if isinstance(window, int) else tuple(window)
        strides = self.window if strides is None else strides
        space = len(self.window)
        self.strides = (
            (strides,) * space if isinstance(strides, int) else tuple(strides)
        )
        self.padding = padding

    def _check(self, x: Array) -> None:
        _check_image(x, len(self.window), None)

    def _tiles(self, x: Array) -> bool:
        """Whether the windows cover `x` without a gap, an overlap or a rest."""
        space = x.shape[2:-1]
        whole = all(n % w == 0 for n, w in zip(space, self.window))
        return whole and self.strides == self.window and self.padding == "VALID"


class AvgPool(_Pool):
    """Mean over windows of space, `[time, batch, *space, channel]`.

    Args:
        window: one integer for two dimensions of space, or a tuple of integers.
        strides: as `window`; `None` is the window itself.
        padding: `"VALID"`, `"SAME"` or pairs of integers; padded zeros count.

    Raises:
        ValueError: at a call, `x` is not `[time, batch, *space, channel]` with 1 to 3
            dimensions of space.
    """

    def __call__(self, x: Array) -> Array:
        self._check(x)
        with jax.named_scope("snn.avg_pool"):
            # Windows that tile are a mean over axes, whose gradient is a broadcast. The
            # gradient of the general form pads its cotangent to full size first: 67 MiB
            # more at the peak of the tutorial's VGG on XLA:CPU.
            if self._tiles(x):
                return _mean_of_tiles(x, self.window)
            return fold(self._sum, x) / math.prod(self.window)

    def _sum(self, x: Array) -> Array:
        return nnx.pool(x, 0.0, jax.lax.add, self.window, self.strides, self.padding)


def _mean_of_tiles(x: Array, window: tuple[int, ...]) -> Array:
    pairs = [(n // w, w) for n, w in zip(x.shape[2:-1], window)]
    tiles = x.reshape(*x.shape[:2], *(n for p in pairs for n in p), x.shape[-1])
    return tiles.mean(tuple(range(3, 3 + 2 * len(window), 2)))


class MaxPool(_Pool):
    """Maximum over windows of space, `[time, batch, *space, channel]`.

    Spikes stay spikes.

    Args:
        window, strides: as `AvgPool`.
        padding: as `AvgPool`; what is padded never wins.

    Raises:
        ValueError: as `AvgPool`.
    """

    def __call__(self, x: Array) -> Array:
        self._check(x)
        with jax.named_scope("snn.max_pool"):
            pool = nnx.max_pool
            return fold(lambda x: pool(x, self.window, self.strides, self.padding), x)


class Flatten(nnx.Module):
    """`[time, batch, ...]` to `[time, batch, feature]`.

    Raises:
        ValueError: at a call, `x` has fewer than two axes or no time step.
    """

    def __call__(self, x: Array) -> Array:
        check_time_major(x, "x", "time batch ...")
        return x.reshape((*x.shape[:2], math.prod(x.shape[2:])))


def _check_image(x: Array, space: int, channels: int | None) -> None:
    names = {1: "length", 2: "height width", 3: "depth height width"}.get(space)
    if names is None:
        raise ValueError(
            f"`kernel_size` or `window` has {space} dimensions; allowed are 1 to 3 "
            "dimensions of space, without time, batch and channel."
        )
    check_time_major(x, "x", f"time batch {names} channel")
    if channels is not None:
        _check_features(x, channels)


def _check_features(x: Array, features: int) -> None:
    if x.shape[-1] != features:
        raise ValueError(
            f"`x` has shape {tuple(x.shape)}; its last axis must be the {features} "
            "channels that this layer was made for. Channels-first arrays need "
            "`jnp.moveaxis(x, 2, -1)`."
        )
