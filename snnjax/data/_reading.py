"""Files that another's decoder reads: whatever it raises, the file is the news."""

import contextlib
from collections.abc import Iterator


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
