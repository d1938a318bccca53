"""What the journal tells of each job's past, and answers to a plan's requests from it.

The simulator and the live controller feed it the events as they journal them, and ask it for the `Estimated` events that a plan's
requests call for. It remembers live jobs only, and how long ended ones ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats
from headway.core.columns import Estimator, EventKind
from headway.core.events import EventBatch, EventBuffer
from headway.core.plan import Request
from headway.core.state import State
from headway.core.units import US_PER_S
from headway.perf.estimators import VERSION, JobHistory, answer
from headway.perf.params import R_MEDIAN
from headway.perf.remaining import History

KINDS = np.array(
    [EventKind.SUBMITTED, EventKind.START_REQUESTED, EventKind.STARTED, EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED,
     EventKind.OBSERVED, EventKind.REJECTED, EventKind.FINISHED],
    np.int64,
)  # fmt: skip
ENDS = (EventKind.COMPLETED, EventKind.REJECTED, EventKind.FINISHED)
FINAL_STOPS = (c.Reason.CANCELLED, c.Reason.EARLY_STOP, c.Reason.TIME_LIMIT)
POINTS_MAX = 400
"""Observations that a job keeps; beyond that every second one is dropped, so that old and new stay."""
UNKNOWN_REMAINING = -1
"""`Estimated`'s remaining time if there is no estimate."""


@dataclass(slots=True)
class Past:
    """One live job: observations, and what ran where."""

    user: int
    model: int
    gpus: int
    k: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    shape: tuple[int, int, int, int] = (1, 0, 1, 1)
    """Workers, servers, nodes and batch of the present attempt."""
    since_us: int = -1
    run_us: int = 0
    first: tuple[int, int] | None = None
    """When the present attempt first told how far it was (µs), and how far."""
    last: tuple[int, int] | None = None
    steps: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    """Seconds a unit, workers, servers, nodes, batch: one row for each earlier attempt that told enough."""

    def observe(self, t_us: int, k: int, loss: int, accuracy: int) -> None:
        """Take in a report."""
        self.k.append(k)
        self.loss.append(loss / 1e9 if loss != c.NOTHING else np.nan)
        self.accuracy.append(accuracy / 1e6 if accuracy != c.NOTHING else np.nan)
        if len(self.k) > POINTS_MAX:
            for column in (self.k, self.loss, self.accuracy):
                del column[:-1:2]
        self.first, self.last = self.first or (t_us, k), (t_us, k)

    def measured(self) -> tuple[float, int, int, int, int] | None:
        """The speed of the present attempt, if it has told of at least one unit between two reports."""
        if self.first is None or self.last is None or self.last[1] <= self.first[1]:
            return None
        return ((self.last[0] - self.first[0]) / US_PER_S / (self.last[1] - self.first[1]), *self.shape)

    def end_attempt(self, t_us: int) -> None:
        """The attempt is over."""
        if self.since_us >= 0:
            self.run_us += t_us - self.since_us
        if row := self.measured():
            self.steps.append(row)
        self.since_us, self.first, self.last = -1, None, None


class Histories:
    """A fold over the journal; `update` with every batch once, in order."""

    def __init__(self) -> None:
        self.live: dict[int, Past] = {}
        self.ended = History()

    def update(self, batch: EventBatch) -> None:
        """Take in events."""
        records = batch.records
        ends = np.cumsum(records[:, c.E_POOL])
        for i in np.flatnonzero(np.isin(records[:, c.E_KIND], KINDS)).tolist():
            t, kind, job, _, a, b, d, size = records[i].tolist()
            if kind == EventKind.SUBMITTED:
                spec = batch.pool[ends[i] - size : ends[i]].tolist()
                gpus = spec[c.J_DATA] * spec[c.J_PIPELINE] * spec[c.J_TENSOR] * spec[c.J_GPU_TASK]
                self.live[job] = Past(spec[c.J_USER], spec[c.J_MODEL], gpus)
                continue
            past = self.live.get(job)
            if past is None:
                continue
            if kind == EventKind.OBSERVED:
                past.observe(t, a, b, d)
            elif kind == EventKind.START_REQUESTED:
                nodes = len(set(batch.pool[ends[i] - size : ends[i] : c.PLACE].tolist()))
                servers = d & ((1 << 20) - 1)
                past.shape = (size // c.PLACE - servers, servers, nodes, max(d >> 20, 1))
            elif kind == EventKind.STARTED:
                past.since_us = t
            else:
                past.end_attempt(t)
                if kind == EventKind.COMPLETED:
                    self.ended.add(past.user, past.model, past.gpus, past.run_us / US_PER_S)
                if kind in ENDS or (kind == EventKind.STOPPED and a in FINAL_STOPS):
                    del self.live[job]

    def of(self, state: State, job: int, now_us: int) -> JobHistory:
        """What is known of a live job now."""
        past, row = self.live[job], state.row(job)
        J = state.J
        assert row is not None
        steps = past.steps + ([last] if (last := past.measured()) else [])
        columns = np.array(steps, np.float64).reshape(-1, 5).T
        run_s = (past.run_us + (now_us - past.since_us if past.since_us >= 0 else 0)) / US_PER_S
        announced, total, wanted = int(J[c.J_ESTIMATE, row]), int(J[c.J_UNITS_TOTAL, row]), int(J[c.J_ACC_REQUIRED, row])
        return JobHistory(
            k=np.array(past.k, np.float64), loss=np.array(past.loss), accuracy=np.array(past.accuracy),
            accuracy_required=wanted / 1e6 if wanted else np.nan, units_total=float(total) if total else np.nan,
            step_s=columns[0], workers=columns[1], servers=columns[2], nodes=columns[3], batch=columns[4],
            run_s=run_s, units_done=float(max(J[c.J_UNITS_DONE, row], 0)),
            units_per_s=1 / last[0] if last and last[0] > 0 else np.nan,
            like_s=self.ended.like(past.user, past.model, past.gpus),
            announced_s=announced / US_PER_S if announced < c.NEVER else np.nan,
        )  # fmt: skip

    def answer(self, state: State, requests: Sequence[Request], now_us: int) -> EventBatch:
        """The events that answer a plan's requests: each request, and for all of an estimator's jobs together their estimates.

        A job that has gone since is passed over.
        """
        out = EventBuffer()
        for kind in Estimator:
            asked = [one.job for one in requests if one.estimator == kind]
            jobs = [job for job in asked if job in self.live and state.row(job) is not None]
            if not jobs:
                continue
            for job in jobs:
                out.add(now_us, EventKind.ESTIMATE_REQUESTED, job, a=int(kind))
            params = answer(kind, [self.of(state, job, now_us) for job in jobs]).params
            for job, vector in zip(jobs, params, strict=True):
                left = remaining_us(vector) if kind == Estimator.REMAINING else 0
                out.add(now_us, EventKind.ESTIMATED, job, a=int(kind), b=VERSION, c=left, payload=vector.view(np.int64))
        return out.take()


def remaining_us(vector: Floats) -> int:
    """The remaining time of a REMAINING vector, µs."""
    return round(float(vector[R_MEDIAN]) * US_PER_S) if np.isfinite(vector[R_MEDIAN]) else UNKNOWN_REMAINING
