"""A NIR graph as a model of ours."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from .. import layer, neuron
from ._graph import Graph, Scale
from ._nir import GROUPS, channels_last, library, places_in_nir, reorders


def from_nir(graph: Any, *, dt: float = 1.0) -> nnx.Module:
    """Makes a model of a NIR graph.

    A chain becomes a `Sequential`, anything else without a cycle a `Graph`. Exact are
    Affine, Linear, Scale, Conv1d, Conv2d, SumPool2d, AvgPool2d, Flatten, IF and LIF,
    whose parameters must be the same for all neurons of a node.

    Args:
        graph: a `nir.NIRGraph` with one Input and one Output, such as `nir.read` gives.
        dt: how long a time step is, in the unit of the graph's `tau`. The graph itself
            does not say; what wrote it does.

    Returns:
        A module that takes `[time, batch, ...]`, channels-last.

    Raises:
        ValueError: the graph has a cycle, or not one Input and one Output; a node takes
            nothing, has no layer here, groups, or parameters that differ by neuron;
            `tau` is shorter than `dt`; features are flattened in an order that is lost.
        ImportError: the extra `nir` is not installed.
    """
    library()
    name, sinks, order = _check(graph)
    before: dict[str, tuple[int, ...] | None] = {name: None}
    sources: dict[str, list[str]] = {}
    modules: dict[str, nnx.Module] = {}
    for node in order:
        sources[node] = [a for a, b in graph.edges if b == node]
        flat = {before[a] for a in sources[node]}
        if len(flat) > 1:
            raise ValueError(
                f"node {node!r} adds features that were flattened from {flat}, whose "
                "orders differ here; allowed is one shape. Add before the Flatten."
            )
        made = _module(node, graph.nodes[node], flat.pop(), dt)
        modules[node], before[node] = made
    _check_order(before, sinks)
    chain = [name, *order]
    if all(sources[b] == [a] for a, b in zip(chain, chain[1:])) and sinks == chain[-1:]:
        return layer.Sequential(*modules.values())
    return Graph(modules, sources, name, sinks)


def _check_order(before: Any, sinks: list[str]) -> None:
    for sink in sinks:
        if before[sink] is not None and reorders(before[sink]):
            raise ValueError(
                f"node {sink!r} gives flattened features to the output, whose order is "
                "another here; allowed is an end before the Flatten, or a Linear "
                "behind it."
            )


def _check(graph: Any) -> tuple[str, list[str], list[str]]:
    """The input's name, those of what goes to the output, and the others in order."""
    inputs, outputs = list(graph.inputs), list(graph.outputs)
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError(
            f"the graph has inputs {inputs} and outputs {outputs}; allowed is one each."
        )
    left = [n for n in graph.nodes if n not in (*inputs, *outputs)]
    alone = [n for n in left if not any(b == n for _, b in graph.edges)]
    if alone:
        raise ValueError(
            f"the nodes {alone} take nothing; allowed are nodes that the input reaches."
        )
    order: list[str] = []
    while left:
        done = {*inputs, *order}
        ready = [n for n in left if all(a in done for a, b in graph.edges if b == n)]
        if not ready:
            raise ValueError(
                f"the nodes {left} take what they give, in a cycle; allowed are graphs "
                "without one."
            )
        order.append(ready[0])
        left.remove(ready[0])
    sinks = [a for a, b in graph.edges if b == outputs[0]]
    return inputs[0], sinks, order


Made = tuple[nnx.Module, tuple[int, ...] | None]


def _module(name: str, node: Any, before: Any, dt: float) -> Made:
    """A node's module; and the shape that its features had when they were flattened."""
    kind = type(node).__name__
    if kind == "Flatten":
        return layer.Flatten(), _flattened(name, node, before)
    if kind in ("IF", "LIF"):
        return _neuron(name, node, dt), before
    if kind == "Scale":
        return Scale(_scale(node, before)), before
    if kind == "NIRGraph" and before is None:
        return from_nir(node, dt=dt), None
    if kind == "NIRGraph":
        raise ValueError(
            f"node {name!r} is a NIRGraph behind a Flatten, whose order it would not "
            "know; allowed is one before it. Put the Flatten inside."
        )
    make: dict[str, Callable[[], nnx.Module]] = {
        "Affine": functools.partial(_linear, name, node, before),
        "Linear": functools.partial(_linear, name, node, before),
        "Conv1d": functools.partial(_conv, name, node),
        "Conv2d": functools.partial(_conv, name, node),
        "AvgPool2d": functools.partial(_pool, node),
        "SumPool2d": functools.partial(_sum_pool, node),
    }
    if kind not in make:
        raise ValueError(
            f"node {name!r} is a {kind}, which is not read; allowed are "
            f"{', '.join([*make, 'Flatten', 'IF', 'LIF', 'Scale', 'NIRGraph'])}."
        )
    return make[kind](), None


def _flattened(name: str, node: Any, before: Any) -> tuple[int, ...] | None:
    shape = tuple(int(n) for n in node.input_type["input"])
    if int(np.prod(shape)) != max(np.atleast_1d(node.output_type["output"])):
        raise ValueError(
            f"node {name!r} flattens the axes {node.start_dim} to {node.end_dim} of "
            f"{shape}; allowed is all of them: start_dim=0, end_dim=-1."
        )
    return channels_last(shape) if len(shape) > 1 else before


