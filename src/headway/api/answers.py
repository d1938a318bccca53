"""Answers as JSON that is always valid: a number that is not finite is null, times are ISO 8601 in UTC."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from fastapi import Response

JSON = "application/json"
_HOW = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def dumps(value: Any) -> bytes:
    """A value as JSON in UTF-8. Text that is no Unicode, as a lone surrogate, is written with replacement characters."""
    try:
        return orjson.dumps(value, option=_HOW)
    except TypeError:
        return orjson.dumps(_mended(value), option=_HOW)


def answer(value: Any, status: int = 200) -> Response:
    """A value as an answer, without a second look at its shape: for lists of thousands of jobs."""
    return Response(dumps(value), status, media_type=JSON)


def _mended(value: Any) -> Any:
    """The same with all text in Unicode, and whole numbers that no 64 bits hold as floating-point ones."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bool) or value is None or isinstance(value, datetime | orjson.Fragment | float):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else _as_float(value)
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item) for item in value]
    return str(value)


def _as_float(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None
