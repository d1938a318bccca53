"""The journal on disk: one SQLite file of event segments, appended to in order and never changed.

A batch is one row and one transaction; its body is `core.codec.encode` of the batch, with a checksum of its own. A batch
counts once `append` has returned, and only then may anything be done about it.

`synchronous=FULL`: in WAL mode each commit is then on the disk, not only with the kernel. With NORMAL, a loss of power could
take back the request of an attempt that an engine has already seen, and attempts are what keeps a job from running twice.
"""

from __future__ import annotations

import io
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.core.codec import SCHEMA, DamagedSegmentError, decode, encode
from headway.core.errors import UserError
from headway.core.events import EventBatch

APPLICATION_ID = 0x48445759
"""`HDWY`: marks the SQLite file as ours."""
_TABLE = """CREATE TABLE IF NOT EXISTS segments(
    seq INTEGER PRIMARY KEY, schema INTEGER NOT NULL, events INTEGER NOT NULL, body BLOB NOT NULL)"""


class JournalError(Exception):
    """The journal can't be written: nothing may be done any more, since nothing could be remembered."""


@dataclass(frozen=True, slots=True)
class Damage:
    """From where on a journal can't be read, and why. The `whole` segments before are sound."""

    whole: int
    events: int
    reason: str

    def __str__(self) -> str:
        return f"the journal is damaged after {self.whole} segments ({self.events} events): {self.reason}"


class Journal:
    """Open with a path; `read()` once to its end; then `append`. If reading finds `damage`, call `cut` before appending."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: Damage | None = None
        self._next = 1
        self._db = self._connect(path)

    def _connect(self, path: Path) -> sqlite3.Connection:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.close(descriptor)
            db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"the journal can't be opened: {error}", file=str(path)) from None
        try:
            found = db.execute("PRAGMA application_id").fetchone()[0]
            tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if tables and found != APPLICATION_ID:
                raise UserError("this is not a Headway journal; move it away to begin anew", file=str(path))
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(_TABLE)
        except sqlite3.Error as error:
            db.close()
            raise UserError(f"the journal can't be opened: {error}; move it away to begin anew", file=str(path)) from None
        except UserError:
            db.close()
            raise
        return db

    def read(self) -> Iterator[EventBatch]:
        """The batches in order, up to the end or to the first that is not whole; then `damage` says so.

        Raises:
            UserError: written by a newer Headway.
        """
        events = 0
        try:
            for seq, schema, body in self._db.execute("SELECT seq, schema, body FROM segments ORDER BY seq"):
                if seq != self._next:
                    raise DamagedSegmentError(f"segment {self._next} is missing")
                if schema > SCHEMA:
                    raise UserError(
                        f"schema version {schema}: this Headway reads up to {SCHEMA}; upgrade it", file=str(self.path)
                    )
                batches = _decoded(body)
                if len(batches) != 1:
                    raise DamagedSegmentError(f"segment {seq} holds {len(batches)} batches")
                yield batches[0]
                events += len(batches[0])
                self._next = seq + 1
        except (sqlite3.DatabaseError, DamagedSegmentError) as error:
            self.damage = Damage(self._next - 1, events, str(error))

    def cut(self) -> Path:
        """Go on with the sound part alone. The damaged file is kept; returns its new name.

        Raises:
            UserError: there is no sound part, so that going on would forget everything.
        """
        assert self.damage is not None
        whole = self.damage.whole
        if whole == 0:
            raise UserError(f"{self.damage}; nothing of it can be read: move it away to begin anew", file=str(self.path))
        fresh = self.path.with_name(f"{self.path.name}.sound")
        for leftover in _files(fresh):
            leftover.unlink(missing_ok=True)
        sound = self._connect(fresh)
        try:
            sound.execute("BEGIN")
            rows = self._db.execute("SELECT seq, schema, events, body FROM segments WHERE seq <= ? ORDER BY seq", (whole,))
            sound.executemany("INSERT INTO segments VALUES (?, ?, ?, ?)", rows)
            sound.execute("COMMIT")
            sound.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise JournalError(f"the sound part of the journal can't be saved: {error}") from None
        finally:
            sound.close()
            self._db.close()
        kept = next(p for n in range(1, 10_000) if not (p := self.path.with_name(f"{self.path.name}.damaged-{n}")).exists())
        for old, new in zip(_files(self.path), _files(kept), strict=True):
            if old.exists():
                old.rename(new)
        fresh.rename(self.path)
        self._db = self._connect(self.path)
        self.damage = None
        self._next = whole + 1
        return kept

    def append(self, batch: EventBatch) -> None:
        """Write a batch; it is on the disk when this returns.

        Raises:
            JournalError: it can't be written.
        """
        assert self.damage is None, "a damaged journal must be cut first"
        try:
            self._db.execute("INSERT INTO segments VALUES (?, ?, ?, ?)", (self._next, SCHEMA, len(batch), encode(batch)))
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self.path} can't be written: {error}") from None
        self._next += 1

    @property
    def segments(self) -> int:
        """How many segments there are, as far as has been read or written."""
        return self._next - 1

    def close(self) -> None:
        self._db.close()


def _decoded(body: object) -> list[EventBatch]:
    """The batches in a body: one, if all is well."""
    try:
        return list(decode(io.BytesIO(body if isinstance(body, bytes) else b"")))
    except (UserError, ValueError, KeyError, TypeError) as error:
        raise DamagedSegmentError(f"a segment can't be read: {error}") from None


def _files(path: Path) -> tuple[Path, Path, Path]:
    """A SQLite file and the two beside it."""
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
