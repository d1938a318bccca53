"""Random states for the checks of policies: a seed becomes a journal in which anything may have happened."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind, NodePhase, Phase, Reason
from headway.core.events import EventBatch, EventBuffer, concatenate
from headway.core.round import settled
from headway.core.state import State
from headway.core.view import ClusterView, mask_of
from headway.testing.builders import submissions, workload
from headway.testing.scenarios import random_cluster, random_jobs

US = 1_000_000
STEPS_PER_JOB = 3
JOB_FIRST, JOB_STEP = 7, 3
"""Renumbered: job `i` becomes `JOB_FIRST + JOB_STEP · i`."""


@dataclass(frozen=True)
class Case:
    """A journal, and the time of the decision that is to follow."""

    journal: EventBatch
    now_us: int

    def state(self) -> State:
        """A state of its own."""
        made = State()
        made.apply(self.journal)
        return made

    def view(self, seed: int = 0) -> ClusterView:
        return ClusterView(self.state(), self.now_us, seed)


class Story:
    """A state to which random things happen; every event is kept."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.where = random_cluster(self.r, nodes_max=6)
        self.state = State()
        self.parts: list[EventBatch] = []
        self.now = 0
        self.take(self.where.events(0, ("ann", "bob"), ("one", "two")))

    def take(self, batch: EventBatch) -> None:
        if len(batch):
            own = EventBatch(batch.records.copy(), batch.pool.copy(), dict(batch.texts))
            self.parts.append(own)
            self.state.apply(own)

    def event(self, kind: EventKind, subject: int, attempt: int = 0, **fields: object) -> None:
        out = EventBuffer()
        out.add(self.now, kind, subject, attempt, **fields)  # type: ignore[arg-type]
        self.take(out.take())

    def run(self) -> Case:
        """Submit jobs one by one, with something happening in between."""
        jobs = random_jobs(self.r, self.where, self.r.randint(3, 16), sharing=self.r.random() < 0.3)
        arriving = submissions(workload(jobs, kinds=self.where.kinds, users=("ann", "bob"), queues=("one", "two")))
        for i in range(len(arriving)):
            one = arriving.cut(i, i + 1)
            self.now = max(self.now, int(one.records[0, c.E_T]))
            one.records[0, c.E_T] = self.now
            self.take(one)
            for _ in range(self.r.randint(0, STEPS_PER_JOB)):
                self.happen()
        return Case(concatenate(self.parts), self.now + self.r.choice([0, 0, 1, 17, 400]) * US)

    def happen(self) -> None:
        """Something happens to a random job or node, and what follows from it."""
        self.now += self.r.choice([0, 1, 5, 60]) * US
        if self.r.random() < 0.08:
            self.happen_to_node(self.r.randrange(len(self.where.nodes)))
        elif len(rows := self.state.live_rows()):
            self.happen_to_job(int(self.r.choice(rows.tolist())))
        self.take(settled(self.state, self.now))

    def happen_to_node(self, node: int) -> None:
        phase = self.state.N[c.N_PHASE, node]
        if phase != NodePhase.UP:
            self.event(EventKind.NODE_UP, node)
        else:
            self.event(self.r.choice([EventKind.NODE_DOWN, EventKind.NODE_DRAINING]), node)

    def happen_to_job(self, row: int) -> None:
        J = self.state.J
        number, attempt, phase = int(J[c.J_ID, row]), int(J[c.J_ATTEMPT, row]), J[c.J_PHASE, row]
        what = self.r.random()
        if phase == Phase.QUEUED and not J[c.J_PLACED, row]:
            if what < 0.1:
                self.event(EventKind.HOLD_SET, number, a=1 - int(J[c.J_HOLD, row]))
            elif what < 0.13:
                self.event(EventKind.CANCEL_REQUESTED, number)
            else:
                self.place(row, EventKind.START_REQUESTED if what < 0.8 else EventKind.WANTED, attempt)
        elif phase == Phase.STARTING:
            self.event(EventKind.STARTED if what < 0.8 else EventKind.START_FAILED, number, attempt, b=-1)
        elif phase == Phase.RUNNING and what < 0.35:
            self.event(EventKind.STOP_REQUESTED, number, attempt, a=Reason.PREEMPTED)
        elif phase == Phase.RUNNING and what < 0.45:
            self.place(row, EventKind.STOP_REQUESTED, attempt)
        elif phase == Phase.RUNNING and what < 0.6:
            self.event(self.r.choice([EventKind.FAILED, EventKind.COMPLETED]), number, attempt, b=-1)
        elif phase == Phase.RUNNING and what < 0.65:
            self.event(EventKind.CANCEL_REQUESTED, number)
        elif phase == Phase.STOPPING and what < 0.5:
            self.event(EventKind.STOPPED, number, attempt, a=int(J[c.J_REASON, row]), b=-1)

    def place(self, row: int, kind: EventKind, attempt: int) -> None:
        """Give the job a random place that nobody wants (and, for a start, that nobody holds), if there is one."""
        state, J = self.state, self.state.J[:, row]
        first, held = int(J[c.J_TASK0]), kind == EventKind.START_REQUESTED
        N, taken = state.N, set[tuple[int, int]]()
        cpus = {n: int(N[c.N_CPU_MAX, n] - max(N[c.N_CPU, n], N[c.N_HELD_CPU, n])) for n in range(N.shape[1])}
        memory = {n: int(N[c.N_MEM_MAX, n] - max(N[c.N_MEM, n], N[c.N_HELD_MEM, n])) for n in range(N.shape[1])}
        payload: list[int] = []
        for t in range(first, first + int(J[c.J_TASKS])):
            milli, cpu, mem = (int(state.T[column, t]) for column in (c.T_GPU, c.T_CPU, c.T_MEM))
            need = -(-milli // c.WHOLE)
            options = []
            for node in range(N.shape[1]):
                free = [
                    gpu for gpu in range(int(N[c.N_GPUS, node])) if (node, gpu) not in taken and self.is_free(node, gpu, held)
                ]
                kind_ok = not need or int(J[c.J_KIND_MASK]) >> int(N[c.N_KIND, node]) & 1
                if (
                    N[c.N_PHASE, node] == NodePhase.UP
                    and kind_ok
                    and len(free) >= need
                    and cpus[node] >= cpu
                    and memory[node] >= mem
                ):
                    options.append((node, free))
            if not options:
                return
            node, free = self.r.choice(options)
            gpus = self.r.sample(free, need)
            taken |= {(node, gpu) for gpu in gpus}
            cpus[node] -= cpu
            memory[node] -= mem
            share = milli if J[c.J_SHARE] and milli < c.WHOLE else c.WHOLE
            payload += [node, mask_of(gpus), share if gpus else 0]
        shape = {"b": int(J[c.J_DATA]), "c": int(J[c.J_SERVERS]) | int(J[c.J_BATCH]) << 20}
        reason = Reason.MIGRATED if kind == EventKind.STOP_REQUESTED else Reason.NONE
        self.event(kind, int(J[c.J_ID]), attempt + held, a=reason, payload=payload, **shape)

    def is_free(self, node: int, gpu: int, held: bool) -> bool:
        g = self.state.N[c.N_GPU0, node] + gpu
        return bool(self.state.G[c.G_TASKS, g] == 0 and not (held and self.state.G[c.G_HELD_TASKS, g]))


def random_case(seed: int) -> Case:
    """Jobs waiting, starting, running, stopping, migrating, held, to be retried later, on nodes up, draining and down."""
    return Story(seed).run()


def renamed(case: Case) -> Case:
    """The same with other names, and users and queues under each other's numbers."""
    records, pool = case.journal.records.copy(), case.journal.pool.copy()
    texts = {i: f"{text[::-1]}-{i * 7 % 11}" for i, text in case.journal.texts.items()}
    at = 0
    for record in records:
        if record[c.E_KIND] == EventKind.SUBMITTED:
            for column in (c.J_USER, c.J_QUEUE):
                pool[at + column] = 1 - pool[at + column]
        at += int(record[c.E_POOL])
    return Case(EventBatch(records, pool, texts), case.now_us)


def renumbered(case: Case, seed: int) -> tuple[Case, dict[int, int], dict[int, int]]:
    """The same with other numbers in the same order: gaps between the jobs, and nodes that are down between the nodes.

    Returns the new numbers of jobs and of nodes too.
    """
    r = random.Random(seed)
    journal = case.journal
    head = next(i for i, kind in enumerate(journal.records[:, c.E_KIND].tolist()) if kind == EventKind.CLUSTER_SET)
    count = int(journal.records[head, c.E_A])
    gaps = [r.choice([0, 0, 1, 2]) for _ in range(count + 1)]
    node_of = {n: n + sum(gaps[: n + 1]) for n in range(count)}
    total = count + sum(gaps)
    job_of = {
        n: JOB_FIRST + JOB_STEP * n for n in journal.records[journal.records[:, c.E_KIND] == EventKind.SUBMITTED, c.E_ID].tolist()
    }
    specs = {
        node_of[int(record[c.E_ID])]: payload
        for record, payload in zip(journal.records, journal.payloads(), strict=True)
        if record[c.E_KIND] == EventKind.NODE_ADDED
    }
    spare = np.array([0, 0, 1, 0, 8000, 64 * 10**9, 10**9], np.int64)
    out, first = EventBuffer(), 0
    for i, (record, payload) in enumerate(zip(journal.records.tolist(), journal.payloads(), strict=True)):
        t, kind, subject, attempt, a, b, d = record[:7]
        if kind == EventKind.CLUSTER_SET:
            out.add(t, kind, subject, attempt, total, b + sum(gaps), d, payload)
        elif kind == EventKind.NODE_ADDED and subject == 0:
            for node in range(total):
                spec = specs.get(node, spare).copy()
                spec[c.N_GPU0] = first
                first += int(spec[c.N_GPUS])
                out.add(t, kind, node, payload=spec)
            for node in sorted(set(range(total)) - set(specs)):
                out.add(t, EventKind.NODE_DOWN, node)
        elif kind != EventKind.NODE_ADDED:
            if kind in (EventKind.NODE_UP, EventKind.NODE_DOWN, EventKind.NODE_DRAINING) or (
                kind == EventKind.NAMED and a == c.Name.NODE
            ):
                subject = node_of[subject]
            elif kind >= EventKind.SUBMITTED or (kind == EventKind.NAMED and a == c.Name.JOB):
                subject = job_of.get(subject, subject)
            if kind in (EventKind.WANTED, EventKind.START_REQUESTED, EventKind.STOP_REQUESTED):
                payload = payload.copy()
                payload[:: c.PLACE] = [node_of[node] for node in payload[:: c.PLACE].tolist()]
            out.add(t, kind, subject, attempt, a, b, d, payload, journal.texts.get(i))
    return Case(out.take(), case.now_us), job_of, node_of
