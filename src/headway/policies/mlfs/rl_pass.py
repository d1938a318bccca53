"""MLF-RL's choice of nodes: the server head and the move-out head over the candidates that MLF-H would look at (MLFS §3.3, §3.4).

`refine` gives the tasks of jobs that start their nodes, once the preemptive pass has said which jobs these are; `move_out` takes
tasks off overloaded nodes, as far as others take them. A job whose tasks do not all find one keeps the places of the pass.
"""

from __future__ import annotations

import math

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import OP_PLACE, OP_RELEASE, QUEUED, SERVER
from headway.core.jit import ctz, inner, kernel, popcount
from headway.features.table import GPUS_RANGE, Singles, clipped, left_of, log_of, one, run_to, told_left_us
from headway.place.assign import M_OVERRIDES, M_TASKS, add_override
from headway.place.gang import A_CPU, A_FREE, A_MASK, A_MEM, copy_room
from headway.policies.mlfs.heuristic import (
    H_FRAC,
    LEAVES,
    MOVED,
    STAYED,
    by_priority,
    candidates,
    distance_from_ideal,
    load_task,
    shares,
)
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
    add_volumes,
    book,
    capacity,
    forget_volumes,
    gpu_for,
    gpu_overloaded,
    load,
    load_all,
    node_overloaded,
    unbook,
)
from headway.policies.mlfs.nearest import (
    BLOCK,
    F_FAR,
    NOWHERE,
    S_FREE,
    blocks_of,
    index_nodes,
    loss_by_move,
    renew,
    renew_node,
    room_row,
    takes,
)
from headway.policies.mlfs.net import score_rows

NEAREST = 16
"""Candidate nodes of a task (K of §4.3), nearest to the ideal first; the one that the pass chose comes on top."""
ROWS = NEAREST + 2
TEACH, USE = 0, 1
"""Who chooses: MLF-H (the nearest), or the heads."""
D_MODE, D_SEED, D_ROOM = range(3)
"""Numbers of a choice: TEACH or USE; a seed of the noise; what tasks that share may book of a GPU (thousandths)."""
R_ROWS, R_CHOSEN, R_HEAD = range(3)
RECORD = 3
HEAD_SERVER, HEAD_MOVE = 1, 2


@inner
def uniform(seed: int, a: int, b: int) -> float:
    """A number above 0 and below 1 by counters (SplitMix64)."""
    z = seed ^ (a * 0x1F123BB5) ^ (b * 0x3C6EF372F)
    for _ in range(2):
        z = z + 0x1E3779B97F4A7C15
        z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * 0x3F58476D1CE4E5B9
        z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * 0x14D049BB133111EB
        z = z ^ ((z >> 31) & 0x1FFFFFFFF)
    return float(((z >> 11) & 0x1FFFFFFFFFFFF) + 0.5) / 562949953421312.0


@inner
def gumbel(seed: int, a: int, b: int) -> float:
    """A draw of Gumbel's distribution: what is added to scores so that the largest is a draw of their softmax."""
    return float(-math.log(-math.log(uniform(seed, a, b))))


@inner
def is_held(node: int, mask: int, milli: int, N: Table, G: Table) -> bool:
    """Whether somebody who still holds GPUs of a place would have to go before a task can start there."""
    rest = mask
    while rest != 0:
        if G[c.G_HELD, N[c.N_GPU0, node] + ctz(rest)] + milli > c.WHOLE:
            return True
        rest &= rest - 1
    return False