def _linear(name: str, node: Any, before: Any) -> nnx.Module:
    weight = np.asarray(node.weight, np.float32)
    if weight.ndim != 2:
        raise ValueError(
            f"node {name!r} has weights {weight.shape}; allowed is [out, in]."
        )
    kernel = weight.T
    if before is not None:
        kernel = kernel[np.argsort(places_in_nir(before))]
    bias = getattr(node, "bias", None)
    shape, rngs = kernel.shape, nnx.Rngs(0)
    linear = layer.Linear(*shape, use_bias=bias is not None, rngs=rngs)
    return _filled(linear, kernel, bias)


def _filled(module: Any, kernel: np.ndarray, bias: Any) -> nnx.Module:
    module.kernel[...] = jnp.asarray(kernel, jnp.float32)
    if bias is not None:
        module.bias[...] = jnp.asarray(bias, jnp.float32)
    return module


def _conv(name: str, node: Any) -> nnx.Module:
    if node.groups != 1:
        raise ValueError(f"node {name!r} convolves in {node.groups} groups; {GROUPS}.")
    kernel = np.moveaxis(np.asarray(node.weight, np.float32), (0, 1), (-1, -2))
    window = kernel.shape[:-2]
    strides, dilation = (_axes(a, len(window)) for a in (node.stride, node.dilation))
    padding = node.padding
    if not isinstance(padding, str | bytes):
        padding = [(n, n) for n in _axes(padding, len(window))]
    elif padding in ("same", b"same") and max(strides) > 1:
        raise ValueError(
            f"node {name!r} pads by 'same' with strides {strides}; allowed are strides "
            "of 1. Give `padding` as integers."
        )
    conv = layer.Conv(
        kernel.shape[-2],
        kernel.shape[-1],
        window,
        strides,
        padding=padding if isinstance(padding, list) else _text(padding),
        kernel_dilation=dilation,
        rngs=nnx.Rngs(0),
    )
    return _filled(conv, kernel, node.bias)


def _text(padding: Any) -> str:
    return (padding.decode() if isinstance(padding, bytes) else padding).upper()


def _axes(value: Any, count: int) -> tuple[int, ...]:
    return tuple(int(n) for n in np.broadcast_to(np.asarray(value), (count,)))


def _pool(node: Any) -> layer.AvgPool:
    window, strides, padding = (
        _axes(a, 2) for a in (node.kernel_size, node.stride, node.padding)
    )
    padded = any(padding)
    pairs = [(n, n) for n in padding] if padded else "VALID"
    return layer.AvgPool(window, strides, padding=pairs)


def _sum_pool(node: Any) -> nnx.Module:
    pool = _pool(node)
    return layer.Sequential(pool, Scale(float(math.prod(pool.window))))


def _scale(node: Any, before: Any) -> np.ndarray:
    scale = np.asarray(node.scale, np.float32)
    if before is not None:
        return scale[np.argsort(places_in_nir(before))]
    return np.moveaxis(scale, 0, -1) if scale.ndim > 1 else scale


def _neuron(name: str, node: Any, dt: float) -> nnx.Module:
    """A neuron of ours; with a `Scale` before it where its current is another.

    A step of forward Euler: `v + dt / tau * ((v_leak - v) + r * x)`, and `v + dt * r *
    x` for IF.
    """
    one = functools.partial(_same_for_all, name, node)
    above = np.nextafter(np.float32(one("v_threshold")), np.float32(np.inf))
    v_reset, r = one("v_reset"), one("r")
    fire = {"v_threshold": float(above), "v_reset": v_reset}
    if type(node).__name__ == "IF":
        return _behind(Scale(_rounded(r * dt)), neuron.IF(**fire))
    tau, leak = _rounded(one("tau") / dt), one("v_leak")
    decay = not (_rounded(r / tau) == 1 and leak == v_reset)
    if tau < 1:
        raise ValueError(
            f"node {name!r} has a `tau` of {one('tau')}, shorter than a time step of "
            f"`dt` = {dt}: a step of forward Euler would overshoot. Give a smaller dt."
        )
    scale = Scale(_rounded(r), leak - v_reset) if decay else Scale(1.0)
    return _behind(scale, neuron.LIF(tau=tau, decay_input=decay, **fire))


def _same_for_all(name: str, node: Any, field: str) -> float:
    values = np.unique(np.asarray(getattr(node, field)))
    if len(values) != 1:
        raise ValueError(
            f"node {name!r} has {len(values)} different values of `{field}`; neurons "
            "here share one."
        )
    return float(values[0])


def _rounded(value: float) -> float:
    """The number nearby with few digits: float32's of 0.02 / 0.001 is not quite 20."""
    near = float(f"{value:.6g}")
    return (
        near if np.float32(near) == np.float32(value) or near == round(near) else value
    )


def _behind(scale: Scale, unit: nnx.Module) -> nnx.Module:
    trivial = scale.gain == 1 and scale.offset == 0
    return unit if trivial else layer.Sequential(scale, unit)
