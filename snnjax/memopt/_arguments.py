"""The arrays among the arguments of a call; all else in them is static."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

ARRAYS = (jax.Array, np.ndarray)
Arrays = dict[int, Any]  # by their place among the leaves


def arrays_of(arguments: Any) -> tuple[Arrays, Callable[[Arrays], Any]]:
    """The arrays in a pytree, and what makes the pytree of others in their place."""
    leaves, structure = jax.tree.flatten(arguments)

    def rebuild(arrays: Arrays) -> Any:
        merged = [arrays.get(i, a) for i, a in enumerate(leaves)]
        return jax.tree.unflatten(structure, merged)

    return {i: a for i, a in enumerate(leaves) if isinstance(a, ARRAYS)}, rebuild
