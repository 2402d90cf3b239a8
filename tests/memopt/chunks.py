"""Small networks and functions to be run in chunks, and how two runs compare."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from models import WIDTH, Block

import snnjax as snn
from snnjax import memopt
from snnjax.memopt import NullSpikeCompressor

FAST = {"xla_backend_optimization_level": 0}
LIVELY = {"v_threshold": 0.4}
TIME, BATCH = 0, 1
AXES = pytest.mark.parametrize("axis", [TIME, BATCH], ids=["time", "batch"])
STEPS, SAMPLES = 5, 6
IMAGES = (STEPS, SAMPLES, 4, 4, 2)


class Parts(nnx.Module):
    """What becomes a segment: modules one after the other."""

    def __init__(self, *parts: Any) -> None:
        self.parts = nnx.List(parts)

    def __call__(self, x: jax.Array) -> jax.Array:
        for part in self.parts:
            x = part(x)
        return x


def linear(rngs: nnx.Rngs, **settings: Any) -> nnx.Module:
    return snn.layer.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs, **settings)


def norm(rngs: nnx.Rngs, **settings: Any) -> nnx.Module:
    return snn.layer.BatchNorm(WIDTH, rngs=rngs, **settings)


def one(*makers: Callable[[nnx.Rngs], Any]) -> Callable[[], nnx.Module]:
    """A model of a single segment."""

    def make() -> nnx.Module:
        rngs = nnx.Rngs(0)
        return snn.layer.Sequential(Parts(*(m(rngs) for m in makers)))

    return make


def neuron(kind: Any = snn.neuron.LIF, **settings: Any) -> Callable[[Any], Any]:
    return lambda rngs: kind(**LIVELY | settings)


def vgg(pool: bool) -> Callable[[nnx.Rngs], Any]:
    return lambda rngs: snn.models.VGGBlock(2, 3, pool=pool, rngs=rngs, **LIVELY)


# Different ones over the cases and the two axes, so that all are met.
WAYS = ("whole", "sums", "chunks")


def cut(net: nnx.Module, axis: int, count: int, **settings: Any) -> Any:
    """The model with all its segments in chunks; the Variables are shared."""
    plan = memopt.make_plan(net, (Parts, Block, Fed), None)
    return apply(net, plan, axis, count, **settings)


def apply(net: Any, plan: Any, axis: int, count: int, **settings: Any) -> Any:
    chunks = {"batch" if axis == BATCH else "time": count} | settings
    paths = [s.path for s in plan.segments]
    return memopt.apply_plan(net, plan.with_chunks(*paths, **chunks))


def weigh(tree: Any) -> jax.Array:
    """Depends on every floating value, each in its own way."""
    total = jnp.float32(0)
    for a in jax.tree.leaves(tree):
        if jnp.issubdtype(a.dtype, jnp.floating):
            a = a.astype(jnp.float32)
            weights = jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape)
            total += jnp.sum((a + 0.1 * a * a) * weights)
    return total


def assert_close(came: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Up to the largest entry of all."""
    a, b = (jax.tree.leaves(t) for t in (came, expected))
    assert jax.tree.structure(came) == jax.tree.structure(expected)
    floats = [v for v in b if jnp.issubdtype(v.dtype, jnp.floating)]
    size = max(
        (np.abs(np.asarray(v, np.float64)).max(initial=0) for v in floats), default=0
    )
    for got, want in zip(a, b, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        got, want = (np.asarray(v, np.float64) for v in (got, want))
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * size)


class Fed(nnx.Module):
    """Arguments of a sample, of a step, of both, of neither."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = linear(rngs)
        self.table = nnx.Param(jnp.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH))

    def __call__(self, x, full, sample, step, feature, scale, labels, keep, *, power=1):
        def along(a, i):
            return jnp.broadcast_to(lax.broadcast_in_dim(a, x.shape, (i,)), x.shape)

        y = jnp.tanh(self.linear(x)) * full + along(sample, 1) * along(step, 0)
        y = y * along(feature, 2) * scale**power
        y = y + lax.broadcast_in_dim(self.table[...][labels], x.shape, (1, 2))
        y = jnp.where(lax.broadcast_in_dim(keep, x.shape, (0, 1)), y, 0.5 * y)
        return y, labels + 1, keep.sum(), {"mean": y.mean(), "last": sample * 2}


def data(steps: int = 4, samples: int = 5, features: int = 3) -> tuple[Any, Any]:
    x = jax.random.normal(jax.random.key(samples), (steps, samples, features))
    w = jax.random.normal(jax.random.key(features), (features, features))
    return x, w


def gradient(f: Any) -> Any:
    def loss(x, w):
        y = f(x, w)
        return weigh(y), y

    return jax.value_and_grad(loss, (0, 1), has_aux=True)


def compiled(fs: list[Any]) -> Any:
    """Values and gradients of some functions in one program."""
    run = lambda x, w: [gradient(f)(x, w) for f in fs]  # noqa: E731
    return jax.jit(run, compiler_options=FAST)


KEEP = NullSpikeCompressor()
