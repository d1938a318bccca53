"""A policy and its teacher: any two policies as one that is guarded (`docs/shadow.md`)."""

from __future__ import annotations

from typing import Any

from headway.core.events import EventBatch
from headway.core.explain import Explanation
from headway.core.plan import Plan
from headway.core.policy import Memo, Policy, asks, remembers
from headway.core.view import ClusterView
from headway.policies.explain import by_arrival


class Taught:
    """Decides as `policy` does; `teacher` stands in where it fails, and while it does worse. Each has a memo of its own."""

    def __init__(self, policy: Policy, teacher: Policy) -> None:
        self.policy, self.teacher = policy, teacher
        self.name = policy.name
        self.asks = asks(policy) or asks(teacher)
        self.strict: bool = getattr(policy, "strict", False)

    def __repr__(self) -> str:
        return f"Taught({self.policy!r}, {self.teacher!r})"

    def decide(self, view: ClusterView, memo: Memo) -> Plan:
        return self.policy.decide(view, memo[0])

    def explain(self, view: ClusterView, memo: Memo, job: int) -> Explanation:
        own: Any = self.policy
        if hasattr(own, "explain"):
            explained: Explanation = own.explain(view, memo[0], job)
            return explained
        return by_arrival(view, job)

    def start(self) -> Memo:
        return [one.start() if remembers(one) else None for one in (self.policy, self.teacher)]

    def fold(self, memo: Memo, events: EventBatch) -> Memo:
        both = zip((self.policy, self.teacher), memo, strict=True)
        return [one.fold(own, events) if remembers(one) else None for one, own in both]

    def teacher_memo(self, memo: Memo) -> Memo:
        return memo[1]
