"""What the event sets share: files found, tonic's reader, and what can be wrong.

tonic reads every format. It does not look for files here: it would download what it
misses, lists files in the order of the disk, and takes any folder for a class.
"""

import dataclasses
import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .._extra import optional
from ._reading import reading, undisturbed


@dataclasses.dataclass(frozen=True)
class Recorded:
    """How a set lies on the disk.

    Args:
        name: of tonic's class, and of the folder that tonic looks in.
        part: the folder below that; "" if there is none.
        archive: the file to download.
        url: attribute of tonic's class that says from where.
        pattern: of a recording's path below `part`.
        layout: the same in words.
        count: recordings of the whole set; fewer are an error.
    """

    name: str
    part: str
    archive: str
    url: str
    pattern: str
    layout: str
    count: int

    def root(self, folder: str | Path) -> Path:
        return Path(folder).expanduser() / self.name / self.part


def find(recorded: Recorded, folder: str | Path, partial: bool) -> list[str]:
    """Paths of all recordings below `recorded.root(folder)`, sorted.

    Raises:
        FileNotFoundError: there are none, or, unless `partial`, too few.
        ValueError: a recording lies where it has no class.
    """
    root = recorded.root(folder)
    suffix = Path(recorded.layout).suffix
    found = sorted(p.relative_to(root).as_posix() for p in root.rglob(f"*{suffix}"))
    for path in found:
        if not re.fullmatch(recorded.pattern, path):
            raise ValueError(
                f"{root / path} is not where a recording of {recorded.name} belongs: "
                f"{root / recorded.layout}. Move it away, or unpack the set again."
            )
    if not found or (len(found) < recorded.count and not partial):
        raise FileNotFoundError(_missing(recorded, folder, len(found)))
    return found


def _missing(recorded: Recorded, folder: str | Path, found: int) -> str:
    root = recorded.root(folder)
    archive = Path(folder).expanduser() / recorded.name / recorded.archive
    if found:
        problem = (
            f"{root} holds {found} recordings; the set has {recorded.count}. Unpack "
            "it again, or take what is there with partial=True"
        )
    elif archive.exists() and not archive.stat().st_size:
        problem = f"{archive} has 0 bytes: delete it, it is not the data set"
    elif archive.exists():
        problem = f"{archive} is there, but not unpacked: {root} holds no recording"
    else:
        problem = f"there is no {recorded.name} in {folder}"
    return f"{problem}.\n{how_to_get(recorded, folder)}"


def how_to_get(recorded: Recorded, folder: str | Path) -> str:
    cls = getattr(optional("tonic.datasets", "data"), recorded.name)
    root = recorded.root(folder)
    return (
        "snnjax never downloads. Where a program is refused, a browser is not: "
        f"download {getattr(cls, recorded.url)} as {recorded.archive} into "
        f"{Path(folder).expanduser() / recorded.name}, unpack it there, and every "
        f"archive in it. Recordings are then {root / recorded.layout}"
    )


def opened(recorded: Recorded, folder: str | Path, **settings: Any) -> Any:
    """tonic's data set, which does not look for files, and so never downloads."""
    cls = getattr(optional("tonic.datasets", "data"), recorded.name)
    offline = type(recorded.name, (cls,), {"_check_exists": lambda self: True})
    return offline(str(folder), **settings)


def source(recorded: Recorded) -> str:
    """What reads the set, and in which version."""
    version = importlib.metadata.version("tonic")
    return f"{recorded.name}/{recorded.part}/{recorded.archive} by tonic {version}"


def guarded(
    read: Callable[[int], np.ndarray],
    file: Callable[[int], str],
    size: tuple[int, ...],
) -> Callable[[int], np.ndarray]:
    """`read`, whose errors name the file, and whose events lie on the sensor."""

    def guarded_read(place: int) -> np.ndarray:
        remedy = "It may have been cut short: unpack or download it again."
        with reading(file(place), remedy):
            events = undisturbed(lambda: read(place))
        _check_events(events, file(place), size)
        return events

    return guarded_read


def _check_events(events: np.ndarray, file: str, size: tuple[int, ...]) -> None:
    if not len(events):
        raise ValueError(f"{file} holds no events: unpack or download it again.")
    lengths = {"y": size[0], "x": size[1], "p": size[2]} if size[1:] else {"x": size[0]}
    for field, length in lengths.items():
        least, most = int(events[field].min()), int(events[field].max())
        if least < 0 or most >= length:
            raise ValueError(
                f"{file} has events with {field} from {least} to {most}; allowed is 0 "
                f"to {length - 1}. It is damaged, or not of this set."
            )
