"""Queues with quotas: who is within its own takes back what others have borrowed, and a preemptive pass that keeps to that
(`docs/semantics.md` §4).

A queue *borrows* while its jobs have more GPUs than its quota (none: 0). A waiting job *claims* if its queue would still be
within its quota with it.
"""

from __future__ import annotations

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import OP_RELEASE, R_NO_ROOM, R_OVER_QUOTA, R_PREEMPTED, STOPPING
from headway.core.columns import ROW_BITS, ROW_MASK
from headway.core.jit import ctz, kernel, popcount
from headway.place.assign import M_READY, M_TASKS, M_UNPLACED, M_UNSELECTED, add_override, choose_for, deal, free_max
from headway.place.gang import copy_layer, copy_room
from headway.place.passes import free_gpus, may_start, release_room, same_demand, say_why
from headway.place.ranked import EVICTED, NOBODY, POOLED, evict_losers, on_up_nodes
from headway.place.victims import equals_by_loss, goes_first, lost_work

STAYS, PLACED_NOW = 5, 6
"""Marks beside those of `ranked`: a placed job that is left alone, a waiting one that has just been placed."""
ANY_BORROWER, OWN_BELOW, BORROWER_BELOW = 0, 1, 2
"""Who makes room for a job: whoever borrows; jobs of its own queue that rank below it; whoever borrows and ranks below it."""


def has_quotas(Q: Table) -> bool:
    """Whether any queue has a quota."""
    return bool(Q[c.Q_QUOTA].max() >= 0)


def has_limits(Q: Table) -> bool:
    """Whether any queue has a limit."""
    return bool(Q[c.Q_LIMIT].max() >= 0)


@kernel
def booked_milli(row: int, J: Table, T: Table) -> int:
    """What a placed job has booked, in thousandths of GPUs."""
    milli = 0
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        milli += T[c.T_BOOK, t] * popcount(T[c.T_MASK, t])
    return milli


@kernel
def may_give_way(row: int, J: Table, T: Table, N: Table, G: Table) -> bool:
    """Whether a placed job may be released: it has GPUs, all for itself, on nodes that are up, and has not been told to end."""
    if J[c.J_PHASE, row] > STOPPING or J[c.J_MUST_STOP, row] or J[c.J_FINISHING, row] or not on_up_nodes(row, J, T, N):
        return False
    milli = 0
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        rest = T[c.T_MASK, t]
        while rest != 0:
            if G[c.G_TASKS, N[c.N_GPU0, T[c.T_NODE, t]] + ctz(rest)] > 1:
                return False
            rest &= rest - 1
            milli += T[c.T_BOOK, t]
    return bool(milli > 0)


@kernel
def most_borrowed(placed: Ints, count: int, now: int, J: Table, Q: Table, used: Ints, mark: Ints) -> int:
    """The row of the next borrower to give way, or -1: of the queue most above its quota, lowest priority, least lost work,
    placed last."""
    best, best_over, best_priority, best_lost, best_at = -1, 0, 0, 0, 0
    for i in range(count):
        row = placed[i] & ROW_MASK
        if mark[row] != NOBODY:
            continue
        over = used[J[c.J_QUEUE, row]] - max(Q[c.Q_QUOTA, J[c.J_QUEUE, row]], 0)
        if over <= 0 or over < best_over:
            continue
        priority, lost, at = -J[c.J_PRIORITY, row], -lost_work(J, row, now), J[c.J_QUEUED_AT, row] + J[c.J_LAST_WAIT, row]
        if over == best_over:
            if priority != best_priority:
                if priority < best_priority:
                    continue
            elif lost != best_lost:
                if lost < best_lost:
                    continue
            elif at < best_at or (at == best_at and row < best):
                continue
        best, best_over, best_priority, best_lost, best_at = row, over, priority, lost, at
    return best


