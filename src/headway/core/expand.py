"""A job's tasks and their dependency graph, made from its shape: the kernel behind `model.expand`."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import CUT_CHAIN, CUT_NONE, PARAMETER_SERVER, SERVER
from headway.core.jit import kernel

PPM = 1_000_000


@kernel
def edge_count(cut: int, width: int, partitions: int, replicas: int, servers: int) -> int:
    """Edges of the graph: within the replicas, and from every sink to every server (`servers` = 0 where none is used)."""
    inner = 0
    sinks = partitions
    if cut == CUT_CHAIN:
        inner = partitions - 1
        sinks = 1
    elif cut != CUT_NONE:
        layers = (partitions + width - 1) // width
        last = partitions - (layers - 1) * width
        if layers > 1:
            inner = (layers - 2) * width * width + width * last
        sinks = last
    return replicas * (inner + sinks * servers)


@kernel
def task_room(J: Table, row: int) -> int:
    """Tasks of the job in its present shape."""
    return int(J[c.J_DATA, row] * J[c.J_PIPELINE, row] * J[c.J_TENSOR, row] + J[c.J_SERVERS, row])


@kernel
def edge_room(J: Table, row: int) -> int:
    """Edges of the job in its present shape."""
    servers = J[c.J_SERVERS, row] if J[c.J_SYNC, row] == PARAMETER_SERVER else 0
    return edge_count(J[c.J_CUT, row], J[c.J_WIDTH, row], J[c.J_PIPELINE, row] * J[c.J_TENSOR, row], J[c.J_DATA, row], servers)


@kernel
def new_task(T: Table, t: int, row: int) -> None:
    """Make task row `t`, which is zero as all rows past the last are, a task of job row `row` that is nowhere."""
    T[c.T_JOB, t], T[c.T_NODE, t], T[c.T_HELD_NODE, t] = row, -1, -1


@kernel
def add_tasks(J: Table, T: Table, X: Table, C: Ints, row: int, details: Ints) -> None:
    """Append the tasks (replica by replica, then servers) and edges of the job in `row`; room has been made.

    `details` holds c.DETAIL numbers a task where the tasks of the job differ, else nothing.
    """
    replicas, partitions = J[c.J_DATA, row], J[c.J_PIPELINE, row] * J[c.J_TENSOR, row]
    servers = J[c.J_SERVERS, row]
    first = C[c.C_TASKS]
    edge = C[c.C_EDGES]
    J[c.J_TASK0, row], J[c.J_EDGE0, row] = first, edge
    J[c.J_WORKERS, row] = replicas * partitions
    J[c.J_TASKS, row] = replicas * partitions + servers
    cut, width = J[c.J_CUT, row], J[c.J_WIDTH, row]
    to_servers = servers if J[c.J_SYNC, row] == PARAMETER_SERVER else 0
    share, extra = PPM // partitions, PPM - (PPM // partitions) * partitions
    uniform = J[c.J_DETAILS, row] == 0
    milli, gpus = 0, 0
    t = first
    for replica in range(replicas):
        for p in range(partitions):
            new_task(T, t, row)
            T[c.T_REPLICA, t], T[c.T_PARTITION, t] = replica, p
            if uniform:
                T[c.T_SHARE, t] = share + (1 if p < extra else 0)
                T[c.T_GPU, t], T[c.T_CPU, t], T[c.T_MEM, t] = J[c.J_GPU_TASK, row], J[c.J_CPU_TASK, row], J[c.J_MEM_TASK, row]
                if J[c.J_NET_TASK, row]:
                    T[c.T_NET, t] = J[c.J_NET_TASK, row]
            T[c.T_EDGE0, t] = edge
            low, high = 0, 0
            sink = True
            if cut == CUT_CHAIN:
                if p + 1 < partitions:
                    low, high, sink = p + 1, p + 2, False
            elif cut != CUT_NONE:
                after = (p // width + 1) * width
                if after < partitions:
                    low, high, sink = after, min(after + width, partitions), False
            for child in range(low, high):
                X[c.X_CHILD, edge], X[c.X_BYTES, edge] = replica * partitions + child, J[c.J_EDGE_BYTES, row]
                edge += 1
            if sink:
                for server in range(to_servers):
                    X[c.X_CHILD, edge] = replicas * partitions + server
                    X[c.X_BYTES, edge] = (J[c.J_SYNC_BYTES, row] + to_servers - 1 - server) // to_servers
                    edge += 1
            T[c.T_EDGES, t] = edge - T[c.T_EDGE0, t]
            t += 1
    for server in range(servers):
        new_task(T, t, row)
        T[c.T_ROLE, t], T[c.T_REPLICA, t], T[c.T_PARTITION, t], T[c.T_SHARE, t] = SERVER, -1, server, 0
        T[c.T_CPU, t], T[c.T_MEM, t], T[c.T_NET, t] = J[c.J_SERVER_CPU, row], J[c.J_SERVER_MEM, row], J[c.J_SERVER_NET, row]
        T[c.T_EDGE0, t] = edge
        t += 1
    if not uniform:
        for i in range(t - first):
            T[c.T_GPU, first + i], T[c.T_CPU, first + i] = details[c.DETAIL * i], details[c.DETAIL * i + 1]
            T[c.T_MEM, first + i], T[c.T_NET, first + i] = details[c.DETAIL * i + 2], details[c.DETAIL * i + 3]
            T[c.T_SHARE, first + i] = details[c.DETAIL * i + 4]
        J[c.J_GPU_TASK, row], J[c.J_CPU_TASK, row], J[c.J_MEM_TASK, row] = 0, 0, 0
        for i in range(first, first + J[c.J_WORKERS, row]):
            J[c.J_GPU_TASK, row] = max(J[c.J_GPU_TASK, row], T[c.T_GPU, i])
            J[c.J_CPU_TASK, row] = max(J[c.J_CPU_TASK, row], T[c.T_CPU, i])
            J[c.J_MEM_TASK, row] = max(J[c.J_MEM_TASK, row], T[c.T_MEM, i])
    for i in range(first, t):
        milli += T[c.T_GPU, i]
        gpus += (T[c.T_GPU, i] + c.WHOLE - 1) // c.WHOLE
    J[c.J_GPU_MILLI, row], J[c.J_GPUS, row] = milli, gpus
    J[c.J_UNIFORM, row] = uniform
    J[c.J_EDGES, row] = edge - J[c.J_EDGE0, row]
    C[c.C_TASKS], C[c.C_EDGES] = t, edge


@kernel
def drop_tasks(T: Table, C: Ints, first: int, count: int, edges: int) -> None:
    """Mark a block of tasks (and its edges) as dead; compaction removes it."""
    for t in range(first, first + count):
        T[c.T_JOB, t] = -1
    C[c.C_DEAD_TASKS] += count
    C[c.C_DEAD_EDGES] += edges
