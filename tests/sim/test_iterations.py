"""Iterations, traffic and curves of the simulated world, against values worked out by hand from `docs/semantics.md` §6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import Cut, EventKind, Sync
from headway.core.events import EventBatch
from headway.policies.registry import make_policy
from headway.sim.columns import P_REQ_CPU, V_BUSY
from headway.sim.curve import normal, true_accuracy, true_loss
from headway.sim.run import simulate
from headway.sim.world import World
from headway.testing.builders import JobSketch, cluster, job, workload
from headway.workloads import truth as y
from headway.workloads.cluster import Cluster
from headway.workloads.schema import Workload
from headway.workloads.truth import Curve, Speed

US = 1_000_000
POLICY = "fifo:placement=first-fit"
ITERATIONS = {"speed": Speed.ITERATIONS}


def jobs_of(sketches: Sequence[JobSketch], truth: Sequence[dict[str, int]], spec: Sequence[dict[int, int]] = ()) -> Workload:
    """A workload with hidden truths by column name, and spec columns by number."""
    load = workload(sketches)
    table = np.zeros((y.TRUTH_COLUMNS, len(sketches)), np.int64)
    for i, values in enumerate(truth):
        for name, value in values.items():
            table[y.TRUTH_COLUMN_NAMES.index(name), i] = value
    columns = load.spec.copy()
    for i, changes in enumerate(spec):
        for column, number in changes.items():
            columns[column, i] = number
    return Workload(load.name, load.submitted_us, columns, load.work_us, job_names=load.job_names, kinds=load.kinds, truth=table)


def parts(tasks: int, cut: Cut, edge: int, sync: Sync = Sync.NONE, sync_bytes: int = 0, **more: int) -> dict[int, int]:
    """Spec columns of a model that is cut into `tasks` partitions."""
    named = {c.J_DATA: 1, c.J_DATA_MIN: 1, c.J_DATA_MAX: 1, c.J_PIPELINE: tasks, c.J_CUT: cut, c.J_EDGE_BYTES: edge}
    return named | {c.J_SYNC: sync, c.J_SYNC_BYTES: sync_bytes} | {getattr(c, f"J_{name}"): value for name, value in more.items()}


def run(load: Workload, where: Cluster, policy: str = POLICY) -> EventBatch:
    outcome = simulate(load, where, make_policy(policy), interval_s=1, keep_journal=True)
    assert outcome.journal is not None
    return outcome.journal


def ends_s(journal: EventBatch) -> dict[int, float]:
    done = journal.records[journal.records[:, c.E_KIND] == EventKind.COMPLETED]
    return {int(record[c.E_ID]): record[c.E_T] / US for record in done}


def last_words(journal: EventBatch, kind: EventKind = EventKind.COMPLETED) -> dict[int, list[int]]:
    """The payload of the last report of that kind, by job."""
    return {
        int(record[c.E_ID]): payload.tolist()
        for record, payload in zip(journal.records, journal.payloads(), strict=True)
        if record[c.E_KIND] == kind
    }


def test_an_edge_between_nodes_costs_its_bytes_in_every_iteration() -> None:
    """10 iterations of 1 s; 500 B over 1000 B/s: 1.5 s each. 10 × 500 B have crossed."""
    load = jobs_of([job("a", 2, 10)], [ITERATIONS | {"units": 10}], [parts(2, Cut.CHAIN, 500)])
    journal = run(load, cluster([1, 1], network_bytes_per_s=1000))
    assert ends_s(journal) == {0: 15.0} and last_words(journal) == {0: [5000]}
    beside = run(load, cluster([2], network_bytes_per_s=1000))
    assert ends_s(beside) == {0: 10.0} and last_words(beside) == {0: []}, "within a node it costs nothing"


@pytest.mark.parametrize(
    ("tasks", "spec", "iteration_s", "crossing"),
    [
        # nodes of two: 0 1 | 2 3. A chain crosses once, 1 → 2.
        (4, parts(4, Cut.CHAIN, 500), 1.5, 500),
        # layers of two, 0 1 → 2 3: all four edges cross; each node has 2000 B out or in.
        (4, parts(4, Cut.LAYERED, 500, WIDTH=2), 3.0, 2000),
        # a ring 0 1 2 3 0: 1 → 2 and 3 → 0 cross; each node sends 500 and takes 500, at the same time.
        (4, parts(4, Cut.NONE, 500, Sync.ALL_REDUCE), 1.5, 1000),
        # two in a ring on two nodes of one: a single edge.
        (2, parts(2, Cut.NONE, 500, Sync.ALL_REDUCE), 1.5, 500),
        # no graph, no exchange
        (4, parts(4, Cut.NONE, 500), 1.0, 0),
        # a chain with a parameter server: 0 1 | 2 3 with the server on the first node of the job that has room, node 0.
        # Node 0 sends 500 (1 → 2) and takes 700 (3 → server); node 1 takes 500 and sends 700.
        (4, parts(4, Cut.CHAIN, 500, Sync.PARAMETER_SERVER, 700, SERVERS=1), 1.7, 1200),
        # data parallel with a server on node 0: only 2 and 3 send across.
        (4, parts(4, Cut.NONE, 500, Sync.PARAMETER_SERVER, 700, SERVERS=1), 2.4, 1400),
    ],
    ids=["chain", "layers", "ring", "ring-of-two", "nothing", "chain-server", "data-server"],
)
def test_the_graph_of_a_gang_on_two_nodes(tasks: int, spec: dict[int, int], iteration_s: float, crossing: int) -> None:
    load = jobs_of([job("a", tasks, 10)], [ITERATIONS | {"units": 10}], [spec])
    journal = run(load, cluster([tasks // 2] * 2, network_bytes_per_s=1000))
    assert ends_s(journal) == {0: pytest.approx(10 * iteration_s, abs=2e-6)}
    assert last_words(journal) == {0: [10 * crossing] if crossing else []}


def test_jobs_share_a_nic_that_has_enough_without_noticing() -> None:
    """Chains of three on nodes of two: a on 0 0 1, b on 1 2 2. Each alone: 1 s + 500 B / 1000 B/s;
    each wants 333 B/s of node 1."""
    load = jobs_of([job("a", 3, 10), job("b", 3, 10)], [ITERATIONS | {"units": 10}] * 2, [parts(3, Cut.CHAIN, 500)] * 2)
    assert ends_s(run(load, cluster([2, 2, 2], network_bytes_per_s=1000))) == {0: 15.0, 1: 15.0}


def test_jobs_share_a_nic_equally_when_they_want_more_than_it_has() -> None:
    """4000 B an iteration: alone 5 s, so each wants 800 B/s of node 1, which has 1000. At half of it an iteration takes 9 s.
    b has 5 of them: 45 s. a has done 5 by then and does the other 5 alone: 45 + 25."""
    load = jobs_of(
        [job("a", 3, 10), job("b", 3, 5)],
        [ITERATIONS | {"units": 10}, ITERATIONS | {"units": 5}],
        [parts(3, Cut.CHAIN, 4000)] * 2,
    )
    assert ends_s(run(load, cluster([2, 2, 2], network_bytes_per_s=1000))) == {
        0: pytest.approx(70.0, abs=2e-6),
        1: pytest.approx(45.0, abs=2e-6),
    }


def test_a_slowed_task_computes_slower_and_sends_as_fast() -> None:
    """It uses 1.8 times the cpus of its node: half the speed. 10 iterations of 1 s / 0.5 + 0.25 s = 22.5 s."""
    load = jobs_of([job("a", 2, 10, cpus=1)], [ITERATIONS | {"units": 10}], [parts(2, Cut.CHAIN, 250)])
    where = cluster([1, 1], cpus=1, network_bytes_per_s=1000)
    world = World(load, where)
    world.P[P_REQ_CPU] = 1800
    outcome = simulate(load, where, make_policy(POLICY), interval_s=1, keep_journal=True, world=world)
    assert outcome.journal is not None
    assert ends_s(outcome.journal) == {0: pytest.approx(22.5, abs=2e-6)}


# -- accuracy and loss --------------------------------------------------------------------------------------------------
MLFS = ITERATIONS | {
    "curve": Curve.POWER, "units": 100, "start_ppm": 100_000, "plateau_ppm": 850_000, "k_ppm": 10**6, "m_ppm": 10**6,
    "noise_ppm": 10_000,
}  # fmt: skip


def test_accuracy_follows_the_power_law() -> None:
    """At I_max the factor is 31^−1.2 = 0.016232 (the exam's table: 16232 ppm); at a third of it 11^−1.2."""
    load = jobs_of([job("a", 1, 100)], [MLFS])
    world = World(load, cluster([1]))
    assert true_accuracy(0, 100.0, world.W) == pytest.approx(0.85 - 0.75 * 0.016232, abs=1e-6)
    assert true_accuracy(0, 100 / 3, world.W) == pytest.approx(0.85 - 0.75 * 11**-1.2, rel=1e-12)
    assert true_accuracy(0, 0.0, world.W) == pytest.approx(0.1)
    assert true_loss(0, 0.0, world.W) == pytest.approx(3 * 0.8)


@pytest.mark.parametrize(
    ("k", "m", "ppm"),
    [(0.45, 0.88, 59374), (0.67, 1.13, 16006), (1, 0.94, 20785), (1.5, 1.06, 7673), (2.2, 1.13, 3341), (2.2, 0.88, 11794)],
)
def test_the_curve_ends_where_the_exam_says(k: float, m: float, ppm: int) -> None:
    curve = MLFS | {"start_ppm": 0, "plateau_ppm": 10**6, "k_ppm": round(k * 10**6), "m_ppm": round(m * 10**6)}
    world = World(jobs_of([job("a", 1, 100)], [curve]), cluster([1]))
    assert 1 - true_accuracy(0, 100.0, world.W) == pytest.approx(ppm / 1e6, abs=1e-6)


def test_what_a_job_says_of_itself_is_near_the_truth_and_the_same_under_every_policy() -> None:
    load = jobs_of([job("a", 1, 100), job("b", 1, 100, submit_s=3)], [MLFS] * 2)
    world = World(load, cluster([1]))
    said = {}
    for policy in (POLICY, "las:quantum=10"):
        records = run(load, cluster([1]), policy).records
        observed = records[records[:, c.E_KIND] == EventKind.OBSERVED]
        said[policy] = {tuple(row) for row in observed[:, [c.E_ID, c.E_A, c.E_B, c.E_C]].tolist()}
        for _, unit, loss, accuracy in said[policy]:
            assert abs(accuracy - true_accuracy(0, float(unit), world.W) * 1e6) <= 10_001
            assert abs(loss / 1e9 - true_loss(0, float(unit), world.W)) <= 0.010_001
    first, second = said.values()
    assert len(first) == 2 * 99 and len(second) > 170 and second <= first, "a stop at the instant of an observation swallows it"
    errors = np.array([row[3] / 1e6 - true_accuracy(0, float(row[1]), world.W) for row in first])
    assert abs(errors.mean()) < 0.0015 and errors.std() == pytest.approx(0.02 / 12**0.5, rel=0.1)


def test_the_last_report_holds_the_accuracy_now_and_by_the_deadline() -> None:
    """100 iterations of 1 s. b waits for a and is due after 25 of its own; c ends before its deadline; d has none."""
    load = jobs_of([job(name, 1, 100) for name in "abcd"], [MLFS] * 4, [{c.J_DEADLINE: due * US} for due in (40, 125, 350)])
    world, words = World(load, cluster([1])), last_words(run(load, cluster([1])))

    def ppm(units: int) -> int:
        return round(true_accuracy(0, float(units), world.W) * 1e6)

    assert words == {0: [0, ppm(100), ppm(40)], 1: [0, ppm(100), ppm(25)], 2: [0, ppm(100), ppm(100)], 3: [0, ppm(100), ppm(100)]}


def test_a_preempted_attempt_tells_its_bytes_and_not_its_accuracy() -> None:
    """A 2-GPU job with an edge of 500 B is stopped for a shorter one after 10 s: 6.67 iterations of 1.5 s."""
    load = jobs_of(
        [job("long", 2, 100), job("short", 2, 5, submit_s=10)],
        [MLFS, {}],
        [parts(2, Cut.CHAIN, 500), {}],
    )
    journal = run(load, cluster([1, 1], network_bytes_per_s=1000), "srtf")
    assert last_words(journal, EventKind.STOPPED) == {0: [3333]}
    assert last_words(journal)[0][0] == 50_000 - 3333 and last_words(journal)[1] == []


# -- production ---------------------------------------------------------------------------------------------------------
def production(
    workers: int, servers: int, nodes: Sequence[int], *, size: int = 10**9, busy: int = 0, racks: Sequence[int] = ()
) -> float:
    """The time of an iteration (s) of a job with 1 s of compute and a gradient of `size` bytes; one task a GPU or server slot."""
    sync = Sync.PARAMETER_SERVER if servers else Sync.ALL_REDUCE
    spec = {c.J_SYNC: sync, c.J_SERVERS: servers, c.J_SERVERS_MAX: servers}
    truth = {"speed": Speed.SHAPED, "units": 10, "base_us": US, "bytes": size, "observe_every": 100}
    load = jobs_of([job("a", workers, 10)], [truth], [spec])
    where = replace(cluster(nodes, network_bytes_per_s=10**9, racks=racks or None), oversubscription=4)
    world = World(load, where)
    world.V[V_BUSY] = busy
    outcome = simulate(load, where, make_policy(POLICY), interval_s=1, keep_journal=True, world=world)
    assert outcome.journal is not None
    return ends_s(outcome.journal)[0] / 10


def test_production_compute_by_hand() -> None:
    """Two workers on a node: 1/2 s + 5 ms, the local reduce 2·½·1 GB / 12 GB/s, 1 ms a worker. Four on a node: · 1.1².
    Background of 20 %: compute / 0.8."""
    assert production(1, 0, [1]) == pytest.approx(1.005)
    assert production(2, 0, [2]) == pytest.approx(0.505 + 1 / 12 + 0.002)
    assert production(4, 0, [4]) == pytest.approx((0.25 + 0.005) * 1.1**2 + 2 * 0.75 / 12 + 0.004)
    assert production(2, 0, [2], busy=200_000) == pytest.approx(0.5 / 0.8 + 0.005 + 1 / 12 + 0.002)


def test_production_all_reduce_by_hand() -> None:
    """Between two nodes: 2·½·1 GB over 1 GB/s; across racks over a quarter of it; with 20 % background over 0.8 of it."""
    assert production(2, 0, [1, 1]) == pytest.approx(0.505 + 1 + 0.002)
    assert production(2, 0, [1, 1], racks=[0, 1]) == pytest.approx(0.505 + 4 + 0.002)
    assert production(2, 0, [1, 1], busy=200_000) == pytest.approx(0.5 / 0.8 + 0.005 + 1 / 0.8 + 0.002)


def test_production_parameter_servers_by_hand() -> None:
    """Two workers and two servers. On one node: the local copy 2·2·1 GB / 12 GB/s. Servers sit on the first node (it has
    room), so on two nodes: node 0 has a worker and both servers: worker away 0, servers 2 · ½ GB · 1 worker elsewhere = 1 GB;
    node 1: 1 GB away. 2 · 1 s, more than the local copy 2·1·1/12."""
    assert production(2, 2, [2]) == pytest.approx(0.505 + 2 * 2 / 12 + 0.002 + 0.001)
    assert production(2, 2, [1, 1]) == pytest.approx(0.505 + 2 + 0.002 + 0.001)


# -- trials -------------------------------------------------------------------------------------------------------------
def trial(**more: int) -> dict[str, int]:
    """1000 s on one worker (t0 = 20 s, t1 = 0.5 s, t3 = 0.1 s a unit), l(0) = 2.5, plateau 0.5, k99 at the end."""
    named = {
        "speed": Speed.SCALED,
        "curve": Curve.INVERSE,
        "units": 1000,
        "observe_every": 1,
        "t0_us": 20_000_000,
        "t1_us": 500_000,
    }
    return named | {"t3_us": 100_000, "start_ppm": 2_000_000, "plateau_ppm": 500_000, "k99": 1000} | more


def test_a_trial_on_more_workers() -> None:
    """20.6 s a unit on one worker; 20/4 + 0.5 + 0.4 = 5.9 s on four. Coming up costs what restoring does, the first time too."""
    load = jobs_of([job("a", 4, 1000, restore_s=30)], [trial()])
    assert ends_s(run(load, cluster([4]))) == {0: pytest.approx(30 + 1000 * 5.9 / 20.6, abs=2e-6)}


def test_the_loss_of_a_trial_falls_diverges_or_drops() -> None:
    world = World(jobs_of([job("a"), job("b"), job("c")], [trial(), trial(diverges=1), trial(drop=1)]), cluster([1]))
    assert true_loss(0, 0.0, world.W) == 2.5
    assert true_loss(0, 1000.0, world.W) == pytest.approx(0.52), "the first term is at 1 %"
    assert true_loss(0, 500.0, world.W) == pytest.approx(2 / 50.5 + 0.5)
    assert true_loss(1, 200.0, world.W) == pytest.approx(2 / (1 + 19.8) + 0.5)
    assert true_loss(1, 500.0, world.W) == pytest.approx((2 / 34 + 0.5 + 2.5) / 2), "half-way up again"
    assert true_loss(1, 900.0, world.W) == 2.5
    assert true_loss(2, 499.0, world.W) == pytest.approx(2 / (1 + 99 * 0.499) + 0.5)
    assert true_loss(2, 500.0, world.W) == pytest.approx(2 / 50.5 + 0.35)


def test_a_trial_is_observed_at_the_end_of_each_slice_and_leaves_at_its_cap() -> None:
    """A trial that would need 4000 s leaves after 1000 GPU·s, on two GPUs after 500 s; slices end at 300 s."""
    load = jobs_of([job("a", 2, 4000)], [trial(cap_gpu_us=1000 * US, noise_ppm=0, t0_us=20 * US, t1_us=0, t3_us=0)])
    journal = run(load, cluster([2]))
    assert ends_s(journal) == {0: 500.0}
    observed = journal.records[journal.records[:, c.E_KIND] == EventKind.OBSERVED]
    # at rate 2 (20 s / 10 s a unit): 600 s of work of 4000 are 150 units of 1000
    assert observed[:, [c.E_T, c.E_A, c.E_B]].tolist() == [[300 * US, 150, round((2 / (1 + 99 * 0.15) + 0.5) * 1e6) * 1000]]


def test_the_noise_of_a_trial_is_an_ar1_process() -> None:
    """Marginal spread 2 % and correlation 0.7 from slice to slice."""
    load = jobs_of([job("a", 1, 600_000)], [trial(noise_ppm=20_000, k99=10**13, units=10**6)])
    records = run(load, cluster([1])).records
    loss = records[records[:, c.E_KIND] == EventKind.OBSERVED][:, c.E_B] / 2.5e9 - 1
    assert len(loss) == 1999 and loss.std() == pytest.approx(0.02, rel=0.1) and abs(loss.mean()) < 0.003
    assert np.corrcoef(loss[1:], loss[:-1])[0, 1] == pytest.approx(0.7, abs=0.05)


def test_normal_draws_have_the_quantiles_of_the_knots() -> None:
    assert normal(0) == -3.090232 and normal(1 << 31) == 0.0
    assert normal(3 << 30) == pytest.approx(0.674490) and normal((3 << 30) + (1 << 26)) == pytest.approx(
        (0.674490 + 0.776422) / 2
    )
    draws = np.array([normal(int(draw)) for draw in np.random.default_rng(1).integers(0, 1 << 32, 4000)])
    assert abs(draws.mean()) < 0.05 and draws.std() == pytest.approx(1.0, abs=0.05)
