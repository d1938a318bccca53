"""Quotas: nothing is above its quota while another queue that is below its own has a job waiting that could take the place."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import NodePhase, Phase
from headway.core.plan import Plan
from headway.core.policy import Policy
from headway.core.state import State
from headway.core.view import ClusterView, gpus_of
from headway.place.twins import Demand, Room, best_fit, consolidated, first_fit, topology
from headway.policies.registry import make_policy
from headway.sim.run import Simulation, simulate
from headway.testing.builders import JobSketch, cluster, job, workload
from headway.testing.gantt import gantt
from headway.testing.invariants import verify
from headway.testing.scenarios import run_scenario, scenario
from headway.workloads.cluster import Cluster, Queue

KERNELS = {"first-fit": first_fit, "best-fit": best_fit, "consolidated": consolidated, "topology": topology}
IN_TURN = ("fifo", "fifo-backfill")
"""Policies under which the first job of a queue that does not fit holds up the others of its queue."""
POLICIES = (
    "fifo", "fifo:placement=first-fit", "fifo-backfill:depth=3", "srtf", "srtf:placement=best-fit", "oracle-srtf",
    "las:quantum=60", "tiresias:threshold=60,queues=3,factor=4", "sjf", "sjf:unfit=block", "sjf:unfit=skip", "edf",
    "edf:preempt=false", "random", "random:unfit=backfill", "drf", "drf:over=queue", "drf:preempt=false", "borg-fair",
    "borg-fair:over=job", "borg-fair:preempt=false,unfit=skip",
)  # fmt: skip


def with_queues(where: Cluster, *queues: Queue) -> Cluster:
    return replace(where, queues=queues)


# -- by hand ------------------------------------------------------------------------------------------------------
def drawn(policy: str, where: Cluster, jobs: list[JobSketch], queues: tuple[str, ...] = ("a", "b")) -> str:
    run = simulate(workload(jobs, queues=queues), where, make_policy(policy), interval_s=1, keep_journal=True)
    assert run.journal is not None
    return "\n" + gantt(run.journal)


TWO_AND_TWO = with_queues(cluster([4]), Queue("a", 2), Queue("b", 2))


@pytest.mark.parametrize("policy", ["fifo", "fifo-backfill", "sjf", "srtf", "las", "edf", "drf", "borg-fair", "random"])
def test_what_is_borrowed_is_given_back(policy: str) -> None:
    """The first queue borrows two GPUs for c and d. At 2 the second one's job e claims them: d and c go, whoever ranks how."""
    jobs = [job("a", 1, 6), job("b", 1, 6), job("c", 1, 6, 1), job("d", 1, 6, 1), job("e", 2, 3, 2, queue=1)]
    assert (
        drawn(policy, TWO_AND_TWO, jobs)
        == """
n0.0 |aaaaaa....
n0.1 |bbbbbb....
n0.2 |.ceeeccccc
n0.3 |.deeeddddd"""
    )


def test_one_within_its_quota_is_not_stopped_for_a_borrower() -> None:
    """Queue a has its two and a shorter job c; b is within its quota. Srtf may exchange a's own, and touches nobody of b."""
    jobs = [job("a", 2, 9), job("b", 2, 9, queue=1), job("c", 1, 2, 1)]
    assert (
        drawn("srtf", TWO_AND_TWO, jobs)
        == """
n0.0 |accaaaaaaaa
n0.1 |a..aaaaaaaa
n0.2 |bbbbbbbbb..
n0.3 |bbbbbbbbb.."""
    )


def test_a_queue_without_a_quota_only_borrows() -> None:
    """The second queue has none: job c of the first takes what its last job, b, has."""
    where = with_queues(cluster([2]), Queue("a", 1))
    jobs = [job("a", 1, 5, queue=1), job("b", 1, 5, queue=1), job("c", 1, 2, 1)]
    assert (
        drawn("fifo", where, jobs)
        == """
n0.0 |aaaaa..
n0.1 |bccbbbb"""
    )


def test_the_queue_most_above_its_quota_gives_back_first() -> None:
    """a is 3 above its quota, b 1, and b's job was placed last: a's last goes."""
    where = with_queues(cluster([6]), Queue("a", 1), Queue("b", 0), Queue("c", 1))
    jobs = [job(name, 1, 5) for name in "abcd"] + [job("e", 1, 5, 1, queue=1), job("f", 1, 5, 1, queue=1)]
    jobs += [job("g", 1, 1, 2, queue=2)]
    assert (
        drawn("fifo", where, jobs, ("a", "b", "c"))
        == """
n0.0 |aaaaa.
n0.1 |bbbbb.
n0.2 |ccccc.
n0.3 |ddgddd
n0.4 |.eeeee
n0.5 |.fffff"""
    )