@kernel
def near_hosts(
    milli: int, cpu: int, mem: int, net: int, kinds: int, not_on: int, moving: bool, shared: bool, h_r: float,
    N: Table, C: Ints, A: Table, U: Table, K: Table, touched: Ints, count: int, F: Floats, S: Table, near: Ints, fars: Floats,
) -> int:  # fmt: skip
    """The NEAREST nodes that take a task, in `near`, with their distances from the ideal host (§3.3.2) in `fars`, nearest first;
    how many. As `nearest.ideal_host`, which finds the first of them."""
    renew(C, F, S)
    nodes, (row, need) = C[c.C_NODES], room_row(milli, shared)
    found, most = 0, 0
    if S[row, F.shape[1] - 1] < need:
        return 0
    for i in range(count):
        if S[S_FREE, touched[i]] >= 0:
            most = max(most, K[K_VOLUME, touched[i]])
    for part in range(2):
        blocks = blocks_of(nodes) if part else 1
        for block in range(blocks):
            first, stop = block * BLOCK, min(block * BLOCK + BLOCK, nodes)
            worst = fars[NEAREST - 1] if found == NEAREST else NOWHERE
            away = 1.0 if most else 0.0
            if part and (S[row, nodes + block] < need or F[F_FAR, nodes + block] + away >= worst):
                continue
            if part == 0:
                first, stop = 0, count if most else 0
            for at in range(first, stop):
                node = at if part else touched[at]
                if S[row, node] < need or (part and most and K[K_VOLUME, node]):
                    continue
                far = F[F_FAR, node] + (away if part else (K[K_VOLUME, node] / most - 1.0) ** 2)
                if moving:
                    far += loss_by_move(node, mem, N, F)
                worst = fars[NEAREST - 1] if found == NEAREST else NOWHERE
                if far >= worst or not takes(node, milli, cpu, mem, net, kinds, not_on, h_r, N, A, U):
                    continue
                k = min(found, NEAREST - 1)
                while k > 0 and (fars[k - 1] > far or (fars[k - 1] == far and near[k - 1] > node)):
                    near[k], fars[k] = near[k - 1], fars[k - 1]
                    k -= 1
                near[k], fars[k] = node, far
                found = min(found + 1, NEAREST)
    return found


@kernel
def server_row(
    i: int, node: int, mask: int, far: float, by_pass: bool, most: int, together: int, moving: bool, row: int, t: int,
    J: Table, T: Table, N: Table, A: Table, U: Table, K: Table, L: Table, of_all: Singles, X: Singles,
) -> None:  # fmt: skip
    """The columns SERVER of a candidate node, in row `i` of `X`."""
    least, chosen = 1e9, 0.0
    for local in range(N[c.N_GPUS, node]):
        used = float(L[L_USED, N[c.N_GPU0, node] + local])
        least = min(least, used)
        if (mask >> local) & 1:
            chosen = max(chosen, used)
    X[i, 0], X[i, 1], X[i, 2] = one(by_pass), clipped(far / 4.0, 0.0, 4.0), one(i == 0)
    X[i, 3] = clipped(U[U_GPU, node] / capacity(N, U_GPU, node), 0.0, 4.0)
    X[i, 4] = clipped(U[U_CPU, node] / capacity(N, U_CPU, node), 0.0, 4.0)
    X[i, 5] = clipped(U[U_MEM, node] / capacity(N, U_MEM, node), 0.0, 4.0)
    X[i, 6] = clipped(U[U_NET, node] / capacity(N, U_NET, node), 0.0, 4.0)
    X[i, 7] = clipped(least / c.WHOLE, 0.0, 4.0) if N[c.N_GPUS, node] else 0.0
    X[i, 8] = X[i, 3]
    X[i, 9] = clipped((chosen + T[c.T_GPU, t]) / c.WHOLE, 0.0, 4.0) if mask != 0 else 0.0
    X[i, 10] = K[K_VOLUME, node] / most if most else 0.0
    X[i, 11] = together / float(max(J[c.J_TASKS, row], 1))
    X[i, 12] = A[A_FREE, node] / float(max(N[c.N_GPUS, node], 1))
    X[i, 13] = one(moving)
    X[i, 14] = T[c.T_GPU, t] / float(c.WHOLE)
    X[i, 15], X[i, 16] = log_of(T[c.T_CPU, t] / 1000.0, 64.0), log_of(T[c.T_MEM, t] / 1e9, 256.0)
    X[i, 17], X[i, 18] = T[c.T_SHARE, t] / 1e6, one(T[c.T_ROLE, t] == SERVER)
    X[i, 19] = math.log(float(max(J[c.J_GPUS, row], 1))) / GPUS_RANGE
    for k in range(of_all.shape[0]):
        X[i, 20 + k] = of_all[k]


