"""Gandiva by hand: turns and slices, affinity, packing by trial and error, growth and shrinking, moves."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind, Op, Phase, Reason
from headway.core.events import EventBatch, EventBuffer, concatenate
from headway.core.plan import Capabilities, Plan
from headway.core.round import check, diff
from headway.core.state import State
from headway.core.view import ClusterView, gpus_of
from headway.policies import gandiva_memo
from headway.policies.registry import make_policy
from headway.sim.run import Outcome, simulate
from headway.testing.builders import JobSketch, cluster, job, place_ints, submissions, workload
from headway.testing.gantt import gantt
from headway.testing.policy_checks import check_no_starvation
from headway.workloads.cluster import Cluster, Queue
from headway.workloads.schema import Workload

US = 1_000_000
Place = Sequence[tuple[int, Sequence[int]]]


def ran(policy: str, where: Cluster, load: Workload) -> Outcome:
    return simulate(load, where, make_policy(policy), interval_s=1, keep_journal=True)


def rows_of(policy: str, where: Cluster, load: Workload) -> list[str]:
    """The Gantt chart's rows without their heads."""
    run = ran(policy, where, load)
    assert run.journal is not None
    return [line.split("|")[1].rstrip(".") for line in gantt(run.journal).splitlines() if "|" in line]


class Told:
    """A cluster, jobs, and what happens to them, for a policy with a memo."""

    def __init__(
        self, policy: str, where: Cluster, jobs: Sequence[JobSketch], spec: dict[tuple[int, int], int] | None = None
    ) -> None:
        self.policy: Any = make_policy(policy)
        self.jobs, self.state, self.parts = jobs, State(), list[EventBatch]()
        load = workload(jobs, kinds=where.kinds)
        for (column, number), value in (spec or {}).items():
            load.spec[column, number] = value
        self.take(where.events(0, ("user",), ("default",)))
        self.take(submissions(load))

    def take(self, batch: EventBatch) -> None:
        if len(batch):
            own = EventBatch(batch.records.copy(), batch.pool.copy(), dict(batch.texts))
            self.parts.append(own)
            self.state.apply(own)

    def tell(self, t_s: float, kind: EventKind, number: int, attempt: int = 1, **fields: object) -> None:
        out = EventBuffer()
        out.add(round(t_s * US), kind, number, attempt, **fields)  # type: ignore[arg-type]
        self.take(out.take())

    def run(self, t_s: float, number: int, place: Place) -> None:
        sketch = self.jobs[number]
        self.tell(t_s, EventKind.START_REQUESTED, number, b=sketch.workers, c=0, payload=place_ints(sketch, place))
        self.tell(t_s, EventKind.STARTED, number)

    def memo(self) -> Any:
        return self.policy.fold(self.policy.start(), concatenate(self.parts))

    def decide(self, t_s: float) -> Plan:
        """The plan at a time, checked, and carried out as far as the journal."""
        plan = self.policy.decide(ClusterView(self.state, round(t_s * US), 0), self.memo()).copy()
        assert check(self.state, plan.copy(), Capabilities()) is None
        return plan

    def carry_out(self, t_s: float, plan: Plan) -> None:
        events = diff(self.state, plan, round(t_s * US))
        self.take(events)


def ops(plan: Plan) -> dict[int, Op]:
    """What the plan wants of each job, reasons aside."""
    return {int(o[c.O_JOB]): Op(int(o[c.O_OP])) for o in plan.overrides if o[c.O_OP] != Op.WHY}


def place_of(plan: Plan, number: int) -> list[tuple[int, tuple[int, ...]]]:
    for o in plan.overrides.tolist():
        if o[c.O_JOB] == number and o[c.O_OP] == Op.PLACE:
            return [(n, tuple(gpus_of(m))) for n, m, _ in plan.places[o[c.O_TASK0] : o[c.O_TASK0] + o[c.O_TASKS]].tolist()]
    raise AssertionError(f"job {number} is given no place")


# -- turns --------------------------------------------------------------------------------------------------------
def test_a_time_slice_rotates() -> None:
    """Two jobs of 25 s on one GPU, slices of 10 s: they take turns at 10, 20, 30, 40."""
    load = workload([job("a", 1, 25), job("b", 1, 25)])
    assert rows_of("gandiva:slice=10", cluster([1]), load) == ["a" * 10 + "b" * 10 + "a" * 10 + "b" * 10 + "a" * 5 + "b" * 5]


