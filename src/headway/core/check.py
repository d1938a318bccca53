"""`check`: does a plan hold together? Only what it overrides is looked at; the dense twin in the tests looks at everything."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import DOWN, OP_FINISH, OP_PLACE, OP_RELEASE, OP_RULE, OP_WHY, QUEUED, R_MIGRATED, R_RESIZED, UP
from headway.core.jit import ctz, inner, kernel, popcount

(
    V_OK, V_GPU, V_CPU, V_MEM, V_GANG, V_ENDED, V_QUOTA, V_SHARE, V_NODE, V_BAD_GPU, V_KIND, V_TWICE, V_SHAPE, V_HELD,
    V_FRACTION, V_UNEVEN, V_NOT_PLACED, V_OP, V_RULE, V_BORROWED,
) = range(20)  # fmt: skip
VIOLATIONS = {
    V_GPU: "a GPU is booked over its whole (or over the share limit)",
    V_CPU: "a node's cpus are over-booked",
    V_MEM: "a node's memory is over-booked",
    V_GANG: "the gang is not placed whole",
    V_ENDED: "the job has ended or is unknown",
    V_QUOTA: "the queue's limit is exceeded",
    V_SHARE: "the job does not allow company on its GPU",
    V_NODE: "the node is not up",
    V_BAD_GPU: "not the GPUs that the task asked for",
    V_KIND: "a GPU kind that the job may not use",
    V_TWICE: "the plan names the job twice",
    V_SHAPE: "a shape outside the job's limits",
    V_HELD: "the job is held by its user",
    V_FRACTION: "the engine has no fractional GPUs",
    V_UNEVEN: "the engine has no uneven gangs",
    V_NOT_PLACED: "a job without a place cannot give it up",
    V_OP: "no such operation",
    V_RULE: "a stop rule that the job's owner does not allow",
    V_BORROWED: "the queue goes above its quota by a place that another queue, below its own, waits for",
}


@kernel
def drop_stale(O: Table, count: int, seen: int, J: Table, N: Table, R: Ints, C: Ints, OT: Table) -> int:
    """Take out the entries whose job or node changed after the plan's view (`seen` = its sequence). Returns how many are left;
    rows are looked up anew."""
    kept = 0
    for i in range(count):
        slot = O[i, c.O_JOB] - C[c.C_ID_BASE]
        row = R[slot] if slot >= 0 and slot < R.shape[0] else -1
        stale = row < 0 and C[c.C_SEQUENCE] > seen
        if row >= 0:
            stale = J[c.J_GENERATION, row] > seen
            O[i, c.O_ROW] = row
        else:
            O[i, c.O_ROW] = -1
        if not stale and O[i, c.O_OP] == OP_PLACE:
            for t in range(O[i, c.O_TASK0], O[i, c.O_TASK0] + O[i, c.O_TASKS]):
                node = OT[t, 0]
                stale = stale or (node >= 0 and node < C[c.C_NODES] and N[c.N_GENERATION, node] > seen)
        if not stale:
            for column in range(c.OVERRIDE):
                O[kept, column] = O[i, column]
            kept += 1
    return kept


@kernel
def add_place(sign: int, node: int, mask: int, milli: int, cpu: int, mem: int, N: Table, dG: Table, dN: Table) -> int:
    """Add (or take) a task's booking to the differences. Returns the milli booked."""
    dN[0, node] += sign * cpu
    dN[1, node] += sign * mem
    booked = 0
    while mask != 0:
        g = N[c.N_GPU0, node] + ctz(mask)
        mask &= mask - 1
        dG[0, g] += sign * milli
        dG[1, g] += sign
        booked += milli
    return booked


@kernel
def is_even(OT: Table, first: int, workers: int) -> bool:
    """Whether every node that the workers use has the same number of them."""
    expected = 0
    for i in range(first, first + workers):
        count = 0
        for k in range(first, first + workers):
            count += int(OT[k, 0] == OT[i, 0])
        if expected == 0:
            expected = count
        if count != expected:
            return False
    return True


