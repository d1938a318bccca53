"""A job that its owner holds stands in nobody's way: a policy decides as if it were not there."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind, Op, Phase
from headway.core.events import EventBuffer
from headway.core.view import ClusterView
from headway.policies.registry import choose
from headway.testing.policy_checks import memo_of
from headway.testing.views import Case, random_case

US = 1_000_000
POLICIES = (
    "fifo", "fifo-backfill", "srtf", "sjf", "las", "tiresias", "edf", "drf", "drf:preempt=false",
    "borg-fair", "gandiva", "graphene", "slaq", "hypersched", "mlf-h",
)  # fmt: skip
SEEDS = 40


def after(case: Case, kind: EventKind, jobs: list[int], quotas: bool) -> Case:
    """The same, and this has happened to those jobs last; with `quotas`, queue 1 has one of two GPUs, and queue 0 none."""
    out = EventBuffer()
    t = int(case.journal.records[-1, c.E_T])
    if quotas:
        for queue in (0, 1):
            out.add(t, EventKind.QUEUE_SET, queue, payload=[2 * queue * c.WHOLE, -1, 1, -1])
    for job in jobs:
        out.add(t, kind, job, a=int(kind == EventKind.HOLD_SET))
    return Case(case.journal + out.take(), case.now_us)


def decided(policy: str, case: Case) -> list[tuple[object, ...]]:
    """What is to be placed and released, and where."""
    chosen = choose(policy).policy
    plan = chosen.decide(ClusterView(case.state(), case.now_us, 7), memo_of(chosen, case.journal))
    found: list[tuple[object, ...]] = []
    for entry in plan.overrides.tolist():
        if entry[c.O_OP] in (Op.PLACE, Op.RELEASE, Op.FINISH):
            first = entry[c.O_TASK0]
            places = plan.places[first : first + entry[c.O_TASKS]].tolist() if entry[c.O_OP] == Op.PLACE else []
            found.append((entry[c.O_JOB], entry[c.O_OP], entry[c.O_DATA], *map(tuple, places)))
    return sorted(found, key=repr)


def waiting(case: Case) -> list[int]:
    """Jobs without any place, wanted or held, by number."""
    J = case.state().J
    rows = np.flatnonzero((J[c.J_PHASE] == Phase.QUEUED) & (J[c.J_PLACED] == 0) & (J[c.J_TASKS] > 0))
    return sorted(J[c.J_ID, rows].tolist())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("quotas", [False, True], ids=["", "quotas"])
def test_a_held_job_stands_in_nobodys_way(policy: str, quotas: bool) -> None:
    held = moved = 0
    for seed in range(SEEDS):
        case = random_case(seed)
        r = random.Random(f"held {seed}")
        mine = [job for job in waiting(case) if r.random() < 0.5]
        with_them = decided(policy, after(case, EventKind.HOLD_SET, mine, quotas))
        assert with_them == decided(policy, after(case, EventKind.CANCEL_REQUESTED, mine, quotas)), f"seed {seed}, held: {mine}"
        held, moved = held + len(mine), moved + len(with_them)
    assert held > SEEDS and moved > SEEDS // 4, "the cases have lost their point"


def test_the_cases_hold_jobs_that_would_come_first() -> None:
    """In some of them `fifo` would have begun with a job that is held."""
    first = 0
    for seed in range(SEEDS):
        case = random_case(seed)
        r = random.Random(f"held {seed}")
        mine = {job for job in waiting(case) if r.random() < 0.5}
        placed = [entry[0] for entry in decided("fifo", case) if entry[1] == Op.PLACE]
        first += bool(placed) and placed[0] in mine
    assert first >= 5
