"""What calling the model does at each target: its inputs, and the target as a function.

The whole loss is traced once, on abstract values; nothing runs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from ._container import pure_call
from ._model import (
    as_function,
    become,
    copy_structure,
    intercept,
    modules_at,
    shape_of,
)


@dataclasses.dataclass(frozen=True)
class Seen:
    """A target in the model's call.

    Args:
        path: of the target.
        run: its call as a pure function of `inputs`.
        inputs: abstract `(x, state, arrays)`.
        calls: how often it is called.
    """

    path: str
    run: Callable[..., Any]
    inputs: tuple[Any, ...]
    calls: int = 1

    @property
    def x(self) -> jax.ShapeDtypeStruct:
        return self.inputs[0]


def survey(
    net: nnx.Module,
    paths: tuple[str, ...],
    loss: Callable[..., Any],
    batch: tuple[Any, ...],
) -> dict[str, Seen]:
    """The targets that `loss(net, *batch)` calls, in the order of their first call."""
    seen: dict[str, Seen] = {}
    watched = copy_structure(net)
    for path, module in modules_at(watched, paths).items():
        _watch(module, path, seen)
    forward, state = as_function(watched, loss)
    jax.eval_shape(forward, *jax.tree.map(shape_of, (state, *batch)))
    return seen


def _watch(module: nnx.Module, path: str, seen: dict[str, Seen]) -> None:
    cls = type(module)

    def call(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if path in seen:
            found = seen[path]
            seen[path] = dataclasses.replace(found, calls=found.calls + 1)
        else:
            plain: Any = nnx.merge(*nnx.split(self), copy=True)
            become(plain, cls)
            run, inputs = pure_call(cls, plain, x, args, kwargs)
            seen[path] = Seen(path, run, jax.tree.map(shape_of, inputs))
        return cls.__call__(self, x, *args, **kwargs)

    intercept(module, call)
