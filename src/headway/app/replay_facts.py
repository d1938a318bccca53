"""What a journal says of each job and of the cluster, gathered for a replay: attempts with their times, reports, what people
asked for, and which nodes there were when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.app.why import Recorded
from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import EventKind, Name, Phase, Reason
from headway.core.errors import UserError
from headway.metrics.fold import M_END, M_FINISHING, M_PHASE, MetricsFold
from headway.sim.recorded import Outside
from headway.workloads.cluster import ANY_KIND, Cluster, Node

OF_PEOPLE = range(EventKind.CANCEL_REQUESTED + 1, EventKind.WANTED)
"""What people ask of a job that is not its end: it is asked again at the same time."""
UPDATED = 15
"""The event that changes one number of a job's specification: `a` is the column, `b` the value."""
ENDS = frozenset({EventKind.START_FAILED, EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED})


@dataclass(slots=True)
class Attempt:
    """One attempt. Times µs; below 0: that has not happened."""

    number: int
    requested_us: int
    started_us: int = -1
    stop_us: int = -1
    ended_us: int = -1
    end: int = 0
    """The kind of the event that ended it."""
    reason: int = int(Reason.NONE)
    saved_units: int = -1
    """Units that were safe when it ended, where that was told."""
    reports: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Time, units, loss, accuracy."""

    def up_to_us(self, horizon_us: int) -> int:
        """Until when it worked."""
        return next((t for t in (self.stop_us, self.ended_us) if t >= 0), horizon_us)


@dataclass(slots=True)
class Job:
    """One job."""

    number: int
    submitted_us: int
    payload: Ints
    text: str
    attempts: list[Attempt] = field(default_factory=list)
    usage: dict[int, list[list[int]]] = field(default_factory=dict)
    """By task: what it used (GPU milli, cpus, memory, network), each time that it was measured."""
    cancel_us: int = -1
    refused: bool = False
    phase: Phase = Phase.QUEUED
    end_us: int = -1
    why: Reason = Reason.NONE
    """Why the scheduler ended it, if it did."""

    def spec(self, column: int) -> int:
        """A number of its specification."""
        return int(self.payload[column])

    @property
    def file(self) -> Mapping[str, Any]:
        """Its job file; empty where the journal has none."""
        try:
            found = json.loads(self.text) if self.text else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def loses(self) -> bool:
        """Whether it has nowhere to save to, so that a stop costs it all."""
        return bool(self.text) and not self.file.get("checkpoint", {}).get("dir")

    @property
    def ran(self) -> list[Attempt]:
        """The attempts that came up."""
        return [attempt for attempt in self.attempts if attempt.started_us >= 0]

    @property
    def reports(self) -> list[tuple[int, int, int, int]]:
        return [report for attempt in self.attempts for report in attempt.reports]


@dataclass(slots=True)
class Facts:
    """A whole journal."""

    jobs: dict[int, Job]
    """In order of submission."""
    names: dict[Name, dict[int, str]]
    cluster: Cluster
    node_faults: list[tuple[int, int, bool]]
    of_nodes: list[Outside]
    of_queues: list[Outside]
    of_jobs: list[Outside]
    """About jobs, by their numbers in the journal."""
    settings: list[Mapping[str, Any]]
    """The settings in force, one after the other."""
    metrics: MetricsFold
    horizon_us: int
    """The time of the last event."""
    released: list[str] = field(default_factory=list)
    """What was in the way of jobs when the journal ended, and is not in theirs after that, in words."""

    def named(self, table: Name, word: str) -> tuple[str, ...]:
        """All names of a table by number, without a gap."""
        found = self.names[table]
        return tuple(found.get(i, f"{word}{i}") for i in range(max(found, default=-1) + 1))

    @property
    def policies(self) -> list[str]:
        """The policies that have decided, in order."""
        specs = [str(one["policy"]) for one in self.settings if one.get("policy")]
        return [spec for i, spec in enumerate(specs) if i == 0 or spec != specs[i - 1]]


def gather(recorded: Recorded, source: str) -> Facts:
    """Read a journal's events into facts.

    Raises:
        UserError: no job has been submitted, or no node has been there.
    """
    batch = recorded.batch
    names: dict[Name, dict[int, str]] = {table: {} for table in Name}
    names[Name.JOB] = recorded.names
    jobs: dict[int, Job] = {}
    nodes = _Nodes()
    queues: list[Outside] = []
    of_jobs: list[Outside] = []
    settings: list[Mapping[str, Any]] = []
    at = 0
    for i, (t, kind, subject, number, a, b, d, size) in enumerate(batch.records.tolist()):
        payload = batch.pool[at : at + size]
        at += size
        if kind == EventKind.OBSERVED or kind == EventKind.SAVED:
            job = jobs.get(subject)
            if job is not None and job.attempts and job.attempts[-1].number == number:
                _told(job.attempts[-1], t, kind, a, b, d)
        elif kind == EventKind.USAGE:
            if subject in jobs and size == 4:
                jobs[subject].usage.setdefault(a, []).append(payload.tolist())
        elif kind == EventKind.NAMED:
            names[Name(a)][subject] = batch.texts.get(i, "")
        elif kind == EventKind.SUBMITTED:
            jobs[subject] = Job(subject, t, payload.copy(), batch.texts.get(i, ""))
        elif kind == EventKind.QUEUE_SET:
            queues.append(Outside(t, kind, subject, payload=tuple(payload.tolist())))
        elif kind == EventKind.SETTINGS_SET:
            settings.append(_settings(batch.texts.get(i, "")))
        elif EventKind.NODE_ADDED <= kind <= EventKind.NODE_DRAINING or kind == EventKind.CLUSTER_SET:
            nodes.take(t, kind, subject, (a, b, d), payload.tolist())
        elif subject in jobs and EventKind.SUBMITTED < kind <= EventKind.FAILED:
            _of_job(jobs[subject], of_jobs, t, kind, number, (a, b, d), payload)
    if not jobs:
        raise UserError("no job has been submitted: there is nothing to replay", file=source)
    if not nodes.rows:
        raise UserError("the journal has no nodes", file=source)
    metrics = MetricsFold()
    metrics.update(batch)
    for job in jobs.values():
        row = metrics.M[job.number]
        job.phase, job.end_us = Phase(int(row[M_PHASE])), int(row[M_END])
        job.why = Reason(int(row[M_FINISHING]))
    first = min(job.submitted_us for job in jobs.values())
    cluster, faults = nodes.cluster(names, source), nodes.faults_after(first)
    horizon = int(batch.records[-1, c.E_T])
    released = [*_release(jobs, of_jobs, horizon), *nodes.release(faults, horizon)]
    return Facts(jobs, names, cluster, faults, nodes.outside, queues, of_jobs, settings, metrics, horizon, released)


def _release(jobs: Mapping[int, Job], of_jobs: list[Outside], horizon_us: int) -> list[str]:
    """Release the jobs that are held at the end: nobody would, in a replay that goes on for longer."""
    held = {event.subject: event.a for event in of_jobs if event.kind == EventKind.HOLD_SET}
    still = [number for number, is_held in held.items() if is_held and jobs[number].phase < Phase.COMPLETED]
    of_jobs += [Outside(horizon_us, EventKind.HOLD_SET, number) for number in still]
    return [_counted(len(still), "job", "held")] if still else []


def _counted(count: int, what: str, state: str) -> str:
    return f"{count} {what}{'s were' if count > 1 else ' was'} {state}"


def _settings(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _told(attempt: Attempt, t: int, kind: int, a: int, b: int, d: int) -> None:
    if kind == EventKind.SAVED:
        attempt.saved_units = max(attempt.saved_units, a)
    elif attempt.started_us >= 0:
        attempt.reports.append((t, a, b, d))


def _of_job(
    job: Job, of_jobs: list[Outside], t: int, kind: int, number: int, fields: tuple[int, int, int], payload: Ints
) -> None:
    """Take in an event about a job that is no report of its progress."""
    last = job.attempts[-1] if job.attempts else None
    if kind == EventKind.REJECTED:
        job.refused = True
    elif kind == EventKind.CANCEL_REQUESTED:
        job.cancel_us = t if job.cancel_us < 0 else job.cancel_us
    elif kind == UPDATED and fields[0] == c.J_QUEUE:
        job.payload[c.J_QUEUE] = fields[1]  # in a replay it may run by then: it is in that queue from the first
    elif kind in OF_PEOPLE:
        of_jobs.append(Outside(t, kind, job.number, *fields, tuple(payload.tolist())))
    elif kind == EventKind.START_REQUESTED:
        job.attempts.append(Attempt(number, t))
    elif last is None or last.number != number or last.ended_us >= 0:
        return
    elif kind == EventKind.STARTED:
        last.started_us = t
    elif kind == EventKind.STOP_REQUESTED:
        last.stop_us = t if last.stop_us < 0 else last.stop_us
        last.reason = fields[0]
    elif kind in ENDS:
        last.ended_us, last.end = t, kind
        if kind in (EventKind.STOPPED, EventKind.FAILED):
            last.reason = fields[0]
            last.saved_units = max(last.saved_units, fields[1])


class _Nodes:
    """The nodes, and when they were there."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}
        self.outside: list[Outside] = []
        self.share_limit = c.WHOLE
        self._added: dict[int, int] = {}
        self._down: set[int] = set()
        self._faults: list[tuple[int, int, bool]] = []

    def take(self, t: int, kind: int, node: int, fields: tuple[int, int, int], payload: list[int]) -> None:
        if kind == EventKind.CLUSTER_SET:
            self.share_limit = payload[1] if len(payload) > 1 else c.WHOLE
            return
        if kind == EventKind.NODE_ADDED:
            self.rows[node] = payload
            self._added.setdefault(node, t)
            self._back(t, node)
        elif kind == EventKind.NODE_DOWN:
            if node not in self._down:
                self._down.add(node)
                self._faults.append((t, node, False))
        else:
            was_down = self._back(t, node)
            if kind == EventKind.NODE_DRAINING or not was_down:
                self.outside.append(Outside(t, kind, node, *fields))

    def _back(self, t: int, node: int) -> bool:
        if node not in self._down:
            return False
        self._down.discard(node)
        self._faults.append((t, node, True))
        return True

    def cluster(self, names: Mapping[Name, Mapping[int, str]], source: str) -> Cluster:
        """All nodes that there ever were, as they were at last."""
        kinds = names[Name.KIND]
        count = max(self.rows) + 1
        nodes = []
        for i in range(count):
            rack, kind, gpus, _, cpus, memory, network = self.rows.get(i, [0, 0, 0, 0, 1, 1, 1])[: c.NODE_SPEC_COLUMNS]
            nodes.append(Node(names[Name.NODE].get(i, f"n{i}"), rack, kind, gpus, cpus, memory, network))
        listed = tuple(kinds.get(i, ANY_KIND) for i in range(max(kinds, default=0) + 1))
        return Cluster(source, tuple(nodes), listed, share_limit_milli=self.share_limit)

    def release(self, faults: list[tuple[int, int, bool]], horizon_us: int) -> list[str]:
        """Give back the nodes that are drained or away at the end."""
        draining = {event.subject: event.kind == EventKind.NODE_DRAINING for event in self.outside}
        held = [node for node, is_held in draining.items() if is_held and node not in self._down]
        away = sorted(self._down)
        faults += [(horizon_us, node, True) for node in away]
        self.outside += [Outside(horizon_us, EventKind.NODE_UP, node) for node in held]
        found = [_counted(len(held), "node", "drained")] if held else []
        return found + ([_counted(len(away), "node", "away")] if away else [])

    def faults_after(self, first_us: int) -> list[tuple[int, int, bool]]:
        """When nodes were lost and came back; one that came after the first job is away until then."""
        late = [(0, node, False) for node, t in self._added.items() if t > first_us]
        back = [(t, node, True) for node, t in self._added.items() if t > first_us]
        return sorted(late + back + self._faults, key=lambda fault: (fault[0], np.bool_(fault[2])))
