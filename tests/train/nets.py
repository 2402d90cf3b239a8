"""A tiny network, its batches, and how two of them compare, for tests and children."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import snnjax as snn

STEPS, BATCH, FEATURES, CLASSES = 3, 16, 6, 3


def batches(count, seed=0, batch=BATCH):
    """Spikes `[time, batch, feature]` and labels, from NumPy alone."""
    rng = np.random.default_rng(seed)
    shape = STEPS, batch, FEATURES
    return [
        (
            (rng.random(shape) < 0.4).astype("float32"),
            rng.integers(0, CLASSES, batch).astype("int32"),
        )
        for _ in range(count)
    ]


def shuffled(number, count=5):
    """The batches of a pass, in an order of its own."""
    data = batches(count)
    order = np.random.default_rng(number).permutation(count)
    return [data[i] for i in order]


class Net(nnx.Module):
    """Linear, batch norm, LIF, dropout, linear: every kind of state there is."""

    def __init__(self, seed=0, *, norm=True, dropout=0.2, width=12, dtype=None):
        rngs = nnx.Rngs(seed)
        linear = functools.partial(snn.layer.Linear, dtype=dtype, rngs=rngs)
        kinds = {"rngs": rngs, "dtype": dtype}
        self.block = snn.layer.Sequential(
            linear(FEATURES, width),
            *([snn.layer.BatchNorm(width, **kinds)] if norm else []),
            snn.neuron.LIF(v_threshold=0.5),
        )
        self.dropout = snn.layer.Dropout(dropout, rngs=rngs) if dropout else None
        self.readout = linear(width, CLASSES)

    def __call__(self, x):
        spikes = self.block(x)
        return self.readout(spikes if self.dropout is None else self.dropout(spikes))


def values(tree):
    """Every array of a tree by its path, random keys as numbers."""
    flat, _ = jax.tree_util.tree_flatten_with_path(nnx.state(tree))
    return {jax.tree_util.keystr(path): _numbers(leaf) for path, leaf in flat}


def _numbers(a):
    is_key = jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(a) if is_key else a)
