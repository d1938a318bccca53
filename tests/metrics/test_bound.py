"""The bound by hand, against the best of all schedules of small cases, and against what policies really reach."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.app.simulate import SimulateRequest, outcomes, prepare, run
from headway.app.simulate import bound as simulated_bound
from headway.core import columns as c
from headway.metrics.bound import Bound, jct_bound
from headway.workloads.truth import TRUTH_COLUMNS, Y_SPEED, Speed

S = 1_000_000
Job = tuple[int, int, int]
"""(release s, run s, GPUs)."""


def bound(jobs: list[Job], gpus: int) -> Bound:
    release, run_s, wide = (np.array(column, np.int64) for column in zip(*jobs, strict=True))
    found = jct_bound(release * S, run_s * S, wide * 1000, gpus)
    assert found is not None
    return found


def best_mean_jct(jobs: list[Job], gpus: int) -> float:
    """The least mean JCT of all preemptive schedules in whole seconds, by trying every set of jobs in every second."""

    @cache
    def cost(now: int, left: tuple[int, ...]) -> int:
        """The sum of live jobs over the seconds to come."""
        if not any(left):
            return 0
        here = [i for i, (r, _, _) in enumerate(jobs) if left[i] and r <= now]
        if not here:
            return cost(now + 1, left)
        fits = [
            chosen for n in range(1, len(here) + 1) for chosen in combinations(here, n) if sum(jobs[i][2] for i in chosen) <= gpus
        ]
        return len(here) + min(cost(now + 1, tuple(k - (i in chosen) for i, k in enumerate(left))) for chosen in fits)

    return cost(0, tuple(p for _, p, _ in jobs)) / len(jobs)


def test_a_job_alone_takes_its_own_time() -> None:
    assert bound([(5, 100, 2)], 8) == Bound(100, 25, 62.5)
    assert bound([(5, 100, 2)], 8).avg_jct_s == 100


def test_one_machine_is_srpt_itself() -> None:
    """Jobs of 10, 1 and 4 s at 0, 2 and 3 s on one GPU: the second runs 2–3, the third 3–7, the first 0–2 and 7–15."""
    found = bound([(0, 10, 1), (2, 1, 1), (3, 4, 1)], 1)
    assert found.pooled_s == pytest.approx((15 + 1 + 4) / 3)
    # Smallest first comes to the same schedule; the first job's mean is (2·1 + 8·11)/10 = 9.
    assert found.mean_busy_s == pytest.approx((9 + 5 + 0.5 + 0.5 + 2 + 2) / 3)
    assert found.alone_s == 5


def test_a_preempted_job_is_not_the_shortest_for_ever() -> None:
    """At 6 the first has 4 s left and the second needs 5: SRPT goes on, although both are worked on when they are least."""
    assert bound([(0, 10, 1), (6, 5, 1)], 1).pooled_s == pytest.approx((10 + 9) / 2)


def test_narrow_jobs_on_many_gpus() -> None:
    """Four jobs of one GPU and 4 s on two GPUs: ends at 4, 4, 8, 8. Pooled they would end at 2, 4, 6, 8."""
    found = bound([(0, 4, 1)] * 4, 2)
    assert best_mean_jct([(0, 4, 1)] * 4, 2) == 6
    assert found.pooled_s == 5
    assert found.mean_busy_s == (1 + 3 + 5 + 7) / 4 + 2 == found.avg_jct_s == 6


def test_jobs_without_gpus_and_shares_of_gpus() -> None:
    none = np.array([0], np.int64)
    assert jct_bound(none, none + 7 * S, none, 0) == Bound(7, 7, 7)
    assert jct_bound(none, none + 7 * S, none + 1000, 0) is None
    assert jct_bound(none[:0], none[:0], none[:0], 4) is None
    two = np.zeros(2, np.int64)
    halves = jct_bound(two, two + 6 * S, two + 500, 1)
    assert halves is not None and halves.avg_jct_s == 6  # both at once
    assert halves.pooled_s == (3 + 6) / 2


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4),
    st.integers(3, 4),
)
def test_no_schedule_is_below_the_bound(jobs: list[Job], gpus: int) -> None:
    best = best_mean_jct(jobs, gpus)
    found = bound(jobs, gpus)
    for below in (found.alone_s, found.pooled_s, found.mean_busy_s):
        assert below <= best + 1e-9


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30), st.integers(1, 8)), min_size=1, max_size=30))
def test_the_order_of_the_jobs_does_not_matter(jobs: list[Job]) -> None:
    one, other = bound(jobs, 8), bound(sorted(jobs, key=lambda job: (job[1], job[0])), 8)
    assert (one.alone_s, one.pooled_s) == (other.alone_s, other.pooled_s)
    assert one.mean_busy_s == pytest.approx(other.mean_busy_s)


def test_no_policy_is_below_the_bound() -> None:
    request = SimulateRequest(
        workload="poisson:jobs=300,load=1.1,cluster=2x8",
        cluster="2x8",
        policies=("oracle-srtf", "fifo", "las"),
        restart_cost="0",
        round="0",
    )
    for entry in run(request, prepare(request)):
        assert 0 < entry["avg_jct_bound_s"] <= entry["avg_jct_s"]


def test_large_numbers_stay_exact() -> None:
    """Seventy thousand jobs over months on thousands of GPUs pass 2^63 in milli-GPU·µs."""
    rng = np.random.default_rng(1)
    count = 20_000
    release = np.sort(rng.integers(0, 10**13, count))
    found = jct_bound(release, np.full(count, 10**9), np.full(count, 8000), 10_000)
    assert found is not None
    assert 1000 <= found.avg_jct_s < 1001 and found.pooled_s > 0


def test_a_run_that_ends_early_has_no_bound() -> None:
    """Told that the jobs need more than they ran for, the figure is withheld: it would bound other jobs."""
    request = SimulateRequest(workload="poisson:jobs=20,cluster=1x8", cluster="1x8", policies=("fifo",))
    prepared = prepare(request)
    ((_, outcome),) = outcomes(request, prepared, warm_up=False)
    longer = replace(prepared.workload, work_us=prepared.workload.work_us + S)
    assert simulated_bound(prepared.workload, prepared.cluster, outcome) is not None
    assert simulated_bound(longer, prepared.cluster, outcome) is None
    truth = np.zeros((TRUTH_COLUMNS, 20), np.int64)
    truth[Y_SPEED] = Speed.SCALED
    assert simulated_bound(replace(prepared.workload, truth=truth), prepared.cluster, outcome) is None


def test_a_job_that_may_take_fewer_gpus_is_bounded_by_those() -> None:
    request = SimulateRequest(workload="poisson:jobs=200,load=2,cluster=1x8", cluster="1x8", policies=("fifo",))
    prepared = prepare(request)
    ((_, outcome),) = outcomes(request, prepared, warm_up=False)
    rigid = simulated_bound(prepared.workload, prepared.cluster, outcome)
    spec = prepared.workload.spec.copy()
    spec[c.J_DATA_MIN] = 1
    elastic = simulated_bound(replace(prepared.workload, spec=spec), prepared.cluster, outcome)
    spec = prepared.workload.spec.copy()
    spec[c.J_ALT_MASK], spec[c.J_ALT_GPU] = 1, 500
    other = simulated_bound(replace(prepared.workload, spec=spec), prepared.cluster, outcome)
    assert rigid is not None and elastic is not None and other is not None
    assert max(elastic, other) < rigid
