"""Spoken words as spikes of 700 units: Heidelberg Digits and Speech Commands, by tonic.

One HDF5 file holds all samples of a part, of unequal lengths.
"""

from pathlib import Path
from typing import Any

import numpy as np

from .._extra import optional
from ._reading import reading
from ._recordings import Recorded, guarded, how_to_get, opened, source
from ._samples import Samples


def shd(folder: str | Path, *, train: bool = True) -> Samples:
    """Spiking Heidelberg Digits: 8,156 and 2,264 spoken digits, twenty classes.

    Args:
        folder: the one that holds `SHD/shd_train.h5` and `SHD/shd_test.h5`.
        train: which of the two.

    Returns:
        Samples of size (700,).

    Raises:
        FileNotFoundError: it is not there; the message says how to get it.
        ValueError: the file is cut short, or not of this set.
        ImportError: the extra `data` is not installed.

    Source: Cramer et al., IEEE TNNLS 2022.
    """
    return _spoken("SHD", "train" if train else "test", folder, train=train)


def ssc(folder: str | Path, *, part: str = "train") -> Samples:
    """Spiking Speech Commands: 35 classes.

    Args:
        folder: the one that holds `SSC/ssc_train.h5` and so on.
        part: "train", "valid" or "test".

    Returns:
        Samples of size (700,).

    Raises:
        ValueError: `part` is another; the file is cut short, or not of this set.
        FileNotFoundError, ImportError: as for `shd`.

    Source: Cramer et al., IEEE TNNLS 2022.
    """
    if part not in ("train", "valid", "test"):
        raise ValueError(
            f'`part` is {part!r}; allowed are "train", "valid" and "test".'
        )
    return _spoken("SSC", part, folder, split=part)


def _spoken(name: str, part: str, folder: str | Path, **settings: Any) -> Samples:
    archive = f"{name.lower()}_{part}.h5.zip"
    file = archive.removesuffix(".zip")
    recorded = Recorded(name, "", archive, "base_url", "", file, 1)
    path = recorded.root(folder) / file
    labels, classes, size = _header(path, recorded, folder)
    dataset = opened(recorded, folder, **settings)
    return Samples(
        source=source(recorded),
        read=guarded(lambda i: dataset[i][0], lambda i: f"{path}, sample {i},", size),
        names=[f"{file}#{i}" for i in range(len(labels))],
        all_labels=labels,
        classes=classes,
        size=size,
        folder=recorded.root(folder),
    )


def _header(
    path: Path, recorded: Recorded, folder: str | Path
) -> tuple[np.ndarray, tuple[str, ...], tuple[int, ...]]:
    """Labels, names of classes and the size, from the file itself."""
    sensor = getattr(optional("tonic.datasets", "data"), recorded.name).sensor_size
    if not path.exists():
        what = how_to_get(recorded, folder)
        raise FileNotFoundError(f"there is no {path}.\n{what}")
    remedy = (
        f"It may have been cut short, or not be of {recorded.name}: unpack or download "
        "it again."
    )
    hdf5 = optional("h5py", "data")
    with reading(path, remedy), hdf5.File(path, "r") as file:
        labels = file["labels"][()].astype(np.int64)
        classes = tuple(key.decode() for key in file["extra/keys"][()])
        trains = [file[f"spikes/{field}"] for field in ("times", "units")]
        counts = {len(labels), *map(len, trains)}
    if len(counts) > 1 or not len(labels) or labels.max() >= len(classes):
        raise ValueError(
            f"{path} holds {sorted(counts)} labels, times and units, with labels up to "
            f"{labels.max(initial=0)} of {len(classes)} classes: it is damaged. Unpack "
            "or download it again."
        )
    return labels, classes, sensor[:1]
