"""How fast a job really runs: usage of shared resources, and what it does to rates (`docs/semantics.md` §5)."""

from __future__ import annotations

from math import ceil

from headway.core.arrays import Floats, Ints, Table
from headway.core.jit import ctz, kernel, popcount
from headway.sim.columns import (
    D_TASKS,
    D_USED,
    F_DONE,
    F_RATE,
    P_CPU,
    P_GPU,
    P_JOB,
    P_MASK,
    P_MEM,
    P_NET,
    P_NEXT,
    P_NODE,
    P_PREV,
    P_REQ_CPU,
    P_REQ_GPU,
    P_REQ_MEM,
    P_REQ_NET,
    P_VERSION,
    RANK_BITS,
    RANK_ENDED,
    RANK_OBSERVED,
    RANK_USAGE,
    RUNNING,
    V_CPU,
    V_CPU_MAX,
    V_GPU0,
    V_HEAD,
    V_NET,
    V_NET_MAX,
    W_SINCE,
    W_STATUS,
    W_TASK0,
    W_TASKS,
    W_UNITS,
    W_VERSION,
    W_WORK,
    X_HOLD,
    X_JITTER,
    X_NOW,
    X_SEED,
    X_SLOW,
)  # fmt: skip
from headway.sim.heap import push

ENDS, SAVED, STARTS, UNIT, USE, NODE_DOWN, NODE_UP, CANCEL = range(8)
"""What a heap entry announces."""
PPM = 1_000_000


@kernel
def mix(a: int, b: int, d: int, e: int) -> int:
    """A counter-based hash: the same numbers give the same draw, whatever the policy did before. 63 bits."""
    z = a * -7046029254386353131 + b * -4658895280553007687 + d * -7723592293110705685 + e * 668265263 + 0x1234567
    for _ in range(2):
        z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
        z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
        z = z ^ ((z >> 31) & 0x1FFFFFFFF)
    return z & 0x7FFFFFFFFFFFFFFF


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
    for resource in range(2):
        used, capacity = (V_CPU, V_CPU_MAX) if resource == 0 else (V_NET, V_NET_MAX)
        factor = slow_down(V[used, node], V[capacity, node])
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
def rate_of(X: Ints, job: int, W: Table, P: Table, V: Table, VF: Floats, DF: Floats) -> float:
    """The rate of a job: the slowest of its tasks."""
    rate = 1.0
    if X[X_SLOW] == 0:
        return rate
    for p in range(W[W_TASK0, job], W[W_TASK0, job] + W[W_TASKS, job]):
        node, rest = P[P_NODE, p], P[P_MASK, p]
        if P[P_CPU, p]:
            rate = min(rate, VF[0, node])
        if P[P_NET, p]:
            rate = min(rate, VF[1, node])
        while rest != 0:
            rate = min(rate, DF[V[V_GPU0, node] + ctz(rest)])
            rest &= rest - 1
    return rate


@kernel
def progress(job: int, t: int, W: Table, WF: Floats) -> float:
    """Work done (µs at rate 1) by `t`."""
    if W[W_STATUS, job] != RUNNING or t <= W[W_SINCE, job]:
        return float(WF[F_DONE, job])
    return float(WF[F_DONE, job] + WF[F_RATE, job] * (t - W[W_SINCE, job]))


@kernel
def schedule(X: Ints, H: Table, job: int, W: Table, WF: Floats) -> None:
    """Announce a running job's end (and its next progress unit) at its present rate; what was announced before is void."""
    W[W_VERSION, job] += 1
    left = W[W_WORK, job] - WF[F_DONE, job]
    end = W[W_SINCE, job] + int(ceil(left / WF[F_RATE, job]))
    push(H, X, max(end, X[X_NOW]), (RANK_ENDED << RANK_BITS) + job, W[W_VERSION, job], ENDS)
    units = W[W_UNITS, job]
    if units:
        unit = int(WF[F_DONE, job] * units / W[W_WORK, job]) + 1
        if unit < units:
            at = W[W_SINCE, job] + int(ceil((unit * W[W_WORK, job] / units - WF[F_DONE, job]) / WF[F_RATE, job]))
            push(H, X, max(at, X[X_NOW]), (RANK_OBSERVED << RANK_BITS) + job, W[W_VERSION, job], UNIT)


@kernel
def set_rate(X: Ints, H: Table, job: int, t: int, rate: float, W: Table, WF: Floats) -> None:
    """Accrue progress at the old rate and go on at the new one. Accrual happens at a job's own changes only."""
    if W[W_STATUS, job] != RUNNING or rate == WF[F_RATE, job]:
        return
    if t > W[W_SINCE, job]:
        WF[F_DONE, job] = progress(job, t, W, WF)
        W[W_SINCE, job] = t
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
        set_rate(X, H, job, t, rate_of(X, job, W, P, V, VF, DF), W, WF)
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
