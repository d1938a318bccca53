"""What an iteration takes on a place: traffic between nodes, and the factor of a shape (`docs/semantics.md` §6)."""

from __future__ import annotations

from headway.core.arrays import Floats, Table
from headway.core.codes import ALL_REDUCE, CUT_CHAIN, CUT_NONE, PARAMETER_SERVER
from headway.core.jit import inner, kernel
from headway.sim.columns import (
    F_BYTES,
    F_FACTOR,
    P_IN,
    P_LEAD,
    P_NODE,
    P_OUT,
    P_WANT,
    V_BUSY,
    V_NET_AWAY,
    V_NET_MAX,
    V_RACK,
    V_SPEED,
    W_CUT,
    W_EDGE_BYTES,
    W_PARTITIONS,
    W_REPLICAS,
    W_SERVERS,
    W_SYNC,
    W_SYNC_BYTES,
    W_TASK0,
    W_TASKS,
    W_TRUTH,
    W_UNITS,
    W_WIDTH,
    W_WORK,
)
from headway.workloads.truth import Y_BASE, Y_BYTES, Y_SPEED, Y_T0, Y_T1, Y_T3, Speed

WORK, ITERATIONS, SHAPED, SCALED = (int(speed) for speed in Speed)
US = 1_000_000
PPM = 1_000_000
START_US, WORKER_US, SERVER_US = 5000.0, 1000.0, 500.0
"""SHAPED: what a worker's step takes beside its compute, and what each worker and server adds to an exchange."""
LOCAL_BYTES_PER_S = 12e9
PCIE_FACTOR, PCIE_FREE = 1.1, 2
"""Every worker beyond two on a node makes all of them 10 % slower."""


@kernel
def plan_speed(job: int, W: Table, WF: Floats, P: Table, V: Table) -> None:
    """Work out, for a gang that has just been given its nodes, what does not change while it stays there."""
    kind = W[W_TRUTH + Y_SPEED, job]
    if kind == WORK:
        return
    first, tasks = W[W_TASK0, job], W[W_TASKS, job]
    for p in range(first, first + tasks):
        P[P_LEAD, p], P[P_IN, p], P[P_OUT, p], P[P_WANT, p] = p, 0, 0, 0
        for q in range(first, p):
            if P[P_NODE, q] == P[P_NODE, p]:
                P[P_LEAD, p] = q
                break
    if kind == ITERATIONS:
        base_us = W[W_WORK, job] / W[W_UNITS, job]
        WF[F_BYTES, job] = exchange(job, W, P) / base_us
        want(job, base_us, W, P, V)
    elif kind == SCALED:
        workers = tasks - W[W_SERVERS, job]
        t0, t1, t3 = W[W_TRUTH + Y_T0, job], W[W_TRUTH + Y_T1, job], W[W_TRUTH + Y_T3, job]
        WF[F_FACTOR, job] = (t0 + t1 + t3) / (t0 / workers + t1 + t3 * workers)
    else:
        shaped(job, W, WF, P, V)


@inner
def send(P: Table, parent: int, child: int, size: int) -> int:
    """Bytes go from one task to another; those that cross nodes are noted at both, and returned."""
    a, b = P[P_LEAD, parent], P[P_LEAD, child]
    if a == b:
        return 0
    P[P_OUT, a] += size
    P[P_IN, b] += size
    return size


