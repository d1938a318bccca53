"""The preemptive pass: the best-ranked jobs that the cluster can hold run, and others give way only where that makes room
(`docs/semantics.md` §4). Where queues have quotas or limits, `place.quotas` takes its place."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import OP_RELEASE, R_NO_ROOM, R_NOT_CONSOLIDATED, R_PREEMPTED, UP
from headway.core.columns import ROW_BITS, ROW_MASK
from headway.core.jit import ctz, kernel
from headway.place.assign import M_MORE, M_TASKS, M_UNPLACED, M_UNSELECTED, add_override, choose_for, deal, free_max
from headway.place.gang import A_CPU, A_MEM, copy_layer, copy_room, take_mask
from headway.place.passes import may_start, release_room, say_why
from headway.place.victims import goes_first, least_lost_last, priorities_by_loss

NOBODY, NOT_SELECTED, SELECTED, POOLED, EVICTED = 0, 1, 2, 3, 4


@kernel
def on_up_nodes(row: int, J: Table, T: Table, N: Table) -> bool:
    """Whether every task of a placed job is on a node that is up."""
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        if N[c.N_PHASE, T[c.T_NODE, t]] != UP:
            return False
    return True


@kernel
def select(
    placed: Ints, placed_count: int, waiting: Ints, sorted_count: int, waiting_count: int, now: int,
    J: Table, T: Table, N: Table, C: Ints, mark: Ints, chosen: Ints, victims: Ints, left: Ints, M: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Selection by count, best rank first, merging the sorted keys of placed jobs with the sorted best of the waiting ones.

    Placed jobs that rank as equals, with no waiting one between them, come by lost work, the most first; `placed` is put in that
    order. Fills `mark` (a placed row's part in this pass), `chosen` (selected waiting rows, by rank) and `victims` (placed rows
    that were not selected, by rank); returns how many of each. M[M_MORE] is set if capacity was left when the sorted waiting keys
    ran out, but there are more of them.
    """
    kinds = C[c.C_KINDS]
    for kind in range(kinds):
        left[kind] = 0
    capacity = 0
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] == UP:
            left[N[c.N_KIND, node]] += N[c.N_GPUS, node]
            capacity += N[c.N_GPUS, node]
    selected, unselected, i, k, equals = 0, 0, 0, 0, 0
    while i < placed_count or (k < sorted_count and (capacity > 0 or C[c.C_WAITING_CPU] > 0)):
        if k >= sorted_count or (i < placed_count and (i < equals or goes_first(placed[i], waiting[k], J, now))):
            if i >= equals:
                equals = i + 1
                while equals < placed_count and placed[equals] >> ROW_BITS == placed[i] >> ROW_BITS:
                    if k < sorted_count and not goes_first(placed[equals], waiting[k], J, now):
                        break
                    equals += 1
                least_lost_last(placed, i, equals, now, J, victims[unselected:])
            row = placed[i] & ROW_MASK
            i += 1
            if k == sorted_count and sorted_count < waiting_count and (capacity > 0 or C[c.C_WAITING_CPU] > 0):
                M[M_MORE] = 1
                return 0, 0
            mark[row] = NOBODY
            if not on_up_nodes(row, J, T, N):
                continue
            gpus, kind = J[c.J_GPUS, row], N[c.N_KIND, T[c.T_NODE, J[c.J_TASK0, row]]]
            if gpus <= left[kind]:
                left[kind] -= gpus
                capacity -= gpus
                mark[row] = SELECTED
            else:
                mark[row] = NOT_SELECTED
                victims[unselected] = row
                unselected += 1
            continue
        row = waiting[k] & ROW_MASK
        k += 1
        if not may_start(J, row, now, M):
            continue
        gpus, best = J[c.J_GPUS, row], -1
        if gpus:
            for kind in range(kinds):
                if (J[c.J_KIND_MASK, row] >> kind) & 1 and (best < 0 or left[kind] > left[best]):
                    best = kind
            if best < 0 or gpus > left[best]:
                continue
            left[best] -= gpus
            capacity -= gpus
        chosen[selected] = row
        selected += 1
    if k == sorted_count and sorted_count < waiting_count and (capacity > 0 or C[c.C_WAITING_CPU] > 0):
        M[M_MORE] = 1
    return selected, unselected


