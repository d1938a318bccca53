"""The world's two kernels: `advance` lets time pass and reports what happens, `execute` carries out what the scheduler asks
for."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import (
    K_CANCEL,
    K_COMPLETED,
    K_FINISHED,
    K_NODE_UP,
    K_REJECTED,
    K_START,
    K_START_FAILED,
    K_STARTED,
    K_STOP,
    K_SUBMITTED,
    K_USAGE,
    R_LARGER,
    R_NODE_LOST,
)
from headway.core.jit import ctz, kernel
from headway.sim.columns import (
    BROKEN,
    D_BOOKED,
    DONE,
    F_BEGAN,
    F_DONE,
    F_RATE,
    FUTURE,
    H_KEY,
    H_T,
    H_VERSION,
    H_WHAT,
    IDLE,
    P_BOOK,
    P_CPU,
    P_GPU,
    P_JOB,
    P_MASK,
    P_MEM,
    P_NET,
    P_NODE,
    P_VERSION,
    P_WANT,
    RANK_BITS,
    RANK_DUE,
    RANK_STARTED,
    RANK_STOPPED,
    RANK_USAGE,
    RUNNING,
    SAVING,
    STARTING,
    V_GPU0,
    V_GPUS,
    V_UP,
    W_ATTEMPT,
    W_DUE,
    W_DUE_PPM,
    W_GPUS,
    W_LOSES,
    W_REPLICAS,
    W_RESTORE,
    W_ROOM,
    W_RUNS,
    W_SAVE,
    W_SAVED,
    W_SERVERS,
    W_SINCE,
    W_START,
    W_STATUS,
    W_STEP,
    W_STOP_REASON,
    W_TASK0,
    W_TASKS,
    W_TRUTH,
    W_UNITS,
    W_VERSION,
    W_WARM,
    W_WORK,
    X_ARRIVED,
    X_ERROR,
    X_ERROR_JOB,
    X_FAIL,
    X_HEAP,
    X_JITTER,
    X_LATENCY,
    X_LIVE,
    X_NEXT,
    X_NOW,
    X_OUT,
    X_OUT_POOL,
    X_SEED,
    X_STALE,
)
from headway.sim.curve import mix, observe, true_accuracy
from headway.sim.ends import emit, fall_back, finish_waiting, free_places, lose_node, report_end, report_stopped
from headway.sim.heap import pop, push
from headway.sim.physics import (
    CANCEL,
    DUE,
    ENDS,
    NODE_DOWN,
    NODE_UP,
    PPM,
    SAVED,
    SLICE_US,
    STARTS,
    UNIT,
    USE,
    accrue,
    change_usage,
    draw_usage,
    link,
    progress,
    rate_of,
    refresh,
    schedule,
)
from headway.sim.speed import SCALED, plan_speed
from headway.workloads.truth import Y_CAP, Y_SPEED

TWO_AT_ONCE, OVER_CAPACITY, NO_SUCH_JOB, DEAD_NODE_USED, TOO_MANY_TASKS, NO_SUCH_GPU = 1, 2, 3, 4, 5, 6
FREES, BREAKS = 1, 2
"""What may make the scheduler act between rounds: places became free (it matters if a job waits for one), or jobs must stop."""
KEY_MASK = (1 << RANK_BITS) - 1
SERVERS_MASK = (1 << 20) - 1
"""A start request carries the batch above the servers."""
HEAP_MARGIN = 1 << 14
"""Room in the heap before an event may happen: more than the jobs that one event can reschedule."""


@kernel
def come_up(
    X: Ints,
    H: Table,
    E: Table,
    pool: Ints,
    job: int,
    t: int,
    W: Table,
    WF: Floats,
    P: Table,
    V: Table,
    D: Table,
    VF: Floats,
    DF: Floats,
) -> None:
    """All tasks of the gang are up: it warms up, restores (from its second attempt on; one whose workers change slice by slice
    from its first) and then works."""
    W[W_STATUS, job] = RUNNING
    W[W_RUNS, job] += 1
    again = W[W_ATTEMPT, job] > 1 or W[W_TRUTH + Y_SPEED, job] == SCALED
    W[W_SINCE, job] = t + W[W_WARM, job] + (W[W_RESTORE, job] if again else 0)
    WF[F_RATE, job] = rate_of(X, job, W, WF, P, V, VF, DF)
    WF[F_BEGAN, job] = WF[F_DONE, job]
    emit(X, E, t, K_STARTED, job, W[W_ATTEMPT, job], 0, 0, 0, 0)
    schedule(X, H, job, W, WF)
    if X[X_JITTER]:
        for p in range(W[W_TASK0, job], W[W_TASK0, job] + W[W_TASKS, job]):
            report_usage(X, E, pool, job, p, t, W, P)


@kernel
def report_usage(X: Ints, E: Table, pool: Ints, job: int, p: int, t: int, W: Table, P: Table) -> None:
    """A task's measured usage."""
    emit(X, E, t, K_USAGE, job, W[W_ATTEMPT, job], p - W[W_TASK0, job], 0, 0, 4)
    at = X[X_OUT_POOL]
    pool[at], pool[at + 1], pool[at + 2], pool[at + 3] = P[P_GPU, p], P[P_CPU, p], P[P_MEM, p], P[P_NET, p] + P[P_WANT, p]
    X[X_OUT_POOL] = at + 4


