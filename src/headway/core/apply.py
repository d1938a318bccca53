"""The one place where the state changes: events in, tables changed, invariants asserted.

Transitions (anything else is stale, and ignored, or impossible, and an error):

| from | event | to |
|---|---|---|
| – | SUBMITTED | queued |
| queued | REJECTED / CANCEL_REQUESTED / FINISHED | rejected / cancelled / completed, or failed if its time limit was the reason |
| queued | START_REQUESTED (attempt + 1) | starting |
| starting | STARTED | running |
| starting | START_FAILED | queued, or failed when the retries are spent |
| starting, running | STOP_REQUESTED | stopping |
| starting, running, stopping | COMPLETED | completed |
| starting, running | FAILED | queued, or failed when the retries are spent |
| starting, running, stopping | STOPPED | queued; cancelled, completed or failed if that was the reason of the stop |
| stopping | FAILED, START_FAILED | as STOPPED: it was told to go |
| stopping | STARTED | stopping: the gang came up after it was told to stop |

HOLD_SET, PRIORITY_SET and UPDATED leave a job where it is; its queue changes only while it waits without a wanted place.
EVALUATED tells figures (`metrics`) how good a job was that has ended already, SHADOWED what other policies would do: they change
nothing here. GUARDED says who decides from now on: a policy, or its teacher (`core.round.in_charge`).
A report of another attempt than the job's present one, or for a job that has ended, is stale: it is counted and changes nothing.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.booking import OK, book, unbook
from headway.core.codes import (
    CANCELLED,
    COMPLETED,
    FAILED,
    K_CANCEL,
    K_COMPLETED,
    K_EPOCH,
    K_ESTIMATE_REQUESTED,
    K_ESTIMATED,
    K_EVALUATED,
    K_FAILED,
    K_FINISHED,
    K_GUARDED,
    K_HOLD,
    K_OBSERVED,
    K_PRIORITY,
    K_REFUSED,
    K_REJECTED,
    K_ROUND,
    K_RULE,
    K_SAVED,
    K_SHADOWED,
    K_START,
    K_START_FAILED,
    K_STARTED,
    K_STOP,
    K_STOPPED,
    K_SUBMITTED,
    K_UNWANTED,
    K_UPDATED,
    K_USAGE,
    K_WANTED,
    K_WHY,
    QUEUED,
    R_CANCELLED,
    R_DONE,
    R_TIME_LIMIT,
    REJECTED,
    RUNNING,
    STARTING,
    STOPPING,
)  # fmt: skip
from headway.core.jit import as_float, ctz, kernel, popcount
from headway.core.life import (
    IMPOSSIBLE,
    NO_SUCH_QUEUE,
    NOT_MINE,
    OUT_OF_ORDER,
    UNKNOWN_JOB,
    WRONG_ATTEMPT,
    back_to_queue,
    ended,
    enter_queue,
    forget,
    leave_queue,
    leave_waiting,
    note_wait,
    request_start,
    request_stop,
    reshape,
    shape_room,
    submit,
)  # fmt: skip

F_PARAMS = c.ESTIMATE_PARAMS_MAX
K_NAMED = int(c.EventKind.NAMED)
DROPS_MAX = 1 << 61
"""Drops of the loss (nano) add up to this at most, however wild the reports are."""


@kernel
def observe(J: Table, row: int, units: int, loss: int, accuracy: int) -> None:
    """A progress report: units done, loss (nano) and accuracy (ppm), each c.NOTHING if it was not told (or was no number)."""
    if units > J[c.J_UNITS_DONE, row]:
        J[c.J_UNITS_DONE, row] = units
    if loss != c.NOTHING:
        if J[c.J_LOSS, row] != c.NOTHING:
            drop = min(max(J[c.J_LOSS, row] - loss, 0), DROPS_MAX)
            J[c.J_LOSS_DROP_LAST, row] = drop
            J[c.J_LOSS_DROPS, row] = min(J[c.J_LOSS_DROPS, row] + drop, DROPS_MAX)
        J[c.J_LOSS, row] = loss
    if accuracy != c.NOTHING:
        J[c.J_ACCURACY, row] = accuracy


@kernel
def save(J: Table, row: int, t: int, units: int) -> None:
    """A durable checkpoint of so many units. One of fewer than an older one has makes nothing safe: the job would go on from that
    one."""
    if units >= J[c.J_UNITS_SAVED, row]:
        J[c.J_UNITS_SAVED, row], J[c.J_SAVED_AT, row] = units, t


@kernel
def update(J: Table, Q: Table, C: Ints, row: int, column: int, value: int) -> int:
    """One of the job's numbers changes (`columns.UPDATABLE`). Who never was estimated is taken to need what his estimate says."""
    if column == c.J_QUEUE:
        if J[c.J_PHASE, row] != QUEUED or J[c.J_PLACED, row]:
            return IMPOSSIBLE
        if value < 0 or value >= C[c.C_QUEUES]:
            return NO_SUCH_QUEUE
        Q[c.Q_WAITING, J[c.J_QUEUE, row]] -= 1
        Q[c.Q_WAITING, value] += 1
    elif column == c.J_ESTIMATE:
        if J[c.J_ESTIMATED_REMAINING, row] == J[c.J_ESTIMATE, row]:
            J[c.J_ESTIMATED_REMAINING, row] = value
    elif column != c.J_DEADLINE and column != c.J_URGENCY and column != c.J_TIME_LIMIT:
        return IMPOSSIBLE
    J[column, row] = value
    J[c.J_GENERATION, row] = C[c.C_SEQUENCE] + 1
    return OK


