"""What users of other schedulers have reported of gangs, starvation and order, each as a test of what is right. One line each.

* Two gangs as large as the cluster are handed in at once; each gets a part, and both wait for ever.
* A gang passes the check of its sum but not node by node: it is accepted, and runs in part.
* A job that waits for GPUs holds up a CPU-only job behind it.
* One job is admitted in a cycle: hundreds wait, with room for all.
* A stream of small jobs passes a waiting gang for ever.
* Of equal long jobs the first has the cluster for days.
* A small task is put on the big node, so the big task has no place; it depends on the order of the tasks.
* A limit of a queue fits one gang of two, and each starts some of its tasks.
"""

from __future__ import annotations

import pytest

from headway.core.columns import EventKind, Name, Phase, Reason
from headway.core.events import EventBuffer
from headway.core.model import TaskDemand

from .cluster import Cluster, live

ALL = ("fifo", "fifo-backfill", "srtf", "las:quantum=20", "mlf-h", "gandiva:slice=20", "drf", "borg-fair", "graphene", "slaq")


@pytest.mark.parametrize("policy", ALL)
def test_of_two_gangs_as_large_as_the_cluster_one_has_all_and_the_other_nothing(policy: str) -> None:
    async def body(cluster: Cluster) -> None:
        jobs = [await cluster.submit(name, workers=8, work_s=10.0, estimate_s=10.0) for name in ("a", "b")]
        await cluster.to(5)
        assert sorted(cluster.phase(name) for name in "ab") == [Phase.QUEUED, Phase.RUNNING]
        assert await cluster.end(*jobs, by_s=200) == ["COMPLETED"] * 2

    cluster = live(body, policy=policy, gpus=[1] * 8)
    if policy not in ("las:quantum=20", "slaq"):
        assert cluster.machine.launched == 2, "and nobody was stopped for the other"


def test_a_gang_that_fits_in_sum_only_is_told_so() -> None:
    async def body(cluster: Cluster) -> None:
        job = await cluster.submit("wide", gpus=0, workers=12, cpus=4)
        assert (job.phase, job.reason) == (Phase.REJECTED, Reason.LARGER_THAN_CLUSTER)
        assert "12 workers" in job.message and "room for 10" in job.message

    live(body, gpus=[1] * 10, cpus=[6] * 10)


@pytest.mark.parametrize("policy", ALL)
def test_a_job_without_gpus_does_not_wait_for_those_that_want_some(policy: str) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.submit("runs", workers=3, work_s=1000.0, estimate_s=1000.0)
        await cluster.submit("waits", workers=4, work_s=1000.0, estimate_s=1000.0)
        job = await cluster.submit("cpu", gpus=0, work_s=1.0, estimate_s=1.0)
        assert await cluster.end(job, by_s=10) == ["COMPLETED"]

    live(body, policy=policy, gpus=[4])


@pytest.mark.parametrize("policy", ALL)
def test_all_that_have_room_start_in_one_round(policy: str) -> None:
    async def body(cluster: Cluster) -> None:
        for number in range(48):
            await cluster.submit(f"j{number}", work_s=50.0, estimate_s=50.0)
        await cluster.to(1.1)
        assert sum(cluster.phase(f"j{number}") == Phase.RUNNING for number in range(48)) == 48

    live(body, policy=policy, gpus=[8] * 6)


@pytest.mark.parametrize("policy", ["fifo", "fifo-backfill", "las:quantum=20", "gandiva:slice=20", "drf", "mlf-h"])
def test_small_jobs_do_not_pass_a_waiting_gang_for_ever(policy: str) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.submit("first", workers=6, work_s=20.0, estimate_s=20.0)
        gang = await cluster.submit("gang", workers=6, work_s=5.0, estimate_s=5.0)
        for number in range(120):
            await cluster.to(1.0 + number)
            await cluster.submit(f"s{number}", work_s=4.0, estimate_s=4.0, user=f"u{number % 5}")
        assert await cluster.end(gang, by_s=150) == ["COMPLETED"]

    live(body, policy=policy, gpus=[8])


def test_of_equal_long_jobs_each_has_its_turn_where_the_policy_slices_time() -> None:
    async def body(cluster: Cluster) -> None:
        jobs = [await cluster.submit(name, workers=8, work_s=100.0) for name in "abc"]
        await cluster.to(100)
        firsts = [cluster.starts(name)[0] for name in "abc"]
        assert max(firsts) <= 3 * 21, "nobody waits for longer than the others' slices"
        for name in "abc":
            turns = list(zip(cluster.starts(name), cluster.ends(name), strict=False))
            assert all(gone - came >= 19.0 for came, gone in turns), "and nobody is stopped before his slice is over"
        assert await cluster.end(*jobs, by_s=600) == ["COMPLETED"] * 3

    live(body, policy="gandiva:slice=20", gpus=[8])


@pytest.mark.parametrize("cpus", [(30, 50), (50, 30)])
@pytest.mark.parametrize("policy", ALL)
def test_where_a_task_goes_does_not_depend_on_the_order_of_the_tasks(policy: str, cpus: tuple[int, int]) -> None:
    """A gang of two tasks with 30 and 50 cpus; a gang of tasks that differ is given places as if all were like the largest."""

    async def body(cluster: Cluster) -> None:
        demands = tuple(TaskDemand(1000, 1000 * each, 0, 0, 500_000) for each in cpus)
        job = await cluster.submit("pair", workers=2, work_s=2.0, estimate_s=2.0, task_demands=demands)
        if len(cluster.nodes) == 2:
            assert job.phase == Phase.REJECTED and "room for 1" in job.message, "it is told at once, and not left to wait"
        else:
            assert await cluster.end(job, by_s=30) == ["COMPLETED"]

    live(body, policy=policy, gpus=[1, 1], cpus=[53, 31])
    live(body, policy=policy, gpus=[1, 1, 1], cpus=[31, 53, 53])


def test_a_limit_of_a_queue_counts_for_the_whole_gang() -> None:
    async def body(cluster: Cluster) -> None:
        controller = cluster.controller
        await cluster.submit("first", work_s=0.5)
        out = EventBuffer()
        queue = controller.names.known(Name.QUEUE, "default")
        assert queue is not None
        out.add(controller.now_us(), EventKind.QUEUE_SET, queue, payload=(4000, 4000, 1, -1))
        controller._record(out.take())
        await cluster.to(3)
        jobs = [await cluster.submit(name, workers=3, work_s=10.0) for name in "ab"]
        await cluster.to(5)
        assert sorted(cluster.phase(name) for name in "ab") == [Phase.QUEUED, Phase.RUNNING]
        assert await cluster.end(*jobs, by_s=60) == ["COMPLETED"] * 2

    live(body, gpus=[8])