@kernel
def next_below(who: int, key: int, placed: Ints, now: int, J: Table, Q: Table, used: Ints, mark: Ints, start: int) -> int:
    """The index at or before `start` in `placed` (keys in the order in which they give way, the first to go last) of the next job
    that ranks below the waiting job with this key and may give way to it, or -1."""
    queue = J[c.J_QUEUE, key & ROW_MASK]
    i = start
    while i >= 0 and placed[i] >> ROW_BITS >= key >> ROW_BITS:
        row = placed[i] & ROW_MASK
        if mark[row] == NOBODY and not goes_first(placed[i], key, J, now):
            own = J[c.J_QUEUE, row]
            if who == OWN_BELOW:
                if own == queue:
                    return i
            elif used[own] > max(Q[c.Q_QUOTA, own], 0):
                return i
        i -= 1
    return -1


@kernel
def room_in_queue(row: int, J: Table, Q: Table, used: Ints) -> bool:
    """Whether the queue's limit leaves room for the job."""
    limit = Q[c.Q_LIMIT, J[c.J_QUEUE, row]]
    return bool(limit < 0 or used[J[c.J_QUEUE, row]] + J[c.J_GPUS, row] * c.WHOLE <= limit)


@kernel
def place_over(
    who: int, cap: int, key: int, mode: int, strict: bool, placed: Ints, count: int, now: int,
    J: Table, T: Table, N: Table, Q: Table, C: Ints, used: Ints,
    A: Table, AB: Table, P: Table, PB: Table, out: Table, owner: Ints, mark: Ints, victims: Ints, O: Table, OT: Table, M: Ints,
) -> bool:  # fmt: skip
    """Place a waiting job where others make room, who join the pool one at a time, until it fits and its queue is not above
    `cap` (milli) without them. Those that lose a GPU are released, and more of the pool as long as the queue is above the cap.

    Returns False, with everything as before, if it does not fit with all of them.
    """
    row = key & ROW_MASK
    queue, gpus = J[c.J_QUEUE, row], J[c.J_GPUS, row]
    joined, size, next_placed, done, pool_gpus = 0, victims.shape[0], count - 1, False, 0
    while True:
        if joined and pool_gpus >= gpus and used[queue] + gpus * c.WHOLE <= cap:
            chosen, each = choose_for(mode, row, J, N, C, P, PB, out, strict, OT, M[M_TASKS])
            if chosen > 0:
                start = M[M_TASKS]
                deal(row, chosen, each, out, J, N, C, A, AB, P, PB, True, O, OT, M)
                evict_losers(start, M[M_TASKS], victims, size - 1, size - joined, J, T, N, C, A, AB, owner, mark, O, OT, M)
                done = True
                break
        if who == ANY_BORROWER:
            victim = most_borrowed(placed, count, now, J, Q, used, mark)
        else:
            next_placed = next_below(who, key, placed, now, J, Q, used, mark, next_placed)
            victim = placed[next_placed] & ROW_MASK if next_placed >= 0 else -1
        if victim < 0:
            break
        if joined == 0:
            copy_layer(A, AB, P, PB, C)
            pool_gpus = free_gpus(A, N, C)
        joined += 1
        pool_gpus += J[c.J_GPUS, victim]
        victims[size - joined] = victim
        mark[victim] = POOLED
        used[J[c.J_QUEUE, victim]] -= booked_milli(victim, J, T)
        release_room(victim, J, T, N, C, P, PB)
        for t in range(J[c.J_TASK0, victim], J[c.J_TASK0, victim] + J[c.J_TASKS, victim]):
            rest = T[c.T_MASK, t]
            while rest != 0:
                owner[N[c.N_GPU0, T[c.T_NODE, t]] + ctz(rest)] = victim
                rest &= rest - 1
    for i in range(joined):
        victim = victims[size - joined + i]
        if mark[victim] == POOLED:
            used[J[c.J_QUEUE, victim]] += booked_milli(victim, J, T)
    if done:
        used[queue] += gpus * c.WHOLE
        mark[row] = PLACED_NOW
    for i in range(joined):
        victim = victims[size - 1 - i]
        if mark[victim] == POOLED:
            mark[victim] = NOBODY
            if done and used[queue] > cap and J[c.J_QUEUE, victim] == queue:
                mark[victim] = EVICTED
                add_override(O, M, J, victim, OP_RELEASE, R_PREEMPTED, 0, 0)
                release_room(victim, J, T, N, C, A, AB)
                used[queue] -= booked_milli(victim, J, T)
        if mark[victim] == EVICTED:
            M[M_UNSELECTED] += 1
    return done


