"""Whether traces of one function at several sizes say the same but for the size.

Only then is the chunk's equation the whole program's equation on a chunk.
"""

import enum
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from ._axis_rules import Mixes
from ._jaxpr import is_literal, live

_PLAIN = (int, float, complex, str, np.dtype, np.ndarray, enum.Enum, type(None))
# They are the shapes of results, which are compared by themselves.
_SHAPES = ("new_sizes", "shape", "limit_indices", "slice_sizes", "sizes")


class Twins:
    """Which variables of several traces are the same.

    Args:
        bodies: one jaxpr for each size.
        exact: whether constants must be equal as well.
    """

    def __init__(self, bodies: Sequence[Any], exact: bool) -> None:
        self._bodies, self._exact = bodies, exact
        self._of: dict[Any, tuple[Any, ...]] = {}
        for body in zip(*(b.constvars for b in bodies)):
            self._of[body[0]] = body
        self._add(zip(*(b.invars for b in bodies)))

    def _add(self, rows: Any) -> None:
        self._of.update((row[0], row) for row in rows)

    def equations(self) -> list[tuple[Any, ...]]:
        """The equations that matter, those of all sizes side by side.

        Raises:
            Mixes: the programs differ by more than their size.
        """
        found = [live(body) for body in self._bodies]
        names = [[e.primitive.name for e in eqns] for eqns in found]
        if any(n != names[0] for n in names):
            counts = ", ".join(str(len(n)) for n in names)
            raise Mixes(
                f"the program depends on their number ({counts} equations, whole and "
                "in chunks); another number of chunks may do"
            )
        rows = list(zip(*found))
        for row in rows:
            for atoms in zip(*(e.invars for e in row)):
                self._check(atoms)
            self._add(zip(*(e.outvars for e in row)))
        for atoms in zip(*(b.outvars for b in self._bodies)):
            self._check(atoms)
        return rows

    def _check(self, atoms: tuple[Any, ...]) -> None:
        literals = [is_literal(a) for a in atoms]
        if all(literals):
            values = [a.val for a in atoms]
            same = not self._exact or all(_equal(values[0], v) for v in values)
        else:
            same = not any(literals) and self._of[atoms[0]] == atoms
        if not same:
            raise Mixes("the program depends on their number (its operands differ)")


def check_consts(programs: Sequence[Any]) -> None:
    """Raises Mixes unless the traces captured the same constants."""
    for consts in zip(*(getattr(p, "consts", ()) for p in programs)):
        if not all(_equal(consts[0], c) for c in consts):
            raise Mixes("a constant inside a loop or a rule depends on their number")


def check_params(eqns: tuple[Any, ...], but: tuple[str, ...] = ()) -> None:
    """Raises Mixes unless equations have the same parameters, programs apart."""
    for key, value in eqns[0].params.items():
        for other in (e.params[key] for e in eqns[1:]):
            if key not in (*_SHAPES, *but) and not _alike(value, other):
                raise Mixes(f"its `{key}` is {value} for all and {other} for a chunk")


def _alike(a: Any, b: Any) -> bool:
    """Equal, as far as the type says what that is; programs are compared elsewhere."""
    if isinstance(a, tuple | list) and type(a) is type(b):
        return len(a) == len(b) and all(map(_alike, a, b))
    return _equal(a, b) if isinstance(a, _PLAIN) else type(a) is type(b)


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, Tracer) or isinstance(b, Tracer):
        return False
    if hasattr(a, "shape") and jax.numpy.issubdtype(a.dtype, jax.dtypes.prng_key):
        return False
    if hasattr(a, "shape") or isinstance(a, float):
        return np.array_equal(a, b, equal_nan=np.result_type(a).kind in "fc")
    return bool(a == b)
