"""`headway backup` and `headway restore`: what comes back is what was there, and nothing is ever written over."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.conftest import postgres, where  # noqa: F401
from tests.runtime.test_journal import batch, contents, written
from tests.runtime.test_migrations import made_by_version_1
from tests.runtime.test_snapshots import lead, long_history, same, write

from headway.app.backup import backup, journal_of, restore
from headway.core.errors import UserError
from headway.policies.registry import make_policy
from headway.runtime import keeper
from headway.runtime.home import Home
from headway.runtime.journal import Journal
from headway.runtime.journal_db import Where

COUNT = 200


def compacted(where: Where) -> None:  # noqa: F811
    """A journal of COUNT batches, the older of them archived, whose controller has died."""
    write(where, list(long_history())[:COUNT])
    keeper.keep(where, lead(where), make_policy("fifo"))


def check(where: Where, epoch: int) -> None:  # noqa: F811
    journal = Journal(where)
    assert same(list(journal.read()), list(long_history())[:COUNT]) and journal.damage is None
    assert journal.lease().epoch == epoch and journal.lease().holder_text is None and len(journal.snapshots()) == 1
    assert journal.lead() == epoch + 1
    journal.append(long_history()[COUNT])
    journal.close()


def test_a_backup_comes_back_whole(where: Where, tmp_path: Path) -> None:  # noqa: F811
    compacted(where)
    file = tmp_path / "b.db"
    told = backup(where, file)
    assert told["segments"] == COUNT and told["epoch"] == 2 and told["bytes"] == file.stat().st_size
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    home = Home(tmp_path / "new")
    again = restore(file, home, home.journal)
    assert again["segments"] == COUNT and again["events"] == told["events"]
    check(home.journal, 2)
    assert len(list((home.root / "journal.archive").iterdir())) == 1
    assert sorted(path.name for path in home.root.iterdir()) == ["journal.archive", "journal.db"]


def test_a_backup_of_a_file_goes_into_a_database_and_back(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server = request.getfixturevalue("postgres")
    compacted(tmp_path / "journal.db")
    backup(tmp_path / "journal.db", tmp_path / "b.db")
    database, home = server.database(), Home(tmp_path / "home")
    restore(tmp_path / "b.db", home, database)
    with pytest.raises(UserError, match="holds a journal already"):
        restore(tmp_path / "b.db", home, database)
    backup(database, tmp_path / "c.db")
    check(database, 2)
    restore(tmp_path / "c.db", home, home.journal)
    check(home.journal, 2)


def test_a_backup_while_a_controller_writes_is_a_prefix(where: Where, tmp_path: Path) -> None:  # noqa: F811
    journal = Journal(where)
    journal.lead()
    list(journal.read())
    enough, done = threading.Event(), threading.Event()

    def writes() -> None:
        for n in range(1, 3000):
            journal.append(batch(n))
            if n == 100:
                enough.set()
            if done.is_set():
                return

    writer = threading.Thread(target=writes)
    writer.start()
    enough.wait(60)
    told = backup(where, tmp_path / "b.db")
    done.set()
    writer.join()
    journal.close()
    copy = Journal(tmp_path / "b.db", writes=False)
    found = contents(copy)
    assert found == list(range(1, told["segments"] + 1)) and len(found) >= 100
    copy.close()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    written(tmp_path / "journal.db", 3)
    (tmp_path / "b.db").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"b\.db: there is such a file already"):
        backup(tmp_path / "journal.db", tmp_path / "b.db")
    assert (tmp_path / "b.db").read_bytes() == b"mine"
    backup(tmp_path / "journal.db", tmp_path / "c.db")
    home = Home(tmp_path)
    before = (tmp_path / "journal.db").read_bytes()
    with pytest.raises(UserError, match=r"there is a journal\.db already: .*empty home"):
        restore(tmp_path / "c.db", home, home.journal)
    assert (tmp_path / "journal.db").read_bytes() == before
    other = Home(tmp_path / "other")
    other.prepare()
    other.token()
    other.engine_dir.mkdir()
    with pytest.raises(UserError, match="there is a engine already"):
        restore(tmp_path / "c.db", other, other.journal)
    other.engine_dir.rmdir()
    restore(tmp_path / "c.db", other, other.journal)


@pytest.mark.parametrize("frac", [0.1, 0.5, 0.9])
def test_a_damaged_backup_is_refused_and_leaves_nothing(frac: float, tmp_path: Path) -> None:
    compacted(tmp_path / "journal.db")
    file = tmp_path / "b.db"
    backup(tmp_path / "journal.db", file)
    content = bytearray(file.read_bytes())
    at = int(len(content) * frac) // 4096 * 4096
    content[at : at + 4096] = np.random.default_rng(1).bytes(4096)
    file.write_bytes(content)
    home = Home(tmp_path / "home")
    try:
        restore(file, home, home.journal)
    except UserError as error:
        assert "b.db" in str(error) and "\n" not in str(error)
        assert list(home.root.iterdir()) == []
    else:  # a page that nothing was on
        check(home.journal, 2)


def test_a_damaged_journal_gives_no_backup(tmp_path: Path) -> None:
    written(tmp_path / "journal.db", 9)
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("UPDATE segments SET body = x'00' WHERE seq = 5")
    db.close()
    with pytest.raises(UserError, match="the journal is damaged after 4 segments"):
        backup(tmp_path / "journal.db", tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()


@pytest.mark.parametrize("content", [b"", b"not a backup", b"SQLite format 3\0" + b"\1" * 5000])
def test_what_is_no_backup_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "b.db").write_bytes(content)
    home = Home(tmp_path / "home")
    with pytest.raises(UserError, match=r"b\.db: "):
        restore(tmp_path / "b.db", home, home.journal)
    assert not home.root.exists()
    with pytest.raises(UserError, match="can't be read"):
        restore(tmp_path / "missing.db", home, home.journal)
    with pytest.raises(UserError, match="there is no journal"):
        backup(journal_of(home, ""), tmp_path / "c.db")


def test_a_copy_of_an_old_journal_is_a_backup_too(tmp_path: Path) -> None:
    made_by_version_1(tmp_path / "old.db")
    before = (tmp_path / "old.db").read_bytes()
    home = Home(tmp_path / "home")
    assert restore(tmp_path / "old.db", home, home.journal)["segments"] == 40
    journal = Journal(home.journal)
    assert contents(journal) == list(range(1, 41))
    journal.close()
    assert (tmp_path / "old.db").read_bytes() == before
