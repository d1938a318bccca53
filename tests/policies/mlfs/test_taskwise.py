"""`placement=task`: places one by one, what the memo holds, and deadlocks, on small cases by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import Cut, EventKind, Op, Reason
from headway.core.events import EventBatch, EventBuffer
from headway.core.plan import Capabilities, Plan
from headway.core.round import check, diff
from headway.core.state import State
from headway.core.view import ClusterView
from headway.metrics.fold import MetricsFold
from headway.policies.mlfs.load_control import LoadControlParams, overloaded
from headway.policies.mlfs.taskwise import fold
from headway.policies.registry import make_policy
from headway.sim.run import Outcome, StuckError, simulate
from headway.sim.world import World
from headway.testing.builders import JobSketch, cluster, job, submissions, workload
from headway.testing.policy_checks import check_all_end
from headway.workloads.cluster import Cluster
from headway.workloads.schema import Workload

US = 1_000_000
TASK, UNSEEN = "mlf-h:placement=task", "mlf-h:placement=task,detector=false"
NOWHERE = [-1, 0, 0]


def chains(jobs: list[JobSketch], kinds: tuple[str, ...] = ("gpu",)) -> Workload:
    """Jobs whose workers are the layers of a chain: the first has the highest priority, since all others depend on it."""
    load = workload(jobs, kinds=kinds)
    spec = load.spec.copy()
    spec[c.J_PIPELINE] = spec[c.J_DATA]
    spec[c.J_DATA] = spec[c.J_DATA_MIN] = spec[c.J_DATA_MAX] = 1
    spec[c.J_CUT] = Cut.CHAIN
    return replace(load, spec=spec)


def two() -> Workload:
    return chains([job("a", 2), job("b", 2)])


def waiting(load: Workload, where: Cluster) -> State:
    made = State()
    made.apply(where.events(0, load.users, load.queues))
    made.apply(submissions(load))
    return made


def decided(made: State, spec: str = TASK, memo: Any = None, t_s: int = 0) -> Plan:
    plan = make_policy(spec).decide(ClusterView(made, t_s * US, 0), memo)
    assert check(made, plan, Capabilities()) is None
    return plan.copy()


def said(plan: Plan) -> list[tuple[int, Op, Reason, list[list[int]]]]:
    """Job, what is wanted, why, and places, of every override."""
    return [
        (o[c.O_JOB], Op(o[c.O_OP]), Reason(o[c.O_REASON]), plan.places[o[c.O_TASK0] : o[c.O_TASK0] + o[c.O_TASKS]].tolist())
        for o in plan.overrides.tolist()
    ]


def events_of(made: State, plan: Plan, t_s: int = 0) -> EventBatch:
    """The round's events, applied."""
    events = diff(made, plan, t_s * US)
    own = EventBatch(events.records.copy(), events.pool.copy())
    made.apply(own)
    return own


def ran(load: Workload, where: Cluster, spec: str = TASK, **more: Any) -> Outcome:
    return simulate(load, where, make_policy(spec), interval_s=1, keep_journal=True, **more)


def times_s(outcome: Outcome) -> dict[int, tuple[float, float]]:
    """When each job started first and when it completed."""
    assert outcome.journal is not None
    R = outcome.journal.records
    of = {
        kind: {int(r[c.E_ID]): float(r[c.E_T]) / US for r in R[R[:, c.E_KIND] == kind][::-1]}
        for kind in (EventKind.STARTED, EventKind.COMPLETED)
    }
    return {number: (of[EventKind.STARTED][number], t) for number, t in of[EventKind.COMPLETED].items()}


