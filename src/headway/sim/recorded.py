"""A world that goes as a recorded one went: durations, curves, lost nodes and what people asked for are as they were observed.

The kernels know the times of a job by columns of their own (`W_START`, `W_WARM`, `W_RESTORE`, `W_SAVE`), which no policy sees.
They report how far a job is; loss and accuracy are put into those reports here, from what the job told at that many units.
Events from outside (a priority that was changed, a node that was drained) come at their recorded times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.columns import EventKind
from headway.core.events import EventBatch, EventBuffer, concatenate
from headway.sim import columns as w
from headway.sim.world import World
from headway.workloads.cluster import Cluster
from headway.workloads.schema import Workload

OF_NODES = frozenset({EventKind.NODE_UP, EventKind.NODE_DRAINING})


@dataclass(frozen=True, slots=True)
class Points:
    """What a job told: loss (nano) and accuracy (ppm) at so many units, each series with units of its own, rising."""

    loss_at: Floats
    loss: Floats
    accuracy_at: Floats
    accuracy: Floats

    def loss_of(self, units: float) -> int:
        """The loss after so many units, on the straight line between two reports; NOTHING where none was told."""
        return _value(self.loss_at, self.loss, units)

    def accuracy_of(self, units: float) -> int:
        """The accuracy after so many units (ppm)."""
        return _value(self.accuracy_at, self.accuracy, units)


def _value(at: Floats, values: Floats, units: float) -> int:
    return round(float(np.interp(units, at, values))) if len(at) else c.NOTHING


@dataclass(frozen=True, slots=True)
class Outside:
    """An event that comes from outside, about a job (by its number in the workload) or a node."""

    t_us: int
    kind: int
    subject: int
    a: int = 0
    b: int = 0
    c: int = 0
    payload: tuple[int, ...] = ()


@dataclass(frozen=True)
class Truth:
    """What was observed of a workload's jobs (columns: one number a job, µs), and what else happened."""

    start_us: Ints
    """From a start request until the gang was up."""
    warm_us: Ints
    """From then until it made progress, in each attempt."""
    restore_us: Ints
    """So much longer in each attempt but the first."""
    save_us: Ints
    loses: Ints
    """1: stopped, it begins anew."""
    units: Ints
    """Units of the whole work; 0: it tells nothing of itself."""
    report_every: Ints
    """Units from one report to the next."""
    points: Mapping[int, Points] = field(default_factory=dict)
    usage: Mapping[int, Sequence[tuple[int, ...]]] = field(default_factory=dict)
    """What each task of a job used (GPU milli, cpus, memory, network), where it was measured: told when the job is up."""
    node_faults: tuple[tuple[int, int, bool], ...] = ()
    cancels: tuple[tuple[int, int], ...] = ()
    outside: Sequence[Outside] = ()
    """In order of time."""


class RecordedWorld(World):
    """The world of a `Truth`."""

    def __init__(self, workload: Workload, cluster: Cluster, truth: Truth, *, seed: int = 0) -> None:
        super().__init__(workload, cluster, seed=seed, node_faults=truth.node_faults, cancels=truth.cancels)
        self.truth, self._next = truth, 0
        W: Table = self.W
        W[w.W_START], W[w.W_WARM], W[w.W_LOSES] = truth.start_us, truth.warm_us, truth.loses
        W[w.W_RESTORE], W[w.W_SAVE] = truth.restore_us, truth.save_us
        W[w.W_UNITS], W[w.W_STEP] = truth.units, np.maximum(truth.report_every, 1)
        self.P[[w.P_REQ_GPU, w.P_REQ_CPU, w.P_REQ_MEM, w.P_REQ_NET]] = 0  # who slowed whom is in the times that were observed

    def next_us(self) -> int:
        return min(super().next_us(), self._outside_us())

    def _outside_us(self) -> int:
        events = self.truth.outside
        return events[self._next].t_us if self._next < len(events) else c.NEVER

    def advance(self, until_us: int, stop_on: int) -> EventBatch:
        t = self._outside_us()
        if t > until_us:
            return self._told(super().advance(until_us, stop_on))
        reports = self._told(super().advance(t, stop_on))
        if super().next_us() <= t:  # something has happened before then that the scheduler should hear of first
            return reports
        kept = EventBatch(reports.records.copy(), reports.pool.copy())
        return concatenate([kept, self._from_outside(t)])

    def _from_outside(self, t_us: int) -> EventBatch:
        """The events of this instant; those about jobs that have ended here, or that were refused, are left out."""
        out = EventBuffer(8, 8)
        while self._outside_us() == t_us:
            event = self.truth.outside[self._next]
            self._next += 1
            of_job = EventKind.SUBMITTED <= event.kind <= EventKind.WANTED
            if of_job and self.W[w.W_STATUS, event.subject] in (w.DONE, w.FUTURE):
                continue
            if event.kind in OF_NODES and not self.V[w.V_UP, event.subject]:
                continue
            out.add(t_us, event.kind, event.subject, a=event.a, b=event.b, c=event.c, payload=event.payload)
        return out.take()

    def execute(self, batch: EventBatch, now_us: int) -> EventBatch:
        return self._told(super().execute(batch, now_us))

    def _told(self, reports: EventBatch) -> EventBatch:
        """Put what the jobs told into their reports, in place, and what they use behind their starts."""
        records = reports.records
        if self.truth.usage and np.any(records[:, c.E_KIND] == EventKind.STARTED):
            reports = self._with_usage(reports)
            records = reports.records
        for i in np.flatnonzero(records[:, c.E_KIND] == EventKind.OBSERVED).tolist():
            points = self.truth.points.get(int(records[i, c.E_ID]))
            if points is not None:
                units = float(records[i, c.E_A])
                records[i, c.E_B], records[i, c.E_C] = points.loss_of(units), points.accuracy_of(units)
        return reports

    def _with_usage(self, reports: EventBatch) -> EventBatch:
        """The reports with a USAGE behind each STARTED, for each task that was measured."""
        out = EventBuffer(2 * len(reports) + 8, len(reports.pool) + 64)
        for i, (t, kind, job, attempt, *_) in enumerate(reports.records.tolist()):
            out.extend(reports.cut(i, i + 1))
            if kind == EventKind.STARTED:
                for task, figures in enumerate(self.truth.usage.get(job, ())[: int(self.W[w.W_TASKS, job])]):
                    out.add(t, EventKind.USAGE, job, attempt, a=task, payload=figures)
        return out.take()

    def units_done(self, job: int) -> float:
        """Units that a job has done by now."""
        return float(self.WF[w.F_DONE, job] * self.W[w.W_UNITS, job] / max(int(self.W[w.W_WORK, job]), 1))
