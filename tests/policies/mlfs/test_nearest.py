"""The index of hosts against the plain search over all nodes, task by task and over whole simulations: the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import UP
from headway.core.columns import NodePhase
from headway.core.jit import kernel
from headway.core.state import State
from headway.place.gang import A_CPU, A_MEM, copy_room
from headway.policies.mlfs import heuristic, policy
from headway.policies.mlfs import nearest as n
from headway.policies.mlfs.hosts import (
    K_OVER,
    K_VOLUME,
    L_TASKS,
    U_CPU,
    U_GPU,
    U_MEM,
    U_NET,
    book,
    capacity,
    gpu_for,
    load,
    unbook,
)
from headway.policies.registry import make_policy
from headway.sim.run import simulate
from headway.testing.builders import cluster
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload

GB = 10**9


@kernel
def plain_ideal_host(
    milli: int, cpu: int, mem: int, net: int, kinds: int, not_on: int, moving: bool, shared: bool, bandwidth: bool,
    h_r: float, room: int, N: Table, C: Ints, A: Table, U: Table, K: Table, L: Table, touched: Ints, count: int,
) -> tuple[int, int]:  # fmt: skip
    """The ideal virtual host and the node nearest to it by looking at every node twice."""
    low_gpu, low_cpu, low_mem, low_net = 1e30, 1e30, 1e30, 1e30
    nodes = C[c.C_NODES]
    for node in range(nodes):
        if N[c.N_PHASE, node] != UP or K[K_OVER, node]:
            continue
        low_gpu = min(low_gpu, U[U_GPU, node] / capacity(N, U_GPU, node))
        low_cpu = min(low_cpu, U[U_CPU, node] / capacity(N, U_CPU, node))
        low_mem = min(low_mem, U[U_MEM, node] / capacity(N, U_MEM, node))
        low_net = min(low_net, U[U_NET, node] / capacity(N, U_NET, node))
    most = 0
    if bandwidth:
        for i in range(count):
            if K[K_OVER, touched[i]] == 0 and N[c.N_PHASE, touched[i]] == UP:
                most = max(most, K[K_VOLUME, touched[i]])
    best, best_mask, best_far = -1, 0, 1e30
    for node in range(nodes):
        if N[c.N_PHASE, node] != UP or K[K_OVER, node] or node == not_on or A[A_CPU, node] < cpu or A[A_MEM, node] < mem:
            continue
        if milli and (kinds >> N[c.N_KIND, node]) & 1 == 0:
            continue
        cpu_u = U[U_CPU, node] / capacity(N, U_CPU, node)
        mem_u = U[U_MEM, node] / capacity(N, U_MEM, node)
        net_u = U[U_NET, node] / capacity(N, U_NET, node)
        far = (U[U_GPU, node] / capacity(N, U_GPU, node) - low_gpu) ** 2 + (cpu_u - low_cpu) ** 2 + (mem_u - low_mem) ** 2
        far += (net_u - low_net) ** 2
        if most:
            far += (K[K_VOLUME, node] / most - 1.0) ** 2
        if moving:
            move_s = mem / capacity(N, U_NET, node)
            far += min(1.0, 0.1 * cpu_u * move_s / 3600.0) ** 2
        if far >= best_far:
            continue
        if U[U_CPU, node] + cpu > h_r * capacity(N, U_CPU, node) or U[U_MEM, node] + mem > h_r * capacity(N, U_MEM, node):
            continue
        if U[U_NET, node] + net > h_r * capacity(N, U_NET, node):
            continue
        mask = gpu_for(node, milli, shared, room, N, A, L) if milli else 0
        if milli and mask == 0:
            continue
        best, best_mask, best_far = node, mask, far
    return best, best_mask


# -- task by task --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(12))
def test_one_search_after_another_finds_what_looking_everywhere_finds(seed: int) -> None:
    """Coarse numbers make ties; nodes that are not up and overloaded ones, tasks that come and go, traffic, moves."""
    r = np.random.default_rng(seed)
    nodes = int(r.integers(1, 200))
    made = State()
    gpus = r.choice([0, 1, 2, 4, 8], nodes).tolist()
    made.apply(
        cluster(gpus, kinds=r.choice(["a", "b"], nodes).tolist(), cpus=8, memory_bytes=32 * GB, share_limit=0.9).events(
            0, ("user",), ("default",)
        )
    )
    N, C, A, AB = made.N, made.C, made.scratch.A, made.scratch.AB
    N[c.N_PHASE, r.random(nodes) < 0.1] = NodePhase.DRAINING
    copy_room(N, made.B, C, A, AB)
    U, K = np.zeros((4, nodes), np.int64), np.zeros((4, nodes), np.int64)
    L, touched = np.zeros((3, max(made.G.shape[1], 1)), np.int64), np.zeros(nodes + 1, np.int64)
    K[K_OVER] = r.random(nodes) < 0.1
    room, step = 900, 100 if seed % 2 else 37
    F, S = np.empty((n.FLOATS, n.columns_of(nodes))), np.empty((n.SIZES, n.columns_of(nodes)), np.int64)
    n.index_nodes(room, N, C, A, U, K, L, F, S)
    placed: list[tuple[int, ...]] = []
    found = 0
    for _ in range(600):
        milli = int(r.choice([0, 1000, 2000])) if r.random() < 0.3 else int(r.integers(1, 9)) * step
        shared = milli < c.WHOLE and r.random() < 0.9
        cpu, mem, net = int(r.integers(0, 8)) * 250, int(r.integers(0, 4)) * GB, int(r.integers(0, 4)) * 10**7
        kinds, not_on, moving = int(r.choice([3, 3, 1, 2])), int(r.integers(-1, nodes)), bool(r.random() < 0.4)
        count = int(r.integers(0, min(nodes, 6) + 1)) if r.random() < 0.5 else 0
        touched[:count] = r.choice(nodes, count, replace=False)
        K[K_VOLUME, touched[:count]] = r.integers(0, 4, count)
        asked = (milli, cpu, mem, net, kinds, not_on, moving, shared, True, float(r.choice([0.5, 0.9, 1.0])), room)
        wanted = plain_ideal_host(*asked, N, C, A, U, K, L, touched, count)
        got = n.ideal_host(*asked, N, C, A, U, K, L, touched, count, F, S)
        assert got == wanted, asked
        K[K_VOLUME, touched[:count]] = 0
        node, mask = got
        if node >= 0:
            found += 1
            each = 0 if milli == 0 else (milli if shared else c.WHOLE)
            placed.append((node, mask, each, milli, cpu, mem, net))
            load(1, node, mask, milli, cpu, mem, net, N, U, L)
            book(node, mask, each, cpu, mem, N, C, A, AB, L)
            n.renew_node(node, room, N, C, A, U, K, L, F, S)
        if placed and (node < 0 or r.random() < 0.2):
            node, mask, each, milli, cpu, mem, net = placed.pop(int(r.integers(len(placed))))
            load(-1, node, mask, milli, cpu, mem, net, N, U, L)
            unbook(node, mask, each, cpu, mem, N, C, A, AB, L)
            n.renew_node(node, room, N, C, A, U, K, L, F, S)
    assert found > (0 if nodes < 10 else 50)
    assert L[L_TASKS].sum() == sum(int(one[1]).bit_count() for one in placed)


# -- whole simulations ---------------------------------------------------------------------------------------------------
def with_names(function: Any, **names: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel's source as an interpreted function, with other functions under some of its names."""
    source = function.py_func
    return FunctionType(source.__code__, {**source.__globals__, **names}, source.__name__)


