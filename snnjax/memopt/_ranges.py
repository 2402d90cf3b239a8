"""What a value of a program can hold, proven from the program: interval analysis.

An abstract interpreter over a jaxpr. Every value is a `Grid` (`_grid.py`) or unknown; a
primitive either has a rule below, or its results are unknown. A rule may only say what
no input can break, rounding, overflow, NaN and negative zero included:

* a result that its dtype cannot hold exactly is unknown,
* so is an operation that could make -0.0, which no compressor would give back,
* values from outside are unknown, unless a range is declared for them.

Cousot and Cousot, "Abstract Interpretation", POPL 1977; loops are iterated to a
fixpoint and widened to unknown after a few rounds.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _grid
from ._grid import BINARY, Grid
from ._jaxpr import CALLS, body_of, carry_and_sliced

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
    if not _is_number(jnp.result_type(value)) or np.size(value) > 2**16:
        return None
    array = np.asarray(value)
    grid = None if _has_negative_zero(array) else _grid.of_values(array)
    return None if grid is None else Known(grid, ("constant",))


def _is_number(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)


def _has_negative_zero(array: np.ndarray) -> bool:
    floats = jnp.issubdtype(array.dtype, jnp.floating)
    return bool(floats and np.any((array == 0) & np.signbit(array)))


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
    rule = _RULES.get(eqn.primitive.name)
    if rule is None or not _is_number(dtype):
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
    if name in _COMPARISONS or not trails:
        return ("/".join(scope[-2:]) or name,)
    longest = max(trails, key=len)
    here = "/".join(scope[-1:]) or name
    quiet = name in _SAME or here in longest or "spike" in scope
    return longest if quiet else (*longest, here)


# --- the rules ------------------------------------------------------------------------

Grids = list[Grid | None]
Rule = Callable[[Any, int, Grids], Grid | None]


def _known(f: Callable[..., Grid | None]) -> Rule:
    """A rule that needs every operand known, and nothing of the equation."""

    def rule(eqn: Any, index: int, grids: Grids) -> Grid | None:
        del eqn, index
        return None if any(g is None for g in grids) else f(*grids)

    return rule


def _signed(f: Callable[..., Grid | None]) -> Rule:
    """As `_known`, but unknown where the result could be -0.0."""

    def rule(eqn: Any, index: int, grids: Grids) -> Grid | None:
        grid = _known(f)(eqn, index, grids)
        floating = jnp.issubdtype(eqn.outvars[index].aval.dtype, jnp.floating)
        negative = any(g is not None and g.lo < 0 for g in (*grids, grid))
        zero = grid is not None and grid.lo <= 0 <= grid.hi
        return None if floating and negative and zero else grid

    return rule


def _first(eqn: Any, index: int, grids: Grids) -> Grid | None:
    del eqn, index
    return grids[0]


def _each(eqn: Any, index: int, grids: Grids) -> Grid | None:
    del eqn
    return grids[index]


def _union_of(select: slice) -> Rule:
    def rule(eqn: Any, index: int, grids: Grids) -> Grid | None:
        del eqn, index
        return _grid.union(grids[select])

    return rule


def _binary(eqn: Any, index: int, grids: Grids) -> Grid | None:
    del eqn, index, grids
    return BINARY


def _logical(eqn: Any, index: int, grids: Grids) -> Grid | None:
    """On booleans; bit patterns of integers are another matter."""
    del grids
    return BINARY if eqn.outvars[index].aval.dtype == jnp.bool_ else None


def _convert(eqn: Any, index: int, grids: Grids) -> Grid | None:
    dtype = eqn.outvars[index].aval.dtype
    if dtype == jnp.bool_:
        return BINARY
    return grids[0]


def _negated(eqn: Any, index: int, grids: Grids) -> Grid | None:
    floating = jnp.issubdtype(eqn.outvars[index].aval.dtype, jnp.floating)
    grid = grids[0]
    zero = grid is not None and grid.lo <= 0 <= grid.hi
    return None if grid is None or (floating and zero) else _grid.negative(grid)


def _reduced_precision(eqn: Any, index: int, grids: Grids) -> Grid | None:
    """Unchanged where no member is rounded, flushed or made infinite."""
    del index
    grid, params = grids[0], eqn.params
    if grid is None:
        return None
    size, limit = (
        max(abs(grid.lo), abs(grid.hi)),
        2 ** (params["exponent_bits"] - 1) - 1,
    )
    exact = size <= 2 ** (params["mantissa_bits"] + 1)
    small = size.bit_length() + grid.exponent <= limit and grid.exponent > -limit
    return grid if exact and small else None


def _extremum(eqn: Any, index: int, grids: Grids) -> Grid | None:
    """Of no values at all, an infinity."""
    del index
    return grids[0] if math.prod(eqn.invars[0].aval.shape) else None


def _sum_of(eqn: Any, index: int, grids: Grids) -> Grid | None:
    del index
    shape = eqn.invars[0].aval.shape
    n = math.prod(shape[a] for a in eqn.params["axes"])
    return grids[0] and _grid_or_none(grids[0], n)


def _grid_or_none(grid: Grid, n: int) -> Grid | None:
    """The sum of `n` members; of none, zero."""
    return grid.times(n) if n else Grid(0, 0)


def _cumulative_sum(eqn: Any, index: int, grids: Grids) -> Grid | None:
    del index
    n = eqn.invars[0].aval.shape[eqn.params["axis"]]
    return grids[0] and grids[0].times(max(n, 1))


def _window_sum(eqn: Any, index: int, grids: Grids) -> Grid | None:
    del index
    padded = any(p != (0, 0) for p in map(tuple, eqn.params["padding"]))
    padded |= any(d != 1 for d in eqn.params["base_dilation"])
    grid = _grid.union([grids[0], Grid(0, 0)]) if padded else grids[0]
    return grid and grid.times(math.prod(eqn.params["window_dimensions"]))


def _window_extremum(eqn: Any, index: int, grids: Grids) -> Grid | None:
    """A window wholly in the padding would give an infinity."""
    del index
    params = eqn.params
    dilated = any(
        d != 1 for d in (*params["base_dilation"], *params["window_dilation"])
    )
    padding, window = params["padding"], params["window_dimensions"]
    outside = any(max(p) >= w for p, w in zip(padding, window))
    empty = not math.prod(eqn.invars[0].aval.shape)
    return None if dilated or outside or empty else grids[0]


def _dot(eqn: Any, index: int, grids: Grids) -> Grid | None:
    """Exact where both operands survive bfloat16, the coarsest default precision."""
    if any(g is None or not g.fits(jnp.dtype(jnp.bfloat16)) for g in grids):
        return None
    (contract, _), _ = eqn.params["dimension_numbers"]
    n = math.prod(eqn.invars[0].aval.shape[a] for a in contract)
    product = _signed(_grid.multiply)(eqn, index, grids)
    return product and _grid_or_none(product, n)


def _gather(eqn: Any, index: int, grids: Grids) -> Grid | None:
    """Out of bounds, `fill` gives its fill value, NaN by default; `clip` a member."""
    mode = lax.GatherScatterMode.from_any(eqn.params["mode"])
    if mode in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS):
        return grids[0]
    fill = eqn.params["fill_value"]
    return None if fill is None else _grid.union([grids[0], _fill(fill)])


def _fill(value: Any) -> Grid | None:
    return _grid_of(_constant(value))


def _scatter(eqn: Any, index: int, grids: Grids) -> Grid | None:
    """Replacement alone; `x.at[i].apply(f)` is the same primitive with an `f`."""
    del index
    update = eqn.params["update_jaxpr"]
    if update is not None and update.outvars != update.invars[1:]:
        return None
    return _grid.union([grids[0], grids[2]])


def _iota(eqn: Any, index: int, grids: Grids) -> Grid | None:
    del grids
    shape = eqn.outvars[index].aval.shape
    return Grid(0, max(shape[eqn.params["dimension"]] - 1, 0))


def _position(eqn: Any, index: int, grids: Grids) -> Grid | None:
    del index, grids
    shape = eqn.invars[0].aval.shape
    return Grid(0, max(max(shape[a] for a in eqn.params["axes"]) - 1, 0))


def _integer_power(eqn: Any, index: int, grids: Grids) -> Grid | None:
    if eqn.params["y"] == 1:
        return grids[0]
    return _known(_grid.square)(eqn, index, grids) if eqn.params["y"] == 2 else None


def _rounded(grid: Grid) -> Grid | None:
    """To the nearest integer, whichever way halves go."""
    return _grid.union((grid.rounded(math.floor), grid.rounded(math.ceil)))


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "is_finite")
_SAME = (
    "reshape broadcast_in_dim transpose squeeze expand_dims rev slice dynamic_slice "
    "copy copy_p name split tile sharding_constraint reduce_precision "
    "convert_element_type stop_gradient pvary mesh_cast reshard"
).split()
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_COMPARISONS, _binary),
    **dict.fromkeys(_SAME, _first),
    **dict.fromkeys(("optimization_barrier", "device_put", "sort"), _each),
    **dict.fromkeys(("and", "or", "not", "xor", "reduce_and", "reduce_or"), _logical),
    **dict.fromkeys(("reduce_max", "reduce_min", "cummax", "cummin"), _extremum),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min"), _window_extremum),
    **dict.fromkeys(("argmax", "argmin"), _position),
    "convert_element_type": _convert,
    "concatenate": _union_of(slice(None)),
    "pad": _union_of(slice(None)),
    "select_n": _union_of(slice(1, None)),
    "clamp": _union_of(slice(None)),
    "dynamic_update_slice": _union_of(slice(0, 2)),
    "scatter": _scatter,
    "gather": _gather,
    "iota": _iota,
    "max": _known(_grid.maximum),
    "min": _known(_grid.minimum),
    "add": _known(_grid.add),
    "add_any": _known(_grid.add),
    "sub": _known(lambda a, b: _grid.add(a, _grid.negative(b))),
    "neg": _negated,
    "reduce_precision": _reduced_precision,
    "stack": _union_of(slice(None)),
    "mul": _signed(_grid.multiply),
    "div": _signed(_grid.divide),
    "abs": _known(_grid.absolute),
    "square": _known(_grid.square),
    "integer_pow": _integer_power,
    "floor": _known(lambda g: g.rounded(math.floor)),
    "ceil": _signed(lambda g: g.rounded(math.ceil)),
    "round": _signed(_rounded),
    "reduce_sum": _sum_of,
    "cumsum": _cumulative_sum,
    "reduce_window_sum": _window_sum,
    "dot_general": _dot,
}
