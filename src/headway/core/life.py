"""A job's life: the kernels that move one job between its phases, and keep the counters of the queue in step."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.booking import OK, book, hold, unbook, unhold
from headway.core.codes import (
    CANCELLED,
    COMPLETED,
    FAILED,
    K_START_FAILED,
    K_STOPPED,
    PARAMETER_SERVER,
    QUEUED,
    R_CANCELLED,
    R_EARLY_STOP,
    R_EXIT_CODE,
    R_MIGRATED,
    R_PREEMPTED,
    R_RESIZED,
    R_START_FAILED,
    R_TIME_LIMIT,
    R_TRIAL,
    RUNNING,
    STARTING,
    STOPPING,
)  # fmt: skip
from headway.core.expand import add_tasks, drop_tasks, edge_count, edge_room, task_room
from headway.core.jit import kernel

NEED_JOBS, NEED_TASKS, NEED_EDGES, NEED_IDS, NOT_MINE = 1, 2, 3, 4, 5
IMPOSSIBLE, WRONG_ATTEMPT, UNKNOWN_JOB, ID_NOT_NEW, ALREADY_HELD, OUT_OF_ORDER = 20, 21, 22, 23, 24, 25
NO_SUCH_QUEUE = 26

BACKOFF_US = 10_000_000
"""Wait before the first retry of a failed job (µs); doubled with each further one, up to 32-fold."""


@kernel
def whole_milli(dt: int, milli: int) -> int:
    """Service in GPU·µs of `dt` µs on `milli` thousandths of a GPU, rounded down without overflow."""
    return (dt // 1000) * milli + ((dt % 1000) * milli) // 1000


@kernel
def accrue(J: Table, row: int, now: int) -> None:
    """Add the service since the job came up, and end that period."""
    if J[c.J_STARTED_AT, row] >= 0:
        dt = now - J[c.J_STARTED_AT, row]
        J[c.J_RUN, row] += dt
        J[c.J_ATTAINED, row] += whole_milli(dt, J[c.J_HELD_MILLI, row])
        J[c.J_STARTED_AT, row] = -1


@kernel
def leave_waiting(J: Table, Q: Table, C: Ints, row: int) -> None:
    """The job in `row` no longer waits without a place; keep the hint to the first row that does."""
    C[c.C_WAITING] -= 1
    if J[c.J_GPUS, row] == 0:
        C[c.C_WAITING_CPU] -= 1
    Q[c.Q_WAITING, J[c.J_QUEUE, row]] -= 1
    if row == C[c.C_FIRST_WAITING]:
        at = row + 1
        while at < C[c.C_ROWS] and not (J[c.J_PHASE, at] == QUEUED and J[c.J_PLACED, at] == 0):
            at += 1
        C[c.C_FIRST_WAITING] = at


@kernel
def note_wait(J: Table, row: int, now: int) -> None:
    """A waiting job is given a place: keep how long it has waited, and what it had got before."""
    J[c.J_LAST_WAIT, row] = now - J[c.J_QUEUED_AT, row]
    J[c.J_ATTAINED_AT_START, row], J[c.J_RUN_AT_START, row] = J[c.J_ATTAINED, row], J[c.J_RUN, row]


@kernel
def enter_queue(J: Table, Q: Table, C: Ints, row: int, now: int) -> None:
    """The job in `row` is queued (again), with or without a wanted place."""
    J[c.J_PHASE, row] = QUEUED
    J[c.J_QUEUED_AT, row] = now
    C[c.C_QUEUED] += 1
    if J[c.J_PLACED, row]:
        C[c.C_PLACED_WAITING] += 1
    else:
        C[c.C_WAITING] += 1
        if J[c.J_GPUS, row] == 0:
            C[c.C_WAITING_CPU] += 1
        Q[c.Q_WAITING, J[c.J_QUEUE, row]] += 1
        C[c.C_FIRST_WAITING] = min(C[c.C_FIRST_WAITING], row)


@kernel
def leave_queue(J: Table, Q: Table, C: Ints, row: int) -> None:
    """The job in `row` stops being queued; its phase has been set already."""
    C[c.C_QUEUED] -= 1
    if J[c.J_PLACED, row]:
        C[c.C_PLACED_WAITING] -= 1
    else:
        leave_waiting(J, Q, C, row)


@kernel
def forget(J: Table, T: Table, C: Ints, R: Ints, row: int, phase: int, reason: int) -> None:
    """The job has ended: it leaves the live tables (the row is dead until compaction), and its number remembers how it ended."""
    if J[c.J_MUST_STOP, row]:
        J[c.J_MUST_STOP, row] = 0
        C[c.C_MUST_STOP] -= 1
    J[c.J_PHASE, row], J[c.J_REASON, row] = phase, reason
    drop_tasks(T, C, J[c.J_TASK0, row], J[c.J_TASKS, row], J[c.J_EDGES, row])
    R[J[c.J_ID, row] - C[c.C_ID_BASE]] = -2 - phase
    C[c.C_DEAD] += 1
    C[c.C_FINISHED] += 1


@kernel
def release_hold(J: Table, T: Table, N: Table, G: Table, C: Ints, row: int) -> int:
    """Free what the job holds; a task block of an older shape dies with it."""
    first, tasks = J[c.J_HELD_TASK0, row], J[c.J_HELD_TASKS, row]
    error = unhold(J, T, N, G, row)
    if first >= 0 and first != J[c.J_TASK0, row]:
        drop_tasks(T, C, first, tasks, 0)
    J[c.J_HELD_TASK0, row] = -1
    return error


@kernel
def reshape(J: Table, T: Table, X: Table, C: Ints, row: int, data: int, servers: int, details: Ints) -> None:
    """Give the job a new block of tasks for another shape. A block whose processes still run stays until they are gone."""
    J[c.J_DATA, row], J[c.J_SERVERS, row] = data, servers
    if J[c.J_HELD_TASKS, row] and J[c.J_HELD_TASK0, row] == J[c.J_TASK0, row]:
        C[c.C_DEAD_EDGES] += J[c.J_EDGES, row]
    else:
        drop_tasks(T, C, J[c.J_TASK0, row], J[c.J_TASKS, row], J[c.J_EDGES, row])
    add_tasks(J, T, X, C, row, details)


@kernel
def shape_room(J: Table, T: Table, X: Table, C: Ints, row: int, data: int, servers: int) -> int:
    """0 if the tables have room for the job in another shape (or it is the present one), else what there is no room for."""
    if data == J[c.J_DATA, row] and servers == J[c.J_SERVERS, row]:
        return OK
    partitions = J[c.J_PIPELINE, row] * J[c.J_TENSOR, row]
    if C[c.C_TASKS] + data * partitions + servers > T.shape[1]:
        return NEED_TASKS
    to_servers = servers if J[c.J_SYNC, row] == PARAMETER_SERVER else 0
    if C[c.C_EDGES] + edge_count(J[c.J_CUT, row], J[c.J_WIDTH, row], partitions, data, to_servers) > X.shape[1]:
        return NEED_EDGES
    return OK


@kernel
def submit(
    J: Table, T: Table, X: Table, F: Floats, Q: Table, R: Ints, C: Ints, pool: Ints, at: int, size: int, t: int, job: int
) -> int:
    """A new row at the end of the live table, where all rows are zero. Returns 0, or what there is no room for (nothing has
    been changed then)."""
    row = C[c.C_ROWS]
    if row >= J.shape[1]:
        return NEED_JOBS
    if job - C[c.C_ID_BASE] >= R.shape[0]:
        return NEED_IDS
    if job <= C[c.C_LAST_ID]:
        return ID_NOT_NEW
    if pool[at + c.J_QUEUE] < 0 or pool[at + c.J_QUEUE] >= C[c.C_QUEUES]:
        return NO_SUCH_QUEUE
    for column in range(c.SPEC_COLUMNS):
        if pool[at + column] != 0 or J[column, row] != 0:
            J[column, row] = pool[at + column]
    if C[c.C_TASKS] + task_room(J, row) > T.shape[1]:
        return NEED_TASKS
    if C[c.C_EDGES] + edge_room(J, row) > X.shape[1]:
        return NEED_EDGES
    J[c.J_ID, row], J[c.J_SUBMITTED, row] = job, t
    J[c.J_STARTED_AT, row], J[c.J_FIRST_START, row], J[c.J_HELD_TASK0, row], J[c.J_SAVED_AT, row] = -1, -1, -1, -1
    J[c.J_LOSS, row], J[c.J_ACCURACY, row] = c.NOTHING, c.NOTHING
    J[c.J_RULE_IN_FORCE, row] = J[c.J_STOP_RULE, row]
    J[c.J_TRIAL_UNTIL, row] = c.NEVER
    J[c.J_ESTIMATED_REMAINING, row] = J[c.J_ESTIMATE, row]
    J[c.J_GENERATION, row] = C[c.C_SEQUENCE] + 1
    C[c.C_ROWS] = row + 1
    C[c.C_LAST_ID] = job
    R[job - C[c.C_ID_BASE]] = row
    add_tasks(J, T, X, C, row, pool[at + c.SPEC_COLUMNS : at + size])
    C[c.C_PRIORITY_MIN] = min(C[c.C_PRIORITY_MIN], J[c.J_PRIORITY, row])
    C[c.C_PRIORITY_MAX] = max(C[c.C_PRIORITY_MAX], J[c.J_PRIORITY, row])
    enter_queue(J, Q, C, row, t)
    return OK


@kernel
def request_start(
    J: Table, T: Table, X: Table, N: Table, G: Table, Q: Table, B: Table, C: Ints, pool: Ints, at: int, size: int,
    row: int, t: int, attempt: int, reason: int, data: int, servers: int, batch: int, none: Ints,
) -> int:  # fmt: skip
    """Book (unless it is what the job wants already) and hold the place in the payload; the attempt begins."""
    if J[c.J_PHASE, row] != QUEUED:
        return IMPOSSIBLE
    if attempt != J[c.J_ATTEMPT, row] + 1:
        return WRONG_ATTEMPT
    if J[c.J_HELD_TASKS, row]:
        return ALREADY_HELD
    error = shape_room(J, T, X, C, row, data, servers)
    if error:
        return error
    leave = J[c.J_PLACED, row]
    if leave:
        error = unbook(J, T, N, G, Q, B, C, row)
        if error:
            return error
        C[c.C_PLACED_WAITING] -= 1
    if data != J[c.J_DATA, row] or servers != J[c.J_SERVERS, row]:
        reshape(J, T, X, C, row, data, servers, none)
    J[c.J_BATCH, row] = batch
    error = book(J, T, N, G, Q, B, C, row, pool, at, size)
    if error:
        return error
    C[c.C_QUEUED] -= 1
    J[c.J_PHASE, row] = STARTING
    if not leave:
        leave_waiting(J, Q, C, row)
        note_wait(J, row, t)
    J[c.J_REASON, row], J[c.J_WHY, row] = reason, 0
    if reason != R_TRIAL:
        J[c.J_TRIAL_UNTIL, row] = c.NEVER
    J[c.J_ATTEMPT, row] = attempt
    return hold(J, T, N, G, row)


@kernel
def ended(
    J: Table, T: Table, N: Table, G: Table, Q: Table, B: Table, C: Ints, R: Ints, row: int, t: int, phase: int, reason: int
) -> int:
    """The job's last process is gone and the job with it."""
    accrue(J, row, t)
    if J[c.J_PHASE, row] == RUNNING:
        C[c.C_RUNNING] -= 1
    error = release_hold(J, T, N, G, C, row)
    if J[c.J_PLACED, row] and not error:
        error = unbook(J, T, N, G, Q, B, C, row)
    forget(J, T, C, R, row, phase, reason)
    return error


