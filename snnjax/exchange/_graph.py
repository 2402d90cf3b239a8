"""What a NIR graph may need that our layers are not: a factor, and branches."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from .._types import Array, with_axes_of


class Scale(nnx.Module):
    """`x * gain + offset`, which is not trained.

    Args:
        gain: a number, or an array of one time step of one sample, channels-last.
        offset: a number.
    """

    def __init__(self, gain: Any, offset: float = 0.0) -> None:
        self.gain = gain
        self.offset = offset

    def __call__(self, x: Array) -> Array:
        """`[time, batch, ...]` to the same."""
        gain = with_axes_of(x, jnp.asarray(self.gain, x.dtype))
        return x * gain + jnp.asarray(self.offset, x.dtype)


class Graph(nnx.Module):
    """Modules on the nodes of a graph; where edges meet, arrays are added.

    Args:
        nodes: a module by each name, but for `source`; in an order in which every node
            comes behind all that it takes.
        sources: for each name the names of what it takes: one array each.
        source: the name of the graph's input.
        sinks: names of which the sum is the result.
    """

    def __init__(
        self,
        nodes: Mapping[str, nnx.Module],
        sources: Mapping[str, Sequence[str]],
        source: str,
        sinks: Sequence[str],
    ) -> None:
        self.names = tuple(nodes)
        self.nodes = nnx.List(nodes.values())
        self.sources = tuple(tuple(sources[name]) for name in nodes)
        self.source, self.sinks = source, tuple(sinks)

    def __call__(self, x: Array) -> Array:
        """`[time, batch, ...]` to `[time, batch, ...]`."""
        values = {self.source: x}
        for name, module, sources in zip(self.names, self.nodes, self.sources):
            values[name] = module(_sum(values, sources))
        return _sum(values, self.sinks)


def _sum(values: Mapping[str, Array], names: Sequence[str]) -> Array:
    first, *others = (values[name] for name in names)
    return sum(others, first)
