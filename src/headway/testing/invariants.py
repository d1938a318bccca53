"""`verify(state)`: every index, sum and counter of a state worked out anew from its rows; shares no code with `apply`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from headway.core import columns as c
from headway.core.columns import NodePhase, Phase
from headway.core.state import State

BITS = 2**64 - 1


class Rows:
    """A state's tables as lists: `J[column][row]`."""

    def __init__(self, state: State) -> None:
        C: list[int] = state.C.tolist()
        self.C = C
        self.J: list[list[int]] = state.J[:, : C[c.C_ROWS]].tolist()
        self.T: list[list[int]] = state.T[:, : C[c.C_TASKS]].tolist()
        self.N: list[list[int]] = state.N.tolist()
        self.G: list[list[int]] = state.G.tolist()
        self.Q: list[list[int]] = state.Q.tolist()
        self.R: list[int] = state.R.tolist()
        self.live = [row for row, phase in enumerate(self.J[c.J_PHASE]) if phase <= Phase.STOPPING]


def verify(state: State, *, settled: bool = True) -> None:
    """Raise AssertionError with a sentence if an index of the state is not what its rows say, or a row is impossible.

    `settled`: the state stands between two rounds, so no job may still want a lost node.
    """
    rows = Rows(state)
    wanted, held = _tasks(rows)
    _jobs(rows, settled)
    _nodes(rows, wanted, held)
    _gpus(rows, wanted, held)
    _buckets(state, rows)
    _counters(rows)
    _queues(rows)
    _numbers(rows)


def expect(what: str, found: Any, right: Any) -> None:
    """`found` stands in the state, `right` follows from its rows."""
    if found != right:
        raise AssertionError(f"{what}: the state says {found}, its rows say {right}")


def require(good: bool, sentence: str) -> None:
    if not good:
        raise AssertionError(sentence)


