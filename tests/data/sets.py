"""Miniature sets in their true formats, with the events that they hold."""

import pickle
import struct
from pathlib import Path

import aedat4
import h5py
import numpy as np

EVENT = [("t", "i8"), ("x", "i2"), ("y", "i2"), ("p", "i1")]
CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def events(seed: int, side: int = 128, count: int = 60, span: int = 90_000):
    """Random events, sorted by time, the first at 0."""
    rng = np.random.default_rng(seed)
    made = np.zeros(count, EVENT)
    made["x"], made["y"] = rng.integers(0, side, (2, count))
    made["t"] = np.sort(rng.integers(0, span, count)) // 1000 * 1000
    made["t"] -= made["t"][0]
    made["p"] = rng.integers(0, 2, count)
    return made


def cifar10_dvs(folder: Path, per_class: int = 2) -> Path:
    for label, name in enumerate(CIFAR10):
        (folder / "CIFAR10DVS" / name).mkdir(parents=True)
        for i in reversed(range(per_class)):
            file = folder / "CIFAR10DVS" / name / f"cifar10_{name}_{i}.aedat4"
            aedat4.write(file, events(100 * label + i))
    return folder


def dvs_gesture(folder: Path) -> Path:
    """Two users; label n of user u holds events(100 * u + n), in milliseconds."""
    for user in (2, 1):
        below = folder / "DVSGesture" / "ibmGestureTrain" / f"user0{user}_led"
        below.mkdir(parents=True)
        for label in (10, 0, 3):
            one = events(100 * user + label)
            rows = [one["x"], one["y"], one["p"], one["t"] // 1000]
            np.save(below / f"{label}.npy", np.stack(rows, 1).astype(float))
    return folder


def n_mnist(folder: Path, part: str = "Train") -> Path:
    for label in range(10):
        below = folder / "NMNIST" / part / str(label)
        below.mkdir(parents=True)
        for i in range(2):
            (below / f"{i:05}.bin").write_bytes(_atis(events(100 * label + i, 34)))
    return folder


def _atis(one: np.ndarray) -> bytes:
    """x, y, then one bit of polarity and 23 of time, in 5 bytes."""
    last = (one["p"].astype(int) << 23) | one["t"]
    rows = zip(one["x"].tolist(), one["y"].tolist(), last.tolist())
    return b"".join(struct.pack(">BB", x, y) + n.to_bytes(3, "big") for x, y, n in rows)


def spoken(folder: Path, name: str, part: str, classes: int, samples: int = 6) -> Path:
    """Sample i holds events(i, side=700), with label i modulo the classes."""
    path = folder / name / f"{name.lower()}_{part}.h5"
    path.parent.mkdir(parents=True)
    some = [events(i, 700, count=30 + i) for i in range(samples)]
    with h5py.File(path, "w") as file:
        times = [(one["t"] / 1e6).astype("f4") for one in some]
        for key, rows, dtype in (
            ("spikes/times", times, "f4"),
            ("spikes/units", [one["x"].astype("u2") for one in some], "u2"),
        ):
            data = file.create_dataset(key, (samples,), h5py.vlen_dtype(dtype))
            for i, row in enumerate(rows):
                data[i] = row
        file["labels"] = np.arange(samples, dtype="u2") % classes
        file["extra/keys"] = [f"word {i}".encode() for i in range(classes)]
        file["extra/speaker"] = np.zeros(samples, "u2")
    return folder


class _Python2(pickle._Pickler):  # as CIFAR-10 was written: bytes are its strings
    dispatch = dict(pickle._Pickler.dispatch)

    def save_bytes(self, text: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(text)) + text)
        self.memoize(text)

    dispatch[bytes] = save_bytes


def cifar10_pickle(file: Path, content: dict[bytes, object]) -> None:
    with file.open("wb") as out:
        _Python2(out, protocol=2).dump(content)
    text = file.read_bytes().replace(
        b"numpy._core.multiarray", b"numpy.core.multiarray"
    )
    file.write_bytes(text)


def cifar10(folder: Path) -> Path:
    root = folder / "cifar-10-batches-py"
    root.mkdir()
    for i, part in enumerate(["test_batch", *(f"data_batch_{i}" for i in range(1, 6))]):
        rows = np.random.default_rng(i).integers(0, 256, (4, 3072), np.uint8)
        content = {b"data": rows, b"labels": [(i + k) % 10 for k in range(4)]}
        cifar10_pickle(root / part, content)
    names = {b"label_names": [name.encode() for name in CIFAR10]}
    cifar10_pickle(root / "batches.meta", names)
    return folder
