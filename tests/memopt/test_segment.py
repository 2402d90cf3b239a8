"""The segment as a pure function: gradients of the plain one, with little kept."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from snnjax import memopt
from snnjax.memopt import BitSpikeCompressor, NullSpikeCompressor, gc_segment
from snnjax.surrogate import atan

BIT, NULL = BitSpikeCompressor(), NullSpikeCompressor()
FAST = {"xla_backend_optimization_level": 0}


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    """Matrix product, something nonlinear, spikes."""
    return atan(jnp.tanh(x @ w) * 3 - 0.5)


def spikes(key: jax.Array, shape=(3, 2, 8), dtype: Any = jnp.float32) -> jax.Array:
    return jax.random.bernoulli(key, 0.5, shape).astype(dtype)


def weights(key: jax.Array, shape=(8, 8), dtype: Any = jnp.float32) -> jax.Array:
    return jax.random.normal(key, shape, dtype)


def weigh(y: jax.Array) -> jax.Array:
    y = y.astype(jnp.float32)
    return (y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum()


def kept(f: Any, *args: Any) -> collections.Counter:
    """The residuals of `f`, in its first argument, as a multiset."""
    shapes = memopt.residual_shapes(f, *args)
    return collections.Counter((s.dtype.name, s.shape) for s in shapes)


def assert_equal_bits(came: Any, expected: Any) -> None:
    assert jax.tree.structure(came) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(came), jax.tree.leaves(expected)):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def assert_close(came: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert jax.tree.structure(came) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(came), jax.tree.leaves(expected)):
        a, b = (np.asarray(v, np.float64) for v in (a, b))
        atol = tolerance * np.abs(b).max(initial=0)
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


# --- values and gradients -------------------------------------------------------------


@pytest.mark.parametrize("compressor", [BIT, NULL], ids=["bit", "null"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_and_gradients_are_those_of_the_function(key, compressor, dtype):
    """Bit for bit where no compiler can round differently; closely where one can."""
    x, w = spikes(key, dtype=dtype), weights(key, dtype=dtype)
    segment = gc_segment(layer, compressor)
    loss = lambda f: lambda x, w: weigh(f(x, w))  # noqa: E731
    grad = lambda f: jax.value_and_grad(loss(f), (0, 1))(x, w)  # noqa: E731
    with jax.disable_jit():
        assert_equal_bits(segment(x, w), layer(x, w))
        assert_equal_bits(grad(segment), grad(layer))
    if dtype == "float32":
        assert_equal_bits(segment(x, w), layer(x, w))
        assert_close(grad(segment), grad(layer))


def two_layers(f: Any) -> Any:
    return lambda w, x: weigh(f(f(x, w), w * 0.5))


def test_compiled_gradients_of_two_calls_of_one_segment(key):
    x, w = spikes(key), weights(key)
    plain = jax.jit(jax.value_and_grad(two_layers(layer)))(w, x)
    came = jax.jit(jax.value_and_grad(two_layers(gc_segment(layer, BIT))))(w, x)
    assert_close(came, plain)


def test_arguments_of_every_kind_and_trees_of_outputs(key):
    """Arrays with and without time and batch, a mask, integers, a key; dict outputs."""

    def f(x, weights, mask, scale, count, key):
        keep = jax.random.bernoulli(key, 0.7, x.shape[1:])
        h = jnp.tanh(x @ weights["w"]) * scale * mask
        y = jnp.where(keep, h, 0) * count.astype(h.dtype)
        return {"y": y, "state": (h[-1], x[0]), "winner": jnp.argmax(h, -1), "n": count}

    x, w = spikes(key), weights(key)
    mask, scale = spikes(jax.random.key(1)), weights(jax.random.key(2), (8,))
    scale = jnp.broadcast_to(scale, (1, 1, 8))
    rest = (jnp.int32(3), jax.random.key(5))

    def loss(f, x, weights, mask, scale):
        out = f(x, weights, mask, scale, *rest)
        assert out["winner"].dtype == jnp.int32
        state = sum(weigh(s) for s in out["state"])
        return weigh(out["y"]) + state, (out["winner"], out["n"])

    def both(f):
        run = lambda *a: loss(f, *a)  # noqa: E731
        return jax.value_and_grad(run, (0, 1, 2, 3), has_aux=True)

    args = (x, {"w": w}, mask, scale)
    with jax.disable_jit():
        expected = both(f)(*args)
        assert_equal_bits(both(gc_segment(f, BIT))(*args), expected)
    assert_close(jax.jit(both(gc_segment(f, NULL)))(*args), expected)


def test_integer_outputs_alone_carry_no_gradient(key):
    count = gc_segment(lambda x, w: (x @ w > 0).sum(-1, dtype=jnp.int32), BIT)
    x, w = spikes(key), weights(key)

    def loss(w):
        return (w * count(x, w).sum().astype(w.dtype)).sum()

    n = int(count(x, w).sum())
    np.testing.assert_array_equal(jax.grad(loss)(w), jnp.full(w.shape, float(n)))
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(w), jax.grad(loss)(w))


def test_an_unused_output_and_an_unused_input(key):
    def f(x, w, unused):
        return x @ w, jnp.sin(x)

    x, w = spikes(key), weights(key)

    def loss(f):
        return lambda x, w, u: weigh(f(x, w, u)[0])

    args = (x, w, jnp.ones(3))
    with jax.disable_jit():  # compiled, a product may be rounded in another order
        expected = jax.grad(loss(f), (0, 1, 2))(*args)
        came = jax.grad(loss(gc_segment(f, BIT)), (0, 1, 2))(*args)
    assert_equal_bits(came, expected)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_the_gate_lets_any_cotangent_through(key, poison):
    """The tie is `isnan & isinf`: neither alone may open it."""
    x, w = spikes(key), weights(key)
    cotangent = weights(key, x.shape).at[0, 0, 0].set(poison)
    with jax.disable_jit():  # compiled, a product may be rounded in another order
        _, plain = jax.vjp(layer, x, w)
        _, gated = jax.vjp(gc_segment(layer, BIT), x, w)
        for a, b in zip(gated(cotangent), plain(cotangent)):
            np.testing.assert_array_equal(a, b)


def test_an_input_of_no_elements_and_of_one_step():
    w = jnp.ones((8, 8))
    for shape in ((0, 2, 8), (1, 1, 8), (3, 0, 8)):
        x = jnp.ones(shape)
        grad = jax.grad(lambda w, x: weigh(gc_segment(layer, BIT)(x, w)))
        plain = jax.grad(lambda w, x: weigh(layer(x, w)))
        assert_equal_bits(grad(w, x), plain(w, x))


def test_segments_work_under_vmap_checkpoint_and_inside_scan(key):
    x, w = spikes(key), weights(key)
    segment = gc_segment(layer, BIT)

    def inside(f):
        def loss(w):
            out, _ = jax.lax.scan(lambda c, _: (f(c, w), None), x, length=2)
            mapped = jax.vmap(lambda w: weigh(f(x, w)))(jnp.stack([w, -w]))
            return weigh(out) + mapped.sum() + weigh(jax.checkpoint(f)(x, w))

        return jax.jit(jax.grad(loss))(w)

    assert_close(inside(segment), inside(layer))


# --- what is kept ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_bits_are_kept(key, dtype):
    x, w = spikes(key, dtype=dtype), weights(key, dtype=dtype)
    loss = lambda w, x: gc_segment(layer, BIT)(x, w).sum()  # noqa: E731
    assert kept(loss, w, x) == {("uint8", (3, 2, 1)): 1}
    plain = lambda w, x: layer(x, w).sum()  # noqa: E731
    assert kept(plain, w, x)[(dtype, (3, 2, 8))] >= 2


def test_two_segments_keep_their_two_inputs(key):
    x, w = spikes(key), weights(key)
    segment = gc_segment(layer, BIT)
    both = kept(lambda w, x: segment(segment(x, w), w * 0.5).sum(), w, x)
    # The second weight, w * 0.5, is a parameter of its segment and no leaf of `w`.
    assert both == {("uint8", (3, 2, 1)): 2, ("float32", (8, 8)): 1}


def test_null_keeps_the_input_itself(key):
    x, w = spikes(key), weights(key)
    loss = lambda w, x: gc_segment(layer, NULL)(x, w).sum()  # noqa: E731
    assert kept(loss, w, x) == {("float32", (3, 2, 8)): 1}


def test_a_policy_keeps_the_residual_it_names_and_no_other(key):
    def named(x, w):
        h = checkpoint_name(x @ w, "current")
        return atan(checkpoint_name(jnp.tanh(h), "other"))

    x, w = spikes(key), weights(key)
    policy = jax.checkpoint_policies.save_only_these_names("current")
    segment = gc_segment(named, BIT, policy)
    loss = lambda w, x: segment(x, w).sum()  # noqa: E731
    bits = collections.Counter({("uint8", (3, 2, 1)): 1})
    assert kept(loss, w, x) == bits + collections.Counter({("float32", (3, 2, 8)): 1})
    plain = jax.grad(lambda w, x: named(x, w).sum())(w, x)
    assert_close(jax.jit(jax.grad(loss))(w, x), plain)
    everything = gc_segment(named, BIT, jax.checkpoint_policies.everything_saveable)
    assert kept(lambda w, x: everything(x, w).sum(), w, x).total() > 2


# --- what the compiler makes of it ----------------------------------------------------


def compiled(f: Any, n: int, shape: tuple[int, ...] = (8, 32, 64)) -> Any:
    def loss(ws, x):
        for w in ws:
            x = f(x, w)
        return weigh(x)

    ws = [jax.ShapeDtypeStruct((shape[-1],) * 2, jnp.float32)] * n
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    step = jax.jit(jax.value_and_grad(loss))
    return step.lower(ws, x).compile(compiler_options=FAST)


def test_the_compiled_step_repeats_the_forward_and_takes_less_memory():
    """XLA:CPU deletes barriers and merges equal products: only the gate stops it."""
    n = 8
    plain, segmented = compiled(layer, n), compiled(gc_segment(layer, BIT), n)

    def count(c):
        text = c.as_text()
        return text.count(" dot(") + text.count('custom_call_target="__onednn$matmul"')

    # Forward, two gradients each, but none for the input of the first.
    assert count(plain) == 3 * n - 1
    assert count(segmented) == 4 * n - 1
    temp = [c.memory_analysis().temp_size_in_bytes for c in (plain, segmented)]
    assert temp[1] < 0.75 * temp[0], temp


def test_the_forward_alone_packs_nothing(key):
    x, w = spikes(key), weights(key)
    text = jax.jit(gc_segment(layer, BIT)).lower(x, w).compile().as_text()
    assert "u8[" not in text


def test_one_trace_serves_many_calls(key):
    traces = []

    def counted(x, w):
        traces.append(1)
        return layer(x, w)

    step = jax.jit(jax.grad(two_layers(gc_segment(counted, BIT))))
    x, w = spikes(key), weights(key)
    step(w, x)
    first = len(traces)
    for i in range(3):
        step(w + i, x)
    assert len(traces) == first
