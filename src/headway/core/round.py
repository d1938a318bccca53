"""One round: view, decide, check, diff. The simulator and the live controller call this and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from headway.core import columns as c
from headway.core.check import VIOLATIONS, check_plan, drop_stale
from headway.core.codes import K_REFUSED
from headway.core.diff import diff_plan, settle
from headway.core.events import EMPTY, EventBatch
from headway.core.plan import Capabilities, Plan, Request
from headway.core.policy import Memo, Policy
from headway.core.state import State
from headway.core.view import ClusterView

REFUSALS_MAX = 3
"""After so many refused plans in a row the fallback policy decides, until it is told otherwise."""
RAISED = 99
"""The violation code of a policy that raised an exception."""


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
    s = state.scratch
    code, where = check_plan(
        plan.overrides, count, plan.places, state.J, state.T, state.N, state.G, state.Q, state.C, s.dG, s.dN, s.queues, s.seen,
        capabilities.fractional_gpus, capabilities.uneven_gangs,
    )  # fmt: skip
    if code == 0:
        return None
    job = int(plan.overrides[where, c.O_JOB])
    return Violation(int(code), job, f"{VIOLATIONS[code]} (job {job})")


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
    view = ClusterView(state, now_us, seed)
    in_charge = brains.policy if state.C.item(c.C_REFUSED_IN_ROW) < REFUSALS_MAX else brains.fallback
    begin = perf_counter_ns()
    violation: Violation | None = None
    try:
        plan = in_charge.decide(view, memo)
        violation = check(state, plan, can)
    except Exception as error:
        if strict:
            raise
        violation = Violation(RAISED, -1, f"{in_charge.name} raised {type(error).__name__}: {error}")
    if violation is None:
        events = marked(diff(state, plan, now_us), now_us, in_charge is brains.policy, state.C.item(c.C_REFUSED_IN_ROW))
        return Round(events, plan.wake_at_us, plan.requests, None, perf_counter_ns() - begin)
    kept = brains.keep.decide(view, None)
    fault = check(state, kept, can)
    if fault is not None:
        raise AssertionError(f"the keep policy's own plan does not hold: {fault.sentence}")
    refused = EventBatch(
        np.array([[now_us, K_REFUSED, max(violation.job, 0), 0, violation.code, 0, 0, 0]], np.int64),
        EMPTY.pool,
        {0: violation.sentence},
    )
    return Round(refused + without_round(diff(state, kept, now_us)), kept.wake_at_us, (), violation, perf_counter_ns() - begin)


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
