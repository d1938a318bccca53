"""`Draft` and `Plan`: each verb writes what it says, and what becomes of it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.core.dense import US, Desk

from headway.core import columns as c
from headway.core.columns import Estimator, EventKind, Op, Phase, Reason, StopRule
from headway.core.plan import Capabilities, Draft, Plan, Request
from headway.core.view import mask_of

K = EventKind


def desk() -> Desk:
    found = Desk((4, 4))
    found.submit(0, batch=32)
    found.submit(1, data=2, data_max=4, batch=64, stop_allow=1 << StopRule.ACCURACY)
    return found


def override(plan: Plan, i: int = 0) -> dict[str, int]:
    names = ("job", "row", "op", "reason", "data", "servers", "batch", "task0", "tasks", "a", "b")
    assert len(names) == c.OVERRIDE
    return dict(zip(names, plan.overrides[i].tolist(), strict=False))


def test_an_untouched_draft_is_an_empty_plan() -> None:
    d = desk()
    plan = d.draft().plan()
    assert (len(plan), len(plan.places), plan.wake_at_us, plan.requests) == (0, 0, c.NEVER, ())
    assert plan.seen == d.count("sequence") and d.do(plan) == []


def test_place() -> None:
    d = desk()
    draft = d.draft()
    draft.place(1, [0, 1], [[3], [0]])
    draft.place(d.view().job(0), [1], [[1, 2]], milli=250, reason=Reason.TRIAL)
    plan = draft.plan()
    assert override(plan) == dict(job=1, row=1, op=Op.PLACE, reason=0, data=2, servers=0, batch=64, task0=0, tasks=2, a=0, b=0)
    assert override(plan, 1) == dict(
        job=0, row=0, op=Op.PLACE, reason=Reason.TRIAL, data=1, servers=0, batch=32, task0=2, tasks=1, a=0, b=0
    )
    assert plan.places.tolist() == [[0, 0b1000, 1000], [1, 0b1, 1000], [1, 0b110, 250]]


def test_place_in_another_shape() -> None:
    d = desk()
    draft = d.draft()
    draft.place(1, [0, 0, 0, 1], [[0], [1], [2], []], data=3, servers=1, batch=128)
    plan = draft.plan()
    got = override(plan)
    assert (got["data"], got["servers"], got["batch"], got["tasks"]) == (3, 1, 128, 4)
    assert plan.places[3].tolist() == [1, 0, 0], "a server books no GPU"


def test_a_place_with_more_nodes_than_gpu_lists_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="zip"):
        desk().draft().place(1, [0, 1], [[0]])


def test_release_finish_rule_and_why() -> None:
    d = desk()
    draft = d.draft()
    draft.release(0)
    draft.release(1, Reason.LOW_RANK)
    draft.finish(0)
    draft.rule(1, StopRule.ACCURACY)
    draft.why(0, Reason.NO_ROOM, 8, 4)
    plan = draft.plan()
    got = [(o["job"], o["op"], o["reason"], o["a"], o["b"]) for o in (override(plan, i) for i in range(5))]
    assert got == [
        (0, Op.RELEASE, Reason.PREEMPTED, 0, 0),
        (1, Op.RELEASE, Reason.LOW_RANK, 0, 0),
        (0, Op.FINISH, Reason.EARLY_STOP, 0, 0),
        (1, Op.RULE, Reason.NONE, StopRule.ACCURACY, 0),
        (0, Op.WHY, Reason.NO_ROOM, 8, 4),
    ]
    assert len(plan.places) == 0


def test_an_unknown_job_is_written_as_none() -> None:
    draft = desk().draft()
    draft.release(99)
    assert override(draft.plan())["row"] == override(draft.plan())["job"] == -1


def test_requests() -> None:
    d = desk()
    draft = d.draft()
    draft.request(Estimator.CURVE, 1)
    draft.request(Estimator.SPEED, d.view().job(0))
    assert draft.plan().requests == (Request(Estimator.CURVE, 1), Request(Estimator.SPEED, 0))
    assert d.draft().plan().requests == ()


@pytest.mark.parametrize(
    ("seconds", "us"),
    [
        (0.0, 0),
        (1, US),
        (0.0000001, 1),
        (0.000001, 1),
        (1.0000001, US + 1),
        (2.5, 2_500_000),
        (86_400.000001, 86_400_000_001),
        (-1.5, -1_500_000),
    ],
)
def test_wake_at_rounds_up_to_a_microsecond(seconds: float, us: int) -> None:
    draft = desk().draft()
    draft.wake_at(seconds)
    assert draft.plan().wake_at_us == us


def test_the_earliest_wake_counts() -> None:
    draft = desk().draft()
    for t in (7.0, 3.0, 5.0):
        draft.wake_at(t)
    assert draft.plan().wake_at_us == 3 * US
    draft.wake_at_us(17)
    draft.wake_at_us(18)
    assert draft.plan().wake_at_us == 17
    assert desk().draft().plan().wake_at_us == c.NEVER


def test_wake_at_gives_a_whole_number_of_microseconds_back() -> None:
    r = random.Random(1)
    draft = desk().draft()
    for _ in range(5000):
        us = r.randrange(10**6, 10**13)
        draft.scratch.M[2] = c.NEVER
        draft.wake_at(us / US)
        assert draft.plan().wake_at_us == us


def test_a_trial_is_a_place_that_is_looked_at_again() -> None:
    d = desk()
    draft = d.draft()
    draft.trial(1, [0, 0, 0], [[0], [1], [2]], until_s=90.5, data=3)
    plan = draft.plan()
    assert override(plan)["reason"] == Reason.TRIAL and override(plan)["data"] == 3 and plan.wake_at_us == 90_500_000
    batch = d.diff(plan)
    assert batch.kinds() == [K.START_REQUESTED, K.RULE_SET, K.ROUND] and batch.records[0, c.E_A] == Reason.TRIAL
    assert batch.records[1, c.E_A :].tolist() == [d.get(1, "rule_in_force"), 90_500_000, 0, 0]


def test_a_trial_is_visible_as_such() -> None:
    d = desk()
    draft = d.draft()
    draft.trial(0, [0], [[0]], until_s=90.5)
    d.do(draft.plan())
    assert d.view().job(0).reason == Reason.TRIAL and d.get(0, "trial_until") == 90_500_000
    d.report(K.STOPPED, 0)
    d.start(0, [(0, [0])])
    assert d.get(0, "reason") == Reason.NONE and d.get(0, "trial_until") == c.NEVER


def test_a_plan_is_overwritten_by_the_next_draft_unless_it_is_copied() -> None:
    d = desk()
    draft = d.draft()
    draft.place(0, [0], [[0]])
    plan, kept = draft.plan(), draft.plan().copy()
    other = d.draft()
    other.place(1, [1, 1], [[2], [3]])
    assert override(plan)["job"] == 1 and override(kept)["job"] == 0 and kept.places.tolist() == [[0, 1, 1000]]
    assert (kept.seen, kept.wake_at_us, kept.requests) == (plan.seen, plan.wake_at_us, plan.requests)
    kept.overrides[0, 0] = 77
    assert override(other.plan())["job"] == 1


def test_a_draft_grows_beyond_its_scratch() -> None:
    d = Desk((4,), jobs=2, tasks=2)
    d.submit(0)
    draft = d.draft()
    rows, places = len(draft.scratch.O), len(draft.scratch.OT)
    for i in range(3 * rows):
        draft.why(0, Reason.NO_ROOM, i)
    for _ in range(2 * places):
        draft.place(0, [0], [[1]])
    plan = draft.plan()
    assert len(plan) == 3 * rows + 2 * places and plan.overrides[: 3 * rows, c.O_A].tolist() == list(range(3 * rows))
    assert plan.places.tolist() == [[0, 2, 1000]] * (2 * places)
    d.emit(K.CANCEL_REQUESTED, 0)
    again = d.draft()
    again.why(0, Reason.NO_ROOM)
    assert d.check(again.plan()) is not None


def test_many_overrides_of_one_job_are_checked_and_carried_out() -> None:
    d = Desk((4,), jobs=2, tasks=2)
    d.submit(0)
    draft = d.draft()
    for i in range(100):
        draft.why(0, Reason.NO_ROOM, i)
    assert d.do(draft.plan()) == [(K.WHY, 0)] * 100 and d.get(0, "why_a") == 99


def test_a_draft_sees_the_state_that_it_was_made_on() -> None:
    d = desk()
    seen = d.count("sequence")
    plan = d.draft().plan()
    d.submit(2)
    assert plan.seen == seen and isinstance(d.draft(), Draft) and d.draft().plan().seen == seen + 1


def test_masks() -> None:
    assert [mask_of(g) for g in ([], [0], [0, 2], [62], [63], [0, 63])] == [0, 1, 5, 1 << 62, -(1 << 63), -(1 << 63) + 1]


def test_a_gpu_beyond_the_mask_is_a_mistake() -> None:
    d = desk()
    draft = d.draft()
    try:
        draft.place(0, [0], [[0, 64]])
    except (ValueError, OverflowError, AssertionError):
        return
    assert d.check(draft.plan()) is not None


def test_capabilities_have_generous_defaults() -> None:
    can = Capabilities()
    assert (
        can.fractional_gpus
        and can.exact_devices
        and can.uneven_gangs
        and not can.suspend
        and (can.slice_s_min, can.grace_s) == (0.0, 30.0)
    )


def test_finish_and_rule_end_to_end() -> None:
    d = desk()
    d.run(1, [(0, [0]), (0, [1])])
    draft = d.draft()
    draft.rule(1, StopRule.ACCURACY)
    assert d.do(draft.plan()) == [(K.RULE_SET, 1), (K.ROUND, 0)] and d.get(1, "rule_in_force") == StopRule.ACCURACY
    draft = d.draft()
    draft.rule(1, StopRule.ACCURACY)
    assert d.do(draft.plan()) == [], "a rule that is in force"
    draft = d.draft()
    draft.finish(0)
    draft.finish(1)
    assert d.do(draft.plan()) == [(K.FINISHED, 0), (K.STOP_REQUESTED, 1), (K.ROUND, 0)]
    assert d.phase(0) == Phase.COMPLETED and d.phase(1) == Phase.STOPPING
    d.report(K.STOPPED, 1)
    assert d.phase(1) == Phase.COMPLETED and np.all(d.state.scratch.dG == 0)