@kernel
def check_entry(O: Table, i: int, OT: Table, J: Table, T: Table, N: Table, C: Ints, fractions: bool, uneven: bool) -> int:
    """What can be said of one override alone."""
    row, op = O[i, c.O_ROW], O[i, c.O_OP]
    if row < 0:
        return V_ENDED
    if op == OP_RELEASE:
        if O[i, c.O_REASON] == R_MIGRATED or O[i, c.O_REASON] == R_RESIZED:
            return V_OP
        return V_OK if J[c.J_PLACED, row] else V_NOT_PLACED
    if op == OP_RULE:
        rule = O[i, c.O_A]
        return V_OK if rule == J[c.J_STOP_RULE, row] or (J[c.J_STOP_ALLOW, row] >> rule) & 1 else V_RULE
    if op == OP_FINISH or op == OP_WHY:
        return V_OK
    if op != OP_PLACE:
        return V_OP
    if J[c.J_FINISHING, row] or J[c.J_MUST_STOP, row]:
        return V_ENDED
    if J[c.J_HOLD, row] and not J[c.J_PLACED, row]:
        return V_HELD
    data, servers = O[i, c.O_DATA], O[i, c.O_SERVERS]
    if data < J[c.J_DATA_MIN, row] or data > J[c.J_DATA_MAX, row] or servers < 0:
        return V_SHAPE
    if servers > max(J[c.J_SERVERS, row], J[c.J_SERVERS_MAX, row]):
        return V_SHAPE
    if (data != J[c.J_DATA, row] or servers != J[c.J_SERVERS, row]) and J[c.J_DETAILS, row]:
        return V_SHAPE
    workers = data * J[c.J_PIPELINE, row] * J[c.J_TENSOR, row]
    if O[i, c.O_TASKS] != workers + servers:
        return V_GANG
    for k in range(O[i, c.O_TASKS]):
        t = O[i, c.O_TASK0] + k
        node, mask, milli = OT[t, 0], OT[t, 1], OT[t, 2]
        if node < 0 or node >= C[c.C_NODES]:
            return V_NODE
        if N[c.N_PHASE, node] != UP:
            stays = J[c.J_PLACED, row] and data == J[c.J_DATA, row] and k < J[c.J_TASKS, row]
            if N[c.N_PHASE, node] == DOWN or not stays or T[c.T_NODE, J[c.J_TASK0, row] + k] != node:
                return V_NODE
        if k >= workers:
            if mask != 0:
                return V_BAD_GPU
            continue
        gpus = popcount(mask)
        if N[c.N_GPUS, node] < 64 and mask >> N[c.N_GPUS, node] != 0:
            return V_BAD_GPU
        demand = T[c.T_GPU, J[c.J_TASK0, row] + k] if data == J[c.J_DATA, row] else J[c.J_GPU_TASK, row]
        need = (demand + c.WHOLE - 1) // c.WHOLE
        kinds = J[c.J_KIND_MASK, row]
        if gpus != need or (gpus and not (kinds >> N[c.N_KIND, node]) & 1):
            other = (J[c.J_ALT_GPU, row] + c.WHOLE - 1) // c.WHOLE
            if other == 0 or gpus != other:
                return V_BAD_GPU if gpus != need else V_KIND
            if not (J[c.J_ALT_MASK, row] >> N[c.N_KIND, node]) & 1:
                return V_KIND
            demand = J[c.J_ALT_GPU, row]
        if gpus and milli != c.WHOLE:
            if milli != demand:
                return V_BAD_GPU
            if not fractions:
                return V_FRACTION
            if not J[c.J_SHARE, row]:
                return V_SHARE
    return V_OK if uneven or is_even(OT, O[i, c.O_TASK0], workers) else V_UNEVEN


