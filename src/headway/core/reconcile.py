"""What the scheduler believes against what an engine really has: the difference, as events. There is no other recovery code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.core import columns as c
from headway.core.columns import EventKind, Phase, Reason
from headway.core.events import EventBatch, EventBuffer
from headway.core.state import State


@dataclass(frozen=True, slots=True)
class Found:
    """What an engine says of one attempt: it runs (`up`: all its tasks have come up), or how it ended."""

    job: int
    attempt: int
    runs: bool
    up: bool = False
    ended: EventKind = EventKind.STOPPED
    """COMPLETED, FAILED, STOPPED or START_FAILED, for one that does not run."""
    exit_code: int = 0


def reconcile(state: State, found: Mapping[int, Found], now_us: int) -> tuple[EventBatch, list[Found]]:
    """Events that bring the state to the truth, and the attempts that run but must not (to be stopped by the caller).

    `found` holds the newest attempt that the engine knows of each job. A live attempt that the engine does not know at all is
    gone: it is reported stopped,
    so that the job queues again.
    """
    events = EventBuffer()
    orphans = [f for f in found.values() if f.runs and _must_stop(state, f)]
    J = state.J
    for row in state.live_rows():
        phase, job, attempt = Phase(int(J[c.J_PHASE, row])), int(J[c.J_ID, row]), int(J[c.J_ATTEMPT, row])
        if phase == Phase.QUEUED:
            continue
        seen = found.get(job)
        if seen is None or seen.attempt != attempt:
            events.add(now_us, EventKind.STOPPED, job, attempt, a=Reason.NODE_LOST, b=-1)
        elif seen.runs:
            if phase == Phase.STARTING and seen.up:
                events.add(now_us, EventKind.STARTED, job, attempt)
        elif seen.ended == EventKind.COMPLETED:
            events.add(now_us, EventKind.COMPLETED, job, attempt)
        else:
            events.add(now_us, seen.ended, job, attempt, b=-1, c=seen.exit_code)
    return events.take(), orphans


def _must_stop(state: State, found: Found) -> bool:
    """Whether a running attempt is not the one that the state wants to run, or one whose stop may never have been carried out."""
    row = state.row(found.job)
    if row is None or state.J[c.J_ATTEMPT, row] != found.attempt:
        return True
    return bool(state.J[c.J_PHASE, row] in (Phase.QUEUED, Phase.STOPPING))
