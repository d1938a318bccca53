"""TensorBoard's event files, without TensorBoard: the framing of records, their checksums, and the few fields that hold scalars.

A record is `length (u64) · checksum of the length (u32) · data · checksum of the data (u32)`, little-endian; a checksum is
CRC-32C, rotated and shifted (TensorFlow's `core/lib/hash/crc32c.h`). The data is a protocol-buffer `Event`: 1 wall time,
2 step, 5 summary; a summary's `value`s (1) have 1 tag, 2 simple value, 8 tensor (1 dtype, 4 content, 5 floats, 6 doubles).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

HEADER_BYTES = 12
FOOTER_BYTES = 4
RECORD_BYTES_MAX = 1 << 16
"""Scalars are small: a larger record (an image, a graph) is passed by unread."""
_MASK = 0xA282EAD8


def _table() -> tuple[int, ...]:
    out = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        out.append(byte)
    return tuple(out)


_TABLE = _table()


def masked_crc(data: bytes) -> int:
    """The checksum that stands beside data."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


class Scalar(NamedTuple):
    """One number that was logged."""

    tag: str
    step: int
    value: float


class NoEventFile(ValueError):
    """What has been read is no event file, or is damaged beyond reading on."""


class Records:
    """Cuts a growing event file into records; what is not whole yet waits for its rest."""

    def __init__(self) -> None:
        self._data = b""
        self._pass_bytes = 0
        """Of a large record, still to come."""

    def feed(self, data: bytes) -> list[bytes]:
        """The records that are whole now and sound. One whose data is damaged is left out.

        Raises:
            NoEventFile: the length of a record is damaged: where the next one begins can't be told.
        """
        if self._pass_bytes:
            passed = min(self._pass_bytes, len(data))
            self._pass_bytes -= passed
            data = data[passed:]
        data, at, found = self._data + data, 0, []
        while len(data) - at >= HEADER_BYTES:
            length, check = struct.unpack_from("<QI", data, at)
            if masked_crc(data[at : at + 8]) != check:
                raise NoEventFile("a record's length is damaged")
            end = at + HEADER_BYTES + length + FOOTER_BYTES
            if length > RECORD_BYTES_MAX:
                self._pass_bytes = max(end - len(data), 0)
                at = min(end, len(data))
                continue
            if end > len(data):
                break
            record = data[at + HEADER_BYTES : at + HEADER_BYTES + length]
            if struct.unpack_from("<I", data, end - FOOTER_BYTES)[0] == masked_crc(record):
                found.append(record)
            at = end
        self._data = data[at:]
        return found


def scalars(record: bytes) -> list[Scalar]:
    """The numbers of one record; none, if it can't be read."""
    step, values = 0, []
    try:
        for field, value in _fields(record):
            if field == 2 and isinstance(value, int):
                step = value - (1 << 64) if value >> 63 else value
            elif field == 5 and isinstance(value, bytes):
                values += [each for number, each in _fields(value) if number == 1 and isinstance(each, bytes)]
        found = []
        for each in values:
            tag, number = _value(each)
            if number is not None:
                found.append(Scalar(tag, step, number))
    except (ValueError, IndexError, struct.error):
        return []
    return found


def _value(data: bytes) -> tuple[str, float | None]:
    tag, number = "", None
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif field == 2 and isinstance(value, float):
            number = value
        elif field == 8 and isinstance(value, bytes):
            number = _tensor(value)
    return tag, number


def _tensor(data: bytes) -> float | None:
    """The number in a tensor that holds one."""
    dtype, content, numbers = 0, b"", []
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            dtype = value
        elif field == 4 and isinstance(value, bytes):
            content = value
        elif field in (5, 6):
            form = "f" if field == 5 else "d"
            if isinstance(value, bytes):
                numbers += [each for (each,) in struct.iter_unpack("<" + form, value)]
            elif isinstance(value, float):
                numbers.append(value)
    form = {1: "<f", 2: "<d"}.get(dtype, "")
    if form and len(content) == struct.calcsize(form):
        numbers += struct.unpack(form, content)
    return float(numbers[0]) if len(numbers) == 1 and form else None


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The fields of a protocol-buffer message: numbers, float and double, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("a field goes beyond the message")
            yield key >> 3, data[at : at + size]
            at += size
        elif wire in (1, 5):
            form = "<d" if wire == 1 else "<f"
            yield key >> 3, struct.unpack_from(form, data, at)[0]
            at += 8 if wire == 1 else 4
        else:
            raise ValueError("no field of this kind")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number that does not end")
