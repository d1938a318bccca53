"""A policy with a teacher: which rounds the teacher decides, what the journal says of them, and how the policy comes back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.dense import US, Desk
from tests.core.test_round import NEVER, Scripted, bad, good, nothing, once, raises

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.errors import UserError
from headway.core.events import EMPTY, EventBatch
from headway.core.plan import Plan
from headway.core.policy import PolicyFault, mark_of, teacher_memo
from headway.core.round import GAVE_UP, PROBATION_US, RAISED, REFUSALS_MAX, Brains, InCharge, in_charge, run_round
from headway.core.view import ClusterView
from headway.policies.registry import choose, make_policy
from headway.policies.taught import Taught
from headway.runtime.guard import GOOD_IN_ROW, judge, standing
from headway.sim.run import simulate
from headway.testing.builders import cluster, job, workload

K = EventKind


def gives_up(view: ClusterView) -> Plan:
    raise PolicyFault("the third output is NaN\nof layer 2")


def lesson(act: Any, teach: Any = good) -> tuple[Desk, Brains, Scripted, Scripted]:
    """Four GPUs, six jobs, one of which runs; a scripted policy and its scripted teacher."""
    desk = Desk((4,))
    for number in range(6):
        desk.submit(number)
    desk.run(0, [(0, [0])])
    pupil, teacher = Scripted(act, "pupil"), Scripted(teach, "teacher")
    pupil.teacher = teacher  # type: ignore[attr-defined]
    keep = make_policy("fifo-backfill")
    return desk, Brains(pupil, keep, keep), pupil, teacher


def starts(desk: Desk) -> list[int]:
    records = desk.journal[-1].records
    return records[records[:, c.E_KIND] == K.START_REQUESTED, c.E_ID].tolist()


@pytest.mark.parametrize(("act", "code"), [(gives_up, GAVE_UP), (raises, RAISED), (bad, None)])
def test_a_round_without_a_plan_of_the_policy_is_the_teachers(act: Any, code: int | None) -> None:
    desk, brains, pupil, teacher = lesson(act)
    result = once(desk, brains)
    assert result.violation is not None and (code is None or result.violation.code == code)
    record = desk.journal[-1].records[0]
    assert (record[c.E_KIND], record[c.E_B]) == (K.REFUSED, 1) and starts(desk) == [1]
    assert result.wake_at_us == 99 * US and len(result.requests) == 1, "the teacher's wishes count"
    assert K.ROUND not in desk.journal[-1].kinds() and desk.count("refused_in_row") == 1
    assert len(pupil.asked) == len(teacher.asked) == 1


def test_a_fault_says_its_reason_in_one_line() -> None:
    desk, brains, _, _ = lesson(gives_up)
    once(desk, brains)
    assert desk.journal[-1].texts == {0: "pupil gave the round up: the third output is NaN\\nof layer 2"}


def test_where_the_teacher_fails_too_keep_decides() -> None:
    desk, brains, _, _ = lesson(gives_up, bad)
    result = once(desk, brains)
    assert result.violation is not None and result.violation.code == GAVE_UP
    assert desk.journal[-1].records[0, c.E_B] == 0 and starts(desk) == [1, 2, 3]
    assert (result.wake_at_us, result.requests) == (NEVER, ())


def test_after_three_in_a_row_the_policy_is_on_probation_and_comes_back() -> None:
    desk, brains, pupil, teacher = lesson(gives_up, nothing)
    for _ in range(REFUSALS_MAX):
        once(desk, brains)
    for _ in range(4):
        result = once(desk, brains)
        assert result.violation is None and desk.count("refused_in_row") == REFUSALS_MAX
    assert (len(pupil.asked), len(teacher.asked)) == (3, 7)
    said = standing(desk.state, brains, desk.t + 100 * US)
    assert (said.who, said.decides) == (InCharge.TEACHER, teacher)
    assert said.why == "teacher decides for pupil: 3 plans in a row did not hold; it is asked again in 500 s"
    desk.t += PROBATION_US
    once(desk, brains)
    assert len(pupil.asked) == 4 and desk.count("refused_in_row") == 4, "once more, and no better"
    once(desk, brains)
    assert len(pupil.asked) == 4
    desk.t += PROBATION_US
    pupil.act = good
    once(desk, brains)
    assert len(pupil.asked) == 5 and desk.count("refused_in_row") == 0
    once(desk, brains)
    assert len(pupil.asked) == 6 and standing(desk.state, brains, desk.t).why == ""


def test_strict_does_not_raise_a_fault_that_a_teacher_covers() -> None:
    desk, brains, _, _ = lesson(gives_up)
    assert run_round(desk.state, brains, None, 0, strict=True).violation is not None
    alone = Brains(Scripted(gives_up), brains.keep, brains.fallback)
    with pytest.raises(PolicyFault):
        run_round(desk.state, alone, None, 0, strict=True)
    found = run_round(desk.state, alone, None, 0)
    assert found.violation is not None and found.violation.code == GAVE_UP
    desk, brains, _, _ = lesson(raises, raises)
    with pytest.raises(ZeroDivisionError):
        run_round(desk.state, brains, None, 0, strict=True)


# -- the guard ------------------------------------------------------------------------------------------------------
def tell(desk: Desk, brains: Brains, mine: float, teachers: float) -> str:
    """A comparison's rewards, judged and journalled."""
    from headway.runtime.guard import guarded_event

    found = judge(desk.state, brains.policy, mine, teachers)
    desk.apply(guarded_event(brains.policy, found, mine, teachers, desk.t))
    return found.why


