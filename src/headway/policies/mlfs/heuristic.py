"""One round of MLF-H (MLFS §3.3): tasks leave overloaded nodes, and with the waiting jobs they are given hosts by priority.

Jobs are ranked by their highest task that is no server and placed whole, task by task from the highest priority down; a job whose
tasks do not all fit leaves no booking (§9). A task that finds no other host stays where it is.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import OP_PLACE, R_NO_ROOM, RUNNING, SERVER, STOPPING
from headway.core.columns import ROW_MASK
from headway.core.jit import inner, kernel, popcount
from headway.place.assign import M_TASKS, M_UNPLACED, add_override, free_max
from headway.place.gang import copy_room
from headway.place.passes import may_start, say_why, within_limit
from headway.policies.mlfs.hosts import (
    K_HEAD,
    K_OVER,
    K_VOLUME,
    L_BOOKED,
    L_USED,
    RESOURCES,
    U_GPU,
    add_volumes,
    book,
    capacity,
    forget_volumes,
    gpu_overloaded,
    load,
    load_all,
    node_overloaded,
    unbook,
)
from headway.policies.mlfs.nearest import count_slots, hopeless, ideal_host, index_nodes, no_slots, renew_node
from headway.policies.ranks import KEY_MAX, pack

STAYED, LEAVES, MOVED = 0, 1, 2
"""What becomes of a running task in this round."""
SCORES_PER_UNIT = 100_000
"""Priorities are compared in steps of 1/100,000, so that the last bits of a sum decide nothing."""
SIFT_MIN = 32
"""Queues shorter than this are not sifted: counting the room costs more than trying the jobs."""
H_FRAC, H_LOWEST, H_COOL_US, H_OTHERS = range(4)
"""Numbers of the pass: h_r; p_s, the share of the lowest tasks of overloaded GPUs that may leave; for how long a job that has
just come up is not moved again (µs); the share of the lowest tasks that may leave for another overloaded resource."""


@inner
def key_of(priority: int, score: float, row: int) -> int:
    """A sortable number: the job's class, then its score from the highest down, then its row."""
    steps = int(min(max(score, 0.0) * SCORES_PER_UNIT, float(KEY_MAX)))
    return pack(priority, KEY_MAX - steps, row)


@kernel
def leave_node(
    node: int, now: int, sharing: bool, bandwidth: bool, H: Floats, J: Table, T: Table, N: Table, G: Table, C: Ints,
    A: Table, AB: Table, U: Table, K: Table, L: Table, nexts: Ints, touched: Ints, P: Floats, fate: Ints, pool: Ints,
) -> int:  # fmt: skip
    """Take tasks off an overloaded node, virtually, until it is not overloaded or nothing may leave (§3.3.3); returns how many.
    They keep their bookings until they have another host, so that nobody takes the place of one that finds none.

    The one to leave is nearest to the ideal virtual task: it uses most of what is overloaded, least of the rest, and exchanges
    nothing with the others on the node. `pool`: scratch over tasks.
    """
    left = 0
    while True:
        hot = False
        for g in range(N[c.N_GPU0, node], N[c.N_GPU0, node] + N[c.N_GPUS, node]):
            hot = hot or gpu_overloaded(L, g, H[H_FRAC])
        if not hot and not node_overloaded(N, U, node, H[H_FRAC]):
            break
        size = candidates(node, now, hot, H, J, T, N, G, L, K, nexts, P, fate, pool)
        if size == 0:
            break
        best, best_far = -1, 1e30
        for i in range(size):
            far = distance_from_ideal(pool[i], node, hot, bandwidth, H[H_FRAC], J, T, N, C, U, K, nexts, touched, fate)
            if far < best_far or (far == best_far and pool[i] < best):
                best, best_far = pool[i], far
        load_task(-1, best, node, T[c.T_MASK, best], T, N, U, L)
        fate[best] = LEAVES
        left += 1
    K[K_OVER, node] = int(hot or node_overloaded(N, U, node, H[H_FRAC]))
    return left