@kernel
def guard(e: Ints, C: Ints) -> None:
    """Which policy is guarded, who decides in its stead (0: itself, 1: its teacher), since when, and the rewards that say so."""
    if e[c.E_A] != C[c.C_GUARD] or e[c.E_ID] != C[c.C_GUARD_OF]:
        C[c.C_GUARD_AT] = e[c.E_T]
    C[c.C_GUARD], C[c.C_GUARD_OF], C[c.C_GUARD_GOOD] = e[c.E_A], e[c.E_ID], e[c.E_ATTEMPT]
    C[c.C_GUARD_REWARD], C[c.C_GUARD_TEACHER] = e[c.E_B], e[c.E_C]


@kernel
def set_usage(J: Table, T: Table, N: Table, G: Table, row: int, task: int, pool: Ints, at: int) -> None:
    """A task's measured usage: GPU milli, cpus milli, memory bytes, network bytes/s."""
    if task < 0 or task >= J[c.J_HELD_TASKS, row]:
        return
    t = J[c.J_HELD_TASK0, row] + task
    node, mask = T[c.T_HELD_NODE, t], T[c.T_HELD_MASK, t]
    gpus = popcount(mask)
    change = pool[at] // gpus - T[c.T_USE_GPU, t] // gpus if gpus else 0
    rest = mask
    while rest != 0:
        g = N[c.N_GPU0, node] + ctz(rest)
        rest &= rest - 1
        G[c.G_USED, g] += change
    N[c.N_USE_CPU, node] += pool[at + 1] - T[c.T_USE_CPU, t]
    N[c.N_USE_MEM, node] += pool[at + 2] - T[c.T_USE_MEM, t]
    N[c.N_USE_NET, node] += pool[at + 3] - T[c.T_USE_NET, t]
    T[c.T_USE_GPU, t], T[c.T_USE_CPU, t], T[c.T_USE_MEM, t], T[c.T_USE_NET, t] = (
        pool[at],
        pool[at + 1],
        pool[at + 2],
        pool[at + 3],
    )


