"""Plain Python twins of the placement kernels and of the choices around them: the same answers, by obvious code over lists.

The tests hold the compiled kernels against these; they are slow, and nothing else calls them. Rules: `docs/semantics.md` §3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Choice = list[tuple[int, int]]
"""(node, tasks on it), in the order of choice."""


@dataclass(frozen=True, slots=True)
class Room:
    """What may be used of one node: how many GPUs, cpus (milli), memory (bytes)."""

    free: int
    cpu: int
    mem: int
    rack: int = 0
    kind: int = 0
    up: bool = True
    gpus: int = 0
    """All GPUs of the node, and below all its cpus and memory: what it has when it is empty."""
    cpu_max: int = 0
    mem_max: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """What one task asks for: whole GPUs, cpus (milli), memory (bytes)."""

    gpus: int
    cpu: int = 0
    mem: int = 0


def tasks_that_fit(room: Room, task: Demand) -> int:
    """How many tasks a node has room for; a demand of zero does not limit (without any: a billion)."""
    limits = [1 << 30]
    if task.gpus:
        limits = [room.free // task.gpus]
    if task.cpu:
        limits.append(room.cpu // task.cpu)
    if task.mem:
        limits.append(room.mem // task.mem)
    return max(0, min(limits))


def usable(rooms: list[Room], kind: int) -> list[int]:
    """Numbers of the up nodes of a kind."""
    return [n for n, room in enumerate(rooms) if room.up and room.kind == kind]


def first_fit(n: int, task: Demand, kind: int, rooms: list[Room]) -> Choice | None:
    """Nodes by number; each takes what it can."""
    chosen: Choice = []
    for node in usable(rooms, kind):
        count = min(tasks_that_fit(rooms[node], task), n)
        if count:
            chosen.append((node, count))
            n -= count
    return chosen if n == 0 else None


def best_fit(n: int, task: Demand, kind: int, rooms: list[Room]) -> Choice | None:
    """Again and again the node with the fewest free GPUs that has room for a task."""
    chosen: Choice = []
    nodes = usable(rooms, kind)
    while n:
        nodes = [node for node in nodes if tasks_that_fit(rooms[node], task) > 0]
        if not nodes:
            return None
        node = min(nodes, key=lambda node: (rooms[node].free, node))
        count = min(tasks_that_fit(rooms[node], task), n)
        chosen.append((node, count))
        nodes.remove(node)
        n -= count
    return chosen


def fill(n: int, task: Demand, nodes: list[int], rooms: list[Room]) -> Choice:
    """Among `nodes`, as far as they reach: the smallest that holds all the tasks that are left, else the largest."""
    chosen: Choice = []
    nodes = list(nodes)
    while n:
        nodes = [node for node in nodes if tasks_that_fit(rooms[node], task) > 0]
        if not nodes:
            break
        for_all = [node for node in nodes if tasks_that_fit(rooms[node], task) >= n]
        if for_all:
            node = min(for_all, key=lambda node: (rooms[node].free, node))
        else:
            node = min(nodes, key=lambda node: (-rooms[node].free, node))
        count = min(tasks_that_fit(rooms[node], task), n)
        chosen.append((node, count))
        nodes.remove(node)
        n -= count
    return chosen


def consolidated(n: int, task: Demand, kind: int, rooms: list[Room]) -> Choice | None:
    """One node for all where there is one, else the largest first."""
    chosen = fill(n, task, usable(rooms, kind), rooms)
    return chosen if sum(count for _, count in chosen) == n else None


def topology(n: int, task: Demand, kind: int, rooms: list[Room]) -> Choice | None:
    """One node, else the tightest rack that holds what is left, else the largest rack, filled as in consolidated."""
    nodes = usable(rooms, kind)
    if any(tasks_that_fit(rooms[node], task) >= n for node in nodes):
        return consolidated(n, task, kind, rooms)
    chosen: Choice = []
    racks: dict[int, list[int]] = {}
    for node in nodes:
        racks.setdefault(rooms[node].rack, []).append(node)
    while n:
        sums = {rack: sum(tasks_that_fit(rooms[node], task) for node in members) for rack, members in racks.items()}
        sums = {rack: total for rack, total in sums.items() if total}
        if not sums:
            return None
        enough = [rack for rack in sums if sums[rack] >= n]
        rack = min(enough, key=lambda r: (sums[r], r)) if enough else min(sums, key=lambda r: (-sums[r], r))
        part = fill(n, task, racks.pop(rack), rooms)
        chosen += part
        n -= sum(count for _, count in part)
    return chosen


def without_gpus(n: int, task: Demand, rooms: list[Room]) -> Choice | None:
    """First fit on cpus and memory over all up nodes, of whatever kind."""
    chosen: Choice = []
    for node, room in enumerate(rooms):
        count = min(tasks_that_fit(room, task), n) if room.up else 0
        if count:
            chosen.append((node, count))
            n -= count
    return chosen if n == 0 else None


KERNELS = (first_fit, best_fit, consolidated, topology)
"""By the numbers of `gang.Kernel`."""


def seat_servers(chosen: Choice, task: Demand, servers: int, server: Demand, rooms: list[Room]) -> list[int] | None:
    """The node of each parameter server: the first of the job's nodes with room beside the workers, else the lowest with room."""
    left = list(rooms)
    for node, count in chosen:
        left[node] = replace(left[node], cpu=left[node].cpu - count * task.cpu, mem=left[node].mem - count * task.mem)
    seats: list[int] = []
    for _ in range(servers):
        order = [node for node, _ in chosen] + [node for node, room in enumerate(left) if room.up]
        fits = [node for node in order if left[node].cpu >= server.cpu and left[node].mem >= server.mem]
        if not fits:
            return None
        seat = fits[0]
        seats.append(seat)
        left[seat] = replace(left[seat], cpu=left[seat].cpu - server.cpu, mem=left[seat].mem - server.mem)
    return seats


