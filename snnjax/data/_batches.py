"""Samples to a stream of batches, by grain: order, position, prefetch, hosts."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._extra import optional
from ._augment import Augmentation
from ._cache import DiskCache
from ._samples import Samples

Encoder = Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
FILLER = -1  # the label of a sample that only fills up the last batch


def batches(
    samples: Samples,
    encoder: Encoder,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epochs: int | None = 1,
    fill: bool = False,
    augment: Sequence[Augmentation] = (),
    cache: str | Path | None = None,
    shard: tuple[int, int] = (0, 1),
    threads: int = 2,
    prefetch: int = 4,
) -> Any:
    """Batches `(x, labels)`, `[time, batch, ...]` and `[batch]` int32.

    The result is a `grain.IterDataset`. Its iterators have `get_state()` and
    `set_state(state)`: a new iterator of the same settings, set to an old one's state,
    continues with the very next batch, of the same samples, augmented in the same way.

    Args:
        samples: what to take.
        encoder: makes `[time, ...]` of a sample: `TimeBins`, `EventBins`, `Repeat`,
            `Columns`, `Pixels`, or your own `encoder(sample, size)`.
        batch_size: samples in a batch, on all hosts together.
        shuffle: whether each epoch comes in an order of its own.
        seed: of the order and of augmentation.
        epochs: how often to go through all samples; None never ends.
        fill: what to do with the samples that are left at an epoch's end. False leaves
            them out. True fills the batch up with sample 0, labeled `FILLER` (-1): to
            test on every sample with one shape, leave out `labels == FILLER`.
        augment: applied to each sample before the encoder, one after another; random
            numbers depend on seed, epoch and the sample's place in its set alone.
        cache: a folder that keeps the encoded samples; with `augment`, the samples as
            they were read. Compressed, named by everything they depend on.
        shard: (index, number) of this host, such as `(jax.process_index(),
            jax.process_count())`: its part of every batch, in order.
        threads, prefetch: how many batches are made at once, and made ahead.

    Raises:
        ValueError: there is no whole batch, or hosts cannot share one equally; `cache`
            is given for samples in memory, or for an encoder that is no dataclass.
        ImportError: the extra `data` is not installed.
    """
    _check_batch(len(samples), batch_size, fill, shard)
    grain = optional("grain", "data")
    order = grain.MapDataset.range(len(samples))
    if shuffle:
        order = order.shuffle(_spread(seed))
    gather = functools.partial(_gather, batch_size=batch_size)
    order = order.batch(batch_size, drop_remainder=not fill, batch_fn=gather)
    kept = None if cache is None else _cache(Path(cache), samples, encoder, augment)
    load = _Load(samples, samples.labels, encoder, tuple(augment), seed, kept)
    steps, (index, number) = len(order), shard
    return (
        order.repeat(epochs)
        .map_with_index(lambda i, all: load(i // steps, np.split(all, number)[index]))
        .to_iter_dataset(grain.ReadOptions(threads, max(threads, prefetch)))
    )


@dataclasses.dataclass(frozen=True)
class _Load:
    """Loads the samples `which` in an epoch: one batch."""

    samples: Samples
    labels: np.ndarray
    encoder: Encoder
    augment: tuple[Augmentation, ...]
    seed: int
    cache: DiskCache | None

    def __call__(self, epoch: int, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        real = np.maximum(which, 0)
        x = np.stack([self._encoded(epoch, int(i)) for i in real], axis=1)
        return x, np.where(which < 0, np.int32(FILLER), self.labels[real])

    def _encoded(self, epoch: int, i: int) -> np.ndarray:
        size = self.samples.size
        if not self.augment:
            return self._kept(i, lambda: self.encoder(self.samples[i], size))
        sample = self._kept(i, lambda: self.samples[i])
        place = int(self.samples.places[i])
        rng = np.random.default_rng((self.seed, epoch, place))
        for change in self.augment:
            sample = change(sample, size, rng)
        return self.encoder(sample, size)

    def _kept(self, i: int, make: Callable[[], np.ndarray]) -> np.ndarray:
        if self.cache is None:
            return make()
        place = int(self.samples.places[i])
        return self.cache.get(self.samples.file(place), self.samples.names[place], make)


def _gather(which: Sequence[int], batch_size: int) -> np.ndarray:
    """A batch's indices; -1 where there is no sample left."""
    batch = np.full(batch_size, -1)
    batch[: len(which)] = which
    return batch


def _cache(
    folder: Path,
    samples: Samples,
    encoder: Encoder,
    augment: Sequence[Augmentation],
) -> DiskCache:
    """A cache of encoded samples, or of samples as they are before augmentation."""
    if samples.folder is None:
        raise ValueError(
            f"`cache` is {folder}; allowed is None for samples that are in memory: "
            "leave it out."
        )
    if augment:
        return DiskCache(folder, repr((samples.source, "as read")))
    cls = type(encoder)
    if not dataclasses.is_dataclass(cls):
        raise ValueError(
            f"`encoder` is {encoder!r}; with `cache` it must be a dataclass, whose "
            "fields say which frames it makes. Otherwise old ones would be returned."
        )
    name = f"{cls.__module__}.{encoder!r}"
    return DiskCache(folder, repr((samples.source, name, samples.size)))


def _check_batch(
    count: int, batch_size: int, fill: bool, shard: tuple[int, int]
) -> None:
    index, number = shard
    if batch_size < 1 or batch_size % number or not 0 <= index < number:
        raise ValueError(
            f"`batch_size` is {batch_size} and `shard` {shard}; allowed is a positive "
            "multiple of the number of hosts, and an index below that number."
        )
    if not count or (count < batch_size and not fill):
        raise ValueError(
            f"`batch_size` is {batch_size}, but there are {count} samples, not enough "
            "for one batch. Take a smaller batch, or fill=True."
        )


def _spread(seed: int) -> int:
    """grain adds the epoch to the seed: from seed 1 it would be seed 0, one late."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0])
