"""Booking what is wanted and what is held, on nodes, GPUs, queues and the free-GPU buckets. Every change of a place goes
through these four kernels.

Each returns 0, or the code of the invariant that the change would break; the state is then not to be used any more.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.bitmap import move
from headway.core.codes import DOWN, UP
from headway.core.jit import ctz, kernel, popcount

OK = 0
OVER_BOOKED_GPU = 11
OVER_BOOKED_CPU = 12
OVER_BOOKED_MEM = 13
OVER_HELD_GPU = 14
OVER_HELD_NODE = 15
NEGATIVE = 16
BROKEN_GANG = 17
BAD_GPU = 18


@kernel
def book(J: Table, T: Table, N: Table, G: Table, Q: Table, B: Table, C: Ints, row: int, pool: Ints, at: int, size: int) -> int:
    """Book the place `pool[at : at + size]` (node, mask, milli for each task) as what job `row` wants."""
    first, tasks = J[c.J_TASK0, row], J[c.J_TASKS, row]
    if size != c.PLACE * tasks:
        return BROKEN_GANG
    booked = 0
    for i in range(tasks):
        t = first + i
        node, mask, milli = pool[at + c.PLACE * i], pool[at + c.PLACE * i + 1], pool[at + c.PLACE * i + 2]
        T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t] = node, mask, milli
        N[c.N_CPU, node] += T[c.T_CPU, t]
        N[c.N_MEM, node] += T[c.T_MEM, t]
        N[c.N_NET, node] += T[c.T_NET, t]
        if N[c.N_CPU, node] > N[c.N_CPU_MAX, node]:
            return OVER_BOOKED_CPU
        if N[c.N_MEM, node] > N[c.N_MEM_MAX, node]:
            return OVER_BOOKED_MEM
        rest = mask
        while rest != 0:
            bit = ctz(rest)
            rest &= rest - 1
            if bit >= N[c.N_GPUS, node]:
                return BAD_GPU
            g = N[c.N_GPU0, node] + bit
            G[c.G_BOOKED, g] += milli
            G[c.G_TASKS, g] += 1
            if G[c.G_BOOKED, g] > c.WHOLE:
                return OVER_BOOKED_GPU
            booked += milli
        taken = popcount(N[c.N_FREE_MASK, node] & mask)
        if taken:
            before = N[c.N_FREE, node]
            N[c.N_FREE, node] = before - taken
            N[c.N_FREE_MASK, node] &= ~mask
            if N[c.N_PHASE, node] == UP:
                move(B, C[c.C_WORDS], N[c.N_KIND, node] * (C[c.C_GPUS_MAX] + 1), node, before, before - taken)
    Q[c.Q_BOOKED, J[c.J_QUEUE, row]] += booked
    J[c.J_PLACED, row] = 1
    return OK


@kernel
def unbook(J: Table, T: Table, N: Table, G: Table, Q: Table, B: Table, C: Ints, row: int) -> int:
    """Give up what job `row` wants."""
    booked = 0
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        node, mask, milli = T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t]
        T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t] = -1, 0, 0
        N[c.N_CPU, node] -= T[c.T_CPU, t]
        N[c.N_MEM, node] -= T[c.T_MEM, t]
        N[c.N_NET, node] -= T[c.T_NET, t]
        if N[c.N_CPU, node] < 0 or N[c.N_MEM, node] < 0:
            return NEGATIVE
        freed = 0
        rest = mask
        while rest != 0:
            bit = ctz(rest)
            rest &= rest - 1
            g = N[c.N_GPU0, node] + bit
            G[c.G_BOOKED, g] -= milli
            G[c.G_TASKS, g] -= 1
            if G[c.G_BOOKED, g] < 0 or G[c.G_TASKS, g] < 0:
                return NEGATIVE
            booked += milli
            if G[c.G_TASKS, g] == 0:
                freed |= 1 << bit
        if freed:
            before = N[c.N_FREE, node]
            N[c.N_FREE, node] = before + popcount(freed)
            N[c.N_FREE_MASK, node] |= freed
            if N[c.N_PHASE, node] == UP:
                move(B, C[c.C_WORDS], N[c.N_KIND, node] * (C[c.C_GPUS_MAX] + 1), node, before, N[c.N_FREE, node])
    Q[c.Q_BOOKED, J[c.J_QUEUE, row]] -= booked
    J[c.J_PLACED, row] = 0
    return OK


@kernel
def hold(J: Table, T: Table, N: Table, G: Table, row: int) -> int:
    """The processes of job `row` are being started on the place it wants: that place is held from now on."""
    first, tasks = J[c.J_TASK0, row], J[c.J_TASKS, row]
    milli = 0
    for t in range(first, first + tasks):
        node, mask, per_gpu = T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t]
        T[c.T_HELD_NODE, t], T[c.T_HELD_MASK, t], T[c.T_HELD_BOOK, t] = node, mask, per_gpu
        T[c.T_USE_GPU, t], T[c.T_USE_CPU, t], T[c.T_USE_MEM, t], T[c.T_USE_NET, t] = (
            T[c.T_GPU, t],
            T[c.T_CPU, t],
            T[c.T_MEM, t],
            T[c.T_NET, t],
        )
        N[c.N_HELD_CPU, node] += T[c.T_CPU, t]
        N[c.N_HELD_MEM, node] += T[c.T_MEM, t]
        N[c.N_USE_CPU, node] += T[c.T_CPU, t]
        N[c.N_USE_MEM, node] += T[c.T_MEM, t]
        N[c.N_USE_NET, node] += T[c.T_NET, t]
        if N[c.N_HELD_CPU, node] > N[c.N_CPU_MAX, node] or N[c.N_HELD_MEM, node] > N[c.N_MEM_MAX, node]:
            return OVER_HELD_NODE
        N[c.N_HELD_MASK, node] |= mask
        rest = mask
        share = T[c.T_GPU, t] // popcount(mask) if mask else 0
        while rest != 0:
            g = N[c.N_GPU0, node] + ctz(rest)
            rest &= rest - 1
            G[c.G_HELD, g] += per_gpu
            G[c.G_HELD_TASKS, g] += 1
            G[c.G_USED, g] += share
            if G[c.G_HELD, g] > c.WHOLE:
                return OVER_HELD_GPU
            milli += per_gpu
    J[c.J_HELD_TASK0, row], J[c.J_HELD_TASKS, row], J[c.J_HELD_MILLI, row] = first, tasks, milli
    return OK


@kernel
def unhold(J: Table, T: Table, N: Table, G: Table, row: int) -> int:
    """The processes of job `row` are gone: nothing of it is held any more."""
    first, tasks = J[c.J_HELD_TASK0, row], J[c.J_HELD_TASKS, row]
    for t in range(first, first + tasks):
        node, mask, per_gpu = T[c.T_HELD_NODE, t], T[c.T_HELD_MASK, t], T[c.T_HELD_BOOK, t]
        T[c.T_HELD_NODE, t], T[c.T_HELD_MASK, t], T[c.T_HELD_BOOK, t] = -1, 0, 0
        N[c.N_HELD_CPU, node] -= T[c.T_CPU, t]
        N[c.N_HELD_MEM, node] -= T[c.T_MEM, t]
        N[c.N_USE_CPU, node] -= T[c.T_USE_CPU, t]
        N[c.N_USE_MEM, node] -= T[c.T_USE_MEM, t]
        N[c.N_USE_NET, node] -= T[c.T_USE_NET, t]
        if N[c.N_HELD_CPU, node] < 0 or N[c.N_HELD_MEM, node] < 0:
            return NEGATIVE
        rest = mask
        share = T[c.T_USE_GPU, t] // popcount(mask) if mask else 0
        while rest != 0:
            bit = ctz(rest)
            rest &= rest - 1
            g = N[c.N_GPU0, node] + bit
            G[c.G_HELD, g] -= per_gpu
            G[c.G_HELD_TASKS, g] -= 1
            G[c.G_USED, g] -= share
            if G[c.G_HELD, g] < 0 or G[c.G_HELD_TASKS, g] < 0:
                return NEGATIVE
            if G[c.G_HELD_TASKS, g] == 0:
                N[c.N_HELD_MASK, node] &= ~(1 << bit)
        T[c.T_USE_GPU, t], T[c.T_USE_CPU, t], T[c.T_USE_MEM, t], T[c.T_USE_NET, t] = 0, 0, 0, 0
    J[c.J_HELD_TASKS, row] = 0
    J[c.J_HELD_MILLI, row] = 0
    return OK


@kernel
def can_start(J: Table, T: Table, N: Table, G: Table, row: int) -> bool:
    """Whether nothing that is still held stands in the way of starting job `row`, whole, on the place it wants.

    The gang is added to what is held task by task and taken away again, so that its own tasks count against each other.
    """
    first = J[c.J_TASK0, row]
    done = first
    fits = True
    while fits and done < first + J[c.J_TASKS, row]:
        node, mask, milli = T[c.T_NODE, done], T[c.T_MASK, done], T[c.T_BOOK, done]
        if N[c.N_PHASE, node] == DOWN:
            fits = False
            break
        N[c.N_HELD_CPU, node] += T[c.T_CPU, done]
        N[c.N_HELD_MEM, node] += T[c.T_MEM, done]
        fits = N[c.N_HELD_CPU, node] <= N[c.N_CPU_MAX, node] and N[c.N_HELD_MEM, node] <= N[c.N_MEM_MAX, node]
        rest = mask
        while rest != 0:
            g = N[c.N_GPU0, node] + ctz(rest)
            rest &= rest - 1
            G[c.G_HELD, g] += milli
            fits = fits and G[c.G_HELD, g] <= c.WHOLE
        done += 1
    for t in range(first, done):
        node = T[c.T_NODE, t]
        N[c.N_HELD_CPU, node] -= T[c.T_CPU, t]
        N[c.N_HELD_MEM, node] -= T[c.T_MEM, t]
        rest = T[c.T_MASK, t]
        while rest != 0:
            g = N[c.N_GPU0, node] + ctz(rest)
            rest &= rest - 1
            G[c.G_HELD, g] -= T[c.T_BOOK, t]
    return fits
