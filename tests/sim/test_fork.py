"""A fork with the truth is what the simulator then does; what it makes of stops, progress, horizons and bad luck by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import Estimator, EventKind
from headway.core.events import EventBatch, EventBuffer
from headway.core.policy import asks, remembers
from headway.core.state import State
from headway.metrics.fold import M_END, M_FIRST_START
from headway.perf.histories import Histories
from headway.perf.params import C_K_LAST, C_LEVEL, C_PLATEAU, C_POWER, C_RATE, C_SLOPE, WIDTH
from headway.policies.registry import choose, make_policy
from headway.sim import columns as w
from headway.sim.fork import REPORTS, ForkResult, Rhythm, Truth, fork
from headway.sim.guess import UNKNOWN_S, Known, guess, known_of
from headway.sim.run import Simulation, simulate
from headway.sim.world import World
from headway.testing.builders import JobSketch, cluster, job, state, workload
from headway.workloads.schema import Workload

US = 1_000_000
CLASSICS = ["fifo", "fifo-backfill", "sjf", "srtf", "las:quantum=600", "tiresias:threshold=900", "edf", "drf",
            "tiresias:threshold=900,variant=gittins", "borg-fair", "random", "graphene"]  # fmt: skip


def load_of(seed: int, count: int = 30) -> Workload:
    """Jobs that come within ten minutes, more than there is room for; stopping and restoring take time."""
    r = random.Random(seed)
    jobs, t = list[JobSketch](), 0
    for i in range(count):
        t += r.randrange(0, 40)
        work = r.choice([30, 90, 200, 600, 1500, 4000])
        jobs.append(
            job(
                f"j{i}", r.choice([1, 1, 1, 2, 4, 6]), work, t, estimate_s=work * r.choice([0.5, 1, 1, 3]),
                save_s=r.choice([0, 7]), restore_s=r.choice([0, 13, 45]), user=r.randrange(3), priority=r.choice([50, 50, 60]),
                deadline_s=t + r.choice([500, 5000]),
            )
        )  # fmt: skip
    return workload(jobs, users=("a", "b", "c"))


def truth_of(run: Simulation, now: int) -> Truth:
    """What is really left of each live job, from the simulated world."""
    world = run.source
    assert isinstance(world, World)
    jobs = np.sort(run.state.J[c.J_ID, run.state.live_rows()])
    W, WF = world.W[:, jobs], world.WF[:, jobs]
    worked = np.where(W[w.W_STATUS] == w.RUNNING, np.maximum(now - W[w.W_SINCE], 0), 0)
    left = W[w.W_WORK] - WF[w.F_DONE].astype(np.int64) - worked
    return Truth(jobs, left, np.where(W[w.W_STATUS] == w.SAVING, W[w.W_SINCE] - now, 0))


# With rounds at events alone the simulator also holds one where an end was announced that became void, if the policy wants to be
# asked again at once: a fork has no such announcement.
WAKEFUL = ("las", "tiresias")


@pytest.mark.parametrize(
    ("policy", "interval_s"),
    [(policy, s) for policy in CLASSICS for s in (0, 7, 60) if s or not policy.startswith(WAKEFUL)],
)
def test_with_the_truth_and_nobody_else_a_fork_is_what_the_simulator_then_does(policy: str, interval_s: int) -> None:
    load, where = load_of(len(policy) + interval_s), cluster([4, 4])
    last = int(load.submitted_us[-1])
    forks: list[tuple[int, ForkResult]] = []

    def watch(run: Simulation) -> None:
        now = run.now_us
        if now < last or run.rounds % 3 or len(forks) > 5:
            return
        memo = run.memo
        if remembers(run.brains.policy) and run.since_round:
            for batch in run.since_round:
                memo = run.brains.policy.fold(memo, batch)
        rhythm = Rhythm(run.interval_us, run.last_us, run.wake_us, run.fresh)
        before = run.state.digest()
        found = fork(run.state, memo, run.brains.policy, truth_of(run, now), now_us=now, seed=run.seed, rhythm=rhythm)
        assert run.state.digest() == before, "the state stays as it is"
        forks.append((now, found))

    done = simulate(load, where, make_policy(policy), seed=5, interval_s=interval_s, watch=watch)
    assert len(forks) > 2 and any((found.start_us > now).any() for now, found in forks)
    for now, found in forks:
        assert found.whole
        ends = done.metrics.M[found.jobs, M_END]
        assert found.end_us.tolist() == ends.tolist()
        first = done.metrics.M[found.jobs, M_FIRST_START]
        late = first > now
        assert found.start_us[late].tolist() == first[late].tolist()
