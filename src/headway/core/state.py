"""The state: a few tables of int64 columns, changed only by `apply(events)`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core.apply import K_NAMED, apply_job_events
from headway.core.arrays import Floats, Ints, Table
from headway.core.bitmap import clear_bit, set_bit, width_for, words_for
from headway.core.codes import K_SUBMITTED
from headway.core.columns import EventKind, Name, NodePhase, Phase, Reason
from headway.core.compact import compact
from headway.core.events import EventBatch
from headway.core.life import NEED_EDGES, NEED_IDS, NEED_JOBS, NEED_TASKS, NOT_MINE
from headway.core.scratch import Scratch

A = TypeVar("A", bound=NDArray[Any])

INVARIANTS = {
    11: "a GPU is booked over its whole",
    12: "a node's cpus are over-booked",
    13: "a node's memory is over-booked",
    14: "a GPU is held over its whole: two attempts on one place",
    15: "a node's cpus or memory are held over what it has",
    16: "something was given back twice",
    17: "a gang was not placed whole",
    18: "a GPU that the node does not have",
    20: "an impossible transition",
    21: "a request with the wrong attempt",
    22: "an event of an unknown job",
    23: "a job number that is not new",
    24: "a start of a job whose processes are not gone",
    25: "an event before the last one",
    26: "a queue that the cluster does not have",
    NOT_MINE: "an event of a kind that does not exist",
}
KINDS = frozenset(int(kind) for kind in EventKind)
NAMES = tuple(Name)
CLUSTER_KINDS = KINDS & {*range(1, int(EventKind.SUBMITTED)), int(EventKind.EPOCH)}


class InvariantError(AssertionError):
    """An event that no correct scheduler or engine can send: our own error, never the user's."""

    def __init__(self, code: int, job: int, story: str) -> None:
        super().__init__(f"{INVARIANTS[code]} (job {job})\n{story}")
        self.code, self.job = code, job


