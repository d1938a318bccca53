"""`mlf-h:placement=task`: tasks, not jobs, are ranked and given places one by one, as the paper reads (MLFS §3.3.2).

A gang starts when all of its tasks have places; until then those that have one keep it, in the policy's memo, and nobody else
gets it. So jobs that hold places may wait for each other for ever. The detector sees that nobody who has a place can make room
for jobs that hold some, takes the places of the lowest of these until another can start, and starts that one; each time counts as
a deadlock. Servers come before all workers (the paper gives them the highest priority), of servers those of the most urgent job.
Leaving tasks of a running job find other hosts together, when the highest of them has its turn, as with `placement=job`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import OP_PLACE, OP_WHY, R_DEADLOCK, R_GANG_INCOMPLETE, R_NO_ROOM, SERVER, STOPPING, UP
from headway.core.columns import ROW_MASK, EventKind, Phase, Reason
from headway.core.events import EventBatch
from headway.core.explain import Explanation, Term
from headway.core.jit import ctz, inner, kernel
from headway.core.plan import Plan
from headway.core.state import State
from headway.core.view import ClusterView
from headway.place.assign import M_OVERRIDES, M_TASKS, add_override, free_max
from headway.place.gang import A_CPU, A_MASK, A_MEM
from headway.place.passes import may_start, within_limit
from headway.place.quotas import has_quotas
from headway.policies.explain import row_of
from headway.policies.mlfs import priority as p
from headway.policies.mlfs.heuristic import (
    H_FRAC,
    SCORES_PER_UNIT,
    by_priority,
    free_milli,
    mlf_h_leave,
    move_tasks,
    queue_keys,
    shares,
)
from headway.policies.mlfs.hosts import L_BOOKED, add_volumes, book, forget_volumes, load, unbook
from headway.policies.mlfs.nearest import FLOATS, SIZES, columns_of, ideal_host, index_nodes, renew_node
from headway.policies.mlfs.policy import MlfH
from headway.policies.ranks import KEY_MAX, pack

SERVERS_FIRST = 1000
"""Keys below are those of servers, the more urgent their job the lower."""
B_NODE, B_MASK = 0, 1
"""Columns of the places that tasks of waiting jobs have, by task row: the node (−1: none) and the GPUs."""
W_HAVE, W_STATE, W_LOST, W_OPEN = range(4)
"""Columns over rows of waiting jobs: tasks with a place; what is told of the job; places taken in a deadlock; may be placed."""
QUIET, CHANGED, STARTS = 0, 1, 2


# -- the memo -----------------------------------------------------------------------------------------------------------
ENDS = (
    EventKind.START_REQUESTED, EventKind.WANTED, EventKind.FINISHED, EventKind.CANCEL_REQUESTED, EventKind.REJECTED,
    EventKind.HOLD_SET, EventKind.WHY,
)  # fmt: skip
"""After these a job has no places one by one any more, but for a WHY that brings them."""
LOSSES = (EventKind.NODE_DOWN, EventKind.NODE_DRAINING)
KINDS = np.array((*ENDS, *LOSSES), np.int64)


def fold(memo: Any, events: EventBatch) -> Any:
    """The places that tasks of waiting jobs have: job → three numbers a task, as the journal has them (node −1: none)."""
    records = events.records
    which = np.flatnonzero(np.isin(records[:, c.E_KIND], KINDS))
    if not len(which):
        return memo
    held, ends = dict(memo), np.cumsum(records[:, c.E_POOL])
    for i in which.tolist():
        _, kind, subject, _, a, _, _, size = records[i].tolist()
        if kind in LOSSES:
            held = {job: without_node(places, subject) for job, places in held.items()}
        elif kind == EventKind.WHY and a == Reason.GANG_INCOMPLETE and size:
            held[subject] = events.pool[ends[i] - size : ends[i]].tolist()
        else:
            held.pop(subject, None)
    return held


def without_node(places: list[int], node: int) -> list[int]:
    """The places of a job without those on a node."""
    if node not in places[:: c.PLACE]:
        return places
    left = np.array(places, np.int64).reshape(-1, c.PLACE)
    left[left[:, 0] == node] = (-1, 0, 0)
    kept: list[int] = left.ravel().tolist()
    return kept


def booked(st: State, memo: Any) -> Table:
    """The memo as a table (node and mask by task row) of the jobs that still wait as they did."""
    found: Table = np.zeros((2, int(st.C[c.C_TASKS]) + 1), np.int64)
    found[B_NODE] = -1
    for job, places in (memo or {}).items():
        row = st.row(job)
        if row is None or st.J[c.J_PHASE, row] != Phase.QUEUED or st.J[c.J_PLACED, row]:
            continue
        first, count = int(st.J[c.J_TASK0, row]), int(st.J[c.J_TASKS, row])
        if len(places) == c.PLACE * count:
            found[:, first : first + count] = np.array(places, np.int64).reshape(-1, c.PLACE)[:, :2].T
    return found


# -- one task -----------------------------------------------------------------------------------------------------------
@inner
def milli_of(row: int, t: int, sharing: bool, J: Table, T: Table) -> int:
    """What a task books on each of its GPUs."""
    if T[c.T_GPU, t] == 0:
        return 0
    return int(T[c.T_GPU, t] if shares(row, t, sharing, J, T) else c.WHOLE)


@kernel
def take(
    sign: int, t: int, sharing: bool, room: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, U: Table, K: Table,
    L: Table, F: Floats, S: Table, B: Table,
) -> None:  # fmt: skip
    """Book the place of a task that waits, or give it back."""
    row, node, mask = T[c.T_JOB, t], B[B_NODE, t], B[B_MASK, t]
    each = milli_of(row, t, sharing, J, T)
    load(sign, node, mask, T[c.T_GPU, t], T[c.T_CPU, t], T[c.T_MEM, t], T[c.T_NET, t], N, U, L)
    if sign > 0:
        book(node, mask, each, T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)
    else:
        unbook(node, mask, each, T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)
        B[B_NODE, t], B[B_MASK, t] = -1, 0
    renew_node(node, room, N, C, A, U, K, L, F, S)


@kernel
def still_there(t: int, sharing: bool, J: Table, T: Table, N: Table, C: Ints, A: Table, L: Table, B: Table) -> bool:
    """Whether a task can keep the place that it has: its node is up, and nobody else has been given what it needs there."""
    row, node, mask = T[c.T_JOB, t], B[B_NODE, t], B[B_MASK, t]
    if node >= C[c.C_NODES] or N[c.N_PHASE, node] != UP or A[A_CPU, node] < T[c.T_CPU, t] or A[A_MEM, node] < T[c.T_MEM, t]:
        return False
    each = milli_of(row, t, sharing, J, T)
    while mask != 0:
        local = ctz(mask)
        mask &= mask - 1
        there = L[L_BOOKED, N[c.N_GPU0, node] + local]
        if there == 0 and (A[A_MASK, node] >> local) & 1 == 0:
            return False
        if there != 0 and there + each > C[c.C_SHARE_LIMIT]:
            return False
    return True


@kernel
def find_place(
    t: int, sharing: bool, bandwidth: bool, h_r: float, room: int, J: Table, T: Table, N: Table, C: Ints,
    A: Table, AB: Table, U: Table, K: Table, L: Table, F: Floats, S: Table, touched: Ints, B: Table,
) -> bool:  # fmt: skip
    """Give one task the ideal host, if there is one, beside the tasks of its job that have theirs."""
    row = T[c.T_JOB, t]
    first = J[c.J_TASK0, row]
    talks = add_volumes(row, t - first, J, B[B_NODE], first, K, touched) if bandwidth else 0
    node, mask = ideal_host(
        T[c.T_GPU, t], T[c.T_CPU, t], T[c.T_MEM, t], T[c.T_NET, t], J[c.J_KIND_MASK, row], -1, False,
        shares(row, t, sharing, J, T), bandwidth, h_r, room, N, C, A, U, K, L, touched, talks, F, S,
    )  # fmt: skip
    forget_volumes(K, touched, talks)
    if node < 0:
        return False
    B[B_NODE, t], B[B_MASK, t] = node, mask
    take(1, t, sharing, room, J, T, N, C, A, AB, U, K, L, F, S, B)
    return True


# -- jobs ---------------------------------------------------------------------------------------------------------------
@kernel
def give_up(
    row: int, sharing: bool, room: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, U: Table, K: Table, L: Table,
    F: Floats, S: Table, B: Table, W: Table,
) -> None:  # fmt: skip
    """Take all places of a job's tasks."""
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        if B[B_NODE, t] >= 0:
            take(-1, t, sharing, room, J, T, N, C, A, AB, U, K, L, F, S, B)
    W[W_HAVE, row] = 0


