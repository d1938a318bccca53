"""Attempts as a journal tells them: when each was requested, came up, was told to stop and was over, and on which GPUs.

The reports of an attempt are told apart by (job, attempt); a repeated one changes nothing, as in `metrics.fold`. What the
pictures of a run need (who held which GPU when, how many jobs were queued) follows from these rows by vectorised sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.columns import EventKind
from headway.core.events import EventBatch

_ENDS = (EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED, EventKind.START_FAILED)
_KINDS = np.array([EventKind.START_REQUESTED, EventKind.STARTED, EventKind.STOP_REQUESTED, *_ENDS], np.int64)
_ATTEMPT_BITS = 20
_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Spans:
    """One row an attempt, in the order of the start requests. Times are µs, NEVER where it did not happen (yet).

    `places` is (tasks, 3): node, mask of its GPUs, thousandths booked on each; those of attempt *i* are rows
    `place_at[i] … place_at[i + 1] − 1`.
    """

    job: Ints
    attempt: Ints
    requested: Ints
    started: Ints
    stopping: Ints
    ended: Ints
    milli: Ints
    restore: Ints
    """How long it restored after it came up: 0 for a first attempt."""
    place_at: Ints
    places: Table

    def __len__(self) -> int:
        return len(self.job)


class SpansFold:
    """Gathers the events of attempts while they pass. `update` with every batch once, in order."""

    def __init__(self) -> None:
        self._records: list[Table] = []
        self._pools: list[Ints] = []
        self._restore: list[Table] = []

    def update(self, batch: EventBatch) -> None:
        """Take in a batch."""
        records = batch.records
        kinds, sizes = records[:, c.E_KIND], records[:, c.E_POOL]
        self._records.append(records[np.isin(kinds, _KINDS)])
        self._pools.append(batch.pool[np.repeat(kinds == EventKind.START_REQUESTED, sizes)])
        submitted = np.flatnonzero(kinds == EventKind.SUBMITTED)
        at = (np.cumsum(sizes) - sizes)[submitted]
        self._restore.append(np.column_stack((records[submitted, c.E_ID], batch.pool[at + c.J_RESTORE])))

    def spans(self) -> Spans:
        """The attempts so far."""
        empty = np.empty((0, c.RECORD), np.int64)
        records = np.concatenate([empty, *self._records])
        places = np.concatenate([empty[0:0, 0], *self._pools]).reshape(-1, c.PLACE)
        kinds = records[:, c.E_KIND]
        keys = records[:, c.E_ID] << _ATTEMPT_BITS | records[:, c.E_ATTEMPT]
        start = np.flatnonzero(kinds == EventKind.START_REQUESTED)
        key = keys[start]

        def first(*wanted: EventKind) -> Ints:
            """The index of each attempt's first record of these kinds."""
            rows = np.flatnonzero(np.isin(kinds, np.array(wanted, np.int64)))
            known, at = np.unique(keys[rows], return_index=True)
            index = np.full(len(key), _LAST, np.int64)
            if len(known):
                found = np.minimum(np.searchsorted(known, key), len(known) - 1)
                hit = known[found] == key
                index[hit] = rows[at[found[hit]]]
            return index

        ended, stopping, started = first(*_ENDS), first(EventKind.STOP_REQUESTED), first(EventKind.STARTED)
        stopping[stopping > ended] = _LAST
        started[(started > ended) | (started > stopping)] = _LAST

        def time(index: Ints) -> Ints:
            times = np.full(len(index), c.NEVER, np.int64)
            times[index < _LAST] = records[index[index < _LAST], c.E_T]
            return times

        restore_of = np.concatenate([np.empty((0, 2), np.int64), *self._restore])
        by_job = np.zeros(int(restore_of[:, 0].max(initial=-1)) + 1, np.int64)
        by_job[restore_of[:, 0]] = restore_of[:, 1]
        job, attempt = records[start, c.E_ID], records[start, c.E_ATTEMPT]
        place_at = np.concatenate(([0], np.cumsum(records[start, c.E_POOL] // c.PLACE)))
        return Spans(
            job=job,
            attempt=attempt,
            requested=records[start, c.E_T],
            started=time(started),
            stopping=time(stopping),
            ended=time(ended),
            milli=_sums(np.bitwise_count(places[:, 1]).astype(np.int64) * places[:, 2], place_at),
            restore=np.where(attempt > 1, by_job[job], 0) if len(job) else job,
            place_at=place_at,
            places=places,
        )


def _sums(values: Ints, at: Ints) -> Ints:
    """The sum of each run `at[i] … at[i + 1] − 1` of values."""
    before: NDArray[np.int64] = np.concatenate(([0], np.cumsum(values)))
    return before[at[1:]] - before[at[:-1]]
