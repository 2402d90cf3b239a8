"""What the readers of traced programs share: calls, and the parts of a scan."""

import contextlib
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
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
    params = eqn.primitive.get_bind_params(eqn.params)
    scope = str(eqn.source_info.name_stack)
    named = jax.named_scope(scope) if scope else contextlib.nullcontext()
    with eqn.ctx.manager, named:
        results = eqn.primitive.bind(*operands, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


def derivative(eqn: Any) -> Any:
    """The program from operands and cotangents of an equation to those of operands.

    Of floating operands and results only, in their order.
    """
    operands = [abstract(v) for v in eqn.invars]
    results = [abstract(v) for v in eqn.outvars]
    floats = [i for i, a in enumerate(operands) if is_float(a)]
    given = [a for a in results if is_float(a)]

    def pull(operands: list[Any], cotangents: list[Any]) -> list[Any]:
        def f(*values: Any) -> list[Any]:
            replaced = dict(zip(floats, values))
            found = evaluate(eqn, [replaced.get(i, a) for i, a in enumerate(operands)])
            return [a for a in found if is_float(a)]

        return list(jax.vjp(f, *(operands[i] for i in floats))[1](cotangents))

    return jax.make_jaxpr(pull)(operands, given)


def abstract(atom: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a variable."""
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def is_float(a: Any) -> bool:
    """Whether an array has a cotangent."""
    return jnp.issubdtype(a.dtype, jnp.inexact)


def is_literal(atom: Any) -> bool:
    """Whether an operand is a constant that stands in the equation itself."""
    return isinstance(atom, core.Literal)


def live(jaxpr: Any) -> list[Any]:
    """The equations that the outputs depend on."""
    wanted = {v for v in jaxpr.outvars if not is_literal(v)}
    found = []
    for eqn in reversed(jaxpr.eqns):
        if any(v in wanted for v in eqn.outvars):
            wanted.update(v for v in eqn.invars if not is_literal(v))
            found.append(eqn)
    return found[::-1]
