"""How an attempt of a job ends in the world: by itself, by a stop, or with its node; and what is reported of it."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import K_EVALUATED, K_NODE_DOWN, K_STOPPED, R_EARLY_STOP, R_TIME_LIMIT
from headway.core.jit import ctz, kernel
from headway.sim.columns import (
    BROKEN,
    D_BOOKED,
    DONE,
    F_BEGAN,
    F_BYTES,
    F_DONE,
    F_MOVED,
    IDLE,
    P_BOOK,
    P_JOB,
    P_MASK,
    P_NEXT,
    P_NODE,
    P_VERSION,
    RUNNING,
    SAVING,
    STARTING,
    V_GPU0,
    V_HEAD,
    V_UP,
    W_ATTEMPT,
    W_DUE_PPM,
    W_EVERY,
    W_SAVED,
    W_SINCE,
    W_STATUS,
    W_STOP_REASON,
    W_TASK0,
    W_TASKS,
    W_UNITS,
    W_VERSION,
    W_WORK,
    X_LIVE,
    X_OUT,
    X_OUT_POOL,
)
from headway.sim.curve import true_accuracy
from headway.sim.physics import PPM, accrue, progress, refresh, unlink


@kernel
def emit(X: Ints, E: Table, t: int, kind: int, subject: int, attempt: int, a: int, b: int, d: int, size: int) -> None:
    """Append a report; the caller has made room."""
    n = X[X_OUT]
    E[n, c.E_T], E[n, c.E_KIND], E[n, c.E_ID], E[n, c.E_ATTEMPT] = t, kind, subject, attempt
    E[n, c.E_A], E[n, c.E_B], E[n, c.E_C], E[n, c.E_POOL] = a, b, d, size
    X[X_OUT] = n + 1


@kernel
def free_places(
    X: Ints, H: Table, job: int, t: int, W: Table, WF: Floats, P: Table, V: Table, D: Table, VF: Floats, DF: Floats
) -> None:
    """The processes of a job are gone from the world."""
    for p in range(W[W_TASK0, job], W[W_TASK0, job] + W[W_TASKS, job]):
        unlink(p, P, V, D)
        rest = P[P_MASK, p]
        while rest != 0:
            D[D_BOOKED, V[V_GPU0, P[P_NODE, p]] + ctz(rest)] -= P[P_BOOK, p]
            rest &= rest - 1
        P[P_VERSION, p] += 1
    for p in range(W[W_TASK0, job], W[W_TASK0, job] + W[W_TASKS, job]):
        refresh(X, H, p, t, W, WF, P, V, D, VF, DF)
    W[W_TASKS, job] = 0


@kernel
def fall_back(job: int, t: int, W: Table, WF: Floats) -> None:
    """A job dies without saving: its progress is what its last periodic checkpoint (or its last stop) has kept."""
    accrue(job, t, W, WF)
    count_moved(job, W, WF)
    done, kept = WF[F_DONE, job], W[W_SAVED, job]
    if W[W_EVERY, job] > 0:
        kept = max(kept, int(done) // W[W_EVERY, job] * W[W_EVERY, job])
    W[W_SAVED, job] = kept
    WF[F_DONE, job] = WF[F_BEGAN, job] = kept


@kernel
def count_moved(job: int, W: Table, WF: Floats) -> None:
    """Add the bytes that the attempt has moved between nodes since it came up (or since this was asked last)."""
    WF[F_MOVED, job] += (WF[F_DONE, job] - WF[F_BEGAN, job]) * WF[F_BYTES, job]
    WF[F_BEGAN, job] = WF[F_DONE, job]


@kernel
def report_end(
    X: Ints, E: Table, pool: Ints, t: int, kind: int, job: int, a: int, b: int, final: bool, W: Table, WF: Floats
) -> None:
    """Tell that an attempt is over. The payload is the bytes that it moved between nodes and, at the end of a job whose accuracy
    is judged, its true accuracy (ppm) now and by its deadline; nothing if there is nothing to tell."""
    count_moved(job, W, WF)
    moved, at = int(round(WF[F_MOVED, job])), X[X_OUT_POOL]
    WF[F_MOVED, job] = 0.0
    accuracy = true_accuracy(job, WF[F_DONE, job] * W[W_UNITS, job] / W[W_WORK, job], W) if final else -1.0
    size = 0
    if accuracy >= 0.0:
        size = 3
        pool[at + 1] = int(round(accuracy * PPM))
        pool[at + 2] = W[W_DUE_PPM, job] if W[W_DUE_PPM, job] >= 0 else pool[at + 1]
    elif moved:
        size = 1
    if size:
        pool[at] = moved
    X[X_OUT_POOL] = at + size
    emit(X, E, t, kind, job, W[W_ATTEMPT, job], a, b, 0, size)


@kernel
def report_stopped(X: Ints, E: Table, pool: Ints, job: int, t: int, W: Table, WF: Floats) -> None:
    """Tell that the job's processes are gone, with the progress units that are safe."""
    units, reason = W[W_UNITS, job], W[W_STOP_REASON, job]
    kept = int(WF[F_DONE, job] * units / W[W_WORK, job]) if units else -1
    report_end(X, E, pool, t, K_STOPPED, job, reason, kept, reason == R_EARLY_STOP or reason == R_TIME_LIMIT, W, WF)
    W[W_STATUS, job] = IDLE


@kernel
def finish_waiting(X: Ints, E: Table, pool: Ints, job: int, t: int, W: Table, WF: Floats) -> None:
    """The scheduler has ended a job that waits, so that no attempt will tell how good it is: tell it now, if it is judged."""
    if W[W_STATUS, job] != IDLE:
        return
    W[W_STATUS, job] = DONE
    X[X_LIVE] -= 1
    if true_accuracy(job, WF[F_DONE, job] * W[W_UNITS, job] / W[W_WORK, job], W) >= 0.0:
        report_end(X, E, pool, t, K_EVALUATED, job, 0, 0, True, W, WF)


@kernel
def lose_node(
    X: Ints, H: Table, E: Table, pool: Ints, node: int, t: int,
    W: Table, WF: Floats, P: Table, V: Table, D: Table, VF: Floats, DF: Floats,
) -> None:  # fmt: skip
    """Every process on the node dies. Jobs that were saving are gone at once; others are broken until they are told to stop.

    What ends or is saved at this very instant counts as ended and saved.
    """
    V[V_UP, node] = 0
    emit(X, E, t, K_NODE_DOWN, node, 0, 0, 0, 0, 0)
    while True:
        lowest = 1 << 60
        p = V[V_HEAD, node]
        while p >= 0:
            if W[W_STATUS, P[P_JOB, p]] == SAVING and W[W_SINCE, P[P_JOB, p]] > t:
                lowest = min(lowest, P[P_JOB, p])
            p = P[P_NEXT, p]
        if lowest == 1 << 60:
            break
        W[W_VERSION, lowest] += 1
        fall_back(lowest, t, W, WF)
        free_places(X, H, lowest, t, W, WF, P, V, D, VF, DF)
        report_stopped(X, E, pool, lowest, t, W, WF)
    p = V[V_HEAD, node]
    while p >= 0:
        job = P[P_JOB, p]
        ends_now = W[W_STATUS, job] == RUNNING and progress(job, t, W, WF) >= W[W_WORK, job]
        if (W[W_STATUS, job] == RUNNING and not ends_now) or W[W_STATUS, job] == STARTING:
            fall_back(job, t, W, WF)
            W[W_VERSION, job] += 1
            W[W_STATUS, job] = BROKEN
        p = P[P_NEXT, p]
