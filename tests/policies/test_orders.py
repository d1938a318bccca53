"""The orders of sjf, edf, random, drf and borg-fair, by hand and from the books."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import Op
from headway.core.errors import UserError
from headway.core.view import ClusterView
from headway.policies.fair import fair_order
from headway.policies.registry import make_policy
from headway.policies.simple import draws
from headway.sim.run import simulate
from headway.testing.builders import JobSketch, cluster, job, state, workload
from headway.testing.gantt import gantt
from headway.workloads.cluster import Cluster, Queue

GB = 10**9


def drawn(policy: str, where: Cluster, jobs: list[JobSketch]) -> str:
    load = workload(jobs, users=("ann", "bob"), queues=("a", "b"))
    run = simulate(load, where, make_policy(policy), interval_s=1, keep_journal=True)
    assert run.journal is not None
    return gantt(run.journal)


def placed_by(policy: str, where: Cluster, jobs: list[JobSketch], column: int, names: tuple[str, ...]) -> Counter[int]:
    """How many jobs of each user or queue the first round places."""
    made = state(where, jobs, users=names, queues=names)
    plan = make_policy(policy).decide(ClusterView(made, 0, 0), None)
    rows = plan.overrides[plan.overrides[:, c.O_OP] == Op.PLACE, c.O_ROW]
    return Counter(made.J[column, rows].tolist())


# -- srtf ---------------------------------------------------------------------------------------------------------
def test_remaining_time_times_a_power_of_gpus() -> None:
    """`a` wants all four GPUs for 10 s, `b` one for 25 s. Time: 10 < 25. × √GPUs: 20 < 25. × GPUs: 40 > 25, so `b` goes first."""
    jobs = [job("a", 4, 10), job("b", 1, 25)]
    first = "n0.0 |" + "a" * 10 + "b" * 25
    for policy in ("srtf", "srtf:gpus=0.5"):
        assert drawn(policy, cluster([4]), jobs).splitlines()[0] == first
    assert drawn("srtf:gpus=1", cluster([4]), jobs).splitlines()[0] == "n0.0 |" + "b" * 25 + "a" * 10


def test_a_small_job_stops_a_wide_one_that_has_less_time_left() -> None:
    """At 5 `a` has 10 s left on four GPUs: 40 GPU·s, or 20 by the root. `b` comes with 15 s on one."""
    jobs = [job("a", 4, 15), job("b", 1, 15, 5)]
    assert drawn("srtf", cluster([4]), jobs).splitlines()[0] == "n0.0 |" + "a" * 15 + "b" * 15
    assert drawn("srtf:gpus=0.5", cluster([4]), jobs).splitlines()[0] == "n0.0 |" + "a" * 5 + "b" * 15 + "a" * 10


def test_times_of_years_on_many_gpus_rank_last_and_do_not_overflow() -> None:
    jobs = [job("a", 4, 10**9), job("b", 4, 10**9 + 10), job("c", 1, 30)]
    plan = make_policy("srtf:gpus=2").decide(ClusterView(state(cluster([4]), jobs), 0, 0), None)
    assert plan.overrides[plan.overrides[:, c.O_OP] == Op.PLACE, c.O_JOB].tolist() == [2]


@pytest.mark.parametrize("value", ["-1", "3", "nan"])
def test_the_power_is_a_number_from_0_to_2(value: str) -> None:
    with pytest.raises(UserError, match="gpus: expected a number from 0 to 2"):
        make_policy(f"srtf:gpus={value}")


# -- drf ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", ["drf", "drf:preempt=false", "drf:preempt=false,unfit=skip", "drf:over=queue"])
def test_the_example_of_the_drf_paper(policy: str) -> None:
    """9 cpus and 18 GB; tasks of A need <1 cpu, 4 GB>, tasks of B <3 cpus, 1 GB>: three tasks of A and two of B run, and each has
    two thirds of what it needs most."""
    where = cluster([0], cpus=9, memory_bytes=18 * GB)
    mine = [job(f"a{i}", 0, 10, workers=1, cpus=1, memory_bytes=4 * GB) for i in range(6)]
    yours = [job(f"b{i}", 0, 10, workers=1, cpus=3, memory_bytes=GB, user=1, queue=1) for i in range(6)]
    column = c.J_QUEUE if "queue" in policy else c.J_USER
    assert placed_by(policy, where, mine + yours, column, ("A", "B")) == {0: 3, 1: 2}


def test_drf_with_weights() -> None:
    """GPUs only, and A counts twice: A, B, A, A, B, A of 12 jobs for six GPUs."""
    where = replace(cluster([6]), queues=(Queue("A", weight=2), Queue("B")))
    jobs = [job(f"j{i}", 1, 10, queue=i % 2) for i in range(12)]
    assert placed_by("drf:over=queue", where, jobs, c.J_QUEUE, ("A", "B")) == {0: 4, 1: 2}


def test_drf_takes_from_who_has_more() -> None:
    """Ann has all four GPUs. When Bob comes with e, f, g, her last two stop for e and f. At 3 it is g's turn before c and d: she
    has two."""
    jobs = [job(f"a{i}", 1, 4) for i in range(4)] + [job(f"b{i}", 1, 2, 1, user=1) for i in range(3)]
    assert drawn("drf", cluster([4]), jobs) == "n0.0 |aaaaddd\nn0.1 |bbbb...\nn0.2 |cffgg..\nn0.3 |deeccc."


# -- borg-fair ----------------------------------------------------------------------------------------------------
def test_water_filling_by_hand() -> None:
    """11 GPUs; A wants 2 and gets them; the other 9 go to B and C, which counts twice: 3 and 6."""
    where = replace(cluster([11]), queues=(Queue("A"), Queue("B"), Queue("C", weight=2)))
    jobs = [job(f"a{i}", 1, 9) for i in range(2)]
    jobs += [job(f"b{i}", 1, 9, queue=1) for i in range(20)] + [job(f"c{i}", 1, 9, queue=2) for i in range(20)]
    for policy in ("borg-fair", "borg-fair:preempt=false"):
        assert placed_by(policy, where, jobs, c.J_QUEUE, ("A", "B", "C")) == {0: 2, 1: 3, 2: 6}


def test_water_filling_in_a_tree() -> None:
    """Eight GPUs; D has its four, and C's four are for A and B below it: two each. What B does not want A has, before D."""
    queues = (Queue("A", parent="C"), Queue("B", parent="C"), Queue("C"), Queue("D"))
    where = replace(cluster([8]), queues=queues)
    names = ("A", "B", "C", "D")
    many = [job(f"j{i}", 1, 9, queue=q) for q in (0, 1, 3) for i in range(9)]
    assert placed_by("borg-fair", where, many, c.J_QUEUE, names) == {0: 2, 1: 2, 3: 4}
    few = [job(f"j{i}", 1, 9, queue=q) for q, count in ((0, 9), (1, 1), (3, 9)) for i in range(count)]
    assert placed_by("borg-fair", where, few, c.J_QUEUE, names) == {0: 3, 1: 1, 3: 4}
    own = [job(f"j{i}", 1, 9, queue=q) for q in (0, 2, 3) for i in range(9)]
    assert placed_by("borg-fair", where, own, c.J_QUEUE, names) == {0: 2, 2: 2, 3: 4}, "C's own jobs are one more child"