@kernel
def best_of(n: int, teach: int, D: Ints, scale: float, a: int, b: int, got: Singles) -> int:
    """The row with the highest score, with noise of that scale; the first of equals. When MLF-H chooses, `teach`."""
    if D[D_MODE] == TEACH:
        return teach
    best, most = 0, -1e30
    for i in range(n):
        score = float(got[i])
        if scale > 0.0:
            score += scale * gumbel(D[D_SEED], a, b * ROWS + i)
        if score > most:
            best, most = i, score
    return best


@kernel
def record(head: int, n: int, chosen: int, X: Singles, RX: Singles, RI: Table, RN: Ints) -> None:
    """Write a choice down, as long as there is room. `RX`: choices × ROWS × columns."""
    if RN[0] >= RI.shape[0]:
        return
    r = RN[0]
    RI[r, R_ROWS], RI[r, R_CHOSEN], RI[r, R_HEAD] = n, chosen, head
    for i in range(n):
        for k in range(X.shape[1]):
            RX[r, i, k] = X[i, k]
    RN[0] = r + 1


@kernel
def choose_host(
    row: int, t: int, home: int, home_mask: int, not_on: int, moving: bool, net: int, sharing: bool, D: Ints, scale: float,
    h_r: float, J: Table, T: Table, N: Table, G: Table, C: Ints, A: Table, U: Table, K: Table, L: Table, F: Floats, S: Table,
    touched: Ints, nodes: Ints, near: Ints, masks: Ints, fars: Floats, X: Singles,
    w1: Singles, b1: Singles, w2: Singles, b2: Singles, w3: Singles, b3: Singles, skip: Singles, hidden: Singles, got: Singles,
    of_all: Singles, RX: Singles, RI: Table, RN: Ints,
) -> tuple[int, int]:  # fmt: skip
    """The node that a task gets, and its GPUs there (a mask); (−1, 0): none takes it. `home`: where the pass put it, −1 where it
    is to move; `nodes`: the nodes of the job's tasks so far, −1: none yet."""
    first = J[c.J_TASK0, row]
    milli, cpu, mem = T[c.T_GPU, t], T[c.T_CPU, t], T[c.T_MEM, t]
    shared = shares(row, t, sharing, J, T)
    each = 0 if milli == 0 else (milli if shared else c.WHOLE)
    talks = add_volumes(row, t - first, J, nodes, 0, K, touched)
    found = near_hosts(
        milli, cpu, mem, net, J[c.J_KIND_MASK, row], not_on, moving, shared, h_r, N, C, A, U, K, touched, talks, F, S, near, fars
    )
    n, homely = 0, False
    for i in range(found):
        mask = gpu_for(near[i], milli, shared, D[D_ROOM], N, A, L) if milli else 0
        if (milli and mask == 0) or is_held(near[i], mask, each, N, G):
            continue
        near[n], fars[n], masks[n] = near[i], fars[i], mask
        homely = homely or near[i] == home
        n += 1
    if home >= 0 and not homely and A[A_CPU, home] >= cpu and A[A_MEM, home] >= mem:
        near[n], fars[n], masks[n] = home, 4.0, home_mask
        n += 1
    most = 0
    for i in range(talks):
        most = max(most, K[K_VOLUME, touched[i]])
    for i in range(n):
        together = 0
        for k in range(J[c.J_TASKS, row]):
            together += int(nodes[k] == near[i])
        server_row(i, near[i], masks[i], fars[i], near[i] == home, most, together, moving, row, t, J, T, N, A, U, K, L, of_all, X)
    forget_volumes(K, touched, talks)
    if n == 0:
        return -1, 0
    if D[D_MODE] == USE:
        score_rows(n, X, w1, b1, w2, b2, w3, b3, skip, hidden, got)
    chosen = best_of(n, 0, D, scale, J[c.J_ID, row], t - first, got)
    record(HEAD_SERVER, n, chosen, X, RX, RI, RN)
    return near[chosen], masks[chosen]


