"""What users of other schedulers have reported of preemption, signals and checkpoints, each as a test. One line each.

* A preempted job is older than the preemptor, gets its place back, and is preempted again, for ever.
* A preemptor needs two victims, which end at different times; the first one's place is given away meanwhile.
* A victim that ignores SIGTERM blocks its queue for hours.
* A victim that can't be killed (its node hangs) has its GPUs given to somebody else.
* After the victim's exit the preemptor waits for minutes more.
* A preempted job is dead: its owner has to hand it in again.
* A run begins at step 0 after a preemption and overwrites its good checkpoint.
* Thirty seconds are too short to save a large model.
* A requeued job waits for long before it may start.
* A job that exits with 0 after it was told to stop counts as done.
* One rank is killed: the others hang for half an hour.
"""

from __future__ import annotations

import pytest

from headway.core.columns import Phase

from .cluster import Cluster, live


async def preempted(cluster: Cluster, **script: float) -> None:
    """A long job on all GPUs, and after ten seconds a short one that has the right to them."""
    await cluster.submit("long", workers=4, work_s=100.0, estimate_s=100.0, **script)
    await cluster.to(10)
    await cluster.submit("short", workers=4, work_s=5.0, estimate_s=5.0)


def test_a_preempted_job_is_preempted_once_and_comes_back() -> None:
    async def body(cluster: Cluster) -> None:
        await preempted(cluster, save_s=1.0)
        long, short = cluster.controller.find("long"), cluster.controller.find("short")
        assert await cluster.end(long, short) == ["COMPLETED"] * 2
        assert (long.preemptions, long.attempt, long.id) == (1, 2, "long")

    cluster = live(body, policy="srtf")
    back = cluster.starts("long")[1] - cluster.ends("short")[0]
    assert back < 1.1, "it is back at once when there is room"
    victim_gone, came = cluster.ends("long")[0], cluster.starts("short")[0]
    assert 0 <= came - victim_gone < 0.1, "and the preemptor starts when the victim has gone, not later"


def test_a_job_preempted_thrice_is_the_same_job_in_its_fourth_attempt() -> None:
    async def body(cluster: Cluster) -> None:
        long = await cluster.submit("long", workers=4, work_s=100.0, estimate_s=100.0, save_s=0.5)
        for number in range(3):
            await cluster.to(10 + 20 * number)
            short = await cluster.submit(f"s{number}", workers=4, work_s=2.0, estimate_s=2.0)
            assert await cluster.end(short) == ["COMPLETED"]
        assert await cluster.end(long) == ["COMPLETED"]
        assert (long.id, long.attempt, long.preemptions) == ("long", 4, 3)

    cluster = live(body, policy="srtf")
    assert "launch long (job 1, attempt 4)" in "\n".join(cluster.machine.trace)


def test_what_is_freed_for_a_preemptor_is_kept_for_it() -> None:
    """Two victims, one gone at once and one after twenty seconds; small jobs come all the time."""

    async def body(cluster: Cluster) -> None:
        for name, save_s in (("quick", 0.1), ("slow", 20.0)):
            await cluster.submit(name, workers=2, work_s=500.0, estimate_s=500.0, save_s=save_s)
        await cluster.to(5)
        await cluster.submit("high", workers=4, work_s=5.0, estimate_s=5.0, priority=90)
        for number in range(15):
            await cluster.to(6 + number)
            await cluster.submit(f"small{number}", work_s=400.0, estimate_s=400.0)
        await cluster.to(27)
        assert cluster.phase("high") == Phase.RUNNING

    cluster = live(body, policy="srtf")
    assert not any(cluster.starts(f"small{number}") for number in range(15))


def test_a_victim_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.submit("deaf", workers=4, work_s=500.0, estimate_s=500.0, ignores_term=True, gives_s=7.0)
        await cluster.to(3)
        short = await cluster.submit("short", workers=4, work_s=1.0, estimate_s=1.0)
        await cluster.end(short, by_s=20)

    cluster = live(body, policy="srtf")
    assert cluster.ends("deaf")[0] == pytest.approx(10.0, abs=0.1)
    assert cluster.starts("short")[0] == pytest.approx(10.0, abs=0.2)


def test_a_victim_that_can_not_be_killed_keeps_its_gpus_charged() -> None:
    """Its node hangs: nobody knows whether it still runs. Others go elsewhere, and its GPUs to nobody."""

    async def body(cluster: Cluster) -> None:
        await cluster.submit("stuck", workers=2, work_s=500.0, estimate_s=500.0)
        await cluster.to(3)
        cluster.machine.cut_off("n0")
        await cluster.to(4)
        jobs = [await cluster.submit(f"j{number}", workers=2, work_s=2.0, estimate_s=2.0) for number in range(3)]
        assert await cluster.end(*jobs, by_s=60) == ["COMPLETED"] * 3
        assert cluster.phase("stuck") == Phase.STOPPING
        cluster.machine.heal("n0")
        await cluster.to(70)
        assert cluster.phase("stuck") == Phase.RUNNING and cluster.controller.find("stuck").attempt == 2

    live(body, policy="srtf", gpus=[2, 2])


def test_a_job_goes_on_where_its_last_checkpoint_ended() -> None:
    async def body(cluster: Cluster) -> None:
        await preempted(cluster, save_s=2.0)
        await cluster.end(cluster.controller.find("long"))

    cluster = live(body, policy="srtf")
    ran_s = [gone - came for came, gone in zip(cluster.starts("long"), cluster.ends("long"), strict=True)]
    assert ran_s[1] == pytest.approx(100.0 - 9.98, abs=0.01)
    assert cluster.machine.best_s["long"] == pytest.approx(10.0, abs=0.1), "none of ten seconds is done again"


def test_a_save_of_ninety_seconds_has_its_time() -> None:
    async def body(cluster: Cluster) -> None:
        await preempted(cluster, save_s=90.0, grace_s=95.0)
        long = cluster.controller.find("long")
        assert await cluster.end(long) == ["COMPLETED"]

    cluster = live(body, policy="srtf")
    assert cluster.ends("long")[0] == pytest.approx(100.0, abs=0.1)
    assert cluster.machine.best_s["long"] == pytest.approx(10.0, abs=0.1)


@pytest.mark.parametrize("code", [0, 143, 1])
def test_whatever_a_job_says_after_it_was_told_to_stop_it_was_preempted(code: int) -> None:
    async def body(cluster: Cluster) -> None:
        await preempted(cluster, term_code=code)
        await cluster.to(14)
        assert cluster.phase("long") == Phase.QUEUED, "neither done nor failed"
        assert await cluster.end(cluster.controller.find("long")) == ["COMPLETED"]

    live(body, policy="srtf")


def test_one_rank_is_killed_and_the_gang_is_broken_at_once() -> None:
    async def body(cluster: Cluster) -> None:
        gang = await cluster.submit("gang", workers=4, work_s=20.0, codes=(137,), ignores_term=True, retry_max=1)
        await cluster.to(10.5)  # it broke at second ten
        assert cluster.phase("gang") == Phase.QUEUED and cluster.machine.snapshot() == ()
        assert await cluster.end(gang) == ["COMPLETED"]
        assert gang.attempt == 2

    live(body, gpus=[2, 2])
