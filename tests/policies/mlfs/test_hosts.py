"""The ideal virtual host and moves off overloaded nodes, on small cases by hand (specs of MLFS, §10, tests 2 and 3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headway.app.simulate import SimulateRequest, prepare
from headway.app.simulate import run as run_simulations
from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.columns import Cut, EventKind, Op, Sync
from headway.core.events import EventBuffer
from headway.core.plan import Capabilities, Plan
from headway.core.round import check, diff
from headway.core.state import State
from headway.core.view import ClusterView
from headway.place.gang import copy_room
from headway.policies.mlfs import hosts as h
from headway.policies.mlfs import nearest as near
from headway.policies.registry import make_policy
from headway.testing.builders import JobSketch, cluster, job, place_ints, submissions, workload
from headway.workloads.cluster import Cluster
from headway.workloads.schema import Workload

US = 1_000_000
GB = 10**9


def where(nodes: int = 3, gpus: int = 4) -> Cluster:
    """Nodes with 10 cpus, 100 GB and 1 GB/s."""
    return cluster([gpus] * nodes, cpus=10, memory_bytes=100 * GB, network_bytes_per_s=GB, share_limit=0.9)


def chosen(
    loads: dict[int, tuple[float, float, float, float]], volumes: dict[int, int], *, cpus: float = 1.0, not_on: int = -1
) -> int:
    """The node that a task of half a GPU goes to, on nodes with these shares of GPU, cpu, memory and network in use."""
    made = State()
    made.apply(where().events(0, ("user",), ("default",)))
    s, nodes = made.scratch, 3
    U: Table = np.zeros((4, nodes), np.int64)
    K: Table = np.zeros((4, nodes), np.int64)
    L: Table = np.zeros((3, 12), np.int64)
    copy_room(made.N, made.B, made.C, s.A, s.AB)
    for node, shares in loads.items():
        for resource, share in enumerate(shares):
            U[resource, node] = round(share * h.capacity(made.N, resource, node))
    touched: Ints = np.zeros(4, np.int64)
    for i, (node, size) in enumerate(volumes.items()):
        K[h.K_VOLUME, node], touched[i] = size, node
    F, S = np.empty((near.FLOATS, near.columns_of(nodes))), np.empty((near.SIZES, near.columns_of(nodes)), np.int64)
    near.index_nodes(900, made.N, made.C, s.A, U, K, L, F, S)
    node, mask = near.ideal_host(
        500, round(cpus * 1000), GB, 0, -1, not_on, False, True, True, 0.9, 900, made.N, made.C, s.A, U, K, L, touched,
        len(volumes), F, S,
    )  # fmt: skip
    assert (mask != 0) == (node >= 0)
    return int(node)


def test_the_node_with_the_jobs_other_tasks_wins_unless_it_is_too_loaded() -> None:
    """On node 1 lies all the traffic: its distance is that of its load alone. Others are 1 away by traffic. At four times
    0.4 it is 0.64 away, at four times 0.6 it is 1.44."""
    assert chosen({}, {1: 100}) == 1
    assert chosen({1: (0.4,) * 4}, {1: 100}) == 1
    assert chosen({1: (0.6,) * 4}, {1: 100}) == 0
    assert chosen({1: (0.6,) * 4}, {}) == 0 and chosen({0: (0.1, 0, 0, 0)}, {}) == 1, "without traffic the least loaded"


def test_half_the_traffic_is_half_the_way() -> None:
    """Node 2 has all of the most, node 1 half: (0.5)² = 0.25 away. Node 2 is 0.36 away by its load."""
    assert chosen({2: (0.6, 0, 0, 0)}, {1: 50, 2: 100}) == 1
    assert chosen({2: (0.4, 0, 0, 0)}, {1: 50, 2: 100}) == 2


def test_never_a_node_that_the_task_would_overload_nor_the_one_it_leaves() -> None:
    assert chosen({1: (0, 0.85, 0, 0)}, {1: 100}, cpus=1.0) == 0, "0.85 + 0.1 of the cpus is above h_r"
    assert chosen({1: (0, 0.75, 0, 0)}, {1: 100}, cpus=1.0) == 1
    assert chosen({}, {1: 100}, not_on=1) == 0
    assert chosen({node: (0, 0.85, 0, 0) for node in range(3)}, {}) == -1


@pytest.mark.parametrize(
    ("cut", "sync", "servers", "task", "expected"),
    [
        (Cut.CHAIN, Sync.NONE, 0, 1, {0: 7, 2: 7}),
        (Cut.LAYERED, Sync.NONE, 0, 2, {0: 7, 1: 7}),  # layers of two: 0 1 | 2 3
        (Cut.NONE, Sync.ALL_REDUCE, 0, 0, {1: 7, 3: 7}),  # a ring of four
        (Cut.NONE, Sync.NONE, 0, 0, {}),
        (Cut.CHAIN, Sync.PARAMETER_SERVER, 1, 3, {2: 7, 4: 11}),
        (Cut.CHAIN, Sync.PARAMETER_SERVER, 1, 4, {3: 11}),
        (Cut.NONE, Sync.PARAMETER_SERVER, 1, 4, {0: 11, 1: 11, 2: 11, 3: 11}),
    ],
)
def test_the_traffic_of_a_task(cut: Cut, sync: Sync, servers: int, task: int, expected: dict[int, int]) -> None:
    """Task i is on node i; an edge carries 7 bytes, an update 11."""
    load = workload([job("a", 4, servers=servers)])
    spec = load.spec.copy()
    for column, value in {
        c.J_DATA: 1, c.J_DATA_MIN: 1, c.J_DATA_MAX: 1, c.J_PIPELINE: 4, c.J_CUT: cut, c.J_WIDTH: 2, c.J_SYNC: sync,
        c.J_EDGE_BYTES: 7, c.J_SYNC_BYTES: 11,
    }.items():  # fmt: skip
        spec[column] = value
    made = State()
    made.apply(cluster([4] * 5).events(0, ("user",), ("default",)))
    made.apply(submissions(replace(load, spec=spec)))
    K: Table = np.zeros((4, 5), np.int64)
    touched: Ints = np.zeros(6, np.int64)
    count = h.add_volumes(0, task, made.J, np.arange(5), 0, K, touched)
    assert {int(node): int(K[h.K_VOLUME, node]) for node in touched[:count]} == expected
    h.forget_volumes(K, touched, count)
    assert not K[h.K_VOLUME].any() and not K[h.K_TOUCHED].any()


# -- moves --------------------------------------------------------------------------------------------------------------
def sharing_state(
    sketches: list[JobSketch], places: list[list[tuple[int, list[int]]]], usage: list[int], nodes: int = 2
) -> State:
    """Jobs that run since 0 on shares of GPUs, each task with this usage of its GPU (thousandths), measured."""
    load: Workload = workload(sketches)
    made = State()
    made.apply(where(2, 2).events(0, ("user",), ("default",)))
    made.apply(submissions(load))
    out = EventBuffer()
    for number, place in enumerate(places):
        payload = place_ints(sketches[number], place)
        out.add(0, EventKind.START_REQUESTED, number, 1, b=sketches[number].workers, payload=payload)
        out.add(0, EventKind.STARTED, number, 1)
        for task in range(len(place)):
            out.add(0, EventKind.USAGE, number, 1, a=task, payload=(usage[number], 0, 0, 0))
    made.apply(out.take())
    return made


def decided(made: State, spec: str = "mlf-h", now_s: int = 3600) -> Plan:
    plan = make_policy(spec).decide(ClusterView(made, now_s * US, 0), None)
    assert check(made, plan, Capabilities()) is None
    return plan.copy()


def moves(plan: Plan) -> dict[int, list[tuple[int, int]]]:
    """Job → (node, mask) of its tasks, of the jobs that the plan places."""
    O = plan.overrides
    return {
        int(o[c.O_JOB]): [(int(n), int(m)) for n, m, _ in plan.places[o[c.O_TASK0] : o[c.O_TASK0] + o[c.O_TASKS]]]
        for o in O[O[:, c.O_OP] == Op.PLACE]
    }


def half(name: str, estimate_s: float) -> JobSketch:
    return job(name, 0.4, 10_000, share=True, estimate_s=estimate_s)


def test_the_lowest_task_leaves_an_overloaded_gpu_for_another_node() -> None:
    """Two jobs use 0.6 each of GPU 0 of node 0. The one with much left to do has the lower priority (1/r) and leaves."""
    made = sharing_state([half("short", 4000), half("long", 90_000)], [[(0, [0])], [(0, [0])]], [600, 600])
    plan = decided(made)
    assert moves(plan) == {1: [(1, 1)]}
    kinds = [EventKind(int(k)) for k in diff(made, plan, 3600 * US).records[:, c.E_KIND]]
    assert kinds == [EventKind.STOP_REQUESTED, EventKind.WANTED, EventKind.ROUND], "a direct move"
    assert moves(decided(made, "mlf-h:migration=false")) == {}


def test_a_gpu_below_h_r_or_with_one_task_is_left_alone() -> None:
    assert moves(decided(sharing_state([half("a", 4000), half("b", 90_000)], [[(0, [0])], [(0, [0])]], [440, 440]))) == {}
    assert moves(decided(sharing_state([half("a", 4000)], [[(0, [0])]], [980]))) == {}


def test_a_task_without_a_destination_stays() -> None:
    """Both GPUs of node 1 are in use up to h_r, so that nobody can come."""
    sketches = [half("short", 4000), half("long", 90_000), half("x", 50_000), half("y", 50_000)]
    made = sharing_state(sketches, [[(0, [0])], [(0, [0])], [(1, [0])], [(1, [1])]], [600, 600, 700, 700])
    assert moves(decided(made)) == {}


def test_a_job_that_has_just_come_up_is_not_moved() -> None:
    made = sharing_state([half("short", 4000), half("long", 90_000)], [[(0, [0])], [(0, [0])]], [600, 600])
    assert moves(decided(made, now_s=299)) == {} and moves(decided(made, now_s=300)) == {1: [(1, 1)]}


def test_after_the_moves_nothing_that_can_be_relieved_is_overloaded() -> None:
    """Two on each GPU of node 0, 0.5 each: one has to leave each, and node 1 takes one on each GPU."""
    names = [half(f"j{i}", 10_000 + 5000 * i) for i in range(4)]
    made = sharing_state([replace(one, gpus=0.3) for one in names], [[(0, [i % 2])] for i in range(4)], [500] * 4)
    plan = decided(made)
    assert moves(plan).keys() == {2, 3}, "of each GPU the job with more left to do"
    used = {(node, mask) for places in moves(plan).values() for node, mask in places}
    assert used == {(1, 1), (1, 2)}, "the least-loaded GPU each"


def test_jobs_are_placed_whole_or_leave_no_booking() -> None:
    """Three whole GPUs are free in all, at most two on a node; the gang of four does not fit, the pair behind it does."""
    load = workload([job("four", 4, estimate_s=10), job("pair", 2, estimate_s=90_000)])
    made = State()
    made.apply(cluster([2, 1], cpus=100).events(0, ("user",), ("default",)))
    made.apply(submissions(load))
    plan = decided(made, "mlf-h", 0)
    assert moves(plan).keys() == {1}
    assert [tuple(o) for o in plan.overrides[plan.overrides[:, c.O_OP] == Op.WHY][:, [c.O_JOB, c.O_REASON]].tolist()] == [
        (0, c.Reason.NO_ROOM)
    ]


def test_with_quotas_it_keeps_its_order_and_lends_and_takes_back_as_all_do() -> None:
    """Without this its plans would borrow places that another queue's first job claims, and be refused."""
    request = SimulateRequest(workload="philly-like:jobs=150,load=1.5", cluster="4x8", policies=("mlf-h",), seed=1, round="600")
    (entry,) = run_simulations(request, prepare(request))
    assert entry["finished"] + entry["rejected"] == 150


def test_a_long_queue_gets_the_room_that_a_moved_task_gives_back() -> None:
    """40 jobs that have been told that there is no room ask for 0.3 of a GPU. At first there is 0.1 on the overloaded GPU and
    0.25 on GPU 0 of node 1; the job of 0.25 moves from one to the other, and leaves 0.9 − 0.6 = 0.3 behind."""
    running = [
        half("short", 4000), job("long", 0.25, 10_000, share=True, estimate_s=90_000, priority=90), job("whole", 1),
        job("y", 0.65, 10_000, share=True, estimate_s=50_000), job("also", 1),
    ]  # fmt: skip
    waiting = [job(f"w{i}", 0.3, 10_000, share=True, estimate_s=50_000) for i in range(40)]
    places = [[(0, [0])], [(0, [0])], [(0, [1])], [(1, [0])], [(1, [1])]]
    made = sharing_state(running + waiting, places, [600, 350, 1000, 650, 1000])
    out = EventBuffer()
    for number in range(len(running), len(made.live_rows())):
        out.add(0, EventKind.WHY, number, 0, a=c.Reason.NO_ROOM)
    made.apply(out.take())
    assert moves(decided(made)) == {1: [(1, 1)], 5: [(0, 1)]}
