"""Files that another's decoder reads: whatever it raises, the file is the news."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
_TRIES = 10


@contextlib.contextmanager
def reading(file: object, remedy: str) -> Iterator[None]:
    """Makes any error a ValueError that names the file, and what to do.

    Args:
        file: its path, and perhaps the sample in it.
        remedy: a sentence or two.
    """
    try:
        yield
    except Exception as error:
        raise ValueError(f"{file} cannot be read ({error}). {remedy}") from error


def undisturbed(read: Callable[[], T]) -> T:
    """`read()`, again if another thread came between.

    `np.load` reads a header with `ast`, which counts its depth for all threads at once
    before Python 3.12. Of two threads that collect garbage all the time, one in 5,000
    reads ends in a SystemError, "AST constructor recursion depth mismatch".

    Source: github.com/python/cpython/issues/106905.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(SystemError):
            return read()
    return read()
