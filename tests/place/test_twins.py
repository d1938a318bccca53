"""The compiled placement kernels against their plain twins, on random rooms."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import columns as c
from headway.core.state import State
from headway.core.view import gpus_of, mask_of
from headway.place import assign, gang, shared, twins
from headway.place.twins import Demand, Room
from headway.testing import builders

GB = 10**9


@dataclass
class Rooms:
    """A random room, for the kernels (arrays) and for the twins (lists)."""

    state: State
    rooms: list[Room]
    free: list[set[int]]

    def choose(self, mode: int, n: int, task: Demand, kind: int) -> list[tuple[int, int]] | None:
        s, state = self.state.scratch, self.state
        before = s.A.copy(), s.AB.copy()
        count = gang.choose(mode, n, task.gpus, task.cpu, task.mem, kind, s.A, s.AB, state.N, state.C, s.out)
        assert np.array_equal(before[0], s.A) and np.array_equal(before[1], s.AB), "choosing has changed the room"
        return None if count < 0 else list(zip(s.out[0, :count].tolist(), s.out[1, :count].tolist(), strict=True))


@st.composite
def a_room(draw: st.DrawFn) -> Rooms:
    """Up to nine nodes of up to five GPUs, two kinds, three racks; any part of each may be taken, any node down."""
    count = draw(st.integers(1, 9))
    many: Any = lambda each: draw(st.lists(each, min_size=count, max_size=count))  # noqa: E731
    sizes, kinds, racks = many(st.integers(0, 5)), many(st.sampled_from(["x", "y"])), many(st.integers(0, 2))
    cpus = many(st.integers(0, 6))
    up = many(st.sampled_from([True, True, True, False]))
    where = builders.cluster(sizes, kinds=kinds, racks=racks, cpus=8, memory_bytes=16 * GB)
    state = builders.state(where)
    rooms, free = [], []
    for node, size in enumerate(sizes):
        left = draw(st.sets(st.integers(0, size - 1))) if size else set()
        mem = draw(st.integers(0, 16)) * GB
        kind = where.kinds.index(kinds[node])
        rooms.append(Room(len(left), cpus[node] * 1000, mem, racks[node], kind, up[node], size, 8000, 16 * GB))
        free.append(left)
        state.N[c.N_PHASE, node] = c.NodePhase.UP if up[node] else c.NodePhase.DOWN
        if not up[node]:
            state.B[state.bucket(node)] &= ~(1 << node)
    C, s = state.C, state.scratch
    state.B[:, C[c.C_WORDS] :] = state.B[:, : C[c.C_WORDS]] != 0
    gang.copy_room(state.N, state.B, C, s.A, s.AB)
    for node, room in enumerate(rooms):
        gone = mask_of(sorted(set(range(sizes[node])) - free[node]))
        gang.take_mask(s.A, s.AB, state.N, C, node, gone, 8000 - room.cpu, 16 * GB - room.mem)
    return Rooms(state, rooms, free)


demands = st.builds(
    Demand, gpus=st.integers(1, 3), cpu=st.sampled_from([0, 0, 1000, 2500]), mem=st.sampled_from([0, 0, GB, 5 * GB])
)


@given(a_room(), st.integers(1, 12), demands, st.integers(0, 1), st.sampled_from(list(gang.Kernel)))
def test_the_four_kernels(room: Rooms, n: int, task: Demand, kind: int, kernel: gang.Kernel) -> None:
    kind %= int(room.state.C[c.C_KINDS])
    assert room.choose(kernel, n, task, kind) == twins.KERNELS[kernel](n, task, kind, room.rooms)


@given(a_room(), st.integers(1, 12), demands)
def test_tasks_without_gpus(room: Rooms, n: int, task: Demand) -> None:
    task = replace(task, gpus=0)
    s, state = room.state.scratch, room.state
    count = gang.choose_without_gpus(n, task.cpu, task.mem, s.A, state.N, state.C, s.out)
    found = None if count < 0 else list(zip(s.out[0, :count].tolist(), s.out[1, :count].tolist(), strict=True))
    assert found == twins.without_gpus(n, task, room.rooms)


@given(
    a_room(), st.integers(1, 6), demands, st.integers(0, 2), st.sampled_from([0, 1000, 3000]), st.sampled_from([0, 4 * GB]),
    st.integers(0, 3), st.sampled_from(list(gang.Kernel)), st.booleans(), st.sampled_from([0, 1, 2]), st.integers(1, 3),
)  # fmt: skip
def test_a_whole_job(
    room: Rooms, n: int, task: Demand, servers: int, server_cpu: int, server_mem: int, kinds: int, kernel: gang.Kernel,
    fewest: bool,
    other: int, other_kinds: int,
) -> None:  # fmt: skip
    """Kinds one by one, the alternative demand, servers beside the workers."""
    state, s = room.state, room.state.scratch
    sketch = builders.job(
        "a", n * task.gpus, workers=n, cpus=task.cpu / 1000, memory_bytes=task.mem, servers=servers,
        server_cpus=server_cpu / 1000, server_memory_bytes=server_mem,
    )  # fmt: skip
    state.apply(builders.submissions(builders.workload([sketch])))
    state.J[c.J_KIND_MASK, 0], state.J[c.J_ALT_GPU, 0], state.J[c.J_ALT_MASK, 0] = kinds, other * c.WHOLE, other_kinds
    count, gpus = assign.choose_for(kernel, 0, state.J, state.N, state.C, s.A, s.AB, s.out, fewest, s.OT, 0)
    known = range(int(state.C[c.C_KINDS]))
    tasks = [
        (task, {k for k in known if kinds >> k & 1}), (replace(task, gpus=other), {k for k in known if other_kinds >> k & 1}),
    ]  # fmt: skip
    expected = twins.choose_for(kernel, n, tasks, servers, Demand(0, server_cpu, server_mem), room.rooms, fewest=fewest)
    if expected is None:
        assert count < 0
    else:
        chosen, seats, each = expected
        assert list(zip(s.out[0, :count].tolist(), s.out[1, :count].tolist(), strict=True)) == chosen
        assert s.OT[n : n + servers, 0].tolist() == seats
        assert gpus == each


gpu_sets = st.sets(st.integers(0, 63), max_size=12)


@given(gpu_sets, gpu_sets, gpu_sets, st.integers(0, 8))
def test_which_gpus_a_task_takes(idle: set[int], pool: set[int], held: set[int], count: int) -> None:
    """Also on GPU 63, the sign bit of a mask."""
    masks = [mask_of(sorted(on)) for on in (idle, pool, held)]
    assert set(gpus_of(gang.pick_gpus(*masks, count))) == twins.pick_gpus(idle, pool, held, count)


@given(a_room(), st.integers(1, 3))
def test_the_most_free_gpus(room: Rooms, kinds: int) -> None:
    known = {k for k in range(int(room.state.C[c.C_KINDS])) if kinds >> k & 1}
    assert assign.free_max(room.state.scratch.AB, room.state.C, kinds) == twins.free_max(room.rooms, known)


@given(a_room(), st.data(), st.integers(1, 999), st.integers(1, 3), demands, st.sampled_from([1000, 900, 500]))
def test_the_gpu_for_a_share(room: Rooms, data: st.DataObject, milli: int, kinds: int, task: Demand, limit: int) -> None:
    """GPUs that are taken are taken whole or in part."""
    state, s = room.state, room.state.scratch
    booked = []
    for node, r in enumerate(room.rooms):
        row = [0 if g in room.free[node] else data.draw(st.sampled_from([1, 250, 500, 750, 1000])) for g in range(r.gpus)]
        first = int(state.N[c.N_GPU0, node])
        s.GB[first : first + r.gpus] = row
        booked.append(row)
    state.C[c.C_SHARE_LIMIT] = limit
    found = shared.find_share(milli, kinds, task.cpu, task.mem, state.N, state.C, s.A, s.GB)
    known = {k for k in range(int(state.C[c.C_KINDS])) if kinds >> k & 1}
    expected = twins.find_share(milli, known, task, limit, room.rooms, booked)
    assert (None if found[0] < 0 else found) == expected


@pytest.mark.parametrize("kernel", list(gang.Kernel))
def test_large_rooms(kernel: gang.Kernel) -> None:
    """Hundreds of nodes: buckets of many words, and of several summary words where there are over 4096."""
    for seed, count in enumerate((63, 64, 65, 130, 500, 4100)):
        r = random.Random(seed)
        sizes = [r.choice([0, 4, 8, 8]) for _ in range(count)]
        racks = [r.randrange(1 + count // 8) for _ in range(count)]
        state = builders.state(builders.cluster(sizes, racks=racks, kinds=[r.choice("xy") for _ in range(count)]))
        C, s = state.C, state.scratch
        gang.copy_room(state.N, state.B, C, s.A, s.AB)
        rooms = []
        for node, size in enumerate(sizes):
            # Nearly everything is taken, so that the first node with room is far away.
            left = r.randrange(size + 1) if size and r.random() < 0.05 else 0
            gang.take_mask(s.A, s.AB, state.N, C, node, mask_of(list(range(left, size))), 0, 0)
            rooms.append(Room(left, builders.PLENTY_CPUS_MILLI, builders.PLENTY_BYTES, racks[node], int(state.N[c.N_KIND, node])))
        room = Rooms(state, rooms, [])
        for _ in range(30):
            n, task, kind = r.randint(1, 20), Demand(r.randint(1, 4)), r.randrange(int(C[c.C_KINDS]))
            assert room.choose(kernel, n, task, kind) == twins.KERNELS[kernel](n, task, kind, rooms), (seed, n, task, kind)


def test_by_hand() -> None:
    """Nodes of 4, 2 and 3 free GPUs in racks 0, 1, 1; four tasks of one GPU, and of one GPU and two cpus where node 0 has
    two cpus only."""
    rooms = [Room(4, 2000, 0, 0), Room(2, 9000, 0, 1), Room(3, 9000, 0, 1)]
    assert [choose(4, Demand(1), 0, rooms) for choose in twins.KERNELS] == [[(0, 4)], [(1, 2), (2, 2)], [(0, 4)], [(0, 4)]]
    assert [choose(4, Demand(1, 2000), 0, rooms) for choose in twins.KERNELS] == [
        [(0, 1), (1, 2), (2, 1)], [(1, 2), (2, 2)], [(0, 1), (2, 3)], [(2, 3), (1, 1)],
    ]  # fmt: skip
    assert [choose(10, Demand(1), 0, rooms) for choose in twins.KERNELS] == [None] * 4