def test_nobody_gives_way_to_nobody() -> None:
    """Where nobody waits, slices end unnoticed."""
    run = ran("gandiva:slice=10", cluster([2]), workload([job("a", 1, 50), job("b", 1, 50)]))
    assert run.state.C[c.C_FINISHED] == 2
    assert run.journal is not None and not np.any(run.journal.records[:, c.E_KIND] == EventKind.STOP_REQUESTED)


def test_a_gang_gets_its_turn() -> None:
    """The gang fits at no time by itself: at the end of the slice both singles give way to it, and at the next end it to them."""
    load = workload([job("a", 1, 20), job("b", 1, 20), job("g", 2, 20, 1)])
    assert rows_of("gandiva:slice=10", cluster([2]), load) == [
        "a" * 10 + "c" * 10 + "a" * 10 + "c" * 10, "b" * 10 + "c" * 10 + "b" * 10 + "c" * 10,
    ]  # fmt: skip


def test_only_as_many_as_needed_give_way() -> None:
    """At the end of the slice one GPU is wanted: the job that has run longest gives way, the other stays."""
    told = Told("gandiva:slice=10", cluster([2]), [job("a", 1, 30), job("b", 1, 30), job("x", 1, 5)])
    told.run(0, 0, [(0, [0])])
    told.run(2, 1, [(0, [1])])
    early = told.decide(9)
    assert ops(early) == {} and early.wake_at_us == 10 * US
    assert ops(told.decide(10)) == {0: Op.RELEASE, 2: Op.PLACE}


def test_a_higher_priority_does_not_wait_for_the_slice() -> None:
    load = workload([job("a", 1, 30), job("x", 1, 5, 4, priority=90)])
    assert rows_of("gandiva:slice=1000", cluster([1]), load) == ["a" * 4 + "b" * 5 + "a" * 26]


def test_affinity() -> None:
    """The node with a job of two GPUs is chosen for another of two, though the other node would be as full."""
    told = Told("gandiva", cluster([4, 4]), [job("one", 2, 10, workers=2), job("two", 1, 10), job("new", 2, 10, workers=2)])
    told.run(0, 0, [(1, [0]), (1, [1])])
    told.run(0, 1, [(0, [0])])
    assert place_of(told.decide(1), 2) == [(1, (2,)), (1, (3,))]
    told = Told("gandiva", cluster([4, 4]), [job("one", 2, 10, workers=2), job("two", 1, 10), job("new", 1, 10)])
    told.run(0, 0, [(1, [0]), (1, [1])])
    told.run(0, 1, [(0, [0])])
    assert place_of(told.decide(1), 2) == [(0, (1,))]


# -- packing ------------------------------------------------------------------------------------------------------
def packed(gang: int, speed_after: int) -> Told:
    """A gang of `gang` shares of 0.6, ten units a second until a newcomer of 0.4 comes at 10 s, then `speed_after`; the newcomer
    announces ten units a second too, and makes nine."""
    jobs = [
        job("gang", 0.6 * gang, 100, workers=gang, share=True, units=1000),
        job("new", 0.4, 100, share=True, units=1000),
    ]
    told = Told("gandiva:sharing=true,pack=1,trial=5,migrate=0,slice=10000", cluster([gang]), jobs)
    told.run(0, 0, [(0, [g]) for g in range(gang)])
    for second in range(1, 10):
        told.tell(second, EventKind.OBSERVED, 0, a=10 * second, b=c.NOTHING, c=c.NOTHING)
    plan = told.decide(10)
    assert place_of(plan, 1) == [(0, (0,))]
    told.carry_out(10, plan)
    told.tell(10, EventKind.STARTED, 1)
    for second in range(11, 17):
        told.tell(second, EventKind.OBSERVED, 0, a=100 + speed_after * (second - 10), b=c.NOTHING, c=c.NOTHING)
        told.tell(second, EventKind.OBSERVED, 1, a=9 * (second - 10), b=c.NOTHING, c=c.NOTHING)
    return told