@kernel
def back_to_queue(
    J: Table, T: Table, N: Table, G: Table, Q: Table, B: Table, C: Ints, R: Ints, row: int, t: int, kind: int, units: int
) -> int:
    """An attempt is over, the job is not (unless its stop was asked for to end it, or its retries are spent)."""
    phase = J[c.J_PHASE, row]
    asked = phase == STOPPING
    if asked and J[c.J_FINISHING, row]:
        reason = J[c.J_FINISHING, row]
        final = CANCELLED
        if reason == R_EARLY_STOP:
            final = COMPLETED
        elif reason == R_TIME_LIMIT:
            final = FAILED
        return ended(J, T, N, G, Q, B, C, R, row, t, final, reason)
    failed = not asked and kind != K_STOPPED and J[c.J_MUST_STOP, row] != R_CANCELLED
    if failed:
        J[c.J_RETRIES, row] += 1
        if J[c.J_RETRIES, row] > J[c.J_RETRY_MAX, row]:
            return ended(J, T, N, G, Q, B, C, R, row, t, FAILED, R_START_FAILED if kind == K_START_FAILED else R_EXIT_CODE)
        J[c.J_NOT_BEFORE, row] = t + (BACKOFF_US << min(J[c.J_RETRIES, row] - 1, 5))
        J[c.J_REASON, row] = R_START_FAILED if kind == K_START_FAILED else R_EXIT_CODE
    accrue(J, row, t)
    if phase == RUNNING:
        C[c.C_RUNNING] -= 1
    error = release_hold(J, T, N, G, C, row)
    if error:
        return error
    if J[c.J_PLACED, row] and not asked:
        error = unbook(J, T, N, G, Q, B, C, row)
        if error:
            return error
    if J[c.J_MUST_STOP, row]:
        reason = J[c.J_MUST_STOP, row]
        if reason == R_CANCELLED:
            forget(J, T, C, R, row, CANCELLED, reason)
            return OK
        if not J[c.J_PLACED, row]:
            J[c.J_MUST_STOP, row] = 0
            C[c.C_MUST_STOP] -= 1
    if units >= 0:
        J[c.J_UNITS_SAVED, row] = max(units, J[c.J_UNITS_SAVED, row])
        J[c.J_UNITS_DONE, row] = J[c.J_UNITS_SAVED, row]
    enter_queue(J, Q, C, row, t)
    return OK


