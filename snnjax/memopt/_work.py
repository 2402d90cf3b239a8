"""What a function computes and keeps, read off its traced program: no compiler.

Operations are those of convolutions and matrix products; bytes are those of results
that XLA is likely to write to memory. Both are estimates, and called so.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax

from .. import _marks
from ._axis_rules import ELEMENTWISE
from ._jaxpr import is_float, is_literal

_SAME = ("reshape", "squeeze", "copy", "stop_gradient", "name")
_PRODUCTS = ("dot_general", "conv_general_dilated")


@dataclasses.dataclass(frozen=True)
class Operations:
    """Floating operations of convolutions and matrix products.

    Args:
        full: on operands of four bytes or more.
        half: on operands of two bytes, such as bfloat16, or fewer.
    """

    full: float = 0.0
    half: float = 0.0


@dataclasses.dataclass(frozen=True)
class Work:
    """Of one forward pass, and of what its derivative keeps.

    Args:
        operations: of the pass.
        traffic: bytes read and written, elementwise steps taken for fused.
        products: bytes of the results of convolutions and matrix products.
        largest: bytes of the largest floating array.
        result: bytes of the first result.
        kept: bytes that the backward pass of the plain function keeps, its arguments
            but the first left out.
    """

    operations: Operations
    traffic: int
    products: int
    largest: int
    result: int
    kept: int


def work(f: Callable[..., Any], *args: Any) -> Work:
    """The work of `f(*args)` on abstract arguments; `args[0]` is one array."""
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    products = _products(jaxpr)
    floats = [(e, v) for e in jaxpr.eqns for v in e.outvars if is_float(v.aval)]
    sizes = [size(v.aval) for _, v in floats]
    written = [size(v.aval) for e, v in floats if not _is_fused(e)]
    return Work(
        operations=_summed(products),
        traffic=2 * sum(written),
        products=sum(n * size(e.outvars[0].aval) for e, n in products),
        largest=max(sizes, default=0),
        result=size(jaxpr.outvars[0].aval),
        kept=_kept(f, *args),
    )


def _products(jaxpr: Any) -> list[tuple[Any, int]]:
    equations = _equations(jaxpr, 1)
    return [(e, n) for e, n in equations if e.primitive.name in _PRODUCTS]


def operations(f: Callable[..., Any], *args: Any) -> Operations:
    """Those of `Work`, of any function of abstract arguments."""
    return _summed(_products(jax.make_jaxpr(f)(*args).jaxpr))


def _summed(products: list[tuple[Any, int]]) -> Operations:
    sums = [0.0, 0.0]
    for eqn, times in products:
        is_half = min(v.aval.dtype.itemsize for v in eqn.invars) <= 2
        sums[is_half] += times * _operations(eqn)
    return Operations(*sums)


def size(a: Any) -> int:
    """Bytes of an array; a key's are not worth counting."""
    if jax.numpy.issubdtype(a.dtype, jax.dtypes.extended):
        return 0
    return math.prod(a.shape) * a.dtype.itemsize


def _equations(jaxpr: Any, times: int) -> Any:
    """Every equation, inner ones too, and how often it runs."""
    for eqn in jaxpr.eqns:
        yield eqn, times
        inner = times * eqn.params.get("length", 1)
        for param in eqn.params.values():
            for sub in param if isinstance(param, tuple | list) else (param,):
                body = getattr(sub, "jaxpr", sub)
                if hasattr(body, "eqns"):
                    yield from _equations(body, inner)


def _is_fused(eqn: Any) -> bool:
    name = eqn.primitive.name
    marked = eqn.params.get("name") == _marks.ELEMENTWISE
    return marked or name in ELEMENTWISE or name in _SAME or name == "broadcast_in_dim"


def _operations(eqn: Any) -> float:
    left, right = (v.aval.shape for v in eqn.invars[:2])
    out = math.prod(eqn.outvars[0].aval.shape)
    if eqn.primitive.name == "dot_general":
        (contract, _), _ = eqn.params["dimension_numbers"]
        return 2.0 * out * math.prod(left[d] for d in contract)
    features = right[eqn.params["dimension_numbers"].rhs_spec[0]]
    return 2.0 * out * math.prod(right) / max(features, 1)


def _kept(f: Callable[..., Any], *args: Any) -> int:
    """Bytes of residuals, each once, that are none of the arguments but the first."""
    leaves, structure = jax.tree.flatten(args)
    floats = [i for i, a in enumerate(leaves) if is_float(a)]

    def residuals(*leaves: Any) -> list[Any]:
        def g(*chosen: Any) -> Any:
            merged = dict(zip(floats, chosen))
            full = [merged.get(i, a) for i, a in enumerate(leaves)]
            return f(*jax.tree.unflatten(structure, full))

        return jax.tree.leaves(jax.vjp(g, *(leaves[i] for i in floats))[1])

    jaxpr = jax.make_jaxpr(residuals)(*leaves).jaxpr
    own, same = set(jaxpr.invars[1:]), _aliases(jaxpr)
    kept = dict.fromkeys(same.get(v, v) for v in jaxpr.outvars if not is_literal(v))
    return sum(size(v.aval) for v in kept if v not in own)


def _aliases(jaxpr: Any) -> dict[Any, Any]:
    """For results that are an operand in another shape, that operand."""
    same: dict[Any, Any] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _SAME and not is_literal(eqn.invars[0]):
            same[eqn.outvars[0]] = same.get(eqn.invars[0], eqn.invars[0])
    return same