def _tasks(rows: Rows) -> tuple[list[int], list[int]]:
    """Task rows of wanted and of held places; gangs are whole."""
    J, T = rows.J, rows.T
    wanted: list[int] = []
    held: list[int] = []
    owner: dict[int, int] = {}
    for row in rows.live:
        job, phase, placed = J[c.J_ID][row], J[c.J_PHASE][row], J[c.J_PLACED][row]
        block = range(J[c.J_TASK0][row], J[c.J_TASK0][row] + J[c.J_TASKS][row])
        shape = J[c.J_DATA][row] * J[c.J_PIPELINE][row] * J[c.J_TENSOR][row]
        expect(f"workers of job {job}", J[c.J_WORKERS][row], shape)
        expect(f"tasks of job {job}", J[c.J_TASKS][row], shape + J[c.J_SERVERS][row])
        expect(f"GPUs of job {job}", J[c.J_GPUS][row], sum(-(-T[c.T_GPU][t] // c.WHOLE) for t in block))
        expect(f"milli-GPUs of job {job}", J[c.J_GPU_MILLI][row], sum(T[c.T_GPU][t] for t in block))
        blocks = [block]
        if J[c.J_HELD_TASKS][row] and J[c.J_HELD_TASK0][row] != J[c.J_TASK0][row]:
            blocks.append(range(J[c.J_HELD_TASK0][row], J[c.J_HELD_TASK0][row] + J[c.J_HELD_TASKS][row]))
        for t in (t for one in blocks for t in one):
            require(t not in owner, f"job {job} and row {owner.get(t)} have the same task row {t}")
            owner[t] = row
            expect(f"owner of task row {t}", T[c.T_JOB][t], row)
        on = [t for t in block if T[c.T_NODE][t] >= 0]
        require(len(on) == (len(block) if placed else 0), f"the gang of job {job} is wanted on {len(on)} of {len(block)} places")
        for t in block:
            gpus, need = (T[c.T_MASK][t] & BITS).bit_count(), -(-T[c.T_GPU][t] // c.WHOLE)
            other = -(-J[c.J_ALT_GPU][row] // c.WHOLE)
            require(
                not placed or gpus == need or (need > 0 and gpus == other),
                f"a task of job {job} wants {gpus} GPUs instead of {need}",
            )
            require(placed == 1 or T[c.T_MASK][t] == 0, f"job {job} has no place but wants GPUs")
        wanted += on
        processes = [t for one in blocks for t in one if T[c.T_HELD_NODE][t] >= 0]
        require(
            len(processes) == J[c.J_HELD_TASKS][row],
            f"job {job} holds {len(processes)} places, {J[c.J_HELD_TASKS][row]} in its row",
        )
        require(
            (phase != Phase.QUEUED) == (len(processes) > 0), f"job {job} is {Phase(phase).name} and holds {len(processes)} places"
        )
        milli = sum(T[c.T_HELD_BOOK][t] * (T[c.T_HELD_MASK][t] & BITS).bit_count() for t in processes)
        expect(f"milli-GPUs held by job {job}", J[c.J_HELD_MILLI][row], milli)
        held += processes
    for t, row in enumerate(T[c.T_JOB]):
        require(row < 0 or owner.get(t) == row, f"task row {t} belongs to row {row}, which does not know it")
    expect("dead task rows", rows.C[c.C_DEAD_TASKS], len(T[c.T_JOB]) - len(owner))
    edges = sum(J[c.J_EDGES][row] for row in rows.live)
    expect("dead edges", rows.C[c.C_DEAD_EDGES], rows.C[c.C_EDGES] - edges)
    return wanted, held


def _jobs(rows: Rows, settled: bool) -> None:
    """Each job is in one phase, and its row fits to it."""
    J, T, N = rows.J, rows.T, rows.N
    numbers = [J[c.J_ID][row] for row in rows.live]
    require(numbers == sorted(set(numbers)), "a job is live twice, or the rows are out of order")
    for row, job in zip(rows.live, numbers, strict=True):
        phase, started, placed = J[c.J_PHASE][row], J[c.J_STARTED_AT][row], J[c.J_PLACED][row]
        require(phase != Phase.RUNNING or started >= 0, f"job {job} runs but has not started")
        require(phase not in (Phase.QUEUED, Phase.STARTING) or started < 0, f"job {job} does not run but has started")
        block = range(J[c.J_TASK0][row], J[c.J_TASK0][row] + J[c.J_TASKS][row])
        if phase in (Phase.STARTING, Phase.RUNNING):
            require(placed == 1, f"job {job} runs on a place that it does not want")
            expect(f"held block of job {job}", J[c.J_HELD_TASK0][row], J[c.J_TASK0][row])
            for t in block:
                mine = (T[c.T_NODE][t], T[c.T_MASK][t], T[c.T_BOOK][t])
                expect(f"place held by job {job}", (T[c.T_HELD_NODE][t], T[c.T_HELD_MASK][t], T[c.T_HELD_BOOK][t]), mine)
        if settled:
            require(J[c.J_MUST_STOP][row] == 0, f"job {job} must stop, and nobody has told it")
            lost = [t for t in block if placed and N[c.N_PHASE][T[c.T_NODE][t]] == NodePhase.DOWN]
            require(not lost, f"job {job} wants a node that is down")
        require(0 <= J[c.J_RETRIES][row] <= J[c.J_RETRY_MAX][row], f"job {job} has failed more often than it may")
        require(
            J[c.J_ATTEMPT][row] >= J[c.J_RETRIES][row] + J[c.J_PREEMPTIONS][row],
            f"job {job} has been stopped more often than started",
        )


def _nodes(rows: Rows, wanted: list[int], held: list[int]) -> None:
    """cpus, memory and network of the nodes, wanted, held and used; nothing over what there is."""
    T, N = rows.T, rows.N
    for column, tasks, node_of, amount in (
        (c.N_CPU, wanted, c.T_NODE, c.T_CPU), (c.N_MEM, wanted, c.T_NODE, c.T_MEM), (c.N_NET, wanted, c.T_NODE, c.T_NET),
        (c.N_HELD_CPU, held, c.T_HELD_NODE, c.T_CPU), (c.N_HELD_MEM, held, c.T_HELD_NODE, c.T_MEM),
        (c.N_USE_CPU, held, c.T_HELD_NODE, c.T_USE_CPU), (c.N_USE_MEM, held, c.T_HELD_NODE, c.T_USE_MEM),
        (c.N_USE_NET, held, c.T_HELD_NODE, c.T_USE_NET),
    ):  # fmt: skip
        sums: dict[int, int] = defaultdict(int)
        for t in tasks:
            sums[T[node_of][t]] += T[amount][t]
        expect(f"{c.NODE_COLUMN_NAMES[column]} of the nodes", N[column], [sums[n] for n in range(len(N[column]))])
    for column, limit, what in (
        (c.N_CPU, c.N_CPU_MAX, "cpus wanted"), (c.N_MEM, c.N_MEM_MAX, "memory wanted"),
        (c.N_HELD_CPU, c.N_CPU_MAX, "cpus held"), (c.N_HELD_MEM, c.N_MEM_MAX, "memory held"),
    ):  # fmt: skip
        over = [n for n in range(len(N[column])) if N[column][n] > N[limit][n]]
        require(not over, f"{what} over what nodes {over} have")


def _gpus(rows: Rows, wanted: list[int], held: list[int]) -> None:
    """Every GPU's bookings, and the masks of free and of held GPUs."""
    T, N, G = rows.T, rows.N, rows.G
    count = len(G[c.G_NODE])
    booked, tasks, held_milli, held_tasks, used = ([0] * count for _ in range(5))
    for t in wanted:
        for g in _gpus_of(N, T[c.T_NODE][t], T[c.T_MASK][t]):
            booked[g] += T[c.T_BOOK][t]
            tasks[g] += 1
    for t in held:
        on = _gpus_of(N, T[c.T_HELD_NODE][t], T[c.T_HELD_MASK][t])
        for g in on:
            held_milli[g] += T[c.T_HELD_BOOK][t]
            held_tasks[g] += 1
            used[g] += T[c.T_USE_GPU][t] // len(on)
    by_column = {c.G_BOOKED: booked, c.G_TASKS: tasks, c.G_HELD: held_milli, c.G_HELD_TASKS: held_tasks, c.G_USED: used}
    for column, right in by_column.items():
        expect(f"{c.GPU_COLUMN_NAMES[column]} of the GPUs", G[column], right)
    require(max(booked, default=0) <= c.WHOLE, "a GPU is wanted over its whole")
    require(max(held_milli, default=0) <= c.WHOLE, "a GPU is held over its whole")
    for n in range(len(N[c.N_GPUS])):
        first, size = N[c.N_GPU0][n], N[c.N_GPUS][n]
        expect(f"the node of node {n}'s GPUs", G[c.G_NODE][first : first + size], [n] * size)
        free = sum(1 << i for i in range(size) if tasks[first + i] == 0)
        expect(f"free GPUs of node {n}", N[c.N_FREE_MASK][n] & BITS, free)
        expect(f"number of free GPUs of node {n}", N[c.N_FREE][n], free.bit_count())
        expect(f"held GPUs of node {n}", N[c.N_HELD_MASK][n] & BITS, sum(1 << i for i in range(size) if held_tasks[first + i]))


def _gpus_of(N: list[list[int]], node: int, mask: int) -> list[int]:
    on = [i for i in range(64) if (mask & BITS) >> i & 1]
    require(all(i < N[c.N_GPUS][node] for i in on), f"node {node} has no GPU {on[-1] if on else 0}")
    return [N[c.N_GPU0][node] + i for i in on]


def _buckets(state: State, rows: Rows) -> None:
    """Every up node is in the bucket of its kind and free GPUs, and in no other; the summaries fit."""
    N, C = rows.N, rows.C
    words, per_kind = C[c.C_WORDS], C[c.C_GPUS_MAX] + 1
    right = [[0] * state.B.shape[1] for _ in range(state.B.shape[0])]
    for n in range(C[c.C_NODES]):
        if N[c.N_PHASE][n] == NodePhase.UP and N[c.N_GENERATION][n]:  # without a generation it has not been added yet
            bucket = right[N[c.N_KIND][n] * per_kind + N[c.N_FREE][n]]
            bucket[n // 64] |= 1 << n % 64
            bucket[words + n // 64 // 64] |= 1 << n // 64 % 64
    expect("buckets of free GPUs", [[word & BITS for word in bucket] for bucket in state.B.tolist()], right)
    up = sum(N[c.N_GPUS][n] for n in range(C[c.C_NODES]) if N[c.N_PHASE][n] == NodePhase.UP and N[c.N_GENERATION][n])
    expect("GPUs of up nodes", C[c.C_GPUS_UP], up)


def _counters(rows: Rows) -> None:
    J, C = rows.J, rows.C
    phases = [J[c.J_PHASE][row] for row in rows.live]
    queued = [row for row in rows.live if J[c.J_PHASE][row] == Phase.QUEUED]
    waiting = [row for row in queued if not J[c.J_PLACED][row]]
    for counter, right in (
        (c.C_DEAD, C[c.C_ROWS] - len(rows.live)), (c.C_QUEUED, len(queued)), (c.C_WAITING, len(waiting)),
        (c.C_PLACED_WAITING, len(queued) - len(waiting)), (c.C_RUNNING, phases.count(Phase.RUNNING)),
        (c.C_MUST_STOP, sum(J[c.J_MUST_STOP][row] != 0 for row in rows.live)),
        (c.C_WAITING_CPU, sum(J[c.J_GPUS][row] == 0 for row in waiting)), (c.C_FIRST_WAITING, min(waiting, default=C[c.C_ROWS])),
    ):  # fmt: skip
        expect(f"counter {c.COUNTER_NAMES[counter]}", C[counter], right)
    priorities = [J[c.J_PRIORITY][row] for row in rows.live]
    if priorities:
        require(C[c.C_PRIORITY_MIN] <= min(priorities), "the lowest priority is lower than the counter says")
        require(C[c.C_PRIORITY_MAX] >= max(priorities), "the highest priority is higher than the counter says")


def _queues(rows: Rows) -> None:
    J, T, Q = rows.J, rows.T, rows.Q
    booked, waiting = [0] * len(Q[c.Q_QUOTA]), [0] * len(Q[c.Q_QUOTA])
    for row in rows.live:
        queue = J[c.J_QUEUE][row]
        if J[c.J_PLACED][row]:
            for t in range(J[c.J_TASK0][row], J[c.J_TASK0][row] + J[c.J_TASKS][row]):
                booked[queue] += T[c.T_BOOK][t] * (T[c.T_MASK][t] & BITS).bit_count()
        elif J[c.J_PHASE][row] == Phase.QUEUED:
            waiting[queue] += 1
    expect("booked of the queues", Q[c.Q_BOOKED], booked)
    expect("waiting of the queues", Q[c.Q_WAITING], waiting)


def _numbers(rows: Rows) -> None:
    """The map from job numbers to rows."""
    J, C = rows.J, rows.C
    live = {J[c.J_ID][row]: row for row in rows.live}
    mapped = {C[c.C_ID_BASE] + slot: row for slot, row in enumerate(rows.R) if row >= 0}
    expect("the map from job numbers to rows", mapped, live)
    if C[c.C_ID_BASE] == 0:
        ended = [code for code in rows.R if code <= -2]
        expect("counter finished", C[c.C_FINISHED], len(ended))
        expect("counter rejected", C[c.C_REJECTED], sum(code == -2 - Phase.REJECTED for code in ended))