def test_the_jobs_of_all_share_among_jobs() -> None:
    """over=job: the gang of three goes last, whenever it came, since each job begins with nothing and the oldest goes first."""
    jobs = [job("a", 1, 3), job("b", 3, 3), job("c", 1, 3), job("d", 1, 3)]
    made = state(cluster([4]), jobs)
    assert fair_order(ClusterView(made, 0, 0), "job", 1, True).tolist() == [0, 1, 2, 3]


def test_what_runs_counts_without_preemption() -> None:
    """Ann has two GPUs, so the next two are for Bob's jobs although hers came first."""
    jobs = [job("a", 2, 9), job("b", 1, 9), job("c", 1, 9, user=1), job("d", 1, 9, user=1)]
    made = state(cluster([4]), jobs, running={"a": [(0, [0]), (0, [1])]}, users=("ann", "bob"))
    view = ClusterView(made, 0, 0)
    assert fair_order(view, "user", 3, False).tolist() == [2, 3, 1]
    assert fair_order(view, "user", 3, True).tolist() == [0, 2, 3, 1]


def test_a_higher_priority_goes_first_and_counts() -> None:
    """Ann's urgent job goes first; then she has one GPU and Bob none."""
    jobs = [job("a", 1, 9), job("b", 1, 9, priority=90), job("c", 1, 9, user=1)]
    made = state(cluster([4]), jobs, users=("ann", "bob"))
    assert fair_order(ClusterView(made, 0, 0), "user", 3, True).tolist() == [1, 2, 0]


