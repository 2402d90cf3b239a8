"""Random programs: in chunks they are the same functions, or refused."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from snnjax.memopt import NullSpikeCompressor, chunked_segment

SQUARE, ODD = (4, 4, 4), (4, 5, 3)
KEEP = NullSpikeCompressor()
FAST = {"xla_backend_optimization_level": 0}
Program = Callable[[jax.Array, jax.Array], Any]


class Draw:
    """Random numbers that are the same at every trace of a program."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one_of(self, *options: Any) -> Any:
        return options[self.rng.integers(len(options))]

    def axis(self, a: jax.Array) -> int:
        return int(self.rng.integers(a.ndim))

    def axes(self, a: jax.Array) -> tuple[int, ...]:
        n = int(self.rng.integers(1, a.ndim + 1))
        return tuple(sorted(int(i) for i in self.rng.permutation(a.ndim)[:n]))


def unary(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    return d.one_of(
        jnp.tanh, jnp.sin, lambda a: jnp.where(a > 0.1, a, 0.3 * a), jnp.abs
    )(a)


def binary(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    fits = [b for b in pool if b.shape == a.shape]
    b = d.one_of(*fits)
    return d.one_of(jnp.add, jnp.multiply, jnp.subtract, lambda a, b: a * b + b)(a, b)


def centre(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    """As a normalisation over some axes."""
    axes = d.axes(a)
    mean = a.mean(axes, keepdims=True)
    if d.one_of(True, False):
        return a - jnp.broadcast_to(mean, a.shape)
    return a / jnp.sqrt(1 + jnp.square(a - mean).mean(axes, keepdims=True))


def by_total(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    axes = d.axes(a)
    total = jnp.tanh(a.sum(axes) * 0.1)
    shape = [1 if i in axes else n for i, n in enumerate(a.shape)]
    return a * jnp.broadcast_to(total.reshape(shape), a.shape)


def product(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    axis, w = d.axis(a), pool[0]
    if a.shape[axis] != w.shape[0]:
        return jnp.sin(a)
    return d.one_of(
        lambda: jnp.moveaxis(jnp.tensordot(a, w, ((axis,), (0,))), -1, axis),
        lambda: jnp.moveaxis(jnp.tensordot(w, a, ((0,), (axis,))), 0, axis),
    )()


def contract(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    """Sums products with another array over some axes, and uses the result."""
    fits = [b for b in pool if b.shape == a.shape]
    axes = d.axes(a)
    b = d.one_of(*fits)
    small = jnp.tanh(jnp.tensordot(a, b, (axes, axes)))
    return a * jnp.mean(small)


def transpose(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    return jnp.transpose(a, tuple(int(i) for i in d.rng.permutation(a.ndim)))


def fold(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    if a.ndim < 2:
        return jnp.sin(a)
    i = int(d.rng.integers(a.ndim - 1))
    return a.reshape(*a.shape[:i], a.shape[i] * a.shape[i + 1], *a.shape[i + 2 :])


def unfold(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    i, first = d.axis(a), d.one_of(True, False)
    if a.shape[i] % 4 or a.ndim > 3:
        return jnp.sin(a)
    pair = (4, a.shape[i] // 4) if first else (a.shape[i] // 4, 4)
    return a.reshape(*a.shape[:i], *pair, *a.shape[i + 1 :])


def mix(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    axis = d.axis(a)
    return d.one_of(
        lambda a: jnp.cumsum(a, axis),
        lambda a: jnp.flip(a, axis),
        lambda a: jax.nn.softmax(a, axis),
        lambda a: jnp.sort(a, axis),
        lambda a: jnp.roll(a, 1, axis),
        lambda a: a - a.max(axis, keepdims=True),
        lambda a: lax.cummax(a, axis),
    )(a)


def widen(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    axis = d.axis(a)
    n = a.shape[axis]
    both = jnp.concatenate([jnp.sin(a), a], axis)
    return d.one_of(
        lambda: lax.slice_in_dim(both, 0, n, axis=axis),
        lambda: lax.slice_in_dim(both, 1, n + 1, axis=axis),
        lambda: lax.slice_in_dim(both, 0, None, 2, axis),
        lambda: sum(jnp.split(both, 2, axis)),
    )()


def pick(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    axis, w = d.axis(a), pool[0]
    which = jnp.argmax(a, axis, keepdims=True)
    return d.one_of(
        lambda: w[jnp.minimum(which, 1), 0] * a,
        lambda: a * (which == 0).astype(a.dtype),
        lambda: jnp.take(a, jnp.array([1, 0]), axis, mode="clip").sum() * a,
        lambda: lax.dynamic_update_slice_in_dim(a, 2 * a, 0, axis),
        lambda: lax.dynamic_slice_in_dim(a, jnp.argmax(w[0]), a.shape[axis], axis),
    )()


def loop(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    """Over the leading axis, whatever that is by now."""

    def step(c, row):
        c = 0.5 * c + jnp.tanh(row)
        return c, c * row

    state, rows = lax.scan(
        step, jnp.zeros(a.shape[1:]), a, reverse=d.one_of(*[False] * 3, True)
    )
    return d.one_of(rows, rows, rows * jnp.tanh(state).sum())


def units(d: Draw, a: jax.Array, pool: list[jax.Array]) -> jax.Array:
    w = pool[0]
    return d.one_of(
        lambda: lax.cond(w[0, 0] > 0, jnp.sin, jnp.cos, a),
        lambda: lax.fori_loop(0, 2, lambda i, y: jnp.sin(y) * a, a),
        lambda: jax.checkpoint(lambda a: jnp.sin(jnp.sin(a)))(a),
        lambda: jax.nn.relu(a) + jax.nn.silu(a),
        lambda: jax.jit(lambda a: a * jnp.exp(-a * a))(a),
        lambda: lax.optimization_barrier((a, w))[0],
    )()


STEPS = (unary, binary, binary, centre, by_total, product, contract, transpose, fold)
STEPS += (unfold, mix, widen, pick, loop, units)


def random_program(seed: int) -> Program:
    """A few steps in a row; what is folded is folded again at every size."""

    def program(x: jax.Array, w: jax.Array) -> Any:
        d, pool = Draw(seed), [w, x]
        a = jnp.tanh(x)
        for _ in range(int(d.rng.integers(2, 6))):
            pool.append(a)
            a = d.one_of(*STEPS)(d, a, pool)
        return a, d.one_of(a.sum(), a.mean(0), jnp.sin(a), x)

    return program


def weigh(tree: Any) -> jax.Array:
    total = jnp.float32(0)
    for a in jax.tree.leaves(tree):
        weights = jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape)
        total += jnp.sum(jnp.sin(a) * weights)
    return total


def data(shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(shape[1]))
    w = jax.random.normal(keys[1], (shape[2], shape[2])) / math.sqrt(shape[2])
    return jax.random.normal(keys[0], shape), w


def gradients(programs: list[Program], shape: tuple[int, ...]) -> Any:
    """Values, and gradients by both inputs, of all programs in one compilation."""

    @functools.partial(jax.jit, compiler_options=FAST)
    def run(x: jax.Array, w: jax.Array) -> Any:
        found = []
        for f in programs:
            y, pull = jax.vjp(f, x, w)
            found.append((y, pull(jax.grad(weigh)(y))))
        return found

    return run(*data(shape))


def accepted(programs: list[Program], axis: int, count: int, shape: Any) -> list[int]:
    return [i for i, f in enumerate(programs) if is_taken(f, axis, count, shape)]


def is_taken(f: Program, axis: int, count: int, shape: Any) -> bool:
    """Whether it is not refused, with a reason."""
    try:
        cut = chunked_segment(f, KEEP, axis, count)
        jax.eval_shape(lambda x, w: jax.vjp(cut, x, w)[0], *data(shape))
    except ValueError as error:
        assert "cannot be kept apart" in str(error)
        return False
    return True


@pytest.mark.parametrize("shape", [SQUARE, ODD], ids=["square", "odd"])
@pytest.mark.parametrize("axis", [0, 1], ids=["time", "batch"])
def test_random_programs_are_equal_or_refused(axis, shape):
    """Sizes that are all alike hide a mistaken axis from every shape check."""
    programs = [random_program(seed) for seed in range(30)]
    count = 2 if axis == 0 else 3
    kept = accepted(programs, axis, count, shape)[:6]
    assert len(kept) == 6
    ways = ("whole", "sums", "chunks")
    cut = [
        chunked_segment(programs[i], KEEP, axis, count, forward_by=ways[i % 3])
        for i in kept
    ]
    wanted = gradients([programs[i] for i in kept], shape)
    for i, came, want in zip(kept, gradients(cut, shape), wanted, strict=True):
        for got, right in zip(came, want, strict=True):
            largest = max(float(jnp.abs(a).max()) for a in jax.tree.leaves(right))
            size = max(largest, 0.1)  # what cancels to nothing is rounding
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(right), strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype
                np.testing.assert_allclose(
                    a, b, rtol=0, atol=1e-5 * size, err_msg=f"program {i}"
                )
