"""Random small workloads for the simulator, in the terms of the fast one and of the slow reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.reference import model as ref
from tests.reference.slow_sim import simulate as slow

from headway.core import columns as c
from headway.core.columns import EventKind, Reason
from headway.core.events import EventBatch
from headway.core.view import gpus_of
from headway.policies.registry import make_policy
from headway.sim.run import simulate
from headway.sim.world import World, too_large
from headway.workloads.cluster import Cluster, Node, Queue
from headway.workloads.schema import Workload

US = 1_000_000
QUEUES = ("a", "b", "c")
Entry = tuple[object, ...]


@dataclass(frozen=True)
class Case:
    """One random case: the same cluster and jobs for both simulators."""

    nodes: tuple[ref.Node, ...]
    jobs: tuple[ref.Job, ...]
    round_s: int
    faults: tuple[tuple[int, int, str], ...] = ()
    queues: tuple[ref.Queue, ...] = (ref.Queue(), ref.Queue(), ref.Queue())


def random_case(
    seed: int, *, cpus: bool, saves: bool, faults: bool, kinds: bool, priorities: bool, quotas: bool = False, loses: bool = False
) -> Case:  # fmt: skip
    """A few nodes and up to 14 jobs, contended, with whole seconds everywhere. `loses`: as far as the scheduler knows, a stop may
    cost most of them work."""
    r = random.Random(seed)
    wary = random.Random(seed + 2 * 10**6)
    people = random.Random(seed + 10**6)
    kind_names = ["a", "b"] if kinds else [""]
    nodes = tuple(
        ref.Node(
            n, r.choice([1, 2, 4, 4]), cpus_milli=r.choice([4000, 8000]) if cpus else 0, memory_bytes=0, rack=r.randrange(2),
            kind=r.choice(kind_names),
        )
        for n in range(r.randint(1, 4))
    )  # fmt: skip
    jobs = []
    t = 0
    for number in range(r.randint(2, 14)):
        t += r.choice([0, 0, 1, 3, 10, 40])
        work = r.choice([1, 5, 20, 60, 120, 300])
        jobs.append(
            ref.Job(
                number, t, work, tasks=r.choice([1, 1, 1, 2, 3, 4]),
                gpus_per_task=r.choice([1, 1, 1, 2]) if not cpus else r.choice([0, 1, 1, 2]),
                cpus_milli=r.choice([0, 1000, 2000]) if cpus else 0, memory_bytes=0,
                estimate_s=max(1, int(work * r.choice([0.5, 0.8, 1, 1, 2]))),
                priority=r.choice([10, 50, 50, 90]) if priorities else 50, save_s=r.choice([0, 0, 2, 7]) if saves else 0,
                restore_s=r.choice([0, 3, 5]), every_s=r.choice([0, 10]), kind=r.choice(["", *kind_names]),
                queue=people.randrange(3), user=people.randrange(3),
                deadline_s=people.choice([None, t + 10, t + work, t + 3 * work + 100]),
                grace_s=wary.choice([None, 1, 30, 30]) if loses else None,
            )
        )  # fmt: skip
    lost: list[tuple[int, int, str]] = []
    if faults:
        for n in range(len(nodes)):
            if r.random() < 0.6:
                down = r.randint(1, 200)
                lost += [(down, n, "down"), (down + r.randint(1, 60), n, "up")]
    case = Case(nodes, tuple(jobs), r.choice([1, 2, 5, 10, 60]), tuple(lost))
    return replace(case, queues=random_queues(people, case)) if quotas else case


def random_queues(r: random.Random, case: Case) -> tuple[ref.Queue, ...]:
    """Quotas that add up to no more than the cluster, limits that let every job through, weights, and a tree."""
    gpus = sum(node.gpus for node in case.nodes)
    first = r.randint(0, gpus)
    quotas = r.choice([(first, gpus - first, None), (first, r.randint(0, gpus - first), 0), (None, None, None)])
    largest = [max((job.gpus for job in case.jobs if job.queue == q), default=1) for q in range(3)]
    limits = [r.choice([None, None, max(largest[q], quotas[q] or 0, 1) + r.randint(0, 2)]) for q in range(3)]
    tree = r.choice([(None, None, None), (None, 0, 0), (1, None, 1), (None, 0, 1)])
    return tuple(ref.Queue(quotas[q], limits[q], r.choice([1, 1, 2, 5]), tree[q]) for q in range(3))


def cluster_of(nodes: Sequence[ref.Node], queues: Sequence[ref.Queue] = ()) -> Cluster:
    """The case's cluster for the fast simulator. cpus and memory of zero mean that nothing asks for them."""
    kinds = list(dict.fromkeys(n.kind for n in nodes))
    return Cluster(
        "case",
        tuple(
            Node(f"n{n.number}", n.rack, kinds.index(n.kind), n.gpus, n.cpus_milli or 10**9, n.memory_bytes or 10**15, 10**9)
            for n in nodes
        ),
        tuple(kinds),
        tuple(
            Queue(QUEUES[q], it.quota, it.limit, it.weight, None if it.parent is None else QUEUES[it.parent])
            for q, it in enumerate(queues)
        ),
    )