def test_the_guard_has_hysteresis() -> None:
    desk, brains, pupil, teacher = lesson(good)
    assert GOOD_IN_ROW == 2
    who = []
    for mine, teachers in ((1.0, 1.0), (1.0, 1.049), (1.0, 1.051), (1.0, 1.0), (1.0, 1.2), (1.0, 0.5), (2.0, 2.0), (1.0, 1.0)):
        desk.t += US
        tell(desk, brains, mine, teachers)
        who.append(in_charge(desk.state, brains, desk.t).value)
    assert who == ["policy", "policy", "teacher", "teacher", "teacher", "teacher", "policy", "policy"]
    assert standing(desk.state, brains, desk.t).who is InCharge.POLICY
    assert not pupil.asked and not teacher.asked


def test_what_the_guard_says() -> None:
    desk, brains, _, teacher = lesson(good)
    assert tell(desk, brains, 0.5, 0.51) == "pupil is foretold a reward of 0.500, teacher of 0.510: pupil decides"
    desk.t += 7 * US
    why = tell(desk, brains, 0.5, 0.6)
    assert why == "pupil is foretold a reward of 0.500, teacher of 0.600: over 5% better, so teacher decides"
    at = desk.t
    desk.t += 3 * US
    tell(desk, brains, 0.5, 0.7)
    said = standing(desk.state, brains, desk.t)
    assert (said.decides, said.since_us) == (teacher, at), "since the first of them"
    assert said.why == "teacher decides for pupil: in the last comparison its reward was 0.700, that of pupil 0.500"
    assert tell(desk, brains, 0.7, 0.7).endswith("once more, and pupil decides again")
    assert tell(desk, brains, 0.7, 0.7).endswith("pupil decides again")


def test_rewards_below_zero_and_of_zero() -> None:
    desk, brains, _, _ = lesson(good)
    assert not judge(desk.state, brains.policy, -1.0, -0.96).teacher and judge(desk.state, brains.policy, -1.0, -0.9).teacher
    assert not judge(desk.state, brains.policy, 0.0, 0.0).teacher and judge(desk.state, brains.policy, 0.0, 1e-9).teacher


def test_under_the_guard_the_policy_is_not_asked_and_another_policy_is_not_guarded() -> None:
    desk, brains, pupil, teacher = lesson(good)
    tell(desk, brains, 0.5, 1.0)
    once(desk, brains)
    assert (len(pupil.asked), len(teacher.asked), starts(desk)) == (0, 1, [1])
    other = Scripted(good, "other")
    other.teacher = teacher  # type: ignore[attr-defined]
    once(desk, Brains(other, brains.keep, brains.fallback))
    assert len(other.asked) == 1
    assert not judge(desk.state, other, 1.0, 1.0).teacher, "it has a row of its own"


