"""Builders of small states for the tests of `core`, and dense twins: plain Python that looks at everything, where the kernels
look at what changed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.core import columns as c
from headway.core.bitmap import members
from headway.core.check import (
    V_BAD_GPU,
    V_BORROWED,
    V_CPU,
    V_ENDED,
    V_FRACTION,
    V_GANG,
    V_GPU,
    V_HELD,
    V_KIND,
    V_MEM,
    V_NODE,
    V_NOT_PLACED,
    V_OP,
    V_QUOTA,
    V_RULE,
    V_SHAPE,
    V_SHARE,
    V_TWICE,
    V_UNEVEN,
)
from headway.core.columns import EventKind, NodePhase, Op, Phase, Reason
from headway.core.events import EventBatch, EventBuffer, concatenate
from headway.core.plan import Capabilities, Draft, Plan
from headway.core.round import Violation, check, diff, settled
from headway.core.state import State
from headway.core.view import ClusterView, gpus_of, mask_of

US = 1_000_000
GB = 10**9
Task = tuple[int, Sequence[int]] | tuple[int, Sequence[int], int]
"""Where a task goes: node, local GPUs, and what it books on each (1000 if it is not said)."""

PLAIN_SPEC = {
    "priority": 50,
    "urgency": 5,
    "deadline": c.NEVER,
    "time_limit": c.NEVER,
    "data": 1,
    "pipeline": 1,
    "tensor": 1,
    "width": 1,
    "gpu_task": c.WHOLE,
    "kind_mask": -1,
    "cpu_task": 1000,
    "mem_task": GB,
    "retry_max": 3,
    "group": -1,
    "model": -1,
}


def spec(**changed: int) -> list[int]:
    """The payload of SUBMITTED: one worker on one GPU, with some columns changed. `data` alone fixes the shape."""
    row = dict.fromkeys(c.SPEC_COLUMN_NAMES, 0) | PLAIN_SPEC | changed
    for bound in ("data_min", "data_max"):
        row[bound] = changed.get(bound, row["data"])
    assert not set(changed) - set(row), f"no such column: {set(changed) - set(row)}"
    return [row[name] for name in c.SPEC_COLUMN_NAMES]


def place(tasks: Iterable[Task]) -> list[int]:
    """The payload of a place."""
    flat: list[int] = []
    for task in tasks:
        node, gpus, milli = (*task, c.WHOLE)[:3] if len(task) == 2 else task
        flat += [node, mask_of(list(gpus)), milli if gpus else 0]
    return flat


class Desk:
    """A state that is fed one event at a time, with the dense audit after each, and the journal of what it was fed."""

    def __init__(
        self,
        gpus: Sequence[int] = (2,),
        *,
        cpus: int = 8000,
        mem: int = 64 * GB,
        kinds: Sequence[int] = (),
        limits: Sequence[int] = (-1,),
        quotas: Sequence[int] = (),
        share_limit: int = c.WHOLE,
        racks: Sequence[int] = (),
        audited: bool = True,
        **room: int,
    ) -> None:
        self.state = State(**room)
        self.t, self.audited = 0, audited
        self.journal: list[EventBatch] = []
        kinds = kinds or [0] * len(gpus)
        racks = racks or [0] * len(gpus)
        self.emit(
            EventKind.CLUSTER_SET,
            a=len(gpus),
            b=sum(gpus),
            c=max(kinds, default=0) + 1,
            payload=(max(gpus, default=0), share_limit),
        )
        first = 0
        for n, count in enumerate(gpus):
            self.emit(EventKind.NODE_ADDED, n, payload=(racks[n], kinds[n], count, first, cpus, mem, 10**9))
            first += count
        for q, limit in enumerate(limits):
            self.emit(EventKind.QUEUE_SET, q, payload=(quotas[q] if quotas else -1, limit, 1, -1))

    # -- events ---------------------------------------------------------------------------------------------------
    def emit(
        self,
        kind: EventKind,
        subject: int = 0,
        attempt: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        payload: Sequence[int] = (),
        text: str | None = None,
        t: int | None = None,
    ) -> None:
        """Apply one event, at `t` (or at the desk's present time)."""
        if t is not None:
            self.t = t
        buffer = EventBuffer()
        buffer.add(self.t, kind, subject, attempt, a, b, c, payload, text)
        self.apply(buffer.take())

    def apply(self, batch: EventBatch) -> None:
        """Apply a batch and audit the state."""
        batch = EventBatch(batch.records.copy(), batch.pool.copy(), dict(batch.texts))
        self.journal.append(batch)
        self.state.apply(batch)
        if self.audited:
            audit(self.state)

    def submit(
        self, job: int, *, t: int | None = None, tasks: Sequence[int] = (), text: str | None = None, **columns: int
    ) -> int:
        """`tasks`: DETAIL numbers a task, for a job with `details=1`."""
        self.emit(EventKind.SUBMITTED, job, payload=[*spec(**columns), *tasks], text=text, t=t)
        return job

    def want(
        self,
        job: int,
        tasks: Iterable[Task],
        *,
        t: int | None = None,
        data: int | None = None,
        servers: int | None = None,
        batch: int = 0,
    ) -> None:
        b, extra = self._shape(job, data, servers, batch)
        self.emit(EventKind.WANTED, job, self.get(job, "attempt"), b=b, c=extra, payload=place(tasks), t=t)

    def start(
        self,
        job: int,
        tasks: Iterable[Task],
        *,
        t: int | None = None,
        data: int | None = None,
        servers: int | None = None,
        batch: int = 0,
    ) -> None:
        """Ask for the next attempt of a job."""
        b, extra = self._shape(job, data, servers, batch)
        self.emit(EventKind.START_REQUESTED, job, self.get(job, "attempt") + 1, b=b, c=extra, payload=place(tasks), t=t)

    def run(self, job: int, tasks: Iterable[Task], *, t: int | None = None, **shape: int) -> None:
        """Start, and report that the gang is up."""
        self.start(job, tasks, t=t, **shape)
        self.report(EventKind.STARTED, job)

    def stop(
        self,
        job: int,
        reason: Reason = Reason.PREEMPTED,
        tasks: Iterable[Task] = (),
        *,
        t: int | None = None,
        data: int | None = None,
        servers: int | None = None,
        batch: int = 0,
    ) -> None:
        b, extra = self._shape(job, data, servers, batch)
        self.emit(EventKind.STOP_REQUESTED, job, self.get(job, "attempt"), a=reason, b=b, c=extra, payload=place(tasks), t=t)

    def report(
        self, kind: EventKind, job: int, *, attempt: int | None = None, t: int | None = None, a: int = 0, b: int = -1, c: int = 0
    ) -> None:
        """What an engine says of a job's present attempt (or of another)."""
        self.emit(kind, job, self.get(job, "attempt") if attempt is None else attempt, a=a, b=b, c=c, t=t)

    def _shape(self, job: int, data: int | None, servers: int | None, batch: int) -> tuple[int, int]:
        data = self.get(job, "data") if data is None else data
        servers = self.get(job, "servers") if servers is None else servers
        return data, servers | batch << 20

    def settle(self) -> list[EventKind]:
        """Apply what follows from the state alone; which events that were."""
        batch = settled(self.state, self.t)
        kinds = batch.kinds()
        if kinds:
            self.apply(batch)
        return kinds

    # -- plans ----------------------------------------------------------------------------------------------------
    def view(self) -> ClusterView:
        return ClusterView(self.state, self.t, 0)

    def draft(self) -> Draft:
        return self.view().draft()

    def check(self, plan: Plan, **capabilities: bool) -> Violation | None:
        """`check`, and that it has left its differences at zero."""
        found = check(self.state, plan, Capabilities(**capabilities))  # type: ignore[arg-type]
        assert_clean(self.state)
        return found

    def diff(self, plan: Plan) -> EventBatch:
        """`diff`, and that it has given back what it borrowed."""
        before = self.state.digest()
        batch = diff(self.state, plan, self.t)
        assert self.state.digest() == before, "diff changed the state"
        return EventBatch(batch.records.copy(), batch.pool.copy())

    def do(self, plan: Plan) -> list[tuple[EventKind, int]]:
        """Check, diff and apply; (kind, job) of each event."""
        found = self.check(plan)
        assert found is None, found
        batch = self.diff(plan)
        if len(batch):
            self.apply(batch)
        return said(batch)

    # -- looking --------------------------------------------------------------------------------------------------
    def get(self, job: int, column: str) -> int:
        """A column of a live job."""
        row = self.state.row(job)
        assert row is not None, f"job {job} is not live"
        return int(self.state.J[c.JOB_COLUMN_NAMES.index(column), row])

    def phase(self, job: int) -> Phase:
        """Where a job stands, or how it ended."""
        ended = self.state.ended_phase(job)
        return Phase(self.get(job, "phase")) if ended is None else ended

    def count(self, counter: str) -> int:
        return int(self.state.C[c.COUNTER_NAMES.index(counter)])

    def node(self, node: int, column: str) -> int:
        return int(self.state.N[c.NODE_COLUMN_NAMES.index(column), node])

    def gpu(self, gpu: int, column: str) -> int:
        return int(self.state.G[c.GPU_COLUMN_NAMES.index(column), gpu])

    def queue(self, queue: int, column: str) -> int:
        return int(self.state.Q[c.QUEUE_COLUMN_NAMES.index(column), queue])

    def tasks(self, job: int) -> list[dict[str, int]]:
        """The task rows of a job's present shape."""
        first, count = self.get(job, "task0"), self.get(job, "tasks")
        return [dict(zip(c.TASK_COLUMN_NAMES, self.state.T[:, t].tolist(), strict=False)) for t in range(first, first + count)]

    def whole_journal(self) -> EventBatch:
        return concatenate(self.journal)


def said(batch: EventBatch) -> list[tuple[EventKind, int]]:
    """(kind, subject) of each event."""
    return [(EventKind(kind), subject) for kind, subject in batch.records[:, [c.E_KIND, c.E_ID]].tolist()]


def assert_clean(state: State) -> None:
    """What `check` works in is all zero."""
    s = state.scratch
    for name in ("dG", "dN", "queues", "seen"):
        assert not getattr(s, name).any(), f"check left something in {name}"


# --- the dense audit ----------------------------------------------------------------------------------------------
def audit(state: State) -> None:
    """Recount everything that `apply` keeps up to date, from the jobs and their tasks alone."""
    N, G, Q, C = (getattr(state, name).tolist() for name in "NGQC")
    T = state.T[:, : C[c.C_TASKS]].tolist()
    job = [dict(zip(c.JOB_COLUMN_NAMES, column, strict=False)) for column in state.J[:, : C[c.C_ROWS]].T.tolist()]
    live = [row for row, j in enumerate(job) if j["phase"] <= Phase.STOPPING]
    nodes, gpus = C[c.C_NODES], C[c.C_GPUS]
    booked, tasks, held, held_tasks, used = ([0] * gpus for _ in range(5))
    sums = {name: [0] * nodes for name in ("cpu", "mem", "net", "held_cpu", "held_mem", "use_cpu", "use_mem", "use_net")}
    of_queue: Counter[int] = Counter()
    live_tasks = 0
    for row in live:
        j = job[row]
        block = range(j["task0"], j["task0"] + j["tasks"])
        held_block = range(j["held_task0"], j["held_task0"] + j["held_tasks"]) if j["held_tasks"] else range(0)
        live_tasks += len(set(block) | set(held_block))
        held_milli = 0
        for t in block:
            node, gpu_bits = T[c.T_NODE][t], gpus_of(T[c.T_MASK][t])
            assert T[c.T_JOB][t] == row
            assert (node >= 0) == bool(j["placed"]), "a gang is placed in part"
            if node >= 0:
                sums["cpu"][node] += T[c.T_CPU][t]
                sums["mem"][node] += T[c.T_MEM][t]
                sums["net"][node] += T[c.T_NET][t]
                for bit in gpu_bits:
                    booked[N[c.N_GPU0][node] + bit] += T[c.T_BOOK][t]
                    tasks[N[c.N_GPU0][node] + bit] += 1
                    of_queue[j["queue"]] += T[c.T_BOOK][t]
        for t in held_block:
            node, bits = T[c.T_HELD_NODE][t], gpus_of(T[c.T_HELD_MASK][t])
            assert T[c.T_JOB][t] == row and node >= 0
            sums["held_cpu"][node] += T[c.T_CPU][t]
            sums["held_mem"][node] += T[c.T_MEM][t]
            sums["use_cpu"][node] += T[c.T_USE_CPU][t]
            sums["use_mem"][node] += T[c.T_USE_MEM][t]
            sums["use_net"][node] += T[c.T_USE_NET][t]
            for bit in bits:
                held[N[c.N_GPU0][node] + bit] += T[c.T_HELD_BOOK][t]
                held_tasks[N[c.N_GPU0][node] + bit] += 1
                used[N[c.N_GPU0][node] + bit] += T[c.T_USE_GPU][t] // len(bits)
                held_milli += T[c.T_HELD_BOOK][t]
        assert j["held_milli"] == held_milli
        assert bool(j["held_tasks"]) == (j["phase"] in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)), "held and phase disagree"
        assert (j["started_at"] >= 0) <= (j["phase"] in (Phase.RUNNING, Phase.STOPPING))
        if j["phase"] in (Phase.STARTING, Phase.RUNNING):
            assert j["placed"], "a job runs where it is not wanted"
        assert state.row(j["id"]) == row
    for name, column in (
        ("booked", c.G_BOOKED),
        ("tasks", c.G_TASKS),
        ("held", c.G_HELD),
        ("held_tasks", c.G_HELD_TASKS),
        ("used", c.G_USED),
    ):
        counted = {"booked": booked, "tasks": tasks, "held": held, "held_tasks": held_tasks, "used": used}[name]
        assert G[column] == counted, f"GPUs: {name}"
    assert all(0 <= g <= c.WHOLE for g in booked + held)
    for name, counted in sums.items():
        assert N[c.NODE_COLUMN_NAMES.index(name)] == counted, f"nodes: {name}"
    buckets: dict[int, list[int]] = {}
    for n in range(nodes):
        assert 0 <= sums["cpu"][n] <= N[c.N_CPU_MAX][n] and 0 <= sums["mem"][n] <= N[c.N_MEM_MAX][n]
        assert 0 <= sums["held_cpu"][n] <= N[c.N_CPU_MAX][n] and 0 <= sums["held_mem"][n] <= N[c.N_MEM_MAX][n]
        own = range(N[c.N_GPU0][n], N[c.N_GPU0][n] + N[c.N_GPUS][n])
        free = [i for i, g in enumerate(own) if tasks[g] == 0]
        assert gpus_of(N[c.N_FREE_MASK][n]) == tuple(free) and N[c.N_FREE][n] == len(free)
        assert gpus_of(N[c.N_HELD_MASK][n]) == tuple(i for i, g in enumerate(own) if held_tasks[g])
        if N[c.N_PHASE][n] == NodePhase.UP and N[c.N_GENERATION][n]:
            buckets.setdefault(N[c.N_KIND][n] * (C[c.C_GPUS_MAX] + 1) + len(free), []).append(n)
    for bucket in range(state.B.shape[0]):
        assert members(state.B, C[c.C_WORDS], bucket) == buckets.get(bucket, []), f"bucket {bucket}"
    added = [n for n in range(nodes) if N[c.N_GENERATION][n]]
    assert C[c.C_GPUS_UP] == sum(N[c.N_GPUS][n] for n in added if N[c.N_PHASE][n] == NodePhase.UP)
    waiting = [row for row in live if job[row]["phase"] == Phase.QUEUED and not job[row]["placed"]]
    assert Q[c.Q_BOOKED] == [of_queue[q] for q in range(C[c.C_QUEUES])]
    assert Q[c.Q_WAITING] == [sum(job[row]["queue"] == q for row in waiting) for q in range(C[c.C_QUEUES])]
    expected = {
        c.C_QUEUED: sum(job[row]["phase"] == Phase.QUEUED for row in live),
        c.C_WAITING: len(waiting),
        c.C_PLACED_WAITING: sum(job[row]["phase"] == Phase.QUEUED and job[row]["placed"] for row in live),
        c.C_RUNNING: sum(job[row]["phase"] == Phase.RUNNING for row in live),
        c.C_MUST_STOP: sum(job[row]["must_stop"] != 0 for row in live),
        c.C_WAITING_CPU: sum(job[row]["gpus"] == 0 for row in waiting),
        c.C_DEAD: len(job) - len(live),
        c.C_TASKS: live_tasks + C[c.C_DEAD_TASKS],
    }
    for counter, counted_now in expected.items():
        assert C[counter] == counted_now, f"{c.COUNTER_NAMES[counter]}: {C[counter]}, counted {counted_now}"
    assert C[c.C_FIRST_WAITING] <= min(waiting, default=C[c.C_ROWS]) and C[c.C_EDGES] <= state.X.shape[1]
    if live:
        priorities = [job[row]["priority"] for row in live]
        assert C[c.C_PRIORITY_MIN] <= min(priorities) and C[c.C_PRIORITY_MAX] >= max(priorities)
    assert state.scratch.queues.shape == state.scratch.planned.shape == (state.Q.shape[1],) and state.scratch.seen.shape == (
        state.J.shape[1],
    )


