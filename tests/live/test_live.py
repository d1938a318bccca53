"""Real processes under a real controller in this process: gangs, preemption, failures, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headway.core.columns import Phase, Reason
from headway.core.model import Checkpoint, GpuDemand, JobSpec, Parallelism, Resources
from headway.core.round import Brains
from headway.engines.local import LocalEngine
from headway.policies.registry import choose
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller
from headway.runtime.journal import Journal
from headway.runtime.rounds import Pace
from headway.runtime.warm import warm_up

from .conftest import Cluster

pytestmark = pytest.mark.live
PATIENCE_S = 30.0


class Live:
    """A controller with the local engine, and jobs on it."""

    def __init__(self, cluster: Cluster, policy: str) -> None:
        cluster.home.mkdir()
        self.scratch = cluster.scratch
        engine = LocalEngine(cluster.home / "engine", {"n0": 2, "n1": 2}, gang_grace_s=0.5, poll_s=0.05)
        keep = choose("fifo-backfill").policy
        brains = Brains(choose(policy).policy, keep, keep)
        warm_up(brains.policy)
        self.controller = Controller(Journal(cluster.home / "journal.db"), engine, brains, pace=Pace(interval_us=100_000))
        self.running: asyncio.Task[None]

    async def open(self) -> None:
        await self.controller.start()
        self.running = asyncio.create_task(self.controller.run())

    async def close(self) -> None:
        self.controller.stop()
        await self.running
        await self.controller.close()

    async def submit(self, run: str, *, name: str = "job", workers: int = 1, gpus: int = 1, **more: Any) -> JobRecord:
        spec = JobSpec(
            name=name,
            run=run,
            workdir=str(self.scratch),
            resources=Resources((GpuDemand(milli=1000 * gpus),), 100),
            parallelism=Parallelism(data=workers),
            **{"retry_max": 0, **more},
        )
        return (await self.controller.submit(spec))[0]

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await self.controller.changed(0.02)

    async def ended(self, *jobs: JobRecord) -> list[Phase]:
        await self.until(lambda: all(job.ended for job in jobs))
        return [job.phase for job in jobs]

    def output(self, job: JobRecord, rank: int = 0, attempt: int = 1) -> str:
        return self.controller.log_path(job, attempt, rank).read_text("utf-8")

    def phase(self, job: JobRecord) -> Phase:
        view = self.controller.live_view(job)
        return job.phase if view is None else view.phase


async def opened(cluster: Cluster, policy: str) -> AsyncIterator[Live]:
    made = Live(cluster, policy)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def fifo(cluster: Cluster) -> AsyncIterator[Live]:
    async for made in opened(cluster, "fifo"):
        yield made


@pytest.fixture
async def srtf(cluster: Cluster) -> AsyncIterator[Live]:
    async for made in opened(cluster, "srtf"):
        yield made


async def test_a_job_of_two_workers_starts_as_a_gang(fifo: Live) -> None:
    says = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $GROUP_WORLD_SIZE $HEADWAY_NODE $HEADWAY_SLOTS $HEADWAY_JOB_NAME"'
    job = await fifo.submit(says, name="gäng", workers=2, gpus=2)
    assert await fifo.ended(job) == [Phase.COMPLETED]
    assert [fifo.output(job, rank) for rank in (0, 1)] == ["0 0 2 2 n0 0,1 gäng-1\n", "1 0 2 2 n1 0,1 gäng-1\n"]
    assert job.nodes == ("n0", "n1") and job.exit_code == 0


async def test_the_gang_waits_until_there_is_room_for_all_of_it(fifo: Live) -> None:
    gate = fifo.scratch / "gate"
    first = await fifo.submit(f"until [ -e '{gate}' ]; do sleep 0.02; done", workers=3)
    gang = await fifo.submit("true", workers=2)
    await fifo.until(lambda: fifo.phase(first) == Phase.RUNNING)
    view = fifo.controller.live_view(gang)
    assert view is not None and (view.phase, view.reason) == (Phase.QUEUED, Reason.NO_ROOM)
    gate.touch()
    assert await fifo.ended(first, gang) == [Phase.COMPLETED] * 2
    assert gang.first_started_us is not None and first.ended_us is not None and gang.first_started_us >= first.ended_us


async def test_four_jobs_on_two_slots_all_finish(fifo: Live) -> None:
    marks = fifo.scratch / "running"
    run = f"echo + >> '{marks}'; sleep 0.1; echo - >> '{marks}'"
    jobs = [await fifo.submit(run, gpus=2) for _ in range(4)]
    assert await fifo.ended(*jobs) == [Phase.COMPLETED] * 4
    at_once, most = 0, 0
    for line in marks.read_text().split():
        at_once += 1 if line == "+" else -1
        most = max(most, at_once)
    assert most <= 2 and at_once == 0
    starts = [job.first_started_us or 0 for job in jobs]
    assert 0 < max(starts[:2]) <= min(starts[2:]), (
        "first come, first served; the two that start together may come up in either order"
    )


async def test_a_preempting_policy_stops_a_job_and_brings_it_back(srtf: Live) -> None:
    progress = srtf.scratch / "step"
    # It saves its step when told to stop, and goes on from there.
    run = f"""