def test_a_packing_that_is_slower_is_undone_and_not_tried_again() -> None:
    """Twelve GPUs at nine tenths lose 1.2, the newcomer is worth 0.9: it gives its place up, and waits though there is room."""
    told = packed(12, 9)
    plan = told.decide(16)
    assert ops(plan) == {1: Op.RELEASE}
    assert plan.overrides[0, c.O_REASON] == Reason.TRIAL
    told.carry_out(16, plan)
    told.tell(16, EventKind.STOPPED, 1, a=Reason.TRIAL, b=54)
    assert told.memo()["bad"] == {1: [0]} and told.memo()["trials"] == {}
    assert ops(told.decide(17)) == {}
    told.tell(20, EventKind.COMPLETED, 0)
    assert told.memo()["bad"] == {}
    assert ops(told.decide(20)) == {1: Op.PLACE}


def test_a_packing_that_pays_is_kept() -> None:
    """Four GPUs at nine tenths lose 0.4: less than the newcomer's 0.9."""
    told = packed(4, 9)
    assert told.memo()["trials"] == {}
    assert ops(told.decide(16)) == {}


def test_a_trial_lasts_until_all_have_told_enough() -> None:
    told = packed(12, 9)
    told.parts = [part.cut(0, len(part)) for part in told.parts if not np.any(part.records[:, c.E_T] > 14 * US)]
    assert told.memo()["trials"] == {1: {0: pytest.approx(10 / US)}}
    assert told.memo()["worse"] == []


def test_without_sharing_nobody_is_packed() -> None:
    jobs = [job("a", 0.4, 100, share=True), job("b", 0.4, 100, share=True)]
    assert rows_of("gandiva:slice=1000", cluster([1]), workload(jobs)) == ["a" * 100 + "b" * 100]
    assert rows_of("gandiva:slice=1000,sharing=true", cluster([1]), workload(jobs)) == ["2" * 100]


def test_empty_gpus_come_before_company() -> None:
    jobs = [job("a", 0.4, 9, share=True), job("b", 0.4, 9, share=True), job("c", 0.4, 9, share=True)]
    assert rows_of("gandiva:sharing=true", cluster([2]), workload(jobs)) == ["2" * 9, "b" * 9]


# -- growth -------------------------------------------------------------------------------------------------------
def test_a_job_grows_into_idle_gpus_and_shrinks_for_others() -> None:
    """One replica, three at most, on four GPUs: it grows at 5 s (its cool-down); b of three GPUs comes at 10, and has them."""
    load = workload([job("a", 1, 30), job("b", 3, 8, 10, workers=3)])
    load.spec[c.J_DATA_MAX, 0] = 3
    rows = rows_of("gandiva:cool_down=5,slice=1000", cluster([4]), load)
    assert rows == [
        "a" * 30, "." * 5 + "a" * 5 + "b" * 8 + "a" * 12, "." * 5 + "a" * 5 + "b" * 8 + "a" * 12,
        "." * 10 + "b" * 8,
    ]  # fmt: skip


def test_growth_can_be_switched_off() -> None:
    load = workload([job("a", 1, 30)])
    load.spec[c.J_DATA_MAX, 0] = 3
    assert rows_of("gandiva:cool_down=5,grow=false", cluster([4]), load)[1:] == ["", "", ""]


# -- moves --------------------------------------------------------------------------------------------------------
def hot(policy: str) -> Told:
    """GPU 0 has a job that uses 650 and one that uses 400, GPU 1 one of 300, GPU 2 nobody."""
    jobs = [job("big", 0.5, 900, share=True), job("small", 0.4, 900, share=True), job("other", 0.3, 900, share=True)]
    told = Told(policy, cluster([3]), jobs)
    for number, gpu in enumerate((0, 0, 1)):
        told.run(0, number, [(0, [gpu])])
    for number, use in enumerate((650, 400, 300)):
        told.tell(1, EventKind.USAGE, number, a=0, payload=[use, 0, 0, 0])
    return told


def test_the_job_that_uses_least_moves_off_a_hot_gpu() -> None:
    told = hot("gandiva:sharing=true,cool_down=60")
    early = told.decide(30)
    assert ops(early) == {} and early.wake_at_us == 60 * US
    plan = told.decide(60)
    assert ops(plan) == {1: Op.PLACE} and place_of(plan, 1) == [(0, (2,))]


