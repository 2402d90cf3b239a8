"""Which arguments of a segment are cut along with its input, and on which axis.

An array that starts as the input does, `[time, batch, ...]`, is cut with it; a neuron's
kept state is `[batch, ...]`; parameters and statistics are the same for all chunks. Of
any other array that starts with the length of the cut axis nothing is known, so both
readings are tried: only the right one passes the proof of `_twin.py`.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from .._types import Array
from ..neuron import State
from ._chunked import cut_program
from ._layout import TIME

_SAME_FOR_ALL = (nnx.Param, nnx.BatchStat, nnx.RngState)
_MOST_TRIED = 16


def axes_of(
    run: Callable[..., Any], axis: int, count: int, x: Array, state: Any, arrays: Any
) -> list[int | None]:
    """The cut axis in each leaf of `(state, arrays)`; None where there is none.

    Args:
        run: `run(x, state, arrays)`.
        axis: that is cut in `x`.
        count: of chunks.
        x: the input.
        state: of the module.
        arrays: further arguments.
    """
    options = [
        *(o for v in _variables(state) for o in _of_variable(v, axis, x)),
        *(_of_array(a, axis, x) for a in jax.tree.leaves(arrays)),
    ]
    choices = list(itertools.islice(itertools.product(*options), _MOST_TRIED))
    if len(choices) > 1:
        choices = [c for c in choices if _can(c, run, axis, count, x, state, arrays)]
        choices = choices or [[o[0] for o in options]]
    return list(choices[0])


def _can(axes: Any, *cut: Any) -> bool:
    try:
        cut_program(*cut, in_axes=axes)
    except ValueError:
        return False
    return True


def _variables(state: Any) -> list[Any]:
    return jax.tree.leaves(state, is_leaf=lambda a: isinstance(a, nnx.Variable))


def _of_variable(variable: Any, axis: int, x: Array) -> list[list[int | None]]:
    leaves = jax.tree.leaves(variable)
    if isinstance(variable, _SAME_FOR_ALL) or _is_state(variable) and axis == TIME:
        return [[None] for _ in leaves]
    options = [_of_array(a, axis, x) for a in leaves]
    # Most leaves of a neuron's state have a batch axis, a step counter has not.
    return [o[::-1] for o in options] if _is_state(variable) else options


def _is_state(variable: Any) -> bool:
    return isinstance(variable, State)


def _of_array(a: Any, axis: int, x: Array) -> list[int | None]:
    """The readings of an array, the likeliest first."""
    if a.ndim > 1 and a.shape[:2] == x.shape[:2]:
        return [axis]
    starts = a.ndim and a.shape[0] == x.shape[axis]
    return [None, 0] if starts else [None]
