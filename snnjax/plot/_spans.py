"""Which stretches of a compiled program belong to which segment.

XLA keeps the `jax.named_scope`s of an operation in the name of its instruction, forward
and backward. Copies of XLA's own have none, and what several blocks share has that of
one of them. So instructions without a segment, and one alone with another, count with
their neighbors where the neighbors before and behind agree.
"""

import itertools
from collections.abc import Sequence

Span = tuple[int, int, str]


def spans(scopes: Sequence[str], segments: Sequence[str]) -> list[Span]:
    """The stretches of a program, in order; what belongs to no segment is left out.

    Args:
        scopes: of each instruction, such as "block2/snn.conv (backward)".
        segments: names that are one part of such a path, such as "block2".

    Returns:
        (first instruction, the one behind the last, segment) of each stretch.
    """
    named = ((i, segment_of(scope, segments)) for i, scope in enumerate(scopes))
    places, names = [], []
    for i, name in named:
        if name is not None:
            places.append(i)
            names.append(name)
    runs = itertools.groupby(zip(places, _settled(names)), key=lambda entry: entry[1])
    ends = ((name, [i for i, _ in run]) for name, run in runs)
    return [(within[0], within[-1] + 1, name) for name, within in ends]


def segment_of(scope: str, segments: Sequence[str]) -> str | None:
    """The outermost part of a scope's path that is the name of a segment."""
    parts = scope.split(" (")[0].split("/")
    return next((part for part in parts if part in segments), None)


def _settled(names: list[str]) -> list[str]:
    names = list(names)
    for i in range(1, len(names) - 1):
        if names[i - 1] == names[i + 1]:
            names[i] = names[i - 1]
    return names
