"""Range analysis: random programs stay inside it, and known programs hit it exactly."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from snnjax.memopt import Grid
from snnjax.memopt._ranges import Analysis, Known

SHAPE = (3, 4)  # of every value in a random program
DTYPES = ("float32", "bfloat16", "float16", "int8", "int32", "uint8", "bool")
GRIDS = (Grid(0, 1), Grid(0, 0), Grid(-1, 1), Grid(0, 3), Grid(0, 4, -2), Grid(1, 5))
GRIDS += (Grid(-3, -1), Grid(0, 255), Grid(-128, 127), Grid(0, 6, 3), Grid(-5, 2, -3))
CONSTANTS = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 0.25, -0.0, 257.0, 1e30, -4.0, 2.0**-20)
NASTY = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 0.5, 3e38, 6e-8, 1e-40, 255.0)


# --- random programs ------------------------------------------------------------------


def floating(a: jax.Array) -> bool:
    return jnp.issubdtype(a.dtype, jnp.floating)


def numeric(a: jax.Array) -> jax.Array:
    return a.astype(jnp.float32) if a.dtype == jnp.bool_ else a


def constant(k: int, a: jax.Array) -> Any:
    """Constant `k`, as near as the dtype of `a` has it."""
    c = CONSTANTS[k % len(CONSTANTS)]
    if not floating(a):
        c = int(np.clip(c, -100 if a.dtype != jnp.uint8 else 0, 100))
    with np.errstate(over="ignore"):
        return np.array(c).astype(a.dtype)


def at_shape(a: jax.Array) -> jax.Array:
    """`a` broadcast, cut or padded to `SHAPE`, all of it by supported primitives."""
    a = a.reshape(a.shape if a.ndim == 2 else (1, -1))
    a = jnp.concatenate([a] * 3, 0)[: SHAPE[0]]
    return jnp.concatenate([a] * 4, 1)[:, : SHAPE[1]]


def window(reducer: Any, init: Any) -> Callable[..., jax.Array]:
    def op(k: int, a: jax.Array, *_: Any) -> jax.Array:
        a = numeric(a)
        size = (1 + k % 2, 1 + k % 3)
        pads = ((0, k % 2), (k // 2 % 3, k // 5 % 2))
        dilation = (1, 1 + k // 7 % 2)
        args = (size, (1, 1 + k // 3 % 2), pads, dilation, (1, 1 + k // 11 % 2))
        return at_shape(lax.reduce_window(a, init(a.dtype), reducer, *args))

    return op


def lowest(dtype: Any) -> Any:
    return dtype.type(-np.inf if jnp.issubdtype(dtype, jnp.floating) else 0)


def pick(*fs: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """One of several operations, by the number that comes."""
    return lambda k, *args: fs[k % len(fs)](k // len(fs), *args)


def same(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """An operation on numbers of one dtype."""

    def op(k: int, a: jax.Array, b: jax.Array, *_: Any) -> jax.Array:
        a = numeric(a)
        return f(a, b.astype(a.dtype))

    return op


def one(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda k, a, *_: f(numeric(a))


def real(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda k, a, *_: f(a if floating(a) else a.astype(jnp.float32))


def on_axis(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda k, a, *_: at_shape(f(numeric(a), axis=(None, 0, 1)[k % 3]))


def with_constant(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def op(k: int, a: jax.Array, *_: Any) -> jax.Array:
        a = numeric(a)
        return f(a, jnp.full(SHAPE, constant(k, a)))

    return op


def index(c: jax.Array) -> jax.Array:
    return jnp.nan_to_num(c.astype(jnp.float32)).astype(jnp.int32)[0]


def gather(k: int, a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    mode = ("clip", "fill", "fill", "promise_in_bounds")[k % 4]
    where = index(c) if mode != "promise_in_bounds" else jnp.array([2, 0, 1, 1])
    fill = {"fill_value": constant(k // 4, a)[()]} if k % 4 == 2 else {}
    return at_shape(a.at[where].get(mode=mode, **fill))


def scatter(k: int, a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    ref = a.at[index(c)[:2]]
    if k % 3 == 0:
        return ref.set(b[:2].astype(a.dtype))
    a = numeric(a)
    ref = a.at[index(c)[:2]]
    if k % 3 == 1:
        return ref.apply(lambda v: v + constant(k // 3, a))
    return ref.add(b[:2].astype(a.dtype))


def dot(k: int, a: jax.Array, b: jax.Array, *_: Any) -> jax.Array:
    a = numeric(a)
    wide = jnp.float32 if floating(a) else jnp.int32
    out = (None, wide)[k % 2]
    b = b.astype(a.dtype)
    return at_shape(lax.dot(a, b.T, preferred_element_type=out))


def sort(k: int, a: jax.Array, b: jax.Array, *_: Any) -> jax.Array:
    return lax.sort((a, b), dimension=k // 2 % 2, num_keys=1)[k % 2]


@jax.custom_jvp
def with_jvp(a):
    return (a > 0).astype(a.dtype)


with_jvp.defjvp(lambda p, t: (with_jvp(*p), t[0]))


@jax.custom_vjp
def with_vjp(a):
    return jnp.minimum(a, a.dtype.type(1))


with_vjp.defvjp(lambda a: (with_vjp(a), None), lambda r, g: (g,))


def wrapped(k: int, a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    inner = SIMPLE[k // 6 % len(SIMPLE)]
    f = lambda a, b: inner(k // 7, a, b, b)  # noqa: E731
    wrap = (jax.jit, jax.checkpoint, jax.vmap)[k % 3]
    return at_shape(wrap(f)(a, b) if k % 3 < 2 else jax.jit(f)(a, b))


def stepped(k: int, a: jax.Array, b: jax.Array) -> Callable[..., jax.Array]:
    """What a loop does to its carry; rank and dtype stay."""
    steps = (
        lambda c, x: c + x,
        lambda c, x: jnp.maximum(c, x),
        lambda c, x: x,
        lambda c, x: c * constant(k // 6, c),
        lambda c, x: jnp.where(c > x, c, x * x),
        lambda c, x: jnp.minimum(c + c.dtype.type(1), constant(k // 6, c)),
    )
    return steps[k % 6]


def scan(k: int, a: jax.Array, b: jax.Array, *_: Any) -> jax.Array:
    a = numeric(a)
    step = stepped(k // 2, a, b)

    def body(carry, x):
        new = step(carry[0], x)
        return (new, carry[0]), carry[1] + carry[0] if k // 12 % 2 else carry[1]

    (last, before), ys = lax.scan(body, (a[0], a[1]), b.astype(a.dtype))
    return ys if k % 2 else at_shape(jnp.stack([last, before]))


def loop(k: int, a: jax.Array, b: jax.Array, *_: Any) -> jax.Array:
    a = numeric(a)
    step, b = stepped(k // 5, a, b), b.astype(a.dtype)
    if k % 5 == 4:
        alive = lambda c: (c[0] < 3) & jnp.isfinite(c[1].sum())  # noqa: E731
        return lax.while_loop(alive, lambda c: (c[0] + 1, step(c[1], b)), (0, a))[1]
    return lax.fori_loop(0, k % 5, lambda i, c: step(c, b), a)


def cond(k: int, a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    a = numeric(a)
    step, b = stepped(k // 2, a, b), b.astype(a.dtype)
    if k % 2:
        return lax.cond(c.any(), lambda: step(a, b), lambda: a)
    return lax.switch(
        index(c)[0], [lambda: a, lambda: b, lambda: jnp.zeros_like(a), lambda: a + b]
    )


def clamp(k: int, a: jax.Array, b: jax.Array, *_: Any) -> jax.Array:
    a = numeric(a)
    return lax.clamp(constant(k, a), a, constant(k // 8, a))


def pad(k: int, a: jax.Array, *_: Any) -> jax.Array:
    a = numeric(a)
    return at_shape(
        lax.pad(a, constant(k, a), ((k % 2 - 1, 1, 0), (1, -1, k // 2 % 2)))
    )


def slice_(k: int, a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    a2 = lax.dynamic_slice(a, (index(c)[0], index(c)[1]), (2, 3))
    return at_shape(a2) if k % 2 else lax.dynamic_update_slice(a, a2, index(c)[:2])


def reduced_precision(k: int, a: jax.Array, *_: Any) -> jax.Array:
    a = a if floating(a) else a.astype(jnp.float32)
    bits = ((8, 7), (5, 1), (2, 3), (5, 0), (8, 23))[k % 5]
    return lax.reduce_precision(a, *bits)


def logical(k: int, a: jax.Array, b: jax.Array, *_: Any) -> jax.Array:
    a = a.astype(bool) if floating(a) else a
    b = b.astype(a.dtype)
    return (a & b, a | b, a ^ b, ~a)[k % 4]


def cumulative(k: int, a: jax.Array, *_: Any) -> jax.Array:
    f = (lax.cumsum, lax.cumsum, lax.cummax, lax.cummin, lax.cumprod)[k % 5]
    return f(numeric(a), k // 5 % 2, reverse=bool(k // 10 % 2))


def one_hot(k: int, a: jax.Array, *_: Any) -> jax.Array:
    return jax.nn.one_hot(jnp.argmax(a, axis=1), 4, dtype=DTYPES[k % 3])


def iota(k: int, a: jax.Array, *_: Any) -> jax.Array:
    return lax.broadcasted_iota(numeric(a).dtype, SHAPE, k % 2)


SIMPLE: list[Callable[..., jax.Array]] = [
    pick(*[same(f) for f in (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)]),
    lambda k, a, *_: a.astype(DTYPES[k % len(DTYPES)]),
    pick(same(lax.add), same(lax.sub), same(lax.mul), same(lax.max), same(lax.min)),
    pick(*[with_constant(f) for f in (lax.mul, lax.div, lax.add, lax.sub, lax.max)]),
    pick(one(lax.neg), one(jnp.abs), one(lax.square), one(lax.sign)),
    pick(*[real(f) for f in (lax.floor, lax.ceil, lax.round, lax.is_finite, jnp.exp)]),
    lambda k, a, *_: numeric(a) ** (k % 4),
    lambda k, a, b, c: jnp.where(c.astype(bool), a, b.astype(a.dtype)),
    logical,
    clamp,
]
OPERATIONS = [
    *SIMPLE,
    *SIMPLE,
    pick(*[on_axis(f) for f in (jnp.sum, jnp.max, jnp.min, jnp.any, jnp.all)]),
    pick(*[on_axis(f) for f in (jnp.sum, jnp.prod)], lambda k, a, *_: _mean(k, a)),
    lambda k, a, *_: at_shape((jnp.argmax, jnp.argmin)[k % 2](a, axis=k // 2 % 2)),
    cumulative,
    window(lax.add, lambda d: d.type(0)),
    window(lax.max, lowest),
    window(lax.min, lambda d: jnp.array(np.inf if d.kind == "f" else 1).astype(d)),
    dot,
    sort,
    gather,
    scatter,
    pad,
    slice_,
    lambda k, a, *_: a.reshape(4, 3).T if k % 2 else a.T.reshape(SHAPE),
    lambda k, a, *_: (a[::-1], jnp.roll(a, 1, 1), at_shape(a[::2, 1:]))[k % 3],
    lambda k, a, b, *_: jnp.concatenate([a[:1], b[:2].astype(a.dtype)]),
    lambda k, a, b, *_: at_shape(jnp.split(a, 2, 1)[k % 2]),
    lambda k, a, b, *_: jnp.stack([a[0], b[0].astype(a.dtype), a[2]]),
    lambda k, a, *_: at_shape(jnp.tile(a, (1, 2))),
    one_hot,
    iota,
    reduced_precision,
    lambda k, a, *_: lax.optimization_barrier((a, a))[0],
    lambda k, a, *_: lax.stop_gradient(a),
    lambda k, a, *_: checkpoint_name(a, f"n{k}"),
    pick(one(with_jvp), one(with_vjp)),
    wrapped,
    scan,
    loop,
    cond,
]


def _mean(k: int, a: jax.Array) -> jax.Array:
    a = a if floating(a) else a.astype(jnp.float32)
    return at_shape(a.mean((None, 0, 1)[k % 3]))


Step = tuple[int, int, int, int, int]  # operation, its variant, three operands


def run_program(steps: list[Step], inputs: list[jax.Array]) -> list[jax.Array]:
    """Every value of a program."""
    values = list(inputs)
    for op, k, *operands in steps:
        # The latest value first, so that programs grow deep.
        a, b, c = (values[-1 - i % len(values)] for i in operands)
        values.append(OPERATIONS[op](k, a, b, c))
        assert values[-1].shape == SHAPE, (op, k)
    return values


@st.composite
def inputs(draw) -> tuple[Any, Known | None]:
    dtype = jnp.dtype(draw(st.sampled_from(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    fitting = [g for g in GRIDS if g.fits(dtype)]
    grid = draw(st.sampled_from([None, *fitting]))
    if grid is not None:
        known = Known(grid, ("input",))
        k = rng.integers(grid.lo, grid.hi + 1, SHAPE)
        return (k * 2.0**grid.exponent).astype(dtype), known
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.choice([info.min, info.max, 0, 1, 7], SHAPE).astype(dtype), None
    with np.errstate(over="ignore", invalid="ignore"):
        return rng.choice(NASTY, SHAPE).astype(dtype), None


steps = st.tuples(
    st.integers(0, len(OPERATIONS) - 1),
    st.integers(0, 2**12),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(0, 5),
)
programs = st.tuples(
    st.lists(inputs(), min_size=1, max_size=3), st.lists(steps, min_size=1, max_size=9)
)


def outside(value: Any, grid: Grid) -> np.ndarray:
    """The members of `value` that `grid` does not hold, negative zero included."""
    value = np.asarray(value)
    wide = value.astype(np.float64)
    wrong = ~grid.contains(wide)
    if value.dtype.kind not in "iub":
        wrong |= (wide == 0) & np.signbit(wide)
    return value[wrong]


def check_soundness(program: Any) -> tuple[int, int]:
    """Runs and analyses a program; how many of its values were predicted, of all."""
    arguments, recipe = program
    arrays = [jnp.asarray(a) for a, _ in arguments]
    jaxpr = jax.make_jaxpr(lambda *xs: run_program(recipe, list(xs)))(*arrays)
    predicted = Analysis().run(jaxpr, [known for _, known in arguments])
    with jax.disable_jit():
        values = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *arrays)
    for variable, known, value in zip(jaxpr.jaxpr.outvars, predicted, values):
        if known is not None:
            bad = outside(value, known.grid)
            assert not bad.size, f"{variable}: {known}, came {bad}\n{jaxpr}"
    new = len(arguments)
    return sum(k is not None for k in predicted[new:]), len(values) - new


def check_many(examples: int) -> None:
    counts = []

    @given(program=programs)
    @settings(max_examples=examples, derandomize=True, deadline=None, database=None)
    def sound(program):
        counts.append(check_soundness(program))

    sound()
    predicted, total = map(sum, zip(*counts))
    # A proof about nothing proves nothing.
    assert predicted > total / 4, (predicted, total)


def test_every_value_of_a_random_program_lies_in_its_prediction():
    check_many(300)


@pytest.mark.slow
def test_every_value_of_many_random_programs_lies_in_its_prediction():
    check_many(3000)


# --- traps: what a rule that is nearly right gets wrong -------------------------------


def fired(x: jax.Array) -> jax.Array:
    return (x > 0).astype(x.dtype)


def one_window(x: jax.Array, padding: tuple[int, int]) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), (padding,))


BINARY, ZERO = Grid(0, 1), Grid(0, 0)
TRAPS: dict[str, tuple[Callable[[jax.Array], jax.Array], list[float], Grid | None]] = {
    "minus zero": (lambda x: -x, [0.0], ZERO),
    "minus zero, computed": (lambda x: -(fired(x) * 0.0), [1.0, -1.0], None),
    "zero times a negative": (lambda x: x * -1.0, [0.0, 1.0], BINARY),
    "zero by a negative": (lambda x: x / -2.0, [0.0, 1.0], BINARY),
    "rounded to minus zero": (jnp.round, [-0.25, 0.5], Grid(-1, 2, -2)),
    "apply at an index": (
        lambda x: x.at[0].apply(lambda v: v * 7 + 2.5),
        [1.0, 0.0],
        BINARY,
    ),
    "filled with minus zero": (
        lambda x: x.at[jnp.array([0, 9])].get(mode="fill", fill_value=-0.0),
        [1.0, 0.0],
        BINARY,
    ),
    "filled with NaN": (lambda x: x[jnp.array([9])], [1.0, 0.0], BINARY),
    "padded with minus zero": (
        lambda x: jnp.pad(x, 1, constant_values=-0.0),
        [1.0],
        BINARY,
    ),
    "fewer bits": (lambda x: lax.reduce_precision(x, 5, 1), [7.0, 5.0], Grid(0, 7)),
    "fewer exponents": (lambda x: lax.reduce_precision(x, 2, 7), [7.0], Grid(0, 7)),
    "a pool of nothing": (lambda x: one_window(fired(x), (1, 1)), [], None),
    "a pool of padding": (lambda x: one_window(fired(x), (2, 0)), [1.0, 0.0], None),
    "half of an integer": (
        lambda x: lax.div(x.astype(jnp.int32), jnp.int32(2)),
        [3.0, -3.0],
        Grid(-3, 3),
    ),
    "a sum that wraps": (
        lambda x: jnp.sum(x.astype(jnp.int8), dtype=jnp.int8),
        [100.0, 100.0],
        Grid(0, 100),
    ),
    "a sum that rounds": (
        lambda x: lax.reduce_sum(x.astype(jnp.bfloat16) + 256, (0,)),
        [1.0, 1.0],
        BINARY,
    ),
    "a carry that grows": (
        lambda x: lax.fori_loop(0, 9, lambda i, c: c + x, x),
        [1.0, 0.0],
        BINARY,
    ),
    "a carry passed on late": (
        lambda x: lax.fori_loop(0, 9, lambda i, c: (c[1], c[2], c[2] + 3), (x, x, x))[
            0
        ],
        [1.0, 0.0],
        BINARY,
    ),
    "a bound that is unknown": (
        lambda x: jnp.clip(fired(x), 0, x[0]),
        [0.5, 1.0],
        None,
    ),
    "a mask and its weights": (
        lambda x: jax.nn.softmax(x) * fired(x),
        [1.0, 2.0],
        BINARY,
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_seen(trap):
    f, values, grid = TRAPS[trap]
    x = jnp.array(values, jnp.float32)
    jaxpr = jax.make_jaxpr(f)(x)
    (known,) = Analysis().run(
        jaxpr, [None if grid is None else Known(grid, ("input",))]
    )
    if known is not None:
        came = f(x)
        assert not outside(came, known.grid).size, f"{known}, came {came}"