@kernel
def place_free(
    row: int, mode: int, strict: bool, J: Table, N: Table, C: Ints, used: Ints,
    A: Table, AB: Table, out: Table, mark: Ints, O: Table, OT: Table, M: Ints,
) -> bool:  # fmt: skip
    """Place a waiting job on GPUs that nobody wants, if it fits."""
    chosen, each = choose_for(mode, row, J, N, C, A, AB, out, strict, OT, M[M_TASKS])
    if chosen < 0:
        return False
    deal(row, chosen, each, out, J, N, C, A, AB, A, AB, False, O, OT, M)
    used[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
    mark[row] = PLACED_NOW
    return True


@kernel
def serve_claims(
    waiting: Ints, waiting_count: int, placed: Ints, placed_count: int, mode: int, skew: int, in_turn: bool, sharing: bool,
    now: int, J: Table, T: Table, N: Table, Q: Table, C: Ints, used: Ints, stuck: Ints,
    A: Table, AB: Table, P: Table, PB: Table, out: Table, owner: Ints, mark: Ints, victims: Ints, O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """Place the waiting jobs that claim, by rank, on what nobody wants, else on that and on what is borrowed. Again as long as a
    job was released, since its queue may then claim.

    With `in_turn` a claim that does not fit holds up the later ones of its queue; with `sharing` jobs that share GPUs are left
    out. Returns how many claims were not served.
    """
    missed, again = 0, True
    while again:
        again, missed, last = False, 0, -1
        for q in range(C[c.C_QUEUES]):
            stuck[q] = 0
        for k in range(waiting_count):
            row = waiting[k] & ROW_MASK
            queue, milli = J[c.J_QUEUE, row], J[c.J_GPUS, row] * c.WHOLE
            if milli == 0 or used[queue] + milli > Q[c.Q_QUOTA, queue] or stuck[queue] or mark[row] != NOBODY:
                continue
            if not may_start(J, row, now, M) or not room_in_queue(row, J, Q, used) or (sharing and J[c.J_SHARE, row]):
                continue
            released, served = M[M_UNSELECTED], False
            if last < 0 or not same_demand(row, last, J):
                strict = J[c.J_SKEW, row] >= skew
                served = place_free(row, mode, strict, J, N, C, used, A, AB, out, mark, O, OT, M)
                if not served:
                    served = place_over(
                        ANY_BORROWER, c.NEVER, waiting[k], mode, strict, placed, placed_count, now, J, T, N, Q, C, used,
                        A, AB, P, PB, out, owner, mark, victims, O, OT, M,
                    )  # fmt: skip
                last = -1 if served else row
            if served:
                again = again or M[M_UNSELECTED] > released
            else:
                missed += 1
                if in_turn:
                    stuck[queue] = 1
    return missed


@kernel
def begin(
    placed: Ints, placed_count: int, J: Table, T: Table, N: Table, G: Table, Q: Table, B: Table, C: Ints, used: Ints,
    A: Table, AB: Table, owner: Ints, mark: Ints, M: Ints,
) -> None:  # fmt: skip
    """Set out: the room that nobody wants, what each queue has, and which placed jobs may give way. An owner of a GPU counts only
    while it is in the pool, so owners are cleared once."""
    copy_room(N, B, C, A, AB)
    M[M_READY] = 1
    for g in range(C[c.C_GPUS]):
        owner[g] = -1
    for q in range(C[c.C_QUEUES]):
        used[q] = Q[c.Q_BOOKED, q]
    for row in range(C[c.C_ROWS]):
        mark[row] = NOBODY
    for i in range(placed_count):
        row = placed[i] & ROW_MASK
        if not may_give_way(row, J, T, N, G):
            mark[row] = STAYS


@kernel
def by_rank_within_quotas(
    waiting: Ints, waiting_count: int, placed: Ints, placed_count: int, quotas: bool, mode: int, skew: int, now: int,
    J: Table, T: Table, N: Table, Q: Table, C: Ints, used: Ints, stuck: Ints,
    A: Table, AB: Table, P: Table, PB: Table, out: Table, owner: Ints, mark: Ints, victims: Ints, O: Table, OT: Table, M: Ints,
) -> None:  # fmt: skip
    """The preemptive pass where queues have quotas or limits: claims first, then every waiting job by rank, on what nobody wants,
    else over borrowers that rank below it, else over jobs of its own queue that rank below it. A job like the last one, which
    found no room, is not tried.

    `placed`: sorted keys, which are put into the order in which their jobs give way.
    """
    equals_by_loss(placed, placed_count, now, J, victims)
    last = -1
    for k in range(waiting_count):
        row = waiting[k] & ROW_MASK
        if mark[row] != NOBODY or not may_start(J, row, now, M):
            continue
        queue, milli = J[c.J_QUEUE, row], J[c.J_GPUS, row] * c.WHOLE
        strict, released = J[c.J_SKEW, row] >= skew, M[M_UNSELECTED]
        if (
            last >= 0 and J[c.J_QUEUE, last] == queue and same_demand(row, last, J)
        ):  # nothing has become free since that one failed
            M[M_UNPLACED] += 1
            continue
        if milli == 0:
            if not place_free(row, mode, strict, J, N, C, used, A, AB, out, mark, O, OT, M):
                M[M_UNPLACED] += 1
            continue
        within = room_in_queue(row, J, Q, used)
        done = within and place_free(row, mode, strict, J, N, C, used, A, AB, out, mark, O, OT, M)
        if not done and within:
            done = place_over(
                BORROWER_BELOW, c.NEVER, waiting[k], mode, strict, placed, placed_count, now, J, T, N, Q, C, used,
                A, AB, P, PB, out, owner, mark, victims, O, OT, M,
            )  # fmt: skip
        if not done:
            cap = Q[c.Q_LIMIT, queue] if Q[c.Q_LIMIT, queue] >= 0 else c.NEVER
            if quotas:
                cap = min(cap, max(Q[c.Q_QUOTA, queue], used[queue]))
            done = place_over(
                OWN_BELOW, cap, waiting[k], mode, strict, placed, placed_count, now, J, T, N, Q, C, used,
                A, AB, P, PB, out, owner, mark, victims, O, OT, M,
            )  # fmt: skip
        if done:
            last = -1
        else:
            last = row
            M[M_UNPLACED] += 1
            say_why(O, M, J, row, R_NO_ROOM if within else R_OVER_QUOTA, J[c.J_GPUS, row], free_max(AB, C, -1) if within else 0)
        if quotas and M[M_UNSELECTED] > released:
            serve_claims(
                waiting, waiting_count, placed, placed_count, mode, skew, False, False, now, J, T, N, Q, C, used, stuck,
                A, AB, P, PB, out, owner, mark, victims, O, OT, M,
            )  # fmt: skip


def work_arrays(Q: Table) -> tuple[Ints, Ints]:
    """Two arrays over the queues for these passes."""
    return np.zeros(Q.shape[1], np.int64), np.zeros(Q.shape[1], np.int64)
