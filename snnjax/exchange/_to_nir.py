"""A model of ours as a NIR graph, in evaluation mode."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .. import layer, neuron
from ._graph import Scale
from ._nir import (
    GROUPS,
    channels_first,
    float32,
    library,
    places_in_nir,
    reorders,
)

_NORMS = layer.BatchNorm, nnx.BatchNorm
_FOLDABLE = layer.Conv, nnx.Conv, nnx.Linear


class _Signal(NamedTuple):
    """What flows between two layers: its shape, channels-last, without time and batch.

    `before` is the shape that a Flatten had, whose features lie in another order there.
    """

    shape: tuple[int, ...]
    before: tuple[int, ...] | None = None


def to_nir(model: nnx.Module, input_shape: Sequence[int], *, dt: float = 1.0) -> Any:
    """Writes a model as a chain of NIR nodes.

    Exact are Conv, Linear, AvgPool, Flatten, IF, LIF, PLIF and `Scale`. Batch norm is
    folded, by its running statistics, into the Conv or Linear before it; Dropout is
    left out. Modules with a `__spatial_split__` and Sequentials are their parts.

    Args:
        model: one of these modules, or made of them.
        input_shape: of one time step of one sample: `(height, width, channel)`,
            `(length, channel)` or `(feature,)`.
        dt: seconds of a time step, or whatever unit the graph's `tau` is to have.

    Returns:
        A `nir.NIRGraph`, for `nir.write`.

    Raises:
        ValueError: the model holds something that NIR cannot say, such as a soft reset
            or a MaxPool.
        ImportError: the extra `nir` is not installed.
    """
    nir = library()
    signal, nodes = _Signal(tuple(input_shape)), []
    parts = list(_parts(model, type(model).__name__))
    for path, module, norm in _with_norms(parts):
        node = _node(path, module, norm, signal, dt)
        nodes += [] if node is None else [node]
        signal = _after(path, module, signal)
    if signal.before is not None and reorders(signal.before):
        raise ValueError(
            "the model ends with flattened features, whose order is another in NIR: "
            "end it with a Linear, or before the Flatten."
        )
    first, last = (
        np.array(channels_first(s)) for s in (tuple(input_shape), signal.shape)
    )
    return nir.NIRGraph.from_list(nir.Input(first), *nodes, nir.Output(last))


def _parts(module: Any, path: str) -> Iterator[tuple[str, nnx.Module]]:
    """The modules that a signal goes through, in order."""
    if isinstance(module, nnx.Sequential):
        inside = enumerate(module.layers)
    elif isinstance(module, layer.NormNeuron):
        parts = module.norm, module.pool, module.neuron
        inside = enumerate(part for part in parts if part is not None)
    elif hasattr(module, "__spatial_split__"):
        inside = enumerate(module.__spatial_split__())
    else:
        yield path, module
        return
    for i, part in inside:
        yield from _parts(part, f"{path}[{i}]")


def _with_norms(
    parts: list[tuple[str, nnx.Module]],
) -> Iterator[tuple[str, Any, Any]]:
    """Every module but batch norms, with the batch norm behind it, if there is one."""
    for i, (path, module) in enumerate(parts):
        if not _is(module, *_NORMS):
            behind = parts[i + 1][1] if i + 1 < len(parts) else None
            yield path, module, behind if _is(behind, *_NORMS) else None
        elif i == 0 or not _is(parts[i - 1][1], *_FOLDABLE):
            raise ValueError(
                f"{path} is a BatchNorm, which NIR does not have; it is folded into a "
                "Conv or Linear right before it, and there is none."
            )


def _is(module: Any, *classes: type[Any]) -> bool:
    """Whether it is one of these, and no subclass that computes something else."""
    calls = [c.__call__ for c in classes if isinstance(module, c)]
    return type(module).__call__ in calls


def _after(path: str, module: Any, signal: _Signal) -> _Signal:
    """The signal behind a module."""
    if isinstance(module, layer.Flatten):
        before = signal.shape if len(signal.shape) > 1 else signal.before
        return _Signal((math.prod(signal.shape),), before)
    if isinstance(module, neuron.Neuron | nnx.Dropout | Scale):
        return signal
    x = jax.ShapeDtypeStruct((1, 1, *signal.shape), jnp.float32)
    try:
        y = nnx.eval_shape(lambda module, x: module(x), module, x)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} cannot take {signal.shape}, what arrives of `input_shape`: {error}"
        ) from error
    return _Signal(tuple(y.shape[2:]))


def _node(path: str, module: Any, norm: Any, signal: _Signal, dt: float) -> Any:
    """The NIR node of a module; None if it does nothing in evaluation."""
    if _is(module, nnx.Dropout):
        return None
    if _is(module, layer.Conv, nnx.Conv):
        return _conv(path, module, norm, signal)
    if _is(module, nnx.Linear):
        return _linear(path, module, norm, signal)
    if _is(module, layer.AvgPool):
        return _avg_pool(path, module, signal)
    if isinstance(module, layer.Flatten):
        shape = np.array(channels_first(signal.shape))
        return library().Flatten(shape, start_dim=0, end_dim=-1)
    if type(module) in (neuron.IF, neuron.LIF, neuron.PLIF):
        return _neuron(path, module, signal, dt)
    if isinstance(module, Scale):
        return _scale(path, module, signal)
    raise ValueError(
        f"{path} is a {type(module).__name__}, which has no NIR node; allowed are "
        "Conv, Linear, BatchNorm, AvgPool, Flatten, Dropout, IF, LIF, PLIF, Scale, "
        "Sequentials of them and modules with a __spatial_split__. Make a Sequential "
        "of a model's parts: `Sequential(net.features, net.classifier)`."
    )


def _folded(module: Any, norm: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Kernel `[..., out]` and bias of a layer and the batch norm behind it."""
    kernel = np.asarray(module.kernel[...], np.float64)
    bias = None if module.bias is None else np.asarray(module.bias[...], np.float64)
    if norm is None:
        return kernel, bias
    mean, var = (np.asarray(a[...], np.float64) for a in (norm.mean, norm.var))
    scale = 1 if norm.scale is None else np.asarray(norm.scale[...], np.float64)
    shift = 0 if norm.bias is None else np.asarray(norm.bias[...], np.float64)
    factor = scale / np.sqrt(var + norm.epsilon)
    return kernel * factor, ((0 if bias is None else bias) - mean) * factor + shift


