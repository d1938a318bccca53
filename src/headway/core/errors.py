"""Errors of people, told in one clear line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable

SHOWN_LENGTH_MAX = 60


class UserError(Exception):
    """Bad input by a person; the command exits with 2 and changes nothing.

    ``str(error)`` is one line: ``FILE:LINE: KEY: MESSAGE``, without the parts that are not known.
    ``line`` counts from 1; 0 means unknown.
    """

    def __init__(self, message: str, *, file: str = "", line: int = 0, key: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.key = key

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        if self.line and not self.file:
            place = f"line {self.line}"
        return one_line(": ".join(part for part in (place, self.key, self.message) if part))

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle their positional arguments alone; a worker process must not lose the place.
        state = {"file": self.file, "line": self.line, "key": self.key}
        return (UserError, (self.message,), state)


def one_line(text: str) -> str:
    """Return the text with everything that a terminal could not show on one line written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object) -> str:
    """Return a value as an error message quotes it: strings in double quotes, one line, shortened."""
    if isinstance(value, str):
        text = json.dumps(value[: SHOWN_LENGTH_MAX + 1], ensure_ascii=False)
    elif value is None:
        text = "nothing"
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, int) and value.bit_length() > 256:
        text = f"a number of {value.bit_length()} bits"  # repr() refuses numbers of over 4300 digits
    else:
        text = repr(value)
    text = one_line(text)
    return text if len(text) <= SHOWN_LENGTH_MAX else text[: SHOWN_LENGTH_MAX - 1] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the known word nearest to ``word``, or ``""`` if none is near."""
    by_lower = {name.lower(): name for name in sorted(known, reverse=True)}
    near = difflib.get_close_matches(word[:64].lower(), sorted(by_lower), n=1, cutoff=0.6)
    return f" (did you mean '{by_lower[near[0]]}'?)" if near else ""
