"""A whole journal from one database into another, as it is at one instant, whatever a controller does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.runtime.journal import ROWS, Journal
from headway.runtime.journal_archive import save
from headway.runtime.journal_db import archives, lease, segments, snapshots


def copy_journal(source: Journal, target: Journal, archive_dir: Path | None) -> None:
    """Copy everything but who leads: segments, snapshots, the epoch, and archives (into a folder; None: into the target itself).

    The target must be new. It is to be read once more afterwards (`verify`): nothing is checked on the way but archives.

    Raises:
        DamagedArchiveError: an archive of the source is not whole.
        OSError, SQLAlchemyError: something can't be read or written.
    """
    with source.still(), target.writing() as new:
        held = source.lease()
        values = {"epoch": held.epoch, "beat": held.beat + 1, "holder": None, "journal": source.id}
        new.execute(lease.update().values(**values))
        for name, body in source.archived(0):
            archive = source.archive(name, body)
            if archive_dir is not None:
                save(archive, archive_dir)
            row = {"first": archive.first, "last": archive.last, "events": archive.events, "name": name}
            new.execute(archives.insert(), row | {"body": None if archive_dir else archive.content})
        for rows in _rows(source):
            new.execute(segments.insert(), rows)
        for kept in source.snapshots():
            new.execute(snapshots.insert().values(seq=kept.seq, events=kept.events, key=kept.key, body=kept.body))


def is_new(journal: Journal) -> bool:
    """Whether nothing has been written into a journal yet."""
    return not journal.stored(0, 1) and not journal.archived(0)


def verify(journal: Journal) -> None:
    """Read a journal to its end. `UserError` if it is not whole."""
    for _ in journal.read():
        pass
    if journal.damage is not None:
        raise UserError(str(journal.damage), file=journal.label)


def _rows(source: Journal) -> Iterator[list[dict[str, Any]]]:
    """All stored segments, some at a time."""
    after = 0
    while rows := source.stored(after, ROWS):
        yield rows
        after = int(rows[-1]["seq"])
