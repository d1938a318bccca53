"""A disk that is full or read-only: what is in the journal stays a whole prefix, and the message says what is wrong."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.errors import UserError
from headway.policies.registry import make_policy
from headway.runtime import keeper
from headway.runtime.journal import Journal, JournalError

from .test_journal import batch, contents, written

BIG_MIB = 2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={BIG_MIB}m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # also if a test that failed has left a file open


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


def test_a_full_disk_ends_the_journal_at_a_whole_batch(disk: Path) -> None:
    journal = Journal(disk / "j.db")
    journal.lead()
    assert contents(journal) == []
    written_so_far = 0
    with pytest.raises(JournalError, match=r"j\.db can't be written: .*full"):
        for n in range(1, 100_000):
            journal.append(batch(n))
            written_so_far = n
    assert written_so_far > 100
    with pytest.raises(JournalError, match="can't be written"):
        journal.append(batch(written_so_far + 1))
    journal.close()
    reader = Journal(disk / "j.db", writes=False)
    assert contents(reader) == list(range(1, written_so_far + 1)) and reader.damage is None
    reader.close()


def test_a_controller_on_a_full_disk_says_so_and_goes_on_when_there_is_room(disk: Path) -> None:
    written(disk / "j.db", 50)
    fill(disk)
    with pytest.raises((UserError, JournalError), match=r"full|disk I/O error"):
        journal = Journal(disk / "j.db")
        try:
            journal.lead()
            for _ in journal.read():
                pass
            for n in range(51, 2000):
                journal.append(batch(n))
        finally:
            journal.close()
    (disk / "filler").unlink()
    journal = Journal(disk / "j.db")
    found = contents(journal)
    assert found == list(range(1, len(found) + 1)) and len(found) >= 50 and journal.damage is None
    journal.lead()
    journal.append(batch(len(found) + 1))
    journal.close()


def test_no_room_for_an_archive_loses_nothing(disk: Path) -> None:
    written(disk / "j.db", 200)
    journal = Journal(disk / "j.db")
    epoch = journal.lead()
    fill(disk)
    with pytest.raises(OSError, match="No space left"):
        journal.compact(epoch, 100)
    assert contents(journal) == list(range(1, 201))
    (disk / "filler").unlink()
    assert journal.compact(epoch, 100) == 1
    assert contents(journal) == list(range(1, 201))
    journal.close()


def test_a_read_only_disk_is_said_and_nothing_is_changed(disk: Path) -> None:
    written(disk / "j.db", 5)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        with pytest.raises(UserError, match="can't be opened: Read-only file system") as caught:
            Journal(disk / "j.db")
        assert "move it away" not in str(caught.value)
        with pytest.raises((UserError, OSError)):
            keeper.keep(disk / "j.db", 1, make_policy("fifo"))
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    journal = Journal(disk / "j.db")
    assert contents(journal) == [1, 2, 3, 4, 5]
    journal.close()


def test_a_file_that_may_not_grow_ends_the_journal_at_a_whole_batch(tmp_path: Path) -> None:
    """As a quota does it; for where nothing can be mounted."""
    written(tmp_path / "j.db", 3)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
            journal = Journal(tmp_path / "j.db")
            journal.lead()
            list(journal.read())
            try:
                for n in range(4, 10_000):
                    journal.append(batch(n))
            except JournalError:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    journal = Journal(tmp_path / "j.db")
    found = contents(journal)
    assert found == list(range(1, len(found) + 1)) and len(found) > 10 and journal.damage is None
    journal.close()
