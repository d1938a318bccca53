"""Makes snapshots and archives while a controller runs: a thread that replays what has been journalled since the last one.

It works on a copy of its own, so the controller waits for nothing; it writes under the controller's epoch, so that one which
has been replaced writes nothing either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from headway.core.codec import DamagedSegmentError
from headway.core.errors import UserError
from headway.runtime.background import Background
from headway.runtime.folded import Folded, shadow
from headway.runtime.journal import Journal
from headway.runtime.journal_db import Where, reason
from headway.runtime.lease import FencedError
from headway.runtime.snapshot import NoPlainValueError

log = logging.getLogger(__name__)

SNAPSHOT_EVENTS = 50_000
"""Events after which a new snapshot is made."""
LOOK_S = 5.0


def keep(where: Where, epoch: int, policy: Any, go_on: Callable[[], bool] = lambda: True) -> int:
    """Make a snapshot of a journal, for the holder of an epoch, and move the segments before it into archives; the events up to
    it (0: there was nothing new).

    Raises:
        FencedError: another controller has taken over.
        DamagedSegmentError: the journal can't be read to its end.
        NoPlainValueError: the policy's memo can't be written down.
        UserError, OSError, SQLAlchemyError: something can't be read or written.
    """
    journal = Journal(where)
    try:
        made = shadow(journal, Folded.empty(policy), go_on)
        if journal.damage is not None:
            raise DamagedSegmentError(str(journal.damage))
        if made is None:
            return 0
        journal.keep_snapshot(epoch, made)
        journal.compact(epoch, made.seq)
        return made.events
    finally:
        journal.close()


class Keeper(Background):
    """The thread, for a journal that leads and has been recovered; `policy` is the controller's."""

    def __init__(self, journal: Journal, policy: Any, *, every: int = SNAPSHOT_EVENTS, look_s: float = LOOK_S) -> None:
        self._journal, self._epoch, self._policy = journal, journal.epoch, policy
        self._every, self._look_s, self._next = every, look_s, journal.kept_events + every
        super().__init__("headway-snapshots")

    def _run(self) -> None:
        while not self._end.wait(self._look_s):
            if self._journal.events >= self._next and not self._keep():
                return

    def _keep(self) -> bool:
        """One snapshot; whether to go on."""
        try:
            kept = keep(self._journal.where, self._epoch, self._policy, lambda: not self._end.is_set())
            self._next = (kept or self._journal.events) + self._every
        except FencedError:
            return False
        except (NoPlainValueError, DamagedSegmentError) as error:
            log.warning("no snapshots of the journal are made any more: %s", error)
            return False
        except (UserError, OSError, SQLAlchemyError) as error:
            log.warning("no snapshot of the journal could be made: %s; will be tried again", reason(error))
            self._next = self._journal.events + self._every // 4
        return True
