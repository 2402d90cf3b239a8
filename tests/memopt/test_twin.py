"""Programs that mix what is to be in chunks: they are refused with the reason."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chunks import (
    AXES,
    BATCH,
    KEEP,
    TIME,
    WAYS,
    assert_close,
    compiled,
    cut,
    data,
    gradient,
    one,
    vgg,
    weigh,
)
from flax import nnx
from jax import lax

from snnjax.memopt import chunked_segment
from snnjax.neuron import lif


def scanned(step: Any, **settings: Any) -> Any:
    """A loop of one's own over time, from zeros."""

    def f(x: jax.Array, w: jax.Array) -> Any:
        start = jnp.zeros(x.shape[1:])
        return lax.scan(lambda c, r: step(x, w, c, r), start, x, **settings)

    return f


def charge(x, w, c, r):
    return 0.5 * c + jnp.tanh(r @ w), jnp.sin(c)


def shaped(x: jax.Array, axis: int) -> list[int]:
    return [-1 if i == axis else 1 for i in range(x.ndim)]


def attention(axis: int) -> str:
    return "tbf,sbf->tbs" if axis == TIME else "tbf,tcf->tbc"


def slid(x: jax.Array, w: jax.Array) -> jax.Array:
    kernel = jnp.stack([w, w, w])
    numbers = ("NWC", "WIO", "NWC")
    y = lax.conv_general_dilated(
        jnp.moveaxis(x, 0, 1), kernel, (1,), "SAME", dimension_numbers=numbers
    )
    return jnp.moveaxis(y, 1, 0)


