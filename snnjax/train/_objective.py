"""What is minimized, and what is measured on the way: `loss(model, *batch)`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from flax import nnx

from .._step import Loss
from .._types import Array

Measured = tuple[Array, Mapping[str, Array]]


@runtime_checkable
class Measuring(Protocol):
    """A loss that also measures: what it gives goes to `nnx.metrics` of its choice."""

    def measure(self, model: nnx.Module, *batch: Any) -> Measured:
        """The loss, and keyword arguments of `metrics().update` beside `loss`."""
        ...

    def metrics(self) -> nnx.MultiMetric:
        """New metrics, one for training and one for evaluation."""
        ...


@dataclasses.dataclass(frozen=True)
class _Plain:
    """Any `loss(model, *batch)`; its mean is all that is measured."""

    loss: Loss

    def measure(self, model: nnx.Module, *batch: Any) -> Measured:
        return self.loss(model, *batch), {}

    def metrics(self) -> nnx.MultiMetric:
        return nnx.MultiMetric(loss=nnx.metrics.Average("loss"))


def measuring(loss: Loss | Measuring) -> Measuring:
    """The loss itself if it measures, or one that measures its mean."""
    return loss if isinstance(loss, Measuring) else _Plain(loss)


def _rate(scores: Array) -> Array:
    return scores.mean(0)


@dataclasses.dataclass(frozen=True)
class Classifier:
    """`loss(model, x, labels)` of a network of class scores, with its accuracy.

    A scalar, as `memopt.make_plan(..., loss=)` takes it; `Trainer` also has the
    accuracy from the same pass. Samples with a negative label count for neither.

    Args:
        criterion: `criterion(scores, labels)`, such as `snnjax.loss.tet`, a scalar;
            `scores` are `[time, batch, class]`, `labels` `[batch]`.
        decide: scores to what is greatest at the answer, `[batch, class]`; the mean
            over time.
    """

    criterion: Callable[[Array, Array], Array]
    decide: Callable[[Array], Array] = _rate

    def __call__(self, model: nnx.Module, x: Array, labels: Array) -> Array:
        """The criterion alone, of `x` `[time, batch, ...]` and `labels` `[batch]`."""
        return self.measure(model, x, labels)[0]

    def measure(self, model: nnx.Module, *batch: Any) -> Measured:
        x, labels = batch
        call: Any = model
        scores = call(x)
        found = {"logits": self.decide(scores), "labels": labels, "mask": labels >= 0}
        return self.criterion(scores, labels), found

    def metrics(self) -> nnx.MultiMetric:
        average = nnx.metrics.Average("loss")
        return nnx.MultiMetric(loss=average, accuracy=nnx.metrics.Accuracy())
