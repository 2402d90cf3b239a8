"""One of the processes of a training run, for `test_processes.py`.

    python process.py folder address processes index [epochs]

trains on its part of every batch and writes `result-<index>.npz`.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from nets import Net, batches, values

from snnjax import loss, train

FOLDER, ADDRESS, PROCESSES, INDEX = Path(sys.argv[1]), *sys.argv[2:5]
EPOCHS = int(sys.argv[5])
jax.distributed.initialize(
    ADDRESS, int(PROCESSES), int(INDEX), initialization_timeout=60
)


class Data:
    """This process's part of every batch; tells when the training is under way."""

    def __iter__(self):
        for i, (x, labels) in enumerate(batches(3)):
            if i == 2:
                (FOLDER / f"running-{INDEX}").touch()
            half = np.split(np.arange(len(labels)), int(PROCESSES))[int(INDEX)]
            yield x[:, half], labels[half]


def main():
    assert jax.process_count() == int(PROCESSES)
    trainer = train.Trainer(
        Net(),
        train.Classifier(loss.cross_entropy),
        optax.sgd(0.1, momentum=0.9),
        mesh=train.make_mesh(),
        checkpoints=FOLDER / "checkpoints",
    )
    history = trainer.fit(Data(), Data(), epochs=EPOCHS, show=False)
    for epoch in history:
        del epoch["samples_per_second"]
    found = values(trainer.model) | values(trainer.optimizer)
    path = FOLDER / f"result-{INDEX}.npz"
    np.savez(path, history=json.dumps(history), devices=jax.device_count(), **found)


if __name__ == "__main__":
    main()
