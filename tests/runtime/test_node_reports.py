"""What an engine tells of usage and of nodes, as it reaches the tables, the journal, and a policy that looks for overload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.core import columns as c
from headway.core.columns import EventKind, NodePhase, Phase, Reason
from headway.core.events import EventBuffer
from headway.core.model import GpuDemand, Resources
from headway.engines.base import NODE_LOST, Exited, NodeHealth, StartFailed, Usage
from headway.runtime.launch import add_end

from .fake import US, World, job


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "journal.db")


async def tell(world: World, *events: object) -> None:
    for event in events:
        world.engine.stream.put(event)  # type: ignore[arg-type]
    await world.drain()


async def test_usage_reaches_the_tables_and_the_journal(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 50 * US}
    await world.submit(job(gpus=2, workers=2))
    st = world.controller.state
    network = int(st.N[c.N_USE_NET, 1])
    await tell(world, Usage(1, 1, 1, gpu_milli=1500, cpus_milli=7000, memory_bytes=3 << 30))
    assert (st.N[c.N_USE_CPU, 1], st.N[c.N_USE_MEM, 1], st.N[c.N_USE_NET, 1]) == (7000, 3 << 30, network)
    assert st.G[c.G_USED, 2:4].tolist() == [750, 750], "a task's GPUs are used alike"
    batch = world.journal()
    at = batch.kinds().index(EventKind.USAGE)
    assert batch.payloads()[at].tolist() == [1500, 7000, 3 << 30, network]
    await world.to(60 * US)
    assert (st.N[c.N_USE_CPU, 1], st.G[c.G_USED, 2:4].tolist()) == (0, [0, 0])


async def test_old_news_of_usage_is_passed_over(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 5 * US}
    await world.submit(job())
    before = len(world.journal())
    await tell(world, Usage(1, 2, 0, 1, 1, 1), Usage(9, 1, 0, 1, 1, 1), Usage(1, 1, 5, 1, 1, 1))
    assert len(world.journal()) == before
    await world.to(10 * US)
    await tell(world, Usage(1, 1, 0, 1, 1, 1))
    assert EventKind.USAGE not in world.journal().kinds()


async def test_a_sick_node_takes_no_jobs_and_keeps_those_it_has(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 20 * US, 2: US}
    first = await world.submit(job(gpus=2))
    await tell(world, NodeHealth("n1", "GPU 3 has fallen off the bus"), NodeHealth("n0", "the disk is full"))
    assert world.controller.state.N[c.N_PHASE, :2].tolist() == [NodePhase.DRAINING] * 2
    second = await world.submit(job())
    await world.to(5 * US)
    assert first.phase == Phase.RUNNING or world.controller.live_view(first) is not None
    assert second.first_started_us is None
    await tell(world, NodeHealth("n1", ""))
    await world.to(8 * US)
    assert second.phase == Phase.COMPLETED and second.nodes == ("n1",)


def test_a_lost_node_is_no_failure_of_the_job() -> None:
    out = EventBuffer()
    add_end(out, 7, Exited(1, 2, 137, 9, False, NODE_LOST), int(Reason.NONE))
    add_end(out, 8, StartFailed(1, 3, "no"), int(Reason.NONE))
    records = out.take().records
    assert records[:, c.E_KIND].tolist() == [EventKind.STOPPED, EventKind.START_FAILED]
    assert records[0, c.E_A] == Reason.NODE_LOST


async def test_a_launch_says_whose_job_it_is_and_what_it_may_use(world: World) -> None:
    await world.start()
    resources = Resources((GpuDemand(milli=1000),), cpus_milli=2500, memory_bytes=3 << 30)
    await world.submit(replace(job(), user="ann", resources=resources))
    (launch,) = world.engine.launches
    (task,) = launch.tasks
    assert (launch.user, task.milli, task.cpus_milli, task.memory_bytes) == ("ann", 1000, 2500, 3 << 30)
