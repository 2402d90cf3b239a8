"""Multi-step spiking neurons: integrate-and-fire, leaky, adaptive, gated, parallel.

One neuron step is three lines, charge, fire, reset (Fang et al., "SpikingJelly",
Science Advances 2023, equations 1 to 3):

    h[t] = v[t-1] + x[t]                                       IF, charge
    h[t] = v[t-1] + (x[t] - (v[t-1] - rest)) / tau             LIF, decay_input=True
    h[t] = v[t-1] - (v[t-1] - rest) / tau + x[t]               LIF, decay_input=False
    s[t] = 1 if h[t] >= v_threshold else 0                     fire
    v[t] = h[t] * (1 - s[t]) + v_reset * s[t]                  reset, hard
    v[t] = h[t] - v_threshold * s[t]                           reset, soft: v_reset=None

with `rest = v_reset`, or 0 for the soft reset. The mathematics is the function `lif`;
the modules `IF`, `LIF` and `PLIF` only own settings and parameters. `scan` and
`ScanNeuron` run dynamics of your own. `ALIF` adapts its threshold, `GLIF` learns what
kind of leak and reset it has, and the `PSN` family maps all time steps at once.

Every `__call__` starts at rest, so nothing has to be reset between batches. To run on a
stream, one time step (or a few) a call with the membrane kept, use `keep_state`.
"""

from .._membrane import Surrogate as Surrogate
from ._adaptive import ALIF as ALIF
from ._gated import GLIF as GLIF
from ._leaky import IF as IF
from ._leaky import LIF as LIF
from ._leaky import PLIF as PLIF
from ._lif import lif as lif
from ._neuron import Neuron as Neuron
from ._neuron import ScanNeuron as ScanNeuron
from ._neuron import State as State
from ._neuron import Step as Step
from ._neuron import keep_state as keep_state
from ._neuron import reset_state as reset_state
from ._neuron import scan as scan
from ._parallel import PSN as PSN
from ._parallel import MaskedPSN as MaskedPSN
from ._parallel import SlidingPSN as SlidingPSN