def test_a_queue_at_its_limit_exchanges_its_own_jobs() -> None:
    """The limit is 2. The shorter b takes the place of the longer a though two GPUs are free; they stay free."""
    where = with_queues(cluster([4]), Queue("a", limit_gpus=2))
    jobs = [job("a", 2, 5), job("b", 1, 1, 1)]
    assert (
        drawn("srtf", where, jobs)
        == """
n0.0 |a.aaaa
n0.1 |a.aaaa
n0.2 |.b....
n0.3 |......"""
    )


def test_lowest_priority_gives_back_first() -> None:
    jobs = [job("a", 1, 5, priority=10), job("b", 1, 5), job("c", 1, 5), job("d", 1, 5), job("e", 1, 2, 1, queue=1)]
    assert drawn("fifo", TWO_AND_TWO, jobs).splitlines()[4] == "n0.3 |aeeaaaa"


def test_claims_of_a_queue_come_one_after_the_other_under_fifo() -> None:
    """c of the second queue needs a whole node, which the first leaves it only at 6; d, behind it and within the quota too, waits
    with it."""
    where = with_queues(cluster([2, 2], cpus=2), Queue("a", 2), Queue("b", 2))
    jobs = [
        job("a", 1, 6, cpus=1.5), job("b", 1, 6, cpus=1.5), job("c", 2, 2, 1, workers=1, queue=1), job("d", 1, 2, 1, queue=1),
    ]  # fmt: skip
    assert drawn("fifo", where, jobs) == "\nn0.0 |aaaaaacc\nn0.1 |......cc\nn1.0 |bbbbbbdd\nn1.1 |........"


# -- after every round --------------------------------------------------------------------------------------------
@dataclass
class Watched:
    """A policy, and which jobs waited when it decided last."""

    under: Policy
    waited: set[int] = field(default_factory=set)
    name: str = "watched"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        J, rows = view.state.J, view.waiting_rows()
        able = (J[c.J_HOLD, rows] == 0) & (J[c.J_NOT_BEFORE, rows] <= view.now_us)
        self.waited = {int(number) for number in J[c.J_ID, rows[able]]}
        return self.under.decide(view, memo)


def rooms_without_borrowers(state: State) -> list[Room]:
    """Each node's room when every queue above its quota has given back, job by job: lowest priority, placed last."""
    J, T, N, Q = state.J, state.T, state.N, state.Q
    used = Q[c.Q_BOOKED].tolist()
    free = [bin(int(N[c.N_FREE_MASK, n]) & (2**64 - 1)).count("1") for n in range(N.shape[1])]
    cpu = (N[c.N_CPU_MAX] - N[c.N_CPU]).tolist()
    mem = (N[c.N_MEM_MAX] - N[c.N_MEM]).tolist()
    rows = [int(row) for row in state.live_rows() if J[c.J_PLACED, row] and J[c.J_GPUS, row]]
    rows.sort(key=lambda row: (J[c.J_PRIORITY, row], -(J[c.J_QUEUED_AT, row] + J[c.J_LAST_WAIT, row]), -row))
    for row in rows:
        queue = J[c.J_QUEUE, row]
        tasks = range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row])
        if used[queue] <= max(Q[c.Q_QUOTA, queue], 0) or any(N[c.N_PHASE, T[c.T_NODE, t]] != NodePhase.UP for t in tasks):
            continue
        used[queue] -= J[c.J_GPUS, row] * c.WHOLE
        for t in tasks:
            node = int(T[c.T_NODE, t])
            free[node] += len(gpus_of(int(T[c.T_MASK, t])))
            cpu[node] += int(T[c.T_CPU, t])
            mem[node] += int(T[c.T_MEM, t])
    return [
        Room(free[n], cpu[n], mem[n], int(N[c.N_RACK, n]), int(N[c.N_KIND, n]), bool(N[c.N_PHASE, n] == NodePhase.UP))
        for n in range(N.shape[1])
    ]


