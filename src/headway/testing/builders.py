"""Tiny clusters, workloads, states and views for tests: what a test is about stands in it, the rest has defaults.

state(nodes=[4, 4], jobs=[job("a", gpus=2, work_s=10)], running={"a": [(0, [0]), (0, [1])]})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind, Name, Sync
from headway.core.events import EventBatch, EventBuffer
from headway.core.state import State
from headway.core.view import ClusterView, mask_of
from headway.workloads.cluster import Cluster, Node
from headway.workloads.schema import Workload, plain_spec

US = 1_000_000
PLENTY_CPUS_MILLI = 10**9
PLENTY_BYTES = 10**15

Place = Sequence[tuple[int, Sequence[int]]]
"""Node and local GPUs of each task, servers last and without GPUs."""


@dataclass(frozen=True, slots=True)
class JobSketch:
    """A job as a test describes it; `job()` makes one."""

    name: str
    gpus: float = 1
    work_s: float = 10
    submit_s: float = 0
    workers: int = 1
    cpus: float = 0
    memory_bytes: int = 0
    network_bytes_per_s: int = 0
    estimate_s: float | None = None
    priority: int = 50
    kinds: tuple[str, ...] = ()
    servers: int = 0
    server_cpus: float = 0
    server_memory_bytes: int = 0
    share: bool = False
    save_s: float = 0
    restore_s: float = 0
    every_s: float = 0
    grace_s: float = 0
    retries: int = 3
    units: int = 0
    user: int = 0
    queue: int = 0
    deadline_s: float | None = None
    """A point in time."""


def job(
    name: str = "", gpus: float = 1, work_s: float = 10, submit_s: float = 0, *, workers: int | None = None, **more: object
) -> JobSketch:
    """A job that wants `gpus` GPUs in all: so many workers of one GPU each, or `workers` of equal parts.

    Below one GPU it has a single worker. `kinds` names the GPU kinds that it may use (none: any). The other keywords are the
    fields of `JobSketch`.
    """
    if workers is None:
        workers = max(1, int(gpus))
    return JobSketch(name, gpus, work_s, submit_s, workers, **more)  # type: ignore[arg-type]


def cluster(
    nodes: Sequence[int] = (4, 4), *, kinds: Sequence[str] | None = None, racks: Sequence[int] | None = None,
    cpus: float | Sequence[float] | None = None, memory_bytes: int | None = None, network_bytes_per_s: int = PLENTY_BYTES,
    names: Sequence[str] | None = None, share_limit: float = 1.0,
) -> Cluster:  # fmt: skip
    """A cluster with so many GPUs on each node. cpus (a number, or one a node) and memory are plenty unless given."""
    kind_of = list(kinds) if kinds is not None else ["gpu"] * len(nodes)
    kind_names = tuple(dict.fromkeys(kind_of))
    each = [cpus] * len(nodes) if cpus is None or isinstance(cpus, int | float) else list(cpus)
    made = tuple(
        Node(
            names[n] if names is not None else f"n{n}", racks[n] if racks is not None else 0, kind_names.index(kind_of[n]), gpus,
            PLENTY_CPUS_MILLI if (share := each[n]) is None else round(share * 1000),
            PLENTY_BYTES if memory_bytes is None else memory_bytes, network_bytes_per_s,
        )
        for n, gpus in enumerate(nodes)
    )  # fmt: skip
    return Cluster("test", made, kind_names, share_limit_milli=round(share_limit * c.WHOLE))


def workload(
    jobs: Sequence[JobSketch], *, kinds: Sequence[str] = ("gpu",), users: Sequence[str] = ("user",),
    queues: Sequence[str] = ("default",), jitter: float = 0.0, hold_s: float = 0.0, usage_seed: int = 0,
) -> Workload:  # fmt: skip
    """The jobs as a workload, numbered in the order given, which must be that of their submissions."""
    spec = plain_spec(len(jobs))
    for i, it in enumerate(jobs):
        milli = round(it.gpus * c.WHOLE)
        assert milli % it.workers == 0, f"{it.gpus} GPUs cannot be dealt to {it.workers} workers"
        mask = sum(1 << kinds.index(kind) for kind in it.kinds) if it.kinds else -1
        estimate_s = it.work_s if it.estimate_s is None else it.estimate_s
        for column, value in {
            c.J_DATA: it.workers, c.J_DATA_MIN: it.workers, c.J_DATA_MAX: it.workers, c.J_GPU_TASK: milli // it.workers,
            c.J_CPU_TASK: round(it.cpus * 1000), c.J_MEM_TASK: it.memory_bytes, c.J_NET_TASK: it.network_bytes_per_s,
            c.J_ESTIMATE: round(estimate_s * US), c.J_PRIORITY: it.priority, c.J_KIND_MASK: mask, c.J_SERVERS: it.servers,
            c.J_SERVER_CPU: round(it.server_cpus * 1000), c.J_SERVER_MEM: it.server_memory_bytes, c.J_SHARE: int(it.share),
            c.J_SYNC: Sync.PARAMETER_SERVER if it.servers else Sync.NONE, c.J_SAVE: round(it.save_s * US),
            c.J_RESTORE: round(it.restore_s * US), c.J_GRACE: round(it.grace_s * US), c.J_EVERY: round(it.every_s * US),
            c.J_RETRY_MAX: it.retries, c.J_UNITS_TOTAL: it.units, c.J_USER: it.user, c.J_QUEUE: it.queue,
            c.J_DEADLINE: c.NEVER if it.deadline_s is None else round(it.deadline_s * US),
        }.items():  # fmt: skip
            spec[column, i] = value
    submitted = np.array([round(it.submit_s * US) for it in jobs], np.int64)
    work = np.array([round(it.work_s * US) for it in jobs], np.int64)
    return Workload(
        "test", submitted, spec, work, tuple(users), tuple(queues), tuple(kinds), tuple(it.name for it in jobs),
        usage_jitter_ppm=round(jitter * 1e6), usage_hold_us=round(hold_s * US), usage_seed=usage_seed,
    )  # fmt: skip


def submissions(load: Workload, first: int = 0) -> EventBatch:
    """The submission events of a workload's jobs, with their names; job `i` gets the number `first + i`."""
    out = EventBuffer()
    for i, t in enumerate(load.submitted_us.tolist()):
        if load.job_names and load.job_names[i]:
            out.add(t, EventKind.NAMED, first + i, a=Name.JOB, text=load.job_names[i])
        payload = np.concatenate((load.spec[:, i], load.details[load.detail_at[i] : load.detail_at[i + 1]]))
        out.add(t, EventKind.SUBMITTED, first + i, payload=payload)
    return out.take()


