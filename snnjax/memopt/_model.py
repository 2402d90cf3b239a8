"""Looking into an nnx model and copying its structure; arrays are never copied."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
from flax import nnx

Model = TypeVar("Model", bound=nnx.Module)


def check_net(net: Any) -> None:
    """Raises ValueError unless `net` is an nnx model."""
    if not isinstance(net, nnx.Module):
        raise ValueError(
            f"`net` is of type {type(net).__name__}; allowed is a Flax nnx.Module."
        )


def path_name(path: tuple[object, ...]) -> str:
    """`("features", "layers", 0)` as `"features.layers.0"`; the root is `""`."""
    return ".".join(map(str, path))


def as_class(cls: type, module: nnx.Module) -> Any:
    """A second object of class `cls` with the attributes of `module`, shared."""
    twin = object.__new__(cls)
    vars(twin).update(vars(module))
    return twin


def named_modules(net: nnx.Module) -> dict[str, nnx.Module]:
    """Every module of `net` by its path."""
    return {path_name(path): module for path, module in _modules(net)}


def _modules(net: nnx.Module) -> list[tuple[tuple[object, ...], nnx.Module]]:
    return [(p, m) for p, m in nnx.iter_graph(net) if isinstance(m, nnx.Module)]


def modules_at(net: nnx.Module, paths: Iterable[str]) -> dict[str, nnx.Module]:
    """The modules of `net` that `paths` name."""
    paths, modules = list(paths), named_modules(net)
    missing = [p for p in paths if p not in modules]
    if missing:
        raise ValueError(
            f"{type(net).__name__} has no module at {', '.join(map(repr, missing))}."
        )
    return {p: modules[p] for p in paths}


def outermost(net: nnx.Module, types: tuple[type, ...]) -> dict[str, nnx.Module]:
    """The modules of the given types that lie in no other such module, by path."""
    found = {path: m for path, m in _modules(net) if isinstance(m, types)}

    def inside(path: tuple[object, ...]) -> bool:
        return any(path[:depth] in found for depth in range(len(path)))

    return {path_name(p): m for p, m in found.items() if not inside(p)}


def copy_structure(net: Model) -> Model:
    """A new model with the same Variables: values are shared, structure is not."""
    return _copy(net, {})


def _copy(node: Any, memo: dict[int, Any]) -> Any:
    """Copies modules and containers, each once; all else, Variables too, is shared."""
    if isinstance(node, dict):
        return {key: _copy(value, memo) for key, value in node.items()}
    if isinstance(node, list | tuple) and type(node) in (list, tuple):
        return type(node)(_copy(value, memo) for value in node)
    if not isinstance(node, nnx.Pytree):
        return node
    if id(node) not in memo:
        memo[id(node)] = new = object.__new__(type(node))
        vars(new).update({k: _copy(v, memo) for k, v in vars(node).items()})
    return memo[id(node)]


def derived(bases: tuple[type, ...], name: str, body: dict[str, Any]) -> Any:
    """A class made on the fly, by the bases' own metaclass."""
    metaclass: Any = type(bases[0])
    return metaclass(name, bases, body)


def wrapper_class(
    factory: Callable[[type], Any],
    marker: type,
    cls: type,
    name: str,
    call: Callable[..., Any],
) -> Any:
    """A subclass of `cls` and `marker` with another `__call__`, fit to be pickled.

    Args:
        factory: what makes this class of `cls`, a function that pickle can find; it
            gives the same class every time.
        marker: what `isinstance` is to recognize.
        cls: the class that a module has.
        name: of the new class.
        call: `call(self, *args, **kwargs)`.
    """

    def reduce(self: Any) -> tuple[Any, ...]:
        return _revive, (factory, cls), vars(self)

    body = {"__call__": call, "__reduce__": reduce, "__module__": cls.__module__}
    return derived((marker, cls), name, body)


def _revive(factory: Callable[[type], Any], cls: type) -> Any:
    return object.__new__(factory(cls))


def become(module: nnx.Module, cls: type) -> None:
    """Gives `module`, in place, a class derived from the one it has."""
    object.__setattr__(module, "__class__", cls)


def intercept(module: nnx.Module, call: Callable[..., Any]) -> None:
    """Has `module`, in place, called by `call(self, *args, **kwargs)`."""
    cls = type(module)
    become(module, derived((cls,), cls.__name__, {"__call__": call}))


def as_function(
    net: nnx.Module, f: Callable[..., Any]
) -> tuple[Callable[..., Any], Any]:
    """`f(net, *args)` as a pure function of the model's state, and that state."""
    graphdef, state = nnx.split(net)

    def run(state: Any, *args: Any) -> Any:
        return f(nnx.merge(graphdef, state, copy=True), *args)

    return run, state


def abstract(net: nnx.Module) -> nnx.Module:
    """The model with `jax.ShapeDtypeStruct`s for arrays."""
    graphdef, state = nnx.split(net)
    return nnx.merge(graphdef, jax.tree.map(shape_of, state))


def describe(a: Any) -> str:
    """An array's dtype and shape, such as `float32[10,8,48,48,2]`."""
    return f"{a.dtype}[{','.join(map(str, a.shape))}]"


def shape_of(a: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array; those of an abstract one pass."""
    return jax.ShapeDtypeStruct(jax.numpy.shape(a), jax.numpy.result_type(a))