step=$(cat '{progress}' 2>/dev/null || echo 0)
echo "attempt $HEADWAY_ATTEMPT restart $TORCHELASTIC_RESTART_COUNT from $step"
trap 'echo $step > {progress}; echo "told to stop"; exit 0' TERM
while [ $step -lt 15 ]; do step=$((step + 1)); sleep 0.05; done
"""
    long = await srtf.submit(run, name="long", workers=4, estimate_s=600, checkpoint=Checkpoint("ckpt", 5.0))
    await srtf.until(lambda: srtf.phase(long) == Phase.RUNNING and "from" in srtf.output(long))
    short = await srtf.submit("true", name="short", workers=2, estimate_s=1)
    assert await srtf.ended(short, long) == [Phase.COMPLETED] * 2
    assert (long.attempt, long.preemptions, short.attempt) == (2, 1, 1)
    assert "attempt 1 restart 0 from 0" in srtf.output(long) and "told to stop" in srtf.output(long)
    assert "attempt 2 restart 1 from" in srtf.output(long, attempt=2)
    assert short.ended_us is not None and long.ended_us is not None and short.ended_us < long.ended_us


async def test_least_attained_service_lets_jobs_take_turns(cluster: Cluster) -> None:
    async for live in opened(cluster, "las:quantum=0.4"):
        run = "trap 'exit 0' TERM; n=0; while [ $n -lt 10 ]; do n=$((n + 1)); sleep 0.05; done"
        first = await live.submit(run, workers=4)
        await live.until(lambda: live.phase(first) == Phase.RUNNING)  # noqa: B023
        second = await live.submit(run, workers=4)
        await live.until(lambda: first.preemptions >= 1 and second.attempt >= 1)  # noqa: B023
        for job in (first, second):
            await live.controller.cancel(job.id)
        await live.ended(first, second)
        assert first.attempt >= 1 and first.preemptions >= 1


async def test_a_job_that_fails_has_failed_with_its_exit_code(fifo: Live) -> None:
    failing, killed, missing = [
        await fifo.submit(run, name=name)
        for name, run in (("f", "echo no; exit 7"), ("k", "kill -9 $$"), ("m", "/no/such/program"))
    ]
    assert await fifo.ended(failing, killed, missing) == [Phase.FAILED] * 3
    assert [job.exit_code for job in (failing, killed, missing)] == [7, 137, 127]
    assert {job.reason for job in (failing, killed, missing)} == {Reason.EXIT_CODE}
    assert killed.message == "killed by signal 9"


async def test_a_workdir_that_is_not_there_is_a_failed_start(fifo: Live) -> None:
    spec = JobSpec(name="w", run="true", workdir="/no/such/dir", retry_max=0)
    job, _ = await fifo.controller.submit(spec)
    assert await fifo.ended(job) == [Phase.FAILED]
    assert job.reason == Reason.START_FAILED and "no such directory: /no/such/dir" in job.message


async def test_queued_and_running_jobs_are_cancelled(fifo: Live) -> None:
    mark = fifo.scratch / "mark"
    stubborn = f"trap '' TERM; : > '{mark}'; while :; do sleep 0.02; done"
    running = await fifo.submit(stubborn, workers=4, checkpoint=Checkpoint(grace_s=0.2))
    queued = await fifo.submit("true", workers=4)
    await fifo.until(mark.exists)
    for job in (running, queued):
        await fifo.controller.cancel(job.id)
        await fifo.controller.cancel(job.id)
    assert await fifo.ended(running, queued) == [Phase.CANCELLED] * 2
    assert queued.attempt == 0
    assert await fifo.ended(await fifo.submit("true", workers=4)) == [Phase.COMPLETED], "its places are free again"


async def test_a_time_limit_is_kept(fifo: Live) -> None:
    job = await fifo.submit("sleep 600", time_limit_s=0.3)
    assert await fifo.ended(job) == [Phase.FAILED]
    assert job.reason == Reason.TIME_LIMIT


async def test_a_waiting_job_starts_soon_after_its_victim_has_gone(fifo: Live) -> None:
    gate = fifo.scratch / "gate"
    first = await fifo.submit(f"until [ -e '{gate}' ]; do sleep 0.01; done", workers=4)
    second = await fifo.submit("true", workers=4)
    await fifo.until(lambda: fifo.phase(first) == Phase.RUNNING)
    gate.touch()
    await fifo.ended(first, second)
    assert second.first_started_us is not None and first.ended_us is not None
    assert second.first_started_us - first.ended_us <= 1_000_000


async def test_names_in_any_script(fifo: Live, tmp_path: Path) -> None:
    jobs = [await fifo.submit('printf %s "$HEADWAY_JOB_NAME"', name=name) for name in ("训练", "نموذج", "🚂 train", "a" * 128)]
    assert await fifo.ended(*jobs) == [Phase.COMPLETED] * 4
    assert [fifo.output(job) for job in jobs] == ["训练-1", "نموذج-1", "🚂 train-1", "a" * 128 + "-1"]
