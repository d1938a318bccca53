"""What users of other schedulers have reported of accounting, restarts, lost nodes and clocks, each as a test. One line each.

* Replicas of a gang that starts anew still count as finished, or twice: the books are wrong for ever.
* Deleted jobs still count: nothing starts for three days.
* After a restart while a node cleans up, the same GPUs are given twice.
* After a restart with a node that is drained and still in use, waiting jobs never start.
* A crash between launch and commit: a second instance (every seed does this; here at each step of one start).
* A restart before the devices have been seen: a job starts without any.
* A job that has finished while the network was down is run again.
* The scheduler's memory is lost: jobs count as running for ever.
* A failed job is born again when something of it is cleaned up.
* A lost job is started elsewhere, and its node comes back: two copies.
* A node that comes and goes restarts its jobs again and again.
* Of two failures only the first is looked at; if it can't be helped, nor is the second.
* A restart half-way through a thousand jobs runs some of them again.
* Two controllers start together, and both set up the same things.
* The wall clock is set, and jobs are stopped, or never are.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind, NodePhase, Phase
from headway.core.events import EventBuffer
from headway.engines.base import Exited, Started
from headway.runtime.controller import FencedError
from headway.runtime.journal import JournalError
from headway.testing.live_run import run_live
from headway.testing.live_scenarios import Death, LiveScenario, Owned, live_scenario
from headway.testing.script import Script
from headway.testing.simulated import Link
from headway.testing.virtual import run_virtual

from .cluster import Cluster, live


def held_milli(cluster: Cluster) -> int:
    return int(cluster.controller.state.G[c.G_HELD].sum())


def test_a_gang_that_starts_anew_is_counted_once() -> None:
    async def body(cluster: Cluster) -> None:
        gang = await cluster.submit("gang", workers=3, work_s=20.0, codes=(1,), retry_max=1)
        await cluster.to(5)
        assert held_milli(cluster) == 3000
        await cluster.to(15)
        assert held_milli(cluster) == 0
        await cluster.to(25)
        assert held_milli(cluster) == 3000
        assert await cluster.end(gang) == ["COMPLETED"]
        assert held_milli(cluster) == 0

    live(body)


def test_what_vanishes_behind_the_schedulers_back_is_found_missing() -> None:
    async def body(cluster: Cluster) -> None:
        jobs = [await cluster.submit(f"j{n}", work_s=15.0) for n in range(4)]
        await cluster.to(5)
        for gang in cluster.machine.gangs.values():
            for task in gang.tasks:
                for timer in task.timers:
                    timer.cancel()
        cluster.machine.gangs.clear()
        assert await cluster.end(*jobs, by_s=120) == ["COMPLETED"] * 4
        assert all(job.attempt == 2 for job in jobs) and held_milli(cluster) == 0

    live(body)


def test_a_restart_while_a_job_cleans_up_gives_its_gpus_to_nobody() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.submit("long", workers=4, work_s=500.0, estimate_s=500.0, save_s=20.0)
        await cluster.to(5)
        await cluster.submit("short", workers=4, work_s=1.0, estimate_s=1.0)
        await cluster.to(10)
        await cluster.down()
        await cluster.up()
        await cluster.to(20)
        assert (cluster.phase("long"), cluster.phase("short")) == (Phase.STOPPING, Phase.QUEUED)
        assert held_milli(cluster) == 4000
        await cluster.to(27)
        assert cluster.controller.find("short").phase == Phase.COMPLETED

    live(body, policy="srtf")


def test_a_drained_node_in_use_over_a_restart() -> None:
    async def body(cluster: Cluster) -> None:
        def say(kind: EventKind) -> None:
            out = EventBuffer()
            out.add(cluster.controller.now_us(), kind, 0)
            cluster.controller._record(out.take())
            cluster.controller._wake.set()

        runs = await cluster.submit("runs", workers=2, work_s=30.0)
        await cluster.to(2)
        say(EventKind.NODE_DRAINING)
        waits = await cluster.submit("waits", workers=2, work_s=5.0)
        await cluster.to(10)
        await cluster.down()
        await cluster.up()
        await cluster.to(40)
        assert cluster.controller.find(runs.id).phase == Phase.COMPLETED, "it was left to run"
        assert cluster.phase("waits") == Phase.QUEUED, "the node is drained still"
        say(EventKind.NODE_UP)
        assert await cluster.end(waits, by_s=50) == ["COMPLETED"]

    live(body, gpus=[2])


@pytest.mark.parametrize("call", ["before", "sent", "after"])
def test_a_crash_at_any_step_of_a_start_starts_one_copy(call: str) -> None:
    """The world itself sees a second one."""
    base = live_scenario(4)
    job = next(one for one in base.jobs if one.cancel_s is None)
    for where in (f"{call} launch", "before append", "after append"):
        for count in range(1, 12):
            quiet = LiveScenario(count, "fifo", base.nodes, (Owned(job.id, job.spec, job.script, 0.0),), (Death(where, count),))
            outcome = run_live(quiet)
            assert not outcome.wrongs, str(outcome)


def test_no_job_starts_on_a_node_whose_devices_have_not_been_seen() -> None:
    async def body(cluster: Cluster) -> None:
        job = await cluster.submit("waits", workers=2, work_s=5.0)
        await cluster.to(20)
        assert (cluster.phase("waits"), cluster.machine.launched, job.attempt) == (Phase.QUEUED, 0, 0)
        cluster.machine.heal("n0")
        assert await cluster.end(job, by_s=27) == ["COMPLETED"]

    async def main() -> None:
        cluster.machine.cut_off("n0")
        await cluster.up()
        await body(cluster)
        cluster.judge()
        await cluster.down()

    cluster = Cluster(gpus=[2])
    run_virtual(main)


def test_a_job_that_finishes_while_the_network_is_down_has_finished() -> None:
    async def body(cluster: Cluster) -> None:
        job = await cluster.submit("job", work_s=10.0)
        await cluster.to(5)
        cluster.machine.cut_off("n0")
        await cluster.to(40)
        assert not job.ended
        cluster.machine.heal("n0")
        assert await cluster.end(job, by_s=42) == ["COMPLETED"]
        assert job.attempt == 1

    cluster = live(body, gpus=[1, 1])
    assert cluster.machine.launched == 1


def test_jobs_of_which_the_journal_knows_nothing_are_stopped_and_do_not_run_for_ever() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.submit("lost", workers=4, work_s=1000.0, save_s=5.0)
        await cluster.to(5)
        await cluster.down()
        cluster.segments.clear()
        await cluster.up()
        new = await cluster.submit("new", workers=4, work_s=5.0)
        assert new.number == 2, "not the number of a job that the engine knows"
        assert await cluster.end(new, by_s=60) == ["COMPLETED"]
        assert cluster.machine.saved_s["/ckpt-lost"] > 4.0, "it could save itself"

    live(body)


def test_ended_is_ended() -> None:
    async def body(cluster: Cluster) -> None:
        job = await cluster.submit("job", work_s=2.0, codes=(1,), retry_max=0)
        assert await cluster.end(job) == ["FAILED"]
        digest = cluster.controller.state.digest()
        for event in (Started(1, 1), Exited(1, 1, 0, None, False, ""), Exited(1, 1, 1, None, True, "x")):
            cluster.machine.tell(event)
        await cluster.to(70)
        assert cluster.controller.state.digest() == digest and job.phase == Phase.FAILED and job.attempt == 1

    live(body)


def test_an_old_copy_is_gone_before_the_new_one_starts() -> None:
    async def body(cluster: Cluster) -> None:
        job = await cluster.submit("job", work_s=30.0, save_s=1.0)
        await cluster.to(5)
        cluster.machine.cut_off("n0")
        await cluster.to(20)
        assert cluster.machine.launched == 1, "nobody knows whether it still runs"
        cluster.machine.heal("n0")
        assert await cluster.end(job) == ["COMPLETED"]

    cluster = live(body, gpus=[1, 1])
    assert cluster.starts("job")[1] >= cluster.ends("job")[0]


def test_where_a_lost_node_ends_its_tasks_the_job_goes_on_elsewhere() -> None:
    async def body(cluster: Cluster) -> None:
        cluster.machine.presume_s = 10.0
        job = await cluster.submit("job", work_s=30.0, every_s=1.0, retry_max=0)
        await cluster.to(5)
        cluster.machine.cut_off("n0")
        assert await cluster.end(job, by_s=60) == ["COMPLETED"]
        assert job.nodes == ("n1",) and job.attempt == 2

    live(body, gpus=[1, 1])


def test_a_node_that_comes_and_goes_does_not_restart_its_jobs_for_ever() -> None:
    """A heartbeat that fails every twenty seconds, for an hour."""

    async def body(cluster: Cluster) -> None:
        job = await cluster.submit("job", work_s=1000.0, every_s=1.0, save_s=0.1)
        for number in range(90):
            await cluster.to(10 + 40 * number)
            cluster.machine.cut_off("n0")
            await cluster.to(30 + 40 * number)
            cluster.machine.heal("n0")
            await asyncio.sleep(0.1)
            if number == 60:
                assert cluster.controller.nodes()[0].phase == NodePhase.DRAINING
        assert job.attempt <= 3 + 1, "at most as many restarts as make the node suspect"
        await cluster.to(3600 + 2000)
        assert cluster.controller.nodes()[0].phase == NodePhase.UP, "it was quiet for long enough"
        assert job.phase == Phase.COMPLETED

    live(body, gpus=[1, 1])


def test_of_two_failures_that_which_can_be_helped_is() -> None:
    """Two jobs lose their nodes. There is no other for the first, which is at the head of the queue; for the second there is."""

    async def body(cluster: Cluster) -> None:
        cluster.machine.presume_s = 2.0
        large = await cluster.submit("large", gpus=4, work_s=50.0, estimate_s=50.0, every_s=1.0)
        small = await cluster.submit("small", gpus=2, work_s=50.0, estimate_s=50.0, every_s=1.0)
        await cluster.to(5)
        assert (large.nodes, small.nodes) == (("n0",), ("n1",))
        for name in ("n0", "n1"):
            cluster.machine.cut_off(name)
        await cluster.to(12)
        assert (cluster.phase("large"), cluster.phase("small"), small.nodes) == (Phase.QUEUED, Phase.RUNNING, ("n2",))
        cluster.machine.heal("n0")
        assert await cluster.end(large, small, by_s=120) == ["COMPLETED"] * 2

    live(body, policy="fifo-backfill", gpus=[4, 2, 2])


def test_a_restart_half_way_runs_each_job_once() -> None:
    async def body(cluster: Cluster) -> None:
        jobs = [await cluster.submit(f"j{n}", work_s=1.0) for n in range(200)]
        await cluster.to(15)
        await cluster.down()
        await cluster.to(17)
        await cluster.up()
        assert await cluster.end(*jobs, by_s=120) == ["COMPLETED"] * 200

    cluster = live(body, gpus=[8])
    assert cluster.machine.launched == 200


def test_two_controllers_that_start_together_leave_one() -> None:
    async def body(cluster: Cluster) -> None:
        first = cluster.controller
        second = Cluster(gpus=[4], link=Link(call_s=0.3))
        second.machine, second.segments, second.lease = cluster.machine, cluster.segments, cluster.lease
        third = Cluster(gpus=[4], link=Link(call_s=0.3))
        third.machine, third.segments, third.lease = cluster.machine, cluster.segments, cluster.lease
        came = await asyncio.gather(second.up(), third.up(), return_exceptions=True)
        lost = [one for one in came if isinstance(one, BaseException)]
        assert len(lost) == 1 and isinstance(lost[0], FencedError | JournalError)
        winner = second if not isinstance(came[0], BaseException) else third
        job = await winner.submit("job", work_s=2.0)
        assert await winner.end(job) == ["COMPLETED"]
        assert np.array_equal(winner.controller.state.N[c.N_GPUS], first.state.N[c.N_GPUS])
        winner.judge()
        await winner.down()

    live(body)


@pytest.mark.parametrize("step_s", [-86400.0, -5.0, 3600.0, 1e8])
@pytest.mark.parametrize("reboots", [False, True])
def test_a_step_of_the_wall_clock_changes_nothing(step_s: float, reboots: bool) -> None:
    base = live_scenario(4)
    spec = base.jobs[0].spec
    script = Script(work_s=1e6, tasks=1)
    endless = replace(
        spec,
        name="e",
        run=script.text(),
        time_limit_s=25.0,
        retry_max=0,
        parallelism=replace(spec.parallelism, data=1, data_max=1),
    )
    jobs = (Owned("e", endless, script, 0.0),)
    steps = ((5.0, step_s), (12.0, step_s))
    outcome = run_live(LiveScenario(1, "fifo", base.nodes, jobs, (Death(after_s=8.0),), wall_steps=steps, reboots=reboots))
    assert not outcome.wrongs, str(outcome)
    stop = next(line for line in outcome.trace if "time-limit" in line)
    late_s = float(stop.split()[0]) - 25.0
    assert -0.1 <= late_s <= (8.1 if reboots else 0.1), "a reboot hides only what is between the journal's last entry and it"
