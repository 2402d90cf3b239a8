"""Batches: order, hosts, position, augmentation, the split, what is kept on disk."""

import ast
import dataclasses
import gc
import os

import numpy as np
import pytest
import sets

from snnjax import data

SENSOR = (128, 128, 2)
FRAMES = data.TimeBins(4, size=(8, 8), max_count=None)


def numbered(count):
    """Images that say which they are."""
    return data.from_arrays(np.arange(count).reshape(-1, 1, 1, 1), np.arange(count) % 3)


@dataclasses.dataclass(frozen=True)
class Once:
    """An encoder to one time step that keeps the number."""

    def __call__(self, image, size):
        return image[None]


def order(samples, batch_size, **settings):
    """The numbers in each batch."""
    some = data.batches(samples, Once(), batch_size, **settings)
    return [x[0, :, 0, 0, 0].tolist() for x, _ in some]


def recorded(count=7):
    some = [sets.events(i, count=40 + i) for i in range(count)]
    return data.from_arrays(some, np.arange(count) % 2, size=SENSOR)


def test_batches_are_time_major_with_their_labels():
    samples = recorded()
    some = list(data.batches(samples, FRAMES, 3))
    assert len(some) == 2
    for k, (x, labels) in enumerate(some):
        assert x.shape == (4, 3, 8, 8, 2) and labels.dtype == np.int32
        assert labels.tolist() == [i % 2 for i in range(3 * k, 3 * k + 3)]
        for i in range(3):
            np.testing.assert_array_equal(x[:, i], FRAMES(samples[3 * k + i], SENSOR))


def test_every_epoch_has_an_order_of_its_own_that_repeats_exactly():
    one = order(numbered(10), 5, shuffle=True, epochs=3, seed=1)
    epochs = [sum(one[2 * e : 2 * e + 2], []) for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    assert order(numbered(10), 5, shuffle=True, epochs=3, seed=1) == one
    # seed 2 is not seed 1 an epoch on
    other = order(numbered(10), 5, shuffle=True, epochs=3, seed=2)
    assert not any(a in one for a in other)


def test_what_is_left_at_the_end_is_dropped_or_filled_up():
    assert order(numbered(7), 3, epochs=2) == [[0, 1, 2], [3, 4, 5]] * 2
    some = list(data.batches(numbered(7), Once(), 3, fill=True))
    assert [labels.tolist() for _, labels in some] == [
        *([0, 1, 2], [0, 1, 2]),
        [0, data.FILLER, data.FILLER],
    ]
    assert some[-1][0].shape == (1, 3, 1, 1, 1)
    assert order(numbered(2), 3, fill=True) == [[0, 1, 0]]
    shuffled = order(numbered(7), 3, shuffle=True, epochs=4)
    assert len(shuffled) == 8 and {n for b in shuffled for n in b} == set(range(7))


@pytest.mark.parametrize("fill", [False, True])
def test_hosts_share_every_batch(fill):
    settings = {"shuffle": True, "epochs": 2, "seed": 3, "fill": fill}
    whole = order(numbered(11), 4, **settings)
    parts = [order(numbered(11), 4, shard=(h, 2), **settings) for h in range(2)]
    assert [a + b for a, b in zip(*parts)] == whole


@pytest.mark.parametrize("threads", [0, 3])
def test_an_iterator_continues_where_another_was(threads):
    make = lambda: data.batches(  # noqa: E731
        recorded(),
        FRAMES,
        2,
        shuffle=True,
        epochs=None,
        augment=[data.Flip(), data.Shift(9), data.Drop(0.3)],
        threads=threads,
    )
    whole = iter(make())
    expected = [next(whole) for _ in range(12)]
    for stop in (0, 1, 3, 7):  # in the first epoch, at its end, and in the third
        first = iter(make())
        for _ in range(stop):
            next(first)
        second = iter(make())
        second.set_state(first.get_state())
        for x, labels in expected[stop:]:
            ours = next(second)
            np.testing.assert_array_equal(ours[0], x)
            np.testing.assert_array_equal(ours[1], labels)


def test_augmentation_depends_on_seed_epoch_and_sample_alone():
    def frames(samples, **settings):
        """What sample 3 becomes, epoch after epoch."""
        some = data.batches(samples, FRAMES, 1, augment=[data.Shift(40)], **settings)
        return [x for x, labels in some if labels == 5]

    some = [sets.events(i) for i in range(6)]
    samples = data.from_arrays(some, np.array([0, 1, 2, 5, 3, 4]), size=SENSOR)
    first = frames(samples, epochs=3, seed=4)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[1], first[2])
    assert not np.array_equal(first[0], frames(samples, seed=5)[0])
    again = frames(samples.take(np.array([5, 3])), epochs=3, seed=4, shuffle=True)
    np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"batch_size": 8}, "not enough for one batch"),
        ({"batch_size": 0}, "allowed is a positive"),
        ({"batch_size": 3, "shard": (0, 2)}, "multiple of the number of hosts"),
        ({"batch_size": 2, "shard": (2, 2)}, "an index below"),
        ({"batch_size": 2, "cache": "x"}, "in memory"),
    ],
)
def test_refuses(settings, words):
    with pytest.raises(ValueError, match=words):
        data.batches(numbered(7), Once(), **settings)