def _conv(path: str, conv: nnx.Conv, norm: Any, signal: _Signal) -> Any:
    nir, space = library(), signal.shape[:-1]
    kernel, bias = _folded(conv, norm)
    window = kernel.shape[:-2]
    if len(window) != len(space) or len(space) not in (1, 2):
        raise ValueError(
            f"{path} is a Conv over {len(window)} dimensions of space; NIR has 1 and "
            f"2, and {len(space)} arrive of `input_shape`."
        )
    if conv.feature_group_count != 1:
        groups = conv.feature_group_count
        raise ValueError(f"{path} convolves in {groups} groups; {GROUPS}.")
    strides, dilation = (
        (n,) * len(space) if isinstance(n, int) else tuple(n or (1,) * len(space))
        for n in (conv.strides, conv.kernel_dilation)
    )
    settings = {
        "input_shape": space,
        "weight": float32(np.moveaxis(kernel, (-1, -2), (0, 1))),
        "stride": strides,
        "padding": _padding(path, conv.padding, window, strides, dilation, space),
        "dilation": dilation,
        "groups": 1,
        "bias": float32(np.zeros(kernel.shape[-1]) if bias is None else bias),
    }
    if len(space) == 2:
        return nir.Conv2d(**settings)
    single = ("input_shape", "stride", "padding", "dilation")
    return nir.Conv1d(**settings | {name: settings[name][0] for name in single})


def _padding(
    path: str,
    padding: Any,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    space: tuple[int, ...],
) -> tuple[int, ...]:
    """Zeros on either side of each axis of space."""
    if isinstance(padding, str) and padding.upper() in ("SAME", "VALID"):
        reach = [(w - 1) * d + 1 for w, d in zip(window, dilation)]
        padding = jax.lax.padtype_to_pads(space, reach, strides, padding.upper())
    if isinstance(padding, int):
        padding = (padding,) * len(space)
    pairs = [(n, n) if isinstance(n, int) else n for n in padding]
    if isinstance(padding, str) or any(before != behind for before, behind in pairs):
        raise ValueError(
            f"{path} pads by {padding!r}; NIR pads by as many zeros on both sides. "
            "Take an odd kernel, or give such integers as `padding`."
        )
    return tuple(int(before) for before, _ in pairs)


def _linear(path: str, linear: nnx.Linear, norm: Any, signal: _Signal) -> Any:
    if len(signal.shape) > 1:
        raise ValueError(
            f"{path} is a Linear on {signal.shape}; NIR's take (feature,): put a "
            "Flatten before it, or take a Conv with a window of 1."
        )
    kernel, bias = _folded(linear, norm)
    if signal.before is not None:
        kernel = kernel[places_in_nir(signal.before)]
    if bias is None:
        return library().Linear(float32(kernel.T))
    return library().Affine(float32(kernel.T), float32(bias))


def _avg_pool(path: str, pool: layer.AvgPool, signal: _Signal) -> Any:
    space, ones = signal.shape[:-1], (1,) * len(pool.window)
    if len(pool.window) != 2:
        raise ValueError(
            f"{path} pools over {len(pool.window)} dimensions; NIR over 2."
        )
    padding = _padding(path, pool.padding, pool.window, pool.strides, ones, space)
    shapes = (np.array(a) for a in (pool.window, pool.strides, padding))
    return library().AvgPool2d(*shapes)


def _neuron(path: str, module: Any, signal: _Signal, dt: float) -> Any:
    nir, shape = library(), channels_first(signal.shape)
    if module.v_reset is None:
        raise ValueError(
            f"{path} resets by subtraction (v_reset=None); NIR's neurons are set to "
            "`v_reset`. Train with one, such as 0.0."
        )
    below = np.nextafter(float32(module.v_threshold), np.float32(-np.inf))
    fire = {"v_threshold": below, "v_reset": module.v_reset}
    if isinstance(module, neuron.IF):
        values = {"r": 1 / dt, **fire}
        return nir.IF(**{k: float32(np.full(shape, v)) for k, v in values.items()})
    tau = np.asarray(module.time_constant, np.float64)
    r = 1.0 if module.decay_input else tau
    values = {"tau": tau * dt, "r": r, "v_leak": module.v_reset, **fire}
    return nir.LIF(**{k: float32(np.full(shape, v)) for k, v in values.items()})


def _scale(path: str, scale: Scale, signal: _Signal) -> Any:
    if scale.offset or signal.before is not None:
        raise ValueError(
            f"{path} adds {scale.offset}, or scales flattened features; neither can be "
            "said in NIR."
        )
    gain = np.broadcast_to(scale.gain, signal.shape)
    return library().Scale(float32(np.moveaxis(gain, -1, 0)))
