"""The journal: event segments in a database, appended to in order and never changed.

A batch is one row and one transaction; its body is `core.codec.encode` of the batch, with a checksum of its own. A batch
counts once `append` has returned, and only then may anything be done about it. The same transaction checks that the writer
still holds the lease (`runtime.lease`): after another controller has taken over, nothing of this one gets in.

Older segments move into archives (`runtime.journal_archive`), from which `read` goes on as if they were still there.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from headway.core.codec import SCHEMA, DamagedSegmentError, decode, encode
from headway.core.errors import UserError
from headway.core.events import EventBatch
from headway.runtime import lease as leases
from headway.runtime.journal_archive import Archive, DamagedArchiveError, checked, load, save
from headway.runtime.journal_cut import copy_sound, set_aside
from headway.runtime.journal_db import Database, Where, archives, lease, reason, segments, snapshots
from headway.runtime.lease import FencedError, Holder, Lease

ROWS = 512
"""Segments that are fetched at once."""
ARCHIVE_SEGMENTS = 4096
"""Segments of one archive, at most."""
SNAPSHOTS_KEPT = 2


class JournalError(Exception):
    """The journal can't be written: nothing may be done any more, since nothing could be remembered."""


@dataclass(frozen=True, slots=True)
class Damage:
    """From where on a journal can't be read, and why. The `whole` segments before are sound."""

    whole: int
    events: int
    reason: str
    in_archive: bool = False

    def __str__(self) -> str:
        return f"the journal is damaged after {self.whole} segments ({self.events} events): {self.reason}"


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A stored snapshot: what replay gives up to segment `seq`."""

    seq: int
    events: int
    key: str
    body: bytes


@dataclass(frozen=True, slots=True)
class _Row:
    """One segment as it is stored."""

    seq: int
    events: int
    body: bytes


class Journal:
    """Open; take the lease with `lead`; `read()` once to its end; then `append`. If reading finds `damage`, call `cut` first.

    `where`: a SQLite file, or the address of a PostgreSQL database. Archives of a file lie in a folder beside it.
    `writes=False`: only to read; the present holder of the lease is not disturbed.
    """

    def __init__(self, where: Where, *, writes: bool = True) -> None:
        self.where = where
        self.database = Database(where, writes=writes)
        self.archive_dir = where.with_suffix(".archive") if isinstance(where, Path) else None
        self.damage: Damage | None = None
        self.epoch = 0
        """Of the lease, while this journal leads; 0 before."""
        self.events = 0
        """How many events there are, as far as has been read or written."""
        self.kept_events = 0
        """How many of them the snapshot holds from which recovery began."""
        self.lost = ""
        """Why this controller may do nothing more, if it was found out beside the journal's own writes."""
        self._next = 1
        self._broken = ""
        self._db = self.database.engine.connect()
        try:
            with self._reading():
                self.id: str = self._db.execute(sa.select(lease.c.journal)).scalar_one()
        except SQLAlchemyError as error:
            self._db.close()
            raise UserError(f"the journal can't be opened: {reason(error)}", file=self.label) from None

    # -- the lease ------------------------------------------------------------------------------------------------
    def lease(self) -> Lease:
        """The lease as it stands."""
        with self._reading():
            return leases.look(self._db)

    def lead(self) -> int:
        """Be the one who writes, whoever held the lease until now; its epoch. Nothing happens if this journal leads already.

        Raises:
            JournalError: the lease can't be written.
        """
        while not self.epoch:
            try:
                seen = self.lease()
                with self.database.writing(self._db).begin():
                    self.epoch = leases.take(self._db, seen, Holder.me()) or 0
            except SQLAlchemyError as error:
                raise JournalError(f"the journal {self.label} can't be written: {reason(error)}") from None
        return self.epoch

    def check(self) -> None:
        """`FencedError` if another controller is known to have taken over."""
        if self.lost:
            raise FencedError(self.lost)

    # -- reading --------------------------------------------------------------------------------------------------
    @property
    def label(self) -> str:
        """Where it is, without any password."""
        return self.database.label

    @property
    def segments(self) -> int:
        """How many segments there are, as far as has been read or written."""
        return self._next - 1

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within this, all reading sees the journal as it is at the first look, whatever a controller does meanwhile."""
        with self._reading():
            if self._db.dialect.name == "postgresql":
                self._db.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                self._db.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield

    def _reading(self) -> AbstractContextManager[object]:
        """A transaction that only reads; within another one, that one."""
        return nullcontext() if self._db.in_transaction() else self.database.reading(self._db).begin()

    def read(self, after: int = 0, events: int = 0) -> Iterator[EventBatch]:
        """The batches in order, archives included, up to the end or to the first that is not whole; then `damage` says so.

        With `after`, only those after the segment of this number, up to which there are so many `events`.

        Raises:
            UserError: written by a newer Headway.
        """
        self._next, self.events, self.damage, in_archive = after + 1, events, None, True
        try:
            for name, body in self.archived(after):
                for seq, batch in self._batches_in(name, body):
                    if seq >= self._next:
                        self._read_one(len(batch))
                        yield batch
            in_archive = False
            for row in self._rows():
                if row.seq != self._next:
                    raise DamagedSegmentError(f"segment {self._next} is missing")
                batch = _decoded(row, self.label)
                self._read_one(len(batch))
                yield batch
        except (SQLAlchemyError, DamagedSegmentError, DamagedArchiveError) as error:
            self.damage = Damage(self._next - 1, self.events, reason(error), in_archive)

    def _read_one(self, events: int) -> None:
        self._next += 1
        self.events += events

    def archived(self, after: int) -> list[tuple[str, bytes | None]]:
        """Names (and, on PostgreSQL, bodies) of the archives with segments after this one."""
        with self._reading():
            asked = sa.select(archives.c.name, archives.c.body).where(archives.c.last > after).order_by(archives.c.first)
            return [(row.name, row.body) for row in self._db.execute(asked)]

    def _batches_in(self, name: str, body: bytes | None) -> Iterator[tuple[int, EventBatch]]:
        """The numbered batches of an archive, which must go on where those before have ended."""
        found = self.archive(name, body)
        if not found.first <= self._next <= found.last:
            raise DamagedArchiveError(f"segment {self._next} is missing before the archive {name}")
        yield from enumerate(found.batches(), found.first)

    def archive(self, name: str, body: bytes | None) -> Archive:
        """An archive by its name, from its file or its body; `DamagedArchiveError` if it isn't whole."""
        if body is not None:
            return checked(body, name, self.id)
        if self.archive_dir is None:
            raise DamagedArchiveError(f"the archive {name} has no content")
        return load(self.archive_dir, name, self.id)

    def _rows(self) -> Iterator[_Row]:
        """The stored segments from the next one on. Where a page of the file is damaged, those before it one by one."""
        count = ROWS
        while True:
            asked = sa.select(segments.c.seq, segments.c.schema, segments.c.events, segments.c.body)
            asked = asked.where(segments.c.seq >= self._next).order_by(segments.c.seq).limit(count)
            try:
                with self._reading():
                    found = self._db.execute(asked).all()
            except (SQLAlchemyError, TypeError) as error:  # TypeError: a body that is text
                if count == 1:
                    raise DamagedSegmentError(reason(error)) from None
                count = 1
                continue
            for row in found:
                if row.schema > SCHEMA:
                    raise UserError(
                        f"schema version {row.schema}: this Headway reads up to {SCHEMA}; upgrade it", file=self.label
                    )
                yield _Row(int(row.seq), int(row.events), row.body)
            if len(found) < count:
                return

    def before(self, event: int) -> tuple[int, int]:
        """The last segment before the one with this event (counted from 1), and how many events there are up to its end: where
        `read` begins to come to that event soon."""
        segment = events = 0
        with self._reading():
            kept = self._db.execute(sa.select(archives.c.last, archives.c.events).order_by(archives.c.first)).all()
            for last, count in kept:
                if events + count >= event:
                    return segment, events
                segment, events = int(last), events + int(count)
            asked = sa.select(segments.c.seq, segments.c.events).where(segments.c.seq > segment).order_by(segments.c.seq)
            for seq, count in self._db.execute(asked):
                if events + count >= event:
                    break
                segment, events = int(seq), events + int(count)
        return segment, events

    def stored(self, after: int, count: int) -> list[dict[str, Any]]:
        """The rows of the segments after this one, as they are stored, without any check."""
        with self._reading():
            asked = sa.select(segments).where(segments.c.seq > after).order_by(segments.c.seq).limit(count)
            return [dict(row) for row in self._db.execute(asked).mappings()]

    # -- writing --------------------------------------------------------------------------------------------------
    def append(self, batch: EventBatch) -> None:
        """Write a batch; it is on the disk when this returns.

        Raises:
            FencedError: another controller has taken over. Nothing has been written.
            JournalError: it can't be written. Whether this batch got in shows when the journal is read again.
        """
        assert self.damage is None, "a damaged journal must be cut first"
        assert self.epoch, "who writes must lead"
        self.check()
        if self._broken:
            raise JournalError(self._broken)
        row = {"seq": self._next, "schema": SCHEMA, "events": len(batch), "body": encode(batch), "epoch": self.epoch}
        try:
            if not self.database.append(self._db, row):
                self.lost = leases.fenced_text(self.lease(), self.epoch)
                raise FencedError(self.lost)
        except SQLAlchemyError as error:
            self._broken = f"the journal {self.label} can't be written: {reason(error)}"
            raise JournalError(self._broken) from None
        self._read_one(len(batch))

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes what it likes, for filling a new journal from another."""
        with self.database.writing(self._db).begin():
            yield self._db

    def cut(self) -> str:
        """Go on with the sound part alone. The damaged rest is kept; returns its name.

        Raises:
            UserError: there is no sound part, so that going on would forget everything, or an archive is damaged.
        """
        assert self.damage is not None
        if self.damage.in_archive:
            raise UserError(f"{self.damage}; put the archive back from a backup", file=self.label)
        whole = self.damage.whole
        if whole == 0:
            raise UserError(f"{self.damage}; nothing of it can be read: move it away to begin anew", file=self.label)
        try:
            if isinstance(self.where, Path):
                fresh = copy_sound(self._db, self.where, whole, self.id)
                self._db.close()
                self.database.close()
                kept = set_aside(self.where, fresh)
                self.database = Database(self.where)
                self._db = self.database.engine.connect()
            else:
                kept = self._cut_rows(whole)
        except (OSError, SQLAlchemyError) as error:
            raise JournalError(f"the sound part of the journal can't be saved: {reason(error)}") from None
        self.damage = None
        return kept

    def _cut_rows(self, whole: int) -> str:
        """Move the segments after the sound ones into a table of their own (PostgreSQL)."""
        with self.database.writing(self._db).begin():
            leases.beat(self._db, self.epoch)
            there = set(sa.inspect(self._db).get_table_names())
            kept = next(name for n in range(1, 10_000) if (name := f"damaged_{n}") not in there)
            self._db.exec_driver_sql(f"CREATE TABLE {kept} AS SELECT * FROM segments WHERE seq > {int(whole)}")
            self._db.execute(segments.delete().where(segments.c.seq > whole))
            self._db.execute(snapshots.delete().where(snapshots.c.seq > whole))
        return kept

    # -- snapshots and archives -----------------------------------------------------------------------------------
    def snapshots(self) -> list[SnapshotRow]:
        """The stored snapshots, the newest first; none where they can't be read."""
        try:
            with self._reading():
                rows = self._db.execute(sa.select(snapshots).order_by(snapshots.c.seq.desc())).all()
            return [SnapshotRow(int(row.seq), int(row.events), str(row.key), row.body) for row in rows]
        except (SQLAlchemyError, TypeError):
            return []

    def keep_snapshot(self, epoch: int, row: SnapshotRow) -> None:
        """Store a snapshot for the holder of an epoch, and forget old ones. `FencedError` if it is the holder no more."""
        with self.database.writing(self._db).begin():
            leases.beat(self._db, epoch)
            self._db.execute(snapshots.delete().where(snapshots.c.seq == row.seq))
            self._db.execute(snapshots.insert().values(seq=row.seq, events=row.events, key=row.key, body=row.body))
            newest = sa.select(snapshots.c.seq).order_by(snapshots.c.seq.desc()).limit(SNAPSHOTS_KEPT)
            oldest = min(self._db.execute(newest).scalars())
            self._db.execute(snapshots.delete().where(snapshots.c.seq < oldest))

    def compact(self, epoch: int, upto: int) -> int:
        """Move the segments up to this one into archives, for the holder of an epoch; how many archives were made.

        An archive is on the disk, and has been read again, before its segments leave the database; both change in one
        transaction with the lease.

        Raises:
            FencedError: it is the holder no more.
            OSError, DamagedSegmentError: an archive can't be written; the segments are where they were.
        """
        made = 0
        while found := self._oldest(upto):
            for row in found:
                _decoded(row, self.label)
            archive = Archive.of(self.id, found[0].seq, [row.body for row in found], sum(row.events for row in found))
            if self.archive_dir is not None:
                save(archive, self.archive_dir)
            stored = {"first": archive.first, "last": archive.last, "events": archive.events, "name": archive.name}
            with self.database.writing(self._db).begin():
                leases.beat(self._db, epoch)
                self._db.execute(archives.insert(), stored | {"body": None if self.archive_dir else archive.content})
                self._db.execute(segments.delete().where(segments.c.seq <= archive.last))
            made += 1
        return made

    def _oldest(self, upto: int) -> list[_Row]:
        """The oldest segments in the database, as many as one archive takes, without a gap."""
        with self._reading():
            asked = sa.select(segments.c.seq, segments.c.events, segments.c.body).where(segments.c.seq <= upto)
            rows = self._db.execute(asked.order_by(segments.c.seq).limit(ARCHIVE_SEGMENTS)).all()
        found = [_Row(int(row.seq), int(row.events), row.body) for row in rows]
        if found and found[-1].seq - found[0].seq != len(found) - 1:
            raise DamagedSegmentError("a segment is missing")
        return found

    def close(self) -> None:
        """Let go of the lease and the database."""
        if self.epoch and not self.lost and not self._broken:
            try:
                with self.database.writing(self._db).begin():
                    leases.release(self._db, self.epoch)
            except SQLAlchemyError:
                pass  # whoever comes next finds out that it stands still
        self.epoch = 0
        self._db.close()
        self.database.close()


def _decoded(row: _Row, label: str) -> EventBatch:
    """The batch of a segment.

    Raises:
        DamagedSegmentError: it is not whole.
    """
    try:
        batches = list(decode(io.BytesIO(row.body if isinstance(row.body, bytes) else b"")))
    except (UserError, ValueError, KeyError, TypeError) as error:
        raise DamagedSegmentError(f"a segment can't be read: {error}") from None
    if len(batches) != 1:
        raise DamagedSegmentError(f"segment {row.seq} holds {len(batches)} batches")
    return batches[0]