def choose_for(
    mode: int,
    n: int,
    tasks: list[tuple[Demand, set[int]]],
    servers: int,
    server: Demand,
    rooms: list[Room],
    *,
    fewest: bool = False,
) -> tuple[Choice, list[int], int] | None:
    """Nodes, seats of the servers and GPUs a task for a whole job.

    `tasks`: its demand and the kinds on which it may be met, then its alternative. `fewest`: only the least possible
    number of nodes will do.
    """
    first = tasks[0][0]
    if first.gpus == 0:
        options = [(first, without_gpus(n, first, rooms))]
    else:
        options = [(task, KERNELS[mode](n, task, kind, rooms)) for task, kinds in tasks if task.gpus for kind in sorted(kinds)]
    for task, chosen in options:
        if chosen is None or (task.gpus and fewest and len(chosen) > fewest_nodes(n, task, rooms[chosen[0][0]].kind, rooms)):
            continue
        seats = seat_servers(chosen, task, servers, server, rooms)
        if seats is not None:
            return chosen, seats, task.gpus
    return None


def fewest_nodes(n: int, task: Demand, kind: int, rooms: list[Room]) -> int:
    """How many of the largest empty nodes of a kind the gang needs; a billion if they hold no task."""
    empty = [replace(room, free=room.gpus, cpu=room.cpu_max, mem=room.mem_max) for room in rooms]
    most = max((tasks_that_fit(empty[node], task) for node in usable(rooms, kind)), default=0)
    return -(-n // most) if most else 1 << 30


def pick_gpus(idle: set[int], pool: set[int], held: set[int], count: int) -> set[int]:
    """Which GPUs of a node a task takes: nobody's first, then those that are only still held, then the pool's; lowest first."""
    order = sorted(idle - held) + sorted(idle & held) + sorted(pool - idle)
    return set(order[:count])


def free_max(rooms: list[Room], kinds: set[int]) -> int:
    """The most free GPUs on one up node of the kinds."""
    return max((room.free for room in rooms if room.up and room.kind in kinds), default=0)


def find_share(
    milli: int, kinds: set[int], task: Demand, limit: int, rooms: list[Room], booked: list[list[int]]
) -> tuple[int, int] | None:
    """The GPU (node, local index) for a share: the fullest that is shared already and has room up to the limit, else the lowest
    empty GPU of the node with the fewest. `booked`: milli on each GPU of each node.
    """
    nodes = [
        n for n, room in enumerate(rooms) if room.up and room.kind in kinds and room.cpu >= task.cpu and room.mem >= task.mem
    ]
    shared = [(node, gpu) for node in nodes for gpu, b in enumerate(booked[node]) if 0 < b < 1000 and b + milli <= limit]
    if shared:
        return min(shared, key=lambda on: (-booked[on[0]][on[1]], on))
    empty = [node for node in nodes if 0 in booked[node]]
    if not empty:
        return None
    node = min(empty, key=lambda node: (booked[node].count(0), node))
    return node, booked[node].index(0)
