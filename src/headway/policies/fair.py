"""Fair shares by progressive filling: `drf` (Ghodsi et al., NSDI 2011) and `borg-fair`, hierarchical weighted max-min fairness.

Both rank jobs: as if the cluster were empty, whoever has least takes the next job of his, again and again. The order depends on
the live jobs alone and not on who is running, so jobs do not change places back and forth. `docs/semantics.md` §4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import UP
from headway.core.columns import Name
from headway.core.explain import Explanation, Term
from headway.core.jit import kernel
from headway.core.plan import Plan
from headway.core.view import ClusterView
from headway.policies.classic import place_by_rank
from headway.policies.explain import WAITING_ONLY, by_rows, row_of
from headway.policies.params import Common, param
from headway.policies.ranks import KEY_BITS, PRIORITY_TOP
from headway.policies.simple import UNFIT, place_in_order

DEPTH_MAX = 16
"""Levels of queues; a deeper one counts as a child of the root."""


@kernel
def demands(rows: Ints, J: Table, T: Table, need: Table) -> None:
    """What whole jobs ask for, by row of the job table: thousandths of (whole) GPUs, thousandths of cpus, bytes of memory."""
    for i in range(rows.shape[0]):
        row = rows[i]
        need[0, row] = J[c.J_GPUS, row] * c.WHOLE
        need[1, row] = J[c.J_WORKERS, row] * J[c.J_CPU_TASK, row] + J[c.J_SERVERS, row] * J[c.J_SERVER_CPU, row]
        need[2, row] = J[c.J_WORKERS, row] * J[c.J_MEM_TASK, row] + J[c.J_SERVERS, row] * J[c.J_SERVER_MEM, row]
        if J[c.J_DETAILS, row]:
            need[1, row], need[2, row] = 0, 0
            for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
                need[1, row] += T[c.T_CPU, t]
                need[2, row] += T[c.T_MEM, t]


@kernel
def comes_before(one: int, other: int, group: Ints, share: Floats, head: Ints, J: Table) -> bool:
    """Whether a party takes its next job before another: by group, its job's priority, its share, its job's arrival."""
    if group[one] != group[other]:
        return bool(group[one] < group[other])
    if J[c.J_PRIORITY, head[one]] != J[c.J_PRIORITY, head[other]]:
        return bool(J[c.J_PRIORITY, head[one]] > J[c.J_PRIORITY, head[other]])
    if share[one] != share[other]:
        return bool(share[one] < share[other])
    return bool(head[one] < head[other])


@kernel
def sift(heap: Ints, size: int, at: int, group: Ints, share: Floats, head: Ints, J: Table) -> None:
    """Let the party at place `at` of the heap sink to where it belongs."""
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and comes_before(heap[child + 1], heap[child], group, share, head, J):
            child += 1
        if not comes_before(heap[child], heap[at], group, share, head, J):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@kernel
def share_of(party: int, resources: int, used: Table, total: Ints, weight: Ints) -> float:
    """The dominant share of a party, divided by its weight."""
    share = 0.0
    for r in range(resources):
        if total[r] > 0:
            share = max(share, float(used[r, party]) / float(total[r]))
    return share / float(weight[party])


@kernel
def fill(
    order: Ints, party: Ints, group: Ints, weight: Ints, resources: int, need: Table, total: Ints, used: Table,
    follows: Ints, head: Ints, share: Floats, heap: Ints, J: Table, filled: Ints,
) -> None:  # fmt: skip
    """Progressive filling within each group of parties. `order`: job rows, each party's in the order in which it takes them;
    `party` and `follows`: one per row of the job table; the arrays up to `heap`: one per party. The rows by group, in the order
    in which they were taken, go to `filled`."""
    for e in range(head.shape[0]):
        head[e] = -1
    for i in range(order.shape[0] - 1, -1, -1):
        row = order[i]
        follows[row] = head[party[row]]
        head[party[row]] = row
    size = 0
    for e in range(head.shape[0]):
        if head[e] >= 0:
            share[e] = share_of(e, resources, used, total, weight)
            heap[size] = e
            size += 1
    for at in range(size // 2 - 1, -1, -1):
        sift(heap, size, at, group, share, head, J)
    for i in range(order.shape[0]):
        e = heap[0]
        row = head[e]
        filled[i] = row
        for r in range(resources):
            used[r, e] += need[r, row]
        share[e] = share_of(e, resources, used, total, weight)
        head[e] = follows[row]
        if head[e] < 0:
            size -= 1
            heap[0] = heap[size]
        sift(heap, size, 0, group, share, head, J)


@dataclass(frozen=True, slots=True)
class Parties:
    """Who shares: for each row of the job table its party, and the steps by which parties become parties of a larger group.

    A step has for each party its group (the party of the next step) and its weight.
    """

    of_row: Ints
    steps: tuple[tuple[Ints, Ints], ...]


def parties(view: ClusterView, over: str) -> Parties:
    """The parties of `over`: users and jobs are all in one group and weigh the same; queues have weights and parents."""
    J, Q = view.state.J, view.state.Q
    rows = int(view.state.C[c.C_ROWS])
    if over == "queue":
        return Parties(J[c.J_QUEUE, :rows], queue_steps(Q))
    of_row: Ints = J[c.J_USER, :rows] if over == "user" else np.arange(rows, dtype=np.int64)
    count = int(of_row.max(initial=0)) + 1
    return Parties(of_row, ((np.zeros(count, np.int64), np.ones(count, np.int64)),))


def queue_steps(Q: Table) -> tuple[tuple[Ints, Ints], ...]:
    """From the deepest queues up: parties are 0 … n − 1, the jobs in a queue itself, and n … 2n − 1, a queue with all below it.

    The jobs that are in a queue with children itself count as one more child, of weight 1.
    """
    count = Q.shape[1]
    parent, weights = Q[c.Q_PARENT], np.maximum(Q[c.Q_WEIGHT], 1)
    inner = np.isin(np.arange(count), parent)
    depth = np.zeros(count, np.int64)
    for _ in range(DEPTH_MAX):
        deeper = np.where(parent >= 0, depth[parent] + 1, 0)
        depth = np.minimum(deeper, DEPTH_MAX)
    if not inner.any():
        return ((np.zeros(count, np.int64), weights.copy()),)
    itself = np.arange(2 * count)
    up = np.concatenate([np.where(inner, count + np.arange(count), parent + count), parent + count])
    up[:count][~inner & (parent < 0)] = up[count:][parent < 0] = 2 * count
    level = np.concatenate([np.where(inner, depth + 1, depth), depth])
    weight = np.concatenate([np.where(inner, 1, weights), weights]).astype(np.int64)
    steps = []
    for d in range(int(level.max()), -1, -1):
        steps.append((np.where(level == d, up, itself) if d else np.where(level == 0, 0, itself), weight))
    return tuple((group.astype(np.int64), weight) for group, weight in steps)


def fair_order(view: ClusterView, over: str, resources: int, preempt: bool) -> Ints:
    """Rows of the waiting (with `preempt`: and placed) jobs in the order in which progressive filling reaches them.

    Without preemption what placed jobs have counts from the start. Waiting jobs that their owners hold take nothing, and come
    last.
    """
    st = view.state
    rows = view.ranked_rows() if preempt else view.waiting_rows()
    idle = (st.J[c.J_HOLD, rows] != 0) & (st.J[c.J_PLACED, rows] == 0)
    rows, held = rows[~idle], rows[idle]
    placed = np.zeros(0, np.int64) if preempt else view.placed_rows()
    who = parties(view, over)
    width = int(st.C[c.C_ROWS])
    need = np.zeros((3, width), np.int64)
    demands(rows, st.J, st.T, need)
    demands(placed, st.J, st.T, need)
    up = st.N[:, st.N[c.N_PHASE] == UP]
    total = up[[c.N_GPUS, c.N_CPU_MAX, c.N_MEM_MAX]].sum(axis=1) * np.array([c.WHOLE, 1, 1])
    order: Ints = rows[np.argsort(-st.J[c.J_PRIORITY, rows], kind="stable")]
    party = who.of_row.copy()
    for group, weight in who.steps:
        count = len(group)
        used = np.zeros((3, count), np.int64)
        for r in range(resources):
            np.add.at(used[r], party[placed], need[r, placed])
        filled = np.zeros(len(order), np.int64)
        fill(
            order, party, group, weight, resources, need, total, used, np.zeros(width, np.int64), np.zeros(count, np.int64),
            np.zeros(count), np.zeros(count, np.int64), st.J, filled,
        )  # fmt: skip
        order, party = filled, group[party]
    return np.concatenate((order, held))


def decide_fairly(view: ClusterView, over: str, resources: int, params: FairParams) -> Plan:
    """A plan by the fair order, with or without preemption."""
    if view.waiting == 0:
        return view.draft().plan()
    order = fair_order(view, over, resources, params.preempt)
    if not params.preempt:
        return place_in_order(view, order, params.kernel, params.unfit, params.depth, params.sharing).plan()
    J, s = view.state.J, view.state.scratch
    above = (PRIORITY_TOP - J[c.J_PRIORITY, order]) << KEY_BITS
    keys = (above | np.arange(len(order))) << c.ROW_BITS | order
    stays: NDArray[np.bool_] = J[c.J_PLACED, order] == 1
    placed, waiting = keys[stays], keys[~stays]
    s.keys_placed[: len(placed)], s.keys_waiting[: len(waiting)] = placed, waiting
    return place_by_rank(view, len(placed), len(waiting), params.kernel, sharing=params.sharing).plan()


@dataclass(frozen=True, slots=True)
class FairParams(Common):
    over: str = param("user", "who shares", choices=("user", "queue"))
    preempt: bool = param(True, "stop jobs of those who have more than their share")
    unfit: str = param("backfill", "what follows when the next job does not fit (preempt=false)", choices=UNFIT)
    depth: int = param(1000, "how many jobs behind the head are looked at (preempt=false, backfill)")


@dataclass(frozen=True, slots=True)
class Drf:
    """Dominant resource fairness over users or queues: equal shares of what each needs most of GPUs, cpus and memory."""

    params: FairParams
    name: str = "drf"

    @property
    def strict(self) -> bool:
        """Whether a job that does not fit holds up those behind it."""
        return not self.params.preempt and self.params.unfit == "block"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        return decide_fairly(view, self.params.over, 3, self.params)

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        return explain_fairly(view, self.params.over, 3, self.params, job)


@dataclass(frozen=True, slots=True)
class BorgFairParams(FairParams):
    over: str = param("queue", "who shares", choices=("queue", "user", "job"))


@dataclass(frozen=True, slots=True)
class BorgFair:
    """Weighted max-min fairness of GPUs over a tree of queues (or over users or jobs); what one leaves the others may borrow."""

    params: BorgFairParams
    name: str = "borg-fair"

    @property
    def strict(self) -> bool:
        """Whether a job that does not fit holds up those behind it."""
        return not self.params.preempt and self.params.unfit == "block"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        return decide_fairly(view, self.params.over, 1, self.params)

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        return explain_fairly(view, self.params.over, 1, self.params, job)


def explain_fairly(view: ClusterView, over: str, resources: int, params: FairParams, job: int) -> Explanation:
    """Where a job stands in the fair order, and the share that its party has when its turn comes."""
    st, row = view.state, row_of(view, job)
    order = fair_order(view, over, resources, params.preempt)
    of_row = parties(view, over).of_row
    party = int(of_row[row])
    mine = order[of_row[order] == party]
    before = mine[: np.flatnonzero(mine == row)[0]] if row in mine else mine
    placed = view.placed_rows()
    has = placed[of_row[placed] == party]
    weight = max(int(st.Q[c.Q_WEIGHT, party]), 1) if over == "queue" else 1
    turn = party_share(view, before if params.preempt else np.concatenate((has, before)), resources)
    name = f"job {job}" if over == "job" else st.name(Name.USER if over == "user" else Name.QUEUE, party)
    of = "largest of GPUs, cpus, memory" if resources == 3 else "part of the GPUs"
    terms = (
        Term("ahead of it", float(len(before)), "jobs", f"of the same {over} ({name}), taken before it"),
        Term("share", turn, "", f"of {name} when its turn comes ({of}), ÷ weight: least first", 1 / weight, turn / weight),
        Term("weight", float(weight), "", f"of {name}"),
        Term("share now", party_share(view, has, resources), "", f"what the placed jobs of {name} have"),
    )
    words = f"progressive filling over each {over}: who has least takes its next job"
    return by_rows(view, order, job, terms, words if params.preempt else f"{words}; {WAITING_ONLY}", stops=params.preempt)


def party_share(view: ClusterView, rows: Ints, resources: int) -> float:
    """The dominant share of a party of weight 1 that has these jobs (rows)."""
    st = view.state
    need = np.zeros((3, int(st.C[c.C_ROWS])), np.int64)
    demands(rows, st.J, st.T, need)
    up = st.N[:, st.N[c.N_PHASE] == UP]
    total = up[[c.N_GPUS, c.N_CPU_MAX, c.N_MEM_MAX]].sum(axis=1) * np.array([c.WHOLE, 1, 1])
    return share_of(0, resources, need.sum(axis=1, keepdims=True), total, np.ones(1, np.int64))