@kernel
def candidates(
    node: int, now: int, hot: bool, H: Floats, J: Table, T: Table, N: Table, G: Table, L: Table, K: Table, nexts: Ints,
    P: Floats, fate: Ints, pool: Ints,
) -> int:  # fmt: skip
    """The tasks that may leave a node, in `pool`: with an overloaded GPU the lowest share p_s (at least one) of the tasks on such
    GPUs, else the lowest share of all (A9); only of jobs that have been up for a while."""
    size = 0
    t = K[K_HEAD, node]
    while t >= 0:
        row = T[c.T_JOB, t]
        movable = J[c.J_PHASE, row] == RUNNING and J[c.J_MUST_STOP, row] == 0 and J[c.J_FINISHING, row] == 0
        movable = movable and fate[t] == STAYED and now - J[c.J_STARTED_AT, row] >= H[H_COOL_US]
        if movable and hot:
            movable = False
            mask = T[c.T_MASK, t]
            for local in range(N[c.N_GPUS, node]):
                g = N[c.N_GPU0, node] + local
                movable = movable or ((mask >> local) & 1 == 1 and gpu_overloaded(L, g, H[H_FRAC]))
        if movable:
            k = size
            while k > 0 and (P[pool[k - 1]] > P[t] or (P[pool[k - 1]] == P[t] and pool[k - 1] > t)):
                pool[k] = pool[k - 1]
                k -= 1
            pool[k] = t
            size += 1
        t = nexts[t]
    return max(int(size * (H[H_LOWEST] if hot else H[H_OTHERS])), 1) if size else 0


@kernel
def distance_from_ideal(
    t: int, node: int, hot: bool, bandwidth: bool, h_r: float,
    J: Table, T: Table, N: Table, C: Ints, U: Table, K: Table, nexts: Ints, touched: Ints, fate: Ints,
) -> float:  # fmt: skip
    """The squared distance of a task from the ideal virtual one of its node (§3.3.3)."""
    far = 0.0
    for resource in range(RESOURCES):
        column = c.T_USE_GPU + resource
        cap = capacity(N, resource, node)
        over = hot if resource == U_GPU else U[resource, node] > h_r * cap
        ideal = -1.0
        other = K[K_HEAD, node]
        while other >= 0:
            if fate[other] == STAYED:
                use = T[column, other] / cap
                ideal = use if ideal < 0 else (max(ideal, use) if over else min(ideal, use))
            other = nexts[other]
        far += (T[column, t] / cap - ideal) ** 2
    if bandwidth:
        row = T[c.T_JOB, t]
        first = J[c.J_TASK0, row]
        count = add_volumes(row, t - first, J, T[c.T_NODE], first, K, touched)
        here, everywhere = K[K_VOLUME, node], 0
        for i in range(count):
            everywhere += K[K_VOLUME, touched[i]]
        forget_volumes(K, touched, count)
        if everywhere:
            far += (here / everywhere) ** 2
    return far


@inner
def load_task(sign: int, t: int, node: int, mask: int, T: Table, N: Table, U: Table, L: Table) -> None:
    """Add what a running task uses to a node, or take it away."""
    load(sign, node, mask, T[c.T_USE_GPU, t], T[c.T_USE_CPU, t], T[c.T_USE_MEM, t], T[c.T_USE_NET, t], N, U, L)


@inner
def shares(row: int, t: int, sharing: bool, J: Table, T: Table) -> bool:
    """Whether a task is put beside others on a GPU."""
    return bool(sharing and J[c.J_SHARE, row] and T[c.T_GPU, t] < c.WHOLE)


@kernel
def by_priority(row: int, J: Table, T: Table, P: Floats, order: Ints) -> int:
    """The tasks of a job in `order`, servers first, then from the highest priority down; returns how many."""
    count = 0
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        k = count
        server = T[c.T_ROLE, t] == SERVER
        while k > 0:
            before = order[k - 1]
            if T[c.T_ROLE, before] == SERVER and not server:
                break
            if (T[c.T_ROLE, before] == SERVER) == server and P[before] >= P[t]:
                break
            order[k] = before
            k -= 1
        order[k] = t
        count += 1
    return count


