"""How often a network decides as its teacher: both are asked on the same view, the teacher's plan is carried out.

A decision is a job that the teacher starts or stops in a round (*who*), and the node of a task, or the task that leaves one
(*server*, *move*). The network agrees if it does the same, or does it to a job, node or task that is as good to the teacher:
ties are no disagreement. Of jobs a tie is the same utility, of nodes and tasks the same features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import Op
from headway.core.plan import Plan
from headway.core.policy import Memo
from headway.core.view import ClusterView
from headway.policies.mlfs.net import Head, Net, scores
from headway.policies.mlfs.policy import MlfH
from headway.policies.mlfs.rl import Decision
from headway.policies.mlfs.rl_teach import mlf_rl, watch

KINDS = ("who", "server", "move", "fate")


@dataclass(slots=True)
class Agreement:
    """Counts, by kind, of the teacher's decisions, and of those that the network takes too.

    `fate` counts every placed or waiting job of a round in which some wait: whether it has a place afterwards. It is not among
    the decisions of `frac`, since most jobs stay as they are.
    """

    taken: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    agreed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def count(self, kind: str, taken: int, agreed: int) -> None:
        """Count some decisions."""
        self.taken[kind] += taken
        self.agreed[kind] += agreed

    def add(self, other: Agreement) -> None:
        """Add another's counts."""
        for kind in KINDS:
            self.count(kind, other.taken[kind], other.agreed[kind])

    @property
    def frac(self) -> float | None:
        """The mean share agreed on of the kinds of decision that there were; None of nothing. Of nodes there are fifty times as
        many choices as of jobs: counted together they would hide whom the network starts."""
        shares = [self.agreed[kind] / self.taken[kind] for kind in KINDS[:3] if self.taken[kind]]
        return sum(shares) / len(shares) if shares else None

    def to_json(self) -> dict[str, Any]:
        """Shares and counts."""
        shares = {kind: self.agreed[kind] / self.taken[kind] if self.taken[kind] else None for kind in KINDS}
        return {"agreement": self.frac, **shares, "decisions": dict(self.taken)}


class Compared:
    """The teacher, and what the network would have done in its place."""

    def __init__(self, teacher: MlfH, net: Net, *, sharing: bool) -> None:
        self.teacher = watch(teacher, self._told)
        self.net, self.pupil = net, mlf_rl(net, sharing=sharing)
        self.name, self.agreement = teacher.name, Agreement()
        self._rank: tuple[Decision, Floats] | None = None

    def _told(self, decision: Decision, utilities: Floats) -> None:
        if decision.head == "rank":
            self._rank = decision, np.array(utilities, np.float64)
        elif len(decision.X) > 1 and len(decision.order):
            head: Head = getattr(self.net, decision.head)
            mine, own = int(decision.order[0]), int(np.argmax(scores(head, decision.X)))
            self.agreement.count(decision.head, 1, int(np.array_equal(decision.X[mine], decision.X[own])))

    def decide(self, view: ClusterView, memo: Memo) -> Plan:
        """The teacher's plan."""
        rows, placed = view.ranked_rows(), view.state.J[c.J_PLACED] == 1
        theirs = self.pupil.decide(view, None)
        others = theirs.overrides.copy()
        self._rank = None
        plan = self.teacher.decide(view, memo)
        utility = np.full(view.state.J.shape[1], np.nan)
        told = self._rank
        if told is not None and len(told[1]) == len(rows):
            utility[rows] = told[1]
        if view.waiting:
            after = [_after(overrides, placed, rows) for overrides in (plan.overrides, others)]
            self.agreement.count("fate", len(rows), int((after[0] == after[1]).sum()))
        compare(self.agreement, plan.overrides, others, placed, utility)
        return plan


def compare(count: Agreement, ours: Any, theirs: Any, placed: Any, utility: Floats) -> None:
    """Count how the second of two plans (overrides) agrees with the first. `placed`: rows that hold a place before;
    `utility`: the teacher's, by row, NaN: not told."""
    starts, stops = _changes(ours, placed)
    their_starts, their_stops = _changes(theirs, placed)
    for mine, others in ((starts, their_starts), (stops, their_stops)):
        both = np.intersect1d(mine, others)
        missed, instead = np.setdiff1d(mine, both), np.setdiff1d(others, both)
        count.count("who", len(mine), len(both) + _equals(utility[missed], utility[instead]))


def _changes(overrides: Any, placed: Any) -> tuple[Ints, Ints]:
    """Rows that get a place and had none, and rows that lose theirs."""
    rows, op = overrides[:, c.O_ROW], overrides[:, c.O_OP]
    return np.unique(rows[(op == Op.PLACE) & ~placed[rows]]), np.unique(rows[(op == Op.RELEASE) & placed[rows]])


def _after(overrides: Any, placed: Any, rows: Ints) -> Any:
    """Which of some rows hold a place when the plan is carried out."""
    holds = placed.copy()
    holds[overrides[overrides[:, c.O_OP] == Op.PLACE, c.O_ROW]] = True
    holds[overrides[overrides[:, c.O_OP] == Op.RELEASE, c.O_ROW]] = False
    return holds[rows]


def _equals(missed: Floats, instead: Floats) -> int:
    """How many of the first can be paired with one of the second of the same utility."""
    known = np.isfinite(missed)
    values, counts = np.unique(missed[known], return_counts=True)
    others, other_counts = np.unique(instead[np.isfinite(instead)], return_counts=True)
    _, a, b = np.intersect1d(values, others, return_indices=True)
    return int(np.minimum(counts[a], other_counts[b]).sum())
