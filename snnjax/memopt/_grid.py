"""Finite sets of evenly spaced numbers: what a value is proven to lie in.

A grid is `{k * 2**exponent : lo <= k <= hi}`: {0, 1} are spikes, 0..3 a sum of three of
them, multiples of 1/4 in 0..1 spikes after a mean over four. The operations are the set
operations: the result holds every value that the operation can give.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Grid:
    """`{k * 2**exponent : lo <= k <= hi}`, integers all.

    Args:
        lo, hi: the smallest and the largest k.
        exponent: of the unit, `2**exponent`.

    Raises:
        ValueError: they are no whole numbers, or `lo` is above `hi`.
    """

    lo: int
    hi: int
    exponent: int = 0

    def __post_init__(self) -> None:
        whole = all(type(n) is int for n in (self.lo, self.hi, self.exponent))
        if not whole or self.lo > self.hi:
            raise ValueError(
                f"`lo` is {self.lo!r}, `hi` {self.hi!r}, `exponent` {self.exponent!r}; "
                "allowed are whole numbers with lo <= hi. Give the members in units of "
                "2**exponent."
            )

    def __str__(self) -> str:
        unit = 2.0**self.exponent
        if self.hi == self.lo:
            return f"{{{self.lo * unit:g}}}"
        if self.hi == self.lo + 1:
            return f"{{{self.lo * unit:g}, {self.hi * unit:g}}}"
        span = f"{self.lo * unit:g}..{self.hi * unit:g}"
        if self.exponent == 0:
            return span
        step = f"1/{2**-self.exponent}" if self.exponent < 0 else f"{2**self.exponent}"
        return f"{span} in steps of {step}"

    @property
    def bits(self) -> int:
        """Bits that tell its members apart."""
        return (self.hi - self.lo).bit_length()

    def contains(self, values: Any) -> np.ndarray:
        """Which of `values` are members, elementwise."""
        k = np.asarray(values, np.float64) / 2.0**self.exponent
        return (k == np.round(k)) & (k >= self.lo) & (k <= self.hi)

    def within(self, other: "Grid") -> bool:
        """Whether every member is one of `other`'s."""
        if self.lo == self.hi:
            return bool(other.contains(np.float64(self.lo * 2.0**self.exponent)))
        if self.exponent < other.exponent:
            return False
        fine = self.at(other.exponent)
        return other.lo <= fine.lo and fine.hi <= other.hi

    def fits(self, dtype: np.dtype) -> bool:
        """Whether `dtype` represents every member, and every integer between, exactly.

        An operation on members whose true result fits gives that result: no rounding,
        no wrapping.
        """
        size = max(abs(self.lo), abs(self.hi))
        if jnp.issubdtype(dtype, jnp.bool_):
            return self.exponent == 0 and self.lo >= 0 and self.hi <= 1
        if jnp.issubdtype(dtype, jnp.integer):
            info, unit = jnp.iinfo(dtype), 2**self.exponent
            whole = self.exponent >= 0
            return whole and info.min <= self.lo * unit and self.hi * unit <= info.max
        if jnp.issubdtype(dtype, jnp.floating):
            info = jnp.finfo(dtype)
            exact = size <= 2 ** (info.nmant + 1) and self.exponent >= info.minexp
            return exact and size * 2.0**self.exponent <= float(info.max)
        return False

    def at(self, exponent: int) -> "Grid":
        """The same set on a finer grid, `exponent <= self.exponent`."""
        shift = 2 ** (self.exponent - exponent)
        return Grid(self.lo * shift, self.hi * shift, exponent)

    def times(self, n: int) -> "Grid":
        """Every sum of `n` members, and every partial sum."""
        return Grid(min(self.lo, self.lo * n), max(self.hi, self.hi * n), self.exponent)

    def rounded(self, to_int: Callable[[float], int]) -> "Grid":
        """The members after a rounding to integers, such as `math.floor`."""
        if self.exponent >= 0:
            return self
        unit = 2.0**self.exponent
        return Grid(to_int(self.lo * unit), to_int(self.hi * unit))


BINARY = Grid(0, 1)
_LIMIT = 62  # exponents beyond this are of no use, and would make large integers


def union(grids: Iterable[Grid | None]) -> Grid | None:
    """The smallest grid with every member of every one; None, unknown, if one is."""
    every = list(grids)
    known = [g for g in every if g is not None]
    if not known or len(known) < len(every):
        return None
    return _hull(known, min, max)


def maximum(a: Grid, b: Grid) -> Grid | None:
    return _hull((a, b), max, max)


def minimum(a: Grid, b: Grid) -> Grid | None:
    return _hull((a, b), min, min)


def add(a: Grid, b: Grid) -> Grid | None:
    return _hull((a, b), sum, sum)


def negative(a: Grid) -> Grid:
    return Grid(-a.hi, -a.lo, a.exponent)


def absolute(a: Grid) -> Grid:
    ends = sorted((abs(a.lo), abs(a.hi)))
    return Grid(0 if a.lo <= 0 <= a.hi else ends[0], ends[1], a.exponent)


def multiply(a: Grid, b: Grid) -> Grid | None:
    ends = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return _checked(Grid(min(ends), max(ends), a.exponent + b.exponent))


def divide(a: Grid, b: Grid) -> Grid | None:
    """Known only where the divisor is one power of two, or minus one."""
    if b.lo != b.hi or b.lo == 0 or abs(b.lo) & (abs(b.lo) - 1):
        return None
    power = b.exponent + abs(b.lo).bit_length() - 1
    shifted = Grid(a.lo, a.hi, a.exponent - power)
    return _checked(shifted if b.lo > 0 else negative(shifted))


def square(a: Grid) -> Grid | None:
    return multiply(absolute(a), absolute(a))


def of_values(values: np.ndarray) -> Grid | None:
    """The grid of a constant's values, or None."""
    values = np.asarray(values)
    if not values.size or values.dtype.kind not in "biuf" and values.dtype != _BFLOAT16:
        return None
    wide = values.astype(np.float64)
    if not np.all(np.isfinite(wide)) or np.abs(wide).max() > 2**40:
        return None
    for exponent in range(0, -17, -1):
        k = wide / 2.0**exponent
        if np.all(k == np.round(k)):
            return Grid(int(k.min()), int(k.max()), exponent)
    return None


_BFLOAT16 = jnp.bfloat16


def _hull(
    grids: Iterable[Grid],
    lo: Callable[[list[int]], int],
    hi: Callable[[list[int]], int],
) -> Grid | None:
    grids = list(grids)
    exponent = min(g.exponent for g in grids)
    if max(g.exponent for g in grids) - exponent > _LIMIT:
        return None
    fine = [g.at(exponent) for g in grids]
    return _checked(Grid(lo([g.lo for g in fine]), hi([g.hi for g in fine]), exponent))


def _checked(grid: Grid) -> Grid | None:
    small = max(abs(grid.lo), abs(grid.hi)) < 2**_LIMIT
    return grid if small and abs(grid.exponent) <= _LIMIT else None
