"""One round: view, decide, check, diff. The simulator and the live controller call this and nothing else.

`run_round` is all of it at one instant. The live controller takes it apart: `think` in a worker on a copy of the state, and
then, on the state as it is by then, `refresh` and `conclude`; and `spare`, for those who come meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core.arrays import Table
from headway.core.check import VIOLATIONS, check_plan, drop_stale
from headway.core.codes import K_REFUSED
from headway.core.columns import Op, Reason
from headway.core.diff import diff_plan, settle
from headway.core.errors import one_line
from headway.core.events import EMPTY, EventBatch
from headway.core.plan import Capabilities, Plan, Request
from headway.core.policy import Memo, Policy, PolicyFault, mark_of, teacher_memo, teacher_of
from headway.core.state import State
from headway.core.view import ClusterView

REFUSALS_MAX = 3
"""After so many refused plans in a row the fallback policy decides, until it is told otherwise; the teacher of a policy that has
one decides for PROBATION_US, and then the policy is asked again."""
PROBATION_US = 600_000_000
GAVE_UP, TIMED_OUT, RAISED = 97, 98, 99
"""The violation codes of a policy that gave the round up (`PolicyFault`), that did not answer in time, and that raised an
exception."""


class InCharge(StrEnum):
    """Who decides."""

    POLICY = "policy"
    TEACHER = "teacher"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a plan was refused: the code, the job it was found at (-1: none), and the sentence."""

    code: int
    job: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Brains:
    """Who decides: the policy; *keep*, which preempts only what quotas claim back, for a round whose plan was refused; the
    fallback after too many refusals."""

    policy: Policy
    keep: Policy
    fallback: Policy


@dataclass(slots=True)
class Thought:
    """What whoever is in charge has decided: a plan that holds on the state it was made on, or why there is none."""

    plan: Plan | None
    violation: Violation | None
    by_policy: bool
    """The policy is in charge, not its teacher or the fallback."""
    decide_ns: int = 0
    covered: bool = False
    """The plan is the teacher's, since the policy had none that holds: `violation` says why."""


@dataclass(slots=True)
class Round:
    """What a round has decided. `events` are to be journalled and applied, and the requests among them carried out; valid until
    the next round."""

    events: EventBatch
    wake_at_us: int
    requests: tuple[Request, ...]
    violation: Violation | None
    decide_ns: int


def check(state: State, plan: Plan, capabilities: Capabilities) -> Violation | None:
    """The first reason to refuse a plan whole, or None. Entries that merely went stale are dropped from `plan` first."""
    count = len(plan.overrides)
    if count and plan.seen != state.C.item(c.C_SEQUENCE):
        count = drop_stale(plan.overrides, count, plan.seen, state.J, state.N, state.R, state.C, plan.places)
        plan.overrides = plan.overrides[:count]
    if count == 0:
        return None
    code, where = first_fault(state, plan, capabilities)
    if code == 0:
        return None
    job = int(plan.overrides[where, c.O_JOB])
    return Violation(int(code), job, f"{VIOLATIONS[code]} (job {job})")


def first_fault(state: State, plan: Plan, capabilities: Capabilities) -> tuple[int, int]:
    """The violation code of a plan whose rows are those of the state, and the override it was found at; 0: none."""
    s = state.scratch
    return check_plan(
        plan.overrides, len(plan.overrides), plan.places, state.J, state.T, state.N, state.G, state.Q, state.C,
        s.dG, s.dN, s.queues, s.seen, capabilities.fractional_gpus, capabilities.uneven_gangs,
    )  # fmt: skip


def refresh(state: State, plan: Plan, capabilities: Capabilities) -> int:
    """Make a plan that held on an older state hold on this one: entries that went stale, and those that no longer fit, are taken
    out one by one, and with them the releases that were for their places alone. Returns how many were taken out.

    Rows are looked up anew: those of the plan may be another state's.
    """
    before = plan.overrides.copy()
    count = len(before)
    if count == 0:
        return 0
    kept = drop_stale(plan.overrides, count, plan.seen, state.J, state.N, state.R, state.C, plan.places)
    plan.overrides = plan.overrides[:kept]
    if plan.seen == state.C.item(c.C_SEQUENCE):
        return count - int(kept)
    _drop_faults(state, plan, capabilities)
    vain = releases_in_vain(state, plan, before)
    if vain.any():
        plan.overrides = plan.overrides[~vain]
        _drop_faults(state, plan, capabilities)
    return count - len(plan.overrides)