def test_moves_can_be_switched_off() -> None:
    assert ops(hot("gandiva:sharing=true,cool_down=60,migrate=0").decide(60)) == {}
    assert ops(hot("gandiva:sharing=true,cool_down=60,migrate=1.1").decide(60)) == {}


def test_a_gang_is_gathered_when_room_comes_up() -> None:
    """Two tasks on two nodes, with room for both on one: they move there when nobody waits."""
    told = Told("gandiva:cool_down=60", cluster([2, 2]), [job("gang", 2, 900, workers=2)])
    told.run(0, 0, [(0, [0]), (1, [0])])
    assert ops(told.decide(59)) == {}
    plan = told.decide(60)
    assert sorted(place_of(plan, 0)) == [(0, (0,)), (0, (1,))]
    told = Told("gandiva:cool_down=60,defrag=false", cluster([2, 2]), [job("gang", 2, 900, workers=2)])
    told.run(0, 0, [(0, [0]), (1, [0])])
    assert ops(told.decide(60)) == {}


# -- the memo -----------------------------------------------------------------------------------------------------
def test_the_memo_forgets_those_who_have_left() -> None:
    told = packed(4, 9)
    for number in (0, 1):
        told.tell(30, EventKind.COMPLETED, number)
    assert told.memo() == gandiva_memo.start()


def test_folding_in_parts_is_folding_at_once() -> None:
    told = packed(12, 9)
    policy = told.policy
    memo = policy.start()
    for part in told.parts:
        memo = policy.fold(memo, part)
    assert memo["jobs"] == told.memo()["jobs"] and memo["worse"] == told.memo()["worse"] == [1]


# -- what may not happen ------------------------------------------------------------------------------------------
def test_nobody_starves() -> None:
    """A gang of the whole cluster starts at the end of a slice, whatever comes in between."""
    check_no_starvation(lambda: make_policy("gandiva:slice=60"), 0)


@pytest.mark.parametrize("seed", range(12))
def test_elastic_jobs_shares_and_quotas_give_no_plan_that_is_refused(seed: int) -> None:
    """Elastic jobs of one, two and four GPUs and shares, more than there is room for, without and with quotas; all end, and no
    GPU is booked above its whole."""
    r = random.Random(seed)
    jobs, t = [], 0
    for number in range(30):
        t += r.choice([0, 0, 3, 20])
        share = r.random() < 0.4
        workers = r.choice([1, 1, 2, 4])
        each = r.choice([0.3, 0.45, 0.6]) if share else 1
        jobs.append(
            job(f"j{number}", each * workers, r.randint(5, 60), t, workers=workers, share=share, units=20, queue=number % 2)
        )
    load = workload(jobs, queues=("a", "b"))
    for number, sketch in enumerate(jobs):
        if not sketch.share:
            load.spec[c.J_DATA_MIN, number], load.spec[c.J_DATA_MAX, number] = 1, r.choice([sketch.workers, 6])
    where = cluster([4, 4], share_limit=0.9)
    for queues in ((), (Queue("a", 4), Queue("b", 4))):
        spec = "gandiva:slice=20,cool_down=5,sharing=true,trial=4"
        run = simulate(load, replace(where, queues=queues), make_policy(spec), interval_s=1, keep_journal=True)
        assert run.refused == 0
        assert all(run.state.ended_phase(number) == Phase.COMPLETED for number in range(len(jobs)))
        assert run.journal is not None
        booked_within(run.journal, 1000)


def booked_within(journal: EventBatch, most: int) -> None:
    """What processes hold on each GPU is at most so much at any time."""
    held: dict[tuple[int, int], int] = defaultdict(int)
    places: dict[int, list[list[int]]] = {}
    for record, payload in zip(journal.records.tolist(), journal.payloads(), strict=True):
        kind, number = record[c.E_KIND], record[c.E_ID]
        if kind in (EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED):
            for node, mask, milli in places.pop(number, []):
                for gpu in gpus_of(mask):
                    held[node, gpu] -= milli
        elif kind == EventKind.START_REQUESTED:
            places[number] = payload.reshape(-1, c.PLACE).tolist()
            for node, mask, milli in places[number]:
                for gpu in gpus_of(mask):
                    held[node, gpu] += milli
                    assert held[node, gpu] <= most
