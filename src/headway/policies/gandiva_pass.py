"""Gandiva's round over the tables: trials undone, waiting jobs by turn over jobs whose slice is over, moves, growth.

Turns: the job that lost its place (or came) first is next. A slice ends at the next multiple of its length after the start, so
all slices that are over end together and gangs of any size find room for their turn.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import OP_PLACE, OP_RELEASE, QUEUED, R_NO_ROOM, R_OVER_QUOTA, R_PREEMPTED, R_TRIAL, RUNNING, UP
from headway.core.columns import ROW_MASK
from headway.core.jit import ctz, inner, kernel, popcount
from headway.place.assign import M_OVERRIDES, M_TASKS, M_UNPLACED, M_WAKE, add_override
from headway.place.gang import A_CPU, A_FREE, A_MASK, A_MEM, clear, lowest_bits
from headway.place.passes import may_start, say_why, within_limit
from headway.place.ranked import on_up_nodes
from headway.policies.gandiva_room import (
    H_COOL_US,
    H_GROW,
    H_HOT,
    H_SHARING,
    H_SLICE_US,
    book,
    book_job,
    choose_affine,
    fill_room,
    fits_back,
    place_empty,
    place_packed,
)
from headway.policies.ranks import PRIORITY_TOP, pack

STAYS, POOLED, TOUCHED = 0, 1, 2
"""A placed job's part in the round: left alone so far, out of the room for a try, given another place or none."""
KEY_UNIT_US = 1000


@inner
def is_settled(J: Table, row: int) -> bool:
    """Whether a job runs and nothing is to become of it already."""
    return bool(J[c.J_PHASE, row] == RUNNING and J[c.J_PLACED, row] and not J[c.J_MUST_STOP, row] and not J[c.J_FINISHING, row])