def _drop_faults(state: State, plan: Plan, capabilities: Capabilities) -> None:
    """Take out the first entry with a fault until there is none."""
    while len(plan.overrides):
        code, where = first_fault(state, plan, capabilities)
        if code == 0:
            return
        plan.overrides = np.delete(plan.overrides, where, axis=0)


def releases_in_vain(state: State, plan: Plan, before: Table) -> NDArray[np.bool_]:
    """Which entries of a plan preempt a job whose GPUs only entries wanted that are in `before` and no longer in the plan."""
    O, OT, J, T = plan.overrides, plan.places, state.J, state.T
    left = {int(job) for job in O[O[:, c.O_OP] == Op.PLACE, c.O_JOB]}
    lost: dict[int, int] = {}
    used: set[int] = set()
    for entry in before[before[:, c.O_OP] == Op.PLACE]:
        for node, mask, _ in OT[entry[c.O_TASK0] : entry[c.O_TASK0] + entry[c.O_TASKS]].tolist():
            if int(entry[c.O_JOB]) in left:
                used.add(node)
            else:
                lost[node] = lost.get(node, 0) | mask
    vain = np.zeros(len(O), np.bool_)
    if not lost:
        return vain
    for i in np.flatnonzero((O[:, c.O_OP] == Op.RELEASE) & (O[:, c.O_REASON] == Reason.PREEMPTED)):
        first, tasks = J[[c.J_TASK0, c.J_TASKS], O[i, c.O_ROW]].tolist()
        places = T[[c.T_NODE, c.T_MASK], first : first + tasks].T.tolist()
        vain[i] = any(lost.get(node, 0) & mask for node, mask in places) and not any(node in used for node, _ in places)
    return vain


def diff(state: State, plan: Plan, now_us: int) -> EventBatch:
    """The events that make a checked plan what is wanted: stops first, then starts, each by job number. Empty if nothing
    changes."""
    count = len(plan.overrides)
    if count == 0:
        return EMPTY
    buffer = state.scratch.round_events
    buffer.clear()
    buffer.reserve(3 * count + 1, c.PLACE * len(plan.places))
    written = diff_plan(
        plan.overrides,
        np.argsort(plan.overrides[:, c.O_ROW], kind="stable"),
        count,
        plan.places,
        now_us,
        state.J,
        state.T,
        state.N,
        state.G,
        state.C,
        buffer.records,
        buffer.pool,
    )
    buffer.fill(*written)
    return buffer.peek()


def settled(state: State, now_us: int) -> EventBatch:
    """The requests that follow from the state alone: jobs that must stop, and wanted places that have become free."""
    pending, must_stop = state.C.item(c.C_PLACED_WAITING), state.C.item(c.C_MUST_STOP)
    if pending == 0 and must_stop == 0:
        return EMPTY
    buffer = state.scratch.round_events
    buffer.clear()
    buffer.reserve(pending + must_stop, c.PLACE * int(state.C[c.C_TASKS]))
    buffer.fill(*settle(now_us, state.J, state.T, state.N, state.G, state.C, buffer.records, buffer.pool))
    return buffer.peek()


def run_round(
    state: State,
    brains: Brains,
    memo: Memo,
    now_us: int,
    *,
    seed: int = 0,
    capabilities: Capabilities | None = None,
    strict: bool = False,
) -> Round:
    """Decide once at `now_us`. Nothing is changed: the caller journals the events, applies them, and carries out the requests.

    With `strict` a policy's exception is raised; without, it counts as a refused plan, so that the cluster lives on.
    """
    can = capabilities or Capabilities()
    thought = think(state, brains, memo, now_us, seed=seed, capabilities=can, strict=strict)
    return conclude(state, brains, thought, now_us, seed=seed, capabilities=can)


