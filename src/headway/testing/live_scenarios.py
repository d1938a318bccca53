"""A seed becomes a cluster, jobs, a policy, and a plan of faults for the live controller on a simulated engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.core.columns import NEVER
from headway.core.model import Checkpoint, GpuDemand, JobSpec, Parallelism, Resources
from headway.engines.base import NodeInfo
from headway.runtime.rounds import Meanwhile
from headway.runtime.verbs import Update
from headway.testing.script import Script

POLICIES = (
    "fifo", "fifo-backfill", "srtf", "las:quantum=20", "srtf+mlf-c", "mlf-h", "tiresias:threshold=20,queues=3,factor=4",
    "edf", "mlf-h:tuned=true+mlf-c", "gandiva:slice=20", "drf", "borg-fair",
)  # fmt: skip
"""With small quanta, so that they preempt in workloads of minutes."""
CALLS = ("launch", "stop", "acknowledge", "snapshot", "fence", "inventory", "start")
STORMS_S = 150.0
"""All faults are over by then (virtual seconds)."""


NO_UPDATE = Update()


@dataclass(frozen=True)
class Asked:
    """What an owner asks for, and when (virtual seconds): to hold his job, to release or requeue it, or to update it."""

    at_s: float
    verb: str
    update: Update = NO_UPDATE


@dataclass(frozen=True)
class Owned:
    """One job, when its owner hands it in and, perhaps, cancels it (virtual seconds)."""

    id: str
    spec: JobSpec
    script: Script
    at_s: float
    cancel_s: float | None = None
    asks: tuple[Asked, ...] = ()
    """In the order of their times; a job that is held is released later."""


@dataclass(frozen=True)
class Death:
    """How one controller ends. `where`: an append (before, after, or one that lies) or an engine call; the `count`-th of them."""

    where: str = ""
    count: int = 0
    after_s: float = 0.0
    """With no `where`: so long after its start."""
    restart_s: float = 0.0
    tail_lost: int = 0
    """So many of the last batches are lost with it, as by a disk that lies about what it has written."""


@dataclass(frozen=True)
class Pause:
    """A controller is stopped for so long (SIGSTOP, a machine that hangs), and meanwhile another one takes over."""

    at_s: float
    for_s: float
    other_s: float
    """So long after the pause began, the other starts; it may be after the end of the pause."""


@dataclass(frozen=True)
class NodeFault:
    """A node is out of reach, or without power, from `at_s` for `for_s`."""

    node: str
    at_s: float
    for_s: float
    power: bool
    notice_s: float


@dataclass(frozen=True)
class LiveScenario:
    """What a seed stands for."""

    seed: int
    policy: str
    nodes: tuple[NodeInfo, ...]
    jobs: tuple[Owned, ...]
    deaths: tuple[Death, ...] = ()
    pauses: tuple[Pause, ...] = ()
    node_faults: tuple[NodeFault, ...] = ()
    lost: float = 0.0
    repeated: float = 0.0
    late_s: float = 0.0
    call_s: float = 0.0
    broken: float = 0.0
    think_s: float = 0.0
    meanwhile: Meanwhile | None = None
    presume_s: float = float("inf")
    wall_steps: tuple[tuple[float, float], ...] = ()
    """At so many seconds, the wall clock jumps by so many."""
    reboots: bool = False
    """Between two controllers their machine boots: its monotonic clock begins anew."""

    def __str__(self) -> str:
        size = "+".join(str(node.gpus) for node in self.nodes)
        faults = f"{len(self.deaths)} deaths, {len(self.pauses)} pauses, {len(self.node_faults)} node faults"
        reports = f"reports lost {self.lost:g}, repeated {self.repeated:g}, late {self.late_s:g} s"
        return (
            f"seed {self.seed}: {len(self.jobs)} jobs on {size} GPUs under {self.policy}; {faults}; {reports}; "
            f"owners ask {sum(len(job.asks) for job in self.jobs)} times; "
            f"calls {self.call_s:g} s, broken {self.broken:g}; thinks {self.think_s:g} s, meanwhile {self.meanwhile or 'its own'}"
        )


@dataclass
class _Dice:
    r: random.Random
    gpus: list[int]
    cpus: list[int]

    def job(self, number: int) -> Owned:
        r, name = self.r, f"j{number}"
        each = r.choice([1, 1, 1, min(2, max(self.gpus))])
        fits = sum(min(gpus // each, cpus) for gpus, cpus in zip(self.gpus, self.cpus, strict=True))
        workers = min(fits, r.choice([1, 1, 2, 3, fits]))
        save_s = r.choice([0.0, 0.0, 0.5, 3.0])
        grace_s = save_s + r.choice([0.5, 5.0])
        saves = r.random() < 0.8
        script = Script(
            work_s=r.choice([0.0, 0.3, 2.0, 8.0, 20.0, 60.0] if saves else [0.0, 0.3, 2.0, 8.0]),
            start_s=r.choice([0.0, 0.0, 0.2, 3.0]),
            restore_s=r.choice([0.0, 1.0]),
            save_s=save_s if saves else 0.0,
            every_s=r.choice([0.0, 5.0]) if saves else 0.0,
            term_code=r.choice([0, 0, 143]),
            codes=tuple(r.choice([0, 1, 137]) for _ in range(r.choice([0, 0, 0, 1, 3]))),
            start_fails=tuple(n for n in range(1, 4) if r.random() < 0.06),
            ignores_term=r.random() < 0.08,
            tasks=workers,
            grace_s=grace_s,
            cpus_milli=1000,
        )
        cancel = r.random() < 0.15
        endless = not cancel and r.random() < 0.06
        if endless:
            script = replace(script, work_s=1e6, codes=())
        spec = JobSpec(
            name=name,
            user=r.choice(["ann", "bob"]),
            queue=r.choice(["default", "default", "other"]),
            priority=r.choice([50, 50, 10, 90]),
            urgency=r.choice([1, 5, 10]),
            run=script.text(),
            workdir="/",
            resources=Resources(gpu_alternatives=(GpuDemand(milli=1000 * each),), cpus_milli=1000),
            parallelism=Parallelism(data=workers),
            checkpoint=Checkpoint(dir=f"ckpt-{name}" if saves else "", grace_s=grace_s, save_s=save_s),
            retry_max=r.choice([0, 1, 3]),
            estimate_s=max(0.1, min(script.work_s, 100.0) * r.choice([0.5, 1, 2])),
            deadline_s=r.choice([None, 60.0]),
            time_limit_s=25.0 if endless else None,
        )
        at_s = r.choice([0.0, r.uniform(0, 5), r.uniform(0, 60)])
        return Owned(name, spec, script, at_s, at_s + r.uniform(0, 40) if cancel else None)

    def death(self) -> Death:
        r = self.r
        restart_s = r.choice([0.0, 0.05, 3.0, 30.0])
        kind = r.random()
        if kind < 0.2:
            return Death(after_s=r.expovariate(1 / 15), restart_s=restart_s)
        if kind < 0.7:
            where = r.choice(["before append", "after append", "after append", "lies: written", "lies: not written"])
            return Death(where, r.choice([1, 2, 3, r.randint(1, 40)]), restart_s=restart_s)
        where = f"{r.choice(['before', 'sent', 'after'])} {r.choice(CALLS[:4] if r.random() < 0.8 else CALLS)}"
        return Death(where, r.choice([1, 1, 2, r.randint(1, 8)]), restart_s=restart_s)


def live_scenario(seed: int, policy: str = "", policies: Sequence[str] = POLICIES) -> LiveScenario:
    """The scenario of a seed. Without a policy the seed takes one of `policies`, each in its turn."""
    r = random.Random(seed)
    gpus = [r.choice([1, 2, 4]) for _ in range(r.choice([1, 2, 2, 3]))]
    cpus = [r.choice([4, 4, 2]) for _ in gpus]
    dice = _Dice(r, gpus, cpus)
    nodes = tuple(NodeInfo(f"n{i}", has, "gpu", cpus[i] * 1000, 10**12) for i, has in enumerate(gpus))
    calm = r.random() < 0.15
    jobs = tuple(dice.job(number) for number in range(r.randint(2, 7)))
    node_faults = []
    if r.random() < 0.5:
        for _ in range(r.randint(1, 3)):
            at_s, for_s = r.uniform(0, 70), r.choice([0.2, 4.0, 20.0, 60.0])
            node_faults.append(NodeFault(r.choice(nodes).name, at_s, for_s, r.random() < 0.5, r.choice([0.0, 1.0, 6.0])))
    pauses = []
    if r.random() < 0.35:
        for _ in range(r.randint(1, 2)):
            for_s = r.choice([0.5, 6.0, 30.0])
            pauses.append(Pause(r.uniform(0, 60), for_s, for_s * r.choice([0.1, 0.5, 1.0, 1.2])))
    deaths = tuple(dice.death() for _ in range(r.choice([0, 1, 2, 4])))
    if deaths and r.random() < 0.06:
        deaths = (replace(deaths[0], tail_lost=r.randint(1, 6)), *deaths[1:])
    scenario = LiveScenario(
        seed=seed,
        policy=policy or policies[seed % len(policies)],
        nodes=nodes,
        jobs=jobs,
        deaths=deaths,
        pauses=tuple(pauses),
        node_faults=tuple(node_faults),
        lost=r.choice([0.0, 0.0, 0.1, 0.4]),
        repeated=r.choice([0.0, 0.2]),
        late_s=r.choice([0.0, 0.0, 0.3, 5.0]),
        call_s=r.choice([0.0, 0.0, 0.01, 0.5]),
        broken=r.choice([0.0, 0.0, 0.05]),
        think_s=r.choice([0.0, 0.5]),
        presume_s=r.choice([float("inf"), float("inf"), 12.0]),
        wall_steps=tuple((r.uniform(0, 60), r.choice([-86400.0, -30.0, 3600.0, 1e8])) for _ in range(r.choice([0, 1, 2]))),
        reboots=r.random() < 0.2,
    )
    slow = random.Random(f"slow {seed}")  # A stream of its own: what else a seed stands for stays as it is.
    if slow.random() < 0.4:
        think_s = slow.choice([0.2, 3.0, 10.0, 60.0])
        scenario = replace(scenario, think_s=think_s, meanwhile=slow.choice([None, None, *Meanwhile]))
    if seed % 5 in (1, 3):  # The others stay as they were before owners asked for anything.
        asking = random.Random(f"asks {seed}")
        scenario = replace(scenario, jobs=tuple(replace(job, asks=_asks(asking, job)) for job in scenario.jobs))
    return replace(scenario, deaths=(), pauses=(), node_faults=()) if calm else scenario


def _asks(r: random.Random, job: Owned) -> tuple[Asked, ...]:
    """What the owner of a job asks for. One that would never end by itself keeps a time limit."""
    asks, at_s = [], job.at_s
    for _ in range(r.choice([0, 1, 1, 2, 4])):
        at_s += r.choice([0.0, 0.01, r.uniform(0, 4), r.uniform(0, 30)])
        verb = r.choice(["hold", "hold", "requeue", "requeue", "update", "update"])
        asks.append(Asked(at_s, verb, _update(r, job) if verb == "update" else NO_UPDATE))
        if verb == "hold":
            at_s += r.choice([0.0, 0.5, r.uniform(0, 20)])
            asks.append(Asked(at_s, "release"))
    return tuple(asks)


def _update(r: random.Random, job: Owned) -> Update:
    return r.choice(
        [
            Update(priority=r.choice([0, 50, 100])),
            Update(urgency=r.choice([1, 10])),
            Update(queue=r.choice(["other", "third"])),
            Update(deadline_us=r.choice([1, 10**8])),
            Update(time_limit_us=r.choice([1, 5_000_000, 40_000_000 if job.spec.time_limit_s else NEVER])),
        ]
    )
