"""`run_round`: refused plans, who is in charge, policies that fail, and when the next round is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.core.dense import US, Desk, said

from headway.core import columns as c
from headway.core.check import V_ENDED, V_GPU, V_NOT_PLACED
from headway.core.columns import EventKind, Phase, Reason
from headway.core.plan import Capabilities, Plan
from headway.core.round import RAISED, REFUSALS_MAX, Brains, Round, Violation, check, next_round_us, refresh, run_round
from headway.core.view import ClusterView
from headway.policies.registry import make_policy

K = EventKind
NEVER = c.NEVER


@dataclass
class Scripted:
    """A policy that does what it is told, and notes that it was asked."""

    act: Callable[[ClusterView], Any]
    name: str = "scripted"
    asked: list[tuple[int, int, Any]] = field(default_factory=list)

    def decide(self, view: ClusterView, memo: Any) -> Any:
        self.asked.append((view.now_us, view.seed, memo))
        return self.act(view)


def nothing(view: ClusterView) -> Plan:
    return view.draft().plan()


def good(view: ClusterView) -> Plan:
    """Start the first waiting job on the first free GPU of node 0."""
    draft = view.draft()
    waiting = view.waiting_rows()
    free = [g for g in range(4) if not view.state.G[c.G_TASKS, g]]
    if len(waiting) and free:
        draft.place(int(view.state.J[c.J_ID, waiting[0]]), [0], [[free[0]]])
    draft.wake_at(99.0)
    draft.request(c.Estimator.CURVE, 0)
    return draft.plan()


def bad(view: ClusterView) -> Plan:
    """Put job 1 on the GPU of job 0, and ask for something besides."""
    draft = view.draft()
    draft.place(1, [0], [[0]])
    draft.wake_at(5.0)
    draft.request(c.Estimator.CURVE, 0)
    return draft.plan()


def raises(view: ClusterView) -> Plan:
    raise ZeroDivisionError("no jobs")


def office(
    act: Callable[[ClusterView], Any] = good, keep: Any = None, fallback: Callable[[ClusterView], Any] = nothing
) -> tuple[Desk, Brains]:
    """Four GPUs; job 0 runs on GPU 0, jobs 1 to 5 wait."""
    desk = Desk((4,))
    for job in range(6):
        desk.submit(job)
    desk.run(0, [(0, [0])])
    return desk, Brains(Scripted(act), keep or make_policy("fifo"), Scripted(fallback, "fallback"))


def moved(desk: Desk) -> list[tuple[EventKind, int]]:
    """What the last round has journalled, but for its reasons."""
    return [event for event in said(desk.journal[-1]) if event[0] != K.WHY]


def once(desk: Desk, brains: Brains, **more: Any) -> Round:
    """One round, its events applied."""
    result = run_round(desk.state, brains, "memo", desk.t, seed=7, **more)
    if len(result.events):
        desk.apply(result.events)
    return result


def test_a_round_decides_and_changes_nothing_by_itself() -> None:
    desk, brains = office()
    before = desk.state.digest()
    result = run_round(desk.state, brains, "memo", 3 * US, seed=7)
    assert desk.state.digest() == before
    assert (
        said(result.events) == [(K.START_REQUESTED, 1), (K.ROUND, 0)] and result.events.records[:, c.E_T].tolist() == [3 * US] * 2
    )
    assert (result.wake_at_us, result.violation, len(result.requests)) == (99 * US, None, 1) and result.decide_ns > 0
    assert brains.policy.asked == [(3 * US, 7, "memo")] and brains.fallback.asked == []  # type: ignore[attr-defined]


def test_a_refused_plan_is_journalled_and_the_keep_policy_decides_that_round() -> None:
    desk, brains = office(bad)
    result = once(desk, brains)
    assert result.violation == Violation(V_GPU, 1, "a GPU is booked over its whole (or over the share limit) (job 1)")
    assert moved(desk) == [(K.REFUSED, 1)] + [(K.START_REQUESTED, job) for job in (1, 2, 3)]
    assert desk.journal[-1].records[0].tolist() == [0, K.REFUSED, 1, 0, V_GPU, 0, 0, 0]
    assert desk.journal[-1].texts == {0: result.violation.sentence}
    assert (result.wake_at_us, result.requests) == (NEVER, ()), "what the refused plan wished besides is refused too"
    assert desk.count("refused_in_row") == 1 and desk.count("rounds") == 0
    assert desk.phase(0) == Phase.RUNNING


def test_the_keep_policy_never_preempts_whatever_the_refused_plan_wanted() -> None:
    def grabs(view: ClusterView) -> Plan:
        draft = view.draft()
        draft.release(0)
        draft.release(5)
        return draft.plan()

    desk, brains = office(grabs, keep=make_policy("fifo-backfill"))
    result = once(desk, brains)
    assert result.violation is not None and result.violation.code == V_NOT_PLACED
    assert K.STOP_REQUESTED not in desk.journal[-1].kinds() and desk.phase(0) == Phase.RUNNING and desk.get(0, "placed") == 1


def test_three_refusals_in_a_row_put_the_fallback_in_charge() -> None:
    desk, brains = office(bad)
    assert REFUSALS_MAX == 3
    for n in range(3):
        once(desk, brains)
        assert desk.count("refused_in_row") == n + 1 and brains.fallback.asked == []  # type: ignore[attr-defined]
    result = once(desk, brains)
    assert result.violation is None and len(brains.fallback.asked) == 1 and len(brains.policy.asked) == 3  # type: ignore[attr-defined]


def test_a_good_plan_that_moves_something_ends_the_row() -> None:
    desk, brains = office(bad, keep=Scripted(nothing, "keep"))
    once(desk, brains)
    once(desk, brains)
    once(desk, Brains(Scripted(good), brains.keep, brains.fallback))
    assert desk.count("refused_in_row") == 0
    once(desk, brains)
    once(desk, brains)
    assert desk.count("refused_in_row") == 2 and brains.fallback.asked == []  # type: ignore[attr-defined]


def test_a_good_plan_that_moves_nothing_ends_the_row_too() -> None:
    desk, brains = office(bad, keep=Scripted(nothing, "keep"))
    once(desk, brains)
    once(desk, brains)
    once(desk, Brains(Scripted(nothing), brains.keep, brains.fallback))
    assert desk.count("refused_in_row") == 0


def test_the_fallback_stays_in_charge() -> None:
    desk, brains = office(bad, keep=Scripted(nothing, "keep"), fallback=good)
    for _ in range(5):
        once(desk, brains)
    assert len(brains.policy.asked) == 3 and len(brains.fallback.asked) == 2  # type: ignore[attr-defined]


def test_a_refused_fallback_is_refused_like_any_other() -> None:
    desk, brains = office(bad, keep=Scripted(nothing, "keep"), fallback=bad)
    for n in range(5):
        result = once(desk, brains)
        assert result.violation is not None and desk.count("refused_in_row") == n + 1
    assert len(brains.fallback.asked) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (raises, "scripted raised ZeroDivisionError: no jobs"),
        (lambda view: None, "scripted raised AttributeError"),
        (lambda view: [], "scripted raised AttributeError"),
        (lambda view: view.draft(), "scripted raised "),
        (lambda view: view.job("x"), "scripted raised KeyError"),
    ],
)
def test_a_policy_that_fails_counts_as_refused(act: Callable[[ClusterView], Any], sentence: str) -> None:
    desk, brains = office(act)
    result = once(desk, brains)
    assert result.violation is not None and (result.violation.code, result.violation.job) == (RAISED, -1)
    assert result.violation.sentence.startswith(sentence)
    assert desk.journal[-1].records[0].tolist() == [0, K.REFUSED, 0, 0, RAISED, 0, 0, 0]
    assert moved(desk)[1:] == [(K.START_REQUESTED, job) for job in (1, 2, 3)]


def test_strict_lets_the_policys_exception_through() -> None:
    desk, brains = office(raises)
    with pytest.raises(ZeroDivisionError):
        run_round(desk.state, brains, None, 0, strict=True)
    desk, brains = office(bad)
    assert run_round(desk.state, brains, None, 0, strict=True).violation is not None, "a refusal is no exception"


def test_a_keep_policy_whose_own_plan_does_not_hold_is_our_error() -> None:
    desk, brains = office(bad, keep=Scripted(bad, "keep"))
    with pytest.raises(AssertionError, match="the keep policy's own plan does not hold"):
        run_round(desk.state, brains, None, 0)


def test_the_keep_policys_wake_counts_in_a_refused_round() -> None:
    desk, brains = office(bad, keep=Scripted(good, "keep"))
    assert once(desk, brains).wake_at_us == 99 * US


def test_capabilities_reach_the_check() -> None:
    desk = Desk((2,))
    desk.submit(0, gpu_task=500, share=1)

    def part(view: ClusterView) -> Plan:
        draft = view.draft()
        draft.place(0, [0], [[0]], milli=500)
        return draft.plan()

    brains = Brains(Scripted(part), Scripted(nothing), Scripted(nothing))
    assert run_round(desk.state, brains, None, 0, capabilities=Capabilities(fractional_gpus=False)).violation is not None
    assert run_round(desk.state, brains, None, 0).violation is None


def test_a_violation_names_the_job() -> None:
    desk, _ = office()
    draft = desk.draft()
    draft.why(2, Reason.NO_ROOM)
    draft.release(77)
    found = check(desk.state, draft.plan(), Capabilities())
    assert found == Violation(V_ENDED, -1, "the job has ended or is unknown (job -1)")


# -- when the next round is due ------------------------------------------------------------------------------------
R = 60
NEXT = [  # interval, last round, next event, wake -> due
    # nothing will happen
    (R, -1, NEVER, NEVER, NEVER),
    (0, -1, NEVER, NEVER, NEVER),
    (R, 120, NEVER, NEVER, NEVER),
    # before the first round
    (R, -1, 0, NEVER, 0),
    (R, -1, 1, NEVER, 60),
    (R, -1, 60, NEVER, 60),
    (R, -1, 61, NEVER, 120),
    (0, -1, 0, NEVER, 0),
    (0, -1, 17, NEVER, 17),
    # an event
    (R, 0, 1, NEVER, 60),
    (R, 0, 59, NEVER, 60),
    (R, 60, 60, NEVER, 120),  # at the instant of the last round: it was not seen by it
    (R, 60, 61, NEVER, 120),
    (R, 60, 600, NEVER, 600),
    (R, 60, 601, NEVER, 660),
    # wake now, that is at the next possible round
    (R, 60, NEVER, 60, 120),
    (R, 60, NEVER, 0, 120),
    (R, 60, 1000, 60, 120),
    # wake later
    (R, 60, NEVER, 180, 180),
    (R, 60, NEVER, 181, 240),
    (R, 60, 200, 100, 120),
    (R, 60, 100, 200, 120),
    (R, 60, 500, 121, 180),
    # with no interval: at the event, at wake exactly, never again at a wake that is over
    (0, 60, 61, NEVER, 61),
    (0, 60, 60, NEVER, 60),
    (0, 60, NEVER, 75, 75),
    (0, 60, 70, 75, 70),
    (0, 60, 80, 75, 75),
    (0, 60, 80, 60, 80),
    (0, 60, NEVER, 60, NEVER),
    (0, 60, NEVER, 59, NEVER),
    (R, -1, -5, NEVER, 0),
]


@pytest.mark.parametrize(("interval", "last", "event", "wake", "due"), NEXT)
def test_when_the_next_round_is_due(interval: int, last: int, event: int, wake: int, due: int) -> None:
    assert next_round_us(interval, last, event, wake) == due


def test_rounds_lie_on_the_grid_and_after_the_last() -> None:
    for last in (-1, 0, 60, 120):
        for event in range(0, 300, 7):
            for wake in (0, 59, 60, 61, 150, NEVER):
                due = next_round_us(R, last, event, wake)
                assert due % R == 0 and due > last and (due >= min(event, wake) or wake < 0)
                assert due - R < min(event, wake) or due - R <= last


# A plan that comes late


def later(plan: Callable[[Desk], Plan], then: Callable[[Desk], object]) -> tuple[Desk, Plan, int]:
    """A plan made on a copy of the office's state, and what is left of it after `then`; and how many entries were dropped."""
    desk, _ = office()
    twin, desk.state = desk.state, desk.state.copy()
    made = plan(desk)
    desk.state = twin
    then(desk)
    return desk, made, refresh(desk.state, made, Capabilities())


