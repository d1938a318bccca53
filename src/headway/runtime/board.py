"""What people are told of jobs: one record a job, folded from the journal beside the state.

The state forgets a job when it has ended; the board keeps the last `ENDED_KEPT` of those. What changes while a job is live
(phase, run time, reason) is read from the state when somebody asks.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import EventKind, Name, Phase, Reason, StopRule
from headway.core.events import EventBatch, of_kinds
from headway.core.model import DEFAULT_URGENCY
from headway.core.state import State

ENDED_KEPT = 10_000

_ENDS = {
    EventKind.COMPLETED: Phase.COMPLETED,
    EventKind.FINISHED: Phase.COMPLETED,
    EventKind.FAILED: Phase.FAILED,
    EventKind.START_FAILED: Phase.FAILED,
    EventKind.STOPPED: Phase.CANCELLED,
    EventKind.CANCEL_REQUESTED: Phase.CANCELLED,
    EventKind.REJECTED: Phase.REJECTED,
}
"""How a job has ended if this event was its last (used where the state no longer remembers)."""
_TOLD = (
    EventKind.HOLD_SET, EventKind.PRIORITY_SET, EventKind.UPDATED, EventKind.OBSERVED, EventKind.SAVED,
)  # fmt: skip
"""What changes a figure of a live job."""
_LOOKED_AT = of_kinds(
    *_ENDS, *_TOLD, EventKind.SUBMITTED, EventKind.START_REQUESTED, EventKind.STARTED, EventKind.STOP_REQUESTED
)  # fmt: skip
_RULES = tuple(rule.name.lower() for rule in StopRule)
PPM = 1_000_000
NANO = 1_000_000_000


@dataclass(slots=True)
class JobRecord:
    """One job, as people see it. Times are journal time in µs; `spec` is the job as JSON text."""

    number: int
    id: str
    name: str
    queue: str
    user: str
    spec: str
    submitted_us: int
    gpus: int = 0
    tasks: int = 0
    attempt: int = 0
    nodes: tuple[str, ...] = ()
    """Of the last attempt, each once, in the order of the ranks."""
    started_us: int | None = None
    """When the present attempt came up; None while none runs."""
    first_started_us: int | None = None
    ended_us: int | None = None
    run_us: int = 0
    """Run time of the attempts that are over."""
    preemptions: int = 0
    phase: Phase = Phase.QUEUED
    """How it has ended; of a live job the state knows better."""
    reason: Reason = Reason.NONE
    exit_code: int | None = None
    """Of the last attempt that is over."""
    message: str = ""
    """What the engine said of its end, or why the job was rejected."""
    stop_reason: Reason = Reason.NONE
    urgency: int = DEFAULT_URGENCY
    """Which it has; less than what was asked for (in `spec`) where the user's budget had no more."""
    urgency_asked: int = DEFAULT_URGENCY
    priority: int = 50
    deadline_us: int | None = None
    """When it should have ended; None: no matter."""
    time_limit_us: int | None = None
    held: bool = False
    group: str = ""
    total: int | None = None
    """Units that it has to do in all, as far as was told."""
    goal_accuracy: float | None = None
    stop_rule: str = "fixed"
    """Which its owner asked for."""
    units: int = 0
    """The most that it has told of, over all its attempts; `loss` and `accuracy` are the newest."""
    loss: float | None = None
    accuracy: float | None = None
    saved_units: int | None = None
    """In its newest durable checkpoint, as far as it has told of one."""

    @property
    def note(self) -> str:
        """What its owner should know of how it was taken in; nothing if it is as handed in."""
        if self.urgency >= self.urgency_asked:
            return ""
        left = self.urgency - DEFAULT_URGENCY
        return (
            f"urgency {self.urgency} instead of {self.urgency_asked}: "
            f"{left or 'none'} of the user's points above {DEFAULT_URGENCY} {'was' if left == 1 else 'were'} left"
        )

    @property
    def ended(self) -> bool:
        return self.ended_us is not None


