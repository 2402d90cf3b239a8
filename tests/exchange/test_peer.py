"""A graph of ours run by norse, which needs PyTorch and so an interpreter of its own.

python -m venv peer && peer/bin/pip install torch norse nir
SNNJAX_NIR_PEER=peer/bin/python python -m pytest tests/exchange/test_peer.py
"""

import os
import subprocess

import nir
import numpy as np
import pytest
from flax import nnx
from test_nir import LIFS, network

from snnjax import exchange, layer

PEER = os.environ.get("SNNJAX_NIR_PEER")
RUN = """
import sys
import nir, norse.torch, numpy, torch
graph, x, y = sys.argv[1:]
net, state, spikes = norse.torch.from_nir(nir.read(graph), dt=1e-3), None, []
for step in torch.from_numpy(numpy.load(x)):
    out, state = net(step, state)
    spikes.append(out.detach().numpy())
numpy.save(y, numpy.stack(spikes))
"""


@pytest.mark.slow
@pytest.mark.skipif(PEER is None, reason="SNNJAX_NIR_PEER names no interpreter")
@pytest.mark.parametrize("lif", [LIFS["decayed"], LIFS["tutorial"]])
def test_norse_spikes_alike(tmp_path, lif):
    """Both blocks; norse takes forward Euler steps, too.

    Its reader of NIR (1.1.0) knows no average pool, and leaves out `v_reset`.
    """
    net = layer.Sequential(*network(pool=False, **lif).layers[0].layers)
    x = np.random.default_rng(1).integers(0, 3, (16, 4, 6, 4, 2)).astype(np.float32)
    wanted = np.moveaxis(np.asarray(nnx.jit(lambda net, x: net(x))(net, x)), -1, 2)
    files = [tmp_path / name for name in ("net.nir", "x.npy", "y.npy")]
    nir.write(files[0], exchange.to_nir(net, (6, 4, 2), dt=1e-3))
    np.save(files[1], np.ascontiguousarray(np.moveaxis(x, -1, 2)))
    done = subprocess.run([PEER, "-c", RUN, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(files[2]), wanted)
    assert 0.05 < wanted.mean() < 0.95
