"""The simulator against queueing theory, against the best schedule there is, and against schedules worked out by hand."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from functools import cache
from itertools import permutations
from math import factorial

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.policies.registry import make_policy
from headway.sim.run import simulate
from headway.testing.builders import JobSketch, cluster, job, workload
from headway.testing.gantt import gantt
from headway.workloads.schema import Workload, plain_spec

US = 1_000_000
Ints = NDArray[np.int64]


# -- M/M/1 and M/M/c under fifo ---------------------------------------------------------------------------------------
def exponential_jobs(count: int, rate: float, seed: int) -> tuple[Ints, Ints]:
    """Arrivals (µs) of a Poisson process, and exponential services with a mean of one second."""
    random_ = np.random.default_rng(seed)
    gaps, services = -np.log1p(-random_.random((2, count)))
    return np.cumsum(np.rint(gaps / rate * US).astype(np.int64)), np.maximum(np.rint(services * US).astype(np.int64), 1)


def simulated_waits(arrivals: Ints, services: Ints, servers: int) -> Ints:
    """Each job's wait in the simulator, with a round at every event."""
    load = Workload("queue", arrivals, plain_spec(len(arrivals)), services)
    run = simulate(load, cluster([servers]), make_policy("fifo"), interval_s=0, keep_journal=True)
    assert run.journal is not None
    records = run.journal.records
    started = records[records[:, c.E_KIND] == EventKind.STARTED]
    assert len(started) == len(arrivals)
    waits: Ints = started[np.argsort(started[:, c.E_ID]), c.E_T] - arrivals
    return waits


def recursion_waits(arrivals: Ints, services: Ints, servers: int) -> Ints:
    """The waits of a queue with `servers` servers: a job begins when the first of them is free."""
    free = [0] * servers
    waits = []
    for arrival, service in zip(arrivals.tolist(), services.tolist(), strict=True):
        begin = max(arrival, free[0])
        heapq.heapreplace(free, begin + service)
        waits.append(begin - arrival)
    return np.array(waits, np.int64)


def mean_wait_s(rate: float, servers: int) -> float:
    """Erlang's formula, with services of one second on average: the chance to wait / (servers − rate)."""
    term = rate**servers / factorial(servers) * servers / (servers - rate)
    return term / (sum(rate**k / factorial(k) for k in range(servers)) + term) / (servers - rate)


def test_erlangs_formula() -> None:
    assert mean_wait_s(0.5, 1) == pytest.approx(1.0)  # ρ / (1 − ρ)
    assert mean_wait_s(1.0, 2) == pytest.approx(1 / 3)  # the chance to wait is 1/3, and the free rate 1


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "rate"), [(1, 0.7), (4, 3.2)])
def test_the_mean_wait_is_erlangs(servers: int, rate: float) -> None:
    """Every simulated wait is that of the recursion, to the microsecond; the recursion's mean over fifty times as many jobs
    stands in for the noise of the simulated ones (a control variate whose correlation is 1)."""
    arrivals, services = exponential_jobs(2_000_000, rate, seed=servers)
    few = 40_000
    waits = simulated_waits(arrivals[:few], services[:few], servers)
    expected = recursion_waits(arrivals, services, servers)
    assert np.array_equal(waits, expected[:few])
    mean_s = (waits.mean() + expected.mean() - expected[:few].mean()) / US
    assert mean_s == pytest.approx(mean_wait_s(rate, servers), rel=0.02)


# -- oracle-srtf on one GPU is the best there is -------------------------------------------------------------------------
def total_jct_s(jobs: Sequence[JobSketch], policy: str) -> float:
    run = simulate(workload(jobs).with_estimates(workload(jobs).work_us), cluster([1]), make_policy(policy), interval_s=1)
    mean = run.metrics.summary(1).avg_jct_s
    assert mean is not None
    return mean * len(jobs)


def best_order_s(works: Sequence[int]) -> int:
    """The least sum of completion times over all orders, all jobs there from the beginning."""
    return min(sum(work * (len(order) - i) for i, work in enumerate(order)) for order in permutations(works))


def best_schedule_s(submits: Sequence[int], works: Sequence[int]) -> int:
    """The least sum of completion times over every way to give each second to a job that has arrived, or to nobody it may."""

    @cache
    def least(t: int, left: tuple[int, ...]) -> int:
        """The sum of the times from t on that unfinished jobs are there, of those that arrive later too."""
        if not any(left):
            return 0
        here = [i for i, work in enumerate(left) if work and submits[i] <= t]
        if not here:
            return least(t + 1, left)
        return len(here) + min(least(t + 1, (*left[:i], left[i] - 1, *left[i + 1 :])) for i in here)

    return least(0, tuple(works))