def test_the_guard_is_in_the_state_and_in_its_digest() -> None:
    desk, brains, _, _ = lesson(good)
    before = desk.state.digest()
    tell(desk, brains, 0.5, 1.0)
    twin = desk.state.copy()
    assert in_charge(twin, brains, desk.t) is InCharge.TEACHER and twin.digest() == desk.state.digest() != before
    record = desk.journal[-1].records[0].tolist()
    assert record == [desk.t, K.GUARDED, mark_of(brains.policy), 0, 1, 500_000_000, 1_000_000_000, 0]


def test_a_comparison_changes_nothing() -> None:
    import numpy as np

    desk, _, _, _ = lesson(good)
    before = desk.state.copy()
    desk.apply(EventBatch(np.array([[desk.t, K.SHADOWED, 0, 0, 0, 5, 1, 0]]), EMPTY.pool, {0: "{}"}))
    assert (before.J == desk.state.J).all() and desk.count("sequence") == before.C[c.C_SEQUENCE] + 1


# -- memos, wrappers and the simulator ------------------------------------------------------------------------------
def test_whose_memo_the_teacher_decides_by() -> None:
    plain, remembering = make_policy("fifo"), make_policy("gandiva")
    assert teacher_memo(Taught(plain, plain), ["a", "b"]) is None
    assert teacher_memo(Taught(plain, remembering), ["a", "b"]) == "b"
    pupil = Scripted(good)
    pupil.teacher = remembering  # type: ignore[attr-defined]
    assert teacher_memo(pupil, "own") == "own"
    memo = Taught(plain, remembering).start()
    assert memo[0] is None and memo[1] is not None


def test_load_control_stands_beside_the_teacher_too() -> None:
    from headway.policies.factories import beside_mlf_c

    both: Any = beside_mlf_c(Taught(make_policy("fifo"), make_policy("mlf-h")), {})
    assert both.teacher.name == "mlf-h+mlf-c" and both.teacher == both.teacher
    assert choose("fifo+mlf-c").policy.teacher is None  # type: ignore[attr-defined]


class Faulty:
    """SRTF that has no plan in most rounds."""

    name = "faulty"
    asks = True

    def __init__(self, teacher: str, every: int) -> None:
        self.inner, self.teacher, self.every, self.rounds = make_policy("srtf"), make_policy(teacher), every, 0

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        self.rounds += 1
        if self.rounds % self.every:
            raise PolicyFault("features beyond the trained range")
        return self.inner.decide(view, memo)

    def start(self) -> Any:
        return self.teacher.start() if hasattr(self.teacher, "start") else None

    def fold(self, memo: Any, events: EventBatch) -> Any:
        return self.teacher.fold(memo, events) if hasattr(self.teacher, "fold") else None


@pytest.mark.parametrize("teacher", ["fifo", "mlf-h", "gandiva:slice=40"])
def test_a_policy_that_always_faults_is_its_teacher_in_the_simulator(teacher: str) -> None:
    load = workload([job(f"j{i}", gpus=1 + i % 3, work_s=30 + 17 * i % 90, submit_s=7 * i) for i in range(14)])
    where = cluster((2, 2))

    def placed(policy: Any) -> list[list[int]]:
        journal = simulate(load, where, policy, interval_s=10, keep_journal=True, skip=False).journal
        assert journal is not None
        R = journal.records
        return R[np.isin(R[:, c.E_KIND], (K.START_REQUESTED, K.STOP_REQUESTED)), :5].tolist()

    import numpy as np

    faulty = Faulty(teacher, 10**9)
    assert placed(faulty) == placed(make_policy(teacher))
    assert faulty.rounds < 30, "it is on probation most of the time"


def test_one_that_faults_at_times_still_ends_every_job() -> None:
    load = workload([job(f"j{i}", gpus=1 + i % 3, work_s=30 + 17 * i % 90, submit_s=7 * i) for i in range(14)])
    outcome = simulate(load, cluster((2, 2)), Faulty("fifo", 2), interval_s=10)
    assert outcome.metrics.summary(4).finished == 14 and outcome.refused > 3


def test_a_fault_is_no_error_of_the_user() -> None:
    assert not issubclass(PolicyFault, UserError)
