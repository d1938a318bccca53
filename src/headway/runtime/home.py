"""A home: the directory that holds everything one controller keeps, and how others find that controller.

HOME/journal.db        the journal
HOME/lock              locked while a controller runs on this home
HOME/token             the bearer token of the API (mode 0600)
HOME/controller.json   where the running controller listens; removed at a clean stop
HOME/engine/           the local engine's own directory: attempts, results, logs
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import UserError

DEFAULT_HOME = "~/.local/share/headway"
TOKEN_BYTES = 24
FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of one home. Nothing is made before `prepare`."""

    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "journal.db"

    @property
    def token_file(self) -> Path:
        return self.root / "token"

    @property
    def address_file(self) -> Path:
        return self.root / "controller.json"

    @property
    def engine_dir(self) -> Path:
        return self.root / "engine"

    def prepare(self) -> None:
        """Make the directory, for its owner alone. `UserError` if it can't be."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"can't be made: {error.strerror or error}", file=str(self.root), key="HEADWAY_HOME") from None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the one controller of this home. `UserError` if there is one already.

        The kernel drops the lock with the process that holds it, however that ends; the tasks that a controller starts
        don't inherit it.
        """
        path = self.root / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(f"can't be opened: {error.strerror or error}", file=str(path)) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                at = self.address().get("url", "")
                where = f" (it listens on {at})" if at else ""
                raise UserError(f"another controller runs on the home {self.root}{where}") from None
            yield
        finally:
            os.close(descriptor)

    def token(self) -> str:
        """The API's bearer token; made at random the first time."""
        if found := self.read_token():
            return found
        token = secrets.token_urlsafe(TOKEN_BYTES)
        _write(self.token_file, token + "\n")
        return token

    def read_token(self) -> str:
        """The token, or nothing where there is none."""
        try:
            return self.token_file.read_text("utf-8").strip()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"can't be read: {error}", file=str(self.token_file)) from None

    def publish(self, address: Mapping[str, Any]) -> None:
        """Say where the controller listens: the file appears whole."""
        _write(self.address_file, json.dumps(dict(address)) + "\n")

    def retract(self) -> None:
        """The controller listens no more."""
        self.address_file.unlink(missing_ok=True)

    def address(self) -> dict[str, Any]:
        """What the last controller has published; empty if it has stopped cleanly or there was none."""
        try:
            with self.address_file.open("rb") as file:
                found = json.loads(file.read(FILE_BYTES_MAX))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def find_home(environment: Mapping[str, str]) -> Home:
    """The home that `HEADWAY_HOME` names, or the user's own."""
    given = environment.get("HEADWAY_HOME") or DEFAULT_HOME
    if "\0" in given:
        raise UserError("expected a path, got one with a NUL", key="HEADWAY_HOME")
    return Home(Path(os.path.abspath(Path(given).expanduser())))


def _write(path: Path, text: str) -> None:
    """Write a file for its owner alone, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"can't be written: {error.strerror or error}", file=str(path)) from None
