"""What the journal tells of each job's past, and answers to a plan's requests from it.

The simulator and the live controller feed it the events as they journal them, and ask it for the `Estimated` events that a plan's
requests call for. It remembers live jobs only, and how long ended ones ran.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.codes import (
    K_COMPLETED,
    K_FAILED,
    K_FINISHED,
    K_OBSERVED,
    K_REJECTED,
    K_START,
    K_STARTED,
    K_STOPPED,
    K_SUBMITTED,
)
from headway.core.columns import Estimator, EventKind
from headway.core.events import EventBatch, EventBuffer
from headway.core.plan import Request
from headway.core.state import State
from headway.core.units import US_PER_S
from headway.perf.estimators import VERSION, JobHistory, answer
from headway.perf.params import R_MEDIAN
from headway.perf.remaining import History

WANTED = np.zeros(max(EventKind) + 1, np.bool_)
WANTED[[K_SUBMITTED, K_START, K_STARTED, K_STOPPED, K_COMPLETED, K_FAILED, K_OBSERVED, K_REJECTED, K_FINISHED]] = True
ENDS = (K_COMPLETED, K_REJECTED, K_FINISHED)
FINAL_STOPS = (c.Reason.CANCELLED, c.Reason.EARLY_STOP, c.Reason.TIME_LIMIT)
POINTS_MAX = 400
"""Observations that a job keeps; beyond that every second one is dropped, so that old and new stay."""
REPORT = 3
"""Numbers of a report: k, loss (1e-9), accuracy (1e-6); NOTHING where one was not told."""
OF_REPORTS = (Estimator.CURVE, Estimator.INVERSE)
"""What is estimated from a job's reports, and from what it is asked to reach: nothing else changes these estimates."""
UNKNOWN_REMAINING = -1
"""`Estimated`'s remaining time if there is no estimate."""


