"""A segment of any function: for Linen, Equinox, and plain functions of parameters.

What `_container.py` is for nnx modules, without a plan and without state: statistics
and counters that a function changes are among its results, as in Linen's
`apply(..., mutable=...)`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from .._types import Array
from ._arguments import ARRAYS, Arrays, arrays_of
from ._checks import check_whole
from ._compress import (
    BaseSpikeCompressor,
    BitSpikeCompressor,
    NullSpikeCompressor,
    Payload,
    check_compressor,
)
from ._declared import held_to
from ._segment import Policy, gc_segment


def checkpoint(
    fn: Callable[..., Any],
    *,
    compressor: BaseSpikeCompressor | None = None,
    unchecked: bool = False,
    argnum: int = 1,
    policy: Policy | None = None,
) -> Callable[..., Any]:
    """`fn`, of which a gradient keeps only the arguments, and its input compressed.

    Backward, `fn` is computed again, tied to the incoming gradient; unlike
    `jax.checkpoint`, that saves memory on a CPU, too. Values and gradients are those
    of `fn`, by every array among the arguments.

    Args:
        fn: pure function, such as a Linen module's `apply` or an Equinox module's call:
            `fn(params, x, ...)`. Arguments are any pytrees; what is no array in them is
            static. It must not close over traced values: pass them.
        compressor: declares what the input holds, such as `BitSpikeCompressor()` for
            {0, 1}. None packs bool arrays, of which the dtype is the proof, and keeps
            others as they are: nothing else is known of them here, where there is no
            plan of the whole model.
        unchecked: leave out the check of that declaration, which every gradient makes
            on its data: something else makes sure of it.
        argnum: which positional argument the input is, one array `[time, batch, ...]`;
            1 is the one after the parameters.
        policy: which further residuals to keep, as for `jax.checkpoint`; None keeps
            nothing else.

    Returns:
        A function of the same arguments.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from snnjax import memopt
        >>> layer = memopt.checkpoint(lambda w, x: jnp.tanh(x.astype(w.dtype) @ w))
        >>> jax.grad(lambda w: layer(w, jnp.ones((1, 1, 2), bool)).sum())(jnp.eye(2))
        Array([[0.41997433, 0.41997433],
               [0.41997433, 0.41997433]], dtype=float32)

    Raises:
        ValueError: `argnum` is no whole number from 0, `compressor` is no instance; at
            a call, the input is not one array; when a gradient runs, it holds something
            that `compressor` is not exact on.
    """
    _check(argnum, compressor)

    @functools.wraps(fn)
    def segment(*args: Any, **kwargs: Any) -> Any:
        x = _input(args, argnum)
        rest = (*args[:argnum], None, *args[argnum + 1 :]), kwargs
        arrays, rebuild = arrays_of(rest)

        def run(x: Array, arrays: Arrays) -> Any:
            args, kwargs = rebuild(arrays)
            return fn(*args[:argnum], x, *args[argnum + 1 :], **kwargs)

        keep = _keeps(x, compressor, unchecked)
        return gc_segment(run, keep, policy)(x, arrays)

    return segment


def _check(argnum: Any, compressor: Any) -> None:
    check_whole("argnum", argnum, 0, "Count from the left.")
    if compressor is not None:
        check_compressor(compressor)


def _input(args: tuple[Any, ...], argnum: int) -> Array:
    x = args[argnum] if argnum < len(args) else None
    if not isinstance(x, ARRAYS):
        raise ValueError(
            f"`argnum` is {argnum}, and one of {len(args)} positional arguments is "
            f"{type(x).__name__}; it must be one array [time, batch, ...]. Say which "
            "argument the input is, and pass it by position."
        )
    return jnp.asarray(x)


def _keeps(
    x: Array, compressor: BaseSpikeCompressor | None, unchecked: bool
) -> BaseSpikeCompressor:
    if compressor is None:
        return BitSpikeCompressor() if x.dtype == bool else NullSpikeCompressor()
    return compressor if unchecked else _Declared(compressor)


@dataclasses.dataclass(frozen=True)
class _Declared(NullSpikeCompressor):
    """Packs by `compressor`, once the data is what that holds."""

    compressor: BaseSpikeCompressor

    def pack(self, x: Array) -> Payload:
        grid = self.compressor.holds
        if grid is not None:
            x = held_to(x, grid, self._message)
        return self.compressor.pack(x)

    def _message(self, worst: float) -> str:
        return (
            f"`compressor` is {self.compressor}, which is exact on "
            f"{self.compressor.holds}; the input of a checkpoint holds {worst:g}. Take "
            "another compressor, or None."
        )
