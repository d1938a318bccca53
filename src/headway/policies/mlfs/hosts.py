"""What MLF-H knows of hosts: loads, bookings, traffic, and the GPU of a host that a task gets (MLFS §3.3.2).

Loads are usages: measured where a task runs, requested where it does not yet. A GPU that is booked whole, or has one task only,
is never overloaded (A30); a GPU in company takes another task while requests and usage stay within h_r.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import ALL_REDUCE, CUT_CHAIN, CUT_NONE, PARAMETER_SERVER, UP
from headway.core.jit import ctz, inner, kernel, popcount
from headway.place.gang import A_FREE, A_MASK, give_mask, lowest_bits, take_mask

U_GPU, U_CPU, U_MEM, U_NET = range(4)
RESOURCES = 4
L_USED, L_BOOKED, L_TASKS = range(3)
"""Load of a GPU: usage and bookings in thousandths, and tasks."""
K_OVER, K_VOLUME, K_TOUCHED, K_HEAD = range(4)
"""Scratch columns over nodes: whether a node is overloaded; bytes an iteration between the task and the job's tasks there;
whether that is in the list of touched nodes; the first task of the node's list."""


@kernel
def load_all(T: Table, N: Table, G: Table, C: Ints, U: Table, K: Table, L: Table, nexts: Ints, h_r: float) -> int:
    """Usage of every node and GPU, the tasks of every node as a list, and which nodes are overloaded; returns how many are."""
    over = 0
    for node in range(C[c.C_NODES]):
        used, hot = 0, False
        for g in range(N[c.N_GPU0, node], N[c.N_GPU0, node] + N[c.N_GPUS, node]):
            L[L_USED, g], L[L_BOOKED, g], L[L_TASKS, g] = G[c.G_USED, g], G[c.G_BOOKED, g], G[c.G_TASKS, g]
            used += L[L_USED, g]
            hot = hot or gpu_overloaded(L, g, h_r)
        K[K_VOLUME, node], K[K_TOUCHED, node], K[K_HEAD, node] = 0, 0, -1
        U[U_GPU, node], U[U_CPU, node] = used, N[c.N_USE_CPU, node]
        U[U_MEM, node], U[U_NET, node] = N[c.N_USE_MEM, node], N[c.N_USE_NET, node]
        K[K_OVER, node] = int(N[c.N_PHASE, node] == UP and (hot or node_overloaded(N, U, node, h_r)))
        over += K[K_OVER, node]
    for t in range(C[c.C_TASKS]):
        if T[c.T_JOB, t] >= 0 and T[c.T_NODE, t] >= 0:
            nexts[t] = K[K_HEAD, T[c.T_NODE, t]]
            K[K_HEAD, T[c.T_NODE, t]] = t
    return over


@inner
def gpu_overloaded(L: Table, g: int, h_r: float) -> bool:
    """Whether a GPU in company is used above h_r."""
    return bool(L[L_TASKS, g] > 1 and L[L_USED, g] > h_r * c.WHOLE)


@inner
def capacity(N: Table, resource: int, node: int) -> float:
    """What a node has of a resource: GPU milli, cpu milli, bytes, bytes per second; at least 1."""
    if resource == U_GPU:
        return max(float(N[c.N_GPUS, node] * c.WHOLE), 1.0)
    column = c.N_CPU_MAX if resource == U_CPU else (c.N_MEM_MAX if resource == U_MEM else c.N_NET_MAX)
    return max(float(N[column, node]), 1.0)


@kernel
def node_overloaded(N: Table, U: Table, node: int, h_r: float) -> bool:
    """Whether cpus, memory or network of a node are used above h_r (its GPUs are judged one by one)."""
    for resource in range(U_CPU, RESOURCES):
        if U[resource, node] > h_r * capacity(N, resource, node):
            return True
    return False


