"""Every shipped policy passes the conformance suite, and policies broken on purpose do not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import Name, Op, Phase
from headway.core.plan import Plan
from headway.core.policy import Policy
from headway.core.view import ClusterView
from headway.policies.registry import REGISTRY, make_policy
from headway.testing.policy_checks import check_no_starvation, check_policy

SPECS = {
    **{name: (name,) for name in REGISTRY},
    "fifo": ("fifo", "fifo:sharing=true", "fifo:placement=topology"),
    "fifo-backfill": ("fifo-backfill", "fifo-backfill:depth=2,placement=first-fit", "fifo-backfill:sharing=true"),
    "srtf": ("srtf", "srtf:placement=best-fit", "srtf:sharing=true", "srtf:gpus=0.5"),
    "oracle-srtf": ("oracle-srtf", "oracle-srtf:sharing=true"),
    "las": ("las", "las:quantum=20,placement=topology", "las:quantum=20,sharing=true"),
    "sjf": ("sjf", "sjf:unfit=block", "sjf:unfit=skip,placement=first-fit", "sjf:sharing=true"),
    "edf": ("edf", "edf:preempt=false,placement=best-fit", "edf:sharing=true"),
    "drf": ("drf", "drf:over=queue", "drf:preempt=false", "drf:sharing=true"),
    "borg-fair": ("borg-fair", "borg-fair:over=user,placement=topology", "borg-fair:sharing=true"),
    "random": ("random", "random:seed=7,unfit=block", "random:sharing=true", "random:sharing=true,unfit=block"),
    "tiresias": (
        "tiresias",
        "tiresias:threshold=60,queues=3,factor=4,promote=2",
        "tiresias:threshold=60,skew=0.5",
        "tiresias:threshold=60,sharing=true",
    ),
    "mlf-h": ("mlf-h", "mlf-h:placement=task", "mlf-h:placement=task,sharing=false,protect=0.5,cool_down=5"),
    "graphene": ("graphene", "graphene:sharing=true", "graphene:preempt=false,sharing=true,unfit=backfill"),
    "slaq": ("slaq", "slaq:sharing=true"),
    "gandiva": ("gandiva:slice=7", "gandiva:slice=30,sharing=true,cool_down=5,trial=2", "gandiva:slice=20,affinity=false"),
    "hypersched": (
        "hypersched",
        "hypersched:sharing=true,review=5",
        "hypersched:step=1.1,horizon=0.25,significant=0.05,review=3,placement=topology",
    ),
}
STARVATION_FREE = ("fifo", "fifo-backfill", "tiresias", "drf", "drf:over=queue", "borg-fair", "borg-fair:over=user")


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_shipped_policies(name: str) -> None:
    for number, spec in enumerate(SPECS[name]):
        seeds = range(100 * number, 100 * number + 40)
        check_policy(lambda spec=spec: make_policy(spec), seeds=seeds, starvation_free=name in STARVATION_FREE)


def test_the_gittins_variant() -> None:
    """Nobody starves here either: who has waited long enough goes first, even if he has never run."""
    make = lambda: make_policy("tiresias:threshold=60,variant=gittins")  # noqa: E731
    check_policy(make, seeds=range(500, 540), starvation_free=True)


def test_starvation_is_seen() -> None:
    """Shortest first keeps a long gang waiting as long as short jobs come."""
    with pytest.raises(AssertionError, match=r"a gang waited .* while short jobs went on"):
        check_no_starvation(lambda: make_policy("srtf"), 0)


# -- policies broken on purpose -----------------------------------------------------------------------------------
@dataclass
class Broken:
    """Fifo, spoilt by a function of the view and its finished plan."""

    spoil: Callable[[ClusterView, Plan], Plan]
    name: str = "broken"
    under: Policy = field(default_factory=lambda: make_policy("fifo"))

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        return self.spoil(view, self.under.decide(view, memo))


def places(plan: Plan) -> list[int]:
    return [i for i, op in enumerate(plan.overrides[:, c.O_OP].tolist()) if op == Op.PLACE]


def over_commit(view: ClusterView, plan: Plan) -> Plan:
    """Puts the first job that it places where another job is."""
    placed = [row for row in view.placed_rows().tolist() if view.state.T[c.T_MASK, view.state.J[c.J_TASK0, row]]]
    for i in places(plan):
        task = int(plan.overrides[i, c.O_TASK0])
        if placed and plan.places[task, 1]:
            other = int(view.state.J[c.J_TASK0, placed[0]])
            plan.places[task, :2] = view.state.T[[c.T_NODE, c.T_MASK], other]
            break
    return plan


def over_commit_cpus(view: ClusterView, plan: Plan) -> Plan:
    """Puts all that it places on node 0, as far as it has GPUs: nobody has looked at cpus."""
    for i in places(plan):
        first, count = plan.overrides[i, [c.O_TASK0, c.O_TASKS]]
        if not plan.places[first : first + count, 1].any():
            plan.places[first : first + count, 0] = 0
    return plan


def break_gang(view: ClusterView, plan: Plan) -> Plan:
    """Leaves the last task of every gang out."""
    for i in places(plan):
        if plan.overrides[i, c.O_TASKS] > 1:
            plan.overrides[i, c.O_TASKS] -= 1
    return plan


def read_clock(view: ClusterView, plan: Plan) -> Plan:
    plan.wake_at_us = view.now_us + time.perf_counter_ns()
    return plan


def write_view(view: ClusterView, plan: Plan) -> Plan:
    view.state.J[c.J_WHY, 0] += 1
    return plan


def read_names(view: ClusterView, plan: Plan) -> Plan:
    """Looks again sooner if there are users with odd names."""
    plan.wake_at_us = view.now_us + 10**9 * sum(map(len, view.state.names[Name.USER].values()))
    return plan


def read_numbers(view: ClusterView, plan: Plan) -> Plan:
    """Nothing for jobs with an even number."""
    keep = [i for i, job in enumerate(plan.overrides[:, c.O_JOB].tolist()) if job % 2]
    return Plan(plan.overrides[keep], plan.places, plan.seen, plan.wake_at_us)


def place_held(view: ClusterView, plan: Plan) -> Plan:
    """Places a job that its user holds."""
    J = view.state.J
    for row in view.waiting_rows().tolist():
        if J[c.J_HOLD, row]:
            draft, tasks = view.draft(), int(J[c.J_TASKS, row])
            draft.place(int(J[c.J_ID, row]), [0] * tasks, [[]] * tasks)
            return draft.plan()
    return plan


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (over_commit, "over capacity"),
        (over_commit_cpus, "over capacity|not up"),
        (break_gang, "gang of job .* is broken"),
        (read_clock, "the same view has given another plan"),
        (write_view, "deciding has changed the view"),
        (read_names, "other names have given another plan"),
        (read_numbers, "other numbers in the same order|jobs wait"),
        (place_held, "held by its user"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_broken_policies_are_caught(spoil: Callable[[ClusterView, Plan], Plan], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_policy(lambda: Broken(spoil), seeds=range(200))


@dataclass
class Forgetful:
    """Decides only every second time that it is asked: it counts."""

    name: str = "forgetful"
    asked: int = 0

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        self.asked += 1
        return make_policy("fifo").decide(view, memo) if self.asked % 2 else view.draft().plan()


@dataclass
class Counting:
    """Remembers every job that it has ever seen, and places nobody whom it saw before another view."""

    name: str = "counting"
    seen: set[int] = field(default_factory=set)

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        now = {int(job) for job in view.state.J[c.J_ID, view.live_rows()]}
        plan = make_policy("fifo").decide(view, memo)
        if self.seen and self.seen != now:
            plan.wake_at_us = 5
        self.seen = now
        return plan


@dataclass
class Sleepy:
    """Puts jobs off by their time in the queue, but does not say when to look again."""

    name: str = "sleepy"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        J = view.state.J
        rows = view.waiting_rows()
        young = np.any(view.now_us - J[c.J_QUEUED_AT, rows] < 7_000_000)
        return view.draft().plan() if young else make_policy("fifo").decide(view, memo)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Forgetful, "the same view has given another plan the second time"),
        (Counting, "another view in between has changed the plan|the same view"),
        (Sleepy, "skipping rounds"),
    ],
)
def test_policies_that_remember_or_sleep_are_caught(make: Callable[[], Policy], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_policy(make)


def test_the_reason_names_policy_and_seed() -> None:
    with pytest.raises(AssertionError, match=r"^policy broken, check_view, seed \d+: "):
        check_policy(lambda: Broken(break_gang), seeds=range(100))


def test_random_views_hold_every_situation() -> None:
    """The suite is worth what its views are: jobs in every phase, with and without a place, held, to be retried, on all
    sorts of nodes."""
    from headway.testing.views import random_case

    found: set[object] = set()
    for seed in range(60):
        state = random_case(seed).state()
        J = state.J
        for row in state.live_rows().tolist():
            found.add((Phase(int(J[c.J_PHASE, row])).name, bool(J[c.J_PLACED, row])))
            found |= {"held"} if J[c.J_HOLD, row] else set()
            found |= {"later"} if J[c.J_NOT_BEFORE, row] > state.C[c.C_NOW] else set()
            found |= {"cpus only"} if J[c.J_GPUS, row] == 0 else set()
            found |= {"servers"} if J[c.J_SERVERS, row] else set()
            found |= {"kind"} if J[c.J_KIND_MASK, row] != -1 else set()
            found |= {"share"} if J[c.J_SHARE, row] else set()
        found |= {c.NodePhase(int(phase)).name for phase in state.N[c.N_PHASE]}
    assert found == {
        ("QUEUED", False), ("QUEUED", True), ("STARTING", True), ("RUNNING", True), ("STOPPING", False), ("STOPPING", True),
        "held", "later", "cpus only", "servers", "kind", "share", "UP", "DRAINING", "DOWN",
    }  # fmt: skip
