"""Files that commands write: whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.core.errors import UserError


@contextmanager
def whole_or_nothing(path: Path, key: str = "") -> Iterator[Path]:
    """The path to write to; what was written there takes its name when all went well, and is removed otherwise."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror or error}", file=str(path), key=key) from None
    finally:
        partial.unlink(missing_ok=True)


def check_output(path: Path, *, replace: bool, key: str = "") -> None:
    """Raise `UserError` where a file cannot be written: before anything long is begun. One that is there is replaced only if
    `replace` says so.
    """
    try:
        if path.is_dir():
            raise UserError("cannot be written: it is a folder", file=str(path), key=key)
        if not path.parent.is_dir():
            raise UserError("cannot be written: no such folder", file=str(path), key=key)
        if path.exists() and not replace:
            raise UserError("is there already; --force replaces it", file=str(path), key=key)
    except OSError as error:  # a name too long for a file
        raise UserError(f"cannot be written: {error.strerror or error}", file=str(path), key=key) from None