def place_ints(sketch: JobSketch, place: Place) -> list[int]:
    """The payload of a place: node, mask and milli of each task."""
    milli = min(round(sketch.gpus * c.WHOLE) // sketch.workers, c.WHOLE)
    return [number for node, gpus in place for number in (node, mask_of(list(gpus)), milli if gpus else 0)]


def state(
    nodes: Sequence[int] | Cluster = (4, 4), jobs: Sequence[JobSketch] = (), *, running: Mapping[str, Place] | None = None,
    at_s: float | None = None, users: Sequence[str] = ("user",), queues: Sequence[str] = ("default",),
) -> State:  # fmt: skip
    """A state in which the jobs have been submitted; those in `running` run there since `at_s` (default: the last submission)."""
    where = nodes if isinstance(nodes, Cluster) else cluster(nodes)
    made = State()
    made.apply(where.events(0, users, queues))
    made.apply(submissions(workload(jobs, kinds=where.kinds, users=users, queues=queues)))
    t = round(at_s * US) if at_s is not None else max((round(it.submit_s * US) for it in jobs), default=0)
    number_of = {it.name: i for i, it in enumerate(jobs)}
    for name, place in (running or {}).items():
        number = number_of[name]
        sketch, out = jobs[number], EventBuffer()
        payload = place_ints(sketch, place)
        out.add(t, EventKind.START_REQUESTED, number, 1, b=sketch.workers, c=sketch.servers, payload=payload)
        out.add(t, EventKind.STARTED, number, 1)
        made.apply(out.take())
    return made


def view(
    nodes: Sequence[int] | Cluster = (4, 4), jobs: Sequence[JobSketch] = (), *, running: Mapping[str, Place] | None = None,
    now_s: float | None = None, seed: int = 0,
) -> ClusterView:  # fmt: skip
    """A view of such a state at `now_s` (default: its last event)."""
    made = state(nodes, jobs, running=running)
    return ClusterView(made, int(made.C[c.C_NOW]) if now_s is None else round(now_s * US), seed)
