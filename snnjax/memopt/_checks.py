"""Checks of arguments that several parts of the planner take, with their messages."""

from collections.abc import Iterable
from typing import Any


def check_whole(name: str, value: Any, least: int, do: str) -> None:
    """Raises ValueError unless `value` is a whole number from `least`; `do` helps."""
    if type(value) is not int or value < least:
        raise ValueError(
            f"`{name}` is {value!r}; allowed are whole numbers from {least}. {do}"
        )


def check_one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raises ValueError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(
            f"`{name}` is {value!r}; allowed are {', '.join(map(repr, allowed))}."
        )