# -- edf ----------------------------------------------------------------------------------------------------------
def test_earliest_deadline_first_on_one_gpu() -> None:
    """a (4 s, due at 10), b from 1 (2 s, due at 5), c from 2 (2 s, due at 8): all are in time (not so by fifo)."""
    jobs = [job("a", 1, 4, deadline_s=10), job("b", 1, 2, 1, deadline_s=5), job("c", 1, 2, 2, deadline_s=8), job("d", 1, 1)]
    jobs.sort(key=lambda it: it.submit_s)
    named = {it.name: "abcd"[i] for i, it in enumerate(jobs)}
    assert drawn("edf", cluster([1]), jobs).translate(str.maketrans({v: k for k, v in named.items()})) == "n0.0 |abbccaaad"


def test_without_preemption_the_deadline_orders_those_who_wait() -> None:
    jobs = [job("a", 1, 4, deadline_s=10), job("b", 1, 2, 1, deadline_s=9), job("c", 1, 2, 2, deadline_s=8)]
    assert drawn("edf:preempt=false", cluster([1]), jobs) == "n0.0 |aaaaccbb"


# -- sjf, random --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("unfit", "chart"),
    [("block", "n0.0 |aaaaabbccc\nn0.1 |.....bb..."), ("backfill", "n0.0 |aaaaabb...\nn0.1 |.cccb"), ("skip", "")],
)
def test_what_follows_when_the_shortest_does_not_fit(unfit: str, chart: str) -> None:
    """a runs until 5. The shortest, b, needs both GPUs; c (3 s) could go before it."""
    jobs = [job("a", 1, 5), job("b", 2, 2, 1), job("c", 1, 3, 1)]
    found = drawn(f"sjf:unfit={unfit}", cluster([2]), jobs)
    assert found == (chart if unfit == "block" else "n0.0 |aaaaabb\nn0.1 |.ccc.bb")


def test_skipping_may_delay_who_was_passed_over() -> None:
    """As above, but c takes 9 s: backfill keeps b's place free, skip does not."""
    jobs = [job("a", 1, 5), job("b", 2, 2, 1), job("c", 1, 9, 1)]
    assert drawn("sjf:unfit=skip", cluster([2]), jobs) == "n0.0 |aaaaa.....bb\nn0.1 |.cccccccccbb"
    assert drawn("sjf", cluster([2]), jobs) == "n0.0 |aaaaabbccccccccc\nn0.1 |.....bb........."


def test_a_random_order_is_its_seeds() -> None:
    jobs = [job(f"j{i}", 1, 5 + i) for i in range(40)]
    made = state(cluster([4]), jobs)
    orders = [np.argsort(draws(seed, made.J[:, :40])).tolist() for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(40)) != orders[0]