@dataclass(slots=True)
class Past:
    """One live job: observations, and what ran where."""

    user: int
    model: int
    gpus: int
    reports: array[int] = field(default_factory=lambda: array("q"))
    """REPORT numbers each."""
    told: int = 0
    """Reports in all."""
    known: dict[Estimator, tuple[tuple[int, int, int], Floats]] = field(default_factory=dict)
    """Estimates of reports, and what they were made from (see `Histories.basis`)."""
    shape: tuple[int, int, int, int] = (1, 0, 1, 1)
    """Workers, servers, nodes and batch of the present attempt."""
    since_us: int = -1
    run_us: int = 0
    first: tuple[int, int] | None = None
    """When the present attempt first told how far it was (µs), and how far."""
    last: tuple[int, int] | None = None
    steps: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    """Seconds a unit, workers, servers, nodes, batch: one row for each earlier attempt that told enough."""
    announced_us: int = c.NEVER
    """The run time that its user announced."""

    def observe(self, t_us: int, k: int, loss: int, accuracy: int) -> None:
        """Take in a report."""
        self.reports.extend((k, loss, accuracy))
        self.told += 1
        if len(self.reports) > REPORT * POINTS_MAX:
            table = np.array(self.reports, np.int64).reshape(-1, REPORT)
            kept = np.ones(len(table), np.bool_)
            kept[:-1:2] = False
            self.reports = array("q", table[kept].tobytes())
        self.last = (t_us, k)
        if self.first is None:
            self.first = self.last

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
        picked = np.flatnonzero(WANTED[batch.records[:, c.E_KIND]])
        if len(picked) == 0:
            return
        ends = np.cumsum(batch.records[:, c.E_POOL])[picked].tolist() if len(batch.pool) else [0] * len(picked)
        live = self.live
        for end, (t, kind, job, _, a, b, d, size) in zip(ends, batch.records[picked].tolist(), strict=True):
            if kind == K_SUBMITTED:
                spec = batch.pool[end - size : end].tolist()
                gpus = spec[c.J_DATA] * spec[c.J_PIPELINE] * spec[c.J_TENSOR] * spec[c.J_GPU_TASK]
                live[job] = Past(spec[c.J_USER], spec[c.J_MODEL], gpus, announced_us=spec[c.J_ESTIMATE])
                continue
            past = live.get(job)
            if past is None:
                continue
            if kind == K_OBSERVED:
                past.observe(t, a, b, d)
            elif kind == K_START:
                nodes = len(set(batch.pool[end - size : end : c.PLACE].tolist()))
                servers = d & ((1 << 20) - 1)
                past.shape = (size // c.PLACE - servers, servers, nodes, max(d >> 20, 1))
            elif kind == K_STARTED:
                past.since_us = t
            else:
                past.end_attempt(t)
                if kind == K_COMPLETED:
                    self.ended.add(past.user, past.model, past.gpus, past.run_us / US_PER_S)
                    if past.announced_us < c.NEVER:
                        self.ended.add_word(past.user, past.announced_us / US_PER_S, past.run_us / US_PER_S)
                if kind in ENDS or (kind == K_STOPPED and a in FINAL_STOPS):
                    del live[job]

    def basis(self, state: State, job: int) -> tuple[int, int, int]:
        """What estimates of a job's reports depend on: how many there were, and the units and the accuracy asked for."""
        J, row = state.J, state.row(job)
        assert row is not None
        return self.live[job].told, int(J[c.J_UNITS_TOTAL, row]), int(J[c.J_ACC_REQUIRED, row])

    def of(self, state: State, job: int, now_us: int) -> JobHistory:
        """What is known of a live job now."""
        past, row = self.live[job], state.row(job)
        J = state.J
        assert row is not None
        steps = past.steps + ([last] if (last := past.measured()) else [])
        columns = np.array(steps, np.float64).reshape(-1, 5).T
        k, loss, accuracy = np.array(past.reports, np.int64).reshape(-1, REPORT).T
        run_s = (past.run_us + (now_us - past.since_us if past.since_us >= 0 else 0)) / US_PER_S
        announced, total, wanted = int(J[c.J_ESTIMATE, row]), int(J[c.J_UNITS_TOTAL, row]), int(J[c.J_ACC_REQUIRED, row])
        return JobHistory(
            k=k.astype(np.float64), loss=told(loss, 1e9), accuracy=told(accuracy, 1e6),
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
            for job, vector in zip(jobs, self.estimates(kind, state, jobs, now_us), strict=True):
                left = remaining_us(vector) if kind == Estimator.REMAINING else 0
                out.add(now_us, EventKind.ESTIMATED, job, a=int(kind), b=VERSION, c=left, payload=vector.view(np.int64))
        return out.take()

    def estimates(self, kind: Estimator, state: State, jobs: Sequence[int], now_us: int) -> list[Floats]:
        """The vectors of live jobs; a curve is fitted anew only if something has been reported since."""
        if kind not in OF_REPORTS:
            return list(answer(kind, [self.of(state, job, now_us) for job in jobs]).params)
        based = {job: self.basis(state, job) for job in jobs}
        fresh = [job for job in based if kind not in self.live[job].known or self.live[job].known[kind][0] != based[job]]
        if fresh:
            params = answer(kind, [self.of(state, job, now_us) for job in fresh]).params
            for job, vector in zip(fresh, params, strict=True):
                self.live[job].known[kind] = (based[job], vector)
        return [self.live[job].known[kind][1] for job in jobs]


def told(column: Ints, unit: float) -> Floats:
    """Reported figures; NaN where none was."""
    figures: Floats = np.where(column == c.NOTHING, np.nan, column / unit)
    return figures


def remaining_us(vector: Floats) -> int:
    """The remaining time of a REMAINING vector, µs."""
    return round(float(vector[R_MEDIAN]) * US_PER_S) if np.isfinite(vector[R_MEDIAN]) else UNKNOWN_REMAINING
