"""One of the processes of a training run, for `test_processes.py`.

    python process.py folder address processes index epochs [batch]

trains on its part of every batch and writes `result-<index>.npz`; or kills itself when
that batch is asked for, counted from 1.
"""

import json
import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from nets import Net, batches, values

from snnjax import loss, train


class Data:
    """A process's part of every batch; tells when the training is under way."""

    def __init__(self, folder, processes, index, last=None):
        self.folder, self.processes, self.index = folder, processes, index
        self.left = last

    def __iter__(self):
        for i, (x, labels) in enumerate(batches(3)):
            if i == 2:
                (self.folder / f"running-{self.index}").touch()
            if self.left is not None:
                self.left -= 1
                if not self.left:
                    os.kill(os.getpid(), signal.SIGKILL)
            own = np.split(np.arange(len(labels)), self.processes)[self.index]
            yield x[:, own], labels[own]


def main(folder, address, *numbers):
    folder, (processes, index, epochs, *last) = Path(folder), map(int, numbers)
    jax.distributed.initialize(address, processes, index, initialization_timeout=60)
    assert jax.process_count() == processes
    trainer = train.Trainer(
        Net(),
        train.Classifier(loss.cross_entropy),
        optax.sgd(0.1, momentum=0.9),
        mesh=train.make_mesh(),
        checkpoints=folder / "checkpoints",
    )
    data = Data(folder, processes, index)
    history = trainer.fit(
        Data(folder, processes, index, *last), data, epochs=epochs, show=False
    )
    for epoch in history:
        del epoch["samples_per_second"]
    found = values(trainer.model) | values(trainer.optimizer)
    path = folder / f"result-{index}.npz"
    np.savez(path, history=json.dumps(history), devices=jax.device_count(), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
