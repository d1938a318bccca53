"""Orders that need no more than a key: `sjf`, `edf`, `random`, and passes without preemption over any order
(`docs/semantics.md` §4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import STOPPING
from headway.core.columns import ROW_MASK
from headway.core.explain import Explanation, Term
from headway.core.jit import kernel
from headway.core.plan import Draft, Plan
from headway.core.view import ClusterView
from headway.place.passes import as_they_fit, in_order
from headway.place.quotas import has_quotas
from headway.policies.classic import (
    SRTF_UNIT_US,
    US,
    after_claims,
    backfill,
    place_by_rank,
    remaining_order,
    remaining_terms,
)
from headway.policies.explain import WAITING_ONLY, by_keys, by_rows, own_key, row_of, seconds, sorted_keys
from headway.policies.params import Common, param
from headway.policies.ranks import pack, remaining_keys

UNFIT = ("backfill", "block", "skip")
DEADLINE_UNIT_US = 10_000
"""Deadlines closer than this rank as equal (10 ms)."""


def place_in_order(view: ClusterView, order: Ints, kernel: int, unfit: str, depth: int, sharing: bool) -> Draft:
    """Place waiting jobs (rows) in order without stopping anybody; `unfit` says what follows when one does not fit."""
    draft = view.draft()
    s, st = draft.scratch, view.state
    if unfit == "backfill":
        backfill(view, draft, order, kernel, depth, sharing=sharing)
        return draft
    if has_quotas(st.Q):
        order = after_claims(view, draft, order, kernel, sharing=sharing)
    if unfit == "skip":
        as_they_fit(
            order, len(order), kernel, sharing, view.now_us, st.J, st.T, st.N, st.G, st.Q, st.B, st.C, s.planned, s.A, s.AB,
            s.GB, s.out, s.O, s.OT, s.M,
        )  # fmt: skip
    elif len(order):
        in_order(
            order, len(order), kernel, sharing, view.now_us, st.J, st.T, st.N, st.G, st.Q, st.B, st.C, s.planned, s.A, s.AB, s.GB,
            s.out, s.O, s.OT, s.M,
        )  # fmt: skip
    return draft


@dataclass(frozen=True, slots=True)
class SjfParams(Common):
    unfit: str = param("backfill", "what follows when the shortest does not fit", choices=UNFIT)
    depth: int = param(1000, "how many jobs behind the head are looked at (backfill)")


@dataclass(frozen=True, slots=True)
class Sjf:
    """Shortest job first, by the users' estimates; nobody is stopped for another."""

    params: SjfParams
    name: str = "sjf"

    @property
    def strict(self) -> bool:
        """Whether a job that does not fit holds up those behind it."""
        return self.params.unfit == "block"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        st = view.state
        s = st.scratch
        _, waiting = remaining_keys(st.J, st.C, view.now_us, SRTF_UNIT_US, s.keys_placed, s.keys_waiting)
        order = np.sort(s.keys_waiting[:waiting]) & ROW_MASK
        p = self.params
        return place_in_order(view, order, p.kernel, p.unfit, p.depth, p.sharing).plan()

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        keys = remaining_order(view)
        waits = keys[view.state.J[c.J_PLACED, keys & ROW_MASK] == 0]
        words = f"the shortest estimate first; {WAITING_ONLY}"
        return by_keys(view, waits, job, remaining_terms(view, keys, job), words)


