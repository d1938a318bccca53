"""Room for Gandiva's pass: what is booked on each GPU (`GB`, milli), and for each node its empty GPUs, cpus and memory (`A`).

Whole jobs go on empty GPUs, machines with jobs of the same size first (affinity); others are packed beside jobs that are there.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import OP_PLACE, UP
from headway.core.jit import ctz, inner, kernel
from headway.place.assign import M_TASKS, add_override, seat_servers
from headway.place.gang import A_CPU, A_FREE, A_MASK, A_MEM, choose_without_gpus, pick_gpus, tasks_that_fit

MIXED = -1
"""The label of a node with jobs of several sizes; 0: empty; else the GPUs that each of its jobs has."""
H_SLICE_US, H_LIMIT, H_HOT, H_COOL_US, H_SHARING, H_AFFINITY, H_DEFRAG, H_GROW = range(8)
"""Numbers of the pass: a slice; up to how much a GPU in company is filled (milli); the usage from which it is hot (milli; 0: no
moves); for how long a job that has just come up is not moved; whether GPUs are shared, affinity counts, gangs are gathered,
elastic jobs grow."""
NUMBERS = 8


@kernel
def fill_room(J: Table, T: Table, N: Table, G: Table, C: Ints, A: Table, GB: Ints, label: Ints) -> int:
    """Fill the room with what nobody wants, and the nodes' labels. Returns how many GPUs are empty on nodes that are up."""
    empty = 0
    for node in range(C[c.C_NODES]):
        A[A_FREE, node], A[A_MASK, node] = N[c.N_FREE, node], N[c.N_FREE_MASK, node]
        A[A_CPU, node] = N[c.N_CPU_MAX, node] - N[c.N_CPU, node]
        A[A_MEM, node] = N[c.N_MEM_MAX, node] - N[c.N_MEM, node]
        label[node] = 0
        if N[c.N_PHASE, node] == UP:
            empty += N[c.N_FREE, node]
    for g in range(C[c.C_GPUS]):
        GB[g] = G[c.G_BOOKED, g]
    for row in range(C[c.C_ROWS]):
        if J[c.J_PLACED, row] and J[c.J_GPUS, row]:
            for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_WORKERS, row]):
                set_label(label, T[c.T_NODE, t], J[c.J_GPUS, row])
    return empty


@inner
def set_label(label: Ints, node: int, size: int) -> None:
    """Note that a job of `size` GPUs is on the node."""
    label[node] = size if label[node] == 0 or label[node] == size else MIXED


@inner
def book(sign: int, node: int, mask: int, each: int, cpu: int, mem: int, N: Table, A: Table, GB: Ints) -> int:
    """Take (1) or give back (−1) a task's room. Returns by how much the empty GPUs of nodes that are up change."""
    rest, change = mask, 0
    while rest != 0:
        local = ctz(rest)
        g = N[c.N_GPU0, node] + local
        before = GB[g]
        GB[g] += sign * each
        if before == 0:
            A[A_MASK, node] &= ~(1 << local)
            change -= 1
        elif GB[g] == 0:
            A[A_MASK, node] |= 1 << local
            change += 1
        rest &= rest - 1
    A[A_FREE, node] += change
    A[A_CPU, node] -= sign * cpu
    A[A_MEM, node] -= sign * mem
    return change if N[c.N_PHASE, node] == UP else 0


@kernel
def book_job(sign: int, row: int, J: Table, T: Table, N: Table, A: Table, GB: Ints) -> int:
    """Take or give back the room of a placed job, where it is wanted now."""
    change = 0
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        change += book(sign, T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t], N, A, GB)
    return change


@kernel
def fits_back(row: int, J: Table, T: Table, N: Table, C: Ints, A: Table, GB: Ints) -> bool:
    """Whether a job that was taken out of the room could stay where it is."""
    first, tasks = J[c.J_TASK0, row], J[c.J_TASKS, row]
    done, fits = 0, True
    while fits and done < tasks:
        t = first + done
        node, rest, each = T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t]
        while rest != 0:
            before = GB[N[c.N_GPU0, node] + ctz(rest)]
            fits = fits and (before == 0 or before + each <= min(C[c.C_SHARE_LIMIT], c.WHOLE))
            rest &= rest - 1
        book(1, node, T[c.T_MASK, t], each, T[c.T_CPU, t], T[c.T_MEM, t], N, A, GB)
        fits = fits and A[A_CPU, node] >= 0 and A[A_MEM, node] >= 0
        done += 1
    for i in range(done):
        t = first + i
        book(-1, T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t], N, A, GB)
    return fits