@inner
def slice_is_over(J: Table, row: int, now: int, length: int) -> bool:
    """Whether a multiple of the slice's length lies after the job's start and not after now."""
    return bool(J[c.J_STARTED_AT, row] >= 0 and now // length > J[c.J_STARTED_AT, row] // length)


@kernel
def turn_keys(now: int, H: Ints, J: Table, T: Table, N: Table, C: Ints, waiting: Ints, placed: Ints) -> tuple[int, int]:
    """Keys of waiting jobs, who is next first, and of running jobs with GPUs that may have to give way, the first to go first:
    lowest priority, then longest without a stop. Of priorities below all that wait, slices count for nothing."""
    w, v, top = 0, 0, -1
    for row in range(C[c.C_FIRST_WAITING], C[c.C_ROWS]):
        if J[c.J_PHASE, row] == QUEUED and J[c.J_PLACED, row] == 0:
            waiting[w] = pack(J[c.J_PRIORITY, row], J[c.J_QUEUED_AT, row] // KEY_UNIT_US, row)
            top = max(top, J[c.J_PRIORITY, row])
            w += 1
    if w == 0:
        return 0, 0
    for row in range(C[c.C_ROWS]):
        if not is_settled(J, row) or J[c.J_GPUS, row] == 0 or J[c.J_PRIORITY, row] > top:
            continue
        if J[c.J_PRIORITY, row] < top or slice_is_over(J, row, now, H[H_SLICE_US]):
            if on_up_nodes(row, J, T, N):
                placed[v] = pack(PRIORITY_TOP - J[c.J_PRIORITY, row], J[c.J_STARTED_AT, row] // KEY_UNIT_US, row)
                v += 1
    return w, v


@kernel
def try_job(
    row: int, pairs: Table, H: Ints, J: Table, T: Table, N: Table, G: Table, C: Ints, A: Table, GB: Ints, label: Ints, ban: Ints,
    out: Table, O: Table, OT: Table, M: Ints,
) -> tuple[bool, int]:  # fmt: skip
    """A waiting job on empty GPUs, else packed; not beside a job with which that has turned out worse (`pairs` of rows)."""
    done, change = place_empty(row, H, J, T, N, C, A, GB, label, out, O, OT, M)
    if done or not H[H_SHARING]:
        return done, change
    for k in range(pairs.shape[0]):
        if pairs[k, 0] == row:
            other = pairs[k, 1]
            if J[c.J_PLACED, other]:
                for t in range(J[c.J_TASK0, other], J[c.J_TASK0, other] + J[c.J_TASKS, other]):
                    rest = T[c.T_MASK, t]
                    while rest != 0:
                        ban[N[c.N_GPU0, T[c.T_NODE, t]] + ctz(rest)] = row + 1
                        rest &= rest - 1
    return place_packed(row, H, J, T, N, G, C, A, GB, label, ban, O, OT, M)


@kernel
def shrink(row: int, data: int, J: Table, T: Table, N: Table, A: Table, GB: Ints, O: Table, OT: Table, M: Ints) -> int:
    """Want a grown job with `data` replicas, on the places of its first ones. Returns how many GPUs become empty."""
    start, first = M[M_TASKS], J[c.J_TASK0, row]
    change = book_job(-1, row, J, T, N, A, GB)
    workers = data * J[c.J_PIPELINE, row] * J[c.J_TENSOR, row]
    for i in range(workers + J[c.J_SERVERS, row]):
        t = first + i if i < workers else first + J[c.J_WORKERS, row] + i - workers
        OT[start + i, 0], OT[start + i, 1], OT[start + i, 2] = T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t]
        change += book(1, T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t], N, A, GB)
    resize_override(row, data, start, workers + J[c.J_SERVERS, row], J, O, M)
    return change


@inner
def resize_override(row: int, data: int, start: int, tasks: int, J: Table, O: Table, M: Ints) -> None:
    """Want a job in another shape."""
    add_override(O, M, J, row, OP_PLACE, 0, start, tasks)
    O[M[M_OVERRIDES] - 1, c.O_DATA] = data
    M[M_TASKS] = start + tasks


@kernel
def undo_trials(undone: Ints, now: int, J: Table, T: Table, N: Table, A: Table, GB: Ints, mark: Ints, O: Table, M: Ints) -> int:
    """Take back the places of jobs whose packing turned out worse; the round wakes at once, since they wait then. Returns how
    many GPUs become empty."""
    change = 0
    for i in range(undone.shape[0]):
        row = undone[i]
        if is_settled(J, row) and mark[row] == STAYS:
            mark[row] = TOUCHED
            add_override(O, M, J, row, OP_RELEASE, R_TRIAL, 0, 0)
            M[M_WAKE] = min(M[M_WAKE], now)
            change += book_job(-1, row, J, T, N, A, GB)
    return change


@kernel
def gandiva(
    now: int, H: Ints, undone: Ints, pairs: Table, asked: Ints,
    waiting: Ints, waiting_count: int, placed: Ints, placed_count: int,
    J: Table, T: Table, N: Table, G: Table, Q: Table, C: Ints, planned: Ints,
    A: Table, GB: Ints, label: Ints, ban: Ints, mark: Ints, pool: Ints, out: Table, O: Table, OT: Table, M: Ints,
) -> None:  # fmt: skip
    """The round. `waiting`, `placed`: sorted keys of `turn_keys`; `asked`: by row, the replicas that an elastic job asked for
    (0: not elastic); `mark`, `pool`: scratch by row, `label`, `ban`: zeros by node and GPU. M[M_WAKE] is set to when time alone
    changes something."""
    empty = fill_room(J, T, N, G, C, A, GB, label)
    clear(planned)
    for row in range(C[c.C_ROWS]):
        mark[row] = STAYS
    empty += undo_trials(undone, now, J, T, N, A, GB, mark, O, M)
    left_gpus, unplaced = 0, 0
    for i in range(placed_count):
        left_gpus += J[c.J_GPUS, placed[i] & ROW_MASK]
    for k in range(waiting_count):
        row = waiting[k] & ROW_MASK
        if not may_start(J, row, now, M):
            continue
        if not within_limit(J, Q, planned, row):
            say_why(O, M, J, row, R_OVER_QUOTA, J[c.J_GPUS, row], 0)
            continue
        gpus = J[c.J_GPUS, row]
        done = False
        if gpus <= empty or H[H_SHARING]:
            done, change = try_job(row, pairs, H, J, T, N, G, C, A, GB, label, ban, out, O, OT, M)
            empty += change
        other = C[c.C_ROWS] - 1
        while not done and H[H_GROW] and gpus and other >= 0:
            if asked[other] and J[c.J_DATA, other] > asked[other] and is_settled(J, other) and mark[other] == STAYS:
                if on_up_nodes(other, J, T, N):
                    mark[other] = TOUCHED
                    empty += shrink(other, asked[other], J, T, N, A, GB, O, OT, M)
                    done, change = try_job(row, pairs, H, J, T, N, G, C, A, GB, label, ban, out, O, OT, M)
                    empty += change
            other -= 1
        if not done and gpus and gpus <= empty + left_gpus:
            done, empty, left_gpus = over_slices(
                row, now, empty, left_gpus, pairs, H, placed, placed_count, J, T, N, G, C, A, GB, label, ban, mark, pool, out, O,
                OT, M,
            )  # fmt: skip
        if done:
            planned[J[c.J_QUEUE, row]] += gpus * c.WHOLE
        else:
            unplaced += 1
            say_why(O, M, J, row, R_NO_ROOM, gpus, 0)
    M[M_UNPLACED] = unplaced
    if unplaced and C[c.C_RUNNING] + C[c.C_PLACED_WAITING] + M[M_TASKS]:
        M[M_WAKE] = min(M[M_WAKE], (now // H[H_SLICE_US] + 1) * H[H_SLICE_US])


@kernel
def over_slices(
    row: int, now: int, empty: int, left_gpus: int, pairs: Table, H: Ints, placed: Ints, placed_count: int,
    J: Table, T: Table, N: Table, G: Table, C: Ints, A: Table, GB: Ints, label: Ints, ban: Ints, mark: Ints, pool: Ints,
    out: Table, O: Table, OT: Table, M: Ints,
) -> tuple[bool, int, int]:  # fmt: skip
    """Place a waiting job over running ones that may have to give way to it, one after the other until it fits. Those whose room
    it did not need stay; the others wait (the round wakes at once). Returns whether it fits, the empty GPUs, and the GPUs of
    those that are left."""
    size, done = 0, False
    for i in range(placed_count):
        victim = placed[i] & ROW_MASK
        if mark[victim] != STAYS or J[c.J_PRIORITY, victim] > J[c.J_PRIORITY, row]:
            continue
        if J[c.J_PRIORITY, victim] == J[c.J_PRIORITY, row] and not slice_is_over(J, victim, now, H[H_SLICE_US]):
            continue
        mark[victim] = POOLED
        pool[size] = victim
        size += 1
        empty += book_job(-1, victim, J, T, N, A, GB)
        left_gpus -= J[c.J_GPUS, victim]
        if empty >= J[c.J_GPUS, row]:
            done, change = try_job(row, pairs, H, J, T, N, G, C, A, GB, label, ban, out, O, OT, M)
            empty += change
            if done:
                break
    for i in range(size - 1, -1, -1):
        victim = pool[i]
        if not done or fits_back(victim, J, T, N, C, A, GB):
            empty += book_job(1, victim, J, T, N, A, GB)
            left_gpus += J[c.J_GPUS, victim]
            mark[victim] = STAYS
        else:
            mark[victim] = TOUCHED
            add_override(O, M, J, victim, OP_RELEASE, R_PREEMPTED, 0, 0)
            M[M_WAKE] = min(M[M_WAKE], now)
    return done, empty, left_gpus


@inner
def is_warm(J: Table, row: int, now: int, H: Ints, M: Ints) -> bool:
    """Whether a job has come up so lately that it is left alone; then the round wakes when that is over."""
    until = J[c.J_STARTED_AT, row] + H[H_COOL_US]
    if now < until:
        M[M_WAKE] = min(M[M_WAKE], until)
        return True
    return False


@kernel
def keep_places(row: int, start: int, J: Table, T: Table, OT: Table) -> None:
    """Write the present places of a job's tasks."""
    for i in range(J[c.J_TASKS, row]):
        t, o = J[c.J_TASK0, row] + i, start + i
        OT[o, 0], OT[o, 1], OT[o, 2] = T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t]


@kernel
def cool_gpus(
    now: int, H: Ints, J: Table, T: Table, N: Table, G: Table, C: Ints, A: Table, GB: Ints, mark: Ints, least: Ints, O: Table,
    OT: Table, M: Ints,
) -> int:  # fmt: skip
    """For each GPU in company that is used above the threshold: of its jobs the one that uses it least moves that task to the GPU
    that is used least, if it is below the threshold with it. Returns how many moved; one move a job.
    `least`: scratch by GPU."""
    moved, limit = 0, min(C[c.C_SHARE_LIMIT], c.WHOLE)
    for g in range(C[c.C_GPUS]):
        least[g] = -1
    for t in range(C[c.C_TASKS]):
        row, mask = T[c.T_JOB, t], T[c.T_MASK, t]
        if row < 0 or not is_settled(J, row) or mark[row] != STAYS or popcount(mask) != 1:
            continue
        g = N[c.N_GPU0, T[c.T_NODE, t]] + ctz(mask)
        if G[c.G_TASKS, g] < 2 or G[c.G_USED, g] <= H[H_HOT] or is_warm(J, row, now, H, M) or not on_up_nodes(row, J, T, N):
            continue
        if least[g] < 0 or T[c.T_USE_GPU, t] < T[c.T_USE_GPU, least[g]]:
            least[g] = t
    for g in range(C[c.C_GPUS]):
        best, node = least[g], G[c.G_NODE, g]
        if best < 0 or mark[T[c.T_JOB, best]] != STAYS:
            continue
        bit = T[c.T_MASK, best]
        row = T[c.T_JOB, best]
        to, to_mask, to_load = -1, 0, 1 << 60
        for other in range(C[c.C_NODES]):
            fits = other == node or (A[A_CPU, other] >= T[c.T_CPU, best] and A[A_MEM, other] >= T[c.T_MEM, best])
            if not fits or N[c.N_PHASE, other] != UP or (J[c.J_KIND_MASK, row] >> N[c.N_KIND, other]) & 1 == 0:
                continue
            for local in range(N[c.N_GPUS, other]):
                h = N[c.N_GPU0, other] + local
                load = max(GB[h], G[c.G_USED, h]) if GB[h] else 0
                room = load == 0 or (GB[h] + T[c.T_BOOK, best] <= limit and load + T[c.T_USE_GPU, best] <= H[H_HOT])
                if room and load < to_load and h != g:
                    to, to_mask, to_load = other, 1 << local, load
        if to < 0:
            continue
        start = M[M_TASKS]
        keep_places(row, start, J, T, OT)
        o = start + best - J[c.J_TASK0, row]
        book(-1, node, bit, T[c.T_BOOK, best], T[c.T_CPU, best], T[c.T_MEM, best], N, A, GB)
        book(1, to, to_mask, T[c.T_BOOK, best], T[c.T_CPU, best], T[c.T_MEM, best], N, A, GB)
        OT[o, 0], OT[o, 1] = to, to_mask
        mark[row] = TOUCHED
        add_override(O, M, J, row, OP_PLACE, 0, start, J[c.J_TASKS, row])
        M[M_TASKS] = start + J[c.J_TASKS, row]
        moved += 1
    return moved


@kernel
def nodes_of(row: int, J: Table, T: Table) -> int:
    """On how many nodes the workers of a placed job are."""
    first, count = J[c.J_TASK0, row], 0
    for i in range(J[c.J_WORKERS, row]):
        new = True
        for k in range(i):
            new = new and T[c.T_NODE, first + k] != T[c.T_NODE, first + i]
        count += int(new)
    return count


@kernel
def gather(
    now: int, H: Ints, J: Table, T: Table, N: Table, G: Table, C: Ints, A: Table, GB: Ints, label: Ints, mark: Ints, out: Table,
    O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """Defragmentation: the first gang (by arrival) that would need fewer nodes on what is empty and its own GPUs moves there."""
    for row in range(C[c.C_ROWS]):
        if not is_settled(J, row) or mark[row] != STAYS or J[c.J_WORKERS, row] < 2 or J[c.J_GPUS, row] == 0:
            continue
        before = nodes_of(row, J, T)
        if before < 2 or not on_up_nodes(row, J, T, N) or is_warm(J, row, now, H, M):
            continue
        node = T[c.T_NODE, J[c.J_TASK0, row]]
        gpus = popcount(T[c.T_MASK, J[c.J_TASK0, row]])
        if gpus == 0 or gpus != (J[c.J_GPU_TASK, row] + c.WHOLE - 1) // c.WHOLE:
            continue
        book_job(-1, row, J, T, N, A, GB)
        after = choose_affine(
            J[c.J_WORKERS, row], gpus, J[c.J_CPU_TASK, row], J[c.J_MEM_TASK, row], N[c.N_KIND, node], J[c.J_GPUS, row], 0,
            label, A, N, C, out,
        )  # fmt: skip
        if 0 < after < before:
            done, _ = place_empty(row, H, J, T, N, C, A, GB, label, out, O, OT, M)
            if done:
                mark[row] = TOUCHED
                return 1
        book_job(1, row, J, T, N, A, GB)
    return 0


@kernel
def grow(
    now: int, H: Ints, asked: Ints, J: Table, T: Table, N: Table, C: Ints, A: Table, GB: Ints, mark: Ints, O: Table, OT: Table,
    M: Ints,
) -> int:  # fmt: skip
    """Elastic jobs take empty GPUs of their own nodes, by arrival: as many more replicas as fit. Returns how many grew."""
    grown = 0
    for row in range(C[c.C_ROWS]):
        if asked[row] == 0 or not is_settled(J, row) or mark[row] != STAYS or J[c.J_DATA, row] >= J[c.J_DATA_MAX, row]:
            continue
        if J[c.J_DETAILS, row] or J[c.J_GPUS, row] == 0 or J[c.J_ALT_GPU, row] or not on_up_nodes(row, J, T, N):
            continue
        start, first, workers = M[M_TASKS], J[c.J_TASK0, row], J[c.J_WORKERS, row]
        each, gpus = J[c.J_PIPELINE, row] * J[c.J_TENSOR, row], (J[c.J_GPU_TASK, row] + c.WHOLE - 1) // c.WHOLE
        cpu, mem, milli = J[c.J_CPU_TASK, row], J[c.J_MEM_TASK, row], T[c.T_BOOK, first]
        room = (J[c.J_DATA_MAX, row] - J[c.J_DATA, row]) * each
        if start + workers + room + J[c.J_SERVERS, row] > OT.shape[0]:
            continue
        o, more = start + workers, 0
        i = 0
        while i < workers and more < room:
            node = T[c.T_NODE, first + i]
            if A[A_FREE, node] >= gpus and A[A_CPU, node] >= cpu and A[A_MEM, node] >= mem:
                OT[o, 0], OT[o, 1], OT[o, 2] = node, lowest_bits(A[A_MASK, node], gpus), milli
                book(1, node, OT[o, 1], milli, cpu, mem, N, A, GB)
                o += 1
                more += 1
            else:
                i += 1
        extra = more // each
        while more > extra * each:
            o -= 1
            more -= 1
            book(-1, OT[o, 0], OT[o, 1], milli, cpu, mem, N, A, GB)
        if extra and is_warm(J, row, now, H, M):
            extra = 0
        if extra == 0:
            while more:
                o -= 1
                more -= 1
                book(-1, OT[o, 0], OT[o, 1], milli, cpu, mem, N, A, GB)
            continue
        for k in range(workers):
            OT[start + k, 0], OT[start + k, 1], OT[start + k, 2] = (
                T[c.T_NODE, first + k], T[c.T_MASK, first + k], T[c.T_BOOK, first + k],
            )  # fmt: skip
        for k in range(J[c.J_SERVERS, row]):
            t = first + workers + k
            OT[o + k, 0], OT[o + k, 1], OT[o + k, 2] = T[c.T_NODE, t], 0, 0
        mark[row] = TOUCHED
        resize_override(row, J[c.J_DATA, row] + extra, start, workers + more + J[c.J_SERVERS, row], J, O, M)
        grown += 1
    return grown
