"""Protobuf's wire format, read only: shorter than a dependency on protobuf."""

from collections.abc import Iterator
from typing import Any

Fields = dict[int, list[Any]]


def message(data: bytes) -> Fields:
    """Fields of a message: integers or bytes by field number.

    Raises:
        IndexError: `data` ends within a field.
    """
    fields: Fields = {}
    for number, value in _fields(data):
        fields.setdefault(number, []).append(value)
    return fields


def first(fields: Fields, number: int) -> int:
    """The number in a field; protobuf leaves out zeros."""
    return fields.get(number, [0])[0]


def numbers(fields: Fields, number: int) -> list[int]:
    """Repeated integers, packed into bytes or one by one."""
    found = []
    for value in fields.get(number, []):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            item, at = _varint(value, at)
            found.append(item)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = data[at : at + size], at + size
        if at > len(data):
            raise IndexError(f"field {key >> 3} ends {at - len(data)} bytes too late")
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return value, at
