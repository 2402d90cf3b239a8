"""Models to and from NIR, the format that simulators and neuromorphic chips share.

    graph = snn.exchange.to_nir(model, (32, 32, 2), dt=1e-3)
    nir.write("model.nir", graph)
    model = snn.exchange.from_nir(nir.read("model.nir"), dt=1e-3)

Needs the extra `nir`; the name of this module is another, lest one be taken for the
other. Three things differ, and are converted here:

* NIR's neurons are differential equations. A step of ours is one step `dt` of the
  forward Euler method, `v + dt * dv/dt`, then fire and reset; so our LIF is NIR's at
  that step exactly, with `tau` in units of `dt`:

      tau dv/dt = (v_leak - v) + R I        R = 1: decay_input; R = tau / dt: not

* NIR fires at `v > v_threshold`, we at `v >= v_threshold`: the threshold written is the
  float32 below ours, and ours is the one above what is read.
* NIR's arrays are channels-first; weights behind a Flatten change their order.

Source: Pedersen et al., "Neuromorphic Intermediate Representation", Nature
Communications 2024.
"""

from ._from_nir import from_nir as from_nir
from ._graph import Graph as Graph
from ._graph import Scale as Scale
from ._to_nir import to_nir as to_nir