@kernel
def host_job(
    row: int, sharing: bool, bandwidth: bool, h_r: float, room: int, J: Table, T: Table, N: Table, C: Ints,
    A: Table, AB: Table, U: Table, K: Table, L: Table, F: Floats, S: Table, touched: Ints, P: Floats, order: Ints, nodes: Ints,
    O: Table, OT: Table, M: Ints,
) -> bool:  # fmt: skip
    """Give every task of a waiting job a host, or none. `nodes`: scratch, the node of each task of the job so far."""
    if hopeless(row, sharing, J, T, C, F, S):
        return False
    first, tasks, start = J[c.J_TASK0, row], J[c.J_TASKS, row], M[M_TASKS]
    count = by_priority(row, J, T, P, order)
    for i in range(tasks):
        nodes[i] = -1
    done = 0
    while done < count:
        t = order[done]
        k = t - first
        milli, cpu, mem, net = T[c.T_GPU, t], T[c.T_CPU, t], T[c.T_MEM, t], T[c.T_NET, t]
        shared = shares(row, t, sharing, J, T)
        talks = add_volumes(row, k, J, nodes, 0, K, touched) if bandwidth else 0
        node, mask = ideal_host(
            milli, cpu, mem, net, J[c.J_KIND_MASK, row], -1, False, shared, bandwidth, h_r, room, N, C, A, U, K, L, touched,
            talks, F, S,
        )  # fmt: skip
        forget_volumes(K, touched, talks)
        if node < 0:
            break
        each = 0 if milli == 0 else (milli if shared else c.WHOLE)
        nodes[k] = node
        OT[start + k, 0], OT[start + k, 1], OT[start + k, 2] = node, mask, each
        load(1, node, mask, milli, cpu, mem, net, N, U, L)
        book(node, mask, each, cpu, mem, N, C, A, AB, L)
        renew_node(node, room, N, C, A, U, K, L, F, S)
        done += 1
    if done == tasks:
        add_override(O, M, J, row, OP_PLACE, 0, start, tasks)
        M[M_TASKS] = start + tasks
        return True
    for i in range(done):
        t = order[i]
        o = start + t - first
        load(-1, OT[o, 0], OT[o, 1], T[c.T_GPU, t], T[c.T_CPU, t], T[c.T_MEM, t], T[c.T_NET, t], N, U, L)
        unbook(OT[o, 0], OT[o, 1], OT[o, 2], T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)
        renew_node(OT[o, 0], room, N, C, A, U, K, L, F, S)
    return False


@kernel
def move_tasks(
    row: int, sharing: bool, bandwidth: bool, h_r: float, room: int, J: Table, T: Table, N: Table, C: Ints,
    A: Table, AB: Table, U: Table, K: Table, L: Table, F: Floats, S: Table, touched: Ints, P: Floats, fate: Ints, order: Ints,
    nodes: Ints, O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """Find hosts for the tasks of a job that leave theirs, and want the job there; those that find none stay. Returns how many
    tasks move."""
    first, tasks, start = J[c.J_TASK0, row], J[c.J_TASKS, row], M[M_TASKS]
    count, moved = by_priority(row, J, T, P, order), 0
    for i in range(tasks):
        nodes[i] = T[c.T_NODE, first + i] if fate[first + i] == STAYED else -1
        t = first + i
        OT[start + i, 0], OT[start + i, 1], OT[start + i, 2] = T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t]
    for i in range(count):
        t = order[i]
        if fate[t] != LEAVES:
            continue
        k, milli, net = t - first, T[c.T_GPU, t], T[c.T_USE_NET, t]
        shared = shares(row, t, sharing, J, T)
        talks = add_volumes(row, k, J, nodes, 0, K, touched) if bandwidth else 0
        node, mask = ideal_host(
            milli, T[c.T_CPU, t], T[c.T_MEM, t], net, J[c.J_KIND_MASK, row], T[c.T_NODE, t], True, shared, bandwidth, h_r, room,
            N, C, A, U, K, L, touched, talks, F, S,
        )  # fmt: skip
        forget_volumes(K, touched, talks)
        if node < 0 or (milli and popcount(mask) != popcount(T[c.T_MASK, t])):
            node, mask = T[c.T_NODE, t], T[c.T_MASK, t]
            fate[t] = STAYED
        else:
            fate[t] = MOVED
            moved += 1
            unbook(T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)
            book(node, mask, T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)
            renew_node(T[c.T_NODE, t], room, N, C, A, U, K, L, F, S)
        nodes[k] = node
        OT[start + k, 0], OT[start + k, 1] = node, mask
        load_task(1, t, node, mask, T, N, U, L)
        renew_node(node, room, N, C, A, U, K, L, F, S)
    if moved:
        add_override(O, M, J, row, OP_PLACE, 0, start, tasks)
        M[M_TASKS] = start + tasks
    return moved


