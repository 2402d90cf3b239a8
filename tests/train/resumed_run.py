"""A training run that ends itself where it is told to, for `test_resume.py`.

    python resumed_run.py folder signal event number

sends itself the signal at that occurrence of the event: `batch` (a batch is asked for),
`eval` (one to evaluate on is), `make` (a checkpoint's folder is made), `rename` (it is
about to get its name). Without them it runs to the end and writes `result.npz`.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import optax
from nets import Net, batches, shuffled, values

from snnjax import loss, train

SEEN = {"batch": 0, "eval": 0, "make": 0, "rename": 0}


def note(event):
    SEEN[event] += 1
    if sys.argv[3:] == [event, str(SEEN[event])]:
        os.kill(os.getpid(), signal.Signals[sys.argv[2]])


def audit(event, args):
    """A checkpoint is written as a folder of that name and renamed when complete."""
    if event == "os.mkdir" and str(args[0]).endswith("orbax-checkpoint-tmp"):
        if Path(args[0]).name.startswith("state."):
            note("make")
    if event == "os.rename" and Path(args[1]).name.isdigit():
        note("rename")


class Pass:
    """The batches of a pass, one asked for at a time."""

    def __init__(self, number):
        self.iterator = iter(shuffled(number))

    def __iter__(self):
        return self

    def __next__(self):
        batch = next(self.iterator)
        note("batch")
        return batch


class Tested:
    """Batches to evaluate on, one asked for at a time."""

    def __iter__(self):
        for batch in batches(2, seed=9):
            note("eval")
            yield batch


def main(folder):
    sys.addaudithook(audit)
    trainer = train.Trainer(
        Net(),
        train.Classifier(loss.tet),
        optax.adam(optax.warmup_cosine_decay_schedule(0, 0.05, 3, 20)),
        accumulate=2,
        checkpoints=folder / "checkpoints",
        plan={"level": 1},
    )
    history = trainer.fit(Pass, Tested(), epochs=4, save_every=2, show=False)
    for epoch in history:
        del epoch["samples_per_second"]
    found = values(trainer.model) | values(trainer.optimizer)
    np.savez(folder / "result.npz", history=json.dumps(history), **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