def test_refuses_arrays_without_fitting_labels():
    for arrays, labels, words in (
        (np.zeros((2, 1, 1, 1)), np.zeros(3, int), "one label for each"),
        (np.zeros((0, 1, 1, 1)), np.zeros(0, int), "one or more samples"),
        (np.zeros((2, 1, 1, 1)), np.zeros(2), "integers from 0"),
        (np.zeros((2, 1, 1, 1)), np.array([0, -1]), "-1 at least"),
        ([sets.events(0)], np.zeros(1, int), "`size` is None"),
    ):
        with pytest.raises(ValueError, match=words):
            data.from_arrays(arrays, labels)
    with pytest.raises(ValueError, match="goes up to 2"):
        data.from_arrays(np.zeros((1, 1, 1, 1)), np.array([2]), classes=["a", "b"])


# --- the split ------------------------------------------------------------------------


def test_split_takes_the_same_share_of_every_class_and_no_sample_twice():
    labels = np.repeat([0, 1, 2], [10, 20, 70])
    samples = data.from_arrays(np.arange(100).reshape(-1, 1, 1, 1), labels)
    train, test = data.split(samples, fraction=0.1, seed=0)
    assert np.bincount(test.labels).tolist() == [1, 2, 7]
    assert np.bincount(train.labels).tolist() == [9, 18, 63]
    both = [*train.places, *test.places]
    assert sorted(both) == list(range(100)) and list(test.places) == sorted(test.places)
    assert test[3].item() == test.places[3]
    other = data.split(samples, fraction=0.1, seed=1)[1]
    assert set(other.places) != set(test.places)


def test_split_is_the_one_that_it_always_was():
    """SHA-256 of "seed/name", so no other machine or version may give another."""
    _, test = data.split(numbered(30), fraction=0.2, seed=7)
    assert test.places.tolist() == [0, 15, 16, 20, 25, 29]


def test_split_does_not_depend_on_the_order_or_number_of_files(tmp_path):
    samples = data.cifar10_dvs(sets.cifar10_dvs(tmp_path, per_class=5), partial=True)
    named = lambda part: {samples.names[i] for i in part.places}  # noqa: E731
    _, test = data.split(samples, fraction=0.4)
    backwards = samples.take(np.arange(50)[::-1])
    assert named(data.split(backwards, fraction=0.4)[1]) == named(test)
    again, rest = data.split(test, fraction=0.5)  # of a part, too
    assert named(again) | named(rest) == named(test)


@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.01, 0.99])
def test_split_leaves_no_class_out(fraction):
    with pytest.raises(ValueError, match="`fraction` is"):
        data.split(numbered(30), fraction=fraction)


# --- what is kept on disk -------------------------------------------------------------


@pytest.fixture
def gestures(tmp_path):
    return data.dvs_gesture(sets.dvs_gesture(tmp_path), partial=True)


def counting(samples):
    """The samples, and the list of the places that were read."""
    read = []

    def reading(place):
        read.append(place)
        return samples.read(place)

    return dataclasses.replace(samples, read=reading), read


def all_of(samples, encoder, cache, **settings):
    return np.concatenate(
        [x for x, _ in data.batches(samples, encoder, 3, cache=cache, **settings)], 1
    )


@pytest.mark.parametrize(
    "encoder", [data.TimeBins(3), data.EventBins(3, max_count=None, size=(9, 5))]
)
def test_frames_are_read_once(tmp_path, gestures, encoder):
    samples, read = counting(gestures)
    cache = tmp_path / "cache" / "frames"
    plain = all_of(gestures, encoder, None)
    for _ in range(2):
        kept = all_of(samples, encoder, cache)
        np.testing.assert_array_equal(kept, plain)
        assert kept.dtype == plain.dtype and sorted(read) == list(range(6))
    assert len([f for f in cache.rglob("*") if f.is_file()]) == 6  # none half made


