"""What is known of a value of a program in chunks, and how that carries over.

A value is cut, or the same for all chunks. Of the latter some have the cut axis's
length: they may be alike all along it, and then any chunk of them is the same. In a
derivative, a value may be a sum over chunks of cotangents, or zero.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._axis_rules import ELEMENTWISE, Layouts, Mixes
from ._jaxpr import evaluate
from ._layout import Layout


@dataclasses.dataclass(frozen=True)
class Value:
    """What is known of a variable, and its values where they are known.

    Args:
        layout: where it is cut; None is not at all.
        uniform: not cut, but every chunk of it is the same `piece`.
        numbered: not cut, but it has the axis's length, and is not the same along it.
        after: known when all chunks are done.
        depth: totals that it depends on one after the other.
        additive: of cotangents, the chunks' add up to the whole; zero: it is 0.
        full: the value as the whole program has it.
        piece: the chunk's.
    """

    layout: Layout | None = None
    uniform: bool = False
    numbered: bool = False
    after: bool = False
    depth: int = 0
    additive: bool = False
    zero: bool = False
    full: Any = None
    piece: Any = None

    @property
    def bare(self) -> "Value":
        """Without values."""
        return dataclasses.replace(self, full=None, piece=None)


# Of operands whose chunks are all alike they make results whose chunks are.
_KEEP_UNIFORM = ("reshape", "transpose", "squeeze")


def is_uniform(eqn: Any, values: list[Value]) -> bool:
    """Whether a whole result of the axis's size is the same all along it."""
    name = eqn.primitive.name
    if name == "broadcast_in_dim":
        return values[0].uniform or not values[0].numbered
    if name in _KEEP_UNIFORM:
        return values[0].uniform
    alike = [v.uniform or not v.numbered for v in values]
    return name in ELEMENTWISE and all(alike)


def literal(value: Any) -> Value:
    """A constant that stands in an equation."""
    return Value(full=value, zero=jnp.shape(value) == () and not np.any(value))


_KEEP_ZERO = frozenset("broadcast_in_dim convert_element_type reshape neg".split())


def stays_zero(eqn: Any, values: list[Value]) -> bool:
    """Whether a whole result is 0, since the operand is."""
    return eqn.primitive.name in _KEEP_ZERO and values[0].zero


# Linear in each operand; then in all together, where one or each is additive.
_LINEAR = frozenset(
    "reshape transpose squeeze broadcast_in_dim convert_element_type neg copy rev "
    "slice reduce_sum cumsum real imag reduce_precision".split()
)
_BILINEAR = frozenset("mul dot_general conv_general_dilated".split())
_SUMS = frozenset("add sub add_any concatenate pad".split())


def is_linear(eqn: Any, values: list[Value]) -> bool:
    """Whether a result is linear in the additive operands, all together."""
    name, additive = eqn.primitive.name, [v.additive for v in values]
    if name in _LINEAR:
        return True
    if name in _BILINEAR:
        return sum(additive) == 1
    if name == "div":
        return additive == [True, False]
    rest = values[1:] if name == "select_n" else values
    linear = name in _SUMS or (name == "select_n" and not values[0].additive)
    return linear and all(v.additive or v.zero for v in rest)


# --- where values are cut ------------------------------------------------------------


def layouts_of(values: Sequence[Value]) -> list[Layout | None]:
    return [v.layout for v in values]


def agreed(layouts: Sequence[Layout | None]) -> Layout | None:
    found = {layout for layout in layouts if layout is not None}
    if len(found) > 1:
        raise Mixes("they end up on different axes")
    return found.pop() if found else None


def moved(value: Value, by: int) -> Value:
    if value.layout is None:
        return value
    return dataclasses.replace(value, layout=value.layout.at(value.layout.axis + by))


# --- equations on them ---------------------------------------------------------------


def bind(eqn: Any, operands: list[Any]) -> list[Any]:
    """The results of an equation; None each, unless all operands are known."""
    if any(a is None for a in operands):
        return [None] * len(eqn.outvars)
    return evaluate(eqn, operands)


def bind_shared(eqn: Any, values: list[Value], places: Layouts) -> list[Any]:
    """The results that are the same for all chunks, where no chunk is at hand.

    They do not depend on what is cut, so anything will do in its place.
    """
    operands = [
        jnp.zeros(atom.aval.shape, atom.aval.dtype) if place or v.uniform else v.full
        for v, place, atom in zip(values, places, eqn.invars)
    ]
    return bind(eqn, operands)


def bind_full(eqn: Any, values: list[Value]) -> list[Any]:
    return bind(eqn, [v.full for v in values])