# -- places one by one --------------------------------------------------------------------------------------------------
def test_tasks_take_places_in_their_own_order_and_keep_them() -> None:
    """Two chains of two, two GPUs. The first layers come first, a's before b's: each job gets one place, and no job two."""
    made = waiting(two(), cluster([1, 1]))
    plan = decided(made, UNSEEN)
    assert said(plan) == [
        (0, Op.WHY, Reason.GANG_INCOMPLETE, [[0, 1, c.WHOLE], NOWHERE]),
        (1, Op.WHY, Reason.GANG_INCOMPLETE, [[1, 1, c.WHOLE], NOWHERE]),
    ]
    assert plan.overrides[:, [c.O_A, c.O_B]].tolist() == [[1, 2], [1, 2]], "one task of two"
    events = events_of(made, plan)
    memo = fold({}, events)
    assert memo == {0: [0, 1, c.WHOLE, *NOWHERE], 1: [1, 1, c.WHOLE, *NOWHERE]}
    again = decided(made, UNSEEN, memo, 1)
    assert said(again) == [] and again.wake_at_us == c.NEVER, "nothing is new, and nothing will be"


def test_whole_jobs_are_placed_where_nobody_holds_a_place() -> None:
    made = waiting(two(), cluster([1, 1]))
    assert [entry[:3] for entry in said(decided(made, "mlf-h"))] == [
        (0, Op.PLACE, Reason.NONE),
        (1, Op.WHY, Reason.NO_ROOM),
    ]


def test_a_held_place_is_nobody_elses() -> None:
    """x runs on one of two GPUs till 10; a wants two and holds the other. y, of one GPU, has to wait for it, as it need not when
    whole jobs are placed."""
    load = workload([job("x", 1, 10), job("a", 2, 10, submit_s=1), job("y", 1, 5, submit_s=2)])
    assert times_s(ran(load, cluster([2]))) == {0: (0, 10), 1: (10, 20), 2: (20, 25)}
    assert times_s(ran(load, cluster([2]), "mlf-h")) == {0: (0, 10), 2: (2, 7), 1: (10, 20)}


def test_servers_come_before_all_workers_those_of_urgent_jobs_first() -> None:
    """One node with cpus for one server. b is the more urgent and its server gets them, though a came before."""
    load = workload([job(name, 1, servers=1, server_cpus=1) for name in "ab"])
    spec = load.spec.copy()
    spec[c.J_URGENCY] = [3, 9]
    made = waiting(replace(load, spec=spec), cluster([4], cpus=1.5))
    plan = decided(made, "mlf-h:placement=task,h_r=1,urgency=false")
    assert [entry[:2] for entry in said(plan) if entry[1] == Op.PLACE] == [(1, Op.PLACE)]
    (held,) = [places for number, _, _, places in said(plan) if number == 0]
    assert held == [[0, 1, c.WHOLE], NOWHERE], "a's worker has a place, its server none"


# -- deadlocks ----------------------------------------------------------------------------------------------------------
def test_the_lowest_job_gives_its_places_up_and_the_first_starts() -> None:
    made = waiting(two(), cluster([1, 1]))
    plan = decided(made)
    assert said(plan) == [
        (0, Op.PLACE, Reason.DEADLOCK, [[0, 1, c.WHOLE], [1, 1, c.WHOLE]]),
        (1, Op.WHY, Reason.DEADLOCK, []),
    ]
    metrics = MetricsFold()
    metrics.update(submissions(two()))
    events = events_of(made, plan)
    metrics.update(events)
    assert metrics.deadlocks == 1 and fold({1: [1, 1, c.WHOLE, *NOWHERE]}, events) == {}


def test_jobs_that_wait_for_each_other_end_only_with_the_detector() -> None:
    outcome = ran(two(), cluster([1, 1]))
    assert times_s(outcome) == {0: (0, 10), 1: (10, 20)} and outcome.metrics.deadlocks == 1
    with pytest.raises(StuckError, match="2 jobs wait and mlf-h will never start them"):
        ran(two(), cluster([1, 1]), UNSEEN)
    assert ran(two(), cluster([1, 1]), "mlf-h").metrics.deadlocks == 0