@kernel
def happen(
    X: Ints, H: Table, E: Table, pool: Ints, W: Table, WF: Floats, P: Table, V: Table, D: Table, VF: Floats, DF: Floats
) -> int:
    """Take the first entry of the heap and let it happen. Returns BREAKS or FREES if it may break or free places, else 0."""
    t, key, version, what = H[0, H_T], H[0, H_KEY], H[0, H_VERSION], H[0, H_WHAT]
    pop(H, X)
    subject = key & KEY_MASK
    if what == USE:
        if P[P_VERSION, subject] == version:
            change_usage(X, H, subject, t, W, WF, P, V, D, VF, DF)
            if W[W_STATUS, P[P_JOB, subject]] == RUNNING:
                report_usage(X, E, pool, P[P_JOB, subject], subject, t, W, P)
        return 0
    if what == NODE_DOWN:
        lose_node(X, H, E, pool, subject, t, W, WF, P, V, D, VF, DF)
        return BREAKS
    if what == NODE_UP:
        V[V_UP, subject] = 1
        emit(X, E, t, K_NODE_UP, subject, 0, 0, 0, 0, 0)
        return BREAKS
    if what == CANCEL:
        if W[W_STATUS, subject] != DONE:
            emit(X, E, t, K_CANCEL, subject, 0, 0, 0, 0, 0)
        return BREAKS
    if what == DUE:
        if W[W_STATUS, subject] != DONE:
            done = progress(subject, t, W, WF)
            W[W_DUE_PPM, subject] = int(round(true_accuracy(subject, done * W[W_UNITS, subject] / W[W_WORK, subject], W) * PPM))
        return 0
    if W[W_VERSION, subject] != version:
        return 0
    if what == ENDS:
        accrue(subject, t, W, WF)
        if W[W_TRUTH + Y_CAP, subject] == 0 or WF[F_DONE, subject] + 1 >= W[W_WORK, subject]:
            WF[F_DONE, subject] = W[W_WORK, subject]
        W[W_STATUS, subject] = DONE
        W[W_VERSION, subject] += 1
        free_places(X, H, subject, t, W, WF, P, V, D, VF, DF)
        report_end(X, E, pool, t, K_COMPLETED, subject, 0, 0, True, W, WF)
        X[X_LIVE] -= 1
    elif what == SAVED:
        W[W_SAVED, subject] = int(WF[F_DONE, subject])
        free_places(X, H, subject, t, W, WF, P, V, D, VF, DF)
        report_stopped(X, E, pool, subject, t, W, WF)
    elif what == STARTS:
        come_up(X, H, E, pool, subject, t, W, WF, P, V, D, VF, DF)
        return 0
    elif what == UNIT:
        units, step = W[W_UNITS, subject], W[W_STEP, subject]
        done = progress(subject, t, W, WF)
        unit = int((done + 0.5) * units / W[W_WORK, subject])
        if W[W_TRUTH + Y_SPEED, subject] == SCALED:
            observe(X, E, t, subject, unit, W, WF)
            push(H, X, t + SLICE_US, key, version, UNIT)
            return 0
        unit = max(unit // step, 1) * step
        observe(X, E, t, subject, unit, W, WF)
        if unit + step < units:
            left = (float(unit + step) * W[W_WORK, subject] / units - done) / WF[F_RATE, subject]
            push(H, X, t + int(left) + 1, key, version, UNIT)
        return 0
    return FREES


@kernel
def note_next(X: Ints, H: Table, submitted: Ints) -> None:
    """Note when something happens next."""
    X[X_NEXT] = H[0, H_T] if X[X_HEAP] else c.NEVER
    if X[X_ARRIVED] < submitted.shape[0]:
        X[X_NEXT] = min(X[X_NEXT], submitted[X[X_ARRIVED]])


@kernel
def advance(
    until: int, stop_on: int, X: Ints, H: Table, E: Table, pool: Ints,
    submitted: Ints, spec: Table, details: Ints, detail_at: Ints, rejected: Ints,
    W: Table, WF: Floats, P: Table, V: Table, D: Table, VF: Floats, DF: Floats,
) -> bool:  # fmt: skip
    """Let time pass up to and including `until` (µs), or to the end of the first instant at which something of at least
    `stop_on` happens.

    Reports go to `E` and `pool` in order. False: there is no room for more reports; call again with an empty buffer.
    """
    X[X_OUT], X[X_OUT_POOL] = 0, 0
    settle_at = c.NEVER
    while True:
        next_heap = H[0, H_T] if X[X_HEAP] else c.NEVER
        arrival = submitted[X[X_ARRIVED]] if X[X_ARRIVED] < submitted.shape[0] else c.NEVER
        t = min(next_heap, arrival)
        X[X_NEXT] = t
        if t > until or t > settle_at or t >= c.NEVER:
            return True
        if X[X_HEAP] + HEAP_MARGIN > H.shape[0]:
            return False
        X[X_NOW] = t
        if next_heap == t and (arrival > t or H[0, H_KEY] < (6 << RANK_BITS)):
            reports = 1
            if H[0, H_WHAT] == STARTS:
                reports += W[W_TASKS, H[0, H_KEY] & KEY_MASK]
            elif H[0, H_WHAT] == NODE_DOWN:
                reports += X[X_LIVE]
            if X[X_OUT] + reports > E.shape[0] or X[X_OUT_POOL] + 4 * reports > pool.shape[0]:
                return False
            if happen(X, H, E, pool, W, WF, P, V, D, VF, DF) >= stop_on:
                settle_at = t
        else:
            job = X[X_ARRIVED]
            size = c.SPEC_COLUMNS + detail_at[job + 1] - detail_at[job]
            if X[X_OUT] + 2 > E.shape[0] or X[X_OUT_POOL] + size > pool.shape[0]:
                return False
            at = X[X_OUT_POOL]
            for column in range(c.SPEC_COLUMNS):
                pool[at + column] = spec[column, job]
            for i in range(size - c.SPEC_COLUMNS):
                pool[at + c.SPEC_COLUMNS + i] = details[detail_at[job] + i]
            X[X_OUT_POOL] = at + size
            emit(X, E, t, K_SUBMITTED, job, 0, 0, 0, 0, size)
            X[X_ARRIVED] = job + 1
            if rejected[job]:
                emit(X, E, t, K_REJECTED, job, 0, R_LARGER, 0, 0, 0)
                W[W_STATUS, job] = DONE
            else:
                W[W_STATUS, job] = IDLE
                X[X_LIVE] += 1
                if W[W_DUE, job] < c.NEVER:
                    push(H, X, max(W[W_DUE, job], t), (RANK_DUE << RANK_BITS) + job, 0, DUE)


@kernel
def start_job(
    X: Ints, H: Table, E: Table, out_pool: Ints, t: int, job: int, request: int, requests: Table, pool: Ints, at: int,
    W: Table, WF: Floats, P: Table, V: Table, D: Table, VF: Floats, DF: Floats,
) -> int:  # fmt: skip
    """Start a gang where the scheduler says. The world checks for itself; returns 0 or what is wrong."""
    if W[W_STATUS, job] != IDLE:
        return NO_SUCH_JOB if W[W_STATUS, job] in (FUTURE, DONE) else TWO_AT_ONCE
    attempt, tasks = requests[request, c.E_ATTEMPT], requests[request, c.E_POOL] // c.PLACE
    if tasks > W[W_ROOM, job]:
        return TOO_MANY_TASKS
    W[W_ATTEMPT, job] = attempt
    fails = X[X_FAIL] > 0 and mix(X[X_SEED], job, attempt, 77) % PPM < X[X_FAIL]
    for k in range(tasks):
        node, mask = pool[at + c.PLACE * k], pool[at + c.PLACE * k + 1]
        if V[V_GPUS, node] < 64 and mask >> V[V_GPUS, node] != 0:
            return NO_SUCH_GPU
        fails = fails or V[V_UP, node] == 0
    if fails:
        emit(X, E, t, K_START_FAILED, job, attempt, 0, -1, 0, 0)
        return 0
    W[W_TASKS, job], W[W_GPUS, job] = tasks, 0
    W[W_REPLICAS, job], W[W_SERVERS, job] = requests[request, c.E_B], requests[request, c.E_C] & SERVERS_MASK
    for k in range(tasks):
        p = W[W_TASK0, job] + k
        P[P_JOB, p], P[P_NODE, p], P[P_MASK, p], P[P_BOOK, p] = (
            job,
            pool[at + c.PLACE * k],
            pool[at + c.PLACE * k + 1],
            pool[at + c.PLACE * k + 2],
        )
        rest = P[P_MASK, p]
        while rest != 0:
            g = V[V_GPU0, P[P_NODE, p]] + ctz(rest)
            rest &= rest - 1
            D[D_BOOKED, g] += P[P_BOOK, p]
            W[W_GPUS, job] += 1
            if D[D_BOOKED, g] > 1000:
                return OVER_CAPACITY
    plan_speed(job, W, WF, P, V)
    for k in range(tasks):
        p = W[W_TASK0, job] + k
        changes = draw_usage(X, P, p, job, k, t)
        link(p, P, V, D)
        if changes >= 0:
            push(H, X, changes, (RANK_USAGE << RANK_BITS) + p, P[P_VERSION, p], USE)
    for p in range(W[W_TASK0, job], W[W_TASK0, job] + tasks):
        refresh(X, H, p, t, W, WF, P, V, D, VF, DF)
    W[W_STATUS, job] = STARTING
    W[W_VERSION, job] += 1
    if X[X_LATENCY] or W[W_START, job]:
        delay = W[W_START, job] + (mix(X[X_SEED], job, attempt, 78) % (X[X_LATENCY] + 1) if X[X_LATENCY] else 0)
        push(H, X, t + delay, (RANK_STARTED << RANK_BITS) + job, W[W_VERSION, job], STARTS)
    else:
        come_up(X, H, E, out_pool, job, t, W, WF, P, V, D, VF, DF)
    return 0


@kernel
def stop_job(
    X: Ints, H: Table, E: Table, pool: Ints, t: int, job: int, attempt: int, reason: int,
    W: Table, WF: Floats, P: Table, V: Table, D: Table, VF: Floats, DF: Floats,
) -> None:  # fmt: skip
    """Tell a gang to stop. One that is not running in that attempt any more is left alone: its end is on its way to the
    scheduler."""
    status = W[W_STATUS, job]
    if attempt != W[W_ATTEMPT, job] or status in (IDLE, DONE, FUTURE):
        X[X_STALE] += 1
        return
    W[W_STOP_REASON, job] = reason
    if status == SAVING:
        return
    if status == BROKEN:
        free_places(X, H, job, t, W, WF, P, V, D, VF, DF)
        report_stopped(X, E, pool, job, t, W, WF)
        return
    accrue(job, t, W, WF)
    W[W_VERSION, job] += 1
    if reason == R_NODE_LOST or W[W_LOSES, job]:
        fall_back(job, t, W, WF)
    if status == STARTING or W[W_SAVE, job] == 0 or reason == R_NODE_LOST:
        W[W_SAVED, job] = int(WF[F_DONE, job])
        free_places(X, H, job, t, W, WF, P, V, D, VF, DF)
        report_stopped(X, E, pool, job, t, W, WF)
        return
    W[W_STATUS, job] = SAVING
    W[W_SINCE, job] = t + W[W_SAVE, job]
    push(H, X, t + W[W_SAVE, job], (RANK_STOPPED << RANK_BITS) + job, W[W_VERSION, job], SAVED)


@kernel
def execute(
    requests: Table, pool: Ints, t: int, submitted: Ints, X: Ints, H: Table, E: Table, out_pool: Ints,
    W: Table, WF: Floats, P: Table, V: Table, D: Table, VF: Floats, DF: Floats,
) -> None:  # fmt: skip
    """Carry out the start and stop requests among a round's events, in order, and take note of jobs that end waiting. What is
    wrong in the world's own eyes goes to X_ERROR."""
    at = 0
    X[X_OUT], X[X_OUT_POOL] = 0, 0
    X[X_NOW] = max(X[X_NOW], t)
    for i in range(requests.shape[0]):
        kind, job, size = requests[i, c.E_KIND], requests[i, c.E_ID], requests[i, c.E_POOL]
        if kind == K_START:
            error = start_job(X, H, E, out_pool, t, job, i, requests, pool, at, W, WF, P, V, D, VF, DF)
            if error:
                X[X_ERROR], X[X_ERROR_JOB] = error, job
                return
        elif kind == K_STOP:
            stop_job(X, H, E, out_pool, t, job, requests[i, c.E_ATTEMPT], requests[i, c.E_A], W, WF, P, V, D, VF, DF)
        elif kind == K_FINISHED:
            finish_waiting(X, E, out_pool, job, t, W, WF)
        at += size
    note_next(X, H, submitted)
