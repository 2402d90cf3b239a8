"""The training loop: epochs of steps, resumed from where it was left."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import optax
from flax import nnx

from .._step import Loss
from .._types import Array
from ._bar import Bar
from ._checkpoint import Checkpoints
from ._devices import Mesh
from ._loop import Loop, Place
from ._objective import Measuring
from ._run import Figures, Run
from ._sigterm import Sigterm
from ._stream import Batch, Data, Stream
from ._writer import Writer


class Trainer:
    """Trains a model: one donated, compiled step a batch, for a number of epochs.

    Killed at any moment and started again with the same arguments, it goes on from its
    last checkpoint, to the same losses and parameters, bit for bit on one machine.

    Args:
        model: an nnx model, planned by `memopt` or not; it is trained in place.
        loss: `loss(model, *batch)`, a scalar, or a `Classifier`.
        tx: from optax, such as `optax.adamw(rate)` with `rate` a number or a schedule,
            `optax.warmup_cosine_decay_schedule(...)`; schedules count updates.
        accumulate: batches whose mean gradient makes an update; the gradients are those
            of one large batch, but batch norm sees each batch for itself.
        mesh: from `make_mesh`: the batch is divided over its devices.
        checkpoints: the folder to save to and to resume from; None saves nothing.
        keep: checkpoints that stay.
        plan: what is kept with the checkpoints for `Checkpoints(folder).notes()`:
            anything that JSON can hold, such as a plan of `memopt` as text.
        writer: where figures are logged, such as `TensorBoard(folder)`; the first
            process writes.

    Raises:
        ValueError: `accumulate` or `keep` is below 1.

    Example:
        >>> import jax.numpy as jnp, optax, snnjax as snn
        >>> from flax import nnx
        >>> net = snn.layer.Sequential(
        ...     snn.layer.Linear(2, 3, rngs=nnx.Rngs(0)), snn.neuron.LIF())
        >>> loss = snn.train.Classifier(snn.loss.rate_mse)
        >>> batches = [(jnp.ones((4, 6, 2)), jnp.zeros(6, jnp.int32))]
        >>> trainer = snn.train.Trainer(net, loss, optax.sgd(0.1, momentum=0.9))
        >>> history = trainer.fit(batches, batches, epochs=2, show=False)
        >>> [sorted(epoch) for epoch in history][0][:4]
        ['accuracy', 'eval_accuracy', 'eval_loss', 'loss']
    """

    def __init__(
        self,
        model: nnx.Module,
        loss: Loss | Measuring,
        tx: optax.GradientTransformation,
        *,
        accumulate: int = 1,
        mesh: Mesh | None = None,
        checkpoints: str | Path | None = None,
        keep: int = 2,
        plan: Any = None,
        writer: Writer | None = None,
    ) -> None:
        _check_positive(accumulate=accumulate, keep=keep)
        if accumulate > 1:
            tx = optax.MultiSteps(tx, accumulate).gradient_transformation()
        self._run, self._place = Run(model, loss, tx, mesh), Place()
        self._folder, self._keep = checkpoints, keep
        self._plan, self._writer = plan, writer

    @property
    def model(self) -> nnx.Module:
        return self._run.variables.model

    @property
    def optimizer(self) -> nnx.Optimizer:
        return self._run.variables.optimizer

    @property
    def step(self) -> int:
        """Steps of `fit` so far, those before a resumption included."""
        return self._place.step

    @property
    def peak_bytes(self) -> int | None:
        """Of one device in the compiled training step; None before the first."""
        return self._run.program.peak_bytes

    def train_step(self, *batch: Any) -> Array:
        """One step on one batch (this process's part of it); returns the loss."""
        return self._run.train(batch)

    def evaluate(self, data: Iterable[Batch]) -> Figures:
        """The metrics over all batches of `data`, in evaluation mode.

        Raises:
            ValueError: `data` has no batch.
        """
        return self._run.evaluate(data)

    def fit(
        self,
        train_data: Data,
        eval_data: Iterable[Batch] | None = None,
        *,
        epochs: int,
        steps_per_epoch: int | None = None,
        save_every: int | None = None,
        log_every: int = 10,
        show: bool = True,
    ) -> list[Figures]:
        """Trains until `epochs` epochs are done, those before a resumption included.

        Asked by SIGTERM, it saves after the present step and leaves by `SystemExit`.

        Args:
            train_data: batches, tuples `(x, labels)` as a rule: an iterable that is
                iterated once an epoch, or a function of the number of the pass, from 0,
                that gives one. The place in it is saved: by `get_state` and `set_state`
                of its iterator, as grain's has, or by count.
            eval_data: batches to evaluate on after each epoch.
            epochs: in all.
            steps_per_epoch: batches in an epoch where `train_data` goes on and on; None
                makes a pass over it an epoch.
            save_every: steps from checkpoint to checkpoint, beside that at the end of
                each epoch.
            log_every: steps from one look at the figures to the next; a look waits for
                the device.
            show: a progress bar.

        Returns:
            Figures of each epoch: `loss`, `eval_loss` and what else is measured, means
            over the samples (of a plain loss, over the batches), and
            `samples_per_second`.

        Raises:
            SystemExit: after SIGTERM, with code 143, when all is saved.
            ValueError: `train_data` is empty, or not what the checkpoint is from;
                `eval_data` is empty; a number is below 1.
            FloatingPointError: the loss is no finite number; nothing later is saved.
        """
        _check_positive(epochs=epochs, log_every=log_every)
        _check_positive(steps_per_epoch=steps_per_epoch, save_every=save_every)
        with contextlib.ExitStack() as stack:
            loop = Loop(
                self._run,
                self._place,
                Stream(train_data),
                self._checkpoints(stack),
                self._plan,
                stack.enter_context(Sigterm()),
                stack.enter_context(Bar(epochs, show)),
                self._writer,
                save_every,
                log_every,
            )
            loop.resume()
            while self._place.epoch < epochs:
                loop.epoch(steps_per_epoch, eval_data)
        return list(self._place.history)

    def _checkpoints(self, stack: contextlib.ExitStack) -> Checkpoints | None:
        if self._folder is None:
            return None
        opened = Checkpoints(self._folder, keep=self._keep)
        stack.callback(opened.close)
        return opened


def _check_positive(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"`{name}` is {number}; allowed is 1 or more.")