@kernel
def apply_job_events(
    E: Table, pool: Ints, first: int, count: int, pool_at: int,
    J: Table, T: Table, X: Table, F: Floats, N: Table, G: Table, Q: Table, B: Table, R: Ints, C: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Apply events `first … count - 1` (n × c.RECORD), whose payloads begin at `pool_at`, until one is not a job's event, needs
    room, or breaks an invariant.

    Returns the number of the first event that has not been applied and where its payload begins; C[c.C_ERROR_CODE] says why it
    stopped (0: all done).
    """
    C[c.C_ERROR_CODE] = OK
    none = pool[:0]
    at = pool_at
    for i in range(first, count):
        t, kind, job, size = E[i, c.E_T], E[i, c.E_KIND], E[i, c.E_ID], E[i, c.E_POOL]
        error = OK
        if t < C[c.C_NOW]:
            error = OUT_OF_ORDER
        elif kind == K_SUBMITTED:
            error = submit(J, T, X, F, Q, R, C, pool, at, size, t, job)
        elif kind == K_ROUND:
            C[c.C_ROUNDS] += 1
            if E[i, c.E_B] == 0:
                C[c.C_REFUSED_IN_ROW] = 0
        elif kind == K_REFUSED:
            C[c.C_REFUSED_IN_ROW] += 1
            C[c.C_REFUSED_AT] = t
        elif kind == K_GUARDED:
            guard(E[i], C)
        elif kind == K_NAMED or kind == K_ESTIMATE_REQUESTED or kind == K_EVALUATED or kind == K_SHADOWED:
            pass
        elif kind < K_SUBMITTED or kind >= K_EPOCH:
            error = NOT_MINE
        else:
            slot = job - C[c.C_ID_BASE]
            row = R[slot] if slot >= 0 and slot < R.shape[0] else -1
            if row == -1 and slot >= 0:
                error = UNKNOWN_JOB
            elif row < 0:
                C[c.C_STALE] += 1
            else:
                error = apply_one(E[i], pool, at, J, T, X, F, N, G, Q, B, R, C, row, none)
        if error:
            C[c.C_ERROR_CODE], C[c.C_ERROR_JOB] = error, job
            return i, at
        C[c.C_NOW] = t
        C[c.C_SEQUENCE] += 1
        at += size
    return count, at


@kernel
def apply_one(
    e: Ints, pool: Ints, at: int,
    J: Table, T: Table, X: Table, F: Floats, N: Table, G: Table, Q: Table, B: Table, R: Ints, C: Ints, row: int, none: Ints,
) -> int:  # fmt: skip
    """One event of a live job. Returns 0 or an error code."""
    t, kind, attempt, size = e[c.E_T], e[c.E_KIND], e[c.E_ATTEMPT], e[c.E_POOL]
    phase = J[c.J_PHASE, row]
    report = kind >= K_STARTED and kind <= K_USAGE
    if report and (attempt != J[c.J_ATTEMPT, row] or phase == QUEUED):
        C[c.C_STALE] += 1
        return OK
    error = OK
    changed = True
    if kind == K_START:
        servers, batch = e[c.E_C] & 0xFFFFF, e[c.E_C] >> 20
        error = request_start(J, T, X, N, G, Q, B, C, pool, at, size, row, t, attempt, e[c.E_A], e[c.E_B], servers, batch, none)
    elif kind == K_STARTED:
        if phase == STARTING:
            J[c.J_PHASE, row] = RUNNING
            C[c.C_RUNNING] += 1
            J[c.J_STARTED_AT, row] = t
            J[c.J_WAITED, row] += t - J[c.J_QUEUED_AT, row]
            if J[c.J_FIRST_START, row] < 0:
                J[c.J_FIRST_START, row] = t
        else:
            C[c.C_STALE] += 1
            changed = False
    elif kind == K_COMPLETED:
        error = ended(J, T, N, G, Q, B, C, R, row, t, COMPLETED, R_DONE)
    elif kind == K_STOP:
        if attempt != J[c.J_ATTEMPT, row]:
            return WRONG_ATTEMPT
        servers, batch = e[c.E_C] & 0xFFFFF, e[c.E_C] >> 20
        error = request_stop(J, T, X, N, G, Q, B, C, pool, at, size, row, e[c.E_A], e[c.E_B], servers, batch, none)
    elif kind == K_START_FAILED and phase == RUNNING:
        return IMPOSSIBLE
    elif kind == K_STOPPED or kind == K_FAILED or kind == K_START_FAILED:
        error = back_to_queue(J, T, N, G, Q, B, C, R, row, t, kind, e[c.E_B])
    elif kind == K_WANTED:
        if phase != QUEUED and (phase != STOPPING or J[c.J_FINISHING, row]):
            return IMPOSSIBLE
        servers = e[c.E_C] & 0xFFFFF
        error = shape_room(J, T, X, C, row, e[c.E_B], servers)
        if error:
            return error
        if J[c.J_PLACED, row]:
            error = unbook(J, T, N, G, Q, B, C, row)
            if phase == QUEUED:
                C[c.C_PLACED_WAITING] -= 1
        elif phase == QUEUED:
            J[c.J_PLACED, row] = 1
            leave_waiting(J, Q, C, row)
            note_wait(J, row, t)
        if not error and (e[c.E_B] != J[c.J_DATA, row] or servers != J[c.J_SERVERS, row]):
            reshape(J, T, X, C, row, e[c.E_B], servers, none)
        if not error:
            error = book(J, T, N, G, Q, B, C, row, pool, at, size)
        J[c.J_BATCH, row] = e[c.E_C] >> 20
        if phase == QUEUED:
            C[c.C_PLACED_WAITING] += 1
    elif kind == K_UNWANTED:
        if not J[c.J_PLACED, row] or (phase != QUEUED and phase != STOPPING):
            return IMPOSSIBLE
        error = unbook(J, T, N, G, Q, B, C, row)
        if phase == QUEUED:
            C[c.C_PLACED_WAITING] -= 1
            C[c.C_QUEUED] -= 1
            enter = J[c.J_QUEUED_AT, row]
            enter_queue(J, Q, C, row, enter)
        if J[c.J_MUST_STOP, row]:
            J[c.J_MUST_STOP, row] = 0
            C[c.C_MUST_STOP] -= 1
    else:
        changed = False
        error = apply_rare(e, pool, at, J, T, F, N, G, Q, B, R, C, row)
    if changed:
        J[c.J_GENERATION, row] = C[c.C_SEQUENCE] + 1
    return error


@kernel
def apply_rare(
    e: Ints, pool: Ints, at: int,
    J: Table, T: Table, F: Floats, N: Table, G: Table, Q: Table, B: Table, R: Ints, C: Ints, row: int,
) -> int:  # fmt: skip
    """The events that do not change where a job is, and its ends other than completion."""
    kind, phase = e[c.E_KIND], J[c.J_PHASE, row]
    if kind == K_OBSERVED:
        observe(J, row, e[c.E_A], e[c.E_B], e[c.E_C])
    elif kind == K_SAVED:
        save(J, row, e[c.E_T], e[c.E_A])
    elif kind == K_USAGE:
        set_usage(J, T, N, G, row, e[c.E_A], pool, at)
    elif kind == K_WHY:
        J[c.J_WHY, row], J[c.J_WHY_A, row], J[c.J_WHY_B, row] = e[c.E_A], e[c.E_B], e[c.E_C]
    elif kind == K_ESTIMATED and e[c.E_A] >= 0 and (e[c.E_A] + 1) * F_PARAMS <= F.shape[0]:
        for i in range(min(e[c.E_POOL], F_PARAMS)):
            F[e[c.E_A] * F_PARAMS + i, row] = as_float(pool[at + i])
        if e[c.E_A] == 0:
            J[c.J_ESTIMATED_REMAINING, row] = e[c.E_C]
    elif kind == K_RULE:
        J[c.J_RULE_IN_FORCE, row] = e[c.E_A]
        if e[c.E_B]:
            J[c.J_TRIAL_UNTIL, row] = e[c.E_B]
    elif kind == K_HOLD:
        J[c.J_HOLD, row] = e[c.E_A]
        J[c.J_GENERATION, row] = C[c.C_SEQUENCE] + 1
    elif kind == K_PRIORITY:
        J[c.J_PRIORITY, row] = e[c.E_A]
        C[c.C_PRIORITY_MIN] = min(C[c.C_PRIORITY_MIN], e[c.E_A])
        C[c.C_PRIORITY_MAX] = max(C[c.C_PRIORITY_MAX], e[c.E_A])
    elif kind == K_UPDATED:
        return update(J, Q, C, row, e[c.E_A], e[c.E_B])
    elif kind == K_CANCEL and (phase == STARTING or phase == RUNNING):
        if J[c.J_MUST_STOP, row] == 0:
            C[c.C_MUST_STOP] += 1
        J[c.J_MUST_STOP, row] = R_CANCELLED
    elif kind == K_CANCEL and phase == STOPPING:
        if J[c.J_PLACED, row]:
            error = unbook(J, T, N, G, Q, B, C, row)
            if error:
                return error
        if J[c.J_MUST_STOP, row]:
            J[c.J_MUST_STOP, row] = 0
            C[c.C_MUST_STOP] -= 1
        J[c.J_FINISHING, row] = R_CANCELLED
        J[c.J_GENERATION, row] = C[c.C_SEQUENCE] + 1
    elif kind == K_CANCEL or kind == K_REJECTED or kind == K_FINISHED:
        if phase != QUEUED:
            return IMPOSSIBLE
        final = CANCELLED
        if kind == K_REJECTED:
            final = REJECTED
            C[c.C_REJECTED] += 1
        elif kind == K_FINISHED:
            final = FAILED if e[c.E_A] == R_TIME_LIMIT else COMPLETED
        J[c.J_PHASE, row] = final
        leave_queue(J, Q, C, row)
        if J[c.J_PLACED, row]:
            error = unbook(J, T, N, G, Q, B, C, row)
            if error:
                return error
        forget(J, T, C, R, row, final, R_CANCELLED if kind == K_CANCEL else e[c.E_A])
    else:
        return IMPOSSIBLE
    return OK
