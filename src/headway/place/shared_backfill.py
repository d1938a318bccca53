"""EASY backfill with shares of GPUs, in two steps: place up to the first job that does not fit, then reserve for it and place
others around (`docs/semantics.md` §4, *Sharing*)."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import R_NO_ROOM, R_RESERVED
from headway.core.columns import ROW_BITS, ROW_MASK
from headway.core.jit import kernel
from headway.place.assign import M_MORE, M_OVERRIDES, M_TASKS, free_max
from headway.place.gang import copy_layer
from headway.place.passes import may_start, say_why, start_with, within_limit
from headway.place.shared import book_share, shares_now
from headway.place.shared_ranked import give_back, give_new, need_milli, place_in, shares_left, take_new


@kernel
def up_to_head(
    order: Ints, count: int, mode: int, now: int, J: Table, T: Table, N: Table, G: Table, Q: Table, B: Table, C: Ints,
    planned: Ints, A: Table, AB: Table, GB: Ints, out: Table, O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """Place the waiting rows of `order` until one does not fit; returns its place in the order (`count`: there is none)."""
    start_with(N, B, C, planned, A, AB, M)
    shares_now(J, T, N, G, C, O, OT, M, GB)
    for i in range(count):
        row = order[i]
        if not may_start(J, row, now, M) or not within_limit(J, Q, planned, row):
            continue
        if not place_in(row, mode, False, J, T, N, C, A, AB, GB, out, O, OT, M):
            say_why(O, M, J, row, R_NO_ROOM, J[c.J_GPUS, row], free_max(AB, C, -1))
            return i
        planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
    return count


@kernel
def reserve_shares(
    head: int, mode: int, now: int, ends: Ints, leave: int, begins: Ints, J: Table, T: Table, N: Table, C: Ints,
    A: Table, AB: Table, GB: Ints, P: Table, PB: Table, PG: Ints, out: Table, O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """The shadow time of the head (µs; NEVER: it would never fit). Room `P` is then `A` with the head's place there booked on top.

    Jobs leave by the sorted keys `ends` (time from now, row); `begins`: where in `OT` the place of a row begins that this plan
    has placed, else -1.
    """
    copy_layer(A, AB, P, PB, C)
    for g in range(C[c.C_GPUS]):
        PG[g] = GB[g]
    shadow, start, overrides = c.NEVER, M[M_TASKS], M[M_OVERRIDES]
    for k in range(leave):
        row = ends[k] & ROW_MASK
        if begins[row] >= 0:
            give_new(row, begins[row], J, T, N, C, P, PB, PG, OT)
        else:
            give_back(row, J, T, N, C, P, PB, PG)
        if need_milli(head, J) > shares_left(N, C, P, PG):
            continue
        if place_in(head, mode, False, J, T, N, C, P, PB, PG, out, O, OT, M):
            shadow = now + (ends[k] >> ROW_BITS)
            break
    copy_layer(A, AB, P, PB, C)
    for g in range(C[c.C_GPUS]):
        PG[g] = GB[g]
    for o in range(start, M[M_TASKS]):
        book_share(N, C, P, PB, PG, OT[o, 0], OT[o, 1], OT[o, 2], 0, 0)
    M[M_TASKS], M[M_OVERRIDES] = start, overrides
    return shadow


@kernel
def backfill_shares(
    order: Ints, first: int, count: int, mode: int, now: int, depth: int, ends: Ints, leave: int, begins: Ints,
    J: Table, T: Table, N: Table, Q: Table, C: Ints, planned: Ints, A: Table, AB: Table, GB: Ints, P: Table, PB: Table, PG: Ints,
    out: Table, O: Table, OT: Table, M: Ints,
) -> None:  # fmt: skip
    """Reserve for the head, `order[first]`, and place later ones: who leaves by the shadow time on all that nobody wants, others
    on what is left beside the reservation. M[M_MORE] is set if jobs were placed and `depth` left others without a look."""
    shadow = reserve_shares(
        order[first], mode, now, ends, leave, begins, J, T, N, C, A, AB, GB, P, PB, PG, out, O, OT, M
    )
    looked, placed = 0, False
    for i in range(first + 1, count):
        row = order[i]
        if looked == depth:
            M[M_MORE] = int(placed)
            return
        if not may_start(J, row, now, M):
            continue
        looked += 1
        if not within_limit(J, Q, planned, row) or need_milli(row, J) > shares_left(N, C, A, GB):
            continue
        start = M[M_TASKS]
        if now + max(J[c.J_ESTIMATE, row] - J[c.J_RUN, row], 0) <= shadow:
            done = place_in(row, mode, False, J, T, N, C, A, AB, GB, out, O, OT, M)
            if done:
                take_new(row, start, J, T, N, C, P, PB, PG, OT)
        else:
            done = place_in(row, mode, False, J, T, N, C, P, PB, PG, out, O, OT, M)
            if done:
                take_new(row, start, J, T, N, C, A, AB, GB, OT)
            else:
                say_why(O, M, J, row, R_RESERVED, J[c.J_GPUS, row], 0)
        if done:
            placed = True
            planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