@inner
def affinity(label: int, size: int, on: int) -> int:
    """How well a node suits a job of `size` GPUs, lower first: jobs of its size, nobody, others."""
    if on == 0 or label == size:
        return 0
    return 1 if label == 0 else 2


@kernel
def choose_affine(
    n: int, gpus: int, cpu: int, mem: int, kind: int, size: int, on: int, label: Ints, A: Table, N: Table, C: Ints, out: Table
) -> int:  # fmt: skip
    """Nodes for `n` tasks of `gpus` empty GPUs each: one node for all if there is one (by affinity, then the fewest empty GPUs),
    else those with most room first. `out`: nodes and tasks. Returns how many nodes, or −1."""
    chosen, left = 0, n
    while left > 0:
        one, one_suits, one_free, big, big_fit, big_suits = -1, 0, 0, -1, 0, 0
        for node in range(C[c.C_NODES]):
            if N[c.N_PHASE, node] != UP or N[c.N_KIND, node] != kind or A[A_FREE, node] < gpus:
                continue
            fit = min(tasks_that_fit(A, node, gpus, cpu, mem), left)
            if fit == 0:
                continue
            taken = False
            for i in range(chosen):
                taken = taken or out[0, i] == node
            if taken:
                continue
            suits = affinity(label[node], size, on)
            if fit == left and (one < 0 or suits < one_suits or (suits == one_suits and A[A_FREE, node] < one_free)):
                one, one_suits, one_free = node, suits, A[A_FREE, node]
            if fit > big_fit or (fit == big_fit and suits < big_suits):
                big, big_fit, big_suits = node, fit, suits
        if one < 0 and big < 0:
            return -1
        node = one if one >= 0 else big
        out[0, chosen], out[1, chosen] = node, left if one >= 0 else big_fit
        left -= out[1, chosen]
        chosen += 1
    return chosen


@inner
def booked_on(row: int, t: int, gpus: int, sharing: int, J: Table, T: Table) -> int:
    """What a task books on each GPU: its share where it allows company, else the whole."""
    if gpus == 0:
        return 0
    return int(T[c.T_GPU, t] if sharing and J[c.J_SHARE, row] and T[c.T_GPU, t] < c.WHOLE else c.WHOLE)


@kernel
def place_empty(
    row: int, H: Ints, J: Table, T: Table, N: Table, C: Ints, A: Table, GB: Ints, label: Ints, out: Table, O: Table, OT: Table,
    M: Ints,
) -> tuple[bool, int]:  # fmt: skip
    """Place a job on empty GPUs, whole. Returns whether it fits, and by how much the empty GPUs change."""
    cpu, mem, workers = J[c.J_CPU_TASK, row], J[c.J_MEM_TASK, row], J[c.J_WORKERS, row]
    start, size = M[M_TASKS], J[c.J_GPUS, row]
    chosen, gpus, first_demand = -1, 0, True
    if size == 0:
        chosen = choose_without_gpus(workers, cpu, mem, A, N, C, out)
        if chosen > 0 and not seat_servers(row, chosen, out, J, N, C, A, OT, start):
            chosen = -1
    for alternative in range(2):
        demand = J[c.J_GPU_TASK, row] if alternative == 0 else J[c.J_ALT_GPU, row]
        kinds = J[c.J_KIND_MASK, row] if alternative == 0 else J[c.J_ALT_MASK, row]
        if demand == 0 or size == 0:
            continue
        need = (demand + c.WHOLE - 1) // c.WHOLE
        for kind in range(C[c.C_KINDS]):
            if chosen > 0 or (kinds >> kind) & 1 == 0:
                continue
            chosen = choose_affine(workers, need, cpu, mem, kind, size, H[H_AFFINITY], label, A, N, C, out)
            if chosen > 0 and not seat_servers(row, chosen, out, J, N, C, A, OT, start):
                chosen = -1
            gpus, first_demand = need, alternative == 0
    if chosen <= 0:
        return False, 0
    o, t, change = start, J[c.J_TASK0, row], 0
    for i in range(chosen):
        node = out[0, i]
        for _ in range(out[1, i]):
            mask = pick_gpus(A[A_MASK, node], 0, N[c.N_HELD_MASK, node], gpus) if gpus else 0
            OT[o, 0], OT[o, 1] = node, mask
            OT[o, 2] = booked_on(row, t, gpus, H[H_SHARING] if first_demand else 0, J, T)
            change += book(1, node, mask, OT[o, 2], T[c.T_CPU, t], T[c.T_MEM, t], N, A, GB)
            if gpus:
                set_label(label, node, size)
            o += 1
            t += 1
    for _ in range(J[c.J_SERVERS, row]):
        book(1, OT[o, 0], 0, 0, J[c.J_SERVER_CPU, row], J[c.J_SERVER_MEM, row], N, A, GB)
        o += 1
    add_override(O, M, J, row, OP_PLACE, 0, start, o - start)
    M[M_TASKS] = o
    return True, change