@kernel
def exchange(job: int, W: Table, P: Table) -> int:
    """Note what one iteration of the job takes in and sends out of each of its nodes; the bytes that cross nodes in all.

    The edges are those of `core.expand`; a data-parallel gang that reduces among all sends around a ring.
    """
    first, servers, partitions = W[W_TASK0, job], W[W_SERVERS, job], W[W_PARTITIONS, job]
    workers = W[W_TASKS, job] - servers
    replicas, cut, width = W[W_REPLICAS, job], W[W_CUT, job], W[W_WIDTH, job]
    size, moved = W[W_EDGE_BYTES, job], 0
    to_servers = servers if W[W_SYNC, job] == PARAMETER_SERVER else 0
    for replica in range(replicas):
        here = first + replica * partitions
        for k in range(partitions):
            low, high = partitions, partitions
            if cut == CUT_CHAIN:
                low, high = k + 1, min(k + 2, partitions)
            elif cut != CUT_NONE:
                low = (k // width + 1) * width
                high = min(low + width, partitions)
            for child in range(low, high):
                moved += send(P, here + k, here + child, size)
            if low >= partitions:
                for server in range(to_servers):
                    part = (W[W_SYNC_BYTES, job] + to_servers - 1 - server) // to_servers
                    moved += send(P, here + k, first + workers + server, part)
    if W[W_SYNC, job] == ALL_REDUCE and cut == CUT_NONE and workers > 1:
        for k in range(workers if workers > 2 else 1):
            moved += send(P, first + k, first + (k + 1) % workers, size)
    return moved


@kernel
def want(job: int, base_us: float, W: Table, P: Table, V: Table) -> None:
    """What the job wants of the NIC of each of its nodes (bytes per second): its bytes there, once in an iteration that has
    every NIC to itself."""
    first, tasks = W[W_TASK0, job], W[W_TASKS, job]
    wait_us = 0.0
    for p in range(first, first + tasks):
        wait_us = max(wait_us, max(P[P_IN, p], P[P_OUT, p]) * US / V[V_NET_MAX, P[P_NODE, p]])
    for p in range(first, first + tasks):
        size = max(P[P_IN, p], P[P_OUT, p])
        if size:
            P[P_WANT, p] = max(int(size * US / (base_us + wait_us)), 1)


@kernel
def shaped(job: int, W: Table, WF: Floats, P: Table, V: Table) -> None:
    """Factor and bytes of a production job: compute on the slowest node, and the gradient's way."""
    first, tasks, servers = W[W_TASK0, job], W[W_TASKS, job], W[W_SERVERS, job]
    workers = tasks - servers
    for p in range(first, first + tasks):
        P[P_IN, P[P_LEAD, p]] += int(p < first + workers)
        P[P_OUT, P[P_LEAD, p]] += int(p >= first + workers)
    one_rack, nodes = True, 0
    for p in range(first, first + tasks):
        one_rack = one_rack and V[V_RACK, P[P_NODE, p]] == V[V_RACK, P[P_NODE, first]]
        nodes += int(P[P_LEAD, p] == p)
    base, size = float(W[W_TRUTH + Y_BASE, job]), float(W[W_TRUTH + Y_BYTES, job])
    compute, way, local, slowest, moved = 0.0, 0.0, 0.0, 1e30, 0.0
    for p in range(first, first + tasks):
        w, s, node = P[P_IN, p], P[P_OUT, p], P[P_NODE, p]
        P[P_IN, p], P[P_OUT, p] = 0, 0
        if P[P_LEAD, p] != p:
            continue
        idle = (PPM - V[V_BUSY, node]) / PPM
        nic = V[V_NET_MAX if one_rack else V_NET_AWAY, node] * idle
        slowest = min(slowest, nic)
        if w:
            step = base / (workers * V[V_SPEED, node] / PPM * idle) + START_US
            for _ in range(w - PCIE_FREE):
                step *= PCIE_FACTOR
            compute = max(compute, step)
        if servers:
            away = w * size * (1.0 - s / servers)
            way = max(way, max(away, s * (size / servers) * (workers - w)) * US / nic)
            local = max(local, 2.0 * w * size * (s / servers) * US / LOCAL_BYTES_PER_S)
            moved += 2.0 * away
    if servers:
        compute += max(2.0 * way, local) + WORKER_US * workers + SERVER_US * servers
    elif workers > 1:
        around = 2.0 * (workers - 1) / workers * size
        compute += around * US / (slowest if nodes > 1 else LOCAL_BYTES_PER_S) + WORKER_US * workers
        moved = around * nodes if nodes > 1 else 0.0
    WF[F_FACTOR, job] = base / compute
    WF[F_BYTES, job] = moved / base
