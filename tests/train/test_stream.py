"""The place among the batches: where a stream is put back to, it goes on from."""

import itertools
import json

import grain
import pytest

from snnjax.train._stream import Stream


def by_pass(number):
    return [(f"{number}{c}",) for c in "abc"]


def grained():
    """Shuffled anew in every pass, read ahead by a thread."""
    data = grain.MapDataset.range(4).shuffle(7).repeat(None).batch(2)
    return data.to_iter_dataset(grain.ReadOptions(num_threads=1)).map(
        lambda a: tuple(a.tolist())
    )


SOURCES = {"list": lambda: by_pass(0), "passes": lambda: by_pass, "grain": grained}


def test_passes_follow_one_another():
    assert list(Stream(by_pass(0)).take(5)) == [*by_pass(0), *by_pass(0)[:2]]
    assert list(Stream(by_pass).take(5)) == [*by_pass(0), *by_pass(1)[:2]]
    stream = Stream(by_pass)
    assert [list(stream.pass_()) for _ in range(3)] == [by_pass(i) for i in range(3)]


@pytest.mark.parametrize("taken", range(8))
@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_goes_on_from_a_place(source, taken):
    """Through JSON, as in a checkpoint."""
    whole = list(Stream(SOURCES[source]()).take(10))
    first = Stream(SOURCES[source]())
    assert list(first.take(taken)) == whole[:taken]
    place = json.loads(json.dumps(first.state))
    second = Stream(SOURCES[source]())
    second.restore(place)
    assert list(second.take(10 - taken)) == whole[taken:]


def test_the_place_after_a_pass_is_the_start_of_the_next():
    stream = Stream(by_pass)
    steps = stream.pass_()
    next(steps), next(steps), next(steps)
    assert stream.state == {"pass": 0, "taken": 3}
    again = Stream(by_pass)
    again.restore(stream.state)
    assert list(again.pass_()) == []
    assert list(steps) == []
    assert stream.state == again.state == {"pass": 1, "taken": 0}


@pytest.mark.parametrize("way", ["pass_", "take"])
def test_data_that_is_used_up_is_refused(way):
    used = iter(by_pass(0))
    stream = Stream(used)
    with pytest.raises(ValueError, match="`train_data` has no batch.*used up"):
        for _ in range(2):
            list(stream.pass_() if way == "pass_" else stream.take(4))


def test_other_data_than_the_checkpoint_was_made_with_is_refused():
    with pytest.raises(ValueError, match="`train_data` has 3 batches.*after batch 5"):
        Stream(by_pass).restore({"pass": 2, "taken": 5})


def test_nothing_is_read_before_it_is_asked_for():
    seen = []
    stream = Stream(lambda n: (seen.append(i) or (i,) for i in itertools.count()))
    assert list(stream.take(2)) == [(0,), (1,)] and seen == [0, 1]
