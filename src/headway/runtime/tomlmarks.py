"""TOML that remembers on which line each key stands, so that an error names file, line and key.

`tomllib` reads the values and refuses what is no TOML; a small scanner, which may trust that it is, finds the lines.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from headway.core.errors import UserError, did_you_mean, shown

Path = tuple[str, ...]
Parser = Callable[[Any], Any]
"""Makes a value of what TOML gives; `ValueError` or `UserError` with what it expected."""

_KEY = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[A-Za-z0-9_-]+')
_BLANK = re.compile(r"[ \t]*")
_VOID = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"""(?:""|")?|\'\'\'.*?\'\'\'(?:\'\'|\')?|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)
_ATOM = re.compile(r"[^\s,\]}#][^,\]}#\n]*")
_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class Marks:
    """The values of one file, and where each key stands."""

    def __init__(self, text: str, file: str) -> None:
        """Read a text. `UserError` if it is no TOML."""
        self.file = file
        try:
            self.root: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = _PLACE.search(str(error))
            line = int(found[1]) if found and found[1] else text.count("\n") + 1
            raise UserError(f"not valid TOML: {_PLACE.sub('', str(error))}", file=file, line=line) from None
        except (ValueError, RecursionError):
            raise UserError("not valid TOML: a number too long, or nested too deep", file=file) from None
        self._lines = lines_of(text)

    def line(self, path: Path) -> int:
        """The line of a key, or of the nearest table around it; 0 if there is none."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 0)

    def fail(self, message: str, path: Path) -> NoReturn:
        raise UserError(message, file=self.file, line=self.line(path), key=_dotted(path))

    def table(self, path: Path) -> dict[str, Any]:
        """A table of the file; empty where there is none."""
        value: Any = self.root
        for i, part in enumerate(path):
            value = value.get(part, {})
            if not isinstance(value, dict):
                self.fail(f"expected a table [{_dotted(path[: i + 1])}], got {kind(value)}", path[: i + 1])
        found: dict[str, Any] = value
        return found

    def section(self, path: Path, parsers: Mapping[str, Parser]) -> dict[str, Any]:
        """The values of the known keys that a table gives; unknown ones are refused."""
        values: dict[str, Any] = {}
        for name, value in self.table(path).items():
            here = (*path, name)
            if name not in parsers:
                hint = did_you_mean(name, parsers) or f"; known: {', '.join(parsers)}"
                self.fail(f"unknown key{hint}", here)
            values[name] = self.read(here, value, parsers[name])
        return values

    def read(self, path: Path, value: Any, parse: Parser) -> Any:
        """One value by its parser, whose refusal is told with its place."""
        try:
            return parse(value)
        except ValueError as error:
            self.fail(str(error), path)
        except UserError as error:
            self.fail(error.message, path)


def kind(value: Any) -> str:
    """A value as an error message shows it."""
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else shown(value)


def _dotted(path: Path) -> str:
    return ".".join(part if re.fullmatch(r"[\w*-]+", part) else shown(part) for part in path)


def lines_of(text: str) -> dict[Path, int]:
    """The line, from 1, of each key and table header of a valid TOML text, by its path. Keys in lists have none."""
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    """Walks through a valid text once."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._line, self._counted = 1, 0
        self._lines: dict[Path, int] = {}

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip(_VOID) or self._at < len(self._text):
            if self._text[self._at : self._at + 1] == "[":
                self._at += 2 if self._text.startswith("[[", self._at) else 1
                line = self._here()
                table = self._key()
                self._note(table, line)
                self._at = self._text.index("]", self._at) + 1
                self._at += self._text.startswith("]", self._at)
            elif self._at < len(self._text):
                self._pair(table)
            else:
                break
        return self._lines

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self._text, self._at)
        if found is None or found.end() == self._at:
            return False
        self._at = found.end()
        return True

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _note(self, path: Path, line: int) -> None:
        for end in range(1, len(path) + 1):
            self._lines.setdefault(path[:end], line)

    def _key(self) -> Path:
        parts = []
        while True:
            self._skip(_BLANK)
            found = _KEY.match(self._text, self._at)
            assert found is not None, "a key in valid TOML"
            parts.append(next(iter(tomllib.loads(f"{found[0]} = 0"))))
            self._at = found.end()
            self._skip(_BLANK)
            if not self._text.startswith(".", self._at):
                return tuple(parts)
            self._at += 1

    def _pair(self, above: Path) -> None:
        line = self._here()
        path = above + self._key()
        self._note(path, line)
        self._at += 1  # the equals sign
        self._skip(_BLANK)
        self._value(path)

    def _value(self, path: Path | None) -> None:
        """Pass over a value; `path` is None within a list."""
        first = self._text[self._at]
        if first not in "[{":
            assert self._skip(_STRING) or self._skip(_ATOM), "a value in valid TOML"
            return
        self._at += 1
        while True:
            self._skip(_VOID)
            if self._text[self._at] in "]}":
                self._at += 1
                return
            if self._text[self._at] == ",":
                self._at += 1
            elif first == "[":
                self._value(None)
            elif path is not None:
                self._pair(path)
            else:
                self._key()
                self._at += 1
                self._skip(_BLANK)
                self._value(None)