def test_a_deadlock_is_seen_while_others_run_who_could_make_no_room() -> None:
    """z runs on the one GPU of another kind until 100; while x, on their own kind, runs, a and b wait for it."""
    where = cluster([1, 1, 1], kinds=["big", "big", "small"])
    jobs = [job("z", 1, 100, kinds=("small",)), *(job(name, 2, kinds=("big",)) for name in "ab")]
    outcome = ran(chains(jobs, where.kinds), where)
    assert times_s(outcome) == {0: (0, 100), 1: (0, 10), 2: (10, 20)} and outcome.metrics.deadlocks == 1
    three = cluster([1, 1, 1, 1], kinds=["big", "big", "big", "small"])
    jobs = [job("x", 1, 30, kinds=("big",)), *jobs]
    outcome = ran(chains(jobs, three.kinds), three)
    assert times_s(outcome)[2] == (30, 40) and outcome.metrics.deadlocks == 0, "x has made room for a"


def test_a_job_that_asks_for_more_than_h_r_starts_when_nobody_else_does_and_that_is_no_deadlock() -> None:
    load = workload([job("a", 1, 10, cpus=10), job("b", 1, 10, submit_s=1)])
    outcome = ran(load, cluster([2], cpus=10))
    assert times_s(outcome)[0][0] == 0 and outcome.metrics.deadlocks == 0


@pytest.mark.parametrize("seed", range(8))
def test_every_job_ends(seed: int) -> None:
    check_all_end(lambda: make_policy(TASK), seed)


# -- the memo -----------------------------------------------------------------------------------------------------------
def test_the_memo_follows_the_journal_however_it_is_cut() -> None:
    jobs = [job("x", 2, 7), job("a", 3, submit_s=1), job("b", 2, submit_s=1), job("y", 3, 4, submit_s=2), job("z", 4, submit_s=3)]
    journal = ran(chains(jobs), cluster([2, 2])).journal
    assert journal is not None
    memo: Any = {}
    seen = set()
    for i in range(len(journal)):
        memo = fold(memo, journal.cut(i, i + 1))
        assert i % 5 or memo == fold({}, journal.cut(0, i + 1))
        seen |= set(memo)
    assert seen and memo == {}, "who has started holds nothing one by one"


@pytest.mark.parametrize(
    ("kind", "subject", "left"),
    [
        (EventKind.CANCEL_REQUESTED, 0, {1: [1, 1, c.WHOLE, *NOWHERE]}),
        (EventKind.HOLD_SET, 0, {1: [1, 1, c.WHOLE, *NOWHERE]}),
        (EventKind.START_REQUESTED, 0, {1: [1, 1, c.WHOLE, *NOWHERE]}),
        (EventKind.NODE_DOWN, 1, {0: [0, 1, c.WHOLE, *NOWHERE], 1: [*NOWHERE, *NOWHERE]}),
        (EventKind.NODE_DRAINING, 0, {0: [*NOWHERE, *NOWHERE], 1: [1, 1, c.WHOLE, *NOWHERE]}),
    ],
)
def test_what_ends_a_hold(kind: EventKind, subject: int, left: Any) -> None:
    before = {0: [0, 1, c.WHOLE, *NOWHERE], 1: [1, 1, c.WHOLE, *NOWHERE]}
    kept = {job: list(places) for job, places in before.items()}
    out = EventBuffer()
    out.add(5, kind, subject, a=1)
    assert fold(before, out.take()) == left and before == kept


def test_a_place_that_somebody_else_has_got_is_lost() -> None:
    """Job 2 runs where job 0's memo has its first task (as after a round that another policy decided): that is told."""
    load = chains([job("a", 3), job("x", 1)])
    made = waiting(load, cluster([1, 1]))
    out = EventBuffer()
    out.add(0, EventKind.START_REQUESTED, 1, 1, b=1, payload=[0, 1, c.WHOLE])
    out.add(0, EventKind.STARTED, 1, 1)
    made.apply(out.take())
    plan = decided(made, TASK, {0: [0, 1, c.WHOLE, 1, 1, c.WHOLE, *NOWHERE]}, 1)
    assert said(plan) == [(0, Op.WHY, Reason.GANG_INCOMPLETE, [NOWHERE, [1, 1, c.WHOLE], NOWHERE])]