@kernel
def check_plan(
    O: Table, count: int, OT: Table, J: Table, T: Table, N: Table, G: Table, Q: Table, C: Ints,
    dG: Table, dN: Table, dQ: Ints, seen: Ints, fractions: bool, uneven: bool,
) -> tuple[int, int]:  # fmt: skip
    """The first violation of a plan and the override it was found at (0: none). Differences (`dG`, `dN`, `dQ`, `seen`) are all
    zero before and after."""
    bad, where = V_OK, -1
    done = 0
    quotas = False
    for q in range(C[c.C_QUEUES]):
        quotas = quotas or Q[c.Q_QUOTA, q] >= 0
    for i in range(count):
        done = i
        bad = check_entry(O, i, OT, J, T, N, C, fractions, uneven)
        row, op = O[i, c.O_ROW], O[i, c.O_OP]
        moves = op == OP_PLACE or op == OP_RELEASE or op == OP_FINISH
        if not bad and moves and seen[row]:
            bad = V_TWICE
        if bad:
            where = i
            break
        if not moves:
            continue
        seen[row] = 1
        if J[c.J_PLACED, row]:
            for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
                milli = add_place(-1, T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t], T[c.T_CPU, t], T[c.T_MEM, t], N, dG, dN)
                dQ[J[c.J_QUEUE, row]] -= milli
        if op == OP_PLACE:
            for k in range(O[i, c.O_TASKS]):
                t = O[i, c.O_TASK0] + k
                cpu, mem = task_demand(J, T, row, k, O[i, c.O_DATA])
                dQ[J[c.J_QUEUE, row]] += add_place(1, OT[t, 0], OT[t, 1], OT[t, 2], cpu, mem, N, dG, dN)
        done = i + 1
    for i in range(done):
        row, op = O[i, c.O_ROW], O[i, c.O_OP]
        if op == OP_PLACE and not bad:
            if Q[c.Q_LIMIT, J[c.J_QUEUE, row]] >= 0 and dQ[J[c.J_QUEUE, row]] > 0:
                if Q[c.Q_BOOKED, J[c.J_QUEUE, row]] + dQ[J[c.J_QUEUE, row]] > Q[c.Q_LIMIT, J[c.J_QUEUE, row]]:
                    bad, where = V_QUOTA, i
            more = not J[c.J_PLACED, row] or O[i, c.O_DATA] > J[c.J_DATA, row]
            if quotas and more and dQ[J[c.J_QUEUE, row]] > 0 and borrows_from_claim(O, i, OT, J, N, Q, C, dQ, seen):
                bad, where = V_BORROWED, i
            for k in range(O[i, c.O_TASKS]):
                t = O[i, c.O_TASK0] + k
                node, rest = OT[t, 0], OT[t, 1]
                if dN[0, node] > 0 and N[c.N_CPU, node] + dN[0, node] > N[c.N_CPU_MAX, node]:
                    bad, where = V_CPU, i
                if dN[1, node] > 0 and N[c.N_MEM, node] + dN[1, node] > N[c.N_MEM_MAX, node]:
                    bad, where = V_MEM, i
                while rest != 0:
                    g = N[c.N_GPU0, node] + ctz(rest)
                    rest &= rest - 1
                    limit = c.WHOLE if G[c.G_TASKS, g] + dG[1, g] <= 1 else C[c.C_SHARE_LIMIT]
                    if G[c.G_BOOKED, g] + dG[0, g] > limit:
                        bad, where = V_GPU, i
    for i in range(done):
        clear_differences(O, i, OT, J, T, N, dG, dN, dQ, seen)
    return bad, where


@kernel
def borrows_from_claim(O: Table, i: int, OT: Table, J: Table, N: Table, Q: Table, C: Ints, dQ: Ints, seen: Ints) -> bool:
    """Whether override `i` takes its queue above its quota by a place that the first waiting job of another queue, by priority
    and then arrival, could have had as it is, and would stay within its quota with.

    Asked only where queues have quotas; without one, a queue has a quota of 0 then. Jobs of unequal tasks are not looked at.
    """
    row = O[i, c.O_ROW]
    queue, claimed = J[c.J_QUEUE, row], False
    for q in range(C[c.C_QUEUES]):
        claimed = claimed or (q != queue and Q[c.Q_WAITING, q] > 0 and Q[c.Q_BOOKED, q] + dQ[q] < Q[c.Q_QUOTA, q])
    if not claimed or Q[c.Q_BOOKED, queue] + dQ[queue] <= max(Q[c.Q_QUOTA, queue], 0):
        return False
    kinds = 0
    for k in range(O[i, c.O_TASKS]):
        if OT[O[i, c.O_TASK0] + k, 1] != 0:
            kinds |= 1 << N[c.N_KIND, OT[O[i, c.O_TASK0] + k, 0]]
    for q in range(C[c.C_QUEUES]):
        if q == queue or Q[c.Q_WAITING, q] == 0 or Q[c.Q_BOOKED, q] + dQ[q] >= Q[c.Q_QUOTA, q]:
            continue
        first = -1
        for other in range(C[c.C_FIRST_WAITING], C[c.C_ROWS]):
            if J[c.J_QUEUE, other] != q or J[c.J_PHASE, other] != QUEUED or J[c.J_PLACED, other] or seen[other]:
                continue
            able = J[c.J_HOLD, other] == 0 and J[c.J_GPUS, other] > 0
            if able and (first < 0 or J[c.J_PRIORITY, other] > J[c.J_PRIORITY, first]):
                first = other
        if first >= 0 and J[c.J_NOT_BEFORE, first] <= C[c.C_NOW] and takes_as_it_is(first, row, O[i, c.O_DATA], kinds, J):
            after = Q[c.Q_BOOKED, q] + dQ[q] + J[c.J_GPUS, first] * c.WHOLE
            if after <= Q[c.Q_QUOTA, q] and (Q[c.Q_LIMIT, q] < 0 or after <= Q[c.Q_LIMIT, q]):
                return True
    return False