def left(plan: Plan) -> list[tuple[int, int]]:
    return [(int(entry[c.O_OP]), int(entry[c.O_JOB])) for entry in plan.overrides]


def test_a_late_plan_is_what_it_was_if_nothing_has_happened() -> None:
    def plan(desk: Desk) -> Plan:
        draft = desk.draft()
        draft.place(1, [0], [[1]])
        draft.place(2, [0], [[2]])
        return draft.plan()

    _, made, dropped = later(plan, lambda desk: None)
    assert left(made) == [(c.Op.PLACE, 1), (c.Op.PLACE, 2)] and dropped == 0


def test_an_entry_whose_place_is_taken_meanwhile_is_dropped_alone() -> None:
    def plan(desk: Desk) -> Plan:
        draft = desk.draft()
        for number in (1, 2, 3):
            draft.place(number, [0], [[number]])
        return draft.plan()

    desk, made, dropped = later(plan, lambda desk: desk.run(5, [(0, [2])]))
    assert left(made) == [(c.Op.PLACE, 1), (c.Op.PLACE, 3)] and dropped == 1
    assert check(desk.state, made, Capabilities()) is None


@pytest.mark.parametrize("starts", [2, 5])
def test_nobody_is_stopped_for_a_job_that_has_started_elsewhere_meanwhile(starts: int) -> None:
    def plan(desk: Desk) -> Plan:
        draft = desk.draft()
        draft.release(0)
        draft.place(2, [0], [[0]])
        return draft.plan()

    _, made, dropped = later(plan, lambda desk: desk.run(starts, [(0, [3])]))
    assert (left(made), dropped) == (([], 2) if starts == 2 else ([(c.Op.RELEASE, 0), (c.Op.PLACE, 2)], 0))


def test_a_release_stays_where_others_have_come_to_the_node() -> None:
    """Job 1 may need the cpus of job 0, whose GPU was for job 2."""

    def plan(desk: Desk) -> Plan:
        draft = desk.draft()
        draft.release(0)
        draft.place(1, [0], [[1]])
        draft.place(2, [0], [[0]])
        return draft.plan()

    _, made, dropped = later(plan, lambda desk: desk.run(2, [(0, [3])]))
    assert left(made) == [(c.Op.RELEASE, 0), (c.Op.PLACE, 1)] and dropped == 1
