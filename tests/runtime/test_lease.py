"""One controller at a time: who takes a lease over, when, and that whoever has lost it writes nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headway.core.errors import UserError
from headway.runtime import lease as leases
from headway.runtime.home import Home
from headway.runtime.journal import Journal
from headway.runtime.journal_db import Database, Where, parse_where
from headway.runtime.lease import Beater, Candidate, FencedError, Holder, Lease, Times, Watch, parse_lease

from .test_journal import batch

TIMES = Times(4.0)


def test_a_watcher_waits_until_the_lease_has_stood_still() -> None:
    watch = Watch(TIMES)
    lease = Lease(3, 7, "x")
    looks = [watch.look(lease, t) for t in (0.0, 0.5, 1.0, 2.0, 3.0, 3.9, 4.4)]
    assert looks == [False] * 6 + [True]


def test_a_lease_that_moves_is_never_stale() -> None:
    watch = Watch(TIMES)
    assert not any(watch.look(Lease(3, beat, "x"), 3.9 * beat) for beat in range(100))
    assert watch.moved


def test_a_watcher_that_was_asleep_starts_no_coup() -> None:
    """Paused for an hour, or kept from the database: what passed between two looks counts for two pauses at most."""
    watch = Watch(TIMES)
    lease = Lease(3, 7, "x")
    assert not watch.look(lease, 0.0)
    assert not watch.look(lease, 3600.0) and watch.still_s == 1.0
    assert not watch.look(lease, 7200.0)
    assert not watch.look(Lease(3, 8, "x"), 7200.5) and watch.still_s == 0


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def candidate(
    where: Where, home: Home, clock: Clock, *, lock: str = "", standby: bool = True, told: list[str] | None = None
) -> Candidate:
    say = (lambda _: None) if told is None else told.append
    holder = Holder.me(str(home.root), lock)
    return Candidate(Database(where), home, holder, TIMES, standby=standby, on_wait=say, clock=clock)


def leading(where: Where, epoch: int) -> Journal:
    journal = Journal(where)
    journal.epoch = epoch
    assert list(journal.read()) is not None
    return journal


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.prepare()
    return made


def test_a_standby_takes_over_from_one_that_stands_still_and_that_one_writes_nothing_more(where: Where, home: Home) -> None:
    clock, told = Clock(), []
    first, second = candidate(where, home, clock), candidate(where, home, clock, told=told)
    epoch = first.attempt(Watch(TIMES))
    assert epoch == 1
    old = leading(where, epoch)
    old.append(batch(1))
    watch = Watch(TIMES)
    for _ in range(20):  # it writes: nobody takes over
        assert second.attempt(watch) is None
        old.append(batch(old.segments + 1))
        clock.s += 0.5
    assert len(told) == 1 and "standing by: process" in told[0]
    begin = clock.s
    while (new_epoch := second.attempt(watch)) is None:
        clock.s += 0.5
    assert new_epoch == 2 and clock.s - begin <= 5
    new = leading(where, new_epoch)
    assert new.segments == 21
    with pytest.raises(
        FencedError, match=r"another controller \(process \d+ on .*\) has taken over with epoch 2; this one had 1"
    ):
        old.append(batch(22))
    new.append(batch(22))
    with pytest.raises(FencedError):
        old.append(batch(23))
    old.close()
    assert new.lease().holder is not None, "who was replaced releases nothing"
    new.append(batch(23))
    new.close()
    reader = Journal(where, writes=False)
    assert [int(found.records[0, 0]) for found in reader.read()] == list(range(1, 24))
    assert reader.lease().holder_text is None
    reader.close()
    for one in (first, second):
        one.database.close()


def test_of_two_that_see_a_stale_lease_one_takes_it(where: Where, home: Home) -> None:
    database = Database(where)
    me = Holder.me()
    with database.engine.connect() as one, database.engine.connect() as other:
        with database.reading(one).begin():
            seen = leases.look(one)
        with database.writing(other).begin():
            assert leases.take(other, seen, me) == 1
        with database.writing(one).begin():
            assert leases.take(one, seen, me) is None
        with database.reading(one).begin():
            stale = leases.look(one)
        with database.writing(other).begin():
            leases.beat(other, 1)
        with database.writing(one).begin():
            assert leases.take(one, stale, me) is None, "it has moved since"
    database.close()


def test_a_dead_holder_on_the_same_home_is_known_at_once(tmp_path: Path, home: Home) -> None:
    clock = Clock()
    where = home.journal
    with home.hold() as lock:
        first = candidate(where, home, clock, lock=lock)
        assert first.attempt(Watch(TIMES)) == 1
        home.publish({"url": "http://127.0.0.1:1"})
        second = candidate(where, home, clock, standby=False)
        with pytest.raises(UserError, match=r"another controller runs on the home .*http://127\.0\.0\.1:1.*--standby"):
            second.attempt(Watch(TIMES))
    (home.locks_dir / lock).touch()  # a process that was killed leaves the file, and no lock on it
    assert second.attempt(Watch(TIMES)) == 2
    for one in (first, second):
        one.database.close()


def test_a_holder_elsewhere_is_watched_before_it_is_refused_or_replaced(where: Where, home: Home) -> None:
    clock = Clock()
    elsewhere = Home(home.root / "elsewhere")
    elsewhere.prepare()
    first = candidate(where, elsewhere, clock, lock="x")
    assert first.attempt(Watch(TIMES)) == 1
    second, watch = candidate(where, home, clock, standby=False), Watch(TIMES)
    assert second.attempt(watch) is None, "nothing is known of it yet"
    with first.database.engine.connect() as db, first.database.writing(db).begin():
        leases.beat(db, 1)
    clock.s += 0.5
    with pytest.raises(UserError, match="another controller runs"):
        second.attempt(watch)
    third, watch = candidate(where, home, clock, standby=False), Watch(TIMES)
    for _ in range(40):
        if (epoch := third.attempt(watch)) is not None:
            break
        clock.s += 0.5
    assert epoch == 2
    for one in (first, second, third):
        one.database.close()


async def test_a_standby_that_is_stopped_leads_nothing(home: Home) -> None:
    first = candidate(home.journal, home, Clock())
    assert first.attempt(Watch(TIMES)) == 1
    second = candidate(home.journal, home, Clock())
    stopped = asyncio.Event()
    task = asyncio.create_task(second.lead(stopped))
    await asyncio.sleep(0)
    stopped.set()
    assert await task is None
    for one in (first, second):
        one.database.close()


def test_a_beater_keeps_the_lease_and_tells_when_it_is_lost(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(home.journal)
    epoch = journal.lead()
    lost = threading.Event()
    said: list[str] = []

    def on_lost(why: str) -> None:
        said.append(why)
        lost.set()

    # The wall clock steps back and forth; nobody reads it.
    monkeypatch.setattr(time, "time", iter(range(10**9, 0, -(10**7))).__next__)
    beater = Beater(journal.where, epoch, Times(0.04), on_lost)
    beater.start()
    begin = journal.lease().beat
    deadline = time.monotonic() + 30
    while journal.lease().beat < begin + 3:
        assert time.monotonic() < deadline
    assert not said
    other = Journal(home.journal)
    other.lead()
    assert lost.wait(30) and "has taken over with epoch 2" in said[0]
    beater.stop()
    other.close()
    journal.close()


def test_a_second_connection_of_a_process_drops_no_locks_of_the_first(tmp_path: Path) -> None:
    """POSIX locks go when any descriptor of the file is closed: then another process would remove the log under a writer."""
    journal = Journal(tmp_path / "j.db")
    journal.lead()
    list(journal.read())
    Database(tmp_path / "j.db").close()
    code = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT count(*) FROM segments'); db.close()"
    for n in range(1, 4):
        journal.append(batch(n))
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "j.db")], check=True)
        assert (tmp_path / "j.db-wal").exists()
    other = Database(tmp_path / "j.db")
    with other.engine.connect() as db, other.writing(db).begin():
        leases.beat(db, 1)
    other.close()
    journal.append(batch(4))
    journal.close()


@pytest.mark.slow
def test_one_that_is_paused_within_a_transaction_on_postgresql_does_not_block_the_next(request: pytest.FixtureRequest) -> None:
    where = request.getfixturevalue("postgres").database()
    journal = Journal(where)
    epoch = journal.lead()
    asleep = Database(where)
    with asleep.engine.connect() as db:
        db.begin()
        leases.beat(db, epoch)  # and nothing more: it holds the row
        next_one = Journal(where)
        begin = time.monotonic()
        assert next_one.lead() == 2 and time.monotonic() - begin < 8
        next_one.close()
        db.invalidate()
    asleep.close()
    journal.close()


@pytest.mark.parametrize(
    ("text", "wrong"), [("4s", ""), ("250ms", ""), ("1ms", "200ms to 10m"), ("1h", "200ms"), ("soon", "soon")]
)
def test_how_long_a_lease_may_stand_still(text: str, wrong: str) -> None:
    if text in ("4s", "250ms"):
        assert parse_lease(text).stale_s in (4.0, 0.25)
    else:
        with pytest.raises(UserError, match=wrong):
            parse_lease(text)


@pytest.mark.parametrize("text", ["sqlite:///x", "mysql://secret@h/x", "no url", "postgresq://u:secret@h/x", ""])
def test_an_address_that_is_no_postgresql_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(UserError, match="postgresql://USER@HOST/DATABASE") as caught:
        parse_where(text)
    assert "secret" not in str(caught.value)


def test_a_database_that_does_not_answer_is_one_line_without_a_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(UserError, match="the journal can't be opened") as caught:
        Journal(parse_where("postgresql://me:secret@127.0.0.1:1/x"))
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
