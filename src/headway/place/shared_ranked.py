"""The preemptive pass with shares of GPUs: by rank, each on what nobody wants, else over the lowest-ranked jobs that make room
for it (`docs/semantics.md` §4, *Sharing*). Where queues have quotas, nobody is stopped but for a claim: `place.passes` does that.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import OP_RELEASE, R_NO_ROOM, R_OVER_QUOTA, R_PREEMPTED, STOPPING, UP
from headway.core.columns import ROW_MASK
from headway.core.jit import ctz, kernel
from headway.place.assign import M_OVERRIDES, M_TASKS, M_UNPLACED, M_UNSELECTED, add_override, choose_for, deal, free_max
from headway.place.gang import A_CPU, A_MASK, A_MEM, clear, copy_layer, copy_room
from headway.place.passes import may_start, same_demand, say_why, within_limit
from headway.place.ranked import EVICTED, NOBODY, on_up_nodes
from headway.place.shared import add_milli, book_share, place_shared, shares_now, unbook_share
from headway.place.victims import equals_by_loss, goes_first

STAYS, KEPT = 5, 6
"""Marks beside those of `ranked`: a placed job that is left alone, and one that has been reached and keeps its place."""


@kernel
def may_be_released(row: int, J: Table, T: Table, N: Table) -> bool:
    """Whether a placed job may give its place up: it is on nodes that are up, and has not been told to end."""
    ends = J[c.J_PHASE, row] > STOPPING or J[c.J_MUST_STOP, row] or J[c.J_FINISHING, row]
    return bool(not ends and on_up_nodes(row, J, T, N))


@kernel
def give_back(row: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, GB: Ints) -> None:
    """Put into a room what a placed job has."""
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        unbook_share(N, C, A, AB, GB, T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t])


@kernel
def take_back(row: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, GB: Ints) -> None:
    """Take from a room what a placed job has."""
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        book_share(N, C, A, AB, GB, T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t])


@kernel
def take_new(row: int, start: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, GB: Ints, OT: Table) -> None:
    """Take from a room the place that job `row` has just been given, `OT` from row `start` on."""
    for k in range(J[c.J_TASKS, row]):
        t, o = J[c.J_TASK0, row] + k, start + k
        book_share(N, C, A, AB, GB, OT[o, 0], OT[o, 1], OT[o, 2], T[c.T_CPU, t], T[c.T_MEM, t])


@kernel
def give_new(row: int, start: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, GB: Ints, OT: Table) -> None:
    """Undo `take_new`."""
    for k in range(J[c.J_TASKS, row]):
        t, o = J[c.J_TASK0, row] + k, start + k
        unbook_share(N, C, A, AB, GB, OT[o, 0], OT[o, 1], OT[o, 2], T[c.T_CPU, t], T[c.T_MEM, t])


@kernel
def place_in(
    row: int, mode: int, hardest: bool, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, GB: Ints, out: Table,
    O: Table, OT: Table, M: Ints,
) -> bool:  # fmt: skip
    """Place a waiting job in a room, all or nothing: shares of GPUs where it allows that, else whole GPUs."""
    if J[c.J_SHARE, row]:
        return place_shared(row, hardest, J, T, N, C, A, AB, GB, out[3], O, OT, M)
    start = M[M_TASKS]
    chosen, gpus = choose_for(mode, row, J, N, C, A, AB, out, False, OT, start)
    if chosen < 0:
        return False
    deal(row, chosen, gpus, out, J, N, C, A, AB, A, AB, False, O, OT, M)
    for o in range(start, M[M_TASKS]):
        add_milli(OT[o, 2], OT[o, 0], OT[o, 1], N, GB)
    return True


@kernel
def shares_left(N: Table, C: Ints, A: Table, GB: Ints) -> int:
    """Thousandths of GPUs that may still be had of a room: empty GPUs whole, others up to the share limit."""
    total = 0
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] == UP:
            for local in range(N[c.N_GPUS, node]):
                booked = GB[N[c.N_GPU0, node] + local]
                if (A[A_MASK, node] >> local) & 1:
                    total += c.WHOLE
                elif booked > 0:
                    total += max(C[c.C_SHARE_LIMIT] - booked, 0)
    return total


@kernel
def need_milli(row: int, J: Table) -> int:
    """Thousandths of GPUs that a job takes at least."""
    return int(J[c.J_GPU_MILLI, row] if J[c.J_SHARE, row] else J[c.J_GPUS, row] * c.WHOLE)


@kernel
def stands_in_the_way(victim: int, row: int, J: Table, T: Table, N: Table, C: Ints, A: Table, GB: Ints, owner: Ints) -> bool:
    """Whether a job that may be released has something that is over-booked since job `row` was given its place."""
    for t in range(J[c.J_TASK0, victim], J[c.J_TASK0, victim] + J[c.J_TASKS, victim]):
        node, rest = T[c.T_NODE, t], T[c.T_MASK, t]
        if A[A_CPU, node] < 0 or A[A_MEM, node] < 0:
            return True
        while rest != 0:
            g = N[c.N_GPU0, node] + ctz(rest)
            rest &= rest - 1
            if owner[g] == row and GB[g] > C[c.C_SHARE_LIMIT]:
                return True
    return False


@kernel
def pool_of(
    count: int, giving: Ints, high: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, GB: Ints,
    P: Table, PB: Table, PG: Ints, mark: Ints,
) -> int:  # fmt: skip
    """Make room `P` of `A` and of what the last `count` jobs of `giving[: high]` have that may be released and rank below the
    waiting job; returns how many those were."""
    copy_layer(A, AB, P, PB, C)
    for g in range(C[c.C_GPUS]):
        PG[g] = GB[g]
    taken, i = 0, high - 1
    while i >= 0 and taken < count:
        victim = giving[i] & ROW_MASK
        if mark[victim] == NOBODY:
            give_back(victim, J, T, N, C, P, PB, PG)
            taken += 1
        i -= 1
    return taken


@kernel
def place_over(
    row: int, mode: int, hardest: bool, giving: Ints, high: int, J: Table, T: Table, N: Table, C: Ints,
    A: Table, AB: Table, GB: Ints, P: Table, PB: Table, PG: Ints, out: Table, owner: Ints, mark: Ints,
    O: Table, OT: Table, M: Ints,
) -> None:  # fmt: skip
    """Place job `row`, which fits if all of `giving[: high]` that may be released are (`mark` NOBODY), over as few of them as
    will do, from the last on."""
    start, overrides = M[M_TASKS], M[M_OVERRIDES]
    fails, fits, tried = 0, 0, 1
    while fits == 0:
        taken = pool_of(tried, giving, high, J, T, N, C, A, AB, GB, P, PB, PG, mark)
        if place_in(row, mode, hardest, J, T, N, C, P, PB, PG, out, O, OT, M):
            fits = taken
        elif taken < tried:
            return
        else:
            fails, tried = tried, 2 * tried
    while fits - fails > 1:
        M[M_TASKS], M[M_OVERRIDES] = start, overrides
        tried = (fits + fails) // 2
        pool_of(tried, giving, high, J, T, N, C, A, AB, GB, P, PB, PG, mark)
        if place_in(row, mode, hardest, J, T, N, C, P, PB, PG, out, O, OT, M):
            fits = tried
        else:
            fails = tried
    M[M_TASKS], M[M_OVERRIDES] = start, overrides
    pool_of(fits, giving, high, J, T, N, C, A, AB, GB, P, PB, PG, mark)
    place_in(row, mode, hardest, J, T, N, C, P, PB, PG, out, O, OT, M)
    take_new(row, start, J, T, N, C, A, AB, GB, OT)
    for o in range(start, M[M_TASKS]):
        rest = OT[o, 1]
        while rest != 0:
            owner[N[c.N_GPU0, OT[o, 0]] + ctz(rest)] = row
            rest &= rest - 1
    seen, i = 0, high - 1
    while seen < fits:
        victim = giving[i] & ROW_MASK
        i -= 1
        if mark[victim] != NOBODY:
            continue
        seen += 1
        if stands_in_the_way(victim, row, J, T, N, C, A, GB, owner):
            mark[victim] = EVICTED
            add_override(O, M, J, victim, OP_RELEASE, R_PREEMPTED, 0, 0)
            give_back(victim, J, T, N, C, A, AB, GB)
            M[M_UNSELECTED] += 1


@kernel
def by_rank_shared(
    placed: Ints, placed_count: int, giving: Ints, work: Ints, waiting: Ints, waiting_count: int, mode: int, hardest: bool,
    now: int,
    J: Table, T: Table, N: Table, G: Table, Q: Table, B: Table, C: Ints, planned: Ints,
    A: Table, AB: Table, GB: Ints, F: Table, FB: Table, FG: Ints, P: Table, PB: Table, PG: Ints, out: Table, owner: Ints,
    mark: Ints, O: Table, OT: Table, M: Ints,
) -> None:  # fmt: skip
    """Placed and waiting jobs by rank, both as sorted keys. Room `A`: what nobody wants. Room `F` ⊇ `A`: that, and what placed
    jobs have that have not been reached yet, since they rank below. Room `P`: scratch.

    A waiting job goes to `A` if it fits there, else over as few jobs as will do if it fits into `F`, else it waits. They give way
    from the last of `giving` on. M[M_UNPLACED] counts those that wait, M[M_UNSELECTED] the released. `GB`, `FG`, `PG`: milli
    booked on each GPU of a room. `owner`: scratch over GPUs, `giving` and `work` over rows.
    """
    copy_room(N, B, C, A, AB)
    clear(planned)
    shares_now(J, T, N, G, C, O, OT, M, GB)
    copy_layer(A, AB, F, FB, C)
    for g in range(C[c.C_GPUS]):
        FG[g], owner[g] = GB[g], -1
    for i in range(placed_count):
        row = placed[i] & ROW_MASK
        mark[row] = STAYS
        if may_be_released(row, J, T, N):
            mark[row] = NOBODY
            give_back(row, J, T, N, C, F, FB, FG)
        giving[i] = placed[i]
    equals_by_loss(giving, placed_count, now, J, work)
    free, dirty, last, i = 0, True, -1, 0
    for k in range(waiting_count):
        while i < placed_count and goes_first(placed[i], waiting[k], J, now):
            row = placed[i] & ROW_MASK
            if mark[row] == NOBODY:
                mark[row] = KEPT
                take_back(row, J, T, N, C, F, FB, FG)
                dirty = True
            i += 1
        row = waiting[k] & ROW_MASK
        if not may_start(J, row, now, M):
            continue
        if not within_limit(J, Q, planned, row):
            say_why(O, M, J, row, R_OVER_QUOTA, J[c.J_GPUS, row], 0)
            continue
        if dirty:
            free, dirty = shares_left(N, C, F, FG), False
        start, overrides, done = M[M_TASKS], M[M_OVERRIDES], False
        if need_milli(row, J) <= free and not (last >= 0 and same_demand(row, last, J)):
            done = place_in(row, mode, hardest, J, T, N, C, A, AB, GB, out, O, OT, M)
            if not done and i < placed_count and J[c.J_GPUS, row]:
                done = place_in(row, mode, hardest, J, T, N, C, F, FB, FG, out, O, OT, M)
                if done:
                    give_new(row, start, J, T, N, C, F, FB, FG, OT)
                    M[M_TASKS], M[M_OVERRIDES] = start, overrides
                    place_over(
                        row, mode, hardest, giving, placed_count, J, T, N, C, A, AB, GB, P, PB, PG, out, owner, mark, O, OT, M,
                    )  # fmt: skip
        if done:
            take_new(row, start, J, T, N, C, F, FB, FG, OT)
            planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
            last, dirty = -1, True
        else:
            last = row
            M[M_UNPLACED] += 1
            say_why(O, M, J, row, R_NO_ROOM, J[c.J_GPUS, row], free_max(AB, C, -1))
