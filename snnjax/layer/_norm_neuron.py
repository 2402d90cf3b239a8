"""A norm and the neuron that it drives, fused where both are ours."""

from typing import Any

from flax import nnx

from .._types import Array
from ..neuron import Neuron
from ._flax import BatchNorm


class NormNeuron(nnx.Module):
    """`neuron(norm(x))`, in one pass over the current where that can be.

    Of a `BatchNorm` and a neuron, the normalized current is not stored: it is made
    where the neuron reads it, forward and backward, in float32 at least. Whoever has a
    `__call__` of its own (a subclass, or a part that became a segment) is called.

    Args:
        norm: a `BatchNorm`, or any module that maps `[time, batch, ..., feature]` to
            the same shape.
        neuron: any module from currents to spikes.
        pool: of the normalized current, in front of the neuron.
    """

    def __init__(
        self, norm: nnx.Module, neuron: nnx.Module, pool: nnx.Module | None = None
    ) -> None:
        self.norm: Any = norm
        self.neuron: Any = neuron
        self.pool: Any = pool

    def __call__(self, x: Array) -> Array:
        """Spikes, `[time, batch, ..., feature]`, of `x` of that shape."""
        if self._fuses():
            affine = self.norm.affine(x)
            return self.neuron(x.astype(self.norm.dtype or x.dtype), *affine)
        current = self.norm(x)
        return self.neuron(current if self.pool is None else self.pool(current))

    def _fuses(self) -> bool:
        ours = {BatchNorm: self.norm, Neuron: self.neuron}
        plain = all(type(m).__call__ is cls.__call__ for cls, m in ours.items())
        return plain and self.pool is None
