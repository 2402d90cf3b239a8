"""Deep spiking networks in JAX: the same gradients in a fraction of the memory."""

from importlib.metadata import version as _version

from . import data as data
from . import exchange as exchange
from . import layer as layer
from . import loss as loss
from . import memopt as memopt
from . import models as models
from . import neuron as neuron
from . import plot as plot
from . import surrogate as surrogate
from . import train as train

__version__ = _version("snnjax")
