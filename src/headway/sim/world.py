"""The simulated world: an engine in virtual time. It holds the truth (work, usage, faults) and checks for itself that nothing
runs twice or over capacity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Bools, Floats, Ints, Table
from headway.core.columns import EventKind
from headway.core.events import EMPTY, EventBatch, EventBuffer
from headway.core.state import State
from headway.core.view import ClusterView
from headway.place.assign import M_TASKS
from headway.place.gang import Kernel
from headway.place.passes import in_order
from headway.sim import columns as w
from headway.sim.heap import push
from headway.sim.kernels import HEAP_MARGIN, advance, execute, note_next
from headway.sim.physics import CANCEL, NODE_DOWN, NODE_UP
from headway.workloads.cluster import Cluster
from headway.workloads.schema import Workload
from headway.workloads.truth import Y_BOAST, Y_CURVE, Y_OBSERVE_EVERY, Y_UNITS, Curve

PPM = 1_000_000
REPORTS_MAX = 10_000
"""Reports of a job over its run: one with more units tells of several at a time."""
WRONG = {
    1: "a job was started while an attempt of it still runs",
    2: "a GPU was given away over its whole",
    3: "a job was started that the world does not have",
    4: "a lost node was used",
    5: "a gang has more tasks than the job",
    6: "a GPU was used that the node does not have",
}


class WorldError(AssertionError):
    """The scheduler asked for something that cannot be in the real world."""


class World:
    """Jobs and nodes as they really are. `advance` and `execute` return reports, as an engine would send them."""

    def __init__(
        self, workload: Workload, cluster: Cluster, *, seed: int = 0, fail_ppm: int = 0, latency_us: int = 0,
        node_faults: Iterable[tuple[int, int, bool]] = (), cancels: Iterable[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        """`node_faults`: (time µs, node, up again?); `cancels`: (time µs, job); `fail_ppm`: chance of a failed start;
        `latency_us`: longest start latency."""
        jobs, nodes, gpus = len(workload.submitted_us), len(cluster.nodes), cluster.gpus
        self.workload = workload
        spec = workload.spec
        room = spec[c.J_DATA_MAX] * spec[c.J_PIPELINE] * spec[c.J_TENSOR] + spec[c.J_SERVERS]
        W: Table = np.zeros(
            (w.WORLD_JOB_COLUMNS, jobs), np.int64, order="F"
        )  # a job's columns side by side: the world never scans
        W[w.W_ROOM] = room
        W[w.W_TASK0] = np.concatenate(([0], np.cumsum(room)[:-1])) if jobs else 0
        W[w.W_WORK], W[w.W_SAVE], W[w.W_RESTORE] = workload.work_us, spec[c.J_SAVE], spec[c.J_RESTORE]
        W[w.W_EVERY], W[w.W_UNITS], W[w.W_STEP] = spec[c.J_EVERY], spec[c.J_UNITS_TOTAL], 1
        self._fill_truth(W, workload)
        W[w.W_STEP] = np.maximum(W[w.W_STEP], -(-W[w.W_UNITS] // REPORTS_MAX))
        self.W, self.WF = W, np.zeros((w.WORLD_JOB_FLOATS, jobs), np.float64, order="F")
        self.WF[w.F_RATE] = self.WF[w.F_FACTOR] = 1.0
        self.P: Table = np.zeros((w.WORLD_TASK_COLUMNS, int(room.sum())), np.int64, order="F")
        self._fill_requests(workload, room)
        self.V: Table = np.zeros((w.WORLD_NODE_COLUMNS, nodes), np.int64)
        self.V[w.V_HEAD], self.V[w.V_UP] = -1, 1
        self.V[w.V_GPUS] = [n.gpus for n in cluster.nodes]
        self.V[w.V_GPU0] = np.concatenate(([0], np.cumsum(self.V[w.V_GPUS])[:-1]))
        self.V[w.V_CPU_MAX] = [n.cpus_milli for n in cluster.nodes]
        self.V[w.V_NET_MAX] = [n.network_bytes_per_s for n in cluster.nodes]
        self.V[w.V_RACK], self.V[w.V_SPEED] = [n.rack for n in cluster.nodes], [n.speed_ppm for n in cluster.nodes]
        self.V[w.V_BUSY] = [n.background_ppm for n in cluster.nodes]
        self.V[w.V_NET_AWAY] = self.V[w.V_NET_MAX] // cluster.oversubscription
        self.D: Table = np.zeros((3, gpus), np.int64)
        self.VF: Floats = np.ones((w.WORLD_NODE_FLOATS, nodes), np.float64)
        self.DF: Floats = np.ones(gpus, np.float64)
        self.H: Table = np.zeros((4 * HEAP_MARGIN, 4), np.int64)
        self.X: Ints = np.zeros(w.WORLD_COUNTERS, np.int64)
        self.X[w.X_SEED] = seed if workload.usage_jitter_ppm == 0 else workload.usage_seed
        self.X[w.X_JITTER], self.X[w.X_HOLD] = workload.usage_jitter_ppm, max(workload.usage_hold_us, 1)
        self.X[w.X_FAIL], self.X[w.X_LATENCY] = fail_ppm, latency_us
        self._rejected = too_large(workload, cluster)
        self.boasts = bool(workload.truth.size and workload.truth[Y_BOAST].any())
        """Whether a job reports more than is so."""
        self._out, self._out_pool = np.empty((1024, c.RECORD), np.int64), np.empty(1 << 16, np.int64)
        for t, node, up in node_faults:
            rank, what = (w.RANK_NODE_UP, NODE_UP) if up else (w.RANK_NODE_DOWN, NODE_DOWN)
            push(self.H, self.X, t, (rank << w.RANK_BITS) + node, 0, what)
        for t, job in cancels:
            push(self.H, self.X, t, (w.RANK_CANCELLED << w.RANK_BITS) + job, 0, CANCEL)
        note_next(self.X, self.H, workload.submitted_us)

    def reject(self, flags: Ints) -> None:
        """Which jobs are refused at submission (1), instead of those that this world's own cluster could not hold."""
        self._rejected = flags

    @property
    def refused(self) -> Ints:
        """Which jobs are refused at submission (1)."""
        return self._rejected

    @staticmethod
    def _fill_truth(W: Table, workload: Workload) -> None:
        spec, truth = workload.spec, workload.truth
        W[w.W_CUT], W[w.W_WIDTH], W[w.W_SYNC] = spec[c.J_CUT], spec[c.J_WIDTH], spec[c.J_SYNC]
        W[w.W_PARTITIONS] = spec[c.J_PIPELINE] * spec[c.J_TENSOR]
        W[w.W_EDGE_BYTES], W[w.W_SYNC_BYTES] = spec[c.J_EDGE_BYTES], spec[c.J_SYNC_BYTES]
        W[w.W_DUE], W[w.W_DUE_PPM] = c.NEVER, -1
        if truth.size == 0:
            return
        W[w.W_TRUTH :] = truth
        known = truth[Y_UNITS] > 0
        W[w.W_UNITS] = np.where(known, truth[Y_UNITS], W[w.W_UNITS])
        W[w.W_STEP] = np.where(known, np.maximum(truth[Y_OBSERVE_EVERY], 1), 1)
        W[w.W_DUE] = np.where(truth[Y_CURVE] == Curve.POWER, spec[c.J_DEADLINE], c.NEVER)

    def _fill_requests(self, workload: Workload, room: Ints) -> None:
        spec, P = workload.spec, self.P
        P[w.P_REQ_GPU], P[w.P_REQ_CPU] = np.repeat(spec[c.J_GPU_TASK], room), np.repeat(spec[c.J_CPU_TASK], room)
        P[w.P_REQ_MEM], P[w.P_REQ_NET] = np.repeat(spec[c.J_MEM_TASK], room), np.repeat(spec[c.J_NET_TASK], room)
        for job in np.flatnonzero(spec[c.J_SERVERS]):
            first = int(self.W[w.W_TASK0, job] + room[job] - spec[c.J_SERVERS, job])
            stop = first + int(spec[c.J_SERVERS, job])
            P[w.P_REQ_GPU, first:stop], P[w.P_REQ_NET, first:stop] = 0, spec[c.J_SERVER_NET, job]
            P[w.P_REQ_CPU, first:stop], P[w.P_REQ_MEM, first:stop] = spec[c.J_SERVER_CPU, job], spec[c.J_SERVER_MEM, job]
        for job in np.flatnonzero(np.diff(workload.detail_at)):
            rows = workload.details[workload.detail_at[job] : workload.detail_at[job + 1]].reshape(-1, c.DETAIL)
            at = int(self.W[w.W_TASK0, job])
            P[[w.P_REQ_GPU, w.P_REQ_CPU, w.P_REQ_MEM, w.P_REQ_NET], at : at + len(rows)] = rows[:, :4].T

    # -- the engine's side ----------------------------------------------------------------------------------------
    def next_us(self) -> int:
        """When something may happen next (µs), or NEVER."""
        return self.X.item(w.X_NEXT)

    def advance(self, until_us: int, stop_on: int) -> EventBatch:
        """Reports of what happens up to `until_us`, or to the first instant at which something of at least `stop_on` (FREES,
        BREAKS) happens."""
        parts = []
        while True:
            done = self._advance(until_us, stop_on)
            if done:
                break
            parts.append(self._take().cut(0, int(self.X[w.X_OUT])) if self.X[w.X_OUT] else EMPTY)
            if self.X[w.X_HEAP] + HEAP_MARGIN > len(self.H):
                self._tidy_heap()
            elif not len(parts[-1]):
                self._out = np.empty((2 * len(self._out), c.RECORD), np.int64)
                self._out_pool = np.empty(2 * len(self._out_pool), np.int64)
        return _joined([*parts, self._take()]) if parts else self._take()

    def _advance(self, until_us: int, stop_on: int) -> bool:
        load = self.workload
        return bool(
            advance(
                until_us, stop_on, self.X, self.H, self._out, self._out_pool, load.submitted_us, load.spec,
                load.details, load.detail_at,
                self._rejected, self.W, self.WF, self.P, self.V, self.D, self.VF, self.DF,
            )
        )  # fmt: skip

    def execute(self, batch: EventBatch, now_us: int) -> EventBatch:
        """Carry out the requests among a round's events; reports that come at once.

        Raises:
            WorldError: the requests contradict the world.
        """
        X, load = self.X, self.workload
        room = 2 * len(batch) + len(batch.pool)
        if room > len(self._out):
            self._out = np.empty((2 * room, c.RECORD), np.int64)
        if 4 * (len(batch.pool) + len(batch)) > len(self._out_pool):
            self._out_pool = np.empty(8 * (len(batch.pool) + len(batch)), np.int64)
        if X.item(w.X_HEAP) + HEAP_MARGIN + 3 * room > len(self.H):
            self._tidy_heap(3 * room)
        execute(
            batch.records, batch.pool, now_us, load.submitted_us, X, self.H, self._out, self._out_pool,
            self.W, self.WF, self.P, self.V, self.D, self.VF, self.DF,
        )  # fmt: skip
        if X.item(w.X_ERROR):
            raise WorldError(f"{WRONG[int(X[w.X_ERROR])]} (job {int(X[w.X_ERROR_JOB])} at {now_us} µs)")
        return self._take()

    def _take(self) -> EventBatch:
        if self.boasts:
            self._boast()
        return EventBatch(self._out[: self.X.item(w.X_OUT)], self._out_pool[: self.X.item(w.X_OUT_POOL)])

    def _boast(self) -> None:
        """Jobs that lie make more of the units and accuracies that they tell (`docs/semantics.md` §6)."""
        out = self._out[: self.X.item(w.X_OUT)]
        kinds = out[:, c.E_KIND]
        for kind, column in ((EventKind.OBSERVED, c.E_A), (EventKind.STOPPED, c.E_B), (EventKind.OBSERVED, c.E_C)):
            at = np.flatnonzero((kinds == kind) & (out[:, column] > 0))
            jobs = out[at, c.E_ID]
            more, most = self.W[w.W_TRUTH + Y_BOAST, jobs], self.W[w.W_UNITS, jobs] if column != c.E_C else PPM
            at, more, most = at[more > 0], more[more > 0], np.broadcast_to(most, jobs.shape)[more > 0]
            out[at, column] = np.minimum(out[at, column] + out[at, column] * more // PPM, most)

    def _tidy_heap(self, more: int = 0) -> None:
        """Drop void entries; double the heap if it is still more than half full."""
        size = int(self.X[w.X_HEAP])
        heap = self.H[:size].copy()
        ids = heap[:, w.H_KEY] & ((1 << w.RANK_BITS) - 1)
        rank = heap[:, w.H_KEY] >> w.RANK_BITS
        of_task, fixed = rank == w.RANK_USAGE, (rank <= w.RANK_NODE_UP) | (rank == w.RANK_CANCELLED) | (rank == w.RANK_DUE)
        version = np.where(of_task, self.P[w.P_VERSION, np.where(of_task, ids, 0)] if self.P.shape[1] else 0, 0)
        version = np.where(~of_task & ~fixed, self.W[w.W_VERSION, np.where(~of_task & ~fixed, ids, 0)], version)
        heap = heap[fixed | (heap[:, w.H_VERSION] == version)]
        capacity = len(self.H)
        while 2 * len(heap) + HEAP_MARGIN + more > capacity:
            capacity *= 2
        self.H = np.zeros((capacity, 4), np.int64)
        self.X[w.X_HEAP] = 0
        for entry in heap[np.lexsort((heap[:, w.H_KEY], heap[:, w.H_T]))]:
            push(self.H, self.X, int(entry[0]), int(entry[1]), int(entry[2]), int(entry[3]))

    # -- looking --------------------------------------------------------------------------------------------------
    def live(self) -> int:
        """Jobs that have arrived and not ended, in truth."""
        return self.X.item(w.X_LIVE)

    def arrived_all(self) -> bool:
        return self.X.item(w.X_ARRIVED) >= len(self.workload.submitted_us)

    def running(self) -> dict[int, int]:
        """Jobs with processes in the world, and their attempts."""
        rows = np.flatnonzero((self.W[w.W_STATUS] >= w.STARTING) & (self.W[w.W_STATUS] <= w.BROKEN))
        return {int(job): int(self.W[w.W_ATTEMPT, job]) for job in rows}

    def came_up(self, job: int) -> bool:
        """Whether the job's present attempt has come up."""
        return bool(self.W[w.W_STATUS, job] in (w.RUNNING, w.SAVING, w.BROKEN))

    def ended(self, job: int) -> tuple[int, bool]:
        """The last attempt of a job that has no processes, and whether the job completed."""
        return int(self.W[w.W_ATTEMPT, job]), bool(self.W[w.W_STATUS, job] == w.DONE)


def _joined(parts: list[EventBatch]) -> EventBatch:
    return EventBatch(np.concatenate([p.records for p in parts]), np.concatenate([p.pool for p in parts]))


def too_large(workload: Workload, cluster: Cluster) -> Ints:
    """1 for each job whose gang would not fit into the empty cluster (all nodes, up or not; on one GPU kind; cpus and memory
    too), else 0."""
    spec = workload.spec
    workers = spec[c.J_DATA] * spec[c.J_PIPELINE] * spec[c.J_TENSOR]
    shapes = Counter((n.kind, n.gpus, n.cpus_milli, n.memory_bytes) for n in cluster.nodes)
    fits = np.zeros(len(workload), bool)
    for demand, mask in ((spec[c.J_GPU_TASK], spec[c.J_KIND_MASK]), (spec[c.J_ALT_GPU], spec[c.J_ALT_MASK])):
        gpus = -(-demand // c.WHOLE)
        for kind in range(len(cluster.kinds)):
            allowed = (gpus > 0) & ((mask >> kind) & 1 == 1)
            fits |= allowed & (_room(shapes, spec, gpus, kind) >= workers)
    cpu_only = spec[c.J_GPU_TASK] == 0
    fits |= cpu_only & (_room(shapes, spec, np.zeros_like(workers), None) >= workers)
    for job in np.flatnonzero(fits & ~_fits_easily(shapes, workload, workers, cluster) & (spec[c.J_SERVERS] > 0)):
        fits[job] = fits_alone(spec[:, job], workload.details[workload.detail_at[job] : workload.detail_at[job + 1]], cluster)
    flags: Ints = (~fits).astype(np.int64)
    return flags


def _fits_easily(shapes: Counter[tuple[int, int, int, int]], workload: Workload, workers: Ints, cluster: Cluster) -> Bools:
    """Whether a job would fit even if each of its servers were as large as its largest worker and a server together, GPU
    included: then its servers find room wherever its workers are."""
    larger = workload.spec.copy()
    sizes = np.diff(workload.detail_at)
    several = np.flatnonzero(sizes)
    if len(several):
        parts = workload.details.reshape(-1, c.DETAIL)
        most = np.maximum.reduceat(parts, workload.detail_at[several] // c.DETAIL, axis=0)
        for column, largest in zip((c.J_GPU_TASK, c.J_CPU_TASK, c.J_MEM_TASK), most.T[:3], strict=True):
            larger[column, several] = np.maximum(larger[column, several], largest)
    larger[c.J_CPU_TASK] = np.maximum(larger[c.J_CPU_TASK], larger[c.J_SERVER_CPU])
    larger[c.J_MEM_TASK] = np.maximum(larger[c.J_MEM_TASK], larger[c.J_SERVER_MEM])
    gpus = -(-larger[c.J_GPU_TASK] // c.WHOLE)
    easy = np.zeros(len(workload), bool)
    for kind in range(len(cluster.kinds)):
        room = _room(shapes, larger, gpus, kind) >= workers + larger[c.J_SERVERS]
        easy |= room & (gpus > 0) & ((larger[c.J_KIND_MASK] >> kind) & 1 == 1)
    return easy


def fits_alone(spec: Ints, details: Ints, cluster: Cluster) -> bool:
    """Whether a job finds a place on the empty cluster, parameter servers included: by placing it."""
    state = State()
    state.apply(cluster.events(0, (), ()))
    state.Q = np.tile(state.Q[:, :1], int(spec[c.J_QUEUE]) + 1)
    state.Q[c.Q_LIMIT] = -1
    state.C[c.C_QUEUES] = state.Q.shape[1]
    submitted = EventBuffer()
    submitted.add(0, EventKind.SUBMITTED, payload=np.concatenate([spec, details]))
    state.apply(submitted.take())
    s = ClusterView(state, 0, 0).draft().scratch
    in_order(
        np.zeros(0, np.int64), 0, int(Kernel.CONSOLIDATED), False, 0, state.J, state.T, state.N, state.G, state.Q,
        state.B, state.C,
        np.zeros(state.Q.shape[1], np.int64), s.A, s.AB, s.GB, s.out, s.O, s.OT, s.M,
    )  # fmt: skip
    return bool(s.M[M_TASKS] > 0)


def _room(shapes: Counter[tuple[int, int, int, int]], spec: Table, gpus: Ints, kind: int | None) -> Ints:
    """How many tasks of each job the empty nodes of a kind (None: of any) hold."""
    room = np.zeros(spec.shape[1], np.int64)
    for (of_kind, node_gpus, cpus, memory), count in shapes.items():
        if kind is None or of_kind == kind:
            fit = np.where(gpus > 0, node_gpus // np.maximum(gpus, 1), 1 << 30)
            fit = np.minimum(fit, np.where(spec[c.J_CPU_TASK] > 0, cpus // np.maximum(spec[c.J_CPU_TASK], 1), 1 << 30))
            fit = np.minimum(fit, np.where(spec[c.J_MEM_TASK] > 0, memory // np.maximum(spec[c.J_MEM_TASK], 1), 1 << 30))
            room += count * fit
    return room
