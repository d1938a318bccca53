"""How fast a job really runs: usage of shared resources, and what it does to rates (`docs/semantics.md` §5)."""

from __future__ import annotations

from math import ceil

from headway.core.arrays import Floats, Ints, Table
from headway.core.jit import ctz, kernel, popcount
from headway.sim.columns import (
    D_TASKS,
    D_USED,
    F_DONE,
    F_FACTOR,
    F_RATE,
    F_SERVED,
    P_CPU,
    P_GPU,
    P_IN,
    P_JOB,
    P_MASK,
    P_MEM,
    P_NET,
    P_NEXT,
    P_NODE,
    P_OUT,
    P_PREV,
    P_REQ_CPU,
    P_REQ_GPU,
    P_REQ_MEM,
    P_REQ_NET,
    P_VERSION,
    P_WANT,
    RANK_BITS,
    RANK_ENDED,
    RANK_OBSERVED,
    RANK_USAGE,
    RUNNING,
    V_CPU,
    V_CPU_MAX,
    V_FLOWS,
    V_GPU0,
    V_HEAD,
    V_NET,
    V_NET_MAX,
    V_WANT,
    VF_CPU,
    VF_NET,
    VF_SHARE,
    W_GPUS,
    W_SINCE,
    W_STATUS,
    W_STEP,
    W_TASK0,
    W_TASKS,
    W_TRUTH,
    W_UNITS,
    W_VERSION,
    W_WORK,
    X_HOLD,
    X_JITTER,
    X_NOW,
    X_SEED,
    X_SLOW,
)  # fmt: skip
from headway.sim.curve import mix
from headway.sim.heap import push
from headway.sim.speed import ITERATIONS, SCALED, US, WORK
from headway.workloads.truth import Y_CAP, Y_SPEED

ENDS, SAVED, STARTS, UNIT, USE, NODE_DOWN, NODE_UP, CANCEL, DUE = range(9)
"""What a heap entry announces."""
PPM = 1_000_000
SLICE_US = 300 * US
"""SCALED jobs are observed at the end of each slice, whatever they have done."""


@kernel
def slow_down(usage: int, capacity: int) -> float:
    """f(u): 1 up to 90 % of a resource, down to 0.9 at 100 %, then processor sharing (MLFS A22)."""
    if capacity <= 0 or usage * 10 <= capacity * 9:
        return 1.0
    u = usage / capacity
    return 1.0 - (u - 0.9) if u <= 1.0 else 0.9 / u


@kernel
def draw_usage(X: Ints, P: Table, p: int, job: int, task: int, t: int) -> int:
    """Set the usage of a task for the interval that holds `t`; returns when the interval ends (µs), or -1 if usage never
    changes."""
    jitter, hold = X[X_JITTER], X[X_HOLD]
    if jitter == 0:
        P[P_GPU, p], P[P_CPU, p], P[P_MEM, p], P[P_NET, p] = P[P_REQ_GPU, p], P[P_REQ_CPU, p], P[P_REQ_MEM, p], P[P_REQ_NET, p]
        return -1
    phase = mix(X[X_SEED], job, task, -1) % hold
    index = (t + phase) // hold
    e = mix(X[X_SEED], job, task, index) % (2 * jitter + 1) - jitter
    P[P_GPU, p] = P[P_REQ_GPU, p] + P[P_REQ_GPU, p] * e // PPM
    P[P_CPU, p] = P[P_REQ_CPU, p] + P[P_REQ_CPU, p] * e // PPM
    P[P_MEM, p] = P[P_REQ_MEM, p]
    P[P_NET, p] = P[P_REQ_NET, p] + P[P_REQ_NET, p] * e // PPM
    return int((index + 1) * hold - phase)


@kernel
def add_usage(sign: int, p: int, P: Table, V: Table, D: Table) -> None:
    """Add (or take away) a task's usage to its node and GPUs."""
    node, rest = P[P_NODE, p], P[P_MASK, p]
    V[V_CPU, node] += sign * P[P_CPU, p]
    V[V_NET, node] += sign * P[P_NET, p]
    if rest == 0:
        return
    each = P[P_GPU, p] // popcount(rest)
    while rest != 0:
        g = V[V_GPU0, node] + ctz(rest)
        rest &= rest - 1
        D[D_USED, g] += sign * each