class State:
    """Everything the scheduler knows. Columns are named in `core.columns`; read them through `view()`, change them through
    `apply()`."""

    def __init__(self, *, jobs: int = 256, tasks: int = 512, edges: int = 64) -> None:
        jobs, tasks = spread(jobs), spread(tasks)
        self.J: Table = np.zeros((c.JOB_COLUMNS, jobs), np.int64)
        self.T: Table = np.zeros((c.TASK_COLUMNS, tasks), np.int64)
        self.X: Table = np.zeros((2, edges), np.int64)
        self.F: Floats = np.zeros((c.ESTIMATORS * c.ESTIMATE_PARAMS_MAX, jobs), np.float64)
        self.N: Table = np.zeros((c.NODE_COLUMNS, 0), np.int64)
        self.G: Table = np.zeros((c.GPU_COLUMNS, 0), np.int64)
        self.Q: Table = np.zeros((c.QUEUE_COLUMNS, 1), np.int64)
        self.B: Table = np.zeros((1, width_for(1)), np.int64)
        self.R: Ints = np.full(1024, -1, np.int64)
        self.C: Ints = np.zeros(c.COUNTERS, np.int64)
        self.C[c.C_LAST_ID] = -1
        self.C[c.C_SHARE_LIMIT] = c.WHOLE
        self.C[c.C_KINDS] = self.C[c.C_WORDS] = self.C[c.C_QUEUES] = 1
        self.C[c.C_PRIORITY_MIN], self.C[c.C_PRIORITY_MAX] = 1 << 30, -(1 << 30)
        self.C[c.C_NOW] = -(1 << 62)
        self.Q[c.Q_QUOTA], self.Q[c.Q_LIMIT], self.Q[c.Q_PARENT] = -1, -1, -1
        self.names: dict[Name, dict[int, str]] = {name: {} for name in Name}
        self.scratch = Scratch()
        self.scratch.fit_cluster(0, 0, self.B.shape)
        self.scratch.fit(jobs, tasks)
        self.files: dict[int, str] = {}
        """The job file (JSON) of every live job that came with one."""

    # -- events ---------------------------------------------------------------------------------------------------
    def apply(self, batch: EventBatch) -> None:
        """Take in what has happened.

        Raises:
            InvariantError: an event that contradicts the state; the state is then not to be used any more.
        """
        records, pool = batch.records, batch.pool
        count = len(records)
        if count == 0:
            return
        C = self.C
        dead = C.item(c.C_DEAD)
        if dead > 256 and 2 * dead > C.item(c.C_ROWS):
            self.compact()
        first, at = 0, 0
        while True:
            first, at = apply_job_events(
                records, pool, first, count, at,
                self.J, self.T, self.X, self.F, self.N, self.G, self.Q, self.B, self.R, C,
            )  # fmt: skip
            error = C.item(c.C_ERROR_CODE)
            if error == 0:
                break
            if error == NOT_MINE and int(records[first, c.E_KIND]) in CLUSTER_KINDS:
                self._apply_cluster_event(records[first], pool[at : at + records[first, c.E_POOL]])
                C[c.C_NOW] = records[first, c.E_T]
                C[c.C_SEQUENCE] += 1
                at += int(records[first, c.E_POOL])
                first += 1
            elif error in (NEED_JOBS, NEED_TASKS, NEED_EDGES, NEED_IDS):
                self._make_room(error)
            else:
                raise InvariantError(error, int(C[c.C_ERROR_JOB]), self._story(records[first]))
        if batch.texts:
            self._keep_texts(batch)

    def _keep_texts(self, batch: EventBatch) -> None:
        """The names and the job files of a batch: no kernel holds text."""
        kinds, tables, numbers = (batch.records[:, column].tolist() for column in (c.E_KIND, c.E_A, c.E_ID))
        for index, text in batch.texts.items():
            if kinds[index] == K_SUBMITTED:
                self.files[numbers[index]] = text
            elif kinds[index] == K_NAMED:
                self.names[NAMES[tables[index]]][numbers[index]] = text

    def _story(self, record: Ints) -> str:
        """What is known of the job of a contradicting event, for the error message."""
        code = int(record[c.E_KIND])
        kind = EventKind(code).name.lower() if code in KINDS else str(code)
        row = self.row(int(record[c.E_ID]))
        now = (
            "not live"
            if row is None
            else f"{Phase(int(self.J[c.J_PHASE, row])).name.lower()}, attempt {self.J[c.J_ATTEMPT, row]}"
        )
        return f"event {kind} at {record[c.E_T]} µs for attempt {record[c.E_ATTEMPT]}; the job is {now}"

    def _make_room(self, need: int) -> None:
        C = self.C
        mostly_dead = 2 * C[c.C_DEAD] > C[c.C_ROWS] or 2 * C[c.C_DEAD_TASKS] > C[c.C_TASKS]
        if need != NEED_IDS and mostly_dead:
            self.compact()
        elif need == NEED_JOBS:
            self.J, self.F = _wider(self.J), _wider(self.F)
        elif need == NEED_TASKS:
            self.T = _wider(self.T, int(C[c.C_TASKS]) + 64)
        elif need == NEED_EDGES:
            self.X = _wider(self.X, int(C[c.C_EDGES]) + 64)
        else:
            self._slide_ids()
        self.scratch.fit(self.J.shape[1], self.T.shape[1])

    def _slide_ids(self) -> None:
        """Forget the numbers below the oldest live job, or double the map of numbers."""
        rows = int(self.C[c.C_ROWS])
        live = self.J[c.J_ID, :rows][self.J[c.J_PHASE, :rows] <= Phase.STOPPING]
        base = int(self.C[c.C_ID_BASE])
        oldest = int(live.min()) if len(live) else int(self.C[c.C_LAST_ID]) + 1
        drop = oldest - base
        if drop > len(self.R) // 2:
            self.R = np.concatenate([self.R[drop:], np.full(drop, -1, np.int64)])
            self.C[c.C_ID_BASE] = oldest
        else:
            self.R = np.concatenate([self.R, np.full(len(self.R), -1, np.int64)])

    def compact(self) -> None:
        """Drop dead rows now (it happens by itself, amortised)."""
        tasks, edges = np.zeros_like(self.T), np.zeros_like(self.X)
        compact(self.J, self.T, self.X, self.F, self.R, self.C, tasks, edges)
        self.T, self.X = tasks, edges
        if self.files:
            self.files = {job: text for job, text in self.files.items() if self.row(job) is not None}

    def _apply_cluster_event(self, record: Ints, payload: Ints) -> None:
        kind, index = EventKind(int(record[c.E_KIND])), int(record[c.E_ID])
        if kind == EventKind.CLUSTER_SET:
            self._resize_cluster(int(record[c.E_A]), int(record[c.E_B]), int(record[c.E_C]), payload)
        elif kind == EventKind.QUEUE_SET:
            if index >= self.Q.shape[1]:
                wider = np.zeros((c.QUEUE_COLUMNS, index + 1), np.int64)
                wider[[c.Q_QUOTA, c.Q_LIMIT, c.Q_PARENT]] = -1
                wider[:, : self.Q.shape[1]] = self.Q
                self.Q = wider
            self.Q[[c.Q_QUOTA, c.Q_LIMIT, c.Q_WEIGHT, c.Q_PARENT], index] = payload
            self.C[c.C_QUEUES] = self.Q.shape[1]
            self.scratch.queues, self.scratch.planned = np.zeros((2, self.Q.shape[1]), np.int64)
        elif kind == EventKind.NODE_ADDED:
            self.N[: c.NODE_SPEC_COLUMNS, index] = payload
            gpus, first = int(payload[c.N_GPUS]), int(payload[c.N_GPU0])
            self.N[c.N_FREE_MASK, index] = _bits(gpus)
            self.N[c.N_FREE, index] = gpus
            self.G[c.G_NODE, first : first + gpus] = index
            self.N[c.N_PHASE, index] = NodePhase.DOWN
            self._set_node_phase(index, NodePhase.UP)
        elif kind == EventKind.NODE_UP:
            self._set_node_phase(index, NodePhase.UP)
        elif kind == EventKind.NODE_DRAINING:
            self._set_node_phase(index, NodePhase.DRAINING)
        elif kind == EventKind.NODE_DOWN:
            self._set_node_phase(index, NodePhase.DOWN)
            self._break_jobs_on(index)
        elif kind == EventKind.EPOCH:
            self.C[c.C_EPOCH] = record[c.E_A]

    def _resize_cluster(self, nodes: int, gpus: int, kinds: int, payload: Ints) -> None:
        """A cluster of another size: existing nodes and GPUs keep their numbers, buckets are made anew."""
        C = self.C
        gpus_max, C[c.C_SHARE_LIMIT] = int(payload[0]), payload[1]
        self.N = _resized(self.N, nodes)
        self.G = _resized(self.G, gpus)
        words = words_for(nodes)
        C[c.C_NODES], C[c.C_GPUS], C[c.C_KINDS], C[c.C_GPUS_MAX], C[c.C_WORDS] = nodes, gpus, kinds, gpus_max, words
        self.B = np.zeros((kinds * (gpus_max + 1), width_for(words)), np.int64)
        self.scratch.fit_cluster(nodes, gpus, self.B.shape)
        for node in range(nodes):
            if self.N[c.N_GENERATION, node] and self.N[c.N_PHASE, node] == NodePhase.UP:
                set_bit(self.B, words, self.bucket(node), node)

    def bucket(self, node: int) -> int:
        """The bucket row in which an up node belongs."""
        return int(self.N[c.N_KIND, node] * (self.C[c.C_GPUS_MAX] + 1) + self.N[c.N_FREE, node])

    def _set_node_phase(self, node: int, phase: NodePhase) -> None:
        before = self.N[c.N_PHASE, node]
        words = int(self.C[c.C_WORDS])
        if before != phase and before == NodePhase.UP:
            clear_bit(self.B, words, self.bucket(node), node)
            self.C[c.C_GPUS_UP] -= self.N[c.N_GPUS, node]
        if before != phase and phase == NodePhase.UP:
            set_bit(self.B, words, self.bucket(node), node)
            self.C[c.C_GPUS_UP] += self.N[c.N_GPUS, node]
        self.N[c.N_PHASE, node] = phase
        self.N[c.N_GENERATION, node] = self.C[c.C_SEQUENCE] + 1

    def _break_jobs_on(self, node: int) -> None:
        """Every job with a task on a lost node has to give its place up; the next settle asks for that."""
        tasks = int(self.C[c.C_TASKS])
        live = self.T[c.T_JOB, :tasks] >= 0
        held = np.unique(self.T[c.T_JOB, :tasks][live & (self.T[c.T_HELD_NODE, :tasks] == node)])
        wanted = np.unique(self.T[c.T_JOB, :tasks][live & (self.T[c.T_NODE, :tasks] == node)])
        for row in np.union1d(held, wanted):
            phase = self.J[c.J_PHASE, row]
            if phase == Phase.STOPPING and row not in wanted:
                continue
            if self.J[c.J_MUST_STOP, row] == 0:
                self.J[c.J_MUST_STOP, row] = Reason.NODE_LOST
                self.C[c.C_MUST_STOP] += 1

    # -- looking --------------------------------------------------------------------------------------------------
    def row(self, job: int) -> int | None:
        """The live row of a job, or None when it has ended or is unknown."""
        slot = job - int(self.C[c.C_ID_BASE])
        row = int(self.R[slot]) if 0 <= slot < len(self.R) else -1
        return row if row >= 0 else None

    def ended_phase(self, job: int) -> Phase | None:
        """How a job has ended, if it has and its number is still remembered."""
        slot = job - int(self.C[c.C_ID_BASE])
        code = int(self.R[slot]) if 0 <= slot < len(self.R) else -1
        return Phase(-2 - code) if code <= -2 else None

    def live_rows(self) -> Ints:
        """Rows of the jobs that have not ended, in arrival order."""
        rows = int(self.C[c.C_ROWS])
        return np.flatnonzero(self.J[c.J_PHASE, :rows] <= Phase.STOPPING)

    def name(self, table: Name, index: int) -> str:
        """The name of a user, queue, node …; its number where it has none."""
        return self.names[table].get(index, str(index))

    def digest(self) -> str:
        """SHA-256 of the state's meaning: equal for equal event histories, however they were cut into batches."""
        return hashlib.sha256(b"".join(self._canonical())).hexdigest()

    def _canonical(self) -> Iterator[bytes]:
        counters = [c.C_QUEUED, c.C_WAITING, c.C_PLACED_WAITING, c.C_RUNNING, c.C_MUST_STOP, c.C_NOW, c.C_SEQUENCE]
        counters += [c.C_LAST_ID, c.C_NODES, c.C_GPUS, c.C_STALE, c.C_FINISHED, c.C_REJECTED, c.C_REFUSED_IN_ROW, c.C_REFUSED_AT]
        counters += [c.C_GUARD, c.C_GUARD_OF, c.C_GUARD_GOOD, c.C_GUARD_AT, c.C_GUARD_REWARD, c.C_GUARD_TEACHER]
        yield self.C[counters].tobytes()
        for table in (self.N, self.G, self.Q, self.B):
            yield table.tobytes()
        skip = [c.J_TASK0, c.J_EDGE0, c.J_HELD_TASK0]
        for row in self.live_rows():
            job = self.J[:, row].copy()
            blocks = [(job[c.J_TASK0], job[c.J_TASKS])]
            if job[c.J_HELD_TASKS] and job[c.J_HELD_TASK0] != job[c.J_TASK0]:
                blocks.append((job[c.J_HELD_TASK0], job[c.J_HELD_TASKS]))
            edges = self.X[:, job[c.J_EDGE0] : job[c.J_EDGE0] + job[c.J_EDGES]]
            job[skip] = 0
            yield job.tobytes()
            yield self.F[:, row].tobytes()
            yield edges.tobytes()
            for first, count in blocks:
                tasks = self.T[:, first : first + count].copy()
                tasks[[c.T_JOB, c.T_EDGE0]] = 0
                yield tasks.tobytes()

    def copy(self) -> State:
        """A state of its own: for forks, what-if and a decision in a worker."""
        twin = State.__new__(State)
        for name in ("J", "T", "X", "F", "N", "G", "Q", "B", "R", "C"):
            setattr(twin, name, getattr(self, name).copy())
        twin.names = {table: dict(names) for table, names in self.names.items()}
        twin.files = dict(self.files)
        twin.scratch = Scratch()
        twin.scratch.fit_cluster(twin.N.shape[1], twin.G.shape[1], twin.B.shape)
        twin.scratch.queues, twin.scratch.planned = np.zeros((2, twin.Q.shape[1]), np.int64)
        twin.scratch.fit(twin.J.shape[1], twin.T.shape[1])
        return twin


def _wider(table: A, at_least: int = 0) -> A:
    return _resized(table, spread(max(2 * table.shape[1], at_least)))


def _resized(table: A, columns: int) -> A:
    bigger = np.zeros((table.shape[0], columns), table.dtype)
    bigger[:, : table.shape[1]] = table
    return cast(A, bigger)


def spread(columns: int) -> int:
    """A table width of at least `columns` that is an odd number of cache lines, so that the columns of a row do not all fall on
    the same cache sets."""
    return (columns + 7) // 16 * 16 + 8


def _bits(count: int) -> int:
    """The `count` lowest bits set, as a signed 64-bit number."""
    return (1 << count) - 1 if count < 64 else -1
