"""Shares of GPUs: tasks that ask for less than a GPU, or whose job allows company, put together on devices."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import OP_PLACE, UP
from headway.core.jit import ctz, kernel
from headway.place.assign import M_TASKS, add_override
from headway.place.gang import A_CPU, A_FREE, A_MASK, A_MEM, give_mask, take_mask


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
def place_shared(
    row: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, GB: Ints, O: Table, OT: Table, M: Ints
) -> bool:
    """Place a job task by task, fractions of GPUs side by side with others'. `GB`: milli booked on each GPU, kept in step. All
    or nothing."""
    start = M[M_TASKS]
    first, tasks = J[c.J_TASK0, row], J[c.J_TASKS, row]
    done = 0
    while done < tasks:
        t = first + done
        milli, cpu, mem = T[c.T_GPU, t], T[c.T_CPU, t], T[c.T_MEM, t]
        node, mask, book = -1, 0, 0
        if milli == 0:
            node = first_with(cpu, mem, N, C, A)
        elif milli < c.WHOLE:
            node, local = find_share(milli, J[c.J_KIND_MASK, row], cpu, mem, N, C, A, GB)
            if node >= 0:
                mask, book = 1 << local, milli
        else:
            gpus = (milli + c.WHOLE - 1) // c.WHOLE
            for other in range(C[c.C_NODES]):
                fits = A[A_FREE, other] >= gpus and A[A_CPU, other] >= cpu and A[A_MEM, other] >= mem
                kind_ok = (J[c.J_KIND_MASK, row] >> N[c.N_KIND, other]) & 1
                if fits and kind_ok and N[c.N_PHASE, other] == UP and (node < 0 or A[A_FREE, other] < A[A_FREE, node]):
                    node = other
            if node >= 0:
                rest = A[A_MASK, node]
                for _ in range(gpus):
                    mask |= rest & -rest
                    rest &= rest - 1
                book = c.WHOLE
        if node < 0:
            break
        OT[start + done, 0], OT[start + done, 1], OT[start + done, 2] = node, mask, book
        book_share(N, C, A, AB, GB, node, mask, book, cpu, mem)
        done += 1
    if done == tasks:
        add_override(O, M, J, row, OP_PLACE, 0, start, tasks)
        M[M_TASKS] = start + tasks
        return True
    for i in range(done):
        t = first + i
        unbook_share(N, C, A, AB, GB, OT[start + i, 0], OT[start + i, 1], OT[start + i, 2], T[c.T_CPU, t], T[c.T_MEM, t])
    return False


@kernel
def first_with(cpu: int, mem: int, N: Table, C: Ints, A: Table) -> int:
    """The lowest node with room for `cpu` and `mem`, or -1."""
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] == UP and A[A_CPU, node] >= cpu and A[A_MEM, node] >= mem:
            return node
    return -1


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
