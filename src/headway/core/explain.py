"""What a policy says of one job's standing: its place in the order and the numbers behind it.

A policy may have a method `explain(view, memo, job)`; it ranks by the same keys as `decide`. See `docs/why.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.policy import Memo, Policy
from headway.core.view import ClusterView


@dataclass(frozen=True, slots=True)
class Term:
    """One number of a priority. With a weight, `contribution` is weight × value, in the sum that `meaning` names."""

    name: str
    value: float | None
    """None: there is no such number (a job without a deadline)."""
    unit: str
    meaning: str
    weight: float | None = None
    contribution: float | None = None


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task of a job whose tasks have priorities of their own."""

    task: int
    role: str
    replica: int
    partition: int
    share: float
    """Its part of the job's parameters, 0…1."""
    ml: float
    computation: float
    priority: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a job stands in the order in which a policy serves jobs, and why."""

    order: tuple[int, ...]
    """The numbers of all jobs that the policy ranks in this round, whom it serves first in front."""
    rank: int | None
    """The job's place in `order`, from 1; None if it is not ranked (it keeps what it has)."""
    terms: tuple[Term, ...]
    words: str
    """The rule of the order, in one sentence."""
    tasks: tuple[TaskScore, ...] = ()
    stops: bool = False
    """Whether placed jobs further behind in the order are stopped for those before them."""


@dataclass(frozen=True, slots=True)
class StopPlan:
    """By which rule a job would end, and when."""

    rule: str
    """`fixed`, `optstop` or `accuracy`."""
    accuracy: float | None
    """The fitted accuracy that is enough; None: all iterations are run, or nothing is known yet."""
    units: float | None
    """The units done when its curve gets there; None: never, as far as is known."""


@dataclass(frozen=True, slots=True)
class StopOutlook:
    """What a policy that ends jobs early (MLF-C) makes of one job. Accuracies are those of its fitted curve, None without one."""

    chosen: str
    """The owner's rule."""
    allowed: tuple[str, ...]
    """The rules that may take its place under overload."""
    overloaded: bool
    load_frac: float
    """The mean load of the nodes, which means overload above `load_max_frac`; so do jobs that queue."""
    load_max_frac: float
    accuracy: float | None
    final: float | None
    """Predicted for the end of all iterations, ± half the width of its 90 % interval."""
    final_spread_90: float | None
    required: float | None
    required_probability: float | None
    out_of_reach: bool
    now: StopPlan
    """As the cluster is now."""
    overload: StopPlan
    """As it is, or would be, under overload."""
    done: bool
    """It has done enough, and is to end in this round."""


class ExplainsPolicy(Policy, Protocol):
    """A policy that can say why."""

    def explain(self, view: ClusterView, memo: Memo, job: int) -> Explanation:
        """The standing of a live job (by its number). As `decide`, it changes nothing and reads no clock."""
        ...


def ranked(
    order: Sequence[int], job: int, terms: Sequence[Term], words: str, tasks: Sequence[TaskScore] = (), *, stops: bool = False
) -> Explanation:  # fmt: skip
    """The explanation of a job, with its rank from the order."""
    numbers = tuple(order)
    return Explanation(numbers, numbers.index(job) + 1 if job in numbers else None, tuple(terms), words, tuple(tasks), stops)
