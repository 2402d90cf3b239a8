"""What a value of a program can hold, proven from the program: interval analysis.

An abstract interpreter over a jaxpr. Every value is a `Grid` (`_grid.py`) or unknown; a
primitive either has a rule (`_range_rules.py`), or its results are unknown. Only that
is said which no input can break:

* a result that its dtype cannot hold exactly is unknown,
* values from outside are unknown, unless a range is declared for them.

Cousot and Cousot, "Abstract Interpretation", POPL 1977; loops are iterated to a
fixpoint and widened to unknown after a few rounds.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from . import _grid
from ._grid import BINARY, Grid
from ._jaxpr import CALLS, body_of, carry_and_sliced
from ._range_rules import COMPARISONS, RULES, SAME, is_number, of_constant

Trail = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Known:
    """A grid, and how it came about: the origin, then the operations on the way."""

    grid: Grid
    trail: Trail

    def __str__(self) -> str:
        origin, *through = self.trail
        return f"{self.grid}: {origin}" + "".join(f" through {op}" for op in through)


Value = Known | None
_ROUNDS = 4  # of a fixpoint before it is widened


class Analysis:
    """One interpretation; `named` collects what passed each `checkpoint_name`.

    For each name a list, in the order of the program, of what is known.
    """

    def __init__(self) -> None:
        self.named: dict[str, list[Value]] = {}
        self._quiet = 0
        self._scope: tuple[str, ...] = ()

    def run(self, jaxpr: Any, inputs: Sequence[Value]) -> list[Value]:
        """What each output of a jaxpr can hold.

        Args:
            jaxpr: closed, from `jax.make_jaxpr`, or open.
            inputs: what is known of each flat input; None is unknown.
        """
        body = getattr(jaxpr, "jaxpr", jaxpr)
        consts = [_constant(c) for c in getattr(jaxpr, "consts", ())]
        env: dict[Any, Value] = dict(
            zip([*body.constvars, *body.invars], [*consts, *inputs])
        )

        def read(atom: Any) -> Value:
            return _constant(atom.val) if hasattr(atom, "val") else env.get(atom)

        for eqn in body.eqns:
            values = self._equation(eqn, [read(v) for v in eqn.invars])
            env.update(zip(eqn.outvars, values))
        return [read(v) for v in body.outvars]

    def _equation(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        name, outer = eqn.primitive.name, self._scope
        if name == "name":
            return self._record(eqn, inputs)
        self._scope = (*outer, *_scopes(eqn))
        if name in _CONTROL:
            outputs = _CONTROL[name](self, eqn, inputs)
        elif name in _CALLS:
            outputs = self.run(body_of(eqn), inputs)
        else:
            trail = _trail(name, self._scope, inputs)
            outputs = [_result(eqn, i, inputs, trail) for i in range(len(eqn.outvars))]
        self._scope = outer
        return outputs

    def _record(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        if not self._quiet:
            self.named.setdefault(eqn.params["name"], []).append(inputs[0])
        return inputs

    def _fixpoint(
        self, carry: list[Value], step: Callable[[list[Value]], list[Value]]
    ) -> list[Value]:
        """The smallest known carry that `step` does not leave."""
        self._quiet += 1
        for round_ in range(_ROUNDS + len(carry)):
            after = [union([a, b]) for a, b in zip(carry, step(carry))]
            stable = [_grid_of(a) == _grid_of(b) for a, b in zip(carry, after)]
            if all(stable):
                break
            widen = round_ >= _ROUNDS
            carry = [a if s or not widen else None for a, s in zip(after, stable)]
        self._quiet -= 1
        return carry

    def _cond(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        outputs = [self.run(branch, inputs[1:]) for branch in eqn.params["branches"]]
        return [union(values) for values in zip(*outputs)]

    def _while(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        first = eqn.params["cond_nconsts"]
        consts = inputs[first : first + eqn.params["body_nconsts"]]
        start = inputs[first + len(consts) :]
        body = eqn.params["body_jaxpr"]
        carry = self._fixpoint(start, lambda c: self.run(body, [*consts, *c]))
        self.run(body, [*consts, *carry])
        return carry

    def _scan(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        consts, carry, xs = carry_and_sliced(eqn, inputs)
        body, n = eqn.params["jaxpr"], len(carry)
        carry = self._fixpoint(carry, lambda c: self.run(body, [*consts, *c, *xs])[:n])
        return [*carry, *self.run(body, [*consts, *carry, *xs])[n:]]


# Primitives that do no more than evaluate a jaxpr. Others carry one too, and mean
# something else by it (`pallas_call`, `reduce`): those are unknown.
# A kernel computes what the program beside it does (`kernels/_choice.py`).
_CALLS = CALLS | {
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "snnjax_choice",
}
_CONTROL = {"cond": Analysis._cond, "while": Analysis._while, "scan": Analysis._scan}


# --- values ---------------------------------------------------------------------------


def _grid_of(value: Value) -> Grid | None:
    return None if value is None else value.grid


def _constant(value: Any) -> Value:
    grid = of_constant(value)
    return None if grid is None else Known(grid, ("constant",))


def of_dtype(dtype: Any) -> Value:
    """What the dtype alone says of a value from outside."""
    return Known(BINARY, ("bool input",)) if dtype == jnp.bool_ else None


def union(values: Sequence[Value]) -> Value:
    """What is known of a value that is one of `values`."""
    grid = _grid.union([_grid_of(v) for v in values])
    if grid is None:
        return None
    trails = [v.trail for v in values if v is not None and v.trail != ("constant",)]
    return Known(grid, trails[0] if trails else ("constant",))


def _result(eqn: Any, index: int, inputs: list[Value], trail: Trail) -> Value:
    """Output `index` of an equation by its rule; unknown where none applies."""
    dtype = eqn.outvars[index].aval.dtype
    rule = RULES.get(eqn.primitive.name)
    if rule is None or not is_number(dtype):
        return None
    known = rule(eqn, index, [_grid_of(v) for v in inputs])
    return None if known is None or not known.fits(dtype) else Known(known, trail)


def _scopes(eqn: Any) -> list[str]:
    """The library's `jax.named_scope`s around an equation, such as `lif`, `spike`."""
    names = str(eqn.source_info.name_stack).split("/")
    return [n.removeprefix("snn.") for n in names if n.startswith("snn.")]


def _trail(name: str, scope: tuple[str, ...], inputs: list[Value]) -> Trail:
    """The longest trail among the operands, and this operation if it says something."""
    trails = [v.trail for v in inputs if v is not None and v.trail != ("constant",)]
    if name in COMPARISONS or not trails:
        return ("/".join(scope[-2:]) or name,)
    longest = max(trails, key=len)
    here = "/".join(scope[-1:]) or name
    quiet = name in SAME or here in longest or "spike" in scope
    return longest if quiet else (*longest, here)
