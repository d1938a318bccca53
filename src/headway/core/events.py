"""Events: what has happened, as columns of integers.

A batch is `records`, int64 of shape (n, 8): time µs, kind, subject (a job's or node's number), attempt, three fields a, b, c,
and the length of its
payload in `pool`; payloads follow each other in `pool` in the order of the records. Text (names, a job's file) hangs beside by
index.
`docs/journal.md` says what each kind carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from headway.core.arrays import Ints, Table
from headway.core.columns import E_KIND, E_POOL, E_T, NOTHING, RECORD, EventKind

NO_TEXTS: dict[int, str] = {}
METRIC_MAX = 1e9
"""A loss or an accuracy further from 0 is taken as this."""


@dataclass(slots=True)
class EventBatch:
    """Events in the order in which they happened."""

    records: Table
    pool: Ints
    texts: Mapping[int, str] = field(default_factory=NO_TEXTS.copy)

    def __len__(self) -> int:
        return len(self.records)

    def __add__(self, other: EventBatch) -> EventBatch:
        return concatenate((self, other))

    def kinds(self) -> list[EventKind]:
        """The kind of each event (for tests and people)."""
        return [EventKind(int(k)) for k in self.records[:, E_KIND]]

    def payloads(self) -> list[Ints]:
        """The payload of each event, in order."""
        ends = np.cumsum(self.records[:, E_POOL])
        return [self.pool[end - n : end] for end, n in zip(ends, self.records[:, E_POOL], strict=True)]

    def cut(self, first: int, stop: int) -> EventBatch:
        """The events `first … stop - 1` as a batch of their own."""
        ends = np.concatenate(([0], np.cumsum(self.records[:, E_POOL])))
        texts = {i - first: text for i, text in self.texts.items() if first <= i < stop}
        return EventBatch(self.records[first:stop].copy(), self.pool[ends[first] : ends[stop]].copy(), texts)


def concatenate(batches: Iterable[EventBatch]) -> EventBatch:
    """One batch of all, in order."""
    parts = list(batches)
    texts: dict[int, str] = {}
    offset = 0
    for part in parts:
        texts.update({offset + i: text for i, text in part.texts.items()})
        offset += len(part)
    if not parts:
        return EMPTY
    return EventBatch(np.concatenate([p.records for p in parts]), np.concatenate([p.pool for p in parts]), texts)


EMPTY = EventBatch(np.empty((0, RECORD), np.int64), np.empty(0, np.int64))


class EventBuffer:
    """Where events are collected before they become a batch. Kernels write into `records` and `pool` themselves and tell by
    `fill`."""

    __slots__ = ("count", "pool", "pool_count", "records", "texts")

    def __init__(self, events: int = 256, pool: int = 1024) -> None:
        self.records = np.empty((events, RECORD), np.int64)
        self.pool = np.empty(pool, np.int64)
        self.texts: dict[int, str] = {}
        self.count = 0
        self.pool_count = 0

    def reserve(self, events: int, pool: int) -> None:
        """Make room for `events` more events with `pool` more payload integers."""
        if self.count + events > len(self.records):
            self.records = _grown(self.records, self.count + events)
        if self.pool_count + pool > len(self.pool):
            self.pool = _grown(self.pool, self.pool_count + pool)

    def add(
        self, t_us: int, kind: int, subject: int = 0, attempt: int = 0, a: int = 0, b: int = 0, c: int = 0,
        payload: Sequence[int] | Ints = (), text: str | None = None,
    ) -> None:  # fmt: skip
        """Append one event."""
        size = len(payload)
        self.reserve(1, size)
        self.records[self.count] = (t_us, kind, subject, attempt, a, b, c, size)
        if size:
            self.pool[self.pool_count : self.pool_count + size] = payload
        if text is not None:
            self.texts[self.count] = text
        self.count += 1
        self.pool_count += size

    def extend(self, batch: EventBatch) -> None:
        """Append a whole batch."""
        records, pool = batch.records, batch.pool
        first, at = self.count, self.pool_count
        stop, end = first + records.shape[0], at + pool.shape[0]
        if stop > self.records.shape[0] or end > self.pool.shape[0]:
            self.reserve(records.shape[0], pool.shape[0])
        self.records[first:stop] = records
        if end > at:
            self.pool[at:end] = pool
        if batch.texts:
            self.texts.update({first + i: text for i, text in batch.texts.items()})
        self.count, self.pool_count = stop, end

    def fill(self, count: int, pool_count: int) -> None:
        """Say how much of the arrays a kernel has filled."""
        self.count, self.pool_count = count, pool_count

    def take(self) -> EventBatch:
        """Everything collected so far, as a batch of its own; the buffer is empty afterwards."""
        batch = EventBatch(self.records[: self.count].copy(), self.pool[: self.pool_count].copy(), self.texts)
        self.clear()
        return batch

    def peek(self) -> EventBatch:
        """Everything collected so far, without a copy: valid until the buffer is written again."""
        return EventBatch(self.records[: self.count], self.pool[: self.pool_count], self.texts)

    def clear(self) -> None:
        self.count = self.pool_count = 0
        self.texts = {}


def of_kinds(*kinds: EventKind) -> NDArray[np.bool_]:
    """Which kinds of events are meant, by their numbers: indexed with a column of kinds it says which events are."""
    found = np.zeros(int(max(EventKind)) + 1, np.bool_)
    found[list(kinds)] = True
    return found


def report_ints(loss: float | None = None, accuracy: float | None = None) -> tuple[int, int]:
    """What a job tells of itself, as OBSERVED carries it: the loss in 1e-9, the accuracy in ppm.

    What was not told or is no finite number (NaN, ±inf) is NOTHING; what lies beyond ±METRIC_MAX is that.
    """
    return _fixed(loss, 1e9), _fixed(accuracy, 1e6)


def _fixed(value: float | None, scale: float) -> int:
    if value is None or not isfinite(value):
        return NOTHING
    return round(min(max(value, -METRIC_MAX), METRIC_MAX) * scale)


def _grown(array: Table, size: int) -> Table:
    bigger = np.empty((max(size, 2 * len(array)), *array.shape[1:]), np.int64)
    bigger[: len(array)] = array
    return bigger


def is_sorted(batch: EventBatch) -> bool:
    """Whether times never go back within the batch."""
    times = batch.records[:, E_T]
    return bool(np.all(times[1:] >= times[:-1]))
