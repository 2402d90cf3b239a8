"""Grids against sets written out: every operation holds what enumeration gives."""

import itertools
import math
import operator

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snnjax.memopt import Grid
from snnjax.memopt import _grid as grids

QUICK = settings(derandomize=True, deadline=None, database=None, max_examples=150)
DTYPES = ("bool", "int8", "uint8", "int32", "bfloat16", "float16", "float32")


@st.composite
def small_grids(draw) -> Grid:
    lo = draw(st.integers(-6, 6))
    return Grid(lo, lo + draw(st.integers(0, 5)), draw(st.integers(-3, 3)))


def members(grid: Grid) -> list[float]:
    return [k * 2.0**grid.exponent for k in range(grid.lo, grid.hi + 1)]


def holds(grid: Grid | None, values) -> bool:
    return grid is None or bool(np.all(grid.contains(np.array(list(values)))))


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (grids.add, operator.add),
        (grids.multiply, operator.mul),
        (grids.maximum, max),
        (grids.minimum, min),
    ],
)
@given(a=small_grids(), b=small_grids())
@QUICK
def test_binary_operations_hold_every_result(ours, theirs, a, b):
    result = ours(a, b)
    assert result is not None
    assert holds(
        result, (theirs(x, y) for x, y in itertools.product(members(a), members(b)))
    )


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (grids.negative, operator.neg),
        (grids.absolute, abs),
        (grids.square, lambda x: x * x),
        (lambda g: g.rounded(math.floor), math.floor),
        (lambda g: g.rounded(math.ceil), math.ceil),
    ],
)
@given(a=small_grids())
@QUICK
def test_unary_operations_hold_every_result(ours, theirs, a):
    assert holds(ours(a), map(theirs, members(a)))


@given(a=small_grids(), b=small_grids())
@QUICK
def test_division_holds_every_quotient_or_is_unknown(a, b):
    result = grids.divide(a, b)
    if result is not None:
        assert holds(
            result, (x / y for x, y in itertools.product(members(a), members(b)))
        )
    if len(set(members(b))) == 1 and members(b)[0] in (0.25, 0.5, 1, 2, 4, -1):
        assert result is not None


@given(a=small_grids(), b=small_grids())
@QUICK
def test_union_and_within_are_those_of_sets(a, b):
    union = grids.union([a, b])
    assert holds(union, members(a) + members(b))
    assert grids.union([a, None]) is None
    assert a.within(union) and b.within(union)
    # Representations are not unique (a single member has many), so not only if.
    if a.within(b):
        assert set(members(a)) <= set(members(b))
    if set(members(a)) <= set(members(b)) and a.exponent >= b.exponent:
        assert a.within(b)


@given(a=small_grids(), n=st.integers(1, 4))
@QUICK
def test_times_holds_every_sum_and_partial_sum(a, n):
    for k in range(1, n + 1):
        sums = map(sum, itertools.product(members(a)[:2] + members(a)[-2:], repeat=k))
        assert holds(a.times(n), sums)


@given(a=small_grids(), b=st.integers(-40, 200))
@QUICK
def test_contains_are_the_members_and_nothing_else(a, b):
    value = b / 8
    assert bool(a.contains(np.float64(value))) == (value in members(a))
    assert not np.any(a.contains(np.array([np.nan, np.inf, -np.inf])))


@pytest.mark.parametrize("dtype", DTYPES)
@given(lo=st.integers(-300, 300), n=st.integers(0, 3000), e=st.integers(-26, 17))
@settings(QUICK, max_examples=60)
def test_what_fits_a_dtype_comes_back_from_it(dtype, lo, n, e):
    grid = Grid(lo, lo + n, e)
    if grid.fits(jnp.dtype(dtype)):
        values = np.array(members(grid))
        with np.errstate(all="ignore"):
            there = values.astype(jnp.dtype(dtype)).astype(np.float64)
        np.testing.assert_array_equal(there, values)


@pytest.mark.parametrize(
    "dtype, largest",
    [("bfloat16", 2**8), ("float16", 2**11), ("float32", 2**24)]
    + [("uint8", 255), ("int8", 127), ("int32", 2**31 - 1), ("bool", 1)],
)
def test_the_largest_integer_that_fits(dtype, largest):
    assert Grid(0, largest).fits(jnp.dtype(dtype))
    assert not Grid(0, largest + 1).fits(jnp.dtype(dtype))


def test_nothing_fits_a_dtype_that_holds_no_numbers():
    assert not Grid(0, 1).fits(jnp.dtype("complex64"))


@pytest.mark.parametrize(
    "values, expected",
    [
        (np.array([0, 1]), Grid(0, 1)),
        (np.array([True, False]), Grid(0, 1)),
        (np.array([0.25, 1.0]), Grid(1, 4, -2)),
        (np.array([3, -2], np.int8), Grid(-2, 3)),
        (np.array([0.5], jnp.bfloat16), Grid(1, 1, -1)),
        (np.array([0.1]), None),
        (np.array([np.nan, 0]), None),
        (np.array([np.inf]), None),
        (np.array([2.0**41]), None),
        (np.array([]), None),
        (np.array([1j]), None),
    ],
)
def test_the_grid_of_constants(values, expected):
    assert grids.of_values(values) == expected


@pytest.mark.parametrize(
    "grid, text",
    [
        (Grid(0, 1), "{0, 1}"),
        (Grid(0, 0), "{0}"),
        (Grid(0, 3), "0..3"),
        (Grid(0, 4, -2), "0..1 in steps of 1/4"),
        (Grid(-2, 2, 1), "-4..4 in steps of 2"),
        (Grid(0, 1, -2), "{0, 0.25}"),
    ],
)
def test_a_grid_prints_as_people_write_it(grid, text):
    assert str(grid) == text


@pytest.mark.parametrize("lo, hi, bits", [(0, 0, 0), (0, 1, 1), (0, 3, 2), (-1, 3, 3)])
def test_bits_tell_the_members_apart(lo, hi, bits):
    assert Grid(lo, hi).bits == bits
    assert 2**bits >= hi - lo + 1


def test_huge_results_become_unknown_not_slow():
    far = Grid(1, 2**61), Grid(1, 2**61)
    assert grids.multiply(*far) is None
    assert grids.add(Grid(0, 1, 60), Grid(0, 1, -60)) is None


@pytest.mark.parametrize("numbers", [(1, 0), (0, 0.5), (0, 1, 0.5), (False, 1)])
def test_what_is_no_grid_is_refused(numbers):
    with pytest.raises(ValueError, match="`lo` is .*whole numbers with lo <= hi"):
        Grid(*numbers)
