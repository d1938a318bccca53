"""The guard of a policy that has a teacher: who decides by what forked simulations say, and how people are told.

**The rule.** Where the teacher's reward is more than WORSE_FRAC better than the policy's, the teacher decides from then on; the
policy takes over again once it was not that much worse in GOOD_IN_ROW comparisons in a row. Each comparison is a `GUARDED` event,
which the state folds: so a new controller goes on with it. What else hands rounds over to the teacher is in `core.round`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.events import EMPTY, EventBatch
from headway.core.policy import Policy, mark_of, teacher_of
from headway.core.round import PROBATION_US, REFUSALS_MAX, Brains, InCharge, in_charge
from headway.core.state import State

WORSE_FRAC = 0.05
GOOD_IN_ROW = 2
NANO = 1e9


@dataclass(frozen=True, slots=True)
class Judgement:
    """Who decides after a comparison, and why. `good`: comparisons in a row in which the policy was good."""

    teacher: bool
    good: int
    why: str


def judge(state: State, policy: Policy, mine: float, teachers: float) -> Judgement:
    """What a comparison comes to: the policy's reward and its teacher's."""
    guarded = bool(state.C.item(c.C_GUARD_OF) == mark_of(policy))
    before, good = bool(guarded and state.C.item(c.C_GUARD)), state.C.item(c.C_GUARD_GOOD) if guarded else 0
    name, teacher = policy.name, teacher_of(policy)
    assert teacher is not None
    worse = teachers - mine > WORSE_FRAC * abs(mine)
    good = 0 if worse else min(good + 1, GOOD_IN_ROW)
    rewards = f"a reward of {mine:.3f}, {teacher.name} of {teachers:.3f}"
    if worse:
        return Judgement(True, 0, f"{name} is foretold {rewards}: over {WORSE_FRAC:.0%} better, so {teacher.name} decides")
    if before and good < GOOD_IN_ROW:
        return Judgement(True, good, f"{name} is foretold {rewards}: once more, and {name} decides again")
    return Judgement(False, good, f"{name} is foretold {rewards}: {name} decides{' again' if before else ''}")


def guarded_event(policy: Policy, found: Judgement, mine: float, teachers: float, now_us: int) -> EventBatch:
    """A judgement as an event."""
    record = [
        now_us, EventKind.GUARDED, mark_of(policy), found.good, int(found.teacher), round(mine * NANO), round(teachers * NANO), 0,
    ]  # fmt: skip
    return EventBatch(np.array([record], np.int64), EMPTY.pool, {0: found.why})


@dataclass(frozen=True, slots=True)
class Standing:
    """Who decides now."""

    who: InCharge
    decides: Policy
    why: str
    """One sentence; empty: the policy decides, as it should."""
    since_us: int | None


def standing(state: State, brains: Brains, now_us: int) -> Standing:
    """Who decides now, and why it is not the policy."""
    who, policy, teacher = in_charge(state, brains, now_us), brains.policy, teacher_of(brains.policy)
    if who is InCharge.POLICY:
        return Standing(who, policy, "", None)
    C = state.C
    if who is InCharge.FALLBACK:
        why = f"{brains.fallback.name} decides: {REFUSALS_MAX} plans of {policy.name} in a row were refused"
        return Standing(who, brains.fallback, why, None)
    assert teacher is not None
    stands = f"{teacher.name} decides for {policy.name}"
    if C.item(c.C_GUARD) and C.item(c.C_GUARD_OF) == mark_of(policy):
        mine, teachers = C.item(c.C_GUARD_REWARD) / NANO, C.item(c.C_GUARD_TEACHER) / NANO
        why = f"{stands}: in the last comparison its reward was {teachers:.3f}, that of {policy.name} {mine:.3f}"
        return Standing(who, teacher, why, C.item(c.C_GUARD_AT))
    at = C.item(c.C_REFUSED_AT)
    left_s = (at + PROBATION_US - now_us) / 1e6
    why = f"{stands}: {C.item(c.C_REFUSED_IN_ROW)} plans in a row did not hold; it is asked again in {left_s:.0f} s"
    return Standing(who, teacher, why, at)
