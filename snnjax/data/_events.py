"""Recordings of event cameras: CIFAR10-DVS, DVS Gesture, N-MNIST, read by tonic."""

from pathlib import Path
from typing import Any

import numpy as np

from .._extra import optional
from ._recordings import Recorded, find, guarded, opened, source
from ._samples import Samples

_CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def cifar10_dvs(folder: str | Path, *, partial: bool = False) -> Samples:
    """CIFAR10-DVS: 10,000 recordings of 128x128 pixels, ten classes, no split.

    Args:
        folder: the one that holds `CIFAR10DVS/airplane/*.aedat4` and so on.
        partial: whether fewer than all recordings will do.

    Returns:
        All of it; `split` parts it.

    Raises:
        FileNotFoundError: it is not there; the message says how to get it.
        ValueError: a recording is in a folder that is no class's; when it is read, one
            that is cut short or damaged.
        ImportError: the extra `data` is not installed.

    Source: Li et al., Frontiers in Neuroscience 2017.
    """
    optional("aedat", "data")  # tonic would miss it at the first recording
    classes = "|".join(_CIFAR10)
    recorded = Recorded(
        name="CIFAR10DVS",
        part="",
        archive="CIFAR10DVS.zip",
        url="url",
        pattern=rf"(.*/)?({classes})/[^/]+\.aedat4",
        layout="airplane/cifar10_airplane_0.aedat4",
        count=10_000,
    )
    return _samples(recorded, folder, partial, _CIFAR10)


def dvs_gesture(
    folder: str | Path, *, train: bool = True, partial: bool = False
) -> Samples:
    """DVS Gesture, as tonic has cut it: 128x128 pixels, eleven classes.

    Args:
        folder: the one that holds `DVSGesture/ibmGestureTrain` and `ibmGestureTest`.
        train: which of the two.
        partial: whether fewer recordings will do than 100, the least for tonic; how
            many there are is not known here.

    Returns:
        Samples of size (128, 128, 2).

    Raises:
        FileNotFoundError, ValueError, ImportError: as for `cifar10_dvs`.

    Source: Amir et al., CVPR 2017: 29 subjects, 23 to train.
    """
    part = "ibmGestureTrain" if train else "ibmGestureTest"
    recorded = Recorded(
        name="DVSGesture",
        part=part,
        archive=f"{part}.tar.gz",
        url="train_url" if train else "test_url",
        pattern=r"user\d+_[^/]+/(\d|10)\.npy",
        layout="user01_fluorescent/0.npy",
        count=100,
    )
    classes = optional("tonic.datasets", "data").DVSGesture.classes
    return _samples(recorded, folder, partial, classes, train=train)


def n_mnist(
    folder: str | Path, *, train: bool = True, partial: bool = False
) -> Samples:
    """N-MNIST: 60,000 and 10,000 digits seen by a moving camera of 34x34 pixels.

    Args:
        folder: the one that holds `NMNIST/Train` and `NMNIST/Test`.
        train: which of the two.
        partial: whether fewer than all recordings will do.

    Returns:
        Samples of size (34, 34, 2).

    Raises:
        FileNotFoundError, ValueError, ImportError: as for `cifar10_dvs`.

    Source: Orchard et al., Frontiers in Neuroscience 2015.
    """
    recorded = Recorded(
        name="NMNIST",
        part="Train" if train else "Test",
        archive="train.zip" if train else "test.zip",
        url="train_url" if train else "test_url",
        pattern=r"[0-9]/[^/]+\.bin",
        layout="0/00002.bin",
        count=60_000 if train else 10_000,
    )
    return _samples(recorded, folder, partial, map(str, range(10)), train=train)


def _samples(
    recorded: Recorded, folder: str | Path, partial: bool, classes: Any, **settings: Any
) -> Samples:
    names = find(recorded, folder, partial)
    root = recorded.root(folder)
    dataset = opened(recorded, folder, **settings)
    place_of = {Path(file): i for i, file in enumerate(dataset.data)}
    order = [place_of[root / name] for name in names]
    width, height, polarities = dataset.sensor_size
    size = height, width, polarities

    def read(i: int) -> np.ndarray:
        _check_whole(root / names[i])
        return dataset[order[i]][0]

    return Samples(
        source=source(recorded),
        read=guarded(read, lambda i: str(root / names[i]), size),
        names=names,
        all_labels=np.array([dataset.targets[i] for i in order]),
        classes=tuple(classes),
        size=size,
        folder=root,
    )


def _check_whole(file: Path) -> None:
    """N-MNIST's events take 5 bytes each, which tonic does not ask about."""
    if file.suffix == ".bin" and file.stat().st_size % 5:
        raise ValueError(f"{file.stat().st_size} bytes are not whole events of 5 bytes")
