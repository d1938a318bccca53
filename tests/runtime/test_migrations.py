"""Databases of earlier versions are brought to the present form, all steps or none, and keep every event."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headway.core.codec import encode
from headway.core.errors import UserError
from headway.runtime import journal_db
from headway.runtime.journal import Journal
from headway.runtime.journal_db import VERSION, Where, tables

from .test_journal import batch, contents

# As version 1 made it, in the words of its code.
FIRST = """CREATE TABLE IF NOT EXISTS segments(
    seq INTEGER PRIMARY KEY, schema INTEGER NOT NULL, events INTEGER NOT NULL, body BLOB NOT NULL)"""


def made_by_version_1(path: Path, count: int = 40) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA application_id=1212438361")
    db.execute(FIRST)
    for n in range(1, count + 1):
        db.execute("INSERT INTO segments VALUES (?, ?, ?, ?)", (n, 1, len(batch(n)), encode(batch(n), schema=1)))
    db.close()


def test_a_journal_of_version_1_keeps_every_event_and_can_be_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    made_by_version_1(path)
    old = sqlite3.connect(path, isolation_level=None)  # a controller of the old version that is still there
    journal = Journal(path)
    assert contents(journal) == list(range(1, 41)) and journal.damage is None and journal.events == 80
    assert journal.lead() == 1
    with pytest.raises(sqlite3.OperationalError, match="5 columns but 4 values"):
        old.execute("INSERT INTO segments VALUES (?, ?, ?, ?)", (41, 1, 2, b""))
    old.close()
    journal.append(batch(41))
    journal.close()
    again = Journal(path)
    assert contents(again) == list(range(1, 42))
    again.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.db"
    made_by_version_1(path, 3)

    def fails(db: Connection) -> None:
        journal_db.MIGRATIONS[1](db)
        db.exec_driver_sql("CREATE TABLE segments(x)")

    with monkeypatch.context() as patch:
        patch.setattr(journal_db, "MIGRATIONS", (journal_db.MIGRATIONS[0], journal_db.MIGRATIONS[1], fails))
        patch.setattr(journal_db, "VERSION", 3)
        with pytest.raises(UserError, match="can't be opened"):
            Journal(path)
    with sqlite3.connect(path) as db:
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")] == ["segments"]
        assert len(db.execute("SELECT * FROM segments").fetchone()) == 4
    db.close()
    journal = Journal(path)
    assert contents(journal) == [1, 2, 3]
    journal.close()


def test_all_steps_make_the_tables_that_the_code_names(where: Where) -> None:
    journal = Journal(where)
    with journal.database.engine.connect() as db:
        there = sa.inspect(db)
        assert set(there.get_table_names()) == set(tables.tables)
        for name, table in tables.tables.items():
            assert [column["name"] for column in there.get_columns(name)] == table.columns.keys()
    journal.close()
    again = Journal(where)  # nothing to do the second time
    assert again.id == journal.id
    again.close()


def test_a_journal_of_a_newer_version_is_refused(where: Where) -> None:
    journal = Journal(where)
    with journal.database.engine.begin() as db:
        db.execute(journal_db.schema_version.update().values(version=VERSION + 1))
    journal.close()
    for writes in (True, False):
        with pytest.raises(
            UserError, match=f"a journal of version {VERSION + 1}: this Headway knows up to {VERSION}; upgrade it"
        ):
            Journal(where, writes=writes)


def test_who_only_reads_changes_no_older_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    made_by_version_1(path, 3)
    before = path.read_bytes()
    with pytest.raises(UserError, match="older or empty journal"):
        Journal(path, writes=False)
    assert path.read_bytes() == before
