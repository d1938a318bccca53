"""The journal's events for those who follow them: the newest from memory, older ones from the journal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import EventKind, Reason
from headway.core.events import EventBatch
from headway.runtime.controller import Controller
from headway.runtime.journal import Journal

KEPT = 20_000
"""Events that are kept in memory."""
READ_MAX = 5_000
"""Events that are read from the journal at once."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its number in the journal (from 1), its record (`core.events`), and the text that hangs beside it."""

    seq: int
    record: Ints
    text: str


class Feed:
    """Hears what a controller journals. Counts it, too, for `/metrics`."""

    def __init__(self, controller: Controller) -> None:
        self.journal = controller.journal
        self.kinds: Counter[int] = Counter()
        """How many events of each kind since the start."""
        self.stops: Counter[int] = Counter()
        """How many stops were asked for, by reason."""
        self._batches: deque[tuple[int, EventBatch]] = deque()
        self._kept = 0
        controller.hearers.append(self._hear)

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self.journal.events

    def _hear(self, batch: EventBatch) -> None:
        kinds = batch.records[:, c.E_KIND].tolist()
        self.kinds.update(kinds)
        if EventKind.STOP_REQUESTED in kinds:
            asked = batch.records[batch.records[:, c.E_KIND] == EventKind.STOP_REQUESTED]
            self.stops.update(asked[:, c.E_A].tolist())
        self._batches.append((self.journal.events - len(batch) + 1, batch))
        self._kept += len(batch)
        while self._kept > KEPT and len(self._batches) > 1:
            self._kept -= len(self._batches.popleft()[1])

    def after(self, since: int) -> list[Event] | None:
        """The events after this number; None if some of them are not in memory any more."""
        if since >= self.last:
            return []
        if not self._batches or since + 1 < self._batches[0][0]:
            return None
        found: list[Event] = []
        for first, batch in reversed(self._batches):
            if first + len(batch) - 1 <= since:
                break
            found[:0] = _events(first, batch, since)
        return found


def _events(first: int, batch: EventBatch, since: int) -> Iterator[Event]:
    for index in range(max(since + 1 - first, 0), len(batch)):
        yield Event(first + index, batch.records[index], batch.texts.get(index, ""))


def read_after(journal: Journal, since: int) -> list[Event]:
    """The next events after this number, from the journal's database, over a connection of its own (for a thread)."""
    reader = Journal(journal.where, writes=False)
    found: list[Event] = []
    try:
        segment, first = reader.before(since + 1)
        for batch in reader.read(segment, first):
            found.extend(_events(first + 1, batch, since))
            first += len(batch)
            if len(found) >= READ_MAX:
                break
    finally:
        reader.close()
    return found


def reason_in(event: Event) -> Reason:
    """The reason that an event carries."""
    kinds = (EventKind.STOP_REQUESTED, EventKind.STOPPED, EventKind.REJECTED, EventKind.FINISHED, EventKind.WHY)
    code = int(event.record[c.E_A])
    return Reason(code) if event.record[c.E_KIND] in kinds and code in _REASONS else Reason.NONE


_REASONS = frozenset(int(reason) for reason in Reason)