@kernel
def smallest_need(J: Table, row: int, sharing: bool) -> int:
    """Thousandths of GPUs that a job takes at least."""
    return int(J[c.J_GPU_MILLI, row] if sharing and J[c.J_SHARE, row] else J[c.J_GPUS, row] * c.WHOLE)


@kernel
def free_milli(sharing: bool, room: int, N: Table, C: Ints, A: Table, L: Table) -> int:
    """Thousandths of GPUs that are still to be had: empty ones, and with `sharing` what is left on those in company."""
    total = 0
    for node in range(C[c.C_NODES]):
        for g in range(N[c.N_GPU0, node], N[c.N_GPU0, node] + N[c.N_GPUS, node]):
            if L[L_BOOKED, g] == 0:
                total += c.WHOLE
            elif sharing:
                total += max(room - max(L[L_BOOKED, g], L[L_USED, g]), 0)
    return total


@inner
def room_of(H: Floats, C: Ints) -> int:
    """What tasks that share may book, and use, of a GPU."""
    return int(min(int(H[H_FRAC] * c.WHOLE), C[c.C_SHARE_LIMIT]))


@kernel
def book_leaving(
    sign: int, row: int, J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, L: Table, leaving: Ints, fate: Ints
) -> None:
    """Take the bookings of a job's leaving tasks off, or put them back."""
    if leaving[row] == 0:
        return
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        if fate[t] == LEAVES and sign < 0:
            unbook(T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)
        elif fate[t] == LEAVES:
            book(T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)


@kernel
def sift(
    keys: Ints, count: int, now: int, sharing: bool, H: Floats, J: Table, T: Table, N: Table, Q: Table, C: Ints, A: Table,
    AB: Table, U: Table, K: Table, L: Table, F: Floats, S: Table, slots: Ints, leaving: Ints, fate: Ints,
) -> int:  # fmt: skip
    """Index the nodes, and leave out keys of waiting jobs for which the GPUs have no room and which have been told so; returns
    how many keys are left. Once all leaving tasks are thought gone, room only shrinks in a round, so these jobs would not be
    placed and change nothing. The keys are in the order of rows: a long queue is read from front to end once, and what is left
    is all that has to be sorted."""
    if count:
        index_nodes(room_of(H, C), N, C, A, U, K, L, F, S)
    if count < SIFT_MIN:
        return count
    for i in range(count):
        book_leaving(-1, keys[i] & ROW_MASK, J, T, N, C, A, AB, L, leaving, fate)
    count_slots(room_of(H, C), N, C, A, L, S, slots)
    for i in range(count):
        book_leaving(1, keys[i] & ROW_MASK, J, T, N, C, A, AB, L, leaving, fate)
    kept = 0
    for i in range(count):
        row = keys[i] & ROW_MASK
        told = leaving[row] == 0 and J[c.J_WHY, row] == R_NO_ROOM and J[c.J_HOLD, row] == 0
        told = told and J[c.J_NOT_BEFORE, row] <= now and Q[c.Q_LIMIT, J[c.J_QUEUE, row]] < 0
        if not (told and no_slots(row, sharing, J, T, slots)):
            keys[kept] = keys[i]
            kept += 1
    return kept


