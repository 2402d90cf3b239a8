"""Segments of plain functions, Linen modules and pytrees with static leaves."""

import collections
import functools
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_segment import assert_close, assert_equal_bits, kept, spikes, weigh, weights

from snnjax import memopt, neuron
from snnjax.surrogate import atan

BIT = memopt.BitSpikeCompressor()


def layer(params, x, scale=1.0, *, activate=jnp.tanh):
    return atan(activate(x.astype(params["w"].dtype) @ params["w"]) * scale - 0.5)


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_values_gradients_and_residuals(key, dtype):
    """Bit for bit without a compiler; of what the gradient keeps, only bits."""
    x, params = spikes(key, dtype=dtype), {"w": weights(key)}
    ours = memopt.checkpoint(layer, compressor=None if dtype == "bool" else BIT)
    loss = lambda f: lambda p, x: weigh(f(p, x, 1.5, activate=jnp.sin))  # noqa: E731
    grad = lambda f: jax.value_and_grad(loss(f))(params, x)  # noqa: E731
    with jax.disable_jit():
        assert_equal_bits(grad(ours), grad(layer))
    assert_close(jax.jit(grad, static_argnums=0)(ours), grad(layer))
    total = lambda f: lambda p, x: f(p, x).sum()  # noqa: E731
    assert kept(total(ours), params, x) == {("uint8", (3, 2, 1)): 1}
    assert kept(total(layer), params, x)[("float32", (3, 2, 8))] >= 2


def test_without_a_declaration_the_input_is_kept_as_it_is(key):
    x, params = weights(key, (3, 2, 8)), {"w": weights(key)}
    ours = memopt.checkpoint(layer)
    loss = lambda f: lambda x, p: weigh(f(p, x))  # noqa: E731
    assert kept(loss(ours), x, params)[("float32", (3, 2, 8))] <= 1
    dx = [jax.grad(loss(f))(x, params) for f in (ours, layer)]
    assert_close(*dx)
    assert np.abs(dx[1]).max() > 0


def test_policy_and_argnum(key):
    x, params = spikes(key), {"w": weights(key)}
    first = lambda x, p: layer(p, x)  # noqa: E731
    keep = jax.checkpoint_policies.dots_saveable
    ours = memopt.checkpoint(first, compressor=BIT, argnum=0, policy=keep)
    loss = lambda p, x: ours(x, p).sum()  # noqa: E731
    assert kept(loss, params, x) == {("uint8", (3, 2, 1)): 1, ("float32", (3, 2, 8)): 1}
    assert_close(
        jax.grad(loss)(params, x), jax.grad(lambda p: layer(p, x).sum())(params)
    )


@pytest.mark.parametrize("value", [2.0, -1.0, 0.5, -0.0, np.nan])
def test_a_declaration_that_the_data_breaks_is_an_error(key, value):
    x, params = spikes(key).at[1, 0, 2].set(value), {"w": weights(key)}
    ours = memopt.checkpoint(layer, compressor=BIT)
    step = jax.jit(jax.grad(lambda p, x: weigh(ours(p, x))))
    with pytest.raises(Exception, match="`compressor` is BitSpikeCompressor"):
        jax.block_until_ready(step(params, x))
    assert np.isfinite(ours(params, jnp.nan_to_num(x))).all()  # no gradient, no check
    free = memopt.checkpoint(layer, compressor=BIT, unchecked=True)
    jax.block_until_ready(jax.grad(lambda p: weigh(free(p, x)))(params))


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"argnum": -1}, "`argnum` is -1; allowed are whole numbers from 0"),
        ({"argnum": True}, "`argnum` is True"),
        ({"compressor": memopt.BitSpikeCompressor}, "`compressor` is <class.*Make one"),
        ({"compressor": "BitSpikeCompressor"}, "`compressor` is 'BitSpikeCompressor'"),
    ],
)
def test_settings_are_checked_at_once(settings, words):
    with pytest.raises(ValueError, match=words):
        memopt.checkpoint(layer, **settings)


@pytest.mark.parametrize("args", [(), ({"w": 1.0},), ({"w": 1.0}, {"x": np.ones(3)})])
def test_the_input_is_one_positional_array(args):
    with pytest.raises(ValueError, match="`argnum` is 1.*one array"):
        memopt.checkpoint(layer)(*args)


def test_a_traced_value_that_is_closed_over_is_an_error_and_not_a_wrong_gradient(key):
    x, w = spikes(key), weights(key)
    with pytest.raises(Exception, match="tracer|closed-over"):
        jax.grad(lambda w: weigh(memopt.checkpoint(lambda x: x @ w, argnum=0)(x)))(w)


class Block(nn.Module):
    """Convolution, batch norm, dropout, LIF, in Linen."""

    features: int

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Conv(self.features, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.Dropout(0.3, deterministic=not train)(x)
        return neuron.lif(x, tau=2.0, v_threshold=0.5)[0]


def test_linen_blocks_keep_one_bit_an_input_value(key):
    """Statistics move once, masks are those of the plain model, gradients equal."""
    blocks = [Block(8), Block(8)]
    x = spikes(key, (2, 2, 4, 4, 8))
    variables = [b.init(jax.random.key(i), x, False) for i, b in enumerate(blocks)]
    params, stats = ([v[k] for v in variables] for k in ("params", "batch_stats"))

    def loss(wrap, params, x, stats, key):
        moved = []
        for block, p, s in zip(blocks, params, stats):
            call = wrap(functools.partial(block.apply, mutable=["batch_stats"]))
            x, new = call({"params": p, "batch_stats": s}, x, rngs={"dropout": key})
            moved.append(new["batch_stats"])
        return x.sum(), moved

    plain = functools.partial(loss, lambda f: f)
    ours = functools.partial(loss, functools.partial(memopt.checkpoint, compressor=BIT))
    rest = params, x, stats, jax.random.key(9)
    wanted, came = (
        jax.jit(jax.value_and_grad(f, has_aux=True))(*rest) for f in (plain, ours)
    )
    assert_close(came, wanted)
    assert max(np.abs(g).max() for g in jax.tree.leaves(wanted[1])) > 0
    bits = collections.Counter({("uint8", (2, 2, 16)): 2})
    first = lambda f: lambda *a: f(*a)[0]  # noqa: E731
    rest_of = kept(first(ours), *rest) - bits
    # else: keys of the masks, and nothing of the activations' size
    assert (kept(first(ours), *rest) & bits) == bits
    assert all(np.prod(shape) < 2 * 2 * 4 * 4 * 8 for _, shape in rest_of), rest_of
    assert kept(first(plain), *rest)[("float32", (2, 2, 4, 4, 8))] >= 4


@pytest.mark.slow
def test_the_linen_example_runs():
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, root / "examples" / "linen.py", "--synthetic"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "checkpointed" in done.stdout
