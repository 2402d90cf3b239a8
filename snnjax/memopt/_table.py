"""What each segment costs under each choice, and what a whole step then costs.

Plain numbers: this file and the search know nothing of jax. A step is a chain of
segments. Forward, everything before a segment is kept while it runs; backward, what
comes after it has been given back, and its gradients have been made:

    forward(i)  = fixed + sum of saved before i + forward work of i
    backward(i) = fixed + sum of saved up to i + gradients after i + backward work of i

The peak is the largest of these.
"""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Choice:
    """What becomes of one target.

    Args:
        kind: "plain"; "gc", a segment; "currents", one that also keeps the results of
            convolutions and matrix products; "split", its parts are segments; "batch"
            or "time", a segment whose backward pass runs over chunks.
        chunks: how many.
        forward_by: as for `chunked_segment`.
    """

    kind: str
    chunks: int = 1
    forward_by: str = "whole"

    def __str__(self) -> str:
        if self.chunks == 1:
            return self.kind
        return f"{self.kind} {self.chunks}" + " +" * (self.forward_by != "whole")


PLAIN, GC, CURRENTS, SPLIT = map(Choice, ("plain", "gc", "currents", "split"))


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one segment under one choice.

    Args:
        saved: bytes kept from its forward to its backward pass.
        forward, backward: bytes alive in it while that pass runs, besides what is kept.
        seconds: of both passes.
    """

    saved: int
    forward: int
    backward: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One target: its choices, the default first, and its parameters' gradients."""

    path: str
    costs: tuple[tuple[Choice, Cost], ...]
    gradients: int = 0

    def cost(self, choice: Choice) -> Cost:
        return dict(self.costs)[choice]

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(choice for choice, _ in self.costs)

    def only(self, kinds: Sequence[str]) -> "Row":
        """With choices of these kinds."""
        costs = tuple((c, cost) for c, cost in self.costs if c.kind in kinds)
        return dataclasses.replace(self, costs=costs)


@dataclasses.dataclass(frozen=True)
class Table:
    """A training step.

    Args:
        rows: targets, in the order of the forward pass.
        fixed: bytes alive all along: parameters, optimizer, batch, and what the rest of
            the model keeps.
        held: of these, parameters, optimizer and batch, which no plan saves.
        seconds: of everything but the targets.
    """

    rows: tuple[Row, ...]
    fixed: int = 0
    seconds: float = 0.0
    held: int = 0

    def only(self, kinds: Sequence[str]) -> "Table":
        """With choices of these kinds."""
        rows = tuple(row.only(kinds) for row in self.rows)
        return dataclasses.replace(self, rows=rows)


Choices = tuple[Choice, ...]


def with_choice(choices: Choices, row: int, choice: Choice) -> Choices:
    """The choices with another one for a row."""
    return (*choices[:row], choice, *choices[row + 1 :])


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Of a whole step: its peak, its time, and each target's own largest moment."""

    peak: int
    seconds: float
    heat: tuple[int, ...]


def estimate(table: Table, choices: Choices) -> Estimate:
    """The step with a choice for each row."""
    costs = [row.cost(choice) for row, choice in zip(table.rows, choices, strict=True)]
    saved, heat = table.fixed, []
    gradients = sum(row.gradients for row in table.rows)
    for row, cost in zip(table.rows, costs):
        gradients -= row.gradients
        backward = saved + cost.saved + gradients + cost.backward
        heat.append(max(saved + cost.forward, backward))
        saved += cost.saved
    seconds = table.seconds + sum(cost.seconds for cost in costs)
    return Estimate(max(heat, default=table.fixed), seconds, tuple(heat))
