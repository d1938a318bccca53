"""Frozen dataclasses as JSON values, and back.

A field is text, a number, a truth value, another dataclass, a list of one of them, or names with values (``env``, an object in
JSON); ``X | None`` may be null.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from typing import Any, TypeVar, cast

from .errors import UserError, did_you_mean, shown

T = TypeVar("T")
FLOAT_MAX = 2**62
_Load = Callable[[Any, str], Any]
"""Turns JSON values into a value of a field's type, or raises UserError naming the key, which is handed in beside it."""


@cache
def _fields(kind: type) -> dict[str, tuple[_Load, Any]]:
    """Return how each field's value is read from JSON, and its default."""
    hints = typing.get_type_hints(kind)
    return {field.name: (_reader(hints[field.name]), field.default) for field in fields(kind)}


def dump(value: Any, compact: bool) -> Any:
    """Return a dataclass, with those within it, as JSON values; ``compact`` leaves out what equals its default."""
    if isinstance(value, tuple):
        return [dump(item, compact) for item in value]
    kind: type = type(value)
    if not is_dataclass(kind):
        return value
    found: dict[str, Any] = {}
    for name, (_, default) in _fields(kind).items():
        item = getattr(value, name)
        if not (compact and (item is default or item == default)):
            found[name] = dict(item) if name == "env" else dump(item, compact)
    return found


@cache
def _reader(kind: Any) -> _Load:
    """Return what reads values of a type. It is made once for each: a batch of jobs has ten thousand of them."""
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is types.UnionType:
        there = _reader(inner[0])
        return lambda value, key: None if value is None else there(value, key)
    if typing.get_origin(kind) is tuple:
        return _load_env if typing.get_origin(inner[0]) is tuple else partial(_load_list, _reader(inner[0]))
    return partial(load if is_dataclass(kind) else _load_float if kind is float else _load_plain, kind)


def _load_plain(kind: Any, value: Any, key: str) -> Any:
    if type(value) is not kind or (kind is int and value.bit_length() > 63):
        expected = {str: "text", int: "a whole number", bool: "true or false"}[kind]
        raise UserError(f"expected {expected}, got {shown(value)}", key=key)
    return value


def _load_float(_: type, value: Any, key: str) -> float:
    if type(value) in (int, float) and -FLOAT_MAX <= value <= FLOAT_MAX:
        return float(value)
    raise UserError(f"expected a number, got {shown(value)}", key=key)


def _load_list(item: _Load, value: Any, key: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise UserError(f"expected a list, got {shown(value)}", key=key)
    return tuple(item(element, f"{key}[{i}]") for i, element in enumerate(value))


def _load_env(value: Any, key: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise UserError(f"expected names and values, got {shown(value)}", key=key)
    return tuple((_load_plain(str, k, key), _load_plain(str, v, f"{key}.{k}")) for k, v in value.items())


def load(kind: type[T], value: Any, key: str) -> T:
    """Return the dataclass of JSON values; UserError with the key, within ``key``, for an unknown one or a wrong type."""
    if not isinstance(value, Mapping):
        raise UserError(f"expected an object, got {shown(value)}", key=key)
    known, before = _fields(cast(type, kind)), f"{key}." if key else ""
    for name in value:
        if name not in known:
            raise UserError(f"unknown key{did_you_mean(str(name), known)}", key=f"{before}{name}")
    for name, (_, default) in known.items():
        if default is MISSING and name not in value:
            raise UserError("expected a value, got nothing", key=before + name)
    return kind(**{name: known[name][0](item, before + name) for name, item in value.items()})
