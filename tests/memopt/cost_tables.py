"""Invented cost tables, and a compiler that is asked for their peaks."""

import itertools

from hypothesis import strategies as st

from snnjax.memopt._table import (
    CURRENTS,
    GC,
    PLAIN,
    SPLIT,
    Choice,
    Cost,
    Row,
    Table,
)

KINDS = (PLAIN, GC, CURRENTS, SPLIT, Choice("time", 2))
B2, B4, B8 = (Choice("batch", k) for k in (2, 4, 8))
T2, T4 = (Choice("time", k) for k in (2, 4))
B2F, B4F = (Choice("batch", k, "chunks") for k in (2, 4))

costs = st.builds(
    Cost,
    saved=st.integers(0, 8),
    forward=st.integers(0, 8),
    backward=st.integers(0, 8),
    seconds=st.integers(0, 5).map(float),
)


@st.composite
def tables(draw, rows=5, choices=5):
    made = []
    for i in range(draw(st.integers(1, rows))):
        n = draw(st.integers(1, choices))
        offered = tuple((c, draw(costs)) for c in KINDS[:n])
        made.append(Row(f"r{i}", offered, draw(st.integers(0, 4))))
    # Large, so that a peak never ties with the fixed bytes alone.
    return Table(tuple(made), draw(st.integers(0, 20)), float(draw(st.integers(0, 9))))


def everything(table):
    """Every choice for every row."""
    return itertools.product(*(row.choices for row in table.rows))


def row(path, gradients=0, **offered):
    """`gc=(saved, forward, backward, seconds)`; names as in `NAMES`."""
    named = tuple((NAMES[name], Cost(*cost)) for name, cost in offered.items())
    return Row(path, named, gradients)


NAMES = {"plain": PLAIN, "gc": GC, "currents": CURRENTS, "split": SPLIT}
NAMES |= {"b2": B2, "b4": B4, "b8": B8, "t2": T2, "t4": T4, "b2f": B2F, "b4f": B4F}


TWO = Table(
    (
        # b is hot at first; its split helps, then a is hot and cannot be split.
        row("a", plain=(50, 5, 9, 3.0), gc=(5, 10, 60, 4.0)),
        row(
            "b",
            plain=(80, 5, 9, 3.0),
            gc=(5, 10, 90, 4.0),
            split=(5, 10, 40, 4.0),
        ),
        row("c", plain=(20, 5, 9, 6.0), gc=(5, 10, 30, 8.0), split=(7, 9, 35, 8.0)),
    ),
    fixed=1000,
)


PLAINS = (PLAIN,) * 3


class Measured:
    """A measure of invented figures that remembers its calls."""

    def __init__(self, figures):
        self.figures, self.calls = figures, []

    def __call__(self, choices):
        self.calls.append(choices)
        figure = self.figures(choices) if callable(self.figures) else None
        figure = self.figures[choices] if figure is None else figure
        if isinstance(figure, BaseException):
            raise figure
        return figure
