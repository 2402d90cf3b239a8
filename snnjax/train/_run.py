"""What a training step changes, and the compiled steps that change it."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import optax
from flax import nnx

from .._step import Loss
from .._types import Array
from ._devices import Mesh, replicate, shard
from ._objective import Measuring, measuring
from ._steps import Program, make_eval_step, make_train_step
from ._stream import Batch

Figures = dict[str, float]


class Variables(nnx.Module):
    """All that a training step changes, as one tree."""

    def __init__(
        self, model: nnx.Module, optimizer: nnx.Optimizer, metrics: nnx.MultiMetric
    ) -> None:
        self.model, self.optimizer, self.metrics = model, optimizer, metrics


class Run:
    """A model in training, on one device or on those of a mesh."""

    def __init__(
        self,
        model: nnx.Module,
        loss: Loss | Measuring,
        tx: optax.GradientTransformation,
        mesh: Mesh | None,
    ) -> None:
        model.train()
        self._mesh, self._new_metrics = mesh, measuring(loss).metrics
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        self.variables = Variables(model, optimizer, self._metrics())
        if mesh is not None:
            replicate(self.variables, mesh)
        self.program = Program(make_train_step(loss), donate=(0, 1, 2))
        self._eval = Program(make_eval_step(loss), donate=(1,))

    def train(self, batch: Batch) -> Array:
        """One step; returns the loss."""
        v = self.variables
        with self._on_mesh():
            state = v.model, v.optimizer, v.metrics
            return self.program(*state, batch=self._placed(batch))

    def evaluate(
        self, data: Iterable[Batch], after_each: Callable[[], None] = lambda: None
    ) -> Figures:
        """The metrics over all batches, in evaluation mode."""
        model, metrics = self.variables.model, self._metrics()
        model.eval()
        empty = True
        try:
            for batch in data:
                empty = False
                with self._on_mesh():
                    self._eval(model, metrics, batch=self._placed(batch))
                after_each()
        finally:
            model.train()
        if empty:
            raise ValueError(
                "`eval_data` has no batch, or is an iterator that is used up; it is "
                "iterated at every evaluation: hand over a list or a data set."
            )
        return _numbers(metrics)

    def figures(self) -> Figures:
        """Means over the epoch so far; waits for the device."""
        return _numbers(self.variables.metrics)

    def _metrics(self) -> nnx.MultiMetric:
        metrics = self._new_metrics()
        if self._mesh is not None:
            replicate(metrics, self._mesh)
        return metrics

    def _placed(self, batch: Batch) -> Batch:
        batch = tuple(batch)
        return jax.device_put(batch) if self._mesh is None else shard(batch, self._mesh)

    def _on_mesh(self) -> Any:
        mesh = self._mesh
        return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def _numbers(metrics: nnx.MultiMetric) -> Figures:
    with jax.numpy_dtype_promotion("standard"):  # Flax divides floats by integers
        return {name: float(value) for name, value in metrics.compute().items()}