def test_oracle_srtf_beats_every_order() -> None:
    for seed in range(120):
        r = random.Random(seed)
        works = [r.randint(1, 9) for _ in range(r.randint(2, 6))]
        jobs = [job(str(i), 1, work) for i, work in enumerate(works)]
        assert total_jct_s(jobs, "oracle-srtf") == pytest.approx(best_order_s(works)), works


def test_oracle_srtf_beats_every_preemptive_schedule() -> None:
    for seed in range(200):
        r = random.Random(seed)
        submits = sorted(r.randint(0, 8) for _ in range(r.randint(2, 6)))
        works = [r.randint(1, 5) for _ in submits]
        jobs = [job(str(i), 1, work, submit) for i, (submit, work) in enumerate(zip(submits, works, strict=True))]
        assert total_jct_s(jobs, "oracle-srtf") == pytest.approx(best_schedule_s(submits, works)), (submits, works)


def test_the_best_schedule_by_hand() -> None:
    """5 s at 0 and 1 s at 2: the short one first, 8 − 0 … the long one ends at 6, the short one at 3: 6 + 1. fifo takes 5 + 4."""
    assert best_schedule_s([0, 2], [5, 1]) == 7
    assert total_jct_s([job("a", 1, 5), job("b", 1, 1, 2)], "fifo") == pytest.approx(9)


# -- las and tiresias -------------------------------------------------------------------------------------------------
def chart(nodes: list[int], jobs: Sequence[JobSketch], policy: str) -> str:
    run = simulate(workload(jobs), cluster(nodes), make_policy(policy), interval_s=1, keep_journal=True)
    assert run.journal is not None
    return gantt(run.journal)


def test_las_by_hand() -> None:
    """One GPU, quantum 1 s. 1: b has got nothing, a 1. 2: both have got 1, a came first. 3: c has got nothing.
    4: b has got 1, a 2. 5: only a is left, with 2 of its 4 seconds to go."""
    jobs = [job("a", 1, 4), job("b", 1, 2, 1), job("c", 1, 1, 3)]
    assert chart([1], jobs, "las:quantum=1") == "n0.0 |abacbaa"


TWO_DIMENSIONS = [job("a", 2, 2), job("b", 1, 8), job("c", 2, 6)]


def test_las_counts_gpus() -> None:
    """Two GPUs, quantum 2 GPU·s; a and c get 2 GPU·s in a second, b in two.
    0: a. 1: a in its 2nd quantum; b and then no room for c. 3: b too; c. 4: all in the 2nd: a (done at 5). 5: b, until it has got
    4 at 7. 7: c (2) gets 4 by 8. 8: both in the 3rd, b first, until 6 at 10. 10: c, until 6 at 11. 11: b, done at 13. 13:
    c's last 3 s.
    """
    assert chart([2], TWO_DIMENSIONS, "las:quantum=2") == "n0.0 |abbcabbcbbcbbccc\nn0.1 |a..ca..c..c..ccc"


def test_tiresias_has_few_queues() -> None:
    """The same jobs, two queues that part at 4 GPU·s. a is done at 2 with just that. b leaves the first queue at 6 (4 s on
    one GPU), so
    c runs, and leaves it at 8 (2 s on two). Then both are in the second queue, by arrival: b's last 4 s, then c's last 4 s."""
    assert chart([2], TWO_DIMENSIONS, "tiresias:threshold=4") == "n0.0 |aabbbbccbbbbcccc\nn0.1 |aa....cc....cccc"


def test_tiresias_promotes_the_starving() -> None:
    """One GPU, queues part at 2 s, promotion after a wait of twice the run time. 2: a leaves the first queue, b runs; 4: b
    leaves it too, a
    came first. b has run 2 s and waits from 4 on: at 8 it is promoted, and has the first queue to itself until it has got
    2 s more at
    10. Then a again, to its end (14) before b, which has run 4 s, would be promoted at 18."""
    jobs = [job("a", 1, 10), job("b", 1, 8)]
    assert chart([1], jobs, "tiresias:threshold=2,promote=2") == "n0.0 |aabbaaaabbaaaabbbb"
    assert chart([1], jobs, "tiresias:threshold=2,promote=0") == "n0.0 |aabbaaaaaaaabbbbbb"
