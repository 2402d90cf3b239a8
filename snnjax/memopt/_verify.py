"""Compares what a plan's compressors give back with the data itself."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

from .._step import Loss
from .._types import Array
from ._apply import apply_plan
from ._compress import BaseSpikeCompressor
from ._container import GCContainer
from ._model import describe, intercept, named_modules
from ._plan import Plan
from ._targets import check_real


def verify(
    net: nnx.Module, plan: Plan, batch: tuple[Any, ...], *, loss: Loss | None = None
) -> None:
    """Runs a forward pass and checks the inputs of segments against their round trips.

    For compressors that were allowed by `unchecked=True`: on this batch they are exact,
    or the error says where they are not. It sees the segments that this call reaches.
    The model runs on copies of its variables and
    stays as it is.

    Args:
        net: the model that the plan was made for.
        plan: from `make_plan`.
        batch: real data: positional inputs of `net`, or with a `loss`, what that takes
            after the model.
        loss: `loss(model, *batch)`; None calls the model.

    Raises:
        ValueError: `batch` is no tuple of arrays; or an input came back changed: the
            message names the segment, the first index and both values.
    """
    check_real(batch)
    planned: Any = nnx.clone(apply_plan(net, plan))
    for path, module in named_modules(planned).items():
        if isinstance(module, GCContainer):
            _watch(path, module)
    loss(planned, *batch) if loss else planned(*batch)


def _watch(path: str, module: GCContainer) -> None:
    cls, compressor = type(module), module.x_compressor

    def call(self: Any, x: Array, *args: Any, **kwargs: Any) -> Any:
        _compare(path, compressor, x)
        return cls.__call__(self, x, *args, **kwargs)

    intercept(module, call)


def _compare(path: str, compressor: BaseSpikeCompressor, x: Any) -> None:
    if isinstance(x, Tracer):
        raise ValueError(
            f"the segment at {path!r} is called inside a transformation, where there "
            "is no data to compare; verify a model whose own call is plain."
        )
    x = jnp.asarray(x)
    came = compressor.pack(x).unpack()
    start = f"{compressor} is not exact on the input of the segment at {path!r}: "
    if describe(x) != describe(came):
        raise ValueError(f"{start}{describe(x)} came back as {describe(came)}.")
    wrong = np.argwhere(_bytes(x) != _bytes(came))
    if wrong.size:
        index = tuple(int(i) for i in wrong[0][: x.ndim])
        values = f"it was {x[index]:g} and came back as {came[index]:g}"
        raise ValueError(f"{start}at {index} {values}.")


def _bytes(x: Array) -> np.ndarray:
    """`[..., bytes]`, so that NaN equals itself and -0.0 is not 0.0."""
    array = np.ascontiguousarray(np.asarray(x))
    return array.view(np.uint8).reshape(*array.shape, -1)
