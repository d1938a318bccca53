"""Rounds whose policy takes its time: who starts meanwhile, what becomes of a plan that comes late, or never."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from headway.core.columns import EventKind, Phase
from headway.core.round import TIMED_OUT, Brains
from headway.core.state import State
from headway.engines.base import NodeInfo
from headway.policies.registry import choose
from headway.runtime.controller import Controller
from headway.runtime.journal import Journal
from headway.runtime.rounds import Daemons, Meanwhile, Pace
from headway.testing.live_process import MemoryJournal
from headway.testing.machine import Machine
from headway.testing.script import Script
from headway.testing.simulated import SimulatedEngine
from headway.testing.virtual import VirtualClock, VirtualLoop, run_virtual

from .fake import US, World, brains_of, job


class Held(Executor):
    """Thinks at once, and tells when the test says so."""

    def __init__(self) -> None:
        self.owed: list[tuple[Future[Any], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self.owed.append((future, fn(*args, **kwargs)))
        return future


class SlowWorld(World):
    """A world whose policy answers when `answer` is called."""

    worker: Held

    async def start(self) -> Controller:
        self.worker = Held()
        self.controller = Controller(
            Journal(self.path), self.engine, brains_of(self.policy), pace=self.pace, clock=self.clock, worker=self.worker
        )
        await self.controller.start()
        await self.drain()
        return self.controller

    async def answer(self) -> None:
        """What has been thought of so far is told."""
        owed, self.worker.owed = self.worker.owed, []
        for future, thought in owed:
            future.set_result(thought)
        await self.drain()

    async def rest(self) -> None:
        """Answer until nothing is asked."""
        while self.worker.owed:
            await self.answer()


def slow(tmp_path: Path, policy: str, **pace: Any) -> SlowWorld:
    return SlowWorld(tmp_path / "j.db", policy, pace=Pace(gap_us=0, patience_us=0, **pace))


@pytest.mark.parametrize("policy", ["fifo", "srtf", "mlf-h"])
async def test_a_newcomer_starts_on_a_free_place_while_the_policy_thinks(policy: str, tmp_path: Path) -> None:
    world = slow(tmp_path, policy)
    await world.start()
    world.engine.work_us = {1: 50 * US, 2: 50 * US}
    first, second = await world.submit(job()), await world.submit(job())
    assert (first.first_started_us, second.first_started_us) == (0, 0)
    assert world.controller.rounds.held == 0 and world.controller.rounds.spared == 2
    await world.rest()
    assert world.controller.rounds.refused == 0 and len(world.engine.launches) == 2
    replayed = State()
    for batch in Journal(world.path).read():
        replayed.apply(batch)
    assert replayed.digest() == world.controller.state.digest() == world.controller.rounds.mind.state.digest()


@pytest.mark.parametrize(
    ("policy", "meanwhile", "starts"),
    [
        ("fifo", None, False),
        ("sjf:unfit=block", None, False),
        ("fifo-backfill", None, True),
        ("srtf", None, True),
        ("srtf", Meanwhile.IDLE, False),
        ("srtf", Meanwhile.NEVER, False),
    ],
)
async def test_who_waits_for_longer_is_passed_only_where_the_order_allows_it(
    policy: str, meanwhile: Meanwhile | None, starts: bool, tmp_path: Path
) -> None:
    """Three of four slots are taken for 100 s and a gang of four waits, by decision. A job of 5 s would not delay it."""
    world = slow(tmp_path, policy, meanwhile=meanwhile)
    await world.start()
    world.engine.work_us = {1: 100 * US, 2: 50 * US, 3: 5 * US}
    await world.submit(job("runs", workers=3, estimate_s=100))
    await world.submit(job("waits", workers=4, estimate_s=500))
    await world.rest()
    world.clock.us = 2 * US
    await world.submit(job("comes", estimate_s=5))
    assert [launch.job for launch in world.engine.launches] == ([1, 3] if starts else [1])


async def test_without_an_estimate_a_newcomer_does_not_take_what_is_reserved(tmp_path: Path) -> None:
    world = slow(tmp_path, "fifo-backfill")
    await world.start()
    world.engine.work_us = {1: 100 * US, 2: 50 * US, 3: 5 * US}
    await world.submit(job("runs", workers=3, estimate_s=100))
    await world.submit(job("waits", workers=4, estimate_s=500))
    await world.rest()
    await world.submit(job("comes"))
    assert [launch.job for launch in world.engine.launches] == [1]


async def test_what_went_stale_while_the_policy_thought_is_dropped_alone(tmp_path: Path) -> None:
    world = slow(tmp_path, "fifo", meanwhile=Meanwhile.NEVER)
    await world.start()
    world.engine.work_us = {1: 50 * US, 2: 50 * US}
    await world.rest()
    asked = [asyncio.ensure_future(world.controller.submit(job(name))) for name in ("a", "b")]
    await world.drain()
    assert [(await one)[0].attempt for one in asked] == [0, 0] and len(world.worker.owed) == 1
    await world.cancel("a-1")
    await world.answer()
    assert (world.controller.rounds.refused, world.controller.rounds.dropped) == (0, 1)
    assert world.controller.find("a-1").phase == Phase.CANCELLED
    assert [launch.name for launch in world.engine.launches] == ["b-1"]


async def test_a_policy_that_never_comes_back_is_refused_once_and_the_cluster_lives_on(tmp_path: Path) -> None:
    world = slow(tmp_path, "fifo", think_us_max=10 * US, meanwhile=Meanwhile.NEVER)
    await world.start()
    world.engine.work_us = {n: US for n in range(1, 9)}
    first = await world.submit(job())
    await world.to(9 * US)
    assert not first.attempt
    await world.to(12 * US)
    assert (first.phase, first.first_started_us) == (Phase.COMPLETED, 10 * US)
    for _ in range(5):
        await world.submit(job())
        await world.to(world.clock.us + 2 * US)
    batch = world.journal()
    said = [(int(r[4]), batch.texts[i]) for i, r in enumerate(batch.records) if r[1] == EventKind.REFUSED]
    assert said == [(TIMED_OUT, "fifo has not decided within 10 s")]
    assert all(record.phase == Phase.COMPLETED for record in world.controller.board)
    held = len(world.worker.owed)
    await world.answer()
    await world.submit(job())
    assert len(world.worker.owed) == 1 and held == 1, "it is asked again once it has come back"
    await world.rest()
    await world.to(world.clock.us + 2 * US)
    await world.rest()
    assert all(record.phase == Phase.COMPLETED for record in world.controller.board) and world.controller.rounds.refused == 1


@pytest.mark.parametrize("think_s", [2.0, 0.04])
@pytest.mark.parametrize("policy", ["fifo", "las:quantum=20", "gandiva:slice=20"])
def test_from_submission_to_start_in_a_fifth_of_a_second(policy: str, think_s: float) -> None:
    """Ten minutes of jobs that have room, under a policy that thinks for 2 s each time."""
    waited: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.think_s = lambda: think_s
        machine = Machine((NodeInfo("n0", 8, "gpu", 64_000, 10**12),))
        keep = choose("fifo-backfill").policy
        brains = Brains(choose(policy).policy, keep, keep)
        controller = Controller(MemoryJournal([]), SimulatedEngine(machine), brains, pace=Pace(), clock=VirtualClock())
        await controller.start()
        running = asyncio.create_task(controller.run())
        for i in range(100):
            await asyncio.sleep(5.37)
            record, _ = await controller.submit(replace(job(f"j{i}", estimate_s=20.0), run=Script(work_s=20.0, tasks=1).text()))
            while record.first_started_us is None:
                await controller.changed(1.0)
            waited.append((record.first_started_us - record.submitted_us) / US)
        assert machine.wrongs == [] and controller.rounds.refused == 0
        running.cancel()

    run_virtual(main)
    assert median(waited) <= 0.2 and max(waited) <= 1.0, waited


def test_a_thread_that_never_ends_does_not_keep_the_process() -> None:
    import subprocess
    import sys

    words = "import threading; from headway.runtime.rounds import Daemons; Daemons().submit(threading.Event().wait)"
    assert subprocess.run([sys.executable, "-c", words], timeout=30, check=False).returncode == 0
    assert Daemons().submit(lambda: 7).result(5) == 7


def test_an_idle_thread_is_used_again_and_a_busy_one_is_not_waited_for() -> None:
    daemons, come_back = Daemons(), threading.Event()
    first = daemons.submit(threading.current_thread).result(5)
    lost = daemons.submit(lambda: come_back.wait(5) and threading.current_thread())
    other = daemons.submit(threading.current_thread).result(5)
    assert other is not first
    with pytest.raises(ZeroDivisionError):
        daemons.submit(lambda: 1 // 0).result(5)
    assert daemons.submit(threading.current_thread).result(5) is other
    daemons.shutdown()
    come_back.set()
    assert lost.result(5) is first
    for thread in (first, other):
        thread.join(5)
        assert not thread.is_alive()
