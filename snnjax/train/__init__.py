"""Training: donated steps, epochs, checkpoints, logs, one device or many."""

from ._checkpoint import Checkpoints as Checkpoints
from ._devices import make_mesh as make_mesh
from ._devices import replicate as replicate
from ._devices import shard as shard
from ._objective import Classifier as Classifier
from ._objective import Measuring as Measuring
from ._steps import make_eval_step as make_eval_step
from ._steps import make_train_step as make_train_step
from ._steps import peak_bytes as peak_bytes
from ._trainer import Trainer as Trainer
from ._writer import TensorBoard as TensorBoard
from ._writer import Writer as Writer
