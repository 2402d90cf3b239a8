"""Every set, read by tonic from a miniature in its true format; and what is wrong."""

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sets
from PIL import Image

from snnjax import data

LAST = {  # the set, a recording of it, and a function that opens it
    "CIFAR10DVS": ("dog/cifar10_dog_0.aedat4", data.cifar10_dvs),
    "DVSGesture": ("ibmGestureTrain/user01_led/3.npy", data.dvs_gesture),
    "NMNIST": ("Train/4/00001.bin", data.n_mnist),
}
WRITE = {
    "CIFAR10DVS": sets.cifar10_dvs,
    "DVSGesture": sets.dvs_gesture,
    "NMNIST": sets.n_mnist,
}
every_set = pytest.mark.parametrize("name", WRITE)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("went to the network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("urllib.request.urlopen", refuse)


def same(read, wanted, fields="txyp"):
    assert len(read) == len(wanted)
    for field in fields:
        np.testing.assert_array_equal(read[field].astype(int), wanted[field])


def test_cifar10_dvs(tmp_path):
    samples = data.cifar10_dvs(sets.cifar10_dvs(tmp_path), partial=True)
    assert samples.labels.tolist() == [i // 2 for i in range(20)]
    assert samples.classes == sets.CIFAR10 and samples.size == (128, 128, 2)
    assert samples.names[3] == "automobile/cifar10_automobile_1.aedat4"
    for i in range(20):
        same(samples[i], sets.events(100 * (i // 2) + i % 2))


def test_dvs_gesture(tmp_path):
    samples = data.dvs_gesture(sets.dvs_gesture(tmp_path), partial=True)
    assert samples.names[0] == "user01_led/0.npy"
    assert samples.labels.tolist() == [0, 10, 3] * 2
    assert len(samples.classes) == 11 and samples.size == (128, 128, 2)
    for i, label in enumerate([0, 10, 3] * 2):
        same(samples[i], sets.events(100 * (1 + i // 3) + label))


def test_n_mnist(tmp_path):
    folder = sets.n_mnist(sets.n_mnist(tmp_path), "Test")
    for train in (True, False):
        samples = data.n_mnist(folder, train=train, partial=True)
        assert samples.labels.tolist() == [i // 2 for i in range(20)]
        assert samples.size == (34, 34, 2)
        same(samples[7], sets.events(301, 34))


@pytest.mark.parametrize(
    "name, part, classes, make",
    [
        ("SHD", "train", 20, data.shd),
        ("SHD", "test", 20, lambda folder: data.shd(folder, train=False)),
        ("SSC", "valid", 35, lambda folder: data.ssc(folder, part="valid")),
    ],
)
def test_spoken_words(tmp_path, name, part, classes, make):
    samples = make(sets.spoken(tmp_path, name, part, classes))
    assert samples.labels.tolist() == [0, 1, 2, 3, 4, 5] and samples.size == (700,)
    assert samples.classes[2] == "word 2" and len(samples.classes) == classes
    for i in range(6):
        wanted = sets.events(i, 700, count=30 + i)
        same(samples[i], wanted, "x")
        assert np.abs(samples[i]["t"] - wanted["t"]).max() <= 1  # float32 seconds


def test_cifar10(tmp_path):
    folder = sets.cifar10(tmp_path)
    train, test = data.cifar10(folder), data.cifar10(folder, train=False)
    assert len(train) == 20 and len(test) == 4 and train.classes == sets.CIFAR10
    assert train.labels[4:8].tolist() == [2, 3, 4, 5]  # the second batch's
    row = np.random.default_rng(2).integers(0, 256, (4, 3072), np.uint8)[1]
    image = train[5]
    assert image.shape == (32, 32, 3) and image.dtype == np.uint8
    for channel, y, x in ((0, 0, 1), (2, 31, 7)):
        assert image[y, x, channel] == row[1024 * channel + 32 * y + x]


def test_image_folder(tmp_path):
    for name, red in (("n02", 200), ("n01", 100)):
        (tmp_path / name).mkdir()
        picture = np.zeros((40, 64, 3), np.uint8)
        picture[:, 20:44] = red, 0, 0
        Image.fromarray(picture).save(tmp_path / name / "b.png")
        Image.fromarray(picture[..., 0]).save(tmp_path / name / "a.JPEG")
    samples = data.image_folder(tmp_path, size=28)
    assert samples.names == ["n01/a.JPEG", "n01/b.png", "n02/a.JPEG", "n02/b.png"]
    assert samples.labels.tolist() == [0, 0, 1, 1] and samples.classes == ("n01", "n02")
    image = samples[3]
    assert image.shape == (28, 28, 3) and image.dtype == np.uint8
    # 40x64 becomes 32x51; of it the middle, in which 24/64 of the width is red
    assert image[14, 14].tolist() == [200, 0, 0] and not image[:, :3].any()
    assert abs((image[14, :, 0] > 100).sum() - 24 * 51 / 64) <= 1
    assert samples[0].shape == (28, 28, 3)  # grey, and a JPEG


# --- what is wrong --------------------------------------------------------------------


@every_set
def test_without_the_set_the_message_says_how_to_get_it(tmp_path, name):
    _, make = LAST[name]
    with pytest.raises(FileNotFoundError, match=f"there is no {name} in") as error:
        make(tmp_path / "nowhere")
    assert "https://" in str(error.value) and str(tmp_path) in str(error.value)
    (tmp_path / name).mkdir()
    with pytest.raises(FileNotFoundError, match="never downloads"):
        make(tmp_path)


@every_set
def test_an_archive_that_is_empty_or_not_unpacked_is_named(tmp_path, name):
    archive = {"CIFAR10DVS": "CIFAR10DVS.zip", "DVSGesture": "ibmGestureTrain.tar.gz"}
    file = tmp_path / name / archive.get(name, "train.zip")
    file.parent.mkdir()
    file.touch()
    with pytest.raises(FileNotFoundError, match=f"{file.name} has 0 bytes"):
        LAST[name][1](tmp_path)
    file.write_bytes(b"PK")
    with pytest.raises(FileNotFoundError, match="not unpacked"):
        LAST[name][1](tmp_path)


@every_set
def test_a_part_of_the_set_must_be_asked_for(tmp_path, name):
    WRITE[name](tmp_path)
    with pytest.raises(FileNotFoundError, match=r"recordings; the set.*partial=True"):
        LAST[name][1](tmp_path)


@every_set
def test_a_folder_that_is_no_class_is_named(tmp_path, name):
    file, make = LAST[name]
    file = WRITE[name](tmp_path) / name / file
    stray = file.parent.parent / "thing7" / file.name  # tonic's N-MNIST: class 7
    stray.parent.mkdir()
    shutil.copy(file, stray)
    with pytest.raises(ValueError, match="thing7.*is not where a recording"):
        make(tmp_path, partial=True)


@every_set
@pytest.mark.parametrize("left", [0, 3, 153, -1, -99])
def test_a_recording_cut_short_is_named(tmp_path, name, left):
    file, make = LAST[name]
    file = WRITE[name](tmp_path) / name / file
    file.write_bytes(file.read_bytes()[:left])
    samples = make(tmp_path, partial=True)
    (i,) = [i for i, n in enumerate(samples.names) if str(file).endswith(n)]
    with pytest.raises(ValueError, match=f"{file.name} .*download it again"):
        samples[i]


def test_events_beside_the_sensor_are_an_error(tmp_path):
    folder = sets.n_mnist(tmp_path)
    (folder / "NMNIST/Train/0/00000.bin").write_bytes(bytes([40, 3, 0, 0, 1]))
    with pytest.raises(ValueError, match=r"00000.bin has events with x from 40 to 40"):
        data.n_mnist(folder, partial=True)[0]


def test_spoken_words_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"(?s)no .*shd_train.h5.* as shd_train.h5.zip"
    ):
        data.shd(tmp_path)
    file = sets.spoken(tmp_path, "SHD", "train", 20) / "SHD" / "shd_train.h5"
    whole = file.read_bytes()
    for broken in (b"", whole[: len(whole) // 2], b"not HDF5 at all"):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match="shd_train.h5 cannot be read"):
            data.shd(tmp_path)
    file.unlink()
    file.parent.rmdir()
    sets.spoken(tmp_path, "SHD", "train", 3)
    with sets.h5py.File(file, "a") as content:
        content["labels"][0] = 3
    with pytest.raises(ValueError, match="labels up to 3 of 3 classes: it is damaged"):
        data.shd(tmp_path)
    with pytest.raises(ValueError, match="`part` is 'all'"):
        data.ssc(tmp_path, part="all")


class Evil:
    def __reduce__(self):
        return print, ("ran",)


def test_pickles_run_nothing_and_damaged_ones_are_named(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="data_batch_1.*never downloads"):
        data.cifar10(tmp_path)
    file = sets.cifar10(tmp_path) / "cifar-10-batches-py" / "data_batch_3"
    whole = file.read_bytes()
    for broken, words in (
        (b"", "cannot be read"),
        (whole[:-50], "cannot be read"),
        (pickle.dumps({b"data": Evil()}), "it asks for .*print"),
        (pickle.dumps({b"data": 3, b"labels": [1]}), "CIFAR-10 has uint8 rows"),
    ):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match=f"data_batch_3.*{words}"):
            data.cifar10(tmp_path)
    assert not capsys.readouterr().out


def test_images_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match="one folder for each class"):
        data.image_folder(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"1.png cannot be read"):
        data.image_folder(tmp_path)[0]
    (tmp_path / "2.png").touch()
    with pytest.raises(ValueError, match=r"2.png is in no class's folder"):
        data.image_folder(tmp_path)


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["tonic", "tonic.datasets", "aedat", "grain", "PIL"]))
from snnjax import data
import numpy as np
samples = data.from_arrays(np.zeros((4, 2, 2, 1)), np.arange(4))
for use in (
    lambda: data.cifar10_dvs("."), lambda: data.n_mnist("."), lambda: data.shd("."),
    lambda: data.batches(samples, data.Columns(), 2),
):
    try:
        use()
    except ImportError as error:
        assert 'pip install "snnjax[data]"' in str(error), error
    else:
        raise AssertionError("no error")
print("said so")
"""


def test_without_the_extra_it_imports_and_says_what_is_missing():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "said so\n", done.stderr