def plain_mlf_h() -> Callable[..., Any]:
    """`mlf_h` without the index: every task looks at every node, and every job is tried."""

    def nothing(*args: Any) -> None: ...

    def searched(*args: Any) -> tuple[int, int]:
        return plain_ideal_host(*args[:-2])

    def never(*args: Any) -> bool:
        return False

    def bits(mask: int) -> int:
        return int(mask).bit_count()

    host_job = with_names(heuristic.host_job, ideal_host=searched, renew_node=nothing, hopeless=never)
    move_tasks = with_names(
        heuristic.move_tasks, ideal_host=searched, renew_node=nothing, popcount=lambda mask: int(mask).bit_count()
    )
    return with_names(heuristic.mlf_h, host_job=host_job, move_tasks=move_tasks)


@pytest.mark.parametrize(
    ("workload", "where", "spec"),
    [
        ("mlfs-paper:jobs=60,protocol=stress,cluster=4x4", "4x4", "mlf-h"),
        ("mlfs-paper:jobs=400,protocol=overload,cluster=6x4", "6x4", "mlf-h:cool_down=0"),
        ("mlfs-paper:jobs=400,protocol=overload,cluster=6x4", "6x4", "mlf-h"),
        ("mlfs-paper:jobs=60,protocol=stress,cluster=4x4", "4x4", "mlf-h:sharing=false"),
        ("mlfs-paper:jobs=60,protocol=stress,cluster=4x4", "4x4", "mlf-h:bandwidth=false,cool_down=0"),
        ("mlfs-paper:jobs=60,protocol=stress,cluster=4x4", "4x4", "mlf-h:migration=false,dag_mode=mean"),
        ("mlfs-paper:jobs=60,protocol=overload,cluster=10x4", "10x4", "mlf-h:dag_mode=literal,normalize=false"),
        ("mlfs-paper:jobs=60,protocol=overload,cluster=10x4", "10x4", "mlf-h:tuned=true"),
        ("mlfs-paper:jobs=120,protocol=overload,cluster=100x1", "100x1", "mlf-h:h_r=0.6,cool_down=0"),
        ("mlfs-paper:jobs=120,protocol=overload,cluster=70x2", "70x2", "mlf-h:cool_down=60"),
        ("mlfs-paper:jobs=40,protocol=literal,cluster=20x4", "20x4", "mlf-h:late=cap"),
        ("production:jobs=40", "production-mixed", "mlf-h"),
        ("philly-like:jobs=100,load=1.2,cluster=4x8", "4x8", "mlf-h:dag_mode=literal"),
        ("poisson:jobs=200,load=1.1,cluster=3x4", "3x4", "mlf-h:sharing=false,bandwidth=false"),
    ],
)
def test_a_simulation_has_the_journal_that_the_plain_search_gives(
    workload: str, where: str, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def journal() -> tuple[str, int]:
        load, on = load_workload(workload, seed=7), parse_cluster(where, seed=7)
        ran = simulate(load.with_costs(0, 30, 0) if "poisson" in workload else load, on, make_policy(spec), seed=7)
        return ran.journal_sha256, ran.metrics.summary(on.gpus).migrations

    fast = journal()
    calls = 0
    plain = plain_mlf_h()

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return plain(*args)

    monkeypatch.setattr(policy, "mlf_h", counted)
    monkeypatch.setattr(policy, "sift", lambda keys, count, *rest: count)
    assert journal() == fast
    assert calls > 10 or "philly" in workload, "the plain search has decided"