@kernel
def complete(
    row: int, sharing: bool, bandwidth: bool, h_r: float, room: int, J: Table, T: Table, N: Table, C: Ints,
    A: Table, AB: Table, U: Table, K: Table, L: Table, F: Floats, S: Table, touched: Ints, P: Floats, order: Ints, B: Table,
    W: Table,
) -> bool:  # fmt: skip
    """Give every task of a job that has no place one, or none of them."""
    count, new = by_priority(row, J, T, P, order), 0
    for i in range(count):
        t = order[i]
        if B[B_NODE, t] >= 0:
            continue
        if not find_place(t, sharing, bandwidth, h_r, room, J, T, N, C, A, AB, U, K, L, F, S, touched, B):
            for k in range(new):
                take(-1, order[k], sharing, room, J, T, N, C, A, AB, U, K, L, F, S, B)
            return False
        order[new] = t
        new += 1
    W[W_HAVE, row] = count
    return True


@kernel
def tell_places(
    row: int, op: int, reason: int, sharing: bool, J: Table, T: Table, B: Table, O: Table, OT: Table, M: Ints
) -> None:
    """Write the places of a job's tasks into the plan: to start there, or to keep them."""
    first, tasks, start = J[c.J_TASK0, row], J[c.J_TASKS, row], M[M_TASKS]
    for k in range(tasks):
        t, o = first + k, start + k
        OT[o, 0], OT[o, 1], OT[o, 2] = B[B_NODE, t], B[B_MASK, t], milli_of(row, t, sharing, J, T) if B[B_NODE, t] >= 0 else 0
    add_override(O, M, J, row, op, reason, start, tasks)
    M[M_TASKS] = start + tasks