def workload_of(jobs: Sequence[ref.Job], kinds: Sequence[str]) -> Workload:
    """The case's jobs for the fast simulator."""
    n = len(jobs)
    spec = np.zeros((c.SPEC_COLUMNS, n), np.int64)
    spec[[c.J_PIPELINE, c.J_TENSOR, c.J_WIDTH]] = 1
    spec[[c.J_DEADLINE, c.J_TIME_LIMIT]] = c.NEVER
    spec[c.J_RETRY_MAX], spec[c.J_URGENCY] = 3, 5
    for i, job in enumerate(jobs):
        spec[[c.J_DATA, c.J_DATA_MIN, c.J_DATA_MAX], i] = job.tasks
        spec[c.J_GPU_TASK, i], spec[c.J_CPU_TASK, i], spec[c.J_MEM_TASK, i] = (
            job.gpus_per_task * 1000,
            job.cpus_milli,
            job.memory_bytes,
        )
        spec[c.J_KIND_MASK, i] = -1 if not job.kind else 1 << kinds.index(job.kind) if job.kind in kinds else 0
        spec[c.J_QUEUE, i], spec[c.J_USER, i] = job.queue, job.user
        spec[c.J_DEADLINE, i] = c.NEVER if job.deadline_s is None else job.deadline_s * US
        spec[c.J_GRACE, i] = (job.grace_s or 0) * US
        spec[c.J_ESTIMATE, i], spec[c.J_PRIORITY, i] = job.estimate * US, job.priority
        spec[c.J_SAVE, i], spec[c.J_RESTORE, i], spec[c.J_EVERY, i] = job.save_s * US, job.restore_s * US, job.every_s * US
    submitted = np.array([job.submit_s * US for job in jobs], np.int64)
    work = np.array([job.work_s * US for job in jobs], np.int64)
    return Workload("case", submitted, spec, work, kinds=tuple(kinds), users=("u", "v", "w"), queues=QUEUES)


KINDS = {
    EventKind.SUBMITTED: "submitted", EventKind.REJECTED: "rejected", EventKind.WANTED: "wanted", EventKind.UNWANTED: "unwanted",
    EventKind.START_REQUESTED: "start-requested", EventKind.STARTED: "started", EventKind.STOP_REQUESTED: "stop-requested",
    EventKind.STOPPED: "stopped", EventKind.COMPLETED: "completed", EventKind.NODE_DOWN: "node-down",
    EventKind.NODE_UP: "node-up",
}  # fmt: skip


