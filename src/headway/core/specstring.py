"""Spec strings: `NAME:key=value,key=value`, and several of them joined by `+`.

Policies, workloads and everything else that a person names with parameters are written so: on the command line, in files, in
the journal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.errors import UserError, did_you_mean, one_line, shown

SPEC_LENGTH_MAX = 4096
PARTS_MAX = 8
PARAMS_MAX = 64

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VALUE = re.compile(r"[^\s=]+")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Part:
    """One name with its parameters, as written: values are text."""

    name: str
    params: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The part in its one canonical form: keys in the order given, no space."""
        if not self.params:
            return self.name
        return f"{self.name}:{','.join(f'{key}={value}' for key, value in self.params.items())}"


def parse_spec(text: str, what: str = "spec") -> tuple[Part, ...]:
    """Return the parts of a spec string; a `UserError` of one line says what is wrong with it.

    `what` is what messages call it ("policy", "workload"). Neither names nor keys are looked up here; values may hold
    anything but `,`, `+`, `=` and space.
    """
    if len(text) > SPEC_LENGTH_MAX:
        raise UserError(f"a {what} of over {SPEC_LENGTH_MAX} characters: {shown(text)}")
    if not text.strip():
        raise UserError(f"expected a {what} NAME[:key=value,…], got {shown(text)}")
    pieces = text.strip().split("+")
    if len(pieces) > PARTS_MAX:
        raise UserError(f"a {what} of over {PARTS_MAX} parts: {shown(text)}")
    return tuple(_part(piece, text, what) for piece in pieces)


def parse_part(text: str, what: str = "spec") -> Part:
    """Return the one part of a spec string that may not be joined with others."""
    parts = parse_spec(text, what)
    if len(parts) > 1:
        raise UserError(f"a {what} has one part, got {shown(text)}")
    return parts[0]


def _part(piece: str, text: str, what: str) -> Part:
    name, colon, rest = piece.partition(":")
    if not _NAME.fullmatch(name):
        raise UserError(f"expected a {what} NAME[:key=value,…], got {shown(text)}")
    params: dict[str, str] = {}
    if not colon:
        return Part(name)
    items = rest.split(",")
    if len(items) > PARAMS_MAX:
        raise UserError(f"over {PARAMS_MAX} parameters", key=name)
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or not value.isprintable():
            raise UserError(f"expected key=value, got {shown(item)}", key=f"{what} {name}")
        if key in params:
            raise UserError("given twice", key=f"{what} {name}: {key}")
        params[key] = value
    return Part(name, params)


def read_params(part: Part, readers: Mapping[str, Callable[[str], Any]], what: str = "spec") -> dict[str, Any]:
    """Return the given parameters, each read by its reader; refuse unknown ones. A reader raises `ValueError` with what it
    expected.
    """
    values: dict[str, Any] = {}
    for key, text in part.params.items():
        place = f"{what} {part.name}: {key}"
        if key not in readers:
            raise UserError(f"unknown parameter{did_you_mean(key, readers) or known(readers)}", key=place)
        try:
            values[key] = readers[key](text)
        except ValueError as error:
            raise UserError(str(error), key=place) from None
    return values


def known(names: Iterable[str]) -> str:
    """`; known: a, b`, or that there is none."""
    listed = ", ".join(sorted(names))
    return f"; known: {listed}" if listed else "; it has none"


def unknown_name(what: str, name: str, names: Iterable[str], also: str = "") -> UserError:
    """The error for a name that nobody has: with the nearest known one, or with all."""
    listed = sorted(names)
    hint = did_you_mean(name, listed) or f"; known: {', '.join([*listed, *([also] if also else [])])}"
    return UserError(f"unknown {what} '{one_line(name[:60])}'{hint}")


def one_of(*choices: str) -> Callable[[str], str]:
    """A reader of one word out of some."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected {' or '.join(choices)}, got {shown(text)}{did_you_mean(text, choices)}")
        return text

    return read


def flag(text: str) -> bool:
    """A reader of `true` or `false`."""
    return one_of("true", "false")(text) == "true"
