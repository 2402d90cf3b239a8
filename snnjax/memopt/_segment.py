"""The gradient-checkpoint (GC) segment: a pure function that keeps only its input.

Forward it is the function itself. Of the residuals that its derivative needs, only
those remain that `policy` names, and the input, which is kept compressed; backward it
computes the rest again, gated (`snnjax/_gate.py`), and differentiates. Gradients are
those of the function, with respect to every argument.

Algorithm 1 of Huang et al., "Towards Lossless Memory-efficient Training of Spiking
Neural Networks via Gradient Checkpointing and Spike Compression", ICLR 2026, on top of
Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
"""

from collections.abc import Callable
from typing import Any

import jax

from .._gate import gate
from .._shards import alike
from .._types import Array
from ._compress import BaseSpikeCompressor, Payload, check_compressor

Policy = Callable[..., Any]


def gc_segment(
    f: Callable[..., Any],
    compressor: BaseSpikeCompressor,
    policy: Policy | None = None,
) -> Callable[..., Any]:
    """Makes a function keep only its input, compressed, until its backward pass.

    Args:
        f: pure function `f(x, *args)` of pytrees of arrays; `x` is one array. It must
            not close over traced values.
        compressor: what keeps `x`; it must be exact on every value that `x` can hold.
        policy: which further residuals to keep, as for `jax.checkpoint`; None keeps
            nothing else.

    Returns:
        A function with the values and gradients of `f`.

    Raises:
        ValueError: `compressor` is no instance of one.

    Example:
        >>> import jax.numpy as jnp
        >>> from snnjax.memopt import BitSpikeCompressor, gc_segment
        >>> f = gc_segment(lambda x, w: jnp.sin(x @ w), BitSpikeCompressor())
        >>> f(jnp.ones((1, 1, 8)), jnp.zeros((8, 2))).tolist()
        [[[0.0, 0.0]]]
    """
    check_compressor(compressor)
    kept = jax.checkpoint(f, prevent_cse=False, policy=policy)
    segment = jax.custom_vjp(f)

    def forward(x: Array, *args: Any) -> tuple[Any, Any]:
        y, pullback = jax.vjp(kept, x, *args)
        # A pullback is a pytree of its residuals, and one of them is `x` itself. So the
        # forward pass reads `x`, and only what is kept of it is compressed.
        pack = lambda a: compressor.pack(a) if a is x else a  # noqa: E731
        return y, jax.tree.map(pack, pullback)

    def backward(pullback: Any, cotangents: Any) -> tuple[Any, ...]:
        pullback, cotangents = gate(pullback, cotangents)
        unpack = lambda a: a.unpack() if _is_payload(a) else a  # noqa: E731
        return jax.tree.map(unpack, pullback, is_leaf=_is_payload)(cotangents)

    segment.defvjp(forward, backward)
    return lambda x, *args: segment(*alike((x, *args)))


def keep_products(primitive: Any, *_: Any, **__: Any) -> bool:
    """The policy that keeps synaptic currents: nothing costly is computed again."""
    return primitive.name in ("dot_general", "conv_general_dilated")


def _is_payload(a: Any) -> bool:
    return isinstance(a, Payload)