def entries(journal: EventBatch) -> list[Entry]:
    """A journal as the reference writes it."""
    result: list[Entry] = []
    for record, payload in zip(journal.records.tolist(), journal.payloads(), strict=True):
        t, code, subject, attempt, a = record[:5]
        kind = EventKind(code)
        if kind not in KINDS:
            continue
        assert t % US == 0, "a time between whole seconds"
        place: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
        if kind in (EventKind.WANTED, EventKind.START_REQUESTED, EventKind.STOP_REQUESTED):
            place = tuple((k, int(node), gpus_of(int(mask))) for k, (node, mask, _) in enumerate(payload.reshape(-1, 3)))
        entry: Entry = (t // US, KINDS[kind], subject, attempt, place)
        result.append((*entry, Reason(a).word) if kind == EventKind.STOP_REQUESTED else entry)
    return result


POLICIES: dict[str, tuple[dict[str, Any], str]] = {
    "fifo": ({}, "fifo"),
    "fifo-backfill": ({"depth": 5}, "fifo-backfill:depth=5"),
    "srtf": ({}, "srtf"),
    "oracle-srtf": ({}, "oracle-srtf"),
    "las": ({"quantum_s": 200}, "las:quantum=200"),
    "sjf": ({"depth": 5}, "sjf:depth=5"),
    "sjf:unfit=block": ({"unfit": "block"}, "sjf:unfit=block"),
    "sjf:unfit=skip": ({"unfit": "skip"}, "sjf:unfit=skip"),
    "edf": ({}, "edf"),
    "edf:preempt=false": ({"preempt": False}, "edf:preempt=false"),
    "random": ({"unfit": "skip", "seed": 3}, "random:seed=3"),
    "random:unfit=block": ({"unfit": "block"}, "random:unfit=block"),
    "drf": ({}, "drf"),
    "drf:over=queue": ({"over": "queue"}, "drf:over=queue"),
    "drf:preempt=false": ({"preempt": False}, "drf:preempt=false"),
    "borg-fair": ({}, "borg-fair"),
    "borg-fair:over=job": ({"over": "job"}, "borg-fair:over=job"),
    "borg-fair:preempt=false": ({"preempt": False, "unfit": "skip"}, "borg-fair:preempt=false,unfit=skip"),
    "tiresias": (
        {"queues": 3, "threshold_s": 60, "factor": 4, "promote": 3},
        "tiresias:queues=3,threshold=60,factor=4,promote=3",
    ),
}
"""The reference's parameters and the same as a spec string."""
KERNELS = ("first-fit", "best-fit", "consolidated", "topology")


def fast_entries(case: Case, policy: str, kernel: str, *, skip: bool) -> list[Entry]:
    """The fast simulator's journal of a case.

    The world's nodes have far more cpus than the scheduler's books say, so that nothing slows down: the reference has no slowing.
    """
    spec = POLICIES[policy][1]
    if policy != "tiresias":
        spec += f"{',' if ':' in spec else ':'}placement={kernel}"
    cluster = cluster_of(case.nodes, case.queues)
    workload = workload_of(case.jobs, cluster.kinds)
    if policy == "oracle-srtf":
        workload = workload.with_estimates(workload.work_us)
    roomy = replace(cluster, nodes=tuple(replace(n, cpus_milli=n.cpus_milli * 1000) for n in cluster.nodes))
    world = World(workload, roomy, node_faults=[(t * US, node, what == "up") for t, node, what in case.faults])
    world.reject(too_large(workload, cluster))
    outcome = simulate(workload, cluster, make_policy(spec), interval_s=case.round_s, skip=skip, keep_journal=True, world=world)
    assert outcome.journal is not None
    return entries(outcome.journal)


def slow_entries(case: Case, policy: str, kernel: str) -> list[Entry]:
    """The slow reference's journal of a case."""
    kernel = "consolidated" if policy == "tiresias" else kernel
    name, params = policy.partition(":")[0], POLICIES[policy][0]
    return [tuple(e) for e in slow(case.jobs, case.nodes, name, params, kernel, case.round_s, case.faults, queues=case.queues)]