@kernel
def refactor(X: Ints, p: int, P: Table, V: Table, D: Table, VF: Floats, DF: Floats) -> bool:
    """Compute the factors of a task's node and GPUs anew; whether one of them changed."""
    node, rest = P[P_NODE, p], P[P_MASK, p]
    changed = False
    for resource in range(3):
        if resource == VF_CPU:
            factor = slow_down(V[V_CPU, node], V[V_CPU_MAX, node])
        elif resource == VF_NET:
            factor = slow_down(V[V_NET, node], V[V_NET_MAX, node])
        else:
            factor = 1.0 / V[V_FLOWS, node] if V[V_WANT, node] > V[V_NET_MAX, node] else 1.0
        if factor != VF[resource, node]:
            X[X_SLOW] += int(factor < 1.0) - int(VF[resource, node] < 1.0)
            VF[resource, node] = factor
            changed = True
    while rest != 0:
        g = V[V_GPU0, node] + ctz(rest)
        rest &= rest - 1
        factor = slow_down(D[D_USED, g], 1000) if D[D_TASKS, g] > 1 else 1.0
        if factor != DF[g]:
            X[X_SLOW] += int(factor < 1.0) - int(DF[g] < 1.0)
            DF[g] = factor
            changed = True
    return bool(changed)


@kernel
def rate_of(X: Ints, job: int, W: Table, WF: Floats, P: Table, V: Table, VF: Floats, DF: Floats) -> float:
    """The rate of a job: that of its slowest task, then what its shape, its place and the network make of it."""
    rate, kind = 1.0, W[W_TRUTH + Y_SPEED, job]
    first, stop = W[W_TASK0, job], W[W_TASK0, job] + W[W_TASKS, job]
    if X[X_SLOW]:
        for p in range(first, stop):
            node, rest = P[P_NODE, p], P[P_MASK, p]
            if P[P_CPU, p]:
                rate = min(rate, VF[VF_CPU, node])
            if P[P_NET, p]:
                rate = min(rate, VF[VF_NET, node])
            while rest != 0:
                rate = min(rate, DF[V[V_GPU0, node] + ctz(rest)])
                rest &= rest - 1
    if kind == WORK:
        return rate
    if kind != ITERATIONS:
        return float(rate * WF[F_FACTOR, job])
    wait_us = 0.0
    for p in range(first, stop):
        if P[P_WANT, p]:
            node = P[P_NODE, p]
            wait_us = max(wait_us, max(P[P_IN, p], P[P_OUT, p]) * US / (V[V_NET_MAX, node] * VF[VF_SHARE, node]))
    return float(1.0 / (1.0 / rate + wait_us * W[W_UNITS, job] / W[W_WORK, job]))


@kernel
def progress(job: int, t: int, W: Table, WF: Floats) -> float:
    """Work done (µs at rate 1) by `t`."""
    if W[W_STATUS, job] != RUNNING or t <= W[W_SINCE, job]:
        return float(WF[F_DONE, job])
    return float(WF[F_DONE, job] + WF[F_RATE, job] * (t - W[W_SINCE, job]))


@kernel
def accrue(job: int, t: int, W: Table, WF: Floats) -> None:
    """Bring a running job's work and service up to `t`."""
    if W[W_STATUS, job] == RUNNING and t > W[W_SINCE, job]:
        WF[F_DONE, job] = progress(job, t, W, WF)
        WF[F_SERVED, job] += float(W[W_GPUS, job] * (t - W[W_SINCE, job]))
        W[W_SINCE, job] = t


@kernel
def schedule(X: Ints, H: Table, job: int, W: Table, WF: Floats) -> None:
    """Announce a running job's end (and its next observation) at its present rate; what was announced before is void."""
    W[W_VERSION, job] += 1
    left = W[W_WORK, job] - WF[F_DONE, job]
    end = W[W_SINCE, job] + int(ceil(left / WF[F_RATE, job]))
    if W[W_TRUTH + Y_CAP, job]:
        end = min(end, W[W_SINCE, job] + int(ceil(max(W[W_TRUTH + Y_CAP, job] - WF[F_SERVED, job], 0.0) / W[W_GPUS, job])))
    push(H, X, max(end, X[X_NOW]), (RANK_ENDED << RANK_BITS) + job, W[W_VERSION, job], ENDS)
    at = next_observation(X, job, W, WF)
    if at >= 0:
        push(H, X, max(at, X[X_NOW]), (RANK_OBSERVED << RANK_BITS) + job, W[W_VERSION, job], UNIT)


