"""A fork with the truth is what the simulator then does; what it makes of stops, progress, horizons and bad luck by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import Estimator, EventKind
from headway.core.events import EventBatch, EventBuffer
from headway.core.policy import remembers
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


def truth(left_s: list[float], stop_s: float = 0) -> Truth:
    count = len(left_s)
    return Truth(np.arange(count), np.array([round(s * US) for s in left_s]), np.full(count, round(stop_s * US)))


def run(of: State, told: Truth, policy: str = "fifo", now_s: float = 0, **more: object) -> ForkResult:
    chosen = choose(policy).policy
    memo = chosen.start() if remembers(chosen) else None
    return fork(of, memo, chosen, told, now_us=round(now_s * US), **more)  # type: ignore[arg-type]


PLACE_4 = [(0, [g]) for g in range(4)]


def test_a_job_under_way_ends_when_its_rest_is_over_and_a_restore_comes_first() -> None:
    of = state([4], [job("a", 4, 100), job("b", 2, 30)], running={"a": PLACE_4}, at_s=0)
    found = run(of, truth([40, 30]), now_s=60)
    assert (found.start_us / US).tolist() == [60, 100] and (found.end_us / US).tolist() == [100, 130]
    assert found.whole and found.row(1) == 1
    again = of.copy()
    out = EventBuffer()
    out.add(60 * US, EventKind.STOP_REQUESTED, 0, 1, a=1)
    out.add(60 * US, EventKind.STOPPED, 0, 1, a=1, b=-1)
    again.apply(out.take())
    again.J[c.J_RESTORE] = 7 * US
    found = run(again, truth([40, 30]), now_s=60)
    assert (found.start_us / US).tolist() == [60, 107] and (found.end_us / US).tolist() == [107, 137], (
        "b starts for the first time"
    )


def test_stops_take_as_long_as_they_take_and_lose_nothing() -> None:
    jobs = [job("long", 4, 500, save_s=5, restore_s=10), job("short", 4, 20, save_s=5)]
    of = state([4], jobs, running={"long": PLACE_4}, at_s=0)
    found = run(of, truth([400, 20]), "srtf", now_s=100)
    assert (found.stop_us[0], found.preemptions[0]) == (100 * US, 1)
    assert (found.start_us / US).tolist() == [100, 105] and (found.end_us / US).tolist() == [125 + 10 + 400, 125]


def test_one_that_is_stopping_is_gone_after_a_while() -> None:
    of = state([4], [job("a", 4, 100), job("b", 4, 10)], running={"a": PLACE_4}, at_s=0)
    out = EventBuffer()
    out.add(50 * US, EventKind.STOP_REQUESTED, 0, 1, a=c.Reason.CANCELLED)
    of.apply(out.take())
    found = run(of, truth([50, 10], stop_s=3), now_s=50)
    assert (found.end_us / US).tolist() == [53, 63], "it was cancelled, and does not come again"


def test_a_horizon_a_job_to_watch_and_patience_end_a_fork() -> None:
    of = state([4], [job(f"j{i}", 4, 10) for i in range(20)])
    short = run(of, truth([10] * 20), horizon_us=35 * US)
    assert (short.end_us < c.NEVER).sum() == 3 and short.until_us == 35 * US and not short.whole
    watched = run(of, truth([10] * 20), watch=4)
    assert watched.end_us[4] == 50 * US and not watched.whole and watched.end_us[6] == c.NEVER
    assert run(of, truth([10] * 20), go_on=lambda: False).rounds < 20
    assert run(of, truth([10] * 20)).end_us[19] == 200 * US


def test_the_same_arguments_give_the_same_and_the_state_stays() -> None:
    of = state([4, 4], [job(f"j{i}", 1 + i % 4, 10 + i) for i in range(15)])
    before = of.digest()
    one, two = (run(of, truth([10 + i for i in range(15)]), "tiresias", seed=3) for _ in range(2))
    assert of.digest() == before and one.state.digest() == two.state.digest() and one.end_us.tolist() == two.end_us.tolist()


def test_who_is_held_does_not_start_and_the_fork_comes_to_an_end() -> None:
    of = state([4], [job("a", 4, 10), job("b", 4, 10)])
    out = EventBuffer()
    out.add(0, EventKind.HOLD_SET, 0, a=1)
    of.apply(out.take())
    found = run(of, truth([10, 10]))
    assert (found.start_us[0], found.end_us[0], found.end_us[1]) == (c.NEVER, c.NEVER, 10 * US) and found.whole


def test_jobs_tell_how_far_they_are_and_the_curve_what_they_reach() -> None:
    of = state([4], [job("a", 4, 100, units=1000)], running={"a": PLACE_4}, at_s=0)
    out = EventBuffer()
    out.add(50 * US, EventKind.OBSERVED, 0, 1, a=500, b=c.NOTHING, c=600_000)
    vector = np.zeros(WIDTH)
    vector[[C_K_LAST, C_LEVEL, C_SLOPE, C_RATE, C_POWER, C_PLATEAU]] = 500, 0.6, 0.001, 0.005, 1.0, 0.8
    out.add(50 * US, EventKind.ESTIMATED, 0, a=Estimator.CURVE, payload=vector.view(np.int64))
    of.apply(out.take())
    known = Known(np.array([0]), np.array([10.0]), np.array([5]), np.array([50 * US]), ((),), ((),))
    told = guess(of, known, 50 * US).draw(None)
    seen: list[EventBatch] = []
    found = run(of, told, now_s=50, sinks=(lambda batch: seen.append(batch + EventBatch(batch.records[:0], batch.pool[:0])),))
    reports = np.concatenate([batch.records[batch.records[:, c.E_KIND] == EventKind.OBSERVED] for batch in seen])
    assert len(reports) == REPORTS - 1 and reports[:, c.E_A].tolist() == [500 + 500 * k // REPORTS for k in range(1, REPORTS)]
    accuracy = reports[:, c.E_C] / 1e6
    # y(k) = 0.6 + 0.001 · (1 − 1/(1 + 0.005 (k − 500))) / 0.005
    assert accuracy == pytest.approx([0.6 + 0.2 * (1 - 1 / (1 + 0.005 * 25 * k)) for k in range(1, REPORTS)], abs=2e-6)
    assert found.whole and found.end_us[0] > 50 * US


def test_guesses_by_progress_by_word_by_like_and_by_nothing() -> None:
    jobs = [job("paced", 1, 100, units=1000), job("told", 1, 100), job("like", 1, 100), job("unknown", 1, 100)]
    of = state([4], jobs, running={"paced": [(0, [0])]}, at_s=0)
    of.J[c.J_ESTIMATE, [0, 2, 3]] = c.NEVER
    of.J[c.J_UNITS_DONE, 0] = 400
    known = Known(
        np.arange(4), np.array([10.0, np.nan, np.nan, np.nan]), np.array([100, 0, 0, 0]), np.array([90 * US, -1, -1, -1]),
        ((), (), (20.0,) * 9, ()), ((), (0.5,) * 9, (), ()),
    )  # fmt: skip
    found = guess(of, known, 100 * US)
    left = found.draw(None).left_us / US
    # 400 at 90 s, ten a second: 500 by now, so 50 s are left; the word of 100 s was too long by half.
    assert left[:3].tolist() == pytest.approx([50, 50, 20], abs=0.01) and left[3] == UNKNOWN_S
    draws = np.array([found.draw(seed).left_us / US for seed in range(200)])
    assert (draws[:, 1] == 50).all() and (draws[:, 2] == 20).all(), "they know no other"
    assert np.log(draws[:, 3]).std() == pytest.approx(1.5, rel=0.2) and np.log(draws[:, 0]).std() < 0.1
    assert found.draw(5).left_us.tolist() == found.draw(5).left_us.tolist()
    of.J[c.J_TIME_LIMIT, 0] = 130 * US
    assert guess(of, known, 100 * US).draw(None).left_us[0] == 30 * US, "never beyond the time limit"


def test_histories_learn_by_how_much_words_are_off() -> None:
    of, histories = State(), Histories()
    load = workload([job(f"j{i}", 1, 10, estimate_s=40) for i in range(12)] + [job("new", 1, 10, 900, estimate_s=100)])
    done = simulate(load, cluster([4]), make_policy("fifo"), keep_journal=True)
    assert done.journal is not None
    until = done.journal.cut(0, int(np.searchsorted(done.journal.records[:, c.E_T], 900 * US, side="right")))
    of.apply(until)
    histories.update(until)
    assert histories.ended.words(0) == [0.25] * 12
    known = known_of(of, histories)
    assert known.words == ((0.25,) * 12,) and known.jobs.tolist() == [12]
    left = guess(of, known, int(of.C[c.C_NOW])).draw(None).left_us[0] / US
    assert left == pytest.approx(25, abs=0.01), "a quarter of what is announced"
