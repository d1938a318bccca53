"""How often a network decides as its teacher: both are asked on the same view, the teacher's plan is carried out.

A decision is a job that the teacher starts or stops in a round, and the nodes that it gives one that both start. The network
agrees if it does the same to that job, or does it to another that is as good to the teacher: ties are no disagreement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import Op
from headway.core.plan import Plan
from headway.core.policy import Memo
from headway.core.view import ClusterView
from headway.policies.mlfs.net import Net
from headway.policies.mlfs.policy import MlfH
from headway.policies.mlfs.rl import Decision
from headway.policies.mlfs.rl_teach import mlf_rl, watch


@dataclass(slots=True)
class Agreement:
    """Counts of the teacher's decisions, and of those that the network takes too."""

    who: int = 0
    who_agreed: int = 0
    where: int = 0
    where_agreed: int = 0

    def add(self, other: Agreement) -> None:
        """Add another's counts."""
        self.who, self.who_agreed = self.who + other.who, self.who_agreed + other.who_agreed
        self.where, self.where_agreed = self.where + other.where, self.where_agreed + other.where_agreed

    @property
    def frac(self) -> float | None:
        """The share of decisions agreed on; None of nothing."""
        total = self.who + self.where
        return (self.who_agreed + self.where_agreed) / total if total else None

    def to_json(self) -> dict[str, Any]:
        """Shares and counts."""
        return {
            "agreement": self.frac, "who": self.who_agreed / self.who if self.who else None, "who_decisions": self.who,
            "where": self.where_agreed / self.where if self.where else None, "where_decisions": self.where,
        }  # fmt: skip


class Compared:
    """The teacher, and what the network would have done in its place."""

    def __init__(self, teacher: MlfH, net: Net, *, sharing: bool) -> None:
        self.teacher = watch(teacher, self._told)
        self.pupil = mlf_rl(net, sharing=sharing)
        self.name, self.agreement = teacher.name, Agreement()
        self._rank: tuple[Decision, Floats] | None = None

    def _told(self, decision: Decision, utilities: Floats) -> None:
        if decision.head == "rank":
            self._rank = decision, np.array(utilities, np.float64)

    def decide(self, view: ClusterView, memo: Memo) -> Plan:
        """The teacher's plan."""
        rows = view.ranked_rows()
        theirs = self.pupil.decide(view, None)
        others = theirs.overrides.copy(), theirs.places.copy()
        self._rank = None
        plan = self.teacher.decide(view, memo)
        utility = np.full(view.state.J.shape[1], np.nan)
        told = self._rank
        if told is not None and len(told[1]) == len(rows):
            utility[rows] = told[1]
        placed = view.state.J[c.J_PLACED] == 1
        compare(self.agreement, (plan.overrides, plan.places), others, placed, utility)
        return plan


def compare(count: Agreement, ours: tuple[Any, Any], theirs: tuple[Any, Any], placed: Any, utility: Floats) -> None:
    """Count how the second of two plans (overrides, places) agrees with the first. `placed`: rows that hold a place before;
    `utility`: the teacher's, by row, NaN: not told."""
    starts, stops = _changes(ours[0], placed)
    their_starts, their_stops = _changes(theirs[0], placed)
    for mine, others in ((starts, their_starts), (stops, their_stops)):
        both = np.intersect1d(mine, others)
        missed, instead = np.setdiff1d(mine, both), np.setdiff1d(others, both)
        count.who += len(mine)
        count.who_agreed += len(both) + _equals(utility[missed], utility[instead])
    for row in np.intersect1d(starts, their_starts).tolist():
        mine, others = _nodes(ours, row), _nodes(theirs, row)
        count.where += 1
        count.where_agreed += int(np.array_equal(mine, others))


def _changes(overrides: Any, placed: Any) -> tuple[Ints, Ints]:
    """Rows that get a place and had none, and rows that lose theirs."""
    rows, op = overrides[:, c.O_ROW], overrides[:, c.O_OP]
    return np.unique(rows[(op == Op.PLACE) & ~placed[rows]]), np.unique(rows[(op == Op.RELEASE) & placed[rows]])


def _nodes(plan: tuple[Any, Any], row: int) -> Ints:
    """The nodes of a job's tasks, in order: which task is on which node makes no difference."""
    overrides, places = plan
    at = overrides[(overrides[:, c.O_ROW] == row) & (overrides[:, c.O_OP] == Op.PLACE)][-1]
    found: Ints = np.sort(places[at[c.O_TASK0] : at[c.O_TASK0] + at[c.O_TASKS], 0])
    return found


def _equals(missed: Floats, instead: Floats) -> int:
    """How many of the first can be paired with one of the second of the same utility."""
    known = np.isfinite(missed)
    values, counts = np.unique(missed[known], return_counts=True)
    others, other_counts = np.unique(instead[np.isfinite(instead)], return_counts=True)
    _, a, b = np.intersect1d(values, others, return_indices=True)
    return int(np.minimum(counts[a], other_counts[b]).sum())