def refused_claim(state: State, waited: set[int], kernel: str, first_only: bool) -> str:
    """A job that waits although it would fit into what is free and borrowed, in words; empty if there is none."""
    J, Q = state.J, state.Q
    above = [q for q in range(Q.shape[1]) if Q[c.Q_BOOKED, q] > max(Q[c.Q_QUOTA, q], 0)]
    rows = [int(r) for r in state.live_rows() if J[c.J_PHASE, r] == Phase.QUEUED and not J[c.J_PLACED, r]]
    rows = [r for r in rows if int(J[c.J_ID, r]) in waited]
    rows.sort(key=lambda r: (-J[c.J_PRIORITY, r], r))
    seen: set[int] = set()
    for row in rows:
        queue, milli = int(J[c.J_QUEUE, row]), int(J[c.J_GPUS, row]) * c.WHOLE
        if milli == 0 or not any(q != queue for q in above) or (first_only and queue in seen):
            continue
        seen.add(queue)
        after = Q[c.Q_BOOKED, queue] + milli
        if after > Q[c.Q_QUOTA, queue] or 0 <= Q[c.Q_LIMIT, queue] < after or J[c.J_SERVERS, row]:
            continue
        task = Demand(int(J[c.J_GPU_TASK, row]) // c.WHOLE, int(J[c.J_CPU_TASK, row]), int(J[c.J_MEM_TASK, row]))
        rooms = rooms_without_borrowers(state)
        for kind in range(int(state.C[c.C_KINDS])):
            if J[c.J_KIND_MASK, row] >> kind & 1 and KERNELS[kernel](int(J[c.J_WORKERS, row]), task, kind, rooms) is not None:
                return f"job {J[c.J_ID, row]} of queue {queue} waits, and queues {above} are above their quotas"
    return ""


def random_run(seed: int) -> tuple[Cluster, list[JobSketch]]:
    r = random.Random(seed)
    sizes = [r.choice([1, 2, 4, 4]) for _ in range(r.randint(1, 4))]
    kinds = [r.choice(["x", "y"]) for _ in sizes] if r.random() < 0.3 else ["x"] * len(sizes)
    gpus = sum(sizes)
    first = r.randint(0, gpus)
    quotas = [r.choice([first, None]), r.randint(0, gpus - first), r.choice([0, None])]
    limits = [q if r.random() < 0.1 else r.choice([None, None, (q or 0) + r.randint(0, 3)]) for q in quotas]
    limits = [None if limit is not None and limit < 1 else limit for limit in limits]
    queues = tuple(Queue(name, q, limit) for name, q, limit in zip("abc", quotas, limits, strict=True))
    where = with_queues(cluster(sizes, kinds=kinds, racks=[n // 2 for n in range(len(sizes))], cpus=r.choice([None, 4])), *queues)
    t, jobs = 0, []
    for number in range(r.randint(3, 14)):
        t += r.choice([0, 0, 1, 3, 10, 40])
        workers, each, queue = r.choice([1, 1, 1, 2, 3]), r.choice([1, 1, 1, 2]), r.randrange(3)
        limit = queues[queue].limit_gpus
        if limit is not None and workers * each > limit:
            workers, each = 1, 1
        work_s = r.choice([1, 5, 20, 60])
        jobs.append(
            job(
                f"j{number}", workers * each, work_s, t, workers=workers, cpus=r.choice([0, 1]), queue=queue, user=r.randrange(2),
                estimate_s=max(1, int(work_s * r.choice([0.5, 1, 2]))), priority=r.choice([50, 50, 80]),
                kinds=(r.choice(where.kinds),) if r.random() < 0.3 else (), save_s=r.choice([0, 0, 2]),
                restore_s=r.choice([0, 3]),
            )
        )  # fmt: skip
    return where, jobs


@pytest.mark.parametrize("spec", POLICIES)
def test_nothing_is_above_its_quota_while_another_waits_below_its_own(spec: str) -> None:
    kernel = spec.partition("placement=")[2] or "consolidated"
    borrowed = 0
    for seed in range(20):
        where, jobs = random_run(seed)
        load = workload(jobs, kinds=where.kinds, users=("ann", "bob"), queues=("a", "b", "c"))
        policy = Watched(make_policy(spec))

        def watch(run: Simulation, policy: Watched = policy, seed: int = seed) -> None:
            nonlocal borrowed
            state = run.state
            verify(state)
            fault = refused_claim(state, policy.waited, kernel, spec.partition(":")[0] in IN_TURN)
            assert not fault, f"seed {seed}, {run.now_us / 1e6:g} s: {fault}"
            limits = state.Q[c.Q_LIMIT]
            assert np.all((limits < 0) | (state.Q[c.Q_BOOKED] <= limits)), f"seed {seed}: over a limit"
            borrowed += int(np.any(state.Q[c.Q_BOOKED] > np.maximum(state.Q[c.Q_QUOTA], 0)))
            assert run.rounds < 5000, f"seed {seed}: the run does not end"

        runs = [
            simulate(load, where, policy, interval_s=1, skip=skip, keep_journal=True, watch=watch) for skip in (True, False)
        ]  # fmt: skip
        shown = [gantt(run.journal) for run in runs if run.journal is not None]
        assert shown[0] == shown[1], f"seed {seed}: skipping rounds has changed the schedule"
        assert all(run.refused == 0 for run in runs)
    assert borrowed > 50


@pytest.mark.parametrize("spec", ["fifo:sharing=true", "fifo-backfill", "srtf", "drf", "sjf:unfit=skip"])
def test_quotas_among_faults(spec: str) -> None:
    """Lost nodes, failing and late starts, repeated and lost reports, cancelled jobs: state, world and journal stay sound."""
    for seed in range(25):
        it = scenario(900_000 + seed, spec)
        half = it.cluster.gpus // 2
        queues = (Queue("one", half), Queue("two", it.cluster.gpus - half if seed % 2 else None))
        run_scenario(replace(it, cluster=with_queues(it.cluster, *queues)))