@kernel
def roomiest(
    milli: int, cpu: int, mem: int, kinds: int, limit: int, row: int, N: Table, G: Table, C: Ints, A: Table, GB: Ints, ban: Ints
) -> tuple[int, int]:  # fmt: skip
    """The GPU (node, local index) that is used least of those with room for a share of `milli`, ties: lowest; (−1, −1): none.
    `ban`: GPUs that bear the job's mark are out."""
    best_node, best_gpu, least = -1, -1, 1 << 30
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] != UP or (kinds >> N[c.N_KIND, node]) & 1 == 0 or A[A_CPU, node] < cpu or A[A_MEM, node] < mem:
            continue
        for local in range(N[c.N_GPUS, node]):
            g = N[c.N_GPU0, node] + local
            load = max(GB[g], G[c.G_USED, g]) if GB[g] else 0
            if load < least and (load == 0 or (GB[g] < c.WHOLE and load + milli <= limit)) and ban[g] != row + 1:
                best_node, best_gpu, least = node, local, load
    return best_node, best_gpu


@kernel
def seat_for(cpu: int, mem: int, start: int, stop: int, N: Table, C: Ints, A: Table, OT: Table) -> int:
    """A node for a task without GPUs: the first of the job's with room, else the lowest; −1: none."""
    for o in range(start, stop):
        if A[A_CPU, OT[o, 0]] >= cpu and A[A_MEM, OT[o, 0]] >= mem:
            return int(OT[o, 0])
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] == UP and A[A_CPU, node] >= cpu and A[A_MEM, node] >= mem:
            return node
    return -1


@kernel
def place_packed(
    row: int, H: Ints, J: Table, T: Table, N: Table, G: Table, C: Ints, A: Table, GB: Ints, label: Ints, ban: Ints,
    O: Table, OT: Table, M: Ints,
) -> tuple[bool, int]:  # fmt: skip
    """Place a job that allows company task by task on the GPUs that are used least, whole or not at all. As `place_empty`."""
    start, first, tasks = M[M_TASKS], J[c.J_TASK0, row], J[c.J_TASKS, row]
    if not H[H_SHARING] or not J[c.J_SHARE, row] or J[c.J_GPU_TASK, row] >= c.WHOLE or J[c.J_GPUS, row] == 0:
        return False, 0
    limit = min(H[H_LIMIT], min(C[c.C_SHARE_LIMIT], c.WHOLE))
    done, change = 0, 0
    while done < tasks:
        t, o = first + done, start + done
        milli, node, mask = T[c.T_GPU, t], -1, 0
        if milli:
            node, local = roomiest(milli, T[c.T_CPU, t], T[c.T_MEM, t], J[c.J_KIND_MASK, row], limit, row, N, G, C, A, GB, ban)
            mask = 1 << local if node >= 0 else 0
        else:
            node = seat_for(T[c.T_CPU, t], T[c.T_MEM, t], start, o, N, C, A, OT)
        if node < 0:
            break
        OT[o, 0], OT[o, 1], OT[o, 2] = node, mask, milli
        change += book(1, node, mask, milli, T[c.T_CPU, t], T[c.T_MEM, t], N, A, GB)
        done += 1
    if done == tasks:
        for o in range(start, start + tasks):
            if OT[o, 1]:
                set_label(label, OT[o, 0], J[c.J_GPUS, row])
        add_override(O, M, J, row, OP_PLACE, 0, start, tasks)
        M[M_TASKS] = start + tasks
        return True, change
    for i in range(done):
        t, o = first + i, start + i
        book(-1, OT[o, 0], OT[o, 1], OT[o, 2], T[c.T_CPU, t], T[c.T_MEM, t], N, A, GB)
    return False, 0
