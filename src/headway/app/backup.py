"""Backup and restore of a journal: what `headway backup` and `headway restore` do, without the command line.

A backup is one SQLite file, whatever database it comes from, with all archives in it: a journal that can be read as it is.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from headway.core.errors import UserError, shown
from headway.runtime.home import Home
from headway.runtime.journal import Journal
from headway.runtime.journal_archive import DamagedArchiveError, sync_folder
from headway.runtime.journal_copy import copy_journal, is_new, verify
from headway.runtime.journal_db import APPLICATION_ID, Where, parse_where, reason
from headway.runtime.settings import read_settings

Json = dict[str, Any]
OF_A_JOURNAL = ("journal.db", "journal.db-wal", "journal.db-shm", "journal.archive", "engine")
"""What makes a home one that must not be restored into."""


def journal_of(home: Home, address: str) -> Where:
    """Where the journal is: at an address of a database, where the home's settings say, or in the home."""
    if not address and home.settings_file.exists():
        address = read_settings(home.settings_file).cluster.journal or ""
    return parse_where(address) if address else home.journal


def backup(where: Where, target: Path) -> Json:
    """Write a journal into a new file, as it is at one instant; a controller may run meanwhile.

    The file appears whole, and has been read from its beginning to its end before.

    Raises:
        UserError: the journal can't be read or is damaged, or the file exists or can't be written. Nothing is left then.
    """
    if os.path.lexists(target):
        raise UserError("there is such a file already; a backup replaces nothing", file=str(target))
    if isinstance(where, Path) and not where.exists():
        raise UserError("there is no journal", file=str(where))
    source = Journal(where, writes=False)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.absolute().parent) as folder:
            partial = Path(folder, "backup.db")
            told = _copied(source, partial, None)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            told["bytes"] = partial.stat().st_size
            os.link(partial, target)
        sync_folder(target.absolute().parent)
    except (OSError, SQLAlchemyError, DamagedArchiveError) as error:
        raise UserError(f"no backup could be made: {reason(error)}", file=str(target)) from None
    finally:
        source.close()
    return {"file": str(target), **told}


def restore(file: Path, home: Home, where: Where) -> Json:
    """Make a journal from a backup, in a home that has none (or in an empty database).

    Everything in the backup is read and its checksums verified before the journal appears.

    Raises:
        UserError: the file is no backup or is damaged, or there is a journal already. Nothing has changed then.
    """
    _check_backup(file)
    there = [name for name in OF_A_JOURNAL if (home.root / name).exists()]
    if isinstance(where, Path) and there:
        raise UserError(f"there is a {there[0]} already: a backup is restored into an empty home only", file=str(home.root))
    home.prepare()
    try:
        with tempfile.TemporaryDirectory(prefix=".restore.", dir=home.root) as folder:
            # A copy, which may be brought to the present form first.
            copy = Path(folder, "copy.db")
            shutil.copyfile(file, copy)
            try:
                told = _restored(copy, Path(folder), where)
            except UserError as error:
                raise UserError(error.message, file=str(file)) from None
    except (OSError, SQLAlchemyError, DamagedArchiveError) as error:
        raise UserError(f"it could not be restored: {reason(error)}", file=str(file)) from None
    return {"file": str(file), "journal": where.render_as_string() if not isinstance(where, Path) else str(where), **told}


def _restored(copy: Path, folder: Path, where: Where) -> Json:
    """Make a journal of a copy of a backup, which has been read to its end; what it holds."""
    source = Journal(copy)
    try:
        verify(source)
        if not isinstance(where, Path):
            return _into_database(source, where)
        fresh, archived = folder / "journal.db", folder / "journal.archive"
        told = _copied(source, fresh, archived)
        if archived.exists():
            archived.rename(where.with_suffix(".archive"))
        fresh.rename(where)
        sync_folder(where.parent)
        return told
    finally:
        source.close()


def _copied(source: Journal, path: Path, archive_dir: Path | None) -> Json:
    """Copy a journal into a new SQLite file, and read that; what it holds."""
    fresh = Journal(path)
    try:
        copy_journal(source, fresh, archive_dir)
    finally:
        fresh.close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode=DELETE")  # one file, which can be read on read-only media too
    db.close()
    fresh = Journal(path, writes=False)
    try:
        verify(fresh)
        return {"segments": fresh.segments, "events": fresh.events, "epoch": fresh.lease().epoch}
    finally:
        fresh.close()


def _into_database(source: Journal, where: Where) -> Json:
    target = Journal(where)
    try:
        if not is_new(target):
            raise UserError(f"{target.label} holds a journal already: a backup is restored into an empty database only")
        copy_journal(source, target, None)
        target.id = source.id
        verify(target)
        return {"segments": target.segments, "events": target.events, "epoch": target.lease().epoch}
    finally:
        target.close()


def _check_backup(file: Path) -> None:
    """Refuse what is no journal before anything is made of it."""
    try:
        with file.open("rb") as stream:
            is_sqlite = stream.read(16) == b"SQLite format 3\0"
        if is_sqlite:
            db = sqlite3.connect(f"file:{file.absolute()}?mode=ro&immutable=1", uri=True)
            try:
                if db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
                    return
            finally:
                db.close()
    except OSError as error:
        raise UserError(f"can't be read: {error.strerror or error}", file=str(file)) from None
    except sqlite3.Error as error:
        raise UserError(f"the backup is damaged: {shown(str(error))}", file=str(file)) from None
    raise UserError("expected what `headway backup` has written", file=str(file))
