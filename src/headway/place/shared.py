"""Shares of GPUs: tasks that ask for less than a GPU, or whose job allows company, put together on devices."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import OP_PLACE, OP_RELEASE, UP
from headway.core.jit import ctz, inner, kernel
from headway.place.assign import M_OVERRIDES, M_TASKS, add_override
from headway.place.gang import A_CPU, A_FREE, A_MASK, A_MEM, give_mask, lowest_bits, take_mask


HOT = 1 << 20
"""Added to what is booked on a GPU that is overloaded now: nobody joins those who are there."""


@kernel
def shares_now(J: Table, T: Table, N: Table, G: Table, C: Ints, O: Table, OT: Table, M: Ints, GB: Ints) -> None:
    """What is booked on each GPU (milli), the plan's overrides so far included. A GPU in company whose measured usage is above the
    share limit counts as full; one with a single task is never overloaded."""
    for g in range(C[c.C_GPUS]):
        GB[g] = G[c.G_BOOKED, g]
        if G[c.G_HELD_TASKS, g] > 1 and G[c.G_USED, g] > C[c.C_SHARE_LIMIT]:
            GB[g] += HOT
    for i in range(M[M_OVERRIDES]):
        row = O[i, c.O_ROW]
        if O[i, c.O_OP] == OP_RELEASE:
            for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
                add_milli(-T[c.T_BOOK, t], T[c.T_NODE, t], T[c.T_MASK, t], N, GB)
        elif O[i, c.O_OP] == OP_PLACE:
            for o in range(O[i, c.O_TASK0], O[i, c.O_TASK0] + O[i, c.O_TASKS]):
                add_milli(OT[o, 2], OT[o, 0], OT[o, 1], N, GB)


@inner
def add_milli(milli: int, node: int, mask: int, N: Table, GB: Ints) -> None:
    """Add to what is booked on some GPUs of a node."""
    while mask != 0:
        GB[N[c.N_GPU0, node] + ctz(mask)] += milli
        mask &= mask - 1


@kernel
def find_share(milli: int, kinds: int, cpu: int, mem: int, N: Table, C: Ints, A: Table, GB: Ints) -> tuple[int, int]:
    """The GPU for a share of `milli`: the fullest one that is shared already and has room for it, else the lowest empty one.
    (-1, -1): none.

    A GPU in company is filled up to the cluster's share limit only; a lone task may take a GPU to its whole.
    """
    limit = C[c.C_SHARE_LIMIT]
    best_node, best_gpu, best_booked = -1, -1, 0
    empty_node, empty_gpu, empty_free = -1, -1, 1 << 30
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] != UP or (kinds >> N[c.N_KIND, node]) & 1 == 0:
            continue
        if A[A_CPU, node] < cpu or A[A_MEM, node] < mem:
            continue
        for local in range(N[c.N_GPUS, node]):
            booked = GB[N[c.N_GPU0, node] + local]
            if booked > best_booked and booked < c.WHOLE and booked + milli <= limit:
                best_node, best_gpu, best_booked = node, local, booked
        if A[A_FREE, node] > 0 and A[A_FREE, node] < empty_free:
            empty_node, empty_gpu, empty_free = node, ctz(A[A_MASK, node]), A[A_FREE, node]
    return (best_node, best_gpu) if best_node >= 0 else (empty_node, empty_gpu)


@kernel
def next_task(done: int, last: int, first: int, tasks: int, hardest: bool, T: Table) -> int:
    """The index of the task that is dealt after `last`: by index, or with `hardest` the largest share first, ties by index."""
    if not hardest:
        return done
    best = -1
    for k in range(tasks):
        milli = T[c.T_GPU, first + k]
        if last >= 0 and (milli > T[c.T_GPU, first + last] or (milli == T[c.T_GPU, first + last] and k <= last)):
            continue
        if best < 0 or milli > T[c.T_GPU, first + best]:
            best = k
    return best


@kernel
def place_shared(
    row: int, hardest: bool, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, GB: Ints, here: Ints,
    O: Table, OT: Table, M: Ints,
) -> bool:  # fmt: skip
    """Place a job task by task, fractions of GPUs side by side with others'. All or nothing.

    `hardest`: the largest shares are dealt first. `GB`: milli booked on each GPU, kept in step. `here`: scratch over nodes.
    """
    start = M[M_TASKS]
    first, tasks = J[c.J_TASK0, row], J[c.J_TASKS, row]
    for node in range(C[c.C_NODES]):
        here[node] = 0
    for k in range(tasks):
        OT[start + k, 0] = -1
    done, last = 0, -1
    while done < tasks:
        k = next_task(done, last, first, tasks, hardest, T)
        t = first + k
        milli, cpu, mem = T[c.T_GPU, t], T[c.T_CPU, t], T[c.T_MEM, t]
        node, mask, book = -1, 0, 0
        if milli == 0:
            node = seat(cpu, mem, N, C, A, here)
        elif milli < c.WHOLE:
            node, local = find_share(milli, J[c.J_KIND_MASK, row], cpu, mem, N, C, A, GB)
            if node >= 0:
                mask, book = 1 << local, milli
        else:
            node, mask = find_whole((milli + c.WHOLE - 1) // c.WHOLE, J[c.J_KIND_MASK, row], cpu, mem, N, C, A)
            book = c.WHOLE
        if node < 0:
            break
        OT[start + k, 0], OT[start + k, 1], OT[start + k, 2] = node, mask, book
        book_share(N, C, A, AB, GB, node, mask, book, cpu, mem)
        here[node] += 1
        done, last = done + 1, k
    if done == tasks:
        add_override(O, M, J, row, OP_PLACE, 0, start, tasks)
        M[M_TASKS] = start + tasks
        return True
    for k in range(tasks):
        if OT[start + k, 0] >= 0:
            t = first + k
            unbook_share(N, C, A, AB, GB, OT[start + k, 0], OT[start + k, 1], OT[start + k, 2], T[c.T_CPU, t], T[c.T_MEM, t])
    return False


@kernel
def find_whole(gpus: int, kinds: int, cpu: int, mem: int, N: Table, C: Ints, A: Table) -> tuple[int, int]:
    """The node with the fewest free GPUs that has `gpus` of them, cpus and memory, and its lowest ones as a mask; (-1, 0): none."""
    best = -1
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] != UP or (kinds >> N[c.N_KIND, node]) & 1 == 0:
            continue
        fits = A[A_FREE, node] >= gpus and A[A_CPU, node] >= cpu and A[A_MEM, node] >= mem
        if fits and (best < 0 or A[A_FREE, node] < A[A_FREE, best]):
            best = node
    return best, lowest_bits(A[A_MASK, best], gpus) if best >= 0 else 0


@kernel
def seat(cpu: int, mem: int, N: Table, C: Ints, A: Table, here: Ints) -> int:
    """The node for a task without GPUs: of those with room the one with most of the job's tasks (`here`), the lowest of equals;
    -1: none."""
    best = -1
    for node in range(C[c.C_NODES]):
        fits = N[c.N_PHASE, node] == UP and A[A_CPU, node] >= cpu and A[A_MEM, node] >= mem
        if fits and (best < 0 or here[node] > here[best]):
            best = node
    return best


@kernel
def book_share(N: Table, C: Ints, A: Table, AB: Table, GB: Ints, node: int, mask: int, book: int, cpu: int, mem: int) -> None:
    """Book a task's share in the room."""
    rest = mask
    while rest != 0:
        GB[N[c.N_GPU0, node] + ctz(rest)] += book
        rest &= rest - 1
    take_mask(A, AB, N, C, node, mask, cpu, mem)


@kernel
def unbook_share(N: Table, C: Ints, A: Table, AB: Table, GB: Ints, node: int, mask: int, book: int, cpu: int, mem: int) -> None:
    """Undo `book_share`; a GPU that nobody has a share of any more is free again."""
    freed = 0
    rest = mask
    while rest != 0:
        g = N[c.N_GPU0, node] + ctz(rest)
        GB[g] -= book
        if GB[g] == 0:
            freed |= rest & -rest
        rest &= rest - 1
    give_mask(A, AB, N, C, node, freed, cpu, mem)
