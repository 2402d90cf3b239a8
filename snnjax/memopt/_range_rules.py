"""What each primitive makes of the grids of its operands, for `_ranges.py`.

A rule may only say what no input can break, rounding, overflow, NaN and negative zero
included: where an operation could make -0.0, which no compressor would give back, or
where nothing is sure, its result is unknown. A result that its dtype cannot hold
exactly is thrown out after the rule.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _grid
from ._grid import BINARY, Grid

Grids = list[Grid | None]
Rule = Callable[[Any, int, Grids], Grid | None]


def of_constant(value: Any) -> Grid | None:
    """The smallest grid with all members of an array of the program."""
    if not is_number(jnp.result_type(value)) or np.size(value) > 2**16:
        return None
    array = np.asarray(value)
    return None if _has_negative_zero(array) else _grid.of_values(array)


def is_number(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)


def _has_negative_zero(array: np.ndarray) -> bool:
    floats = jnp.issubdtype(array.dtype, jnp.floating)
    return bool(floats and np.any((array == 0) & np.signbit(array)))


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
    return None if fill is None else _grid.union([grids[0], of_constant(fill)])


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


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "is_finite")
SAME = (
    "reshape broadcast_in_dim transpose squeeze expand_dims rev slice dynamic_slice "
    "copy copy_p name split tile sharding_constraint reduce_precision "
    "convert_element_type stop_gradient pvary mesh_cast reshard"
).split()
RULES: dict[str, Rule] = {
    **dict.fromkeys(COMPARISONS, _binary),
    **dict.fromkeys(SAME, _first),
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
