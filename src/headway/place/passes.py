"""Passes: an order of jobs becomes places. *When* is the policy's order, *where* the placement kernel (`docs/semantics.md` §4)"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import OP_PLACE, OP_WHY, QUEUED, R_NO_ROOM, R_OVER_QUOTA, R_RESERVED, STOPPING, UP
from headway.core.columns import ROW_BITS, ROW_MASK
from headway.core.jit import inner, kernel
from headway.place.assign import M_MORE, M_OVERRIDES, M_READY, M_TASKS, M_WAKE, add_override, choose_for, deal, free_max
from headway.place.gang import A_CPU, A_FREE, A_MASK, A_MEM, clear, copy_layer, copy_room, give_mask, lowest_bits, take_mask
from headway.place.shared import place_shared, shares_now


@inner
def may_start(J: Table, row: int, now: int, M: Ints) -> bool:
    """Whether the job waits, is not held, and is not to be retried later (then the plan wakes at that time)."""
    if J[c.J_PHASE, row] != QUEUED or J[c.J_PLACED, row] or J[c.J_HOLD, row]:
        return False
    if J[c.J_NOT_BEFORE, row] > now:
        M[M_WAKE] = min(M[M_WAKE], J[c.J_NOT_BEFORE, row])
        return False
    return True


@kernel
def start_with(N: Table, B: Table, C: Ints, planned: Ints, A: Table, AB: Table, M: Ints) -> None:
    """The room and what is planned for each queue (milli) at the start of a pass: as the claims of queues left them, if they
    have been served, else what nobody wants, and nothing."""
    if M[M_READY] == 0:
        copy_room(N, B, C, A, AB)
        clear(planned)


@kernel
def within_limit(J: Table, Q: Table, planned: Ints, row: int) -> bool:
    """Whether the limit of the job's queue leaves room for it, beside what is booked and what this pass has `planned` (milli,
    by queue)."""
    q = J[c.J_QUEUE, row]
    limit = Q[c.Q_LIMIT, q]
    return bool(limit < 0 or Q[c.Q_BOOKED, q] + planned[q] + J[c.J_GPUS, row] * c.WHOLE <= limit)


@kernel
def say_why(O: Table, M: Ints, J: Table, row: int, reason: int, a: int, b: int) -> None:
    """Note why a job does not start, if that is news."""
    if J[c.J_WHY, row] != reason:
        add_override(O, M, J, row, OP_WHY, reason, 0, 0)
        i = M[M_OVERRIDES] - 1
        O[i, c.O_A], O[i, c.O_B] = a, b


@kernel
def try_place(
    mode: int, sharing: bool, row: int, J: Table, T: Table, N: Table, C: Ints,
    A: Table, AB: Table, P: Table, PB: Table, layered: bool, GB: Ints, out: Table, O: Table, OT: Table, M: Ints,
) -> bool:  # fmt: skip
    """Place one waiting job in room `A`: whole GPUs or, with `sharing` and where the job allows it, shares of GPUs. Room `P` is
    kept in step."""
    if sharing and J[c.J_SHARE, row]:
        return place_shared(row, False, J, T, N, C, A, AB, GB, out[3], O, OT, M)
    chosen, gpus = choose_for(mode, row, J, N, C, A, AB, out, False, OT, M[M_TASKS])
    if chosen < 0:
        return False
    deal(row, chosen, gpus, out, J, N, C, A, AB, P, PB, layered, O, OT, M)
    return True


@kernel
def still_fits(row: int, last: int, node: int, sharing: bool, J: Table, A: Table) -> bool:
    """Whether a job asks for the same as the one that was placed whole on `node` just before, and `node` has room for it too.

    Then every placement kernel chooses `node` again: nothing has been given back since, and it has fewer free GPUs than when it
    was the right choice.
    """
    for column in (c.J_WORKERS, c.J_GPU_TASK, c.J_CPU_TASK, c.J_MEM_TASK, c.J_KIND_MASK, c.J_ALT_GPU, c.J_ALT_MASK, c.J_SERVERS):
        if J[column, row] != J[column, last]:
            return False
    n, gpus = J[c.J_WORKERS, row], (J[c.J_GPU_TASK, row] + c.WHOLE - 1) // c.WHOLE
    if J[c.J_SERVERS, row] or (sharing and J[c.J_SHARE, row]) or J[c.J_DETAILS, row]:
        return False
    fits = A[A_FREE, node] >= n * gpus and A[A_CPU, node] >= n * J[c.J_CPU_TASK, row]
    return bool(fits and A[A_MEM, node] >= n * J[c.J_MEM_TASK, row])


@kernel
def in_order(
    order: Ints, count: int, mode: int, sharing: bool, now: int, J: Table, T: Table, N: Table, G: Table, Q: Table,
    B: Table, C: Ints, planned: Ints,
    A: Table, AB: Table, GB: Ints, out: Table, O: Table, OT: Table, M: Ints,
) -> None:  # fmt: skip
    """Strict order: a job that does not fit blocks every later one that could use a GPU of the same kind.

    `order` holds `count` rows; with `count` = 0 the rows are taken as they stand (arrival), from the first that waits.
    """
    start_with(N, B, C, planned, A, AB, M)
    if sharing:
        shares_now(J, T, N, G, C, O, OT, M, GB)
    every = (1 << C[c.C_KINDS]) - 1
    blocked = 0
    last, node = -1, -1
    i = C[c.C_FIRST_WAITING] if count == 0 else 0
    stop = C[c.C_ROWS] if count == 0 else count
    while i < stop:
        row = i if count == 0 else order[i]
        i += 1
        if not may_start(J, row, now, M):
            continue
        kinds = (J[c.J_KIND_MASK, row] | J[c.J_ALT_MASK, row]) & every if J[c.J_GPUS, row] else 0
        if kinds & blocked:
            continue
        if not within_limit(J, Q, planned, row):
            say_why(O, M, J, row, R_OVER_QUOTA, J[c.J_GPUS, row], 0)
            continue
        if node >= 0 and still_fits(row, last, node, sharing, J, A):
            out[0, 0], out[1, 0] = node, J[c.J_WORKERS, row]
            deal(row, 1, (J[c.J_GPU_TASK, row] + c.WHOLE - 1) // c.WHOLE, out, J, N, C, A, AB, A, AB, False, O, OT, M)
            planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
            continue
        before = M[M_TASKS]
        node = -1
        if try_place(mode, sharing, row, J, T, N, C, A, AB, A, AB, False, GB, out, O, OT, M):
            planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
            if J[c.J_GPUS, row] and M[M_TASKS] - before == J[c.J_WORKERS, row] and OT[before, 0] == OT[M[M_TASKS] - 1, 0]:
                last, node = row, OT[before, 0]
        else:
            say_why(O, M, J, row, R_NO_ROOM, J[c.J_GPUS, row], free_max(AB, C, kinds))
            blocked |= kinds
            if blocked == every and C[c.C_WAITING_CPU] == 0:
                return


@kernel
def as_they_fit(
    order: Ints, count: int, mode: int, sharing: bool, now: int, J: Table, T: Table, N: Table, G: Table, Q: Table, B: Table,
    C: Ints, planned: Ints, A: Table, AB: Table, GB: Ints, out: Table, O: Table, OT: Table, M: Ints,
) -> None:  # fmt: skip
    """Each of the `count` waiting rows in `order` is placed if it fits; one that does not holds nobody up."""
    start_with(N, B, C, planned, A, AB, M)
    if sharing:
        shares_now(J, T, N, G, C, O, OT, M, GB)
    last = -1
    for i in range(count):
        row = order[i]
        if not may_start(J, row, now, M):
            continue
        if not within_limit(J, Q, planned, row):
            say_why(O, M, J, row, R_OVER_QUOTA, J[c.J_GPUS, row], 0)
            continue
        if last >= 0 and same_demand(row, last, J):
            continue
        if try_place(mode, sharing, row, J, T, N, C, A, AB, A, AB, False, GB, out, O, OT, M):
            planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
        else:
            last = row
            say_why(O, M, J, row, R_NO_ROOM, J[c.J_GPUS, row], free_max(AB, C, -1))


@kernel
def same_demand(row: int, other: int, J: Table) -> bool:
    """Whether two jobs ask for the same in every respect that placing looks at."""
    for column in (
        c.J_WORKERS, c.J_GPU_TASK, c.J_CPU_TASK, c.J_MEM_TASK, c.J_KIND_MASK, c.J_ALT_GPU, c.J_ALT_MASK, c.J_SERVERS,
        c.J_SERVER_CPU, c.J_SERVER_MEM, c.J_SKEW,
    ):  # fmt: skip
        if J[column, row] != J[column, other]:
            return False
    return bool(J[c.J_DETAILS, row] == 0 and J[c.J_DETAILS, other] == 0)


@kernel
def release_room(row: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table) -> None:
    """Put into the room what a placed job has (its whole GPUs, cpus and memory)."""
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        give_mask(A, AB, N, C, T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_CPU, t], T[c.T_MEM, t])


LEAVING_BITS = 42
"""Estimated ends are ordered exactly up to 2^42 µs (51 days) from now."""


@kernel
def leaving_keys(J: Table, C: Ints, now: int, keys: Ints) -> int:
    """Sort keys of placed jobs by (estimated end, row): time from now to the end in the high bits, the row in the low ROW_BITS.
    Returns how many."""
    count = 0
    for row in range(C[c.C_ROWS]):
        if J[c.J_PLACED, row] and J[c.J_PHASE, row] <= STOPPING:
            left = min(estimated_end(J, row, now) - now, (1 << LEAVING_BITS) - 1)
            keys[count] = left << ROW_BITS | row
            count += 1
    return count


@kernel
def estimated_end(J: Table, row: int, now: int) -> int:
    """When a placed job leaves by its estimate (µs): now if it is over it, or not yet up: as if it came up now."""
    started = J[c.J_STARTED_AT, row] if J[c.J_STARTED_AT, row] >= 0 else now
    return int(max(now, started + max(J[c.J_ESTIMATE, row] - J[c.J_RUN, row], 0)))


@inner
def fresh_end(J: Table, row: int, now: int) -> int:
    """When a job that is placed now leaves by its estimate (µs)."""
    return int(now + max(J[c.J_ESTIMATE, row] - J[c.J_RUN, row], 0))


@inner
def leaves_after(J: Table, row: int, now: int, end: int, other: int) -> bool:
    """Whether a job that is placed now leaves after job `other`, which leaves at `end`."""
    own = fresh_end(J, row, now)
    return bool(own > end or (own == end and row > other))


@kernel
def free_gpus(A: Table, N: Table, C: Ints) -> int:
    """Free GPUs of a room on nodes that are up."""
    free = 0
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] == UP:
            free += A[A_FREE, node]
    return free


@kernel
def with_backfill(
    order: Ints, count: int, mode: int, now: int, depth: int, leaving: Ints, placed: int,
    J: Table, T: Table, N: Table, Q: Table, B: Table, C: Ints, planned: Ints,
    A: Table, AB: Table, P: Table, PB: Table, out: Table, O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """EASY backfill: the first job that does not fit reserves the place it gets when enough placed jobs have left; later ones
    may not delay it.

    `order` holds `count` waiting rows (0: as they stand, from the first that waits); `leaving` the sorted keys of the `placed`
    jobs (`leaving_keys`).
    Returns the row of the head that waits, or -1. M[M_MORE] is set if jobs were placed and `depth` left others without a look.
    """
    start_with(N, B, C, planned, A, AB, M)
    i = C[c.C_FIRST_WAITING] if count == 0 else 0
    stop = C[c.C_ROWS] if count == 0 else count
    head = -1
    while i < stop:
        row = i if count == 0 else order[i]
        i += 1
        if not may_start(J, row, now, M) or not within_limit(J, Q, planned, row):
            continue
        if not try_place(mode, False, row, J, T, N, C, A, AB, A, AB, False, out[2], out, O, OT, M):
            say_why(O, M, J, row, R_NO_ROOM, J[c.J_GPUS, row], free_max(AB, C, -1))
            head = row
            break
        planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
    free = free_gpus(A, N, C)
    if head < 0 or i == stop or (free == 0 and C[c.C_WAITING_CPU] == 0):
        return head
    shadow = reserve(head, mode, now, leaving, placed, free, J, T, N, C, A, AB, P, PB, out, O, OT, M)
    looked = 0
    while i < stop and looked < depth and (free > 0 or C[c.C_WAITING_CPU] > 0):
        row = i if count == 0 else order[i]
        i += 1
        if not may_start(J, row, now, M):
            continue
        looked += 1
        if J[c.J_GPUS, row] > free or not within_limit(J, Q, planned, row):
            continue
        if now + max(J[c.J_ESTIMATE, row] - J[c.J_RUN, row], 0) <= shadow:
            done = try_place(mode, False, row, J, T, N, C, A, AB, P, PB, True, out[2], out, O, OT, M)
        else:
            done = try_place(mode, False, row, J, T, N, C, P, PB, A, AB, True, out[2], out, O, OT, M)
            if not done:
                say_why(O, M, J, row, R_RESERVED, J[c.J_GPUS, row], 0)
        if done:
            M[M_MORE] = 1
            free -= J[c.J_GPUS, row]
            planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
    if looked < depth:
        M[M_MORE] = 0
    return head


@kernel
def reserve(
    head: int, mode: int, now: int, leaving: Ints, placed: int, free: int,
    J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, P: Table, PB: Table, out: Table, O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """When the head will fit: its shadow time (µs; NEVER if it would not). Room `P` is then what is free now (`A`) without the
    GPUs reserved for it.

    Jobs placed in this round leave too; they are merged with the others by (end, number), and their overrides noted in
    `leaving` behind the `placed` keys.
    """
    copy_layer(A, AB, P, PB, C)
    stop = placed
    for i in range(M[M_OVERRIDES]):
        if O[i, c.O_OP] == OP_PLACE:
            end, row, k = fresh_end(J, O[i, c.O_ROW], now), O[i, c.O_ROW], stop
            while k > placed and leaves_after(J, O[leaving[k - 1], c.O_ROW], now, end, row):
                leaving[k] = leaving[k - 1]
                k -= 1
            leaving[k] = i
            stop += 1
    shadow, chosen, gpus = c.NEVER, -1, 0
    old, new = 0, placed
    while old < placed or new < stop:
        row, end = -1, c.NEVER
        if old < placed:
            row = leaving[old] & ROW_MASK
            end = estimated_end(J, row, now)
        if new < stop and (row < 0 or not leaves_after(J, O[leaving[new], c.O_ROW], now, end, row)):
            i = leaving[new]
            row, end = O[i, c.O_ROW], fresh_end(J, O[i, c.O_ROW], now)
            for k in range(O[i, c.O_TASKS]):
                t = O[i, c.O_TASK0] + k
                give_mask(P, PB, N, C, OT[t, 0], OT[t, 1], T[c.T_CPU, J[c.J_TASK0, row] + k], T[c.T_MEM, J[c.J_TASK0, row] + k])
            new += 1
        else:
            release_room(row, J, T, N, C, P, PB)
            old += 1
        free += J[c.J_GPUS, row]
        if free < J[c.J_GPUS, head]:
            continue
        chosen, gpus = choose_for(mode, head, J, N, C, P, PB, out, False, OT, M[M_TASKS])
        if chosen > 0:
            shadow = end
            break
    for i in range(chosen):
        out[2, i] = lowest_bits(P[A_MASK, out[0, i]], out[1, i] * gpus)
    copy_layer(A, AB, P, PB, C)
    for i in range(chosen):
        take_mask(P, PB, N, C, out[0, i], out[2, i], 0, 0)
    return shadow
