"""Urgency budgets: how far the live jobs of one user may lie above the default urgency, added up (`docs/fairness.md`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headway.core import columns as c
from headway.core.columns import Name, Phase
from headway.core.model import DEFAULT_URGENCY, JobSpec
from headway.core.state import State
from headway.runtime.admit import Names


@dataclass(frozen=True, slots=True)
class UrgencyBudgets:
    """The points of each user; None: as many as he likes."""

    of_user: Mapping[str, int | None] = field(default_factory=dict)
    default: int | None = None
    """Of users who are not named."""

    def of(self, user: str) -> int | None:
        """The budget of one user."""
        return self.of_user.get(user, self.default)


UNLIMITED = UrgencyBudgets()


class Grants:
    """What is left to each user while jobs are taken in: the live jobs of `state`, and those granted since."""

    __slots__ = ("_budgets", "_names", "_spent", "_state")

    def __init__(self, budgets: UrgencyBudgets, state: State, names: Names) -> None:
        self._budgets, self._state, self._names = budgets, state, names
        self._spent: dict[str, int] = {}

    def urgency(self, spec: JobSpec) -> int:
        """What a new job may have of the urgency that it asks for."""
        budget = self._budgets.of(spec.user)
        if budget is None or spec.urgency <= DEFAULT_URGENCY:
            return spec.urgency
        if spec.user not in self._spent:
            self._spent[spec.user] = spent_points(self._state, self._names.known(Name.USER, spec.user))
        return min(spec.urgency, DEFAULT_URGENCY + max(budget - self._spent[spec.user], 0))

    def again(self, user: str, asked: int, has: int) -> int:
        """What a live job of the user that has this urgency may have of another one."""
        budget = self._budgets.of(user)
        if budget is None or asked <= DEFAULT_URGENCY:
            return asked
        others = spent_points(self._state, self._names.known(Name.USER, user)) - max(has - DEFAULT_URGENCY, 0)
        return min(asked, DEFAULT_URGENCY + max(budget - others, 0))

    def spend(self, user: str, urgency: int) -> None:
        """A new job of the user has got this urgency."""
        if user in self._spent:
            self._spent[user] += max(urgency - DEFAULT_URGENCY, 0)


def spent_points(state: State, user: int | None) -> int:
    """The points above the default urgency of a user's live jobs; jobs below it give nothing back."""
    if user is None:
        return 0
    J = state.J[:, : state.C[c.C_ROWS]]
    mine = (J[c.J_USER] == user) & (J[c.J_PHASE] <= Phase.STOPPING)
    return int(np.maximum(J[c.J_URGENCY, mine] - DEFAULT_URGENCY, 0).sum())
