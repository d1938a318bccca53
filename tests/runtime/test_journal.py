"""The journal on disk: what is appended is read back, and whatever happens to the file, what is read is a prefix of it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headway.core.columns import EventKind
from headway.core.errors import UserError
from headway.core.events import EventBatch, EventBuffer, concatenate
from headway.runtime.home import Home, find_home
from headway.runtime.journal import Journal, JournalError


def batch(n: int) -> EventBatch:
    out = EventBuffer()
    out.add(n, EventKind.NAMED, n, a=4, text=f"jöb-{n}")
    out.add(n, EventKind.SUBMITTED, n, payload=list(range(n % 50)), text='{"name": "日本"}')
    return out.take()


def written(path: Path, count: int) -> None:
    journal = Journal(path)
    journal.lead()
    assert list(journal.read()) == []
    for n in range(1, count + 1):
        journal.append(batch(n))
    journal.close()


def contents(journal: Journal) -> list[int]:
    """The numbers of the batches that can be read; each must be whole."""
    numbers = []
    for found in journal.read():
        n = int(found.records[0, 0])
        want = batch(n)
        assert np.array_equal(found.records, want.records) and np.array_equal(found.pool, want.pool) and found.texts == want.texts
        numbers.append(n)
    return numbers


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    written(tmp_path / "j.db", 30)
    journal = Journal(tmp_path / "j.db")
    assert contents(journal) == list(range(1, 31))
    assert journal.damage is None and journal.segments == 30 and journal.events == 60
    journal.lead()
    journal.append(batch(31))
    journal.close()
    again = Journal(tmp_path / "j.db")
    assert len(concatenate(list(again.read()))) == 62
    again.close()
    assert (tmp_path / "j.db").stat().st_mode & 0o777 == 0o600


def test_a_batch_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    """Whoever dies right after `append` has written it: a process that ends without closing anything."""
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom tests.runtime.test_journal import batch\n"
        "from headway.runtime.journal import Journal\n"
        "j = Journal(Path(sys.argv[1])); j.lead(); list(j.read()); j.append(batch(1)); j.append(batch(2)); os._exit(9)\n"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "j.db")], env=environment, timeout=60, check=False)
    assert done.returncode == 9
    journal = Journal(tmp_path / "j.db")
    assert contents(journal) == [1, 2]
    journal.close()


@pytest.mark.parametrize(
    ("harm", "whole"),
    [
        ("UPDATE segments SET body = substr(body, 1, length(body) - 1) || x'ff' WHERE seq = 7", 6),
        ("UPDATE segments SET body = substr(body, 1, length(body) - 9) WHERE seq = 10", 9),
        ("UPDATE segments SET body = x'00' WHERE seq = 3", 2),
        ("UPDATE segments SET body = 'text' WHERE seq = 3", 2),
        ("UPDATE segments SET body = x'7b7d0a' WHERE seq = 5", 4),
        ("DELETE FROM segments WHERE seq = 4", 3),
        ("UPDATE segments SET seq = 99 WHERE seq = 10", 9),
    ],
)
def test_a_damaged_segment_ends_the_journal_and_is_kept_aside(harm: str, whole: int, tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    written(path, 10)
    with sqlite3.connect(path) as db:
        db.execute(harm)
    db.close()
    journal = Journal(path)
    assert contents(journal) == list(range(1, whole + 1))
    assert journal.damage is not None and f"after {whole} segments" in str(journal.damage)
    journal.lead()
    kept = journal.cut()
    assert kept == "j.db.damaged-1" and (tmp_path / kept).exists()
    journal.append(batch(whole + 1))
    journal.close()
    again = Journal(path)
    assert contents(again) == list(range(1, whole + 2))
    assert again.damage is None
    again.close()


@pytest.mark.parametrize("keep_frac", [0.97, 0.7, 0.3])
def test_a_file_that_was_cut_short_gives_a_prefix(keep_frac: float, tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    written(path, 400)
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * keep_frac) // 4096 * 4096)
    try:
        journal = Journal(path)
    except UserError as error:
        assert "can't be opened" in str(error)
        return
    found = contents(journal)
    assert found == list(range(1, len(found) + 1)) and len(found) < 400
    assert journal.damage is not None
    if found:
        journal.lead()
        journal.cut()
        journal.append(batch(len(found) + 1))
    journal.close()


def test_overwritten_pages_give_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    written(path, 400)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(os.urandom(3 * 4096))
    journal = Journal(path)
    found = contents(journal)
    assert found == list(range(1, len(found) + 1)) and 0 < len(found) < 400
    assert journal.damage is not None
    journal.close()


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to look like one" * 100, b"\0" * 8192])
def test_what_is_no_journal_is_refused_and_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"j\.db: .*move it away"):
        Journal(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "j.db") as db:
        db.execute("CREATE TABLE recipes(x)")
    db.close()
    with pytest.raises(UserError, match="not a Headway journal"):
        Journal(tmp_path / "j.db")


def test_a_newer_journal_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "j.db", 2)
    with sqlite3.connect(tmp_path / "j.db") as db:
        db.execute("UPDATE segments SET schema = 999 WHERE seq = 2")
    db.close()
    journal = Journal(tmp_path / "j.db")
    with pytest.raises(UserError, match="schema version 999"):
        list(journal.read())
    journal.close()


def test_a_journal_of_which_nothing_can_be_read_is_not_forgotten(tmp_path: Path) -> None:
    written(tmp_path / "j.db", 3)
    with sqlite3.connect(tmp_path / "j.db") as db:
        db.execute("UPDATE segments SET body = x'00' WHERE seq = 1")
    db.close()
    journal = Journal(tmp_path / "j.db")
    assert contents(journal) == []
    with pytest.raises(UserError, match="nothing of it can be read"):
        journal.cut()
    journal.close()
    assert (tmp_path / "j.db").exists()


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    journal.lead()
    list(journal.read())
    journal._db.exec_driver_sql("PRAGMA query_only = 1")
    journal._db.rollback()
    for _ in range(2):
        with pytest.raises(JournalError, match="can't be written"):
            journal.append(batch(1))
    journal.close()
    with pytest.raises(UserError, match="can't be opened"):
        Journal(tmp_path / "missing" / "j.db")


# The home


def test_a_lock_tells_whether_its_process_lives(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    assert home.is_held("unknown") is None
    with home.hold() as first, home.hold() as second:
        assert home.is_held(first) and home.is_held(second) and first != second
    assert home.is_held(first) is None
    (home.locks_dir / "of-the-dead").touch()
    assert home.is_held("of-the-dead") is False
    for n in range(40):
        (home.locks_dir / f"old-{n}").touch()
    with home.hold() as third:
        assert home.is_held(third) and len(list(home.locks_dir.iterdir())) <= 17


def test_the_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    token = home.token()
    assert len(token) >= 32 and home.token() == token == home.read_token()
    assert home.token_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"x" * 100_000])
def test_an_address_that_cannot_be_read_is_none(content: bytes, tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.address() == {}
    home.address_file.write_bytes(content)
    assert home.address() == {}
    home.publish({"url": "u"})
    assert home.address() == {"url": "u"}
    home.retract()
    home.retract()
    assert home.address() == {}
    home.publish({"url": "of another controller", "pid": 1})
    home.retract()
    assert home.address()["pid"] == 1


def test_where_the_home_is(tmp_path: Path) -> None:
    assert find_home({"HEADWAY_HOME": str(tmp_path)}).root == tmp_path
    assert find_home({}).root == Path("~/.local/share/headway").expanduser()
    assert find_home({"HEADWAY_HOME": "x"}).root.is_absolute()
    with pytest.raises(UserError, match="NUL"):
        find_home({"HEADWAY_HOME": "a\0b"})
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="HEADWAY_HOME"):
        Home(tmp_path / "file" / "home").prepare()