@kernel
def take_plan(
    J: Table, T: Table, N: Table, C: Ints, A: Table, AB: Table, U: Table, L: Table, O: Table, OT: Table, M: Ints, fate: Ints
) -> None:  # fmt: skip
    """Carry the plan out on loads and room; tasks of jobs that it names may not move besides (`fate`)."""
    for i in range(M[M_OVERRIDES]):
        row, op = O[i, c.O_ROW], O[i, c.O_OP]
        if op != OP_PLACE and op != OP_RELEASE:
            continue
        first = J[c.J_TASK0, row]
        for t in range(first, first + J[c.J_TASKS, row]):
            fate[t] = MOVED
            if J[c.J_PLACED, row] and T[c.T_NODE, t] >= 0:
                unbook(T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)
                load_task(-1, t, T[c.T_NODE, t], T[c.T_MASK, t], T, N, U, L)
            if op == OP_PLACE:
                o = O[i, c.O_TASK0] + t - first
                book(OT[o, 0], OT[o, 1], OT[o, 2], T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)
                load(1, OT[o, 0], OT[o, 1], T[c.T_GPU, t], T[c.T_CPU, t], T[c.T_MEM, t], T[c.T_NET, t], N, U, L)


@inner
def seat(
    sign: int, o: int, t: int, room: int, T: Table, N: Table, C: Ints, A: Table, AB: Table, U: Table, K: Table, L: Table,
    F: Floats, S: Table, OT: Table,
) -> None:  # fmt: skip
    """Take the place `OT[o]` for a task that starts, or give it back."""
    load(sign, OT[o, 0], OT[o, 1], T[c.T_GPU, t], T[c.T_CPU, t], T[c.T_MEM, t], T[c.T_NET, t], N, U, L)
    if sign > 0:
        book(OT[o, 0], OT[o, 1], OT[o, 2], T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)
    else:
        unbook(OT[o, 0], OT[o, 1], OT[o, 2], T[c.T_CPU, t], T[c.T_MEM, t], N, C, A, AB, L)
    renew_node(OT[o, 0], room, N, C, A, U, K, L, F, S)