@kernel
def by_rank(
    placed_keys: Ints, placed_count: int, waiting_keys: Ints, sorted_count: int, waiting_count: int, mode: int,
    skew: int, now: int,
    J: Table, T: Table, N: Table, B: Table, C: Ints,
    A: Table, AB: Table, P: Table, PB: Table, out: Table, owner: Ints, mark: Ints, chosen: Ints, victims: Ints,
    O: Table, OT: Table, M: Ints,
) -> None:  # fmt: skip
    """Place the selected jobs, letting victims join the pool one at a time, only while a job does not fit without: of the lowest
    user priority first, then of the least lost work, then of the lowest rank.

    Keys hold the row in their lowest ROW_BITS bits and are sorted: all of the placed, the best `sorted_count` of the waiting.
    If these turn out too few, M[M_MORE] is
    set and nothing is done. `owner`: scratch, one per GPU. `mark`, `chosen`, `victims`: scratch, one per row.
    """
    chosen_jobs, lowest = select(
        placed_keys,
        placed_count,
        waiting_keys,
        sorted_count,
        waiting_count,
        now,
        J,
        T,
        N,
        C,
        mark,
        chosen,
        victims,
        out[5],
        M,
    )
    M[M_UNSELECTED] = lowest
    if chosen_jobs == 0 or M[M_MORE]:
        return
    copy_room(N, B, C, A, AB)
    nodes = C[c.C_NODES]
    pool_gpus = 0
    for node in range(nodes):
        if N[c.N_PHASE, node] == UP:
            pool_gpus += N[c.N_FREE, node]
    layered = False
    next_victim = lowest - 1
    for k in range(chosen_jobs):
        row = chosen[k]
        strict = J[c.J_SKEW, row] >= skew
        placed = False
        nodes_chosen, gpus = choose_for(mode, row, J, N, C, A, AB, out, strict, OT, M[M_TASKS])
        if nodes_chosen > 0:
            deal(row, nodes_chosen, gpus, out, J, N, C, A, AB, P, PB, layered, O, OT, M)
            placed = True
        elif J[c.J_GPUS, row] and (lowest > 0):
            if not layered:
                copy_layer(A, AB, P, PB, C)
                priorities_by_loss(victims, lowest, now, J, chosen[chosen_jobs:])
                layered = True
                for g in range(C[c.C_GPUS]):
                    owner[g] = -1
            while not placed:
                if pool_gpus >= J[c.J_GPUS, row]:
                    nodes_chosen, gpus = choose_for(mode, row, J, N, C, P, PB, out, strict, OT, M[M_TASKS])
                    if nodes_chosen > 0:
                        start = M[M_TASKS]
                        deal(row, nodes_chosen, gpus, out, J, N, C, A, AB, P, PB, True, O, OT, M)
                        evict_losers(
                            start, M[M_TASKS], victims, lowest - 1, next_victim + 1, J, T, N, C, A, AB, owner, mark, O, OT, M
                        )
                        placed = True
                        break
                if next_victim < 0:
                    break
                victim = victims[next_victim]
                next_victim -= 1
                mark[victim] = POOLED
                release_room(victim, J, T, N, C, P, PB)
                pool_gpus += J[c.J_GPUS, victim]
                for t in range(J[c.J_TASK0, victim], J[c.J_TASK0, victim] + J[c.J_TASKS, victim]):
                    rest = T[c.T_MASK, t]
                    while rest != 0:
                        owner[N[c.N_GPU0, T[c.T_NODE, t]] + ctz(rest)] = victim
                        rest &= rest - 1
        if placed:
            pool_gpus -= J[c.J_GPUS, row]
        else:
            M[M_UNPLACED] += 1
            say_why(O, M, J, row, R_NOT_CONSOLIDATED if strict else R_NO_ROOM, J[c.J_GPUS, row], free_max(AB, C, -1))


@kernel
def evict(victim: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, mark: Ints, O: Table, M: Ints) -> None:
    """A victim gives its place up: all it has becomes unwanted."""
    mark[victim] = EVICTED
    add_override(O, M, J, victim, OP_RELEASE, R_PREEMPTED, 0, 0)
    release_room(victim, J, T, N, C, A, AB)


@kernel
def has_task_on(row: int, node: int, J: Table, T: Table) -> bool:
    """Whether a placed job has a task on the node."""
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        if T[c.T_NODE, t] == node:
            return True
    return False


@kernel
def evict_losers(
    start: int, stop: int, victims: Ints, last: int, first: int, J: Table, T: Table, N: Table, C: Ints,
    A: Table, AB: Table, owner: Ints, mark: Ints, O: Table, OT: Table, M: Ints,
) -> None:  # fmt: skip
    """Release whole every victim that lost a GPU to the tasks `start … stop - 1`, then, node by node and in the order in which
    they joined the pool, those whose cpus or memory are needed.

    The victims in the pool are `victims[first … last]`, the first that joined last.
    """
    for i in range(start, stop):
        rest = OT[i, 1]
        while rest != 0:
            g = N[c.N_GPU0, OT[i, 0]] + ctz(rest)
            rest &= rest - 1
            if owner[g] >= 0 and mark[owner[g]] == POOLED:
                evict(owner[g], J, T, N, C, A, AB, mark, O, M)
    for i in range(start, stop):
        take_mask(A, AB, N, C, OT[i, 0], OT[i, 1], 0, 0)
    node = -1
    while True:
        after = 1 << 60
        for i in range(start, stop):
            if OT[i, 0] > node and OT[i, 0] < after and (A[A_CPU, OT[i, 0]] < 0 or A[A_MEM, OT[i, 0]] < 0):
                after = OT[i, 0]
        if after == 1 << 60:
            return
        node = after
        k = last
        while k >= first and (A[A_CPU, node] < 0 or A[A_MEM, node] < 0):
            if mark[victims[k]] == POOLED and has_task_on(victims[k], node, J, T):
                evict(victims[k], J, T, N, C, A, AB, mark, O, M)
            k -= 1
