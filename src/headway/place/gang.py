"""Where a gang goes: the four placement kernels, as described in `docs/semantics.md` §3.

They work on *room*, the part of the cluster that may be used: `A` of shape (4, nodes) with the rows free GPUs, mask of free
GPUs, free cpus, free memory,
and `AB`, the buckets of up nodes by free GPUs (see `core.bitmap`). Choosing changes nothing; dealing takes what was chosen.
"""

from __future__ import annotations

from enum import IntEnum

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.bitmap import first_bit, lowest, move
from headway.core.codes import UP
from headway.core.jit import inner, kernel, popcount

A_FREE, A_MASK, A_CPU, A_MEM = range(4)
ROOM = 4


class Kernel(IntEnum):
    """The placement kernels by name (`placement=` of every classic policy)."""

    FIRST_FIT = 0
    BEST_FIT = 1
    CONSOLIDATED = 2
    TOPOLOGY = 3


FIRST_FIT, BEST_FIT, CONSOLIDATED, TOPOLOGY = 0, 1, 2, 3
ANY_RACK = -1


@inner
def clear(array: Ints) -> None:
    """Set an array to zero."""
    for i in range(array.shape[0]):
        array[i] = 0


@kernel
def copy_layer(A: Table, AB: Table, P: Table, PB: Table, C: Ints) -> None:
    """Make room `P` equal to room `A`."""
    for k in range(A.shape[0]):
        for node in range(C[c.C_NODES]):
            P[k, node] = A[k, node]
    for k in range(AB.shape[0]):
        for word in range(AB.shape[1]):
            PB[k, word] = AB[k, word]


@kernel
def copy_room(N: Table, B: Table, C: Ints, A: Table, AB: Table) -> None:
    """Fill `A` and `AB` with what nobody wants."""
    for node in range(C[c.C_NODES]):
        A[A_FREE, node] = N[c.N_FREE, node]
        A[A_MASK, node] = N[c.N_FREE_MASK, node]
        A[A_CPU, node] = N[c.N_CPU_MAX, node] - N[c.N_CPU, node]
        A[A_MEM, node] = N[c.N_MEM_MAX, node] - N[c.N_MEM, node]
    for row in range(B.shape[0]):
        for word in range(B.shape[1]):
            AB[row, word] = B[row, word]