@kernel
def refine(
    sharing: bool, D: Ints, scale: float, H: Floats, J: Table, T: Table, N: Table, G: Table, B: Table, C: Ints,
    A: Table, AB: Table, U: Table, K: Table, L: Table, nexts: Ints, touched: Ints, F: Floats, S: Table, P: Floats, fate: Ints,
    order: Ints, nodes: Ints, olds: Table, near: Ints, masks: Ints, fars: Floats, X: Singles,
    w1: Singles, b1: Singles, w2: Singles, b2: Singles, w3: Singles, b3: Singles, skip: Singles, hidden: Singles, got: Singles,
    of_all: Singles, RX: Singles, RI: Table, RN: Ints, O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """Give the tasks of starting jobs their nodes. Returns how many nodes are overloaded. `olds`: scratch, 3 × tasks."""
    room, h_r = D[D_ROOM], H[H_FRAC]
    copy_room(N, B, C, A, AB)
    over = load_all(T, N, G, C, U, K, L, nexts, h_r)
    for t in range(C[c.C_TASKS]):
        fate[t] = STAYED
    take_plan(J, T, N, C, A, AB, U, L, O, OT, M, fate)
    index_nodes(room, N, C, A, U, K, L, F, S)
    for i in range(M[M_OVERRIDES]):
        row = O[i, c.O_ROW]
        if O[i, c.O_OP] != OP_PLACE or J[c.J_PHASE, row] != QUEUED or J[c.J_PLACED, row]:
            continue
        first, tasks, start = J[c.J_TASK0, row], J[c.J_TASKS, row], O[i, c.O_TASK0]
        waits = O[i, c.O_TASKS] != tasks
        for o in range(start, start + O[i, c.O_TASKS]):
            waits = waits or is_held(OT[o, 0], OT[o, 1], OT[o, 2], N, G)
        if waits:
            continue
        for k in range(tasks):
            seat(-1, start + k, first + k, room, T, N, C, A, AB, U, K, L, F, S, OT)
            olds[0, k], olds[1, k], olds[2, k] = OT[start + k, 0], OT[start + k, 1], OT[start + k, 2]
            nodes[k] = -1
        count, done = by_priority(row, J, T, P, order), 0
        while done < count:
            t = order[done]
            k = t - first
            node, mask = choose_host(
                row, t, olds[0, k], olds[1, k], -1, False, T[c.T_NET, t], sharing, D, scale, h_r, J, T, N, G, C, A, U, K, L, F, S,
                touched, nodes, near, masks, fars, X, w1, b1, w2, b2, w3, b3, skip, hidden, got, of_all, RX, RI, RN,
            )  # fmt: skip
            fits = node >= 0 and popcount(mask) == popcount(olds[1, k])
            if fits and node == olds[0, k] and mask == olds[1, k]:
                fits = still_free(node, mask, olds[2, k], room, N, A, L)
            if not fits:
                break
            nodes[k] = node
            OT[start + k, 0], OT[start + k, 1], OT[start + k, 2] = node, mask, olds[2, k]
            seat(1, start + k, t, room, T, N, C, A, AB, U, K, L, F, S, OT)
            done += 1
        if done < count:
            for i_done in range(done):
                t = order[i_done]
                seat(-1, start + t - first, t, room, T, N, C, A, AB, U, K, L, F, S, OT)
            for k in range(tasks):
                OT[start + k, 0], OT[start + k, 1], OT[start + k, 2] = olds[0, k], olds[1, k], olds[2, k]
                seat(1, start + k, first + k, room, T, N, C, A, AB, U, K, L, F, S, OT)
    return over


@inner
def still_free(node: int, mask: int, each: int, room: int, N: Table, A: Table, L: Table) -> bool:
    """Whether the GPUs that the pass dealt to a task are still there for it."""
    if each >= c.WHOLE:
        return bool((A[A_MASK, node] & mask) == mask)
    rest = mask
    while rest != 0:
        g = N[c.N_GPU0, node] + ctz(rest)
        free = (A[A_MASK, node] >> ctz(rest)) & 1 == 1
        if not free and (L[L_BOOKED, g] == 0 or L[L_BOOKED, g] + each > room):
            return False
        rest &= rest - 1
    return True


@kernel
def move_out(
    now: int, sharing: bool, D: Ints, scale: float, H: Floats, J: Table, T: Table, N: Table, G: Table, C: Ints,
    A: Table, AB: Table, U: Table, K: Table, L: Table, nexts: Ints, touched: Ints, P: Floats, fate: Ints, pool: Ints, X: Singles,
    w1: Singles, b1: Singles, w2: Singles, b2: Singles, w3: Singles, b3: Singles, skip: Singles, hidden: Singles, got: Singles,
    fars: Floats, of_all: Singles, RX: Singles, RI: Table, RN: Ints, leaving: Ints,
) -> int:  # fmt: skip
    """Which tasks leave overloaded nodes (§3.3.3): one after the other, until the node is not overloaded or the head says stay.
    They keep their bookings until they have another node. `leaving` counts them by row; returns how many jobs have some."""
    jobs = 0
    for row in range(C[c.C_ROWS]):
        leaving[row] = 0
    for node in range(C[c.C_NODES]):
        if not K[K_OVER, node]:
            continue
        while True:
            hot = False
            for g in range(N[c.N_GPU0, node], N[c.N_GPU0, node] + N[c.N_GPUS, node]):
                hot = hot or gpu_overloaded(L, g, H[H_FRAC])
            if not hot and not node_overloaded(N, U, node, H[H_FRAC]):
                break
            size = min(candidates(node, now, hot, H, J, T, N, G, L, K, nexts, P, fate, pool), NEAREST)
            if size == 0:
                break
            nearest = 0
            for i in range(size):
                fars[i] = distance_from_ideal(pool[i], node, hot, True, H[H_FRAC], J, T, N, C, U, K, nexts, touched, fate)
                if fars[i] < fars[nearest] or (fars[i] == fars[nearest] and pool[i] < pool[nearest]):
                    nearest = i
            for i in range(size + 1):
                move_row(i, i == size, i == nearest, hot, now, node, pool[i] if i < size else -1, fars[i], J, T, N, P, of_all, X)
            if D[D_MODE] == USE:
                score_rows(size + 1, X, w1, b1, w2, b2, w3, b3, skip, hidden, got)
            chosen = best_of(size + 1, nearest, D, scale, now // 1000, node, got)
            record(HEAD_MOVE, size + 1, chosen, X, RX, RI, RN)
            if chosen == size:
                break
            t = pool[chosen]
            load_task(-1, t, node, T[c.T_MASK, t], T, N, U, L)
            fate[t] = LEAVES
            jobs += int(leaving[T[c.T_JOB, t]] == 0)
            leaving[T[c.T_JOB, t]] += 1
        K[K_OVER, node] = int(hot or node_overloaded(N, U, node, H[H_FRAC]))
    return jobs


@kernel
def move_row(
    i: int, stays: bool, nearest: bool, hot: bool, now: int, node: int, t: int, far: float, J: Table, T: Table, N: Table,
    P: Floats, of_all: Singles, X: Singles,
) -> None:  # fmt: skip
    """The columns MOVE of a task that may leave, or of staying as all are, in row `i` of `X`."""
    for k in range(13):
        X[i, k] = 0.0
    X[i, 0], X[i, 3] = one(stays), one(hot)
    if not stays:
        row = T[c.T_JOB, t]
        X[i, 1], X[i, 2] = clipped(far / 4.0, 0.0, 4.0), one(nearest)
        for resource in range(RESOURCES):
            X[i, 4 + resource] = clipped(T[c.T_USE_GPU + resource, t] / capacity(N, resource, node), 0.0, 4.0)
        X[i, 8] = clipped(J[c.J_EDGE_BYTES, row] / 1e8, 0.0, 4.0)
        X[i, 9] = clipped(P[t], 0.0, 4.0)
        X[i, 10] = left_of(told_left_us(J, row, now))
        X[i, 11] = math.log(float(max(J[c.J_GPUS, row], 1))) / GPUS_RANGE
        X[i, 12] = log_of(run_to(J, row, now) / 60e6, 2880.0)
    for k in range(of_all.shape[0]):
        X[i, 13 + k] = of_all[k]


@kernel
def rehouse(
    sharing: bool, D: Ints, scale: float, H: Floats, J: Table, T: Table, N: Table, G: Table, C: Ints,
    A: Table, AB: Table, U: Table, K: Table, L: Table, touched: Ints, F: Floats, S: Table, P: Floats, fate: Ints, order: Ints,
    nodes: Ints, leaving: Ints, near: Ints, masks: Ints, fars: Floats, X: Singles,
    w1: Singles, b1: Singles, w2: Singles, b2: Singles, w3: Singles, b3: Singles, skip: Singles, hidden: Singles, got: Singles,
    of_all: Singles, RX: Singles, RI: Table, RN: Ints, O: Table, OT: Table, M: Ints,
) -> int:  # fmt: skip
    """Find nodes for the leaving tasks, and want their jobs there; those that find none stay. Returns how many tasks move."""
    room, total = D[D_ROOM], 0
    index_nodes(room, N, C, A, U, K, L, F, S)
    for row in range(C[c.C_ROWS]):
        if leaving[row] == 0 or M[M_TASKS] + J[c.J_TASKS, row] > OT.shape[0]:
            continue
        first, tasks, start, moved = J[c.J_TASK0, row], J[c.J_TASKS, row], M[M_TASKS], 0
        count = by_priority(row, J, T, P, order)
        for k in range(tasks):
            t = first + k
            nodes[k] = T[c.T_NODE, t] if fate[t] == STAYED else -1
            OT[start + k, 0], OT[start + k, 1], OT[start + k, 2] = T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t]
        for i in range(count):
            t = order[i]
            if fate[t] != LEAVES:
                continue
            k = t - first
            node, mask = choose_host(
                row, t, -1, 0, T[c.T_NODE, t], True, T[c.T_USE_NET, t], sharing, D, scale, H[H_FRAC], J, T, N, G, C, A, U, K, L,
                F, S, touched, nodes, near, masks, fars, X, w1, b1, w2, b2, w3, b3, skip, hidden, got, of_all, RX, RI, RN,
            )  # fmt: skip
            if node < 0 or popcount(mask) != popcount(T[c.T_MASK, t]):
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
            total += moved
    return total
