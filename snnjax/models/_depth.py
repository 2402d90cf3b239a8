"""How many blocks each stage of a network has."""

from collections.abc import Sequence


def check_depth(depth: Sequence[int], stages: int) -> None:
    """Raises ValueError unless there is a number for every stage."""
    if len(depth) != stages:
        raise ValueError(
            f"`depth` is {tuple(depth)}; allowed are {stages} numbers, the blocks of "
            "each stage."
        )
