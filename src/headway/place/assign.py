"""Placing one job whole: choose nodes, deal GPUs to its tasks, write the override into the plan's arrays.

A plan's arrays: `O` (rows × OVERRIDE), one row a job; `OT` (rows × PLACE), the tasks' places; `M`, how much of each is filled,
and what a pass has to tell (`M_READY`: the claims of queues have been served, and the room is as they left it).
Room comes in two layers where victims may lose their place: `A`, what nobody wants, and `P` ⊇ `A`, that and what pooled victims
have. Without victims `P` is `A`.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import OP_PLACE, UP
from headway.core.jit import inner, kernel
from headway.place.gang import A_CPU, A_MASK, A_MEM, choose, choose_without_gpus, pick_gpus, take_mask

M_OVERRIDES, M_TASKS, M_WAKE, M_UNPLACED, M_UNSELECTED, M_MORE, M_READY = range(7)


@kernel
def choose_for(
    mode: int,
    row: int,
    J: Table,
    N: Table,
    C: Ints,
    A: Table,
    AB: Table,
    out: Table,
    consolidated_only: bool,
    OT: Table,
    start: int,
) -> tuple[int, int]:
    """Choose nodes for a whole job: its first demand on each kind it may use, then its alternative; servers are seated in `OT`.

    Returns how many nodes were chosen (-1: the job does not fit) and how many GPUs a task takes.
    """
    cpu, mem, workers = J[c.J_CPU_TASK, row], J[c.J_MEM_TASK, row], J[c.J_WORKERS, row]
    if J[c.J_GPUS, row] == 0:
        chosen = choose_without_gpus(workers, cpu, mem, A, N, C, out)
        return (chosen, 0) if chosen > 0 and seat_servers(row, chosen, out, J, N, C, A, OT, start) else (-1, 0)
    for alternative in range(2):
        demand = J[c.J_GPU_TASK, row] if alternative == 0 else J[c.J_ALT_GPU, row]
        mask = J[c.J_KIND_MASK, row] if alternative == 0 else J[c.J_ALT_MASK, row]
        gpus = (demand + c.WHOLE - 1) // c.WHOLE
        if gpus == 0:
            continue
        for kind in range(C[c.C_KINDS]):
            if (mask >> kind) & 1 == 0:
                continue
            chosen = choose(mode, workers, gpus, cpu, mem, kind, A, AB, N, C, out)
            if chosen < 0 or (consolidated_only and chosen > fewest_nodes(workers, gpus, cpu, mem, kind, N, C)):
                continue
            if seat_servers(row, chosen, out, J, N, C, A, OT, start):
                return chosen, gpus
    return -1, 0


@kernel
def fewest_nodes(n: int, gpus: int, cpu: int, mem: int, kind: int, N: Table, C: Ints) -> int:
    """The least number of nodes of a kind that hold the gang when they are empty: by the largest node."""
    most = 0
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] == UP and N[c.N_KIND, node] == kind:
            fit = N[c.N_GPUS, node] // gpus
            if cpu:
                fit = min(fit, N[c.N_CPU_MAX, node] // cpu)
            if mem:
                fit = min(fit, N[c.N_MEM_MAX, node] // mem)
            most = max(most, fit)
    return (n + most - 1) // most if most else 1 << 30


@inner
def add_override(O: Table, M: Ints, J: Table, row: int, op: int, reason: int, task0: int, tasks: int) -> None:
    """Append an override of job `row`, in its present shape."""
    i = M[M_OVERRIDES]
    O[i, c.O_JOB], O[i, c.O_ROW], O[i, c.O_OP], O[i, c.O_REASON] = J[c.J_ID, row], row, op, reason
    O[i, c.O_DATA], O[i, c.O_SERVERS], O[i, c.O_BATCH] = J[c.J_DATA, row], J[c.J_SERVERS, row], J[c.J_BATCH, row]
    O[i, c.O_TASK0], O[i, c.O_TASKS], O[i, c.O_A], O[i, c.O_B] = task0, tasks, 0, 0
    M[M_OVERRIDES] = i + 1


@kernel
def seat_servers(row: int, chosen: int, out: Table, J: Table, N: Table, C: Ints, A: Table, OT: Table, start: int) -> bool:
    """Find a node for each parameter server beside the chosen workers, written to `OT` behind them. The room is as before;
    False if one has none."""
    servers = J[c.J_SERVERS, row]
    if servers == 0:
        return True
    cpu, mem, cpu_s, mem_s = J[c.J_CPU_TASK, row], J[c.J_MEM_TASK, row], J[c.J_SERVER_CPU, row], J[c.J_SERVER_MEM, row]
    for i in range(chosen):
        A[A_CPU, out[0, i]] -= out[1, i] * cpu
        A[A_MEM, out[0, i]] -= out[1, i] * mem
    first = start + J[c.J_WORKERS, row]
    seated = 0
    while seated < servers:
        node = -1
        for i in range(chosen):
            if A[A_CPU, out[0, i]] >= cpu_s and A[A_MEM, out[0, i]] >= mem_s:
                node = out[0, i]
                break
        if node < 0:
            for other in range(C[c.C_NODES]):
                if N[c.N_PHASE, other] == UP and A[A_CPU, other] >= cpu_s and A[A_MEM, other] >= mem_s:
                    node = other
                    break
        if node < 0:
            break
        A[A_CPU, node] -= cpu_s
        A[A_MEM, node] -= mem_s
        OT[first + seated, 0], OT[first + seated, 1], OT[first + seated, 2] = node, 0, 0
        seated += 1
    for s in range(seated):
        A[A_CPU, OT[first + s, 0]] += cpu_s
        A[A_MEM, OT[first + s, 0]] += mem_s
    for i in range(chosen):
        A[A_CPU, out[0, i]] += out[1, i] * cpu
        A[A_MEM, out[0, i]] += out[1, i] * mem
    return bool(seated == servers)


@kernel
def deal(
    row: int, chosen: int, gpus: int, out: Table, J: Table, N: Table, C: Ints,
    A: Table, AB: Table, P: Table, PB: Table, layered: bool, O: Table, OT: Table, M: Ints,
) -> None:  # fmt: skip
    """Give the workers of job `row` GPUs on the chosen nodes (those of `A` first, then those of `P`), and its servers the seats
    that were found."""
    cpu, mem = J[c.J_CPU_TASK, row], J[c.J_MEM_TASK, row]
    start = M[M_TASKS]
    t = start
    for i in range(chosen):
        node, count = out[0, i], out[1, i]
        for _ in range(count):
            mask = 0
            if gpus:
                pool = P[A_MASK, node] if layered else 0
                mask = pick_gpus(A[A_MASK, node], pool, N[c.N_HELD_MASK, node], gpus)
            OT[t, 0], OT[t, 1], OT[t, 2] = node, mask, c.WHOLE if gpus else 0
            t += 1
            take_mask(A, AB, N, C, node, mask, cpu, mem)
            if layered:
                take_mask(P, PB, N, C, node, mask, cpu, mem)
    for _ in range(J[c.J_SERVERS, row]):
        take_mask(A, AB, N, C, OT[t, 0], 0, J[c.J_SERVER_CPU, row], J[c.J_SERVER_MEM, row])
        if layered:
            take_mask(P, PB, N, C, OT[t, 0], 0, J[c.J_SERVER_CPU, row], J[c.J_SERVER_MEM, row])
        t += 1
    add_override(O, M, J, row, OP_PLACE, 0, start, t - start)
    M[M_TASKS] = t


@kernel
def free_max(AB: Table, C: Ints, kinds: int) -> int:
    """The most free GPUs on a single node of the kinds in the mask (for the reason of a refusal)."""
    for free in range(C[c.C_GPUS_MAX], 0, -1):
        for kind in range(C[c.C_KINDS]):
            if (kinds >> kind) & 1:
                row = kind * (C[c.C_GPUS_MAX] + 1) + free
                for word in range(C[c.C_WORDS], AB.shape[1]):
                    if AB[row, word] != 0:
                        return free
    return 0
