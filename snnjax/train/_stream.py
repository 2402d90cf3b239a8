"""Batches in order, and the place among them, which a checkpoint keeps."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Batch = tuple[Any, ...]
Batches = Iterable[Batch]
Data = Batches | Callable[[int], Batches]


class Stream:
    """The batches of one pass after another over `data`.

    Args:
        data: an iterable of batches, or a function of the number of the pass, from 0,
            that gives one. Iterators with `get_state` and `set_state`, as grain's,
            are set to their place; others are run through up to it, and must give the
            same batches again.
    """

    def __init__(self, data: Data) -> None:
        self._data = data
        self._start(0)

    def _start(self, number: int) -> None:
        self._pass, self._taken = number, 0
        data = self._data(number) if callable(self._data) else self._data
        self._iterator: Any = iter(data)

    def pass_(self) -> Iterator[Batch]:
        """What is left of this pass; the next one follows."""
        for batch in self._iterator:
            self._taken += 1
            yield batch
        if self._taken == 0:
            raise ValueError(
                "`train_data` has no batch, or is an iterator that is used up; it is "
                "iterated once a pass: hand over a list, a data set, or a function of "
                "the number of the pass."
            )
        self._start(self._pass + 1)

    def take(self, count: int) -> Iterator[Batch]:
        """The next `count` batches, of as many passes as that takes."""
        passes = itertools.chain.from_iterable(self.pass_() for _ in itertools.count())
        return itertools.islice(passes, count)

    @property
    def at_start(self) -> bool:
        """Whether no batch of this pass has been taken."""
        return self._taken == 0

    @property
    def state(self) -> dict[str, Any]:
        """The place, for `restore`; JSON can hold it if it can hold the iterator's."""
        place = {"pass": self._pass, "taken": self._taken}
        get_state = getattr(self._iterator, "get_state", None)
        return place | ({} if get_state is None else {"iterator": get_state()})

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to where a stream over the same data was."""
        self._start(state["pass"])
        if "iterator" in state:
            self._iterator.set_state(state["iterator"])
        else:
            skipped = sum(1 for _ in itertools.islice(self._iterator, state["taken"]))
            if skipped < state["taken"]:
                raise ValueError(
                    f"`train_data` has {skipped} batches a pass, but the checkpoint is "
                    f"from after batch {state['taken']}: resume with the same data."
                )
        self._taken = state["taken"]
