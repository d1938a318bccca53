"""A home: the directory that holds everything one controller keeps, and how others find that controller.

HOME/journal.db        the journal
HOME/journal.archive/  its older segments, compressed
HOME/locks/NAME        locked while the process lives that made it: a controller, or one that waits to be it
HOME/headway.toml      the settings, if somebody has written some
HOME/token             the bearer token of the home's owner, an admin's (mode 0600)
HOME/tokens.json       the hashes of the other people's tokens (mode 0600)
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
LOCKS_KEPT = 16


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of one home. Nothing is made before `prepare`."""

    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "journal.db"

    @property
    def locks_dir(self) -> Path:
        return self.root / "locks"

    @property
    def token_file(self) -> Path:
        return self.root / "token"

    @property
    def tokens_file(self) -> Path:
        return self.root / "tokens.json"

    @property
    def settings_file(self) -> Path:
        return self.root / "headway.toml"

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
    def hold(self) -> Iterator[str]:
        """Lock a file of one's own; yields its name, which a lease tells others. Who holds the lease is the one controller.

        The kernel drops the lock with the process that holds it, however that ends; the tasks that a controller starts
        don't inherit it.
        """
        name = secrets.token_hex(8)
        path = self.locks_dir / name
        try:
            self.locks_dir.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(f"can't be made: {error.strerror or error}", file=str(path)) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sweep_locks()
            yield name
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def is_held(self, name: str) -> bool | None:
        """Whether the process that holds this lock lives; None where that can't be told: there is no such file."""
        try:
            descriptor = os.open(self.locks_dir / name, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _sweep_locks(self) -> None:
        """Remove old locks of dead processes, but keep the newest: the lease may name one of them."""
        with contextlib.suppress(FileNotFoundError):  # another one sweeps too
            for path in sorted(self.locks_dir.iterdir(), key=lambda path: path.stat().st_mtime)[:-LOCKS_KEPT]:
                if self.is_held(path.name) is False:
                    path.unlink(missing_ok=True)

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
        """This controller listens no more. What another one has published meanwhile is left alone."""
        if self.address().get("pid", os.getpid()) == os.getpid():
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
