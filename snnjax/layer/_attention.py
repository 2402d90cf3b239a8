"""Attention between spikes, without a softmax: sums of coincidences, and a neuron.

Queries, keys and values are spikes, so their products are whole numbers, exact in
float32 up to 2**24 in whichever order they are taken; half precisions round. They map
`[time, batch, ..., features]` to the same shape, axes in between being places (two of
them, height and width, for `SpikeDrivenSelfAttention`), every time step by itself.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .. import neuron as _neuron
from .._types import Array, check_time_major
from ._block import LinearBlock, MakeNeuron
from ._flax import Sequential
from ._rep_conv import RepConv

_LIF = functools.partial(_neuron.LIF, detach_reset=True)


def _attend(q: Array, k: Array, v: Array, heads: int, scale: float) -> Array:
    """`(q @ k.T @ v) * scale` for every time step, sample and head, without a softmax.

    Computed as `q @ (k.T @ v)`, which holds no places-by-places matrix.

    Args:
        q, k, v: spikes, `[time, batch, place, feature]`.
        heads: that the features are divided into.
        scale: of the sums.

    Returns:
        Scaled sums of coincidences, `[time, batch, place, feature]`.
    """
    shape = (*q.shape[:3], heads, -1)
    q, k, v = (a.reshape(shape) for a in (q, k, v))
    coincidences = jnp.einsum("tbnhd,tbnhe->tbhde", k, v)
    y = jnp.einsum("tbnhd,tbhde->tbnhe", q, coincidences)
    return y.reshape((*y.shape[:3], -1)) * scale


class SpikingSelfAttention(nnx.Module):
    """Spiking self-attention (SSA), Spikformer's.

        q, k, v = LIF(BN(x W_q)), LIF(BN(x W_k)), LIF(BN(x W_v))
        y = LIF(BN(LIF(q @ k.T @ v * scale) W_o))

    Args:
        features: that come in and go out, a multiple of `heads`.
        heads: of the attention.
        scale: of the sums of coincidences.
        attention_threshold: of the neuron that reads them.
        neuron: makes a neuron; it takes `v_threshold`.
        dtype: of the computation; parameters stay float32.
        rngs: where the initial parameters come from.

    Raises:
        ValueError: `heads` does not divide `features`; at a call, the rank of `x`.

    Source: Zhou et al., "Spikformer: When Spiking Neural Network Meets Transformer",
    ICLR 2023.
    """

    def __init__(
        self,
        features: int,
        heads: int = 8,
        *,
        scale: float = 0.125,
        attention_threshold: float = 0.5,
        neuron: MakeNeuron = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        _check_heads(features, heads)
        block = _blocks(features, neuron, dtype, rngs)
        self.q, self.k, self.v = block(), block(), block()
        self.neuron = neuron(v_threshold=attention_threshold)
        self.projection = block(use_bias=True)
        self.heads, self.scale = heads, scale

    def __call__(self, x: Array) -> Array:
        """`[time, batch, ..., features]` to spikes of the same shape."""
        with jax.named_scope("snn.spiking_self_attention"):
            tokens = _flat_places(x)
            q, k, v = self.q(tokens), self.k(tokens), self.v(tokens)
            y = self.neuron(_attend(q, k, v, self.heads, self.scale))
            return self.projection(y).reshape(x.shape)


class TokenQKAttention(nnx.Module):
    """Q-K token attention (QKTA), QKFormer's: queries choose places, linear in them.

        q, k = LIF(BN(x W_q)), LIF(BN(x W_k))
        y = LIF(BN((LIF(sum of q over a head's features) * k) W_o))

    Args:
        features, heads, attention_threshold, neuron, dtype, rngs: as for
            `SpikingSelfAttention`.

    Raises:
        ValueError: as `SpikingSelfAttention`.

    Source: Zhou et al., "QKFormer: Hierarchical Spiking Transformer using Q-K
    Attention", NeurIPS 2024.
    """

    def __init__(
        self,
        features: int,
        heads: int = 8,
        *,
        attention_threshold: float = 0.5,
        neuron: MakeNeuron = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        _check_heads(features, heads)
        block = _blocks(features, neuron, dtype, rngs)
        self.q, self.k = block(), block()
        self.neuron = neuron(v_threshold=attention_threshold)
        self.projection = block(use_bias=True)
        self.heads = heads

    def __call__(self, x: Array) -> Array:
        """`[time, batch, ..., features]` to spikes of the same shape."""
        with jax.named_scope("snn.token_qk_attention"):
            tokens = _flat_places(x)
            heads = (*tokens.shape[:3], self.heads, -1)
            q, k = self.q(tokens).reshape(heads), self.k(tokens).reshape(heads)
            chosen = self.neuron(q.sum(-1, keepdims=True))
            y = (chosen * k).reshape(tokens.shape)
            return self.projection(y).reshape(x.shape)


class SpikeDrivenSelfAttention(nnx.Module):
    """Spike-driven self-attention (SDSA-3) of Meta-SpikeFormer, between membranes.

        s = LIF(x)
        q, k, v = LIF(R_q(s)), LIF(R_k(s)), LIF(R_v(s))
        y = R_o(LIF(q @ k.T @ v * scale))

    with `R` a re-parametrizable convolution (`RepConv`). It takes and gives currents,
    as a shortcut between membranes wants them.

    Args:
        features, heads, scale, attention_threshold, neuron, dtype, rngs: as for
            `SpikingSelfAttention`.

    Raises:
        ValueError: as `SpikingSelfAttention`.

    Source: Yao et al., "Spike-driven Transformer V2: Meta Spiking Neural Network
    Architecture Inspiring the Design of Next-generation Neuromorphic Chips", ICLR
    2024.
    """

    def __init__(
        self,
        features: int,
        heads: int = 8,
        *,
        scale: float = 0.125,
        attention_threshold: float = 0.5,
        neuron: MakeNeuron = _LIF,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        _check_heads(features, heads)
        convs = [RepConv(features, dtype=dtype, rngs=rngs) for _ in range(4)]
        *inner, self.projection = convs
        self.first = neuron()
        self.q, self.k, self.v = (Sequential(conv, neuron()) for conv in inner)
        self.neuron = neuron(v_threshold=attention_threshold)
        self.heads, self.scale = heads, scale

    def __call__(self, x: Array) -> Array:
        """Currents `[time, batch, height, width, features]` to the same shape."""
        check_time_major(x, "x", "time batch height width channel")
        with jax.named_scope("snn.spike_driven_self_attention"):
            s = self.first(x)
            q, k, v = (_flat_places(part(s)) for part in (self.q, self.k, self.v))
            y = self.neuron(_attend(q, k, v, self.heads, self.scale))
            return self.projection(y.reshape(x.shape))


def _check_heads(features: int, heads: int) -> None:
    """Raises unless features can be divided into heads."""
    if heads < 1 or features % heads:
        raise ValueError(
            f"`features` is {features} and `heads` is {heads}; allowed is a number of "
            "heads that divides the features."
        )


def _flat_places(x: Array) -> Array:
    """`[time, batch, ..., feature]` as `[time, batch, place, feature]`."""
    check_time_major(x, "x", "time batch place ...")
    places = math.prod(x.shape[2:-1])
    return x.reshape((*x.shape[:2], places, x.shape[-1]))


def _blocks(features: int, neuron: MakeNeuron, dtype: Any, rngs: nnx.Rngs) -> Any:
    settings = {"neuron": neuron, "dtype": dtype, "rngs": rngs}
    return functools.partial(LinearBlock, features, features, **settings)
