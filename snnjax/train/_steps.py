"""The training and the evaluation step, and either compiled, with its bytes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx

from .._step import Loss, make_step
from .._types import Array
from ._objective import Measuring, measuring

Step = Callable[..., Array]


def make_train_step(loss: Loss | Measuring) -> Step:
    """A step `(model, optimizer, metrics, *batch) -> loss`; it updates all three.

    Compile it with `nnx.jit(make_train_step(loss), donate_argnums=(0, 1, 2))`.

    Args:
        loss: `loss(model, *batch)`, a scalar, or one that measures (`Classifier`).
    """
    update = make_step(measuring(loss).measure, has_aux=True)

    def step(
        model: nnx.Module,
        optimizer: nnx.Optimizer,
        metrics: nnx.MultiMetric,
        *batch: Any,
    ) -> Array:
        value, found = update(model, optimizer, *batch)
        _note(metrics, value, found)
        return value

    return step


def make_eval_step(loss: Loss | Measuring) -> Step:
    """A step `(model, metrics, *batch) -> loss` that updates the metrics alone.

    Call it with a model in evaluation mode (`model.eval()`).

    Args:
        loss: as for `make_train_step`.
    """
    measure = measuring(loss).measure

    def step(model: nnx.Module, metrics: nnx.MultiMetric, *batch: Any) -> Array:
        value, found = measure(model, *batch)
        _note(metrics, value, found)
        return value

    return step


def _note(metrics: nnx.MultiMetric, value: Array, found: Mapping[str, Array]) -> None:
    with jax.numpy_dtype_promotion("standard"):  # Flax adds integers to floats
        metrics.update(loss=value, **found)


def peak_bytes(compiled: Any) -> int:
    """Bytes of one device at the peak: temp + argument + output - alias.

    Args:
        compiled: what `jit(step).lower(...).compile()` gives.
    """
    found = compiled.memory_analysis()
    return (
        found.temp_size_in_bytes
        + found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
    )


class Program:
    """A step, compiled when a batch of new shapes comes.

    By hand and not by calling the jitted step: that would compile once more for the
    bytes.
    """

    def __init__(self, step: Step, donate: tuple[int, ...]) -> None:
        self._jitted: Any = nnx.jit(step, donate_argnums=donate)
        self._compiled: dict[Any, Any] = {}
        self.peak_bytes: int | None = None

    def __call__(self, *state: Any, batch: tuple[Any, ...]) -> Array:
        """`step(*state, *batch)`."""
        shapes = str(jax.tree.map(jax.typeof, batch))
        if shapes not in self._compiled:
            compiled = self._jitted.lower(*state, *batch).compile()
            self._compiled[shapes] = compiled
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes(compiled))
        return self._compiled[shapes](*state, *batch)
