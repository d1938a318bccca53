"""What a policy is: a function of the view (and of a memo folded from the journal) that returns a plan."""

from __future__ import annotations

import zlib
from typing import Any, Protocol, TypeGuard

from headway.core.events import EventBatch
from headway.core.plan import Plan
from headway.core.view import ClusterView

Memo = Any
"""A serialisable value (numbers, strings, lists, dicts, NumPy arrays), or None."""


class Policy(Protocol):
    """`decide` reads no clock and does no I/O: the same view and memo give the same plan.

    A policy that requests estimates has an attribute `asks = True`: observations are kept for such a policy only. One under
    which a job that does not fit holds up those behind it has `strict = True`: nobody is let past while it thinks.
    """

    @property
    def name(self) -> str:
        """The registry's name."""
        ...

    def decide(self, view: ClusterView, memo: Memo) -> Plan:
        """The plan for this round."""
        ...


class RemembersPolicy(Policy, Protocol):
    """A policy with a memo."""

    def start(self) -> Memo:
        """The memo before any event."""
        ...

    def fold(self, memo: Memo, events: EventBatch) -> Memo:
        """The memo after the events since the last round. Pure: it returns a new memo or the same one."""
        ...


class PolicyFault(Exception):
    """Raised by `decide`: the policy gives this round up, and says why in one line (a number that is not finite, features beyond
    what it was trained on). Its teacher decides the round instead; without one it counts as any other exception."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TaughtPolicy(Policy, Protocol):
    """A policy with a teacher, who decides the rounds for which it has no good plan, and all of them while it does worse.

    The teacher decides by the policy's own memo, unless the policy has a method `teacher_memo(memo)` that says by which. So the
    policy's `fold` must do what a teacher with a memo needs.
    """

    @property
    def teacher(self) -> Policy:
        """Who is trusted."""
        ...


def teacher_of(policy: Policy) -> Policy | None:
    """The teacher that a policy declares, if any."""
    found: Policy | None = getattr(policy, "teacher", None)
    return found


def teacher_memo(policy: Policy, memo: Memo) -> Memo:
    """The memo by which the teacher of a policy decides; None for one without."""
    teacher = teacher_of(policy)
    if teacher is None or not remembers(teacher):
        return None
    return policy.teacher_memo(memo) if hasattr(policy, "teacher_memo") else memo


def mark_of(policy: Policy) -> int:
    """The number by which events name a guarded policy."""
    return zlib.crc32(policy.name.encode())


def remembers(policy: Policy) -> TypeGuard[RemembersPolicy]:
    """Whether a policy has a memo."""
    return hasattr(policy, "fold")


def asks(policy: Policy) -> bool:
    """Whether a policy requests estimates."""
    return bool(getattr(policy, "asks", False))