@kernel
def add_volumes(row: int, k: int, J: Table, places: Ints, place0: int, K: Table, touched: Ints) -> int:
    """Note what task `k` of a job exchanges in an iteration with the job's placed tasks, in K_VOLUME of their nodes.

    `places[place0 + i]` is the node of task i, −1 if it has none. `touched` lists the nodes with a volume; returns how many.
    """
    partitions, replicas = J[c.J_PIPELINE, row] * J[c.J_TENSOR, row], J[c.J_DATA, row]
    workers, cut, width = partitions * replicas, J[c.J_CUT, row], max(J[c.J_WIDTH, row], 1)
    servers = J[c.J_SERVERS, row] if J[c.J_SYNC, row] == PARAMETER_SERVER else 0
    size, count = J[c.J_EDGE_BYTES, row], 0
    step = partitions if cut == CUT_NONE else (1 if cut == CUT_CHAIN else width)
    last = (partitions - 1) // step
    if k >= workers:
        each = (J[c.J_SYNC_BYTES, row] + max(servers, 1) - 1) // max(servers, 1)
        for j in range(workers):
            if servers and (j % partitions) // step == last:
                count = note(places[place0 + j], each, K, touched, count)
        return count
    layer, here = (k % partitions) // step, k - k % partitions
    if cut != CUT_NONE:
        for other in (layer - 1, layer + 1):
            if 0 <= other <= last:
                for j in range(here + other * step, min(here + (other + 1) * step, here + partitions)):
                    count = note(places[place0 + j], size, K, touched, count)
    elif J[c.J_SYNC, row] == ALL_REDUCE and workers > 1:
        count = note(places[place0 + (k + 1) % workers], size, K, touched, count)
        if workers > 2:
            count = note(places[place0 + (k + workers - 1) % workers], size, K, touched, count)
    if servers and layer == last:
        each = (J[c.J_SYNC_BYTES, row] + servers - 1) // servers
        for j in range(workers, workers + servers):
            count = note(places[place0 + j], each, K, touched, count)
    return count


@inner
def note(node: int, size: int, K: Table, touched: Ints, count: int) -> int:
    """Add a volume to a node."""
    if node < 0:
        return count
    if K[K_TOUCHED, node] == 0:
        K[K_TOUCHED, node] = 1
        touched[count] = node
        count += 1
    K[K_VOLUME, node] += size
    return count


@kernel
def forget_volumes(K: Table, touched: Ints, count: int) -> None:
    """Set the volumes of the touched nodes to 0."""
    for i in range(count):
        K[K_VOLUME, touched[i]], K[K_TOUCHED, touched[i]] = 0, 0


@kernel
def gpu_for(node: int, milli: int, shared: bool, room: int, N: Table, A: Table, L: Table) -> int:
    """The GPUs of a node that a task gets, as a mask: whole ones that nobody wants, or with `shared` the least-loaded one on
    which requests and usage stay within `room` (thousandths). 0: none."""
    if not shared:
        need = (milli + c.WHOLE - 1) // c.WHOLE
        return lowest_bits(A[A_MASK, node], need) if A[A_FREE, node] >= need else 0
    best, best_used = -1, 1 << 60
    for local in range(N[c.N_GPUS, node]):
        g = N[c.N_GPU0, node] + local
        empty = L[L_BOOKED, g] == 0
        if empty and (A[A_MASK, node] >> local) & 1 == 0:
            continue
        if (empty or (L[L_BOOKED, g] + milli <= room and L[L_USED, g] + milli <= room)) and L[L_USED, g] < best_used:
            best, best_used = local, L[L_USED, g]
    return 1 << best if best >= 0 else 0


@kernel
def load(sign: int, node: int, mask: int, gpu: int, cpu: int, mem: int, net: int, N: Table, U: Table, L: Table) -> None:
    """Add what a task uses to its node and GPUs (`gpu` in all, dealt evenly), or take it away."""
    rest, count = mask, max(popcount(mask), 1)
    while rest != 0:
        g = N[c.N_GPU0, node] + ctz(rest)
        rest &= rest - 1
        L[L_USED, g] += sign * (gpu // count)
        L[L_TASKS, g] += sign
    U[U_GPU, node] += sign * (gpu // count * popcount(mask))
    U[U_CPU, node] += sign * cpu
    U[U_MEM, node] += sign * mem
    U[U_NET, node] += sign * net


@kernel
def book(node: int, mask: int, milli: int, cpu: int, mem: int, N: Table, C: Ints, A: Table, AB: Table, L: Table) -> None:
    """Book a place: `milli` on each GPU, `cpu` and `mem`."""
    rest = mask
    while rest != 0:
        L[L_BOOKED, N[c.N_GPU0, node] + ctz(rest)] += milli
        rest &= rest - 1
    take_mask(A, AB, N, C, node, mask, cpu, mem)


@kernel
def unbook(node: int, mask: int, milli: int, cpu: int, mem: int, N: Table, C: Ints, A: Table, AB: Table, L: Table) -> None:
    """Undo `book`; a GPU that nobody has booked any more is free again."""
    rest, freed = mask, 0
    while rest != 0:
        g = N[c.N_GPU0, node] + ctz(rest)
        L[L_BOOKED, g] -= milli
        if L[L_BOOKED, g] == 0:
            freed |= rest & -rest
        rest &= rest - 1
    give_mask(A, AB, N, C, node, freed, cpu, mem)
