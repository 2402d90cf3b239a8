"""Frames against a loop over the events, images against their definition."""

import numpy as np
import pytest
from sets import events

from snnjax import data, memopt
from snnjax.memopt._targets import check_input_range

SENSOR = (128, 128, 2)


def loop(some, steps, frame_of, size, sensor):
    counts = np.zeros((steps, *size, *sensor[2:]), int)
    for rank, e in enumerate(some):
        where = [int(e[f]) * n // m for f, n, m in zip("yx", size, sensor)]
        frame = frame_of(rank, int(e["t"]) - int(some["t"].min()))
        if frame < steps:
            counts[(frame, *where, int(e["p"]))] += 1
    return counts


@pytest.mark.parametrize("count", [1, 7, 60, 2000])
@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("size", [None, (48, 32), (4, 4)])
def test_frames_are_those_of_a_loop(count, steps, size):
    some = events(0, count=count)
    space = size or SENSOR[:2]
    span = int(np.ptp(some["t"])) + 1
    by_time = loop(some, steps, lambda _, t: t * steps // span, space, SENSOR)
    by_count = loop(some, steps, lambda r, _: r * steps // count, space, SENSOR)
    for cls, counts in ((data.TimeBins, by_time), (data.EventBins, by_count)):
        assert counts.sum() == count
        for most, dtype in ((1, bool), (3, np.uint8), (None, np.int32)):
            frames = cls(steps, size=size, max_count=most)(some, SENSOR)
            assert frames.dtype == dtype
            np.testing.assert_array_equal(frames, np.minimum(counts, most or count))


def test_a_duration_fixes_the_bins_and_leaves_out_what_is_later():
    some = events(1)
    counts = loop(some, 5, lambda _, t: t * 5 // 20_000, SENSOR[:2], SENSOR)
    assert 0 < counts.sum() < len(some)
    frames = data.TimeBins(5, max_count=None, duration=20_000)(some, SENSOR)
    np.testing.assert_array_equal(frames, counts)


def test_event_bins_sort_by_time_and_are_equally_full():
    some = events(2, count=61)
    some["t"] = np.random.default_rng(0).permutation(61)
    frames = data.EventBins(10, max_count=None)(some, SENSOR)
    assert set(frames.sum((1, 2, 3))) == {6, 7}
    order = np.argsort(some["t"])
    np.testing.assert_array_equal(
        frames, data.EventBins(10, max_count=None)(some[order], SENSOR)
    )


@pytest.mark.parametrize("bins", [data.TimeBins(4), data.EventBins(4)])
def test_no_events_are_empty_frames_and_big_unsigned_times_count(bins):
    empty = bins(events(0)[:0], SENSOR)
    assert (empty.shape, empty.dtype, empty.any()) == ((4, *SENSOR), bool, False)
    some = events(3)
    moved = some.astype([("t", "u8"), ("x", "u2"), ("y", "u2"), ("p", "?")])
    moved["t"] += np.uint64(1_600_000_000_000_000)
    np.testing.assert_array_equal(bins(moved, SENSOR), bins(some, SENSOR))


def test_units_have_no_height():
    some = events(4, side=700)
    frames = data.TimeBins(6, size=(140,), max_count=None)(some[["t", "x"]], (700,))
    span, wanted = int(some["t"][-1]) + 1, np.zeros((6, 140), int)
    for e in some:
        wanted[int(e["t"]) * 6 // span, e["x"] // 5] += 1
    np.testing.assert_array_equal(frames, wanted)


@pytest.mark.parametrize("most, bits", [(1, 1), (3, 2), (255, 8), (None, None)])
def test_the_range_is_one_that_memopt_takes(most, bits):
    declared = check_input_range(data.TimeBins(4, max_count=most).input_range)
    if bits is None:
        assert declared is None
    else:
        keeps = memopt.IntegerSpikeCompressor(bits=bits)
        assert keeps.covers(declared) and (declared.lo, declared.hi) == (0, most)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: data.TimeBins(0), "`steps` is 0"),
        (lambda: data.TimeBins(2, duration=0), "`duration` is 0; allowed is 1"),
        (lambda: data.Repeat(steps=0), "`steps` is 0"),
        (lambda: data.Shift(-1), "`pixels` is -1"),
        (lambda: data.Flip(1.5), "`probability` is 1.5"),
        (lambda: data.Drop(-0.5), "`probability` is -0.5"),
        (lambda: data.EventBins(2, max_count=256), "`max_count` is 256.*up to 255"),
        (lambda: data.TimeBins(2, size=(4,))(events(0), SENSOR), "`size` is .*height"),
        (lambda: data.TimeBins(2, size=(4, 4))(events(0), (700,)), "`size` is"),
    ],
)
def test_refuses(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# --- images ---------------------------------------------------------------------------


def test_images_are_repeated_or_read_by_columns_or_pixels():
    image = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    plain = image.astype(np.float64) / 255
    values = (plain - mean) / std
    repeated = data.Repeat(steps=2, mean=mean, std=std)(image, image.shape)
    assert repeated.shape == (2, 5, 4, 3) and repeated.dtype == np.float32
    for x in repeated:
        np.testing.assert_allclose(x, values, atol=1e-5)
    columns = data.Columns()(image, image.shape)
    assert columns.shape == (4, 5, 3)
    np.testing.assert_allclose(columns[1], plain[:, 1], atol=1e-6)
    pixels = data.Pixels()(image, image.shape)
    np.testing.assert_allclose(pixels[4 * 2 + 3], plain[2, 3], atol=1e-6)
    floats = np.full((2, 2, 1), 0.5, np.float32)
    np.testing.assert_array_equal(data.Columns()(floats, (2, 2, 1)), floats)


# --- augmentation ---------------------------------------------------------------------


def test_flip_mirrors_events_and_images():
    some, rng = events(0), np.random.default_rng(0)
    flipped = data.Flip(1.0)(some, SENSOR, rng)
    frames = data.TimeBins(3, max_count=None)
    np.testing.assert_array_equal(
        frames(flipped, SENSOR), frames(some, SENSOR)[:, :, ::-1]
    )
    assert data.Flip(0.0)(some, SENSOR, rng) is some
    image = np.arange(6).reshape(2, 3, 1)
    np.testing.assert_array_equal(
        data.Flip(1.0)(image, image.shape, rng)[..., 0], [[2, 1, 0], [5, 4, 3]]
    )
    share = np.mean([data.Flip()(some, SENSOR, rng) is not some for _ in range(400)])
    assert 0.4 < share < 0.6


@pytest.mark.parametrize("dtype", ["i2", "u2"])
def test_shift_moves_events_and_images_alike(dtype):
    sensor = (8, 6, 2)
    fields = [("t", "i8"), ("x", dtype), ("y", dtype), ("p", "?")]
    some = events(0, side=6).astype(fields)
    count = data.TimeBins(1, max_count=None)
    seen = set()
    for seed in range(12):
        moved = data.Shift(3)(some, sensor, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        image = data.Shift(3)(count(some, sensor)[0], sensor, rng)
        down, right = np.random.default_rng(seed).integers(-3, 4, 2)
        wanted = np.zeros(sensor, int)
        for e in some:
            y, x = int(e["y"]) + down, int(e["x"]) + right
            if 0 <= y < 8 and 0 <= x < 6:
                wanted[y, x, int(e["p"])] += 1
        np.testing.assert_array_equal(image, wanted)
        np.testing.assert_array_equal(count(moved, sensor)[0], wanted)
        seen.add((down, right))
    assert len(seen) > 6


def test_shift_of_units_and_drop():
    some = events(0, side=700, count=4000)[["t", "x"]]
    moved = data.Shift(5)(some, (700,), np.random.default_rng(2))
    by = int(np.random.default_rng(2).integers(-5, 6, 1)[0])
    assert by
    inside = [x for x in (some["x"].astype(int) + by) if 0 <= x < 700]
    np.testing.assert_array_equal(moved["x"], inside)
    kept = data.Drop(0.25)(some, (700,), np.random.default_rng(0))
    assert 2900 < len(kept) < 3100 and np.isin(kept["t"], some["t"]).all()
    with pytest.raises(ValueError, match="`Drop` takes events"):
        data.Drop()(np.zeros((2, 2, 1)), (2, 2, 1), np.random.default_rng(0))
