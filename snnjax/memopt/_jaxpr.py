"""What the readers of traced programs share: calls, and the parts of a scan."""

from collections.abc import Sequence
from typing import Any, TypeVar

from jax.extend import core

T = TypeVar("T")

# Primitives that do no more than evaluate a jaxpr.
CALLS = frozenset("jit pjit closed_call core_call remat remat2 checkpoint".split())


def body_of(eqn: Any) -> Any:
    """The jaxpr that a call, or a function with a rule of its own, evaluates."""
    keys = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    return next(eqn.params[key] for key in keys if key in eqn.params)


def carry_and_sliced(
    eqn: Any, operands: Sequence[T]
) -> tuple[list[T], list[T], list[T]]:
    """Constants, carry and sliced inputs of a scan, by the shapes around its body.

    Its parameters for this differ between jax 0.10 and 0.12; the shapes do not: a carry
    comes out as it is in the body, a sliced input has one axis more outside.
    """
    body = getattr(eqn.params["jaxpr"], "jaxpr", eqn.params["jaxpr"])

    def ranks(variables: Any) -> list[int]:
        return [len(v.aval.shape) for v in variables]

    carry = sum(a == b for a, b in zip(ranks(eqn.outvars), ranks(body.outvars)))
    xs = sum(a != b for a, b in zip(ranks(eqn.invars), ranks(body.invars)))
    consts = len(operands) - carry - xs
    end = consts + carry
    return list(operands[:consts]), list(operands[consts:end]), list(operands[end:])


def evaluate(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation for values of its operands."""
    given = {
        v: a for v, a in zip(eqn.invars, operands, strict=True) if not is_literal(v)
    }
    jaxpr = core.Jaxpr((), list(given), list(eqn.outvars), [eqn], eqn.effects)
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*given.values())


def is_literal(atom: Any) -> bool:
    """Whether an operand is a constant that stands in the equation itself."""
    return isinstance(atom, core.Literal)