def in_charge(state: State, brains: Brains, now_us: int) -> InCharge:
    """Who decides a round. A policy with a teacher comes back by itself: its guard lets it (`GUARDED`), its probation ends."""
    C, teacher = state.C, teacher_of(brains.policy)
    good = state.C.item(c.C_REFUSED_IN_ROW) < REFUSALS_MAX
    if teacher is None:
        return InCharge.POLICY if good else InCharge.FALLBACK
    if C.item(c.C_GUARD) and C.item(c.C_GUARD_OF) == mark_of(brains.policy):
        return InCharge.TEACHER
    return InCharge.POLICY if good or now_us - C.item(c.C_REFUSED_AT) >= PROBATION_US else InCharge.TEACHER


def think(
    state: State, brains: Brains, memo: Memo, now_us: int, *, seed: int, capabilities: Capabilities, strict: bool = False
) -> Thought:  # fmt: skip
    """Ask whoever is in charge for a plan, and check it; where the policy has none that holds, its teacher is asked. Nothing of
    the state is changed but its working memory, in which the plan lies until the next one is drafted."""
    who = in_charge(state, brains, now_us)
    if who is InCharge.TEACHER:
        return teach(state, brains, memo, None, now_us, seed=seed, capabilities=capabilities, strict=strict)
    begin = perf_counter_ns()
    decides = brains.policy if who is InCharge.POLICY else brains.fallback
    plan, violation = _asked(state, decides, memo, now_us, seed, capabilities, strict)
    thought = Thought(plan, violation, who is InCharge.POLICY, perf_counter_ns() - begin)
    if violation is None or who is InCharge.FALLBACK or teacher_of(brains.policy) is None:
        return thought
    covered = teach(state, brains, memo, violation, now_us, seed=seed, capabilities=capabilities, strict=strict)
    covered.decide_ns += thought.decide_ns
    return covered


def teach(
    state: State, brains: Brains, memo: Memo, violation: Violation | None, now_us: int, *, seed: int, capabilities: Capabilities,
    strict: bool = False,
) -> Thought:  # fmt: skip
    """Ask the policy's teacher. `violation`: why the policy has no plan, if it was asked; None: the teacher is in charge. `memo`
    is the policy's."""
    teacher = teacher_of(brains.policy)
    assert teacher is not None
    begin = perf_counter_ns()
    own = teacher_memo(brains.policy, memo)
    plan, fault = _asked(state, teacher, own, now_us, seed, capabilities, strict)
    covered = fault is None and violation is not None
    return Thought(plan, violation or fault, False, perf_counter_ns() - begin, covered)


def _asked(
    state: State, policy: Policy, memo: Memo, now_us: int, seed: int, capabilities: Capabilities, strict: bool
) -> tuple[Plan | None, Violation | None]:  # fmt: skip
    """A policy's plan, and why it does not hold."""
    try:
        plan = policy.decide(ClusterView(state, now_us, seed), memo)
        return plan, check(state, plan, capabilities)
    except Exception as error:
        if isinstance(error, PolicyFault) and (teacher_of(policy) is not None or not strict):
            return None, Violation(GAVE_UP, -1, one_line(f"{policy.name} gave the round up: {error.reason}"))
        if strict:
            raise
        return None, Violation(RAISED, -1, f"{policy.name} raised {type(error).__name__}: {error}")


