"""The event-by-event twin of section 5 against cases worked out by hand."""

from __future__ import annotations

import math

import pytest

from .rates import RateJob, RateNode, RateTask, Usage, completion_times, slowdown

NODES = [RateNode(0, 10_000.0, 1000.0)]


def alone(number: int, start_s: float, work_s: float, *tasks: RateTask) -> RateJob:
    return RateJob(number, start_s, work_s, tasks)


def always(**amounts: float) -> Usage:
    return lambda job, task, interval: amounts


def test_slowdown() -> None:
    assert [slowdown(u) for u in (0.0, 0.5, 0.9)] == [1.0, 1.0, 1.0]
    assert slowdown(0.95) == pytest.approx(0.95)
    assert slowdown(1.0) == pytest.approx(0.9)
    assert slowdown(1.2) == pytest.approx(0.75)


def test_two_tasks_share_a_gpu() -> None:
    # 0.6 + 0.6 = 1.2: both go at 0.9 / 1.2 = 0.75. Job 1 does its 30 s of work in 40. Job 2 has done 30 of
    # 60 by then and goes on alone at rate 1: 70.
    jobs = [alone(1, 0, 30, RateTask(0, 0)), alone(2, 0, 60, RateTask(0, 0))]
    assert completion_times(jobs, NODES, always(gpu_milli=600), math.inf) == pytest.approx({1: 40, 2: 70})


def test_a_later_start_slows_the_first() -> None:
    # Job 1 alone until 10 (10 of 40 done), then both at 0.75. Job 2's 15 s take 20, until 30: job 1 has
    # done 25. The last 15 alone: 45.
    jobs = [alone(1, 0, 40, RateTask(0, 0)), alone(2, 10, 15, RateTask(0, 0))]
    assert completion_times(jobs, NODES, always(gpu_milli=600), math.inf) == pytest.approx({1: 45, 2: 30})


def test_a_task_alone_on_a_gpu_never_slows() -> None:
    jobs = [alone(1, 0, 30, RateTask(0, 0)), alone(2, 0, 30, RateTask(0, 1))]
    assert completion_times(jobs, NODES, always(gpu_milli=1500), math.inf) == pytest.approx({1: 30, 2: 30})


def test_a_job_is_as_slow_as_its_slowest_task() -> None:
    # Task 1 of job 1 shares GPU 1 with job 2 (rate 0.75), task 0 has GPU 0 alone. Job 2's 30 s end at 40;
    # job 1 has done 30 of 40 and ends at 50.
    jobs = [alone(1, 0, 40, RateTask(0, 0), RateTask(0, 1)), alone(2, 0, 30, RateTask(0, 1))]
    assert completion_times(jobs, NODES, always(gpu_milli=600), math.inf) == pytest.approx({1: 50, 2: 40})


def test_cpus_and_network_slow_too() -> None:
    # 12 cpus on 10: u = 1.2, rate 0.75, though the task is alone on the node.
    jobs = [alone(1, 0, 30, RateTask(0))]
    assert completion_times(jobs, NODES, always(cpus_milli=12_000), math.inf) == pytest.approx({1: 40})
    # The network at 1.8 is the worst of the two: rate 0.5.
    usage = always(cpus_milli=12_000, network_bytes_per_s=1800)
    assert completion_times(jobs, NODES, usage, math.inf) == pytest.approx({1: 60})


def test_usage_changes_from_interval_to_interval() -> None:
    # Intervals of 10 s. The network is used at 1.8 (rate 0.5) in even intervals, at 0.5 (rate 1) in odd
    # ones: 5 of work by 10, 15 by 20, 20 by 30, then 2 more: 32.
    def usage(job: int, task: int, interval: int) -> dict[str, float]:
        return {"network_bytes_per_s": 1800.0 if interval % 2 == 0 else 500.0}

    assert completion_times([alone(1, 0, 22, RateTask(0))], NODES, usage, 10) == pytest.approx({1: 32})
    # With a phase of 4 the first interval ends at 6: 3 by 6, 13 by 16, 18 by 26, 22 at 30.
    late = [alone(1, 0, 22, RateTask(0, phase_s=4))]
    assert completion_times(late, NODES, usage, 10) == pytest.approx({1: 30})
    # Started at 12, so in interval 1: 8 by 20, 13 by 30, 22 at 39.
    assert completion_times([alone(1, 12, 22, RateTask(0))], NODES, usage, 10) == pytest.approx({1: 39})


def test_what_a_task_does_not_use_does_not_slow_it() -> None:
    # Job 1 uses the network at 1.8, job 2 only cpus, well below capacity.
    def usage(job: int, task: int, interval: int) -> dict[str, float]:
        return {"network_bytes_per_s": 1800.0} if job == 1 else {"cpus_milli": 100.0}

    jobs = [alone(1, 0, 10, RateTask(0)), alone(2, 0, 10, RateTask(0))]
    assert completion_times(jobs, NODES, usage, math.inf) == pytest.approx({1: 20, 2: 10})