def test_a_cancelled_job_makes_room() -> None:
    """Without the detector a and b are stuck until b is cancelled at 5; at the next round a has both places."""
    world = World(two(), cluster([1, 1]), cancels=[(5 * US, 1)])
    assert times_s(ran(two(), cluster([1, 1]), UNSEEN, world=world)) == {0: (5, 15)}


def test_a_lost_node_takes_its_places_with_it() -> None:
    """a holds the GPUs of nodes 1 and 2 and needs a third, which x has until 50. Node 1 is lost from 5 to 20, and its place with
    it; a has three places once all are free."""
    load = workload([job("x", 1, 50), job("a", 3, 10, submit_s=1)])
    where = cluster([1, 1, 1])
    world = World(load, where, node_faults=[(5 * US, 1, 0), (20 * US, 1, 1)])
    outcome = ran(load, where, world=world)
    assert times_s(outcome) == {0: (0, 50), 1: (50, 60)}


def test_incomplete_gangs_are_a_queue_for_load_control() -> None:
    """b waits with three of four places. That its tasks hold what is free is no room for it, also when a round has no news."""
    made = waiting(chains([job("x", 1), job("b", 4)]), cluster([1, 1, 1, 1]))
    events_of(made, decided(made, UNSEEN))
    quiet = ClusterView(made, 60 * US, 0).draft().plan()
    assert Reason(int(made.J[c.J_WHY, 1])) == Reason.GANG_INCOMPLETE
    assert overloaded(made, quiet, 60 * US, LoadControlParams())[0]


def test_it_says_how_many_tasks_have_places() -> None:
    made = waiting(two(), cluster([1, 1]))
    policy: Any = make_policy(UNSEEN)
    explained = policy.explain(ClusterView(made, 0, 0), {0: [0, 1, c.WHOLE, *NOWHERE]}, 0)
    assert explained.rank == 1 and explained.terms[-1].name == "places" and explained.terms[-1].value == 1


# -- who may leave a node (A9) ------------------------------------------------------------------------------------------
def test_protect_keeps_the_highest_tasks_where_they_are() -> None:
    """Four jobs on four GPUs use 4, 2, 2 and 2 of ten cpus: above h_r. The first, which has least left to do and so the highest
    priority, uses most and is the one to leave; with protect=0.5 only the lower two may."""
    sketches = [
        job(name, 1, 90_000, estimate_s=estimate) for name, estimate in zip("abcd", (4000, 20_000, 50_000, 90_000), strict=True)
    ]
    made = waiting(workload(sketches), cluster([4, 4], cpus=10, network_bytes_per_s=10**9))
    out = EventBuffer()
    for number, cpus in enumerate((4000, 2000, 2000, 2000)):
        out.add(0, EventKind.START_REQUESTED, number, 1, b=1, payload=[0, 1 << number, c.WHOLE])
        out.add(0, EventKind.STARTED, number, 1)
        out.add(0, EventKind.USAGE, number, 1, a=0, payload=(800, cpus, 0, 0))
    made.apply(out.take())
    moved = {
        spec: [entry[0] for entry in said(decided(made, spec, None, 3600))]
        for spec in ("mlf-h", "mlf-h:protect=0.5,believe=0", TASK)
    }
    assert moved["mlf-h"] == moved[TASK] == [0]
    assert len(moved["mlf-h:protect=0.5,believe=0"]) == 1 and moved["mlf-h:protect=0.5,believe=0"][0] in (2, 3)
    assert np.array_equal(decided(made, "mlf-h:protect=1,believe=0", None, 3600).overrides[:, c.O_JOB], [3]), (
        "one may always leave"
    )
