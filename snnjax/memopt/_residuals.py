"""Residuals: what the backward pass of a function keeps, to the byte, in milliseconds.

Nothing is compiled, and nothing of the model's size is allocated.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
from flax import nnx

from ._measure import check_callable, holds_modules, struct_bytes, traced_or_error


def residual_bytes(fn: Callable[..., Any], *args: Any) -> int:
    """Bytes that the backward pass of `fn` keeps from its forward pass.

    The sum over `residual_shapes(fn, *args)`. It is exact, takes milliseconds, and sees
    what is kept, not the temporaries of a compiled program.

    Args:
        fn: A function, differentiated by the inexact leaves of its first argument.
        *args: Its arguments, the first an nnx module or a pytree; arrays or
            `jax.ShapeDtypeStruct`s. They are not changed.

    Returns:
        Bytes, without those of the first argument itself.

    Raises:
        TypeError: `fn` cannot be called.
        ValueError: There is no first argument.
        MeasureError: `fn` cannot be traced or differentiated.
    """
    return sum(struct_bytes(struct) for struct in residual_shapes(fn, *args))


def residual_shapes(
    fn: Callable[..., Any], *args: Any
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and dtypes of what `residual_bytes` counts, each residual once.

    The function that `jax.vjp` returns is a pytree of its residuals. A residual that is
    a leaf of the first argument, passed through unchanged (a weight that the backward
    pass needs), is no extra memory and is left out; the jaxpr tells, as it is then an
    input variable. Other arguments, kept as they are, count.

    Args:
        fn: As for `residual_bytes`.
        *args: As for `residual_bytes`.

    Returns:
        The residuals, in no particular order.

    Raises:
        TypeError: `fn` cannot be called.
        ValueError: There is no first argument.
        MeasureError: `fn` cannot be traced or differentiated.
    """
    check_callable(fn)
    if not args:
        raise ValueError(
            "`args` is empty; pass what `fn` is differentiated by, then the rest."
        )
    first, unflatten_first = _flatten(args[0])
    rest, unflatten_rest = _flatten(args[1:])
    inexact = [jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact) for leaf in first]

    def residuals(first: list[jax.Array], rest: list[jax.Array]) -> list[jax.Array]:
        def run(chosen: list[jax.Array]) -> Any:
            left = iter(chosen)
            leaves = [next(left) if d else x for d, x in zip(inexact, first)]
            return fn(unflatten_first(leaves), *unflatten_rest(rest))

        _, vjp = jax.vjp(run, [x for d, x in zip(inexact, first) if d])
        return jax.tree.leaves(vjp)

    jaxpr = traced_or_error(fn, lambda: jax.make_jaxpr(residuals)(first, rest)).jaxpr
    own = set(jaxpr.invars[: len(first)])
    literal = jax.extend.core.Literal  # a scalar of the program, kept by nobody
    kept = dict.fromkeys(v for v in jaxpr.outvars if not isinstance(v, literal))
    avals = [variable.aval for variable in kept if variable not in own]
    return tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)


def _flatten(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    # Rebuilt from leaves, a module has Variables of the trace it is rebuilt in; its
    # changes stay there.
    graph = None
    if holds_modules(tree):
        graph, tree = nnx.split(tree)
    leaves, treedef = jax.tree.flatten(tree)

    def unflatten(leaves: list[Any]) -> Any:
        tree = jax.tree.unflatten(treedef, leaves)
        return tree if graph is None else nnx.merge(graph, tree)

    structs = [jax.ShapeDtypeStruct(jax.numpy.shape(x), _dtype(x)) for x in leaves]
    return structs, unflatten


def _dtype(leaf: Any) -> Any:
    return jax.numpy.result_type(leaf)  # as jax will take it: int64 comes as int32