# --- the dense twin of check --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Entry:
    """One override in a plan, for the twin."""

    op: int
    row: int
    data: int
    servers: int
    a: int
    reason: int
    tasks: list[tuple[int, int, int]]


def entries_of(plan: Plan) -> list[Entry]:
    return [
        Entry(
            o[c.O_OP],
            o[c.O_ROW],
            o[c.O_DATA],
            o[c.O_SERVERS],
            o[c.O_A],
            o[c.O_REASON],
            [tuple(task) for task in plan.places[o[c.O_TASK0] : o[c.O_TASK0] + o[c.O_TASKS]].tolist()],
        )
        for o in plan.overrides.tolist()
    ]


def stays(state: State, j: dict[str, int], entry: Entry, k: int) -> bool:
    """Whether the k-th task of a placed job is wanted on the node where it is wanted already."""
    if not j["placed"] or entry.data != j["data"] or k >= j["tasks"]:
        return False
    return int(state.T[c.T_NODE, j["task0"] + k]) == entry.tasks[k][0]


def faults_alone(state: State, entry: Entry, *, fractions: bool, uneven: bool) -> set[int]:
    """Everything that is wrong with one override in itself."""
    if entry.row < 0:
        return {V_ENDED}
    j = dict(zip(c.JOB_COLUMN_NAMES, state.J[:, entry.row].tolist(), strict=False))
    if entry.op == Op.RELEASE:
        if entry.reason in (Reason.MIGRATED, Reason.RESIZED):
            return {V_OP}
        return set() if j["placed"] else {V_NOT_PLACED}
    if entry.op == Op.RULE:
        allowed = {j["stop_rule"], *gpus_of(j["stop_allow"])}
        return set() if entry.a in allowed else {V_RULE}
    if entry.op in (Op.FINISH, Op.WHY):
        return set()
    if entry.op != Op.PLACE:
        return {V_OP}
    if j["finishing"] or j["must_stop"]:
        return {V_ENDED}
    faults = {V_HELD} if j["hold"] and not j["placed"] else set()
    other_shape = (entry.data, entry.servers) != (j["data"], j["servers"])
    if (
        not j["data_min"] <= entry.data <= j["data_max"]
        or not 0 <= entry.servers <= max(j["servers"], j["servers_max"])
        or (other_shape and j["details"])
    ):
        return faults | {V_SHAPE}
    workers = entry.data * j["pipeline"] * j["tensor"]
    if len(entry.tasks) != workers + entry.servers:
        return faults | {V_GANG}
    on_node: Counter[int] = Counter()
    for k, (node, mask, milli) in enumerate(entry.tasks):
        if not 0 <= node < state.C[c.C_NODES]:
            return faults | {V_NODE}
        n = dict(zip(c.NODE_COLUMN_NAMES, state.N[:, node].tolist(), strict=False))
        if n["phase"] == NodePhase.DOWN or (n["phase"] == NodePhase.DRAINING and not stays(state, j, entry, k)):
            faults.add(V_NODE)
        bits = gpus_of(mask)
        if k >= workers:
            faults |= {V_BAD_GPU} if bits else set()
            continue
        on_node[node] += 1
        demand = int(state.T[c.T_GPU, j["task0"] + k]) if entry.data == j["data"] else j["gpu_task"]
        if any(bit >= n["gpus"] for bit in bits):
            faults.add(V_BAD_GPU)
        if not bits:
            faults |= {V_BAD_GPU} if demand else set()
            continue
        ways = [(demand, j["kind_mask"])] if -(-demand // c.WHOLE) == len(bits) else []
        ways += [(j["alt_gpu"], j["alt_mask"])] if j["alt_gpu"] and -(-j["alt_gpu"] // c.WHOLE) == len(bits) else []
        right = [wanted for wanted, kinds in ways if kinds >> n["kind"] & 1]
        if not right:
            faults.add(V_KIND if ways else V_BAD_GPU)
        elif milli != c.WHOLE:
            faults |= {V_BAD_GPU} if milli != right[0] else set()
            faults |= {V_FRACTION} if not fractions else set()
            faults |= {V_SHARE} if not j["share"] else set()
    if not uneven and len(set(on_node.values())) > 1:
        faults.add(V_UNEVEN)
    return faults


def faults_together(state: State, entries: Sequence[Entry]) -> set[int]:
    """What is wrong with the cluster as the plan wants it: every GPU, node and queue is counted from nothing."""
    gpu_milli, gpu_tasks, cpu, mem, queue = Counter[int](), Counter[int](), Counter[int](), Counter[int](), Counter[int]()
    moved = {e.row: e for e in entries if e.op in (Op.PLACE, Op.RELEASE, Op.FINISH)}
    touched_nodes, touched_gpus, grown = set(), set(), Counter[int]()
    for row in state.live_rows().tolist():
        j = dict(zip(c.JOB_COLUMN_NAMES, state.J[:, row].tolist(), strict=False))
        block = state.T[:, j["task0"] : j["task0"] + j["tasks"]].T.tolist()
        old = [(t[c.T_NODE], t[c.T_MASK], t[c.T_BOOK], t[c.T_CPU], t[c.T_MEM]) for t in block] if j["placed"] else []
        new = old
        if row in moved:
            e = moved[row]
            workers = e.data * j["pipeline"] * j["tensor"]
            new = []
            for k, (node, mask, milli) in enumerate(e.tasks if e.op == Op.PLACE else []):
                demand = (j["cpu_task"], j["mem_task"]) if k < workers else (j["server_cpu"], j["server_mem"])
                if j["details"]:
                    demand = (block[k][c.T_CPU], block[k][c.T_MEM])
                new.append((node, mask, milli, *demand))
                touched_nodes.add(node)
                touched_gpus |= {int(state.N[c.N_GPU0, node]) + bit for bit in gpus_of(mask)}
            grown[j["queue"]] += sum(t[2] * len(gpus_of(t[1])) for t in new) - sum(t[2] * len(gpus_of(t[1])) for t in old)
        for node, mask, milli, task_cpu, task_mem in new:
            cpu[node] += task_cpu
            mem[node] += task_mem
            for bit in gpus_of(mask):
                gpu_milli[int(state.N[c.N_GPU0, node]) + bit] += milli
                gpu_tasks[int(state.N[c.N_GPU0, node]) + bit] += 1
                queue[j["queue"]] += milli
    faults = set()
    faults |= {V_CPU for n in range(int(state.C[c.C_NODES])) if cpu[n] > state.N[c.N_CPU_MAX, n]}
    faults |= {V_MEM for n in range(int(state.C[c.C_NODES])) if mem[n] > state.N[c.N_MEM_MAX, n]}
    for g in range(int(state.C[c.C_GPUS])):
        limit = c.WHOLE if gpu_tasks[g] <= 1 else int(state.C[c.C_SHARE_LIMIT])
        faults |= {V_GPU} if gpu_milli[g] > limit else set()
    limits = state.Q[c.Q_LIMIT].tolist()
    faults |= {V_QUOTA for q, limit in enumerate(limits) if limit >= 0 and grown[q] > 0 and queue[q] > limit}
    faults |= {V_BORROWED} if takes_a_claimed_place(state, entries, queue, grown) else set()
    return faults


def takes_a_claimed_place(state: State, entries: list[Entry], queue: Counter[int], grown: Counter[int]) -> bool:
    """Whether a place that takes its queue above its quota would suit the first waiting job of a queue below its own."""
    quotas = [int(quota) for quota in state.Q[c.Q_QUOTA]]
    if max(quotas) < 0:
        return False
    moved = {e.row for e in entries if e.op in (Op.PLACE, Op.RELEASE, Op.FINISH)}
    jobs = [dict(zip(c.JOB_COLUMN_NAMES, state.J[:, row].tolist(), strict=True)) | {"row": int(row)} for row in state.live_rows()]
    job_at = {j["row"]: j for j in jobs}
    waiting = [j for j in jobs if j["phase"] == Phase.QUEUED and not j["placed"] and j["row"] not in moved]
    waiting = [j for j in waiting if not j["hold"] and j["gpus"]]
    for q, quota in enumerate(quotas):
        first = min((j for j in waiting if j["queue"] == q), key=lambda j: (-j["priority"], j["id"]), default=None)
        if first is None or first["not_before"] > state.C[c.C_NOW] or first["details"] or first["servers"] or first["share"]:
            continue
        after, limit = queue[q] + first["gpus"] * c.WHOLE, int(state.Q[c.Q_LIMIT, q])
        if after > quota or 0 <= limit < after:
            continue
        for e in entries:
            if e.op != Op.PLACE:
                continue
            j = job_at[e.row]
            own = j["queue"]
            borrows = own != q and grown[own] > 0 and queue[own] > max(quotas[own], 0) and (not j["placed"] or e.data > j["data"])
            plain = not (j["details"] or j["share"] or j["alt_gpu"])
            kinds = {int(state.N[c.N_KIND, node]) for node, mask, _ in e.tasks if mask}
            small = all(first[column] <= j[column] for column in ("gpu_task", "cpu_task", "mem_task"))
            enough = first["workers"] <= e.data * j["pipeline"] * j["tensor"]
            if (
                borrows
                and plain
                and small
                and enough
                and len(kinds) == 1
                and all(first["kind_mask"] >> kind & 1 for kind in kinds)
            ):
                return True
    return False


def dense_check(state: State, plan: Plan, *, fractions: bool = True, uneven: bool = True) -> tuple[set[int], int]:
    """The codes of which `check` may give any, and the override it must give it at (-1: anywhere). An empty set: the plan
    holds."""
    entries, seen = entries_of(plan), set()
    for i, entry in enumerate(entries):
        faults = faults_alone(state, entry, fractions=fractions, uneven=uneven)
        moves = entry.op in (Op.PLACE, Op.RELEASE, Op.FINISH)
        if not faults and moves and entry.row in seen:
            faults = {V_TWICE}
        if faults:
            return faults, i
        if moves:
            seen.add(entry.row)
    return faults_together(state, entries), -1


# --- random states and plans --------------------------------------------------------------------------------------
def random_desk(r: random.Random, *, steps: int = 25, audited: bool = False, limits: Sequence[int] = ()) -> Desk:
    """A small cluster with jobs in all phases, made by a random but sound history."""
    sizes = [r.choice((1, 2, 4)) for _ in range(r.randint(1, 3))]
    kinds = [r.randrange(2) for _ in sizes]
    desk = Desk(
        sizes,
        kinds=kinds,
        cpus=r.choice((3000, 8000)),
        mem=r.choice((3, 64)) * GB,
        limits=limits or (-1, r.choice((-1, 2000, 4000))),
        quotas=(-1, 2000) if sum(sizes) % 2 else (),
        share_limit=r.choice((c.WHOLE, 900)),
        audited=audited,
    )
    number = 0
    for _ in range(steps):
        desk.t += r.randint(0, 3) * US
        live = [int(desk.state.J[c.J_ID, row]) for row in desk.state.live_rows()]
        step = r.random()
        if step < 0.3 or not live:
            columns = dict(
                data=r.choice((1, 1, 2)),
                gpu_task=r.choice((0, 500, 1000, 1000, 2000)),
                cpu_task=r.choice((500, 1000)),
                queue=r.randrange(2),
                share=r.randrange(2),
                kind_mask=r.choice((-1, 1, 2)),
                stop_allow=r.choice((0, 2, 6)),
                data_max=3,
                servers_max=number % 3,
            )
            if r.random() < 0.2:
                columns |= dict(alt_gpu=1000, alt_mask=r.choice((1, 2)))
            desk.submit(number, **columns)
            number += 1
        elif step < 0.4:
            desk.emit(r.choice((EventKind.NODE_DRAINING, EventKind.NODE_UP, EventKind.NODE_UP)), r.randrange(len(sizes)))
        elif step < 0.45:
            desk.emit(EventKind.HOLD_SET, r.choice(live), a=r.randrange(2))
        elif step < 0.75:
            plan = random_plan(r, desk, jobs=1, wild=False)
            if dense_check(desk.state, plan) == (set(), -1) and desk.check(plan) is None:
                desk.apply(desk.diff(plan))
        else:
            job = r.choice(live)
            answers = {
                Phase.STARTING: (EventKind.STARTED, EventKind.STARTED, EventKind.START_FAILED),
                Phase.RUNNING: (EventKind.COMPLETED, EventKind.FAILED, EventKind.OBSERVED),
                Phase.STOPPING: (EventKind.STOPPED, EventKind.COMPLETED, EventKind.STARTED),
            }.get(desk.phase(job))
            if answers:
                desk.report(r.choice(answers), job)
            desk.settle()
    return desk


def random_plan(r: random.Random, desk: Desk, *, jobs: int = 3, wild: bool = True) -> Plan:
    """A plan of a few random verbs on random jobs. Not `wild`: one that has a fair chance to hold."""
    state, draft = desk.state, desk.draft()
    rows = state.live_rows().tolist()
    nodes = int(state.C[c.C_NODES])
    for row in r.sample(rows, k=min(jobs, len(rows))) if rows else []:
        j = dict(zip(c.JOB_COLUMN_NAMES, state.J[:, row].tolist(), strict=False))
        verb = r.random()
        if verb < 0.15 and (j["placed"] or wild):
            draft.release(j["id"])
        elif verb < 0.2:
            draft.finish(j["id"])
        elif verb < 0.25:
            draft.rule(j["id"], c.StopRule(r.randrange(3)))
        elif verb < 0.3:
            draft.why(j["id"], Reason.NO_ROOM, 1, 2)
        elif j["phase"] != Phase.STOPPING or wild:
            data = j["data"] if r.random() < 0.8 else r.randint(1, 3)
            servers = j["servers"] if r.random() < 0.9 else 1
            tasks = data * j["pipeline"] * j["tensor"]
            where, on = [], []
            taken: Counter[int] = Counter()
            milli = j["gpu_task"] if 0 < j["gpu_task"] < c.WHOLE and r.random() < 0.7 else c.WHOLE
            for _ in range(tasks):
                node = r.randrange(nodes)
                need = -(-j["gpu_task"] // c.WHOLE)
                size = int(state.N[c.N_GPUS, node])
                begin = (
                    r.randrange(max(size - need, 0) + 1)
                    if r.random() < 0.5 or need > size
                    else min(taken[node], max(size - need, 0))
                )
                taken[node] += need
                where.append(node)
                on.append(list(range(begin, begin + need)))
            where += [r.randrange(nodes) for _ in range(servers)]
            on += [[] for _ in range(servers)]
            if wild and r.random() < 0.1:
                where.pop()
                on.pop()
            if wild and where and r.random() < 0.05:
                where[0] = r.choice((-1, nodes))
            draft.place(j["id"], where, on, milli=milli, data=data, servers=servers)
            if wild and r.random() < 0.05:
                draft.release(j["id"])
    plan = draft.plan()
    if wild and len(plan) and r.random() < 0.05:
        plan.overrides[0, r.choice((c.O_OP, c.O_ROW))] = r.choice((-1, 9)) if plan.overrides[0, c.O_OP] == Op.PLACE else -1
    return plan
