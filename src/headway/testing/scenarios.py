"""Scenarios: a seed becomes a cluster, a workload and a plan of faults; a run of it is watched after every round.

Safety: the state is verified from its rows, the world from its processes, the journal by a replay. Liveness: every submitted
job ends, with a reason.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.core import columns as c
from headway.core.columns import EventKind, Phase, Reason
from headway.core.events import EventBatch
from headway.core.policy import Policy
from headway.core.state import State
from headway.core.view import gpus_of
from headway.policies.registry import choose
from headway.sim import columns as w
from headway.sim.faults import Faults, FaultyLink
from headway.sim.run import Outcome, Simulation, simulate
from headway.sim.world import World
from headway.testing.builders import PLENTY_BYTES, JobSketch, cluster, job, workload
from headway.testing.invariants import expect, require, verify
from headway.workloads.cluster import Cluster
from headway.workloads.schema import Workload

POLICIES = (
    "fifo", "fifo:placement=first-fit", "fifo:sharing=true", "fifo-backfill:depth=5", "fifo-backfill:placement=topology", "srtf",
    "srtf:placement=best-fit", "oracle-srtf", "las:quantum=60", "las:quantum=300,placement=topology",
    "tiresias:threshold=60,queues=3,factor=4",
    "tiresias:threshold=100,promote=2,skew=0.5", "tiresias:threshold=100,variant=gittins",
    "sjf", "edf", "drf", "drf:over=queue,preempt=false", "borg-fair", "random",
    "mlf-h", "mlf-h:tuned=true+mlf-c", "graphene", "slaq", "gandiva:slice=20", "hypersched", "srtf:sharing=true",
    "mlf-h:placement=task", "mlf-rl:guard=false", "mlfs", "rl-placement:guard=false,sharing=true",
)  # fmt: skip
"""Every shipped policy, with small quanta, so that they preempt in workloads of minutes."""
ROUNDS_MAX = 20_000
GB = 10**9


@dataclass(frozen=True)
class Scenario:
    """What a seed stands for."""

    seed: int
    policy: str
    cluster: Cluster
    workload: Workload
    faults: Faults
    interval_s: int

    def __str__(self) -> str:
        nodes = [node.gpus for node in self.cluster.nodes]
        what = f"{len(self.workload)} jobs on {nodes} under {self.policy}, a round each {self.interval_s} s"
        return f"seed {self.seed}: {what}, {self.faults}"


def random_cluster(r: random.Random, nodes_max: int = 4) -> Cluster:
    """Up to `nodes_max` nodes of one to four GPUs (now and then none), one or two kinds, one or two racks, sometimes tight
    cpus."""
    count = r.randint(1, nodes_max)
    kinds = r.choice([("gpu",), ("gpu",), ("big", "small")])
    cpus = r.choice([None, None, 4, 8])
    sizes = [r.choice([1, 2, 4, 4]) if n == 0 else r.choice([0, 1, 2, 2, 4, 4]) for n in range(count)]
    return cluster(
        sizes, kinds=[r.choice(kinds) for _ in range(count)], racks=[r.randrange(2) for _ in range(count)], cpus=cpus,
        memory_bytes=r.choice([None, 64 * GB]), share_limit=r.choice([1.0, 0.9]),
    )  # fmt: skip


def random_jobs(r: random.Random, where: Cluster, count: int, *, sharing: bool = False) -> list[JobSketch]:
    """Jobs of all sorts: gangs, cpu-only, shares, parameter servers, kinds, priorities, costs of a restart, wrong estimates."""
    tight = where.nodes[0].cpus_milli < 10**8
    memory = where.nodes[0].memory_bytes < PLENTY_BYTES
    priorities, names = r.random() < 0.3, where.kinds
    t, made = 0, []
    for number in range(count):
        t += r.choice([0, 0, 1, 3, 10, 40])
        work_s = r.choice([1, 5, 20, 60, 120, 300])
        workers, each = r.choice([1, 1, 1, 2, 3, 4]), r.choice([1, 1, 1, 2] if r.random() < 0.9 else [0])
        share = sharing and r.random() < 0.6
        gpus: float = workers * each
        if share:
            workers, gpus = r.choice([(1, 0.25), (1, 0.5), (2, 0.8), (2, 1.5), (1, 1)])
        servers = r.choice([0, 0, 0, 1, 2])
        cpus = r.choice([0, 1, 2]) if tight else 0
        memory_bytes = r.choice([0, GB, 16 * GB]) if memory else 0
        # A job that takes no more in all than one node has finds room for its servers wherever its workers are.
        small = workers * cpus + servers <= 4 and workers * memory_bytes + servers * GB <= 64 * GB
        made.append(
            job(
                f"job{number}", gpus, work_s, t, workers=workers, share=share, servers=servers, cpus=cpus,
                memory_bytes=memory_bytes, server_cpus=r.choice([0, 1]) if tight and small else 0,
                server_memory_bytes=GB if memory and small else 0, estimate_s=max(1, int(work_s * r.choice([0.5, 1, 1, 2]))),
                priority=r.choice([10, 50, 50, 90]) if priorities else 50, kinds=(r.choice(names),) if r.random() < 0.4 else (),
                save_s=r.choice([0, 0, 2, 7]), restore_s=r.choice([0, 0, 3]), every_s=r.choice([0, 10]),
                units=r.choice([0, 0, 5]), user=r.randrange(2), queue=r.randrange(2),
            )
        )  # fmt: skip
    return made


def scenario(seed: int, policy: str = "") -> Scenario:
    """The scenario of a seed. Without a policy the seed takes one of POLICIES, each in its turn."""
    r = random.Random(seed)
    chosen = policy or POLICIES[seed % len(POLICIES)]
    where = random_cluster(r)
    jobs = random_jobs(r, where, r.randint(2, 10), sharing="sharing=true" in chosen)
    jobs = [replace(it, retries=r.choice([0, 1, 3]) if r.random() < 0.2 else 1000) for it in jobs]
    load = workload(
        jobs,
        kinds=where.kinds,
        users=("ann", "bob"),
        queues=("one", "two"),
        jitter=r.choice([0.0, 0.0, 0.2]),
        hold_s=30.0,
        usage_seed=seed,
    )
    faults = Faults(
        seed=seed, node_losses=r.choice([0, 1, 3]), span_s=r.choice([60, 300]), outage_s_max=r.choice([10, 120]),
        fail_frac=r.choice([0.0, 0.1, 0.3]), start_s_max=r.choice([0.0, 0.0, 5.0]), late_frac=r.choice([0.0, 0.2, 0.5]),
        late_s_max=r.choice([3.0, 30.0]), repeat_frac=r.choice([0.0, 0.2, 0.5]), lost_frac=r.choice([0.0, 0.0, 0.1]),
        cancel_frac=r.choice([0.0, 0.0, 0.3]), reconcile_s=r.choice([20.0, 60.0]),
    )  # fmt: skip
    return Scenario(seed, chosen, where, load, faults, r.choice([1, 5, 10, 60]))


def run_scenario(it: Scenario, *, policy: Policy | None = None) -> Counter[str]:
    """Run a scenario with every check on; how its jobs ended, by phase.

    Raises:
        AssertionError: a job was lost, doubled or over-committed, or an index of the state is wrong; with the scenario in words.
    """
    try:
        return _run(it, policy)
    except AssertionError as error:
        error.add_note(f"in the scenario of {it}")
        raise


def _run(it: Scenario, policy: Policy | None) -> Counter[str]:
    chosen = choose(it.policy)
    load = it.workload.with_estimates(it.workload.work_us) if chosen.oracle else it.workload
    seen: list[Simulation] = []

    def watch(run: Simulation) -> None:
        if not seen:
            seen.append(run)
        require(run.rounds < ROUNDS_MAX, "the run does not end")
        verify(run.state)
        verify_world(world_of(run))

    outcome = simulate(
        load,
        it.cluster,
        policy or chosen.policy,
        seed=it.seed,
        interval_s=it.interval_s,
        faults=it.faults,
        keep_journal=True,
        watch=watch,
    )
    verify(outcome.state)
    require(outcome.refused == 0, f"{outcome.refused} plans of the policy were refused")
    if seen:
        world = world_of(seen[0])
        verify_world(world)
        expect("processes at the end", world.running(), {})
        verify_ends(outcome, world)
    assert outcome.journal is not None
    verify_journal(outcome.journal, it.cluster)
    replayed = State()
    replayed.apply(outcome.journal)
    expect("digest of the replayed journal", replayed.digest(), outcome.state.digest())
    return Counter(end.name.lower() for end in ends(outcome))


def world_of(run: Simulation) -> World:
    """The world behind a simulation."""
    source = run.source
    if isinstance(source, FaultyLink):
        return source.world
    assert isinstance(source, World)
    return source


def verify_world(world: World) -> None:
    """What really runs, counted from the processes: no GPU over its whole, every gang whole, nothing but what runs on the
    nodes' lists."""
    booked: Counter[int] = Counter()
    tasks: Counter[int] = Counter()
    for number in world.running():
        first, count = int(world.W[w.W_TASK0, number]), int(world.W[w.W_TASKS, number])
        spec = world.workload.spec[:, number]
        gang = int(spec[c.J_DATA] * spec[c.J_PIPELINE] * spec[c.J_TENSOR] + spec[c.J_SERVERS])
        require(count == gang, f"job {number} runs with {count} of {gang} tasks")
        for p in range(first, first + count):
            node, mask, milli = (int(world.P[column, p]) for column in (w.P_NODE, w.P_MASK, w.P_BOOK))
            require(all(gpu < world.V[w.V_GPUS, node] for gpu in gpus_of(mask)), f"job {number} runs on a GPU that is not there")
            for gpu in gpus_of(mask):
                booked[int(world.V[w.V_GPU0, node]) + gpu] += milli
                tasks[int(world.V[w.V_GPU0, node]) + gpu] += 1
    over = {gpu: milli for gpu, milli in booked.items() if milli > c.WHOLE}
    require(not over, f"GPUs given away over their whole: {over}")
    for row, right in ((w.D_BOOKED, booked), (w.D_TASKS, tasks)):
        expect("the world's GPUs", {g: int(v) for g, v in enumerate(world.D[row]) if v}, dict(right))


