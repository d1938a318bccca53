"""Who may write a journal: a lease with an epoch, in the journal's own database.

Whoever leads has written its epoch into the lease, and each of its writes checks in the same transaction that it is still
there. So a controller that was paused, or cut off, and wakes after another has taken over can write nothing; and since
nothing is done that is not in the journal first, it can do nothing.

**No clock is compared with another.** The holder counts `beat` up, at least every `beat_s` and with each write. Whoever waits
watches the number: when it has stood still for `stale_s` on the watcher's own monotonic clock, the holder is dead, paused or
cut off, and the epoch is raised, provided that nothing has moved meanwhile. Only time between two looks that both succeeded
counts, and of it at most two pauses: a watcher that was itself asleep, or that could not reach the database, starts no coup.
A step of a wall clock changes nothing. On one home there is a quicker proof: the kernel drops a dead process' file lock.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from headway.core.errors import UserError, shown
from headway.core.units import US_PER_S, parse_duration
from headway.engines import proc
from headway.runtime.background import Background
from headway.runtime.clock import read_boot_id
from headway.runtime.home import Home
from headway.runtime.journal_db import Database, Where, is_busy, lease, reason

log = logging.getLogger(__name__)

LEASE_S = 4.0
PER_BEAT, PER_LOOK = 4, 8
"""Beats, and looks of a watcher, within the time after which a lease counts as stale."""

BUSY_MS = 1000
"""How long a watcher waits for a lock on a SQLite file, ms."""


class FencedError(Exception):
    """Another controller has taken over: this one may do nothing more."""


@dataclass(frozen=True, slots=True)
class Times:
    """The rhythm of a lease, s. All who share a journal should have the same `stale_s`."""

    stale_s: float = LEASE_S

    @property
    def beat_s(self) -> float:
        return self.stale_s / PER_BEAT

    @property
    def look_s(self) -> float:
        return self.stale_s / PER_LOOK


def parse_lease(text: str) -> Times:
    """The rhythm that a person asks for. `UserError` if it is no time, or one that makes no sense."""
    try:
        stale_us = parse_duration(text)
    except ValueError as error:
        raise UserError(str(error), key="lease") from None
    if not 200_000 <= stale_us <= 600 * US_PER_S:
        raise UserError(f"expected a time from 200ms to 10m, got {shown(text)}", key="lease")
    return Times(stale_us / US_PER_S)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lease: who it is for people, and how its death can be proved."""

    host: str
    pid: int
    boot_id: str
    start_ticks: int
    home: str
    lock: str
    """The name of its file lock in the home; empty: none."""

    @classmethod
    def me(cls, home: str = "", lock: str = "") -> Holder:
        """This process."""
        found = proc.process(os.getpid())
        return cls(socket.gethostname(), os.getpid(), read_boot_id(), found.start_ticks if found else 0, home, lock)

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Holder | None:
        """The holder that a lease names; None if it can't be read."""
        try:
            found: dict[str, Any] = json.loads(text)
            return cls(**{name: found[name] for name in cls.__dataclass_fields__})
        except (ValueError, KeyError, TypeError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease as it stands. No `holder_text`: nobody leads."""

    epoch: int
    beat: int
    holder_text: str | None

    @property
    def holder(self) -> Holder | None:
        return Holder.from_text(self.holder_text) if self.holder_text else None


def look(db: Connection) -> Lease:
    """The lease in the database."""
    row = db.execute(sa.select(lease.c.epoch, lease.c.beat, lease.c.holder)).one()
    return Lease(int(row.epoch), int(row.beat), row.holder)


def take(db: Connection, seen: Lease, holder: Holder) -> int | None:
    """Take the lease over with a new epoch, if it stands as it was seen; returns the epoch, or None."""
    same = (lease.c.epoch == seen.epoch) & (lease.c.beat == seen.beat)
    values = {"epoch": seen.epoch + 1, "beat": seen.beat + 1, "holder": holder.to_text()}
    return seen.epoch + 1 if db.execute(lease.update().where(same).values(values)).rowcount == 1 else None


def beat(db: Connection, epoch: int) -> None:
    """Say that the holder of this epoch lives.

    Raises:
        FencedError: it is the holder no more.
    """
    if db.execute(lease.update().where(lease.c.epoch == epoch).values(beat=lease.c.beat + 1)).rowcount != 1:
        raise FencedError(fenced_text(look(db), epoch))


def release(db: Connection, epoch: int) -> None:
    """The holder of this epoch goes; nothing happens if it is the holder no more."""
    db.execute(lease.update().where(lease.c.epoch == epoch).values(holder=None, beat=lease.c.beat + 1))


def fenced_text(now: Lease, epoch: int) -> str:
    """Why a controller may do nothing more."""
    return f"another controller ({now.holder or 'unknown'}) has taken over with epoch {now.epoch}; this one had {epoch}"


@dataclass(slots=True)
class Watch:
    """What a watcher knows of a lease that another holds: for how long it has stood still."""

    times: Times
    seen: Lease | None = None
    moved: bool = False
    """Whether it has been seen to move."""
    still_s: float = 0.0
    _looked_s: float = 0.0

    def look(self, found: Lease, now_s: float) -> bool:
        """Take in a look at a time of one's own monotonic clock; whether the lease is stale."""
        if found == self.seen:
            self.still_s += min(now_s - self._looked_s, 2 * self.times.look_s)
        else:
            self.moved, self.still_s = self.seen is not None, 0.0
        self.seen, self._looked_s = found, now_s
        return self.still_s >= self.times.stale_s


@dataclass(slots=True)
class Candidate:
    """A process that wants to lead: takes the lease when it is free, or when whoever holds it is dead or stands still.

    `home` and `holder.lock` prove deaths on the same home. Errors of the database are waited out by a standby.
    """

    database: Database
    home: Home
    holder: Holder
    times: Times
    standby: bool = False
    on_wait: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    _told: bool = field(default=False, init=False)

    async def lead(self, stopped: asyncio.Event) -> int | None:
        """The epoch with which this process leads now; None if it was stopped before.

        Raises:
            UserError: another one leads (and this is no standby).
        """
        watch = Watch(self.times)
        while not stopped.is_set():
            try:
                if epoch := self.attempt(watch):
                    return epoch
            except SQLAlchemyError as error:
                if not self.standby and not is_busy(error):
                    raise UserError(f"the journal can't be written: {reason(error)}", file=self.database.label) from None
                self._wait_for(f"the journal can't be reached: {reason(error)}")
            try:
                await asyncio.wait_for(stopped.wait(), self.times.look_s)
            except TimeoutError:
                continue
        return None

    def attempt(self, watch: Watch) -> int | None:
        """One look; the epoch if the lease could be taken."""
        with self.database.engine.connect() as db:
            with self.database.reading(db).begin():
                found = look(db)
            stale = watch.look(found, self.clock())
            alive = None if found.holder is None else self.is_alive(found.holder)
            if found.holder_text is None or stale or alive is False:
                if self.database.is_file:
                    db.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_MS}")
                    db.rollback()
                try:
                    with self.database.writing(db).begin():
                        return take(db, found, self.holder)
                except SQLAlchemyError as error:
                    if is_busy(error) and stale and found.holder is not None and self.database.is_file:
                        self._end_stalled(found.holder)
                    raise
        if not self.standby and (alive or watch.moved):
            raise UserError(self._refusal(found.holder))
        self._wait_for(f"standing by: {found.holder or 'another controller'} leads")
        return None

    def is_alive(self, holder: Holder) -> bool | None:
        """Whether a holder's process exists; None where that can't be told from here."""
        return self.home.is_held(holder.lock) if holder.home == str(self.home.root) and holder.lock else None

    def _end_stalled(self, holder: Holder) -> None:
        """A process that was paused while it wrote keeps a SQLite file locked; on this machine it can be ended."""
        found = proc.process(holder.pid)
        if holder.boot_id == read_boot_id() and found is not None and found.start_ticks == holder.start_ticks:
            log.warning("%s stands still and keeps the journal locked: it is killed", holder)
            proc.kill(found, signal.SIGKILL)

    def _refusal(self, holder: Holder | None) -> str:
        at = self.home.address().get("url", "")
        where = f"it listens on {at}" if at else str(holder or "unknown")
        return f"another controller runs on the home {self.home.root} ({where}); one that waits for its end: headway up --standby"

    def _wait_for(self, why: str) -> None:
        if not self._told:
            self._told = True
            self.on_wait(why)


class Beater(Background):
    """A thread that keeps a lease, so that a policy that thinks for long does not lose it.

    `on_lost` is called, in the thread, when another has taken over.
    """

    def __init__(self, where: Where, epoch: int, times: Times, on_lost: Callable[[str], None]) -> None:
        self._where, self._epoch, self._times, self._on_lost = where, epoch, times, on_lost
        super().__init__("headway-lease")

    def _run(self) -> None:
        database = None
        told = ""
        try:
            while not self._end.wait(self._times.beat_s):
                try:
                    database = database or Database(self._where)
                    with database.engine.connect() as db, database.writing(db).begin():
                        beat(db, self._epoch)
                    told = ""
                except FencedError as error:
                    self._on_lost(str(error))
                    return
                except (SQLAlchemyError, UserError) as error:
                    if (text := reason(error)) != told:
                        log.warning("the lease can't be renewed: %s; will be tried again", text)
                        told = text
        finally:
            if database is not None:
                database.close()
