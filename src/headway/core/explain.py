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
