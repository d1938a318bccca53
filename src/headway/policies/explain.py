"""What the `explain` methods of the policies share: an order out of keys or rows, and the terms that all have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import ROW_BITS, ROW_MASK
from headway.core.explain import Explanation, Term, ranked
from headway.core.units import US_PER_S
from headway.core.view import ClusterView
from headway.policies.ranks import KEY_MAX

SERVICE = "GPU·s"
WAITING_ONLY = "jobs that have a place keep it"


def row_of(view: ClusterView, job: int) -> int:
    """The row of a live job.

    Raises:
        KeyError: no such live job.
    """
    row = view.state.row(job)
    if row is None:
        raise KeyError(job)
    return row


def seconds(us: int) -> float | None:
    """µs as seconds; None for a time that does not come."""
    return None if us >= c.NEVER else us / US_PER_S


def sorted_keys(view: ClusterView, fill: Callable[[Ints, Ints], Sequence[int]]) -> Ints:
    """All rank keys in order. `fill` is a key kernel: it fills the arrays of placed and of waiting keys, and returns first how
    many of each there are."""
    placed, waiting = np.zeros((2, view.state.J.shape[1]), np.int64)
    counts = fill(placed, waiting)
    return np.sort(np.concatenate((placed[: counts[0]], waiting[: counts[1]])))


def own_key(keys: Ints, row: int) -> int | None:
    """The policy's own part of a row's rank key (`ranks.pack`); None if the row has no key or the largest one (no value)."""
    found = keys[(keys & ROW_MASK) == row]
    key = int(found[0]) >> ROW_BITS & KEY_MAX if len(found) else KEY_MAX
    return None if key == KEY_MAX else key


def common_terms(view: ClusterView, row: int) -> tuple[Term, Term]:
    """The job's class, which ranks before all else, and its arrival, which ranks last."""
    J = view.state.J
    return (
        Term("class", float(J[c.J_PRIORITY, row]), "", "the job's priority: a higher class goes before every lower one"),
        Term("arrival", J[c.J_SUBMITTED, row] / US_PER_S, "s", "submitted at; of equals, who came first goes first"),
    )


def by_rows(
    view: ClusterView, order: Ints, job: int, terms: Sequence[Term], words: str, *, stops: bool = False
) -> Explanation:  # fmt: skip
    """The explanation of a job in an order of rows; the common terms stand around those given. `stops`: see `Explanation`."""
    first, last = common_terms(view, row_of(view, job))
    return ranked(view.state.J[c.J_ID, order].tolist(), job, (first, *terms, last), words, stops=stops)


def by_keys(
    view: ClusterView, keys: Ints, job: int, terms: Sequence[Term], words: str, *, stops: bool = False
) -> Explanation:  # fmt: skip
    """As `by_rows`, by sorted rank keys."""
    return by_rows(view, keys & ROW_MASK, job, terms, words, stops=stops)


def by_arrival(view: ClusterView, job: int) -> Explanation:
    """For policies that do not explain themselves: the waiting jobs in the order of their arrival."""
    words = "this policy does not tell its order: the waiting jobs by arrival"
    return by_rows(view, view.waiting_rows(), job, (), words)
