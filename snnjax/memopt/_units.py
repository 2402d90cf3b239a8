"""What branches and loops do to chunks: each is one equation, with programs inside.

`inside` walks such a program with what is known of its inputs, and says what its
outputs are.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ._axis_rules import Effect, Mixes
from ._jaxpr import carry_and_sliced
from ._value import Value, agreed, layouts_of, moved

Inside = Callable[[Sequence[Any], list[Value]], list[Value]]


def cond_effect(inside: Inside, eqns: tuple[Any, ...], values: list[Value]) -> Effect:
    """Of every branch the same, since any may be taken."""
    if values[0].layout is not None:
        raise Mixes("a branch is chosen by them")
    results = []
    for branches in zip(*(e.params["branches"] for e in eqns)):
        results.append(layouts_of(inside(branches, values[1:])))
    layouts = [agreed(found) for found in zip(*results)]
    return Effect(layouts_of(values), layouts)


def while_effect(inside: Inside, eqns: tuple[Any, ...], values: list[Value]) -> Effect:
    """Its body, carried on; all chunks have to go on equally long."""
    first, second = (eqns[0].params[k] for k in ("cond_nconsts", "body_nconsts"))
    tests, consts = values[:first], values[first : first + second]
    bodies = [e.params["body_jaxpr"] for e in eqns]
    carry = _settle(inside, values[first + second :], bodies, consts, [])[0]
    conditions = [e.params["cond_jaxpr"] for e in eqns]
    (goes_on,) = inside(conditions, [*tests, *carry])
    if goes_on.layout is not None:
        raise Mixes("a loop goes on as they say")
    operands = [*tests, *consts, *carry]
    return Effect(layouts_of(operands), layouts_of(carry))


def scan_effect(inside: Inside, eqns: tuple[Any, ...], values: list[Value]) -> Effect:
    """Its body on slices, of an axis that is not the one in chunks."""
    consts, carry, sliced = carry_and_sliced(eqns[0], values)
    if any(v.layout and v.layout.axis == 0 for v in sliced):
        raise Mixes("a loop runs over them")
    steps = [moved(v, -1) for v in sliced]
    bodies = [e.params["jaxpr"] for e in eqns]
    carry, results = _settle(inside, carry, bodies, consts, steps)
    stacked = [moved(v, 1) for v in results[len(carry) :]]
    operands = [*consts, *carry, *sliced]
    return Effect(layouts_of(operands), layouts_of([*carry, *stacked]))


def _settle(
    inside: Inside,
    carry: list[Value],
    bodies: list[Any],
    consts: list[Value],
    steps: list[Value],
) -> tuple[list[Value], list[Value]]:
    """What a loop carries, cut wherever its body makes it so."""
    while True:
        results = inside(bodies, [*consts, *carry, *steps])
        after = [agreed([a.layout, b.layout]) for a, b in zip(carry, results)]
        if after == layouts_of(carry):
            return carry, results
        carry = [
            Value(layout=layout) if layout else old for layout, old in zip(after, carry)
        ]


UNITS = {"cond": cond_effect, "while": while_effect, "scan": scan_effect}
