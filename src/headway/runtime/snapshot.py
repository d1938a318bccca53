"""Values as bytes: what replay has folded, in a form that gives back the very same values. No pickle: reading runs no code.

A snapshot is a header line `headway-snapshot SHA256`, and zlib-compressed: the length of a JSON document in a line, the
document, and the bytes of its arrays one after the other. In the document numbers, strings, booleans, null and lists stand
for themselves; what JSON has no form for is an object with one key: `d` a dict by its items (keys may be numbers), `t` a
tuple, `a` an array, `n` a NumPy scalar and `f` a float that is not finite: its type and shape. The same values give the same
bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from typing import Any

import numpy as np

MAGIC = b"headway-snapshot"
DTYPES = frozenset({"<i8", "<i4", "<i2", "<u8", "<u4", "<f8", "<f4", "|b1", "|u1", "|i1"})


class DamagedSnapshotError(Exception):
    """A snapshot that is cut short or altered, or of another form."""


class NoPlainValueError(TypeError):
    """A value that a snapshot has no form for."""


def pack(value: Any) -> bytes:
    """A value as bytes.

    Raises:
        NoPlainValueError: something in it is no number, string, boolean, None, list, tuple, dict or NumPy array.
    """
    parts: list[bytes] = []
    document = json.dumps(_plain(value, parts), ensure_ascii=False, separators=(",", ":")).encode()
    body = zlib.compress(b"".join([b"%d\n" % len(document), document, *parts]), 1)
    return b" ".join((MAGIC, hashlib.sha256(body).hexdigest().encode())) + b"\n" + body


def unpack(content: bytes) -> Any:
    """The value.

    Raises:
        DamagedSnapshotError: the bytes are not those that `pack` gave.
    """
    header, _, body = content.partition(b"\n")
    if header != MAGIC + b" " + hashlib.sha256(body).hexdigest().encode():
        raise DamagedSnapshotError("it is cut short or altered")
    plain = zlib.decompress(body)
    size, _, rest = plain.partition(b"\n")
    return _Reader(memoryview(rest)[int(size) :]).value(json.loads(rest[: int(size)]))


def _plain(value: Any, parts: list[bytes]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is float:
        parts.append(np.float64(value).tobytes())
        return {"f": ["<f8", []]}
    if kind is list:
        return [_plain(each, parts) for each in value]
    if kind is tuple:
        return {"t": [_plain(each, parts) for each in value]}
    if kind is dict:
        return {"d": [[_plain(key, parts), _plain(each, parts)] for key, each in value.items()]}
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(value)
        name = array.dtype.newbyteorder("<").str
        if name not in DTYPES:
            raise NoPlainValueError(f"an array of {array.dtype}")
        parts.append(array.astype(name, copy=False).tobytes())
        return {"a" if isinstance(value, np.ndarray) else "n": [name, list(np.shape(value))]}
    raise NoPlainValueError(f"a value of type {kind.__name__}")


class _Reader:
    """Takes arrays from the bytes in the order in which they were put there."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def value(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self.value(each) for each in plain]
        if not isinstance(plain, dict):
            return plain
        ((kind, found),) = plain.items()
        if kind == "t":
            return tuple(self.value(each) for each in found)
        if kind == "d":
            return {self.value(key): self.value(each) for key, each in found}
        name, shape = found
        dtype = np.dtype(name)
        count = math.prod(shape)
        array = np.frombuffer(self.data, dtype, count, self.at).reshape(shape).copy()
        self.at += count * dtype.itemsize
        if kind == "f":
            return float(array[()])
        return array if kind == "a" else array[()]