@kernel
def keep_places(
    now: int, sharing: bool, room: int, J: Table, T: Table, N: Table, Q: Table, C: Ints, planned: Ints, A: Table, AB: Table,
    U: Table, K: Table, L: Table, F: Floats, S: Table, B: Table, W: Table, M: Ints,
) -> None:  # fmt: skip
    """Book again what the tasks of waiting jobs have, as far as it is still there and their queues' limits allow it."""
    for q in range(planned.shape[0]):
        planned[q] = 0
    for row in range(C[c.C_ROWS]):
        W[W_HAVE, row], W[W_STATE, row], W[W_LOST, row], W[W_OPEN, row] = 0, QUIET, 0, 0
        if J[c.J_PHASE, row] > STOPPING or not may_start(J, row, now, M):
            continue
        W[W_OPEN, row] = 1
        within = within_limit(J, Q, planned, row)
        for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
            if B[B_NODE, t] < 0:
                continue
            if within and still_there(t, sharing, J, T, N, C, A, L, B):
                take(1, t, sharing, room, J, T, N, C, A, AB, U, K, L, F, S, B)
                W[W_HAVE, row] += 1
            else:
                B[B_NODE, t], B[B_MASK, t] = -1, 0
                W[W_STATE, row] = CHANGED
        if W[W_HAVE, row]:
            planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE


@kernel
def task_keys(
    jobs: Ints, count: int, J: Table, T: Table, P: Floats, leaving: Ints, fate: Ints, B: Table, W: Table, keys: Ints
) -> int:
    """A key for every task without a place of the waiting jobs among `jobs`, and one for each job with leaving tasks (that of the
    highest of these); returns how many. A key holds the task's row."""
    made = 0
    for i in range(count):
        row = jobs[i] & ROW_MASK
        first = J[c.J_TASK0, row]
        best = -1
        for t in range(first, first + J[c.J_TASKS, row]):
            if leaving[row]:
                if fate[t] and (best < 0 or P[t] > P[best]):
                    best = t
            elif W[W_OPEN, row] and B[B_NODE, t] < 0:
                keys[made] = task_key(row, t, J, T, P)
                made += 1
        if best >= 0:
            keys[made] = task_key(row, best, J, T, P)
            made += 1
    return made


