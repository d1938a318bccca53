"""What a policy is: a function of the view (and of a memo folded from the journal) that returns a plan."""

from __future__ import annotations

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


def remembers(policy: Policy) -> TypeGuard[RemembersPolicy]:
    """Whether a policy has a memo."""
    return hasattr(policy, "fold")


def asks(policy: Policy) -> bool:
    """Whether a policy requests estimates."""
    return bool(getattr(policy, "asks", False))