@inner
def tasks_that_fit(A: Table, node: int, gpus: int, cpu: int, mem: int) -> int:
    """How many tasks of `gpus` whole GPUs, `cpu` and `mem` fit on a node (a demand of zero does not limit)."""
    fit = 1 << 30
    if gpus:
        fit = A[A_FREE, node] // gpus
    if cpu:
        fit = min(fit, A[A_CPU, node] // cpu)
    if mem:
        fit = min(fit, A[A_MEM, node] // mem)
    return max(fit, 0)


@kernel
def smallest(A: Table, AB: Table, words: int, kind_row: int, gpus_max: int, n: int, gpus: int, cpu: int, mem: int) -> int:
    """The node with the fewest free GPUs that has room for `n` tasks (ties: lowest number), or -1."""
    for free in range(n * gpus, gpus_max + 1):
        node = lowest(AB, words, kind_row + free)
        while node >= 0:
            if (cpu == 0 and mem == 0) or tasks_that_fit(A, node, gpus, cpu, mem) >= n:
                return node
            node = first_bit(AB, words, kind_row + free, node + 1)
    return -1


@kernel
def largest(A: Table, AB: Table, words: int, kind_row: int, gpus_max: int, gpus: int, cpu: int, mem: int) -> int:
    """The node with the most free GPUs that has room for a task (ties: lowest number), or -1."""
    for free in range(gpus_max, gpus - 1, -1):
        node = lowest(AB, words, kind_row + free)
        while node >= 0:
            if (cpu == 0 and mem == 0) or tasks_that_fit(A, node, gpus, cpu, mem) >= 1:
                return node
            node = first_bit(AB, words, kind_row + free, node + 1)
    return -1


@kernel
def in_rack(A: Table, N: Table, nodes: int, kind: int, rack: int, n: int, gpus: int, cpu: int, mem: int) -> int:
    """Consolidated choice within one rack: the smallest node for all `n` tasks, else the largest with room for one, else -1."""
    best, best_free, big, big_free = -1, 1 << 30, -1, -1
    for node in range(nodes):
        if N[c.N_RACK, node] != rack or N[c.N_PHASE, node] != UP or N[c.N_KIND, node] != kind:
            continue
        fit = tasks_that_fit(A, node, gpus, cpu, mem)
        if fit >= n and A[A_FREE, node] < best_free:
            best, best_free = node, A[A_FREE, node]
        if fit >= 1 and A[A_FREE, node] > big_free:
            big, big_free = node, A[A_FREE, node]
    return best if best >= 0 else big


@kernel
def choose_rack(A: Table, N: Table, nodes: int, kind: int, n: int, gpus: int, cpu: int, mem: int, sums: Ints) -> int:
    """The rack with the smallest room that holds all `n` tasks, else the rack with the largest room; -1 if there is no room at
    all."""
    racks = 0
    for node in range(nodes):
        racks = max(racks, N[c.N_RACK, node] + 1)
    for rack in range(racks):
        sums[rack] = 0
    for node in range(nodes):
        if N[c.N_PHASE, node] == UP and N[c.N_KIND, node] == kind:
            sums[N[c.N_RACK, node]] += tasks_that_fit(A, node, gpus, cpu, mem)
    best, big = -1, -1
    for rack in range(racks):
        if sums[rack] >= n and (best < 0 or sums[rack] < sums[best]):
            best = rack
        if sums[rack] > 0 and (big < 0 or sums[rack] > sums[big]):
            big = rack
    return best if best >= 0 else big


@kernel
def take_count(A: Table, AB: Table, words: int, kind_row: int, node: int, n: int, gpus: int, cpu: int, mem: int) -> None:
    """Take (or, with a negative `n`, give back) the room of `n` tasks by number, leaving the mask alone."""
    before = A[A_FREE, node]
    A[A_FREE, node] = before - n * gpus
    A[A_CPU, node] -= n * cpu
    A[A_MEM, node] -= n * mem
    move(AB, words, kind_row, node, before, A[A_FREE, node])


@kernel
def choose(
    mode: int, n: int, gpus: int, cpu: int, mem: int, kind: int, A: Table, AB: Table, N: Table, C: Ints, out: Table
) -> int:
    """Choose nodes of one kind for `n` equal tasks of `gpus` ≥ 1 GPUs. `out` (2, ≥ nodes): node numbers and tasks on each, in
    order of choice.

    Returns how many nodes were chosen, or -1 if the gang does not fit whole. The room is as before.
    """
    words, gpus_max, nodes = C[c.C_WORDS], C[c.C_GPUS_MAX], C[c.C_NODES]
    kind_row = kind * (gpus_max + 1)
    if mode != FIRST_FIT and mode != BEST_FIT and n * gpus <= gpus_max:
        node = smallest(A, AB, words, kind_row, gpus_max, n, gpus, cpu, mem)
        if node >= 0:
            out[0, 0], out[1, 0] = node, n
            return 1
    chosen, left, rack, start = 0, n, ANY_RACK, 0
    while left > 0:
        node = -1
        if mode == FIRST_FIT:
            while start < nodes:
                if N[c.N_PHASE, start] == UP and N[c.N_KIND, start] == kind and tasks_that_fit(A, start, gpus, cpu, mem) > 0:
                    node = start
                    break
                start += 1
        elif mode == BEST_FIT:
            node = smallest(A, AB, words, kind_row, gpus_max, 1, gpus, cpu, mem)
        elif mode == CONSOLIDATED:
            if left * gpus <= gpus_max:
                node = smallest(A, AB, words, kind_row, gpus_max, left, gpus, cpu, mem)
            if node < 0:
                node = largest(A, AB, words, kind_row, gpus_max, gpus, cpu, mem)
        else:
            if rack >= 0:
                node = in_rack(A, N, nodes, kind, rack, left, gpus, cpu, mem)
            if node < 0:
                rack = choose_rack(A, N, nodes, kind, left, gpus, cpu, mem, out[2])
                if rack >= 0:
                    node = in_rack(A, N, nodes, kind, rack, left, gpus, cpu, mem)
        if node < 0:
            break
        fit = min(tasks_that_fit(A, node, gpus, cpu, mem), left)
        take_count(A, AB, words, kind_row, node, fit, gpus, cpu, mem)
        out[0, chosen], out[1, chosen] = node, fit
        chosen += 1
        left -= fit
    for i in range(chosen):
        take_count(A, AB, words, kind_row, out[0, i], -out[1, i], gpus, cpu, mem)
    return chosen if left == 0 else -1


@kernel
def choose_without_gpus(n: int, cpu: int, mem: int, A: Table, N: Table, C: Ints, out: Table) -> int:
    """First fit by cpus and memory over all up nodes, for tasks without GPUs. As `choose`."""
    chosen, left = 0, n
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] != UP:
            continue
        fit = min(tasks_that_fit(A, node, 0, cpu, mem), left)
        if fit > 0:
            out[0, chosen], out[1, chosen] = node, fit
            chosen += 1
            left -= fit
        if left == 0:
            return chosen
    return -1


@inner
def lowest_bits(mask: int, count: int) -> int:
    """The `count` lowest set bits of a mask (all of them if there are fewer)."""
    picked = 0
    while count > 0 and mask != 0:
        low = mask & -mask
        picked |= low
        mask ^= low
        count -= 1
    return picked


@inner
def pick_gpus(idle: int, pool: int, held: int, count: int) -> int:
    """Which GPUs of a node a task takes: wanted and held by nobody first, then wanted by nobody, then the pool's; lowest first"""
    picked = lowest_bits(idle & ~held, count)
    if popcount(picked) < count:
        picked |= lowest_bits(idle & ~picked, count - popcount(picked))
    if popcount(picked) < count:
        picked |= lowest_bits(pool & ~picked, count - popcount(picked))
    return picked


@kernel
def take_mask(A: Table, AB: Table, N: Table, C: Ints, node: int, mask: int, cpu: int, mem: int) -> None:
    """Take the GPUs of `mask` (as far as they are in the room), `cpu` and `mem` of a node."""
    before = A[A_FREE, node]
    A[A_FREE, node] = before - popcount(A[A_MASK, node] & mask)
    A[A_MASK, node] &= ~mask
    A[A_CPU, node] -= cpu
    A[A_MEM, node] -= mem
    if N[c.N_PHASE, node] == UP:
        move(AB, C[c.C_WORDS], N[c.N_KIND, node] * (C[c.C_GPUS_MAX] + 1), node, before, A[A_FREE, node])


@kernel
def give_mask(A: Table, AB: Table, N: Table, C: Ints, node: int, mask: int, cpu: int, mem: int) -> None:
    """Put GPUs, cpus and memory of a node into the room."""
    before = A[A_FREE, node]
    A[A_FREE, node] = before + popcount(mask & ~A[A_MASK, node])
    A[A_MASK, node] |= mask
    A[A_CPU, node] += cpu
    A[A_MEM, node] += mem
    if N[c.N_PHASE, node] == UP:
        move(AB, C[c.C_WORDS], N[c.N_KIND, node] * (C[c.C_GPUS_MAX] + 1), node, before, A[A_FREE, node])
