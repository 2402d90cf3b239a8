"""Tiny models for the memory planner's tests, and how two training runs compare."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import snnjax as snn
from snnjax import memopt
from snnjax.memopt import _optimize

WIDTH = 8
LIVELY = {"v_threshold": 0.4}  # every layer spikes within three steps
FRAMES = (3, 2, WIDTH)  # time, batch, features


class Block(nnx.Module):
    """Linear, batch norm, optionally dropout, a neuron."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        *,
        neuron: Callable[..., nnx.Module] = snn.neuron.LIF,
        dropout: float = 0.0,
        dtype: Any = None,
    ):
        kwargs = {"dtype": dtype, "rngs": rngs}
        # No bias: in front of a normalisation its gradient is nothing but rounding.
        self.linear = snn.layer.Linear(WIDTH, WIDTH, use_bias=False, **kwargs)
        self.norm = snn.layer.BatchNorm(WIDTH, **kwargs)
        self.dropout = snn.layer.Dropout(dropout, rngs=rngs) if dropout else None
        self.neuron = neuron(**LIVELY)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.norm(self.linear(x))
        return self.neuron(y if self.dropout is None else self.dropout(y))


class Residual(nnx.Module):
    """A block of the user's own, with a skip inside (SEW-ResNet's ADD)."""

    def __init__(self, rngs: nnx.Rngs, **settings: Any):
        self.block = Block(rngs, **settings)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.block(x) + x


class ConvBlock(nnx.Module):
    """Convolution, batch norm, LIF over images."""

    def __init__(self, rngs: nnx.Rngs, features: int = 4):
        self.conv = snn.layer.Conv(features, features, 3, use_bias=False, rngs=rngs)
        self.norm = snn.layer.BatchNorm(features, rngs=rngs)
        self.neuron = snn.neuron.LIF(**LIVELY)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.neuron(self.norm(self.conv(x)))


TARGETS = (Block, Residual, ConvBlock)


def chain(
    block: type[nnx.Module] = Block, n: int = 2, seed: int = 0, **settings: Any
) -> snn.layer.Sequential:
    """`n` blocks."""
    rngs = nnx.Rngs(seed)
    return snn.layer.Sequential(*(block(rngs, **settings) for _ in range(n)))


def frames(shape: tuple[int, ...] = FRAMES, dtype: Any = jnp.float32) -> jax.Array:
    """A current, no spikes."""
    return (2 * jax.random.normal(jax.random.key(7), shape)).astype(dtype)


def loss(model: nnx.Module, *inputs: Any) -> jax.Array:
    """Depends on every output value, each in its own way."""
    y = model(*inputs).astype(jnp.float32)
    weights = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
    return jnp.sum(y * weights)


def planned(
    net: nnx.Module, *batch: Any, targets: Any = TARGETS, **settings: Any
) -> memopt.Plan:
    """The plan of level 1 with its proofs, without compiling two steps to measure."""
    settings = {"loss": loss} | settings
    unmeasured = mock.patch.object(
        _optimize, "with_figures", lambda net, plan, *_: plan
    )
    # Strict mode refuses bfloat16 in `promote_types`; that has a test of its own.
    with unmeasured, jax.numpy_dtype_promotion("standard"):
        return memopt.make_plan(net, targets, batch, **settings)


def segmented(net: nnx.Module, *batch: Any, **settings: Any) -> Any:
    """The segmented model by that plan; it shares the Variables of `net`."""
    return memopt.apply_plan(net, planned(net, *batch, **settings))


def values(tree: Any) -> dict[str, np.ndarray]:
    """Every array of a model or state by its path; keys as their data."""
    state = nnx.state(tree) if isinstance(tree, nnx.Module | nnx.Optimizer) else tree
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): _numbers(leaf) for path, leaf in flat}


def _numbers(a: Any) -> np.ndarray:
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a = jax.random.key_data(a)
    a = np.asarray(a)
    return a if a.dtype.kind in "iub" else a.astype(np.float64)


def train(net: nnx.Module, *batch: Any, loss: Any = loss, steps: int = 2) -> dict:
    """Losses, and every value of model and optimizer, after steps with Adam."""
    optimizer = nnx.Optimizer(net, optax.adam(1e-2, eps=1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(net, optimizer, *batch):
        value, gradients = nnx.value_and_grad(loss)(net, *batch)
        with jax.numpy_dtype_promotion("standard"):  # Adam's, and none of ours
            optimizer.update(net, gradients)
        return value

    losses = [np.asarray(step(net, optimizer, *batch)) for _ in range(steps)]
    return {"loss": np.array(losses)} | values(net) | values(optimizer)


def assert_same(came: Any, expected: Any, *, tolerance: float = 1e-5) -> None:
    """Equal up to `tolerance` of each array's largest value; 0 means bit for bit."""
    came, expected = (a if isinstance(a, dict) else values(a) for a in (came, expected))
    assert came.keys() == expected.keys()
    for path, want in expected.items():
        got = came[path]
        assert got.shape == want.shape and got.dtype == want.dtype, path
        if tolerance == 0 or want.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want, err_msg=path)
        else:
            size = np.abs(want).max(initial=0)
            np.testing.assert_allclose(
                got, want, rtol=0, atol=tolerance * size, err_msg=path
            )