def slid_over_samples(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.swapaxes(slid(jnp.swapaxes(x, 0, 1), w), 0, 1)


def by_hand(axis: int) -> Any:
    def f(x, w):
        state, rows = 0.0, []
        for i in range(x.shape[axis]):
            state = 0.5 * state + lax.index_in_dim(x, i, axis, keepdims=False) @ w
            rows.append(state)
        return jnp.stack(rows, axis)

    return f


REFUSED: dict[str, Any] = {
    "softmax": lambda n: lambda x, w: jax.nn.softmax(x @ w, n),
    "sort": lambda n: lambda x, w: jnp.sort(x @ w, n),
    "flip": lambda n: lambda x, w: jnp.flip(x @ w, n),
    "cumsum": lambda n: lambda x, w: jnp.cumsum(x @ w, n),
    "roll": lambda n: lambda x, w: jnp.roll(x @ w, 1, n),
    "maximum": lambda n: lambda x, w: x - (x @ w).max(n, keepdims=True),
    "attention": lambda n: lambda x, w: jnp.einsum(attention(n), x, x @ w),
    "convolution": lambda n: (slid, slid_over_samples)[n],
    "python loop": by_hand,
    "python branch": lambda n: (
        lambda x, w: jnp.tanh(x @ w) if x.shape[n] > 3 else jnp.sin(x @ w)
    ),
    "first": lambda n: lambda x, w: (x @ w) * lax.slice_in_dim(x, 0, 1, axis=n),
    "condition of one": lambda n: (
        lambda x, w: lax.cond(x[0, 0, 0] > 0, jnp.sin, jnp.cos, x @ w)
    ),
    "loop until all": lambda n: (
        lambda x, w: (
            lax.stop_gradient(
                lax.while_loop(lambda s: jnp.any(s > 1), lambda s: s / 2, x)
            )
            @ w
        )
    ),
    "loop until a sum": lambda n: (
        lambda x, w: (
            lax.stop_gradient(lax.while_loop(lambda s: s.sum() > 1, lambda s: s / 2, x))
            @ w
        )
    ),
    "median": lambda n: lambda x, w: x * jnp.median(x @ w, n, keepdims=True),
    "shuffle": lambda n: (
        lambda x, w: jnp.take(
            x @ w, jax.random.permutation(jax.random.key(0), 4), n, mode="clip"
        )
    ),
    "scan over it": lambda n: (
        lambda x, w: jnp.moveaxis(
            scanned(charge, reverse=n == TIME)(jnp.moveaxis(x, n, 0), w)[1], 0, n
        )
    ),
    "scatter": lambda n: lambda x, w: (x @ w).at[0].add(x[1]).at[:, 0].add(x[:, 1]),
    # What fails at a chunk's size has to be told as well, and not as a puzzle.
    "fixed size": lambda n: (
        lambda x, w: (x @ w).reshape(5, 4, 3) * w[0].reshape(1, 1, 3)
    ),
    "constant of its length": lambda n: (
        lambda x, w: (x @ w) * jnp.linspace(0, 1, (4, 5)[n]).reshape(shaped(x, n))
    ),
}


def reason(f: Any, axis: int, count: int = 3, **settings: Any) -> str | None:
    """Why it is refused, from a trace of the gradient; None if it is not."""
    x, w = data()
    try:
        seg = chunked_segment(f, KEEP, axis, count, **settings)
        jax.eval_shape(gradient(seg), x, w)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("case", REFUSED)
@AXES
def test_what_mixes_is_refused_and_said(case, axis):
    f = REFUSED[case](axis)
    seg = chunked_segment(f, KEEP, axis, 2)
    jax.eval_shape(seg, *data())  # a forward pass does not care
    said = reason(f, axis) or "accepted"
    name = "time steps" if axis == TIME else "samples"
    assert f"{name} cannot be kept apart" in said, said


def ruled(forward: Any, backward: Any) -> Any:
    """An identity with a gradient of one's own."""
    f = jax.custom_vjp(lambda x: 2 * x)
    f.defvjp(lambda x: (2 * x, forward(x)), backward)
    return lambda x, w: f(jnp.tanh(x @ w))


def by_jvp(rule: Any) -> Any:
    f = jax.custom_jvp(lambda x: 2 * x)
    f.defjvp(lambda p, t: (2 * p[0], t[0] * rule(p[0])))
    return lambda x, w: f(jnp.tanh(x @ w))


def uniform_in_rule(x: jax.Array, w: jax.Array) -> jax.Array:
    @jax.custom_jvp
    def f(x):
        return x / jnp.ones_like(x).sum()

    f.defjvp(lambda p, t: (f(p[0]), t[0] / jnp.ones_like(p[0]).sum()))
    return f(jnp.tanh(x @ w))


def uniform_in_loop(x, w):
    return lax.fori_loop(0, 2, lambda i, y: jnp.sin(y @ w) / jnp.ones_like(y).sum(), x)


def uniform_in_branch(x, w):
    count = lambda y: y / jnp.ones_like(y).sum()  # noqa: E731
    return lax.cond(w[0, 0] > 9, jnp.sin, count, x @ w)


def uniform_product_in_loop(x, w):
    def step(i, y):
        u = jnp.ones((x.shape[0], x.shape[1]))
        return jnp.sin(y @ w) / jnp.vdot(u, u)

    return lax.fori_loop(0, 2, step, x)


def positions_twice(x, w):
    """Steps numbered: one at a time in the loop, and all of them beside it."""
    p = jnp.arange(x.shape[0], dtype=x.dtype)

    def step(c, row):
        return 0.5 * c + jnp.tanh(row[0] @ w) * row[1], c / (1 + p.sum())

    return lax.scan(step, jnp.zeros(x.shape[1:]), (x, p))[1]


def ones_beside(n):
    def f(x, w):
        o = jnp.ones(x.shape[n])
        return scanned(lambda x, w, c, r: (0.5 * c + jnp.tanh(r @ w), c / o.sum()))(
            x, w
        )

    return f


def rewired(n):
    def f(x, w):
        a, b = jnp.tanh(x @ w), jnp.sin(x)
        return (a * b if x.shape[n] > 3 else a * a) + b

    return f


def last_beside(x, w):
    state, rows = scanned(charge)(x, w)
    return rows + state[None]


def masked(x, w, n):
    shape = [size if i == n else 1 for i, size in enumerate(x.shape)]
    return jnp.where(
        jax.random.bernoulli(jax.random.key(1), 0.6, shape), x @ w, 0.1 * x
    )


# Each is either right or refused; what the analysis might take for what it is not.
DOUBTFUL: dict[str, Any] = {
    "divided by their number": lambda n: lambda x, w: jnp.tanh(x @ w) / x.shape[n],
    "to the power of it": lambda n: lambda x, w: jnp.tanh(x @ w) ** x.shape[n],
    "full of it": lambda n: lambda x, w: x @ w * jnp.full(x.shape, float(x.shape[n])),
    "full of it, in a total": lambda n: (
        lambda x, w: x @ w * jnp.full(x.shape, float(x.shape[n])).sum()
    ),
    "branch by it, one literal": lambda n: (
        lambda x, w: jnp.tanh(x @ w) * (2.0 if x.shape[n] > 3 else 3.0)
    ),
    "branch by it, one operand": rewired,
    "branch by it, literal or operand": lambda n: (
        lambda x, w: jnp.tanh(x @ w) * (w[0, 0] if x.shape[n] > 3 else 3.0)
    ),
    "clipped at it": lambda n: lambda x, w: jnp.clip(x @ w * 9, 0, x.shape[n]),
    "a loop of as many turns": lambda n: (
        lambda x, w: lax.fori_loop(0, x.shape[n], lambda i, y: jnp.sin(y @ w), x)
    ),
    "a scan of as many turns": lambda n: (
        lambda x, w: lax.scan(
            lambda y, _: (jnp.sin(y @ w), None), x, length=x.shape[n]
        )[0]
    ),
    "its number in a loop": lambda n: scanned(
        lambda x, w, c, r: (0.5 * c + jnp.tanh(r @ w) / x.shape[n], c)
    ),
    "its number in a branch": lambda n: (
        lambda x, w: lax.cond(w[0, 0] > 9, jnp.sin, lambda y: y / x.shape[n], x @ w)
    ),
    "ones beside a loop": ones_beside,
    "positions twice in a loop": lambda n: positions_twice,
    "gradient normalised": lambda n: ruled(
        lambda x: None, lambda _, g: (g / jnp.sqrt(jnp.square(g).sum()),)
    ),
    "gradient of a statistic": lambda n: ruled(
        lambda x: x.max((0, 1)), lambda r, g: (g * r.reshape(1, 1, -1),)
    ),
    "gradient turned": lambda n: ruled(lambda x: None, lambda _, g: (jnp.flip(g, n),)),
    "tangent of a statistic": lambda n: by_jvp(lambda x: x.sum()),
    "tangent by their number": lambda n: by_jvp(lambda x: 1 / x.shape[n]),
    "ones summed in a rule": lambda n: uniform_in_rule,
    "ones summed in a loop": lambda n: uniform_in_loop,
    "ones multiplied in a loop": lambda n: uniform_product_in_loop,
    "ones summed in a branch": lambda n: uniform_in_branch,
    "the last state beside": lambda n: last_beside,
    "positions": lambda n: (
        lambda x, w: x @ w * jnp.arange(x.shape[n], dtype=x.dtype).reshape(shaped(x, n))
    ),
    "a mask of each": lambda n: lambda x, w: masked(x, w, n),
    "a barrier over positions": lambda n: (
        lambda x, w: (lambda a, b: a / b.sum())(
            *lax.optimization_barrier((x @ w, jnp.arange(x.shape[n], dtype=x.dtype)))
        )
    ),
    "ones looked up": lambda n: (
        lambda x, w: x @ w * jnp.ones(x.shape[n])[jnp.argmax(x, -1) + 1][..., None]
    ),
    "positions looked up backwards": lambda n: (
        lambda x, w: (
            x
            @ w
            * jnp.sin(jnp.arange(1.0, 1 + x.shape[n]))[-1 - jnp.argmax(x, -1)][
                ..., None
            ]
        )
    ),
    "one-hot of their number": lambda n: (
        lambda x, w: jnp.sum(jax.nn.one_hot(jnp.argmax(x, -1), x.shape[n]), -1)
    ),
    "identity matrix": lambda n: (
        lambda x, w: jnp.einsum(
            ("tbf,tc->cbf", "tbf,bc->tcf")[n], x @ w, jnp.eye(x.shape[n])
        )
    ),
    "first state a total": lambda n: (
        lambda x, w: lax.scan(
            lambda c, r: (0.5 * c + jnp.tanh(r @ w), c),
            jnp.zeros(x.shape[1:]) + x.sum(),
            x,
        )
    ),
    "neuron from a total": lambda n: (
        lambda x, w: lif(x @ w, jnp.zeros(x.shape[1:]) + jnp.tanh(x.sum()))
    ),
}


@pytest.mark.parametrize("case", DOUBTFUL)
@AXES
def test_what_looks_harmless_is_right_or_refused(case, axis):
    right_or_refused(DOUBTFUL[case](axis), axis, 3)


@pytest.mark.parametrize(
    "case", [c for c in DOUBTFUL if "position" in c or "each" in c]
)
@AXES
def test_chunks_of_one_do_not_broadcast(case, axis):
    right_or_refused(DOUBTFUL[case](axis), axis, data()[0].shape[axis])


def right_or_refused(f: Any, axis: int, count: int) -> None:
    said = reason(f, axis, count)
    if said is not None:
        assert "cannot be kept apart" in said, said
        return
    came, want = compiled([chunked_segment(f, KEEP, axis, count), f])(*data())
    assert_close(came, want)


def dot_of_all(x, w):
    return x @ jnp.tanh(0.03 * jnp.einsum("tbf,tbg->fg", x, x @ w))


def chain_of_sums(x, w):
    y = x @ w
    for _ in range(3):
        y = jnp.tanh(y * y.mean((0, 1)).reshape(1, 1, -1))
    return y, y.sum(0), y.sum(1), jnp.swapaxes(y, 0, 1)


def folded(x, w):
    y = (x.reshape(-1, x.shape[-1]) @ w).reshape(*x.shape[:2], -1)
    return jnp.transpose(y, (2, 0, 1)).reshape(y.shape[2], -1)


def frozen_moments(x, w):
    y = x @ w
    return y * lax.stop_gradient(y.mean((0, 1))).reshape(1, 1, -1)


def integers(x, w):
    fires = (x > 0).sum((0, 1))
    return x @ w * fires.astype(x.dtype).reshape(1, 1, -1), fires, x > 0


def looked_up(x, w):
    return w[jnp.argmax(x, -1)] * x, jnp.argmax(x, -1)


def one_number_for_all(x, w):
    drawn = jax.random.normal(jax.random.key(2), (1, 1, x.shape[2]))
    return x @ w * drawn, jnp.where(
        jax.random.bernoulli(jax.random.key(3), 0.5, x.shape), x, w[0, 0]
    )


def branched(x, w):
    y = x @ w
    return lax.cond(y.sum() > 0, jnp.sin, jnp.cos, y), jnp.where(y.mean() > 0, y, x)


def after_the_loop(x, w):
    state, rows = scanned(charge)(x, w)
    return jnp.tanh(state @ w), rows * jnp.mean(rows, (0, 1)).reshape(1, 1, -1)


def from_an_argument(x, w):
    start = jnp.broadcast_to(jnp.tanh(w.sum(0)).reshape(1, -1), x.shape[1:])
    spikes, v = lif(x @ w, start, tau=1.5)
    return spikes, lif(spikes + x, None, v_reset=None)[0], v


def nothing_left(x, w):
    return jnp.zeros(3), jnp.tanh(x), w * 2


EXACT = [dot_of_all, chain_of_sums, folded, frozen_moments, integers, looked_up]
EXACT += [one_number_for_all, branched, after_the_loop, from_an_argument, nothing_left]


@pytest.mark.parametrize(
    "axis, sizes", [(TIME, (4, 4, 4)), (BATCH, (4, 5, 3))], ids=["time", "batch"]
)
def test_what_is_a_sum_or_apart_is_exact(axis, sizes):
    """Total sums by any primitive, look-ups, branches by sums, states at both ends."""
    count = 2  # of 5 samples a rest of two: of one, `broadcast_to` would be nothing
    ways = [WAYS[(i + axis) % 3] for i in range(len(EXACT))]
    refused = {f.__name__: reason(f, axis, count) for f in EXACT}
    kept = [(f, way) for f, way in zip(EXACT, ways) if refused[f.__name__] is None]
    plain = [f for f, _ in kept]
    cuts = [chunked_segment(f, KEEP, axis, count, forward_by=way) for f, way in kept]
    found = compiled([*plain, *cuts])(*data(*sizes))
    for f, want, came in zip(plain, found, found[len(plain) :]):
        try:
            assert_close(came[0][1], want[0][1])
            assert_close(came[1], want[1])
        except AssertionError as error:
            raise AssertionError(f"{f.__name__}: {error}") from error
    assert not {name: said for name, said in refused.items() if said}


def test_a_result_of_integers_alone_has_no_gradient():
    x, w = data()
    seg = chunked_segment(lambda x, w: (x @ w > 0).sum(-1), KEEP, BATCH, 2)
    loss = lambda w: w.sum() * seg(x, w).sum().astype(w.dtype)  # noqa: E731
    n = float((x @ w > 0).sum())
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(w), jnp.full(w.shape, n))


# --- what the compiler makes of it ----------------------------------------------------


def test_the_program_does_not_grow_with_the_number_of_chunks():
    def instructions(count: int) -> int:
        net = one(vgg(True))()
        x = jax.ShapeDtypeStruct((3, 8, 4, 4, 2), jnp.float32)
        step = nnx.jit(nnx.grad(lambda m, x: weigh(m(x))))
        made = step.lower(cut(net, BATCH, count), x).compile()
        text = getattr(made, "compiled", made).as_text()
        return len(re.findall(r"^\s+(?:ROOT )?%?[\w.-]+ = ", text, re.MULTILINE))

    two, eight = instructions(2), instructions(8)
    assert two > 100
    assert abs(eight - two) < 0.05 * two, (two, eight)
