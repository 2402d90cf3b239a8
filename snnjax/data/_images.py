"""Still images: CIFAR-10's batches of Python pickles, and one folder for each class."""

import importlib.metadata
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from .._extra import optional
from ._reading import reading
from ._samples import Samples, from_arrays

_SUFFIXES = (".jpeg", ".jpg", ".png")


def cifar10(folder: str | Path, *, train: bool = True) -> Samples:
    """CIFAR-10: 50,000 and 10,000 images, uint8 `[32, 32, 3]`, in memory.

    Args:
        folder: the one that holds `cifar-10-batches-py`.
        train: which of the two.

    Raises:
        FileNotFoundError: it is not there; the message says how to get it.
        ValueError: a file is cut short, or is not what it should be.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    root = Path(folder).expanduser() / "cifar-10-batches-py"
    parts = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
    batches = [_batch(root / part) for part in parts]
    pixels, labels = (np.concatenate(a) for a in zip(*batches))
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    names = [n.decode() for n in _unpickled(root / "batches.meta")[b"label_names"]]
    return from_arrays(images, labels, classes=names)


def _batch(file: Path) -> tuple[np.ndarray, np.ndarray]:
    batch = _unpickled(file)
    pixels, labels = (np.asarray(batch.get(k, ())) for k in (b"data", b"labels"))
    whole = pixels.shape == (len(labels), 3072) and pixels.dtype == np.uint8
    if not whole or not len(labels):
        raise ValueError(
            f"{file} holds data {pixels.shape} and {len(labels)} labels; CIFAR-10 has "
            "uint8 rows of 3072, one a label. Unpack the archive again."
        )
    return pixels, labels


class _Plain(pickle.Unpickler):
    """Unpickles arrays and Python's own data, and nothing that could run code."""

    _ALLOWED = {
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        if name == "_reconstruct":  # its old place warns
            return np.empty(0).__reduce__()[0]
        return super().find_class(module, name)


def _unpickled(file: Path) -> dict[bytes, Any]:
    if not file.exists():
        raise FileNotFoundError(
            f"there is no {file}. snnjax never downloads: get "
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz and unpack it in "
            f"{file.parent.parent}, which makes {file.parent}"
        )
    remedy = "It may have been cut short, or is not CIFAR-10: unpack the archive again."
    with reading(file, remedy):
        return dict(_Plain(io.BytesIO(file.read_bytes()), encoding="bytes").load())


def image_folder(folder: str | Path, *, size: int = 224) -> Samples:
    """Images in one folder for each class, as ImageNet's; read one by one by Pillow.

    The shorter side is scaled to 8/7 of `size` (256 for 224), and the middle is cut
    out: uint8 `[size, size, 3]`.

    Args:
        folder: the one that holds the classes' folders; their sorted names are the
            labels. JPEG and PNG files are taken, in sorted order.
        size: pixels along a side.

    Raises:
        FileNotFoundError: no folder in it holds an image.
        ValueError: an image lies in `folder` itself, or, when it is read, is damaged.
        ImportError: the extra `data` is not installed.

    Source: He et al., CVPR 2016, section 3.4, the single crop.
    """
    root = Path(folder).expanduser()
    found = (p for p in root.rglob("*") if p.suffix.lower() in _SUFFIXES)
    names = sorted(p.relative_to(root).as_posix() for p in found)
    if not names:
        raise FileNotFoundError(
            f"{root} holds no {', '.join(_SUFFIXES)}; wanted are {root}/CLASS/*.jpeg, "
            "one folder for each class. Is it the right folder, and unpacked?"
        )
    classes = sorted({name.partition("/")[0] for name in names})
    label_of = {name: label for label, name in enumerate(classes)}
    for name in names:
        if "/" not in name:
            raise ValueError(
                f"{root / name} is in no class's folder: move it into one."
            )
    optional("PIL.Image", "data")  # before its version is asked for
    return Samples(
        source=f"images {size} by pillow {importlib.metadata.version('pillow')}",
        read=lambda i: _image(root / names[i], size),
        names=names,
        all_labels=np.array([label_of[name.partition("/")[0]] for name in names]),
        classes=tuple(classes),
        size=(size, size, 3),
        folder=root,
    )


def _image(file: Path, size: int) -> np.ndarray:
    pillow = optional("PIL.Image", "data")
    remedy = "Download it again, or delete it."
    with reading(file, remedy), pillow.open(file) as image:
        image = image.convert("RGB")
    width, height = image.size
    scale = size * 8 / 7 / min(width, height)
    shape = [max(size, round(n * scale)) for n in (width, height)]
    left, top = ((n - size) // 2 for n in shape)
    box = left, top, left + size, top + size
    return np.asarray(image.resize(shape, pillow.Resampling.BILINEAR).crop(box))