@kernel
def takes_as_it_is(one: int, other: int, data: int, kinds: int, J: Table) -> bool:
    """Whether job `one` fits, task by task, on a place of job `other` in a shape of `data` replicas, on GPUs of these kinds."""
    if (
        J[c.J_DETAILS, one]
        or J[c.J_DETAILS, other]
        or J[c.J_ALT_GPU, other]
        or J[c.J_SERVERS, one]
        or J[c.J_SHARE, one]
        or J[c.J_SHARE, other]
    ):
        return False
    if kinds & (kinds - 1):  # a gang is of one kind
        return False
    workers = data * J[c.J_PIPELINE, other] * J[c.J_TENSOR, other]
    fits = (
        J[c.J_WORKERS, one] <= workers and J[c.J_GPU_TASK, one] <= J[c.J_GPU_TASK, other] and kinds & ~J[c.J_KIND_MASK, one] == 0
    )
    return bool(fits and J[c.J_CPU_TASK, one] <= J[c.J_CPU_TASK, other] and J[c.J_MEM_TASK, one] <= J[c.J_MEM_TASK, other])


@inner
def task_demand(J: Table, T: Table, row: int, k: int, data: int) -> tuple[int, int]:
    """cpus and memory of the k-th task of a job in a shape of `data` replicas."""
    if data == J[c.J_DATA, row] and k < J[c.J_TASKS, row]:
        t = J[c.J_TASK0, row] + k
        return T[c.T_CPU, t], T[c.T_MEM, t]
    if k < data * J[c.J_PIPELINE, row] * J[c.J_TENSOR, row]:
        return J[c.J_CPU_TASK, row], J[c.J_MEM_TASK, row]
    return J[c.J_SERVER_CPU, row], J[c.J_SERVER_MEM, row]


@kernel
def clear_differences(
    O: Table, i: int, OT: Table, J: Table, T: Table, N: Table, dG: Table, dN: Table, dQ: Ints, seen: Ints
) -> None:
    """Set to zero what override `i` may have touched."""
    row, op = O[i, c.O_ROW], O[i, c.O_OP]
    if op != OP_PLACE and op != OP_RELEASE and op != OP_FINISH:
        return
    seen[row] = 0
    dQ[J[c.J_QUEUE, row]] = 0
    if J[c.J_PLACED, row]:
        for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
            clear_place(T[c.T_NODE, t], T[c.T_MASK, t], N, dG, dN)
    if op == OP_PLACE:
        for k in range(O[i, c.O_TASKS]):
            clear_place(OT[O[i, c.O_TASK0] + k, 0], OT[O[i, c.O_TASK0] + k, 1], N, dG, dN)


@inner
def clear_place(node: int, mask: int, N: Table, dG: Table, dN: Table) -> None:
    """Set the differences of a node and some of its GPUs to zero."""
    dN[0, node], dN[1, node] = 0, 0
    while mask != 0:
        g = N[c.N_GPU0, node] + ctz(mask)
        mask &= mask - 1
        dG[0, g], dG[1, g] = 0, 0
