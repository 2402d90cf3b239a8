"""Epoch after epoch: steps, figures, checkpoints, and where they went on from."""

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from ._bar import Bar
from ._checkpoint import Checkpoints
from ._devices import samples_in
from ._run import Figures, Run
from ._sigterm import EXIT_CODE, Sigterm
from ._stream import Batch, Stream
from ._writer import Writer


@dataclasses.dataclass
class Place:
    """How far a run is: steps and whole epochs done, steps of the present epoch."""

    step: int = 0
    epoch: int = 0
    step_of_epoch: int = 0
    history: list[Figures] = dataclasses.field(default_factory=list)


class Pace:
    """Samples a second, since the start and since the last look."""

    def __init__(self) -> None:
        self._start = self._last = (time.perf_counter(), 0)
        self._samples = 0

    def add(self, samples: int) -> None:
        self._samples += samples

    def look(self) -> float:
        now = time.perf_counter(), self._samples
        before, self._last = self._last, now
        return _rate(before, now)

    @property
    def mean(self) -> float:
        return _rate(self._start, (time.perf_counter(), self._samples))


def _rate(before: tuple[float, int], now: tuple[float, int]) -> float:
    return (now[1] - before[1]) / max(now[0] - before[0], 1e-9)


@dataclasses.dataclass
class Loop:
    """A run, the batches it takes, and what becomes of what it finds.

    Args:
        run, place, stream: what trains, how far it is, on what.
        checkpoints, plan: where all is saved, and what is kept with it.
        sigterm, bar, writer: who may stop it, and who is told of it.
        save_every, log_every: in steps.
    """

    run: Run
    place: Place
    stream: Stream
    checkpoints: Checkpoints | None
    plan: Any
    sigterm: Sigterm
    bar: Bar
    writer: Writer | None
    save_every: int | None
    log_every: int

    def resume(self) -> None:
        """Goes on from the last checkpoint, if there is one that is ahead."""
        saved = self.checkpoints
        if saved is None or saved.latest is None or saved.latest <= self.place.step:
            return
        notes = saved.restore(self.run.variables)
        self.stream.restore(notes["data"])
        vars(self.place).update(notes["place"])

    def epoch(self, steps: int | None, eval_data: Iterable[Batch] | None) -> None:
        """What is left of an epoch, its evaluation and its checkpoint."""
        place = self.place
        self.bar.begin(place.epoch, place.step_of_epoch, steps)
        pace = Pace()
        for batch in self._left(steps):
            self._step(batch, pace)
        figures = self._figures() | {"samples_per_second": pace.mean}
        if eval_data is not None:
            found = self.run.evaluate(eval_data, self._stop_if_asked)
            figures |= {f"eval_{name}": value for name, value in found.items()}
        self._write("epoch", figures)
        self.run.variables.metrics.reset()
        place.history.append(figures)
        place.epoch, place.step_of_epoch = place.epoch + 1, 0
        self._save()

    def _left(self, steps: int | None) -> Iterator[Batch]:
        """Batches of this epoch that are still to come."""
        done = self.place.step_of_epoch
        if steps is not None:
            return self.stream.take(max(steps - done, 0))
        # Saved while evaluating: this pass is over, the stream is at the next one.
        return iter(()) if done and self.stream.at_start else self.stream.pass_()

    def _step(self, batch: Batch, pace: Pace) -> None:
        self.run.train(batch)
        pace.add(samples_in(batch) * jax.process_count())
        self.place.step += 1
        self.place.step_of_epoch += 1
        self.bar.advance()
        looks = self.place.step % self.log_every == 0
        saves = self.save_every is not None and self.place.step % self.save_every == 0
        figures = self._figures() if looks or saves else {}
        if looks:
            self._look(figures, pace)
        if saves:
            self._save()
        self._stop_if_asked()

    def _figures(self) -> Figures:
        """Of the epoch so far; a loss that is no number ends the run, and is not saved.

        It waits for the device, so a pace is looked at after it.
        Parameters do not recover from it, and it would spoil every later checkpoint.
        """
        figures = self.run.figures()
        if not math.isfinite(figures.get("loss", 0.0)):
            saved = self.checkpoints and self.checkpoints.latest
            kept = "nothing" if saved is None else f"the checkpoint of step {saved}"
            raise FloatingPointError(
                f"`loss` has become {figures['loss']} by step {self.place.step}, in "
                f"epoch {self.place.epoch}; {kept} is kept. Lower the learning rate, "
                "clip gradients (optax.clip_by_global_norm), or let jax name the "
                'operation: jax.config.update("jax_debug_nans", True).'
            )
        return figures

    def _look(self, figures: Figures, pace: Pace) -> None:
        rate, peak = pace.look(), self.run.program.peak_bytes
        self.bar.show(figures, rate, peak)
        self._write("train", figures | {"samples_per_second": rate})

    def _write(self, group: str, figures: Mapping[str, float]) -> None:
        if self.writer is not None and jax.process_index() == 0:
            named = {f"{group}/{name}": value for name, value in figures.items()}
            self.writer.write(self.place.step, named)

    def _save(self) -> None:
        # The end of an epoch changes no step: what is there leads to the same end.
        if self.checkpoints is not None and self.checkpoints.latest != self.place.step:
            notes = {
                "place": dataclasses.asdict(self.place),
                "data": self.stream.state,
                "plan": self.plan,
            }
            self.checkpoints.save(self.place.step, self.run.variables, notes)

    def _stop_if_asked(self) -> None:
        if self.sigterm.asked(self.place.step):
            self._figures()
            self._save()
            raise SystemExit(EXIT_CODE)