@kernel
def task_key(row: int, t: int, J: Table, T: Table, P: Floats) -> int:
    """A sortable number: the job's class, servers by urgency, workers by priority from the highest down, then the task's row."""
    if T[c.T_ROLE, t] == SERVER:
        return int(pack(J[c.J_PRIORITY, row], SERVERS_FIRST - min(max(J[c.J_URGENCY, row], 0), SERVERS_FIRST), t))
    steps = int(min(max(P[t], 0.0) * SCORES_PER_UNIT, float(KEY_MAX - SERVERS_FIRST - 1)))
    return int(pack(J[c.J_PRIORITY, row], KEY_MAX - steps, t))


@kernel
def by_task(
    keys: Ints, count: int, sharing: bool, bandwidth: bool, h_r: float, room: int, J: Table, T: Table, N: Table, Q: Table,
    C: Ints, planned: Ints, A: Table, AB: Table, U: Table, K: Table, L: Table, F: Floats, S: Table, touched: Ints, P: Floats,
    fate: Ints, order: Ints, nodes: Ints, leaving: Ints, B: Table, W: Table, O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """The allocation loop (§3.3.2) over sorted keys of tasks. Returns how many jobs start."""
    free, starts = free_milli(sharing, room, N, C, A, L), 0
    for i in range(count):
        t = keys[i] & ROW_MASK
        row = T[c.T_JOB, t]
        if leaving[row]:
            move_tasks(
                row, sharing, bandwidth, h_r, room, J, T, N, C, A, AB, U, K, L, F, S, touched, P, fate, order, nodes, O, OT, M
            )  # fmt: skip
            free = free_milli(sharing, room, N, C, A, L)
            continue
        if T[c.T_GPU, t] > free or (W[W_HAVE, row] == 0 and not within_limit(J, Q, planned, row)):
            continue
        if not find_place(t, sharing, bandwidth, h_r, room, J, T, N, C, A, AB, U, K, L, F, S, touched, B):
            continue
        free -= T[c.T_GPU, t]
        if W[W_HAVE, row] == 0:
            planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
        W[W_HAVE, row] += 1
        W[W_STATE, row] = CHANGED
        if W[W_HAVE, row] == J[c.J_TASKS, row]:
            W[W_STATE, row] = STARTS
            tell_places(row, OP_PLACE, 0, sharing, J, T, B, O, OT, M)
            starts += 1
    return starts


# -- deadlocks ----------------------------------------------------------------------------------------------------------
@kernel
def kinds_in_use(T: Table, N: Table, C: Ints, O: Table, OT: Table, M: Ints) -> int:
    """The kinds of the nodes that somebody has a place on, and will leave one day: as a mask."""
    kinds = 0
    for t in range(C[c.C_TASKS]):
        if T[c.T_JOB, t] >= 0:
            if T[c.T_NODE, t] >= 0:
                kinds |= 1 << N[c.N_KIND, T[c.T_NODE, t]]
            if T[c.T_HELD_NODE, t] >= 0:
                kinds |= 1 << N[c.N_KIND, T[c.T_HELD_NODE, t]]
    for i in range(M[M_OVERRIDES]):
        if O[i, c.O_OP] == OP_PLACE:
            for o in range(O[i, c.O_TASK0], O[i, c.O_TASK0] + O[i, c.O_TASKS]):
                kinds |= 1 << N[c.N_KIND, OT[o, 0]]
    return kinds


@kernel
def waits_in_vain(row: int, used: int, J: Table, T: Table) -> bool:
    """Whether nobody who has a place could make room for a job: no node that its tasks may use is in use (`used`: kinds)."""
    if used == 0:
        return True
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        if T[c.T_GPU, t] == 0 or J[c.J_KIND_MASK, row] & used:
            return False
    return True


@kernel
def let_through(
    jobs: Ints, count: int, detector: bool, sharing: bool, bandwidth: bool, h_r: float, room: int,
    J: Table, T: Table, N: Table, Q: Table, C: Ints, planned: Ints, A: Table, AB: Table, U: Table, K: Table, L: Table,
    F: Floats, S: Table, touched: Ints, P: Floats, order: Ints, B: Table, W: Table, O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """End a deadlock: of the waiting jobs in `jobs` (keys, best first) that wait in vain, take the places of the lowest until
    another can start. A job that no other holds up starts even if it asks for more than h_r. Returns the row of the job that
    starts, or −1; then nothing is said of it yet."""
    used, stuck, holders = kinds_in_use(T, N, C, O, OT, M), 0, 0
    for i in range(count):
        row = jobs[i] & ROW_MASK
        if W[W_OPEN, row] and W[W_STATE, row] != STARTS and waits_in_vain(row, used, J, T):
            order_of = jobs[i]
            jobs[i] = jobs[stuck]
            jobs[stuck] = order_of
            stuck += 1
            holders += int(W[W_HAVE, row] > 0)
    if holders > 1 and not detector:
        return -1
    left = holders
    for i in range(stuck - 1, -1, -1):
        if left <= 1:
            break
        victim = jobs[i] & ROW_MASK
        if W[W_HAVE, victim] == 0:
            continue
        W[W_LOST, victim] = W[W_HAVE, victim]
        give_up(victim, sharing, room, J, T, N, C, A, AB, U, K, L, F, S, B, W)
        left -= 1
        for k in range(i):
            row = jobs[k] & ROW_MASK
            if W[W_HAVE, row] and complete(
                row, sharing, bandwidth, h_r, room, J, T, N, C, A, AB, U, K, L, F, S, touched, P, order, B, W
            ):
                return int(row)
    if used:
        return -1
    for holds in range(1, -1, -1):  # one holder at most: who asks for more than h_r of a node starts when nobody else does
        for i in range(stuck):
            row = jobs[i] & ROW_MASK
            if int(W[W_HAVE, row] > 0) != holds or (not holds and not within_limit(J, Q, planned, row)):
                continue
            if complete(row, sharing, bandwidth, 1.0, room, J, T, N, C, A, AB, U, K, L, F, S, touched, P, order, B, W):
                return int(row)
            if holds and detector:  # it can start nowhere, so that it makes way for all others
                W[W_LOST, row] = W[W_HAVE, row]
                give_up(row, sharing, room, J, T, N, C, A, AB, U, K, L, F, S, B, W)
    return -1


@kernel
def tell(sharing: bool, J: Table, T: Table, C: Ints, AB: Table, B: Table, W: Table, O: Table, OT: Table, M: Ints) -> None:
    """Say of each job that goes on waiting what its tasks have, or why they have nothing, where that is news."""
    for row in range(C[c.C_ROWS]):
        if W[W_OPEN, row] == 0 or W[W_STATE, row] == STARTS:
            continue
        a, b = W[W_HAVE, row], J[c.J_TASKS, row]
        if a:
            if W[W_STATE, row] == QUIET:
                continue
            tell_places(row, OP_WHY, R_GANG_INCOMPLETE, sharing, J, T, B, O, OT, M)
        elif W[W_LOST, row]:
            a, b = W[W_LOST, row], 0
            add_override(O, M, J, row, OP_WHY, R_DEADLOCK, 0, 0)
        elif W[W_STATE, row] == CHANGED or J[c.J_WHY, row] != R_NO_ROOM:
            a, b = J[c.J_GPUS, row], free_max(AB, C, -1)
            add_override(O, M, J, row, OP_WHY, R_NO_ROOM, 0, 0)
        else:
            continue
        i = M[M_OVERRIDES] - 1
        O[i, c.O_A], O[i, c.O_B] = a, b


# -- the policy ---------------------------------------------------------------------------------------------------------
class TaskwiseMlfH(MlfH):
    """MLF-H that gives places task by task, with a memo of the places of gangs that are not complete."""

    __slots__ = ()

    def start(self) -> Any:
        return {}

    def fold(self, memo: Any, events: EventBatch) -> Any:
        return fold(memo, events)

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        st, q = view.state, self.params
        if has_quotas(st.Q):
            return super().decide(view, memo)
        draft = view.draft()
        s, rows, tasks, nodes = draft.scratch, int(st.C[c.C_ROWS]), int(st.C[c.C_TASKS]), st.N.shape[1]
        if view.waiting == 0 and not (q.migration and st.C[c.C_RUNNING]):
            return draft.plan()
        if tasks > ROW_MASK:
            raise ValueError(f"placement=task ranks at most {ROW_MASK} live tasks, here are {tasks}")
        ML, CP, P, top = np.empty(tasks), np.empty(tasks), np.empty(tasks), np.empty(rows)
        ints = np.empty((6, tasks + 1), np.int64)
        nexts, fate, pool, order, on, bounds = ints[0], ints[1], ints[2], ints[3], ints[4], ints[5]
        leaving, jobs, W = np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty((4, rows), np.int64)
        U, K, L = np.empty((4, nodes), np.int64), np.empty((4, nodes), np.int64), np.empty((3, st.G.shape[1]), np.int64)
        touched: Ints = np.empty(nodes + 1, np.int64)
        F, S = np.empty((FLOATS, columns_of(nodes))), np.empty((SIZES, columns_of(nodes)), np.int64)
        h_r = float(self.limits[H_FRAC])
        room = min(int(h_r * c.WHOLE), int(st.C[c.C_SHARE_LIMIT]))
        p.priorities(view.now_us, self.weights, st.J, st.T, st.C, ML, CP, bounds, P, top)
        mlf_h_leave(
            view.now_us, q.migration, q.sharing, q.bandwidth, self.limits, st.J, st.T, st.N, st.G, st.B, st.C, s.A, s.AB, U, K, L,
            nexts, touched, P, fate, pool, leaving,
        )  # fmt: skip
        B = booked(st, memo)
        index_nodes(room, st.N, st.C, s.A, U, K, L, F, S)
        keep_places(view.now_us, q.sharing, room, st.J, st.T, st.N, st.Q, st.C, s.planned, s.A, s.AB, U, K, L, F, S, B, W, s.M)
        count = queue_keys(st.J, st.T, st.C, top, P, leaving, fate, jobs)
        jobs[:count].sort()
        keys: Ints = np.empty(tasks + 1, np.int64)
        made = task_keys(jobs, count, st.J, st.T, P, leaving, fate, B, W, keys)
        keys[:made].sort()
        starts = by_task(
            keys, made, q.sharing, q.bandwidth, h_r, room, st.J, st.T, st.N, st.Q, st.C, s.planned, s.A, s.AB, U, K, L, F, S,
            touched, P, fate, order, on, leaving, B, W, s.O, s.OT, s.M,
        )  # fmt: skip
        if count:
            kept = B.copy(), W.copy()
            winner = let_through(
                jobs, count, q.detector, q.sharing, q.bandwidth, h_r, room, st.J, st.T, st.N, st.Q, st.C, s.planned, s.A, s.AB, U,
                K, L, F, S, touched, P, order, B, W, s.O, s.OT, s.M,
            )  # fmt: skip
            if winner < 0:
                B, W = kept
            else:
                reason = R_DEADLOCK if W[W_LOST].any() else 0
                tell_places(winner, OP_PLACE, reason, q.sharing, st.J, st.T, B, s.O, s.OT, s.M)
                W[W_STATE, winner] = STARTS
                starts += 1
        tell(q.sharing, st.J, st.T, st.C, s.AB, B, W, s.O, s.OT, s.M)
        if starts or st.C[c.C_RUNNING]:
            draft.wake_at_us(view.now_us)
        return draft.plan()

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        """As with `placement=job`, by the job's highest task that is no server, and how many of its tasks have places."""
        explained = super().explain(view, memo, job)
        places = (memo or {}).get(job, [])
        have = sum(node >= 0 for node in places[:: c.PLACE])
        of = f"of its {int(view.state.J[c.J_TASKS, row_of(view, job)])} tasks; it starts when all have one"
        words = "task by task, servers first, then the highest P; a gang starts when all of its tasks have places"
        return replace(explained, terms=(*explained.terms, Term("places", float(have), "", of)), words=words)
