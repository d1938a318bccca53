"""Going on after damage: the sound part of a journal's SQLite file as a new file, and the old one set aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from headway.runtime.journal_archive import Archive, DamagedArchiveError
from headway.runtime.journal_db import Database, archives, lease, segments, snapshots

ROWS = 256


def copy_sound(old: Connection, path: Path, whole: int, journal: str) -> Path:
    """A new file beside `path` with the first `whole` segments and all that belongs to them; returns its path.

    The lease is copied as it stands. Archives are found by their files where the table of them can't be read; a snapshot that
    can't be read is left out.

    Raises:
        OSError, SQLAlchemyError: it can't be written.
    """
    fresh = path.with_name(f"{path.name}.sound")
    for leftover in files(fresh):
        leftover.unlink(missing_ok=True)
    database = Database(fresh)
    old = old.execution_options(headway_reads=True)
    try:
        with database.engine.connect() as new, new.begin():
            with old.begin():
                held = old.execute(sa.select(lease)).mappings().one()
            new.execute(lease.delete())
            new.execute(lease.insert(), dict(held))
            listed = _archives(old, path.with_suffix(".archive"), whole, journal)
            if listed:
                new.execute(archives.insert(), listed)
            _copy_segments(old, new, max((row["last"] for row in listed), default=0), whole)
            _copy_snapshots(old, new, whole)
    finally:
        database.close()  # the last connection to a file takes its write-ahead log into it
    return fresh


def _archives(old: Connection, folder: Path, whole: int, journal: str) -> list[dict[str, Any]]:
    """The rows of the table of archives."""
    try:
        with old.begin():
            return [dict(row) for row in old.execute(sa.select(archives).where(archives.c.last <= whole)).mappings()]
    except SQLAlchemyError:
        return [row for row in _on_disk(folder, journal) if row["last"] <= whole]


def _on_disk(folder: Path, journal: str) -> list[dict[str, Any]]:
    """The archives of a journal by what their files say, without those that another one covers."""
    found: list[Archive] = []
    for path in sorted(folder.glob("*.segments")):
        try:
            archive = Archive.parse(path.read_bytes())
        except (OSError, ValueError, KeyError, DamagedArchiveError):
            continue
        if archive.journal == journal and archive.first == (found[-1].last + 1 if found else 1):
            found.append(archive)
    return [{"first": a.first, "last": a.last, "events": a.events, "name": a.name, "body": None} for a in found]


def _copy_segments(old: Connection, new: Connection, after: int, whole: int) -> None:
    """Copy the sound segments, a few at a time; where the file is damaged, one by one."""
    while after < whole:
        rows: list[dict[str, Any]] = []
        for count in (ROWS, 1):
            asked = sa.select(segments).where(segments.c.seq > after, segments.c.seq <= whole)
            try:
                with old.begin():
                    rows = [dict(row) for row in old.execute(asked.order_by(segments.c.seq).limit(count)).mappings()]
                break
            except (SQLAlchemyError, TypeError):
                if count == 1:
                    raise
        if not rows:
            return
        new.execute(segments.insert(), rows)
        after = int(rows[-1]["seq"])


def _copy_snapshots(old: Connection, new: Connection, whole: int) -> None:
    try:
        with old.begin():
            rows = [dict(row) for row in old.execute(sa.select(snapshots).where(snapshots.c.seq <= whole)).mappings()]
    except (SQLAlchemyError, TypeError):
        return
    if rows:
        new.execute(snapshots.insert(), rows)


def set_aside(path: Path, fresh: Path) -> str:
    """Put the new file in the place of the damaged one, which gets a name of its own; returns that name."""
    kept = next(p for n in range(1, 10_000) if not (p := path.with_name(f"{path.name}.damaged-{n}")).exists())
    for old, new in zip(files(path), files(kept), strict=True):
        if old.exists():
            old.rename(new)
    fresh.rename(path)
    return kept.name


def files(path: Path) -> tuple[Path, Path, Path]:
    """A SQLite file and the two beside it."""
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
