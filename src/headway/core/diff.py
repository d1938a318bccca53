"""`diff`: what has to be asked for so that the wanted end state comes true, as the events of a round. Stops come before starts"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.booking import can_start
from headway.core.check import task_demand
from headway.core.codes import (
    K_FINISHED,
    K_ROUND,
    K_RULE,
    K_START,
    K_STOP,
    K_UNWANTED,
    K_WANTED,
    K_WHY,
    OP_FINISH,
    OP_PLACE,
    OP_RELEASE,
    OP_RULE,
    OP_WHY,
    QUEUED,
    R_EARLY_STOP,
    R_MIGRATED,
    R_RESIZED,
    R_TRIAL,
    RUNNING,
    STARTING,
    STOPPING,
)  # fmt: skip
from headway.core.jit import ctz, inner, kernel


@inner
def put(E: Table, n: int, t: int, kind: int, job: int, attempt: int, a: int, b: int, d: int, size: int) -> int:
    """Write one record; returns the next free index."""
    E[n, c.E_T], E[n, c.E_KIND], E[n, c.E_ID], E[n, c.E_ATTEMPT] = t, kind, job, attempt
    E[n, c.E_A], E[n, c.E_B], E[n, c.E_C], E[n, c.E_POOL] = a, b, d, size
    return n + 1


@kernel
def same_place(O: Table, i: int, OT: Table, J: Table, T: Table, row: int) -> bool:
    """Whether a placed job would stay exactly where it is wanted now."""
    if O[i, c.O_TASKS] != J[c.J_TASKS, row] or O[i, c.O_DATA] != J[c.J_DATA, row] or O[i, c.O_SERVERS] != J[c.J_SERVERS, row]:
        return False
    if O[i, c.O_BATCH] != J[c.J_BATCH, row]:
        return False
    for k in range(O[i, c.O_TASKS]):
        t, o = J[c.J_TASK0, row] + k, O[i, c.O_TASK0] + k
        if T[c.T_NODE, t] != OT[o, 0] or T[c.T_MASK, t] != OT[o, 1] or T[c.T_BOOK, t] != OT[o, 2]:
            return False
    return True


@kernel
def place_is_free(O: Table, i: int, OT: Table, J: Table, T: Table, N: Table, G: Table, row: int) -> bool:
    """Whether nothing that is still held stands in the way of starting the job on its new place. The gang counts against
    itself."""
    fits = True
    done = 0
    while fits and done < O[i, c.O_TASKS]:
        node, mask, milli = OT[O[i, c.O_TASK0] + done, 0], OT[O[i, c.O_TASK0] + done, 1], OT[O[i, c.O_TASK0] + done, 2]
        cpu, mem = task_demand(J, T, row, done, O[i, c.O_DATA])
        N[c.N_HELD_CPU, node] += cpu
        N[c.N_HELD_MEM, node] += mem
        fits = N[c.N_HELD_CPU, node] <= N[c.N_CPU_MAX, node] and N[c.N_HELD_MEM, node] <= N[c.N_MEM_MAX, node]
        while mask != 0:
            g = N[c.N_GPU0, node] + ctz(mask)
            mask &= mask - 1
            G[c.G_HELD, g] += milli
            fits = fits and G[c.G_HELD, g] <= c.WHOLE
        done += 1
    if fits:
        return True
    take_held(O, i, OT, J, T, N, G, row, done)
    return False


@kernel
def take_held(O: Table, i: int, OT: Table, J: Table, T: Table, N: Table, G: Table, row: int, tasks: int) -> None:
    """Take the first `tasks` tasks of override `i` out of what is held again."""
    for k in range(tasks):
        node, mask, milli = OT[O[i, c.O_TASK0] + k, 0], OT[O[i, c.O_TASK0] + k, 1], OT[O[i, c.O_TASK0] + k, 2]
        cpu, mem = task_demand(J, T, row, k, O[i, c.O_DATA])
        N[c.N_HELD_CPU, node] -= cpu
        N[c.N_HELD_MEM, node] -= mem
        while mask != 0:
            G[c.G_HELD, N[c.N_GPU0, node] + ctz(mask)] -= milli
            mask &= mask - 1


@kernel
def diff_plan(
    O: Table, order: Ints, count: int, OT: Table, now: int, J: Table, T: Table, N: Table, G: Table, C: Ints, E: Table, pool: Ints
) -> tuple[int, int]:
    """The events that turn what is wanted now into what the plan wants. `order`: the overrides by row. Returns how
    many events and payload ints were written.

    What is held is borrowed while starts are tried against each other, and given back.
    """
    n, at = 0, 0
    moved = False
    for k in range(count):
        i = order[k]
        row, op = O[i, c.O_ROW], O[i, c.O_OP]
        job, phase, attempt = J[c.J_ID, row], J[c.J_PHASE, row], J[c.J_ATTEMPT, row]
        runs = phase == STARTING or phase == RUNNING
        before = n
        if op == OP_RELEASE or (op == OP_PLACE and J[c.J_PLACED, row] and not same_place(O, i, OT, J, T, row)):
            reason = O[i, c.O_REASON]
            if op == OP_PLACE:
                same_shape = O[i, c.O_DATA] == J[c.J_DATA, row] and O[i, c.O_SERVERS] == J[c.J_SERVERS, row]
                same_shape = same_shape and O[i, c.O_BATCH] == J[c.J_BATCH, row]
                reason = R_MIGRATED if same_shape else R_RESIZED
            n = put(E, n, now, K_STOP if runs else K_UNWANTED, job, attempt, reason, 0, 0, 0)
        elif op == OP_FINISH and (runs or (phase == STOPPING and J[c.J_FINISHING, row] == 0)):
            n = put(E, n, now, K_STOP, job, attempt, R_EARLY_STOP, 0, 0, 0)
        elif op == OP_FINISH and phase == QUEUED:
            n = put(E, n, now, K_FINISHED, job, attempt, R_EARLY_STOP, 0, 0, 0)
        elif op == OP_RULE and J[c.J_RULE_IN_FORCE, row] != O[i, c.O_A]:
            n = put(E, n, now, K_RULE, job, attempt, O[i, c.O_A], 0, 0, 0)
        elif op == OP_WHY:
            news = J[c.J_WHY, row] != O[i, c.O_REASON] or J[c.J_WHY_A, row] != O[i, c.O_A] or J[c.J_WHY_B, row] != O[i, c.O_B]
            if news or O[i, c.O_TASKS]:
                n = put(E, n, now, K_WHY, job, attempt, O[i, c.O_REASON], O[i, c.O_A], O[i, c.O_B], 0)
                at = put_place(E, n - 1, pool, at, O, i, OT)
            continue
        moved = moved or n > before
    for k in range(count):
        i = order[k]
        row, phase = O[i, c.O_ROW], J[c.J_PHASE, O[i, c.O_ROW]]
        if O[i, c.O_OP] != OP_PLACE or (J[c.J_PLACED, row] and same_place(O, i, OT, J, T, row)):
            continue
        start = phase == QUEUED and place_is_free(O, i, OT, J, T, N, G, row)
        O[i, c.O_A] = 1 if start else 0
        kind, attempt = (K_START, J[c.J_ATTEMPT, row] + 1) if start else (K_WANTED, J[c.J_ATTEMPT, row])
        shape = O[i, c.O_SERVERS] | O[i, c.O_BATCH] << 20
        n = put(E, n, now, kind, J[c.J_ID, row], attempt, O[i, c.O_REASON], O[i, c.O_DATA], shape, 0)
        at = put_place(E, n - 1, pool, at, O, i, OT)
        if O[i, c.O_REASON] == R_TRIAL:
            n = put(E, n, now, K_RULE, J[c.J_ID, row], attempt, J[c.J_RULE_IN_FORCE, row], O[i, c.O_B], 0, 0)
        moved = True
    for k in range(count):
        i = order[k]
        if O[i, c.O_OP] == OP_PLACE and O[i, c.O_A]:
            take_held(O, i, OT, J, T, N, G, O[i, c.O_ROW], O[i, c.O_TASKS])
            O[i, c.O_A] = 0
    if moved:
        n = put(E, n, now, K_ROUND, 0, 0, count, 0, 0, 0)
    return n, at


@kernel
def put_place(E: Table, record: int, pool: Ints, at: int, O: Table, i: int, OT: Table) -> int:
    """Write the places of override `i` as the payload of a record; returns the next free pool index."""
    tasks = O[i, c.O_TASKS]
    E[record, c.E_POOL] = c.PLACE * tasks
    for k in range(tasks):
        for j in range(c.PLACE):
            pool[at] = OT[O[i, c.O_TASK0] + k, j]
            at += 1
    return at


@kernel
def borrow(sign: int, row: int, J: Table, T: Table, N: Table, G: Table) -> None:
    """Add the place that a job wants to what is held (or take it away again)."""
    for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
        node, mask = T[c.T_NODE, t], T[c.T_MASK, t]
        N[c.N_HELD_CPU, node] += sign * T[c.T_CPU, t]
        N[c.N_HELD_MEM, node] += sign * T[c.T_MEM, t]
        while mask != 0:
            G[c.G_HELD, N[c.N_GPU0, node] + ctz(mask)] += sign * T[c.T_BOOK, t]
            mask &= mask - 1


@kernel
def settle(now: int, J: Table, T: Table, N: Table, G: Table, C: Ints, E: Table, pool: Ints) -> tuple[int, int]:
    """What follows from the state alone, without a policy: stops of jobs that must go, and starts of jobs whose wanted place
    has become free.

    Returns how many events and payload ints were written.
    """
    n, at = 0, 0
    if C[c.C_MUST_STOP]:
        for row in range(C[c.C_ROWS]):
            phase = J[c.J_PHASE, row]
            if phase > STOPPING or J[c.J_MUST_STOP, row] == 0:
                continue
            runs = phase == STARTING or phase == RUNNING
            kind = K_STOP if runs else K_UNWANTED
            n = put(E, n, now, kind, J[c.J_ID, row], J[c.J_ATTEMPT, row], J[c.J_MUST_STOP, row], 0, 0, 0)
    if C[c.C_PLACED_WAITING] == 0:
        return n, at
    starts = n
    for row in range(C[c.C_ROWS]):
        if J[c.J_PHASE, row] != QUEUED or not J[c.J_PLACED, row] or J[c.J_MUST_STOP, row] or not can_start(J, T, N, G, row):
            continue
        borrow(1, row, J, T, N, G)
        shape = J[c.J_SERVERS, row] | J[c.J_BATCH, row] << 20
        n = put(
            E, n, now, K_START, J[c.J_ID, row], J[c.J_ATTEMPT, row] + 1, 0, J[c.J_DATA, row], shape, c.PLACE * J[c.J_TASKS, row]
        )
        for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
            pool[at], pool[at + 1], pool[at + 2] = T[c.T_NODE, t], T[c.T_MASK, t], T[c.T_BOOK, t]
            at += c.PLACE
    if n > starts:
        for row in range(C[c.C_ROWS]):
            if (
                J[c.J_PHASE, row] == QUEUED
                and J[c.J_PLACED, row]
                and not J[c.J_MUST_STOP, row]
                and in_starts(E, starts, n, J[c.J_ID, row])
            ):
                borrow(-1, row, J, T, N, G)
    return n, at


@kernel
def in_starts(E: Table, first: int, stop: int, job: int) -> bool:
    """Whether a job is among the records `first … stop - 1`, which are sorted by job."""
    while first < stop:
        middle = (first + stop) // 2
        if E[middle, c.E_ID] == job:
            return True
        if E[middle, c.E_ID] < job:
            first = middle + 1
        else:
            stop = middle
    return False
