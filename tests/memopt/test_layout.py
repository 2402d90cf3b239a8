"""Layouts, chunks and pieces against NumPy, which says where every element lies."""

import math
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snnjax.memopt._layout import BATCH, TIME, Chunks, Layout, Piece, over

QUICK = settings(derandomize=True, deadline=None, database=None, max_examples=200)
SLOW = settings(derandomize=True, deadline=None, database=None, max_examples=12)
SIZES = st.integers(1, 4)
LENGTHS = st.integers(2, 5)


def marked(shape: tuple[int, ...], layout: Layout) -> np.ndarray:
    """An array that holds each element's place along the cut axis."""
    numbers = np.arange(layout.length).reshape(1, -1, 1)
    folded = np.broadcast_to(numbers, (layout.outer, layout.length, layout.inner))
    along = folded.reshape([-1 if i == layout.axis else 1 for i in range(len(shape))])
    return np.broadcast_to(along, shape)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@st.composite
def laid_out(draw, length=LENGTHS):
    """A shape and the layout of an axis in it."""
    rank = draw(st.integers(1, 4))
    axis = draw(st.integers(0, rank - 1))
    layout = Layout(axis, draw(length), draw(SIZES), draw(SIZES))
    shape = [draw(SIZES) for _ in range(rank)]
    shape[axis] = layout.size
    return tuple(shape), layout


@st.composite
def reshapes(draw):
    """A shape, a layout, and another shape of as many elements."""
    shape, layout = draw(laid_out())
    rest, new = math.prod(shape), []
    while rest > 1 and len(new) < 4:
        new.append(draw(st.sampled_from(divisors(rest))))
        rest //= new[-1]
    new.append(rest)
    return shape, layout, tuple(draw(st.permutations(new)))


@given(reshapes())
@QUICK
def test_a_reshape_is_followed_exactly_where_one_axis_holds_the_cut_one(case):
    shape, layout, new = case
    found = layout.reshaped(shape, new)
    moved = marked(shape, layout).reshape(new)
    if found is not None:
        assert found.length == layout.length and new[found.axis] == found.size
        np.testing.assert_array_equal(marked(new, found), moved)
    else:
        for axis in range(len(new)):
            for outer in divisors(new[axis]):
                inner, rest = divmod(new[axis], outer * layout.length)
                if not rest and inner:
                    other = Layout(axis, layout.length, outer, inner)
                    assert not np.array_equal(marked(new, other), moved)


def test_reshapes_that_fold_unfold_and_tear():
    batch = Layout(1, 3)
    folded = batch.reshaped((2, 3, 4), (6, 4))
    assert folded == Layout(0, 3, outer=2)
    assert folded.reshaped((6, 4), (2, 3, 4)) == batch
    assert folded.reshaped((6, 4), (3, 2, 4)) is None
    assert batch.reshaped((2, 3, 4), (2, 12)) == Layout(1, 3, inner=4)
    assert batch.reshaped((2, 3, 4), (24,)) == Layout(0, 3, outer=2, inner=4)
    assert batch.reshaped((2, 3, 4), (3, 8)) is None
    assert batch.reshaped((2, 3, 4), (4, 6)) is None
    assert Layout(1, 2).reshaped((2, 2, 2), (2, 4)) == Layout(1, 2, inner=2)
    assert Layout(0, 2).reshaped((2, 2, 2), (4, 2)) == Layout(0, 2, inner=2)
    assert Layout(1, 4).reshaped((4, 4), (2, 2, 4)) == Layout(2, 4)


@given(laid_out(), st.integers(1, 5))
@QUICK
def test_the_shape_of_a_chunk_scales_one_axis(case, size):
    shape, layout = case
    chunk = layout.shape_of_chunk(shape, size)
    assert chunk[layout.axis] == layout.outer * size * layout.inner
    assert math.prod(chunk) * layout.length == math.prod(shape) * size


@st.composite
def cuttings(draw):
    """How many of what is cut in how many, on how many devices."""
    shards = draw(st.sampled_from([1, 1, 2, 4]))
    local = draw(st.integers(1, 9))
    return local * shards, draw(st.integers(1, 9)), shards


def chunks_of(length: int, count: int, shards: int, axis: int = BATCH) -> Chunks:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Chunks.of(axis, length, count, shards)