@kernel
def request_stop(
    J: Table, T: Table, X: Table, N: Table, G: Table, Q: Table, B: Table, C: Ints, pool: Ints, at: int, size: int,
    row: int, reason: int, data: int, servers: int, batch: int, none: Ints,
) -> int:  # fmt: skip
    """The job gives up its place (or wants another); its processes have been told to go."""
    phase = J[c.J_PHASE, row]
    moves = size > 0 and (reason == R_MIGRATED or reason == R_RESIZED)
    if moves:
        error = shape_room(J, T, X, C, row, data, servers)
        if error:
            return error
    if phase == STOPPING and reason >= R_CANCELLED and reason <= R_TIME_LIMIT:
        J[c.J_FINISHING, row] = reason
    elif phase != STARTING and phase != RUNNING:
        return IMPOSSIBLE
    if phase == RUNNING:
        C[c.C_RUNNING] -= 1
    J[c.J_PHASE, row], J[c.J_REASON, row] = STOPPING, reason
    if J[c.J_MUST_STOP, row]:
        J[c.J_MUST_STOP, row] = 0
        C[c.C_MUST_STOP] -= 1
    if J[c.J_PLACED, row]:
        error = unbook(J, T, N, G, Q, B, C, row)
        if error:
            return error
    if reason == R_MIGRATED or reason == R_RESIZED:
        J[c.J_MIGRATIONS, row] += 1
    if moves:
        if data != J[c.J_DATA, row] or servers != J[c.J_SERVERS, row]:
            reshape(J, T, X, C, row, data, servers, none)
        J[c.J_BATCH, row] = batch
        return book(J, T, N, G, Q, B, C, row, pool, at, size)
    if reason == R_PREEMPTED:
        J[c.J_PREEMPTIONS, row] += 1
    elif reason >= R_CANCELLED and reason <= R_TIME_LIMIT:
        J[c.J_FINISHING, row] = reason
    return OK
