"""The host nearest to the ideal virtual one (MLFS §3.3.2), without a look at every node for every task.

Nodes lie in blocks of 64. Of every block, and of all nodes, the index keeps the least utilisation of each resource (of all nodes
that is the ideal virtual host), the least distance from the ideal, and the most room. A search passes over the blocks that have
no room, or no node nearer than the best so far. Distances are kept until the ideal moves; a node that takes a task renews its
block.
The outcome is that of the plain search over all nodes, bit for bit (`tests/policies/mlfs/test_nearest.py` keeps that one).
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import UP
from headway.core.jit import inner, kernel
from headway.place.gang import A_CPU, A_FREE, A_MASK, A_MEM
from headway.policies.mlfs.hosts import (
    K_OVER,
    K_VOLUME,
    L_BOOKED,
    L_USED,
    RESOURCES,
    U_CPU,
    U_GPU,
    U_MEM,
    U_NET,
    capacity,
    gpu_for,
)

BLOCK = 64
F_FAR = RESOURCES
FLOATS = RESOURCES + 1
"""Rows of `F`: the utilisation of each resource, and the squared distance by these from the ideal. Columns: one a node, then one
a block (the least of its nodes), then one for all (the least of all)."""
S_SPACE, S_FREE, S_STALE = range(3)
SIZES = 3
"""Rows of `S`, columns as in `F` (the most instead of the least): thousandths that a task which shares finds on one GPU; free
GPUs; whether nodes of the block have changed. Room is −1 where nobody may go: on nodes that are not up, or overloaded."""
NOWHERE = 1e30
SLOTS = c.WHOLE + 1


@inner
def blocks_of(nodes: int) -> int:
    """How many blocks so many nodes make."""
    return (nodes + BLOCK - 1) // BLOCK


def columns_of(nodes: int) -> int:
    """How many columns the index of so many nodes has."""
    return nodes + (nodes + BLOCK - 1) // BLOCK + 1


@kernel
def space_on(node: int, room: int, N: Table, A: Table, L: Table) -> int:
    """The most thousandths that a task which shares can ask for on a GPU of a node: as `gpu_for` would give them."""
    most = -1
    for local in range(N[c.N_GPUS, node]):
        g = N[c.N_GPU0, node] + local
        if L[L_BOOKED, g] == 0:
            if (A[A_MASK, node] >> local) & 1:
                return c.WHOLE
        else:
            most = max(most, room - max(L[L_BOOKED, g], L[L_USED, g]))
    return most


@kernel
def renew_node(node: int, room: int, N: Table, C: Ints, A: Table, U: Table, K: Table, L: Table, F: Floats, S: Table) -> None:
    """Take in what has changed of a node's load or room."""
    if N[c.N_PHASE, node] != UP or K[K_OVER, node]:
        return
    for resource in range(RESOURCES):
        F[resource, node] = U[resource, node] / capacity(N, resource, node)
    S[S_SPACE, node], S[S_FREE, node] = space_on(node, room, N, A, L), A[A_FREE, node]
    S[S_STALE, C[c.C_NODES] + node // BLOCK] = 1


@kernel
def index_nodes(room: int, N: Table, C: Ints, A: Table, U: Table, K: Table, L: Table, F: Floats, S: Table) -> None:
    """Fill the index."""
    nodes = C[c.C_NODES]
    for node in range(nodes):
        for resource in range(FLOATS):
            F[resource, node] = NOWHERE
        S[S_SPACE, node], S[S_FREE, node] = -1, -1
        renew_node(node, room, N, C, A, U, K, L, F, S)
    for k in range(nodes, nodes + blocks_of(nodes) + 1):
        for resource in range(FLOATS):
            F[resource, k] = NOWHERE
        S[S_SPACE, k], S[S_FREE, k], S[S_STALE, k] = -1, -1, 1
    renew(C, F, S)


@inner
def gather(out: int, first: int, stop: int, F: Floats, S: Table) -> None:
    """The least utilisations and the most room of the columns from `first` on, into column `out`."""
    gpu, cpu, mem, net, space, free = NOWHERE, NOWHERE, NOWHERE, NOWHERE, -1, -1
    for k in range(first, stop):
        gpu, cpu = min(gpu, F[U_GPU, k]), min(cpu, F[U_CPU, k])
        mem, net = min(mem, F[U_MEM, k]), min(net, F[U_NET, k])
        space, free = max(space, S[S_SPACE, k]), max(free, S[S_FREE, k])
    F[U_GPU, out], F[U_CPU, out], F[U_MEM, out], F[U_NET, out] = gpu, cpu, mem, net
    S[S_SPACE, out], S[S_FREE, out] = space, free


@kernel
def measure(block: int, nodes: int, F: Floats, S: Table) -> None:
    """Distances of a block's nodes from the ideal."""
    top, nearest = F.shape[1] - 1, NOWHERE
    low_gpu, low_cpu, low_mem, low_net = F[U_GPU, top], F[U_CPU, top], F[U_MEM, top], F[U_NET, top]
    for node in range(block * BLOCK, min(block * BLOCK + BLOCK, nodes)):
        if S[S_FREE, node] >= 0:
            far = (F[U_GPU, node] - low_gpu) ** 2 + (F[U_CPU, node] - low_cpu) ** 2 + (F[U_MEM, node] - low_mem) ** 2
            far += (F[U_NET, node] - low_net) ** 2
            F[F_FAR, node] = far
            nearest = min(nearest, far)
    F[F_FAR, nodes + block] = nearest


@kernel
def renew(C: Ints, F: Floats, S: Table) -> None:
    """Bring blocks whose nodes have changed, the ideal, and with it all distances up to date."""
    nodes = C[c.C_NODES]
    blocks, top, stale = blocks_of(nodes), F.shape[1] - 1, False
    for block in range(blocks):
        if S[S_STALE, nodes + block]:
            stale = True
            gather(nodes + block, block * BLOCK, min(block * BLOCK + BLOCK, nodes), F, S)
    if not stale:
        return
    low_gpu, low_cpu, low_mem, low_net = F[U_GPU, top], F[U_CPU, top], F[U_MEM, top], F[U_NET, top]
    gather(top, nodes, nodes + blocks, F, S)
    moved = low_gpu != F[U_GPU, top] or low_cpu != F[U_CPU, top] or low_mem != F[U_MEM, top] or low_net != F[U_NET, top]
    for block in range(blocks):
        if moved or S[S_STALE, nodes + block]:
            measure(block, nodes, F, S)
            S[S_STALE, nodes + block] = 0


@inner
def room_row(milli: int, shared: bool) -> tuple[int, int]:
    """The row of `S` that says whether a node has room for a task, and what must be there at least."""
    if shared and milli:
        return S_SPACE, milli
    return S_FREE, (milli + c.WHOLE - 1) // c.WHOLE


@inner
def takes(
    node: int, milli: int, cpu: int, mem: int, net: int, kinds: int, not_on: int, h_r: float, N: Table, A: Table, U: Table
) -> bool:
    """Whether the task may go to a node that has a GPU for it: another than the one it leaves, of the right kind, with cpus and
    memory to spare, and not overloaded with the task."""
    if node == not_on or A[A_CPU, node] < cpu or A[A_MEM, node] < mem or (milli and (kinds >> N[c.N_KIND, node]) & 1 == 0):
        return False
    if U[U_CPU, node] + cpu > h_r * capacity(N, U_CPU, node) or U[U_MEM, node] + mem > h_r * capacity(N, U_MEM, node):
        return False
    return bool(U[U_NET, node] + net <= h_r * capacity(N, U_NET, node))


@inner
def loss_by_move(node: int, mem: int, N: Table, F: Floats) -> float:
    """The squared loss by a move to a node: a tenth of its cpu utilisation for the hours of the transfer, at most 1."""
    move_s = mem / capacity(N, U_NET, node)
    return float(min(1.0, 0.1 * F[U_CPU, node] * move_s / 3600.0) ** 2)


@kernel
def ideal_host(
    milli: int, cpu: int, mem: int, net: int, kinds: int, not_on: int, moving: bool, shared: bool, bandwidth: bool,
    h_r: float, room: int, N: Table, C: Ints, A: Table, U: Table, K: Table, L: Table, touched: Ints, count: int,
    F: Floats, S: Table,
) -> tuple[int, int]:  # fmt: skip
    """The node nearest to the ideal virtual host that takes the task without being overloaded, and the GPUs there (a mask).

    The ideal has the least load of each resource among the underloaded nodes, the largest volume with the task, and no loss by
    the move. Ties: the lowest number. (−1, 0): no node takes the task.
    """
    renew(C, F, S)
    nodes, (row, need) = C[c.C_NODES], room_row(milli, shared)
    best, best_far, most = -1, NOWHERE, 0
    if S[row, F.shape[1] - 1] < need:
        return -1, 0
    if bandwidth:
        for i in range(count):
            if S[S_FREE, touched[i]] >= 0:
                most = max(most, K[K_VOLUME, touched[i]])
    if most:
        for i in range(count):
            node = touched[i]
            if S[row, node] >= need:
                far = F[F_FAR, node] + (K[K_VOLUME, node] / most - 1.0) ** 2
                if moving:
                    far += loss_by_move(node, mem, N, F)
                nearer = far < best_far or (far == best_far and node < best)
                if nearer and takes(node, milli, cpu, mem, net, kinds, not_on, h_r, N, A, U):
                    best, best_far = node, far
    away = 1.0 if most else 0.0
    for block in range(blocks_of(nodes)):
        first, far = block * BLOCK, F[F_FAR, nodes + block] + away
        if S[row, nodes + block] < need or far > best_far or (far == best_far and first > best):
            continue
        for node in range(first, min(first + BLOCK, nodes)):
            far = F[F_FAR, node] + away
            if S[row, node] < need or far > best_far or (most and K[K_VOLUME, node]):
                continue
            if moving:
                far += loss_by_move(node, mem, N, F)
            nearer = far < best_far or (far == best_far and node < best)
            if nearer and takes(node, milli, cpu, mem, net, kinds, not_on, h_r, N, A, U):
                best, best_far = node, far
    if best < 0 or milli == 0:
        return best, 0
    return best, gpu_for(best, milli, shared, room, N, A, L)


@kernel
def hopeless(row: int, sharing: bool, J: Table, T: Table, C: Ints, F: Floats, S: Table) -> bool:
    """Whether a task of a job asks for more than any node has left, so that the job need not be tried."""
    renew(C, F, S)
    top = F.shape[1] - 1
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        milli = T[c.T_GPU, t]
        of, need = room_row(milli, bool(sharing and J[c.J_SHARE, row] and milli < c.WHOLE))
        if S[of, top] < need:
            return True
    return False


@kernel
def count_slots(room: int, N: Table, C: Ints, A: Table, L: Table, S: Table, slots: Ints) -> None:
    """For q = 1 … 1000, how many tasks of at least q thousandths the GPUs have room for at most (`slots[q]`); at 0, free GPUs.
    The second half of `slots` begins with the most free GPUs on a node, the rest of it is scratch."""
    for q in range(2 * SLOTS):
        slots[q] = 0
    for node in range(C[c.C_NODES]):
        if S[S_FREE, node] < 0:
            continue
        slots[0] += A[A_FREE, node]
        slots[SLOTS] = max(slots[SLOTS], A[A_FREE, node])
        for local in range(N[c.N_GPUS, node]):
            g = N[c.N_GPU0, node] + local
            space = room - max(L[L_BOOKED, g], L[L_USED, g])
            if L[L_BOOKED, g] == 0:
                space = c.WHOLE if (A[A_MASK, node] >> local) & 1 else 0
            if space > 0:
                slots[SLOTS + space] += 1
    for space in range(c.WHOLE - 1, 0, -1):
        slots[SLOTS + space] += slots[SLOTS + space + 1]
    for q in range(1, SLOTS):
        for times in range(q, SLOTS, q):
            slots[q] += slots[SLOTS + times]


@kernel
def no_slots(row: int, sharing: bool, J: Table, T: Table, slots: Ints) -> bool:
    """Whether the GPUs, by number and size of what is left on them, cannot hold a job."""
    asked, least, most, whole, widest = 0, c.WHOLE, 0, 0, 0
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        milli = T[c.T_GPU, t]
        if milli and sharing and J[c.J_SHARE, row] and milli < c.WHOLE:
            asked, least, most = asked + 1, min(least, milli), max(most, milli)
        elif milli:
            gpus = (milli + c.WHOLE - 1) // c.WHOLE
            whole, widest = whole + gpus, max(widest, gpus)
    if asked and (slots[least] < asked or slots[most] == 0):
        return True
    return bool(whole > slots[0] or widest > slots[SLOTS])