@given(cuttings())
@QUICK
def test_chunks_cover_the_axis_evenly_and_are_no_more_than_asked_for(case):
    length, count, shards = case
    chunks = chunks_of(length, count, shards)
    assert chunks.count * chunks.size + chunks.rest == length
    assert 0 <= chunks.rest < chunks.size and chunks.rest % shards == 0
    number = chunks.count + bool(chunks.rest)
    assert 1 <= number <= min(count, length // shards)
    # No other number of at most as many chunks would be smaller.
    assert chunks.size == -(-length // shards // min(count, length // shards)) * shards


def places(chunks: Chunks) -> list[list[int]]:
    """The samples of each chunk, in order: each device's share of every one."""
    local = chunks.length // chunks.shards
    first = chunks.rest // chunks.shards
    bounds = [(0, first)] if first else []
    bounds += [
        (first + i * chunks.each, first + (i + 1) * chunks.each)
        for i in range(chunks.count)
    ]
    return [
        [s * local + j for s in range(chunks.shards) for j in range(*b)] for b in bounds
    ]


def pieces(chunks: Chunks) -> list[Piece]:
    even = [Piece(chunks, jnp.int32(i)) for i in range(chunks.count)]
    return ([Piece(chunks)] if chunks.rest else []) + even


@given(cuttings(), st.data())
@SLOW
def test_cutting_and_pasting_is_numpys_take(case, data):
    length, count, shards = case
    chunks = chunks_of(length, count, shards)
    shape, layout = data.draw(laid_out(st.just(length)))
    a = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    number = marked(shape, layout)
    view = chunks.view(jnp.zeros(shape), layout)
    seen: list[int] = []
    for piece, wanted in zip(pieces(chunks), places(chunks), strict=True):
        assert piece.size == len(wanted)
        part = piece.cut(jnp.asarray(a), layout)
        cut = layout.shape_of_chunk(shape, piece.size)
        assert part.shape == cut
        inside = Layout(layout.axis, piece.size, layout.outer, layout.inner)
        which = np.asarray(wanted)[marked(cut, inside)]
        assert np.array_equal(
            number.ravel()[np.asarray(part, int).ravel()], which.ravel()
        )
        view = piece.paste(view, part)
        seen += wanted
    assert sorted(seen) == list(range(length))
    np.testing.assert_array_equal(view.reshape(shape), a)


@pytest.mark.parametrize("length, count, shards", [(6, 3, 1), (7, 3, 1), (12, 2, 2)])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_over_chunks_takes_each_once_and_in_order(
    length, count, shards, reverse
):
    chunks = chunks_of(length, count, shards)

    def step(piece, state):
        n, order, stacks = state
        start = jnp.asarray(-1 if piece.index is None else piece.index, jnp.int32)
        order = order.at[n].set(start)
        return n + 1, order, piece.store(stacks, {"a": n + 1})

    many = chunks.count + bool(chunks.rest)
    stacks = {"a": jnp.zeros(chunks.count, jnp.int32)}
    start = jnp.int32(0), jnp.zeros(many, jnp.int32), stacks
    n, order, stacks = over(chunks, step, start, reverse=reverse)
    expected = ([-1] if chunks.rest else []) + list(range(chunks.count))
    assert int(n) == many
    assert order.tolist() == (expected[::-1] if reverse else expected)
    when = [order.tolist().index(i) + 1 for i in range(chunks.count)]
    assert stacks["a"].tolist() == when
    for i in range(chunks.count):
        assert int(Piece(chunks, jnp.int32(i)).stored(stacks)["a"]) == when[i]


def test_more_chunks_than_there_are_of_them_are_as_many_with_one_warning():
    with pytest.warns(UserWarning, match="7 chunks.*3 samples") as warned:
        chunks = Chunks.of(BATCH, 3, 7)
    assert len(warned) == 1 and (chunks.count, chunks.size, chunks.rest) == (3, 1, 0)
    with pytest.warns(UserWarning, match="there will be 1") as warned:
        chunks = Chunks.of(TIME, 1, 2)
    assert len(warned) == 1 and (chunks.count, chunks.size) == (1, 1)
    with pytest.warns(UserWarning, match="there will be 2") as warned:
        assert Chunks.of(BATCH, 8, 3, 4).count == 2
    assert len(warned) == 1


@pytest.mark.parametrize("shards", [0, -1, 3, 5])
def test_shards_that_do_not_divide_the_batch_are_refused(shards):
    with pytest.raises(ValueError, match="`shards` is .*divisor"):
        Chunks.of(BATCH, 4, 2, shards)


def test_time_is_not_divided_over_devices():
    """Each device's own steps are no chunk of time."""
    with pytest.raises(ValueError, match="shards"):
        Chunks.of(TIME, 4, 2, 2)


@pytest.mark.parametrize("shards", [2, 4])
def test_a_chunk_takes_as_much_of_every_device(shards):
    chunks = chunks_of(24, 4, shards)
    local = 24 // shards
    for part in places(chunks):
        owners = [i // local for i in part]
        assert {owners.count(s) for s in range(shards)} == {len(part) // shards}
    a = jnp.arange(24.0).reshape(1, 24)
    for piece, wanted in zip(pieces(chunks), places(chunks), strict=True):
        assert piece.cut(a, Layout(1, 24))[0].tolist() == wanted
