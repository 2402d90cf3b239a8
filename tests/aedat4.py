"""Writes AEDAT 4 event files, for tests that read CIFAR10-DVS without its data.

The container of inivation's cameras, uncompressed: a magic line, a header that declares
one stream of events, then packets. Header and packets are FlatBuffers of one table with
one field, a vector; every other field has its default and may be absent.
"""

import struct
from pathlib import Path

import numpy as np

_EVENT = np.dtype([("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("p", "?"), ("", "V3")])
_HEADER_XML = """\
<dv version="2.0"><node name="outInfo" path="/mainloop/Recorder/outInfo/">
<node name="0" path="/mainloop/Recorder/outInfo/0/">
<attr key="compression" type="string">NONE</attr>
<attr key="typeIdentifier" type="string">EVTS</attr>
<node name="info" path="/mainloop/Recorder/outInfo/0/info/">
<attr key="sizeX" type="int">{width}</attr>
<attr key="sizeY" type="int">{height}</attr>
</node></node></node></dv>
"""


def write(path: Path, events: np.ndarray, size: tuple[int, int] = (128, 128)) -> None:
    """Writes structured `events` with fields x, y, t in microseconds and p."""
    xml = _HEADER_XML.format(width=size[0], height=size[1]).encode()
    header = _flatbuffer(b"IOHE", slot=2, count=len(xml), content=xml + b"\0")
    rows = np.zeros(len(events), _EVENT)
    for field in ("t", "x", "y", "p"):
        rows[field] = events[field]
    packet = _flatbuffer(b"EVTS", slot=0, count=len(rows), content=rows.tobytes())
    with path.open("wb") as file:
        file.write(b"#!AER-DAT4.0\r\n" + header)
        file.write(struct.pack("<iI", 0, len(packet)) + packet)


def _flatbuffer(name: bytes, *, slot: int, count: int, content: bytes) -> bytes:
    """A table whose only field, the `slot`-th, refers to a vector of `count` elements.

    Positions count from behind the size, which itself takes 4 bytes; an element of 8
    bytes must be aligned with the size included, and is, as all parts are multiples.
    """
    size_of_vtable = 2 * (3 + slot)
    # its own size, the table's size, then where each slot lies in the table; 0: absent
    vtable = struct.pack(f"<{3 + slot}H", size_of_vtable, 8, *[0] * slot, 4)
    vtable += bytes(-size_of_vtable % 8)
    root = 8 + len(vtable)
    table = struct.pack("<iI", len(vtable), 4)  # back to the vtable, on to the vector
    vector = struct.pack("<I", count) + content
    body = struct.pack("<I", root) + name + vtable + table + vector
    return struct.pack("<I", len(body)) + body