def test_another_setting_or_file_is_another_key(tmp_path, gestures):
    samples, read = counting(gestures)
    encoders = [
        data.TimeBins(3),
        data.TimeBins(4),
        data.TimeBins(3, size=(8, 8)),
        data.TimeBins(3, max_count=2),
        data.TimeBins(3, duration=5000),
        data.EventBins(3),
    ]
    others = [dataclasses.replace(samples, source="another")]
    for one, encoder in [(samples, e) for e in encoders] + [(others[0], encoders[0])]:
        read.clear()
        kept = all_of(one, encoder, tmp_path / "cache")
        assert len(read) == 6
        np.testing.assert_array_equal(kept, all_of(gestures, encoder, None))
    # part of a set finds what the whole set left; a changed file is read again
    read.clear()
    all_of(samples.take(np.array([5, 1, 2])), encoders[0], tmp_path / "cache")
    assert not read
    file = samples.file(5)
    os.utime(file, ns=(0, 0))
    all_of(samples, encoders[0], tmp_path / "cache")
    assert read == [5]


def test_damaged_entries_are_made_again(tmp_path, gestures):
    encoder, cache = data.TimeBins(3), tmp_path / "cache"
    plain = all_of(gestures, encoder, cache)
    files = sorted(f for f in cache.rglob("*") if f.is_file())
    whole = files[1].read_bytes()
    files[0].write_bytes(b"")
    files[1].write_bytes(whole[:-5])
    files[2].write_bytes(b"?" + whole[1:])
    files[3].write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    samples, read = counting(gestures)
    np.testing.assert_array_equal(all_of(samples, encoder, cache), plain)
    assert len(read) == 4
    assert files[1].read_bytes() == whole


def test_with_augmentation_events_are_kept_as_they_were_read(tmp_path, gestures):
    samples, read = counting(gestures)
    settings = {"augment": [data.Shift(20)], "epochs": 2}
    plain = all_of(gestures, FRAMES, None, **settings)
    for _ in range(2):
        np.testing.assert_array_equal(
            all_of(samples, FRAMES, tmp_path / "cache", **settings), plain
        )
    assert sorted(read) == list(range(6))


def test_a_cache_wants_an_encoder_that_says_what_it_does(tmp_path, gestures):
    with pytest.raises(ValueError, match="must be a dataclass"):
        data.batches(gestures, lambda x, size: x, 2, cache=tmp_path)


def test_a_broken_recording_is_named_from_a_thread(gestures):
    gestures.file(4).write_bytes(b"")
    with pytest.raises(ValueError, match=r"user02_led/10.npy cannot be read"):
        list(data.batches(gestures, FRAMES, 2))


# --- Python 3.11's `ast` in threads ---------------------------------------------------


def disturbed(read, times):
    """`read`, which the parser of another thread spoils so often."""
    left = [times]

    def spoiled(*args, **kwargs):
        left[0] -= 1
        if left[0] >= 0:
            raise SystemError("AST constructor recursion depth mismatch")
        return read(*args, **kwargs)

    return spoiled


def test_a_read_that_another_thread_spoils_is_done_again(gestures):
    plain = gestures[3]
    samples = dataclasses.replace(gestures, read=disturbed(gestures.read, 9))
    np.testing.assert_array_equal(samples[3], plain)
    with pytest.raises(SystemError, match="AST constructor"):
        dataclasses.replace(gestures, read=disturbed(gestures.read, 10))[3]


def test_np_load_is_done_again(tmp_path, gestures, monkeypatch):
    cache = tmp_path / "cache"
    plain = all_of(gestures, FRAMES, cache)
    for kept in (cache, None):  # tonic's np.load, and the cache's
        with monkeypatch.context() as patch:
            patch.setattr(np, "load", disturbed(np.load, 2))
            np.testing.assert_array_equal(all_of(gestures, FRAMES, kept), plain)
    with monkeypatch.context() as patch:
        patch.setattr(np, "load", disturbed(np.load, 1000))
        with pytest.raises(ValueError, match=r"npy cannot be read \(AST constructor"):
            gestures[3]


def test_a_collection_that_parses_spoils_nothing(gestures):
    """Without a second try, Python 3.11 fails at some of these thresholds."""
    once, thresholds = [], gc.get_threshold()
    plain = gestures[3]

    def parse(phase, info):
        if once:
            once.pop()
            ast.parse("a.b.c")

    gc.callbacks.append(parse)
    try:
        for threshold in range(1, 60):
            gc.collect()
            once.append(1)
            gc.set_threshold(threshold)
            np.testing.assert_array_equal(gestures[3], plain)
    finally:
        gc.callbacks.remove(parse)
        gc.set_threshold(*thresholds)