class Board:
    """All live jobs, and the newest of those that have ended, by number and by id."""

    def __init__(self) -> None:
        self._records: dict[int, JobRecord] = {}
        self._by_id: dict[str, int] = {}
        self._ended: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self._records.values())

    def by_number(self, number: int) -> JobRecord | None:
        return self._records.get(number)

    def by_id(self, public_id: str) -> JobRecord | None:
        """The job of an id; also of its number, where no job has that id."""
        number = self._by_id.get(public_id)
        if number is None and public_id.isascii() and public_id.isdigit() and len(public_id) < 19:
            number = int(public_id)
        return None if number is None else self._records.get(number)

    def fold(self, batch: EventBatch, state: State) -> None:
        """Take in a batch that `state` has just applied."""
        wanted = np.flatnonzero(_LOOKED_AT[batch.records[:, c.E_KIND]])
        if not len(wanted):
            return
        ends = np.cumsum(batch.records[:, c.E_POOL])
        live_before = {number for number in batch.records[wanted, c.E_ID].tolist() if self._is_live(number)}
        for index, record, end in zip(wanted.tolist(), batch.records[wanted].tolist(), ends[wanted].tolist(), strict=True):
            payload = batch.pool[end - record[c.E_POOL] : end]
            if record[c.E_KIND] == EventKind.SUBMITTED:
                job = self._submitted(record, payload, batch.texts.get(index, ""), state)
                live_before.add(job.number)
            elif (job_or_none := self._records.get(int(record[c.E_ID]))) is not None and job_or_none.number in live_before:
                self._happened(job_or_none, record, payload, batch.texts.get(index), state)

    def _is_live(self, number: int) -> bool:
        found = self._records.get(number)
        return found is not None and not found.ended

    def _submitted(self, record: Sequence[int], payload: Ints, text: str, state: State) -> JobRecord:
        number, row = record[c.E_ID], payload[: c.SPEC_COLUMNS].tolist()
        public_id = state.names[Name.JOB].get(number, str(number))
        told = _told_in(text)
        job = JobRecord(
            number,
            public_id,
            str(told.get("name", "")) or public_id,
            state.name(Name.QUEUE, row[c.J_QUEUE]),
            state.name(Name.USER, row[c.J_USER]),
            text,
            record[c.E_T],
        )
        job.urgency, asked = row[c.J_URGENCY], told.get("urgency", DEFAULT_URGENCY)
        job.urgency_asked = asked if isinstance(asked, int) else job.urgency
        workers = row[c.J_DATA] * row[c.J_PIPELINE] * row[c.J_TENSOR]
        job.tasks, job.gpus = workers + row[c.J_SERVERS], workers * -(-row[c.J_GPU_TASK] // c.WHOLE)
        if len(payload) > c.SPEC_COLUMNS:
            job.gpus = int((-(-payload[c.SPEC_COLUMNS :: c.DETAIL] // c.WHOLE)).sum())
        job.priority, job.total = row[c.J_PRIORITY], row[c.J_UNITS_TOTAL] or None
        job.deadline_us, job.time_limit_us = _or_none(row[c.J_DEADLINE]), _or_none(row[c.J_TIME_LIMIT])
        if row[c.J_GROUP] >= 0:
            job.group = state.name(Name.GROUP, row[c.J_GROUP])
        if row[c.J_ACC_REQUIRED]:
            job.goal_accuracy = row[c.J_ACC_REQUIRED] / PPM
        job.stop_rule = _RULES[row[c.J_STOP_RULE]]
        self._records[number] = job
        self._by_id[public_id] = number
        return job

    def _happened(self, job: JobRecord, record: Sequence[int], payload: Ints, text: str | None, state: State) -> None:
        kind, t = EventKind(record[c.E_KIND]), record[c.E_T]
        if kind in _TOLD:
            if not job.ended:
                _told(job, kind, record, state)
            return
        if kind == EventKind.START_REQUESTED:
            nodes = payload.reshape(-1, c.PLACE)
            job.attempt, job.started_us, job.stop_reason, job.message = record[c.E_ATTEMPT], None, Reason.NONE, ""
            job.exit_code = None
            job.nodes = tuple(dict.fromkeys(state.name(Name.NODE, node) for node in nodes[:, 0].tolist()))
            job.gpus = sum(bin(mask & (2**64 - 1)).count("1") for mask in nodes[:, 1].tolist())
            return
        of_attempt = kind in (EventKind.STARTED, EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED, EventKind.START_FAILED)
        if of_attempt and record[c.E_ATTEMPT] != job.attempt:
            return
        if kind == EventKind.STARTED:
            job.started_us = t
            job.first_started_us = t if job.first_started_us is None else job.first_started_us
        elif kind == EventKind.STOP_REQUESTED:
            job.stop_reason = Reason(record[c.E_A])
            job.preemptions += job.stop_reason == Reason.PREEMPTED
        else:
            self._over(job, kind, record, text, state)

    def _over(self, job: JobRecord, kind: EventKind, record: Sequence[int], text: str | None, state: State) -> None:
        """An attempt is over, and perhaps the job with it."""
        t = record[c.E_T]
        if kind not in (EventKind.CANCEL_REQUESTED, EventKind.FINISHED, EventKind.REJECTED):
            if job.started_us is not None:
                job.run_us += t - job.started_us
            job.started_us, job.exit_code = None, record[c.E_C] if kind != EventKind.START_FAILED else None
        if text is not None:
            job.message = text
        if state.row(job.number) is not None:
            return
        if not job.ended:
            self._ended.append(job.number)
        job.ended_us = t
        job.phase = state.ended_phase(job.number) or _ENDS[kind]
        job.reason = _end_reason(job, kind, record[c.E_A])
        if kind == EventKind.FINISHED and job.reason == Reason.TIME_LIMIT:
            job.phase = Phase.FAILED
        while len(self._ended) > ENDED_KEPT:
            gone = self._records.pop(self._ended.popleft())
            self._by_id.pop(gone.id, None)


def _told(job: JobRecord, kind: EventKind, record: Sequence[int], state: State) -> None:
    """A figure of a live job changes."""
    a, b, asked = record[c.E_A], record[c.E_B], record[c.E_C]
    if kind == EventKind.OBSERVED:
        if record[c.E_ATTEMPT] == job.attempt:
            job.units = max(a, job.units)
            job.loss = job.loss if b == c.NOTHING else b / NANO
            job.accuracy = job.accuracy if asked == c.NOTHING else asked / PPM
    elif kind == EventKind.SAVED:
        if record[c.E_ATTEMPT] == job.attempt and (job.saved_units is None or a >= job.saved_units):
            job.saved_units = a
    elif kind == EventKind.HOLD_SET:
        job.held = bool(a)
    elif kind == EventKind.PRIORITY_SET:
        job.priority = a
    elif a == c.J_DEADLINE:
        job.deadline_us = _or_none(b)
    elif a == c.J_TIME_LIMIT:
        job.time_limit_us = _or_none(b)
    elif a == c.J_URGENCY:
        job.urgency, job.urgency_asked = b, max(asked, b)
    elif a == c.J_QUEUE:
        job.queue = state.name(Name.QUEUE, b)


def _or_none(time_us: int) -> int | None:
    return None if time_us >= c.NEVER else time_us


def _end_reason(job: JobRecord, kind: EventKind, a: int) -> Reason:
    if kind in (EventKind.REJECTED, EventKind.FINISHED):
        return Reason(a)
    if job.phase == Phase.CANCELLED:
        return Reason.CANCELLED
    if job.stop_reason in (Reason.EARLY_STOP, Reason.TIME_LIMIT) and kind != EventKind.COMPLETED:
        return job.stop_reason
    if kind == EventKind.START_FAILED:
        return Reason.START_FAILED
    return Reason.DONE if job.phase == Phase.COMPLETED else Reason.EXIT_CODE


def _told_in(text: str) -> dict[str, Any]:
    """A job's JSON; nothing if it is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