def conclude(
    state: State, brains: Brains, thought: Thought, now_us: int, *, seed: int, capabilities: Capabilities
) -> Round:  # fmt: skip
    """The round that a thought comes to: what its plan asks for, or the policy's refusal and what its teacher or *keep* asks
    for."""
    begin = perf_counter_ns()
    plan, violation = thought.plan, thought.violation
    if violation is None:
        assert plan is not None
        events = marked(diff(state, plan, now_us), now_us, thought.by_policy, state.C.item(c.C_REFUSED_IN_ROW))
        return Round(events, plan.wake_at_us, plan.requests, None, thought.decide_ns + perf_counter_ns() - begin)
    if thought.covered:
        assert plan is not None
        other, wake_us, requests = without_round(diff(state, plan, now_us)), plan.wake_at_us, plan.requests
    else:
        kept = keep_round(state, brains, now_us, seed=seed, capabilities=capabilities)
        other, wake_us, requests = kept.events, kept.wake_at_us, ()
    refused = EventBatch(
        np.array([[now_us, K_REFUSED, max(violation.job, 0), 0, violation.code, int(thought.covered), 0, 0]], np.int64),
        EMPTY.pool,
        {0: violation.sentence},
    )
    return Round(refused + other, wake_us, requests, violation, thought.decide_ns + perf_counter_ns() - begin)


def keep_round(state: State, brains: Brains, now_us: int, *, seed: int, capabilities: Capabilities) -> Round:
    """A round that *keep* decides, because the policy has no plan."""
    begin = perf_counter_ns()
    kept = brains.keep.decide(ClusterView(state, now_us, seed), None)
    fault = check(state, kept, capabilities)
    if fault is not None:
        raise AssertionError(f"the keep policy's own plan does not hold: {fault.sentence}")
    return Round(without_round(diff(state, kept, now_us)), kept.wake_at_us, (), None, perf_counter_ns() - begin)


def spare(
    state: State, brains: Brains, newer_than: int, now_us: int, *, seed: int, capabilities: Capabilities
) -> EventBatch:  # fmt: skip
    """Starts of waiting jobs with a number above `newer_than`, where *keep* would place them, on places that nobody wants or
    holds. Nobody is stopped, and what *keep* gives to other jobs stays free."""
    J, N = state.J, state.N
    plan = brains.keep.decide(ClusterView(state, now_us, seed), None)
    O = plan.overrides
    picked = (O[:, c.O_OP] == Op.PLACE) & (O[:, c.O_JOB] > newer_than)
    picked[picked] = J[c.J_PLACED, O[picked, c.O_ROW]] == 0
    for i in np.flatnonzero(picked):
        places = plan.places[O[i, c.O_TASK0] : O[i, c.O_TASK0] + O[i, c.O_TASKS]]
        picked[i] = not (N[c.N_HELD_MASK, places[:, 0]] & places[:, 1]).any()
    plan.overrides = O[picked]
    _drop_faults(state, plan, capabilities)
    return without_round(diff(state, plan, now_us))


def marked(events: EventBatch, now_us: int, by_policy: bool, refused: int) -> EventBatch:
    """A round's events with their mark: a good plan of the policy ends a row of refusals even if it moves nothing, one of the
    fallback does not."""
    if refused == 0:
        return events
    moved = len(events) > 0 and events.records[-1, c.E_KIND] == c.EventKind.ROUND
    if moved:
        events.records[-1, c.E_B] = int(not by_policy)
    elif by_policy:
        mark = EventBatch(np.array([[now_us, c.EventKind.ROUND, 0, 0, 0, 0, 0, 0]], np.int64), EMPTY.pool)
        return events + mark
    return events


def without_round(batch: EventBatch) -> EventBatch:
    """A batch without its closing ROUND mark, which would end a row of refusals."""
    if len(batch) and batch.records[-1, c.E_KIND] == c.EventKind.ROUND:
        return EventBatch(batch.records[:-1], batch.pool, batch.texts)
    return batch


def next_round_us(interval_us: int, last_us: int, event_us: int, wake_us: int) -> int:
    """When the next round is due: at the first multiple of the interval after the last round at which an event has happened or
    the wake time has
    come; with an interval of 0 at the event's or the wake time itself. `last_us` is -1 before the first round."""
    due = min(event_us, wake_us)
    if due >= c.NEVER:
        return c.NEVER
    if interval_us == 0:
        return event_us if wake_us <= last_us else due
    grid = -(-max(due, 0) // interval_us) * interval_us
    return max(grid, (last_us // interval_us + 1) * interval_us) if last_us >= 0 else grid