def ends(outcome: Outcome) -> list[Phase]:
    """How every job ended that the state remembers."""
    state = outcome.state
    numbers = range(int(state.C[c.C_ID_BASE]), int(state.C[c.C_LAST_ID]) + 1)
    return [phase for number in numbers if (phase := state.ended_phase(number)) is not None]


def verify_ends(outcome: Outcome, world: World) -> None:
    """Every submitted job ended, with a reason; what counts as completed has really done its work, what is done counts once."""
    state = outcome.state
    for number in range(len(world.workload)):
        phase = state.ended_phase(number)
        require(phase is not None, f"job {number} was lost: it has not ended")
        done = world.W[w.W_STATUS, number] == w.DONE
        require(phase != Phase.COMPLETED or bool(done), f"job {number} counts as completed, and its work is not done")
    for row in range(int(state.C[c.C_ROWS])):
        reason = Reason(int(state.J[c.J_REASON, row]))
        require(reason != Reason.NONE, f"job {int(state.J[c.J_ID, row])} ended without a reason")


def verify_journal(journal: EventBatch, where: Cluster) -> None:
    """Start requests against each other, by the journal alone: attempts in order, and no GPU asked for while another job holds
    it."""
    held: dict[int, list[tuple[int, int, int]]] = {}
    booked: Counter[tuple[int, int]] = Counter()
    attempts: Counter[int] = Counter()
    submitted: set[int] = set()
    for record, payload in zip(journal.records.tolist(), journal.payloads(), strict=True):
        kind, number, attempt = record[c.E_KIND], record[c.E_ID], record[c.E_ATTEMPT]
        if kind == EventKind.SUBMITTED:
            require(number not in submitted, f"job {number} was submitted twice")
            submitted.add(number)
        elif kind == EventKind.START_REQUESTED:
            require(number not in held, f"job {number} was started while it holds a place")
            expect(f"attempt of job {number}", attempt, attempts[number] + 1)
            attempts[number] = attempt
            held[number] = [
                (node, gpu, milli) for node, mask, milli in payload.reshape(-1, c.PLACE).tolist() for gpu in gpus_of(mask)
            ]
            for node, gpu, milli in held[number]:
                require(gpu < where.nodes[node].gpus, f"job {number} was given a GPU that node {node} does not have")
                booked[node, gpu] += milli
                require(booked[node, gpu] <= c.WHOLE, f"GPU {gpu} of node {node} was given away over its whole, to job {number}")
        elif EventKind.START_FAILED <= kind <= EventKind.FAILED and attempt == attempts[number]:
            for node, gpu, milli in held.pop(number, []):
                booked[node, gpu] -= milli
    expect("jobs that hold a place at the end", sorted(held), [])
    expect("submitted jobs", sorted(submitted), list(range(len(submitted))))


def run_seeds(seeds: Sequence[int], policy: str = "") -> Counter[str]:
    """Run the scenarios of some seeds; how their jobs ended."""
    total: Counter[str] = Counter()
    for seed in seeds:
        total += run_scenario(scenario(seed, policy))
    return total