@kernel
def mlf_h(
    keys: Ints, count: int, hopeless_before: int, now: int, sharing: bool, bandwidth: bool, H: Floats,
    J: Table, T: Table, N: Table, G: Table, Q: Table, B: Table, C: Ints, planned: Ints,
    A: Table, AB: Table, U: Table, K: Table, L: Table, F: Floats, S: Table, touched: Ints, P: Floats, fate: Ints, order: Ints,
    nodes: Ints, leaving: Ints, O: Table, OT: Table, M: Ints,
) -> tuple[int, int]:  # fmt: skip
    """The allocation loop (§3.3.2) over sorted keys of waiting jobs and of jobs with leaving tasks (`leaving` by row). Returns
    how many tasks moved and how many waiting jobs found no place, `hopeless_before` of which are not among the keys.
    `mlf_h_leave` and `sift` have run before and filled the loads and the index."""
    room = room_of(H, C)
    free = free_milli(sharing, room, N, C, A, L)
    moved, unplaced, idle = 0, hopeless_before, True
    for row in range(C[c.C_ROWS]):
        idle = idle and (J[c.J_PLACED, row] == 0 or J[c.J_PHASE, row] > STOPPING)
    for q in range(planned.shape[0]):
        planned[q] = 0
    for i in range(count):
        row = keys[i] & ROW_MASK
        if leaving[row]:
            moved += move_tasks(
                row,
                sharing,
                bandwidth,
                H[H_FRAC],
                room,
                J,
                T,
                N,
                C,
                A,
                AB,
                U,
                K,
                L,
                F,
                S,
                touched,
                P,
                fate,
                order,
                nodes,
                O,
                OT,
                M,
            )
            continue
        if not may_start(J, row, now, M) or not within_limit(J, Q, planned, row):
            continue
        need = smallest_need(J, row, sharing)
        placed = need <= free and host_job(
            row, sharing, bandwidth, H[H_FRAC], room, J, T, N, C, A, AB, U, K, L, F, S, touched, P, order, nodes, O, OT, M
        )
        if idle and not placed:  # a job that asks for more than h_r of a node runs when nobody else does
            placed = host_job(
                row, sharing, bandwidth, 1.0, room, J, T, N, C, A, AB, U, K, L, F, S, touched, P, order, nodes, O, OT, M
            )
        if placed:
            idle = False
            free -= need
            planned[J[c.J_QUEUE, row]] += J[c.J_GPUS, row] * c.WHOLE
        else:
            unplaced += 1
            say_why(O, M, J, row, R_NO_ROOM, J[c.J_GPUS, row], free_max(AB, C, -1))
    M[M_UNPLACED] = unplaced
    return moved, unplaced


@kernel
def mlf_h_leave(
    now: int, migrate: bool, sharing: bool, bandwidth: bool, H: Floats, J: Table, T: Table, N: Table, G: Table, B: Table, C: Ints,
    A: Table, AB: Table, U: Table, K: Table, L: Table, nexts: Ints, touched: Ints, P: Floats, fate: Ints, pool: Ints,
    leaving: Ints,
) -> int:  # fmt: skip
    """Loads, and with `migrate` the tasks that leave overloaded nodes: `fate` by task row, `leaving` counts them by job row.
    Returns how many nodes were overloaded."""
    copy_room(N, B, C, A, AB)
    over = load_all(T, N, G, C, U, K, L, nexts, H[H_FRAC])
    for row in range(C[c.C_ROWS]):
        leaving[row] = 0
    for t in range(C[c.C_TASKS]):
        fate[t] = STAYED
    if over and migrate:
        for node in range(C[c.C_NODES]):
            if K[K_OVER, node]:
                leave_node(node, now, sharing, bandwidth, H, J, T, N, G, C, A, AB, U, K, L, nexts, touched, P, fate, pool)
                t = K[K_HEAD, node]
                while t >= 0:
                    leaving[T[c.T_JOB, t]] += int(fate[t] == LEAVES)
                    t = nexts[t]
    return over


@kernel
def queue_keys(J: Table, T: Table, C: Ints, top: Floats, P: Floats, leaving: Ints, fate: Ints, keys: Ints) -> int:
    """Keys of the waiting jobs (by their highest task) and of those with leaving tasks (by the highest of these)."""
    count = 0
    for row in range(C[c.C_ROWS]):
        if leaving[row]:
            best = -1e300
            for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
                if fate[t] == LEAVES:
                    best = max(best, P[t])
            keys[count] = key_of(J[c.J_PRIORITY, row], best, row)
            count += 1
        elif J[c.J_PHASE, row] == 0 and J[c.J_PLACED, row] == 0:
            keys[count] = key_of(J[c.J_PRIORITY, row], top[row], row)
            count += 1
    return count