@kernel
def next_observation(X: Ints, job: int, W: Table, WF: Floats) -> int:
    """When the job next tells how far it is (µs); -1: not before its end."""
    units, step = W[W_UNITS, job], W[W_STEP, job]
    if units == 0:
        return -1
    if W[W_TRUTH + Y_SPEED, job] == SCALED:
        return int((max(W[W_SINCE, job], X[X_NOW]) // SLICE_US + 1) * SLICE_US)
    unit = (int(WF[F_DONE, job] * units / W[W_WORK, job]) // step + 1) * step
    if unit >= units:
        return -1
    return int(W[W_SINCE, job] + int(ceil((float(unit) * W[W_WORK, job] / units - WF[F_DONE, job]) / WF[F_RATE, job])))


@kernel
def set_rate(X: Ints, H: Table, job: int, t: int, rate: float, W: Table, WF: Floats) -> None:
    """Accrue progress at the old rate and go on at the new one. Accrual happens at a job's own changes only."""
    if W[W_STATUS, job] != RUNNING or rate == WF[F_RATE, job]:
        return
    accrue(job, t, W, WF)
    WF[F_RATE, job] = rate
    schedule(X, H, job, W, WF)


@kernel
def refresh(
    X: Ints, H: Table, p: int, t: int, W: Table, WF: Floats, P: Table, V: Table, D: Table, VF: Floats, DF: Floats
) -> None:
    """After a change of usage at task `p`'s place: factors, then the rates of all jobs on that node."""
    if not refactor(X, p, P, V, D, VF, DF):
        return
    q = V[V_HEAD, P[P_NODE, p]]
    while q >= 0:
        job = P[P_JOB, q]
        set_rate(X, H, job, t, rate_of(X, job, W, WF, P, V, VF, DF), W, WF)
        q = P[P_NEXT, q]


@kernel
def link(p: int, P: Table, V: Table, D: Table) -> None:
    """Put a task on its node: the list, the bookings, the usage."""
    node, rest = P[P_NODE, p], P[P_MASK, p]
    head = V[V_HEAD, node]
    P[P_NEXT, p], P[P_PREV, p] = head, -1
    if head >= 0:
        P[P_PREV, head] = p
    V[V_HEAD, node] = p
    while rest != 0:
        D[D_TASKS, V[V_GPU0, node] + ctz(rest)] += 1
        rest &= rest - 1
    V[V_FLOWS, node] += int(P[P_WANT, p] > 0)
    V[V_WANT, node] += P[P_WANT, p]
    add_usage(1, p, P, V, D)


@kernel
def unlink(p: int, P: Table, V: Table, D: Table) -> None:
    """Take a task off its node."""
    node, rest = P[P_NODE, p], P[P_MASK, p]
    if P[P_PREV, p] >= 0:
        P[P_NEXT, P[P_PREV, p]] = P[P_NEXT, p]
    else:
        V[V_HEAD, node] = P[P_NEXT, p]
    if P[P_NEXT, p] >= 0:
        P[P_PREV, P[P_NEXT, p]] = P[P_PREV, p]
    while rest != 0:
        D[D_TASKS, V[V_GPU0, node] + ctz(rest)] -= 1
        rest &= rest - 1
    V[V_FLOWS, node] -= int(P[P_WANT, p] > 0)
    V[V_WANT, node] -= P[P_WANT, p]
    add_usage(-1, p, P, V, D)


@kernel
def change_usage(
    X: Ints, H: Table, p: int, t: int, W: Table, WF: Floats, P: Table, V: Table, D: Table, VF: Floats, DF: Floats
) -> None:
    """A usage interval of task `p` begins."""
    job = P[P_JOB, p]
    add_usage(-1, p, P, V, D)
    until = draw_usage(X, P, p, job, p - W[W_TASK0, job], t)
    add_usage(1, p, P, V, D)
    refresh(X, H, p, t, W, WF, P, V, D, VF, DF)
    if until >= 0:
        push(H, X, until, (RANK_USAGE << RANK_BITS) + p, P[P_VERSION, p], USE)