@kernel
def deadline_keys(J: Table, C: Ints, unit: int, placed: Ints, waiting: Ints) -> tuple[int, int]:
    """Keys by deadline, in units of `unit` µs; jobs without one come last. As `remaining_keys`."""
    p, w = 0, 0
    for row in range(C[c.C_ROWS]):
        phase = J[c.J_PHASE, row]
        if phase > STOPPING or (phase == STOPPING and J[c.J_PLACED, row] == 0):
            continue
        key = pack(J[c.J_PRIORITY, row], max(J[c.J_DEADLINE, row], 0) // unit, row)
        if J[c.J_PLACED, row]:
            placed[p] = key
            p += 1
        else:
            waiting[w] = key
            w += 1
    return p, w


@dataclass(frozen=True, slots=True)
class EdfParams(Common):
    preempt: bool = param(True, "stop jobs for those with an earlier deadline")
    unfit: str = param("backfill", "what follows when the first does not fit (preempt=false)", choices=UNFIT)
    depth: int = param(1000, "how many jobs behind the head are looked at (preempt=false, backfill)")


@dataclass(frozen=True, slots=True)
class Edf:
    """Earliest deadline first, with preemption; jobs without a deadline come last."""

    params: EdfParams
    name: str = "edf"

    @property
    def strict(self) -> bool:
        """Whether a job that does not fit holds up those behind it."""
        return not self.params.preempt and self.params.unfit == "block"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        st = view.state
        s = st.scratch
        placed, waiting = deadline_keys(st.J, st.C, DEADLINE_UNIT_US, s.keys_placed, s.keys_waiting)
        if self.params.preempt:
            return place_by_rank(view, placed, waiting, self.params.kernel, sharing=self.params.sharing).plan()
        order = np.sort(s.keys_waiting[:waiting]) & ROW_MASK
        p = self.params
        return place_in_order(view, order, p.kernel, p.unfit, p.depth, p.sharing).plan()

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        st, row = view.state, row_of(view, job)
        keys = sorted_keys(view, lambda placed, waiting: deadline_keys(st.J, st.C, DEADLINE_UNIT_US, placed, waiting))
        key, due = own_key(keys, row), seconds(int(st.J[c.J_DEADLINE, row]))
        at = None if key is None or due is None else key * DEADLINE_UNIT_US / US
        terms = (
            Term("deadline", at, "s", "in steps of 10 ms, as the policy compares it: earliest first; jobs without one last"),
            Term("slack", None if due is None else due - view.now_s, "s", "from now to the deadline; below 0: it has passed"),
        )
        if self.params.preempt:
            return by_keys(view, keys, job, terms, "the earliest deadline first", stops=True)
        waits = keys[st.J[c.J_PLACED, keys & ROW_MASK] == 0]
        return by_keys(view, waits, job, terms, f"the earliest deadline first; {WAITING_ONLY}")


@dataclass(frozen=True, slots=True)
class RandomParams(Common):
    seed: int = param(0, "another seed, another order", high=2**31)
    unfit: str = param("skip", "what follows when the next one does not fit", choices=UNFIT)
    depth: int = param(1000, "how many jobs behind the head are looked at (backfill)")


@dataclass(frozen=True, slots=True)
class Random:
    """A random order, the same in every round; a baseline that any policy should beat."""

    params: RandomParams
    name: str = "random"

    @property
    def strict(self) -> bool:
        """Whether a job that does not fit holds up those behind it."""
        return self.params.unfit == "block"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        order, p = self.order(view), self.params
        return place_in_order(view, order, p.kernel, p.unfit, p.depth, p.sharing).plan()

    def order(self, view: ClusterView) -> Ints:
        """Waiting rows by priority, then their draw."""
        rows, J = view.waiting_rows(), view.state.J
        order: Ints = rows[np.lexsort((draws(self.params.seed, J[:, rows]), -J[c.J_PRIORITY, rows]))]
        return order

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        row = row_of(view, job)
        draw = int(draws(self.params.seed, view.state.J[:, row : row + 1])[0]) / 2**64
        term = Term("draw", draw, "", "the job's random number, 0…1: least first")
        return by_rows(view, self.order(view), job, (term,), f"a random order, the same in every round; {WAITING_ONLY}")


def draws(seed: int, J: Table) -> NDArray[np.uint64]:
    """A number from 0 to 2^64 for each job (columns of the job table): a hash of the seed and of what was submitted when.

    Numbers of jobs are left out, so that it does not matter how they are counted; jobs that are equal in all this go by arrival.
    """
    z = np.full(J.shape[1], seed, np.uint64)
    for column in (c.J_SUBMITTED, c.J_ESTIMATE, c.J_GPU_TASK, c.J_DATA):
        z = mixed(z ^ J[column].astype(np.uint64))
    return z


def mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea and Flood 2014): one step."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
