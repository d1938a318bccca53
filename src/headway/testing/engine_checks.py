"""The conformance suite of engines: what every engine must do, whatever it runs on.

    async def make() -> Engine: ...          # an engine on one world, not yet started; called again after a close

    await check_engine(make, scratch=tmp_path)

`check_engine` runs all of `ENGINE_CHECKS` one after the other in one world; a test suite may rather run each in a
world of its own, with `run_engine_check`. The world needs two free slots, on one node or on two.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from headway.engines.base import (
    Ended,
    Engine,
    EngineEvent,
    EngineInvariant,
    Exited,
    Launch,
    Running,
    StaleAttempt,
    StaleEpoch,
    Started,
    StartFailed,
    TaskLaunch,
)

__all__ = ["ENGINE_CHECKS", "Commands", "EngineBench", "check_engine", "run_engine_check"]

PAUSE_S = 0.01

Event = TypeVar("Event", Started, StartFailed, Exited)


class Commands:
    """What the suite's tasks run, as shell commands; an engine without a shell brings commands of its own.

    A *mark* is a file that a task makes to say how far it is; a *gate* is a file that a task waits for.
    """

    succeed = "exit 0"

    def fail(self, code: int) -> str:
        return f"exit {code}"

    def die(self, number: int) -> str:
        """End by a signal."""
        return f"kill -{number} $$"

    def wait(self, gate: Path, code: int = 0, mark: Path | None = None) -> str:
        """Add a line to the mark, then end with `code` once the gate is open."""
        say = f"echo started >> '{mark}'; " if mark is not None else ""
        return f"{say}until [ -e '{gate}' ]; do sleep 0.02; done; exit {code}"

    def obey(self, mark: Path, saved: Path) -> str:
        """Make the mark, run for ever, and on SIGTERM take a moment to save and exit 0."""
        return f"trap 'sleep 0.2; : > {saved}; exit 0' TERM; : > '{mark}'; while :; do sleep 0.02; done"

    def ignore(self, mark: Path) -> str:
        """Make the mark, and run for ever, whatever SIGTERM says."""
        return f"trap '' TERM; : > '{mark}'; while :; do sleep 0.02; done"

    def open(self, gate: Path) -> None:
        gate.touch()

    def lines(self, mark: Path) -> int:
        return len(mark.read_text().splitlines()) if mark.exists() else 0


Make: TypeAlias = Callable[[], Awaitable[Engine]]


class EngineBench:
    """One world with an engine on it, as a controller sees it: what it launches, and the events that it has seen."""

    def __init__(self, make: Make, scratch: Path, commands: Commands | None = None, timeout_s: float = 30.0) -> None:
        self.make = make
        self.scratch = scratch
        self.run = commands if commands is not None else Commands()
        self.timeout_s = timeout_s
        self.epoch = 0
        self.seen: list[EngineEvent] = []
        self.engine: Engine
        self._jobs = itertools.count(1)
        self._names = itertools.count(1)
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def open(self) -> None:
        """A controller starts: a new epoch, nothing seen yet."""
        self.epoch += 1
        self.seen = []
        self.engine = await self.make()
        await self.engine.start()
        await self.engine.fence(self.epoch)
        self._reader = asyncio.create_task(self._read(), name="engine-bench")

    async def close(self) -> None:
        """The controller ends; its engine's tasks go on."""
        await self.engine.close()
        assert self._reader is not None
        async with asyncio.timeout(self.timeout_s):
            await self._reader

    async def restart(self) -> None:
        await self.close()
        await self.open()

    async def _read(self) -> None:
        async for event in self.engine.events():
            self.seen.append(event)
            self._news.set()

    def path(self, what: str) -> Path:
        """A new name for a mark or a gate."""
        return self.scratch / f"{what}-{next(self._names)}"

    async def launch_of(self, *commands: str, job: int | None = None, attempt: int = 1) -> Launch:
        """A gang with one task a command, on the first slots of the inventory."""
        slots: Iterator[tuple[str, int]] = (
            (node.name, slot) for node in await self.engine.inventory() for slot in range(node.gpus)
        )
        tasks = tuple(
            TaskLaunch(rank, "worker", node, (slot,), command, workdir=str(self.scratch))
            for (rank, command), (node, slot) in zip(enumerate(commands), slots, strict=False)
        )
        assert len(tasks) == len(commands), "the world has too few slots for this check"
        number = next(self._jobs) if job is None else job
        return Launch(self.epoch, number, f"check-{number}", attempt, tasks)

    async def launch(self, *commands: str, job: int | None = None, attempt: int = 1) -> Launch:
        launch = await self.launch_of(*commands, job=job, attempt=attempt)
        await self.engine.launch(launch)
        return launch

    async def stop(self, launch: Launch, grace_s: float, reason: str = "preempted") -> None:
        await self.engine.stop(self.epoch, launch.job, launch.attempt, grace_s, reason)

    async def event(self, kind: type[Event], launch: Launch) -> Event:
        """The event of this kind for this attempt; waits for it."""
        async with asyncio.timeout(self.timeout_s):
            while True:
                self._news.clear()
                for event in self.seen:
                    if isinstance(event, kind) and (event.job, event.attempt) == (launch.job, launch.attempt):
                        return event
                await self._news.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that no event tells of."""
        async with asyncio.timeout(self.timeout_s):
            while not holds():
                await asyncio.sleep(PAUSE_S)

    def told(self, launch: Launch) -> list[EngineEvent]:
        """All events so far of this attempt."""
        return [
            event
            for event in self.seen
            if isinstance(event, Started | StartFailed | Exited) and (event.job, event.attempt) == (launch.job, launch.attempt)
        ]

    async def record(self, launch: Launch) -> Running | Ended | None:
        """What the snapshot says of this attempt."""
        for record in await self.engine.snapshot():
            if (record.job, record.attempt) == (launch.job, launch.attempt):
                return record
        return None

    async def ended(self, launch: Launch) -> Ended:
        """The end of this attempt by the snapshot; waits for it."""
        async with asyncio.timeout(self.timeout_s):
            while not isinstance(record := await self.record(launch), Ended):
                await asyncio.sleep(PAUSE_S)
        return record

    async def finish(self, launch: Launch) -> None:
        """Acknowledge an attempt that has ended: then nothing of it is left in the snapshot."""
        assert isinstance(await self.record(launch), Ended)
        await self.engine.acknowledge(self.epoch, launch.job, launch.attempt)
        assert await self.record(launch) is None


async def completes(bench: EngineBench) -> None:
    """A gang whose tasks all exit 0 starts, then ends well; in this order, each told once."""
    launch = await bench.launch(bench.run.succeed, bench.run.succeed)
    await bench.event(Exited, launch)
    assert bench.told(launch) == [
        Started(launch.job, launch.attempt),
        Exited(launch.job, launch.attempt, 0, None, False, ""),
    ]
    await bench.finish(launch)


async def tells_exit_code(bench: EngineBench) -> None:
    """The exit code of a task that fails is told, and so is the signal that ended one."""
    launch = await bench.launch(bench.run.fail(3))
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 3, None, False, "")
    await bench.finish(launch)
    launch = await bench.launch(bench.run.die(9))
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 137, 9, False, "")
    await bench.finish(launch)


async def launch_is_idempotent(bench: EngineBench) -> None:
    """A repeated launch starts nothing: not while the attempt runs, nor when it has ended, nor acknowledged."""
    mark, gate = bench.path("mark"), bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate, mark=mark))
    await bench.engine.launch(launch)
    await bench.event(Started, launch)
    await bench.engine.launch(launch)
    bench.run.open(gate)
    await bench.event(Exited, launch)
    await bench.engine.launch(launch)
    assert isinstance(await bench.record(launch), Ended)
    await bench.finish(launch)
    await bench.engine.launch(launch)
    assert await bench.record(launch) is None
    assert bench.run.lines(mark) == 1
    assert len(bench.told(launch)) == 2


async def stop_of_unknown_is_no_error(bench: EngineBench) -> None:
    """A stop or an acknowledgement that comes late, or twice, does nothing."""
    await bench.engine.stop(bench.epoch, 4_000_000, 1, 1.0, "cancelled")
    await bench.engine.acknowledge(bench.epoch, 4_000_000, 1)
    launch = await bench.launch(bench.run.succeed)
    ended = await bench.event(Exited, launch)
    await bench.stop(launch, 0.0)
    assert not ended.after_stop
    assert not (await bench.ended(launch)).after_stop
    await bench.finish(launch)
    await bench.stop(launch, 0.0)
    await bench.engine.acknowledge(bench.epoch, launch.job, launch.attempt)


async def stop_gives_grace(bench: EngineBench) -> None:
    """A task that obeys SIGTERM has the time to save, and its own exit code is told."""
    mark, saved = bench.path("mark"), bench.path("saved")
    launch = await bench.launch(bench.run.obey(mark, saved))
    await bench.event(Started, launch)
    await bench.until(mark.exists)
    await bench.stop(launch, bench.timeout_s, "preempted")
    await bench.stop(launch, bench.timeout_s, "repeated")
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, True, "preempted")
    assert saved.exists()
    await bench.finish(launch)


async def stop_kills_after_grace(bench: EngineBench) -> None:
    """A task that ignores SIGTERM has its grace, and then is killed."""
    mark = bench.path("mark")
    grace_s = 0.4
    launch = await bench.launch(bench.run.ignore(mark))
    await bench.until(mark.exists)
    began_s = asyncio.get_running_loop().time()
    await bench.stop(launch, grace_s, "cancelled")
    record = await bench.record(launch)
    assert isinstance(record, Running)
    assert record.phase == "stopping"
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 137, 9, True, "cancelled")
    assert asyncio.get_running_loop().time() - began_s >= grace_s * 0.9
    await bench.finish(launch)


async def second_stop_may_hurry(bench: EngineBench) -> None:
    """Of two stop requests, the earlier deadline counts."""
    mark = bench.path("mark")
    launch = await bench.launch(bench.run.ignore(mark))
    await bench.until(mark.exists)
    await bench.stop(launch, 100 * bench.timeout_s, "preempted")
    await bench.stop(launch, 0.0, "cancelled")
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 137, 9, True, "preempted")
    await bench.finish(launch)


async def one_crash_fails_the_gang(bench: EngineBench) -> None:
    """When one task fails the others are stopped, and the failure of that one is told: once, for the gang."""
    marks = bench.path("mark"), bench.path("mark")
    launch = await bench.launch(bench.run.wait(bench.path("never"), mark=marks[0]), bench.run.fail(5))
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 5, None, False, "")
    assert sum(isinstance(event, Exited) for event in bench.told(launch)) == 1
    await bench.finish(launch)


async def failed_start_leaves_nothing(bench: EngineBench) -> None:
    """If one task can't be started, none runs, and the reason is told."""
    launch = await bench.launch_of(bench.run.wait(bench.path("never")), bench.run.succeed)
    missing = bench.path("missing")
    launch = replace(launch, tasks=(launch.tasks[0], replace(launch.tasks[1], workdir=str(missing))))
    await bench.engine.launch(launch)
    failed = await bench.event(StartFailed, launch)
    assert missing.name in failed.reason
    assert bench.told(launch) == [failed]
    ended = await bench.ended(launch)
    assert not ended.started
    assert ended.reason == failed.reason
    await bench.finish(launch)


async def restart_finds_what_runs(bench: EngineBench) -> None:
    """A new controller finds what runs, with its places, and later is told how it ended."""
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate, code=4), bench.run.wait(gate))
    await bench.event(Started, launch)
    await bench.restart()
    record = await bench.record(launch)
    assert isinstance(record, Running)
    assert record.phase == "running"
    assert record.epoch == launch.epoch
    assert [(place.rank, place.node, place.gpus) for place in record.places] == [
        (task.rank, task.node, task.gpus) for task in launch.tasks
    ]
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 4, None, False, "")
    await bench.finish(launch)


async def ends_are_kept_until_acknowledged(bench: EngineBench) -> None:
    """What ends while no controller is there is found by the next, and by the one after; until acknowledged."""
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate, code=6))
    await bench.event(Started, launch)
    await bench.close()
    bench.run.open(gate)
    await bench.open()
    ended = await bench.ended(launch)
    assert (ended.started, ended.exit_code, ended.after_stop) == (True, 6, False)
    await bench.restart()
    assert await bench.record(launch) == ended
    await bench.finish(launch)
    await bench.restart()
    assert await bench.record(launch) is None
    await bench.engine.launch(replace(launch, epoch=bench.epoch))
    assert await bench.record(launch) is None


async def stop_after_restart(bench: EngineBench) -> None:
    """A new controller can stop what an older one has started."""
    mark = bench.path("mark")
    launch = await bench.launch(bench.run.ignore(mark))
    await bench.until(mark.exists)
    await bench.restart()
    await bench.stop(launch, 0.1)
    assert (await bench.event(Exited, launch)).after_stop
    await bench.finish(launch)


async def stale_epoch_is_refused(bench: EngineBench) -> None:
    """A controller that has been replaced can neither launch nor stop nor acknowledge, and can't fence either."""
    mark, gate = bench.path("mark"), bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate))
    bench.epoch += 1
    await bench.engine.fence(bench.epoch)
    other = await bench.launch_of(bench.run.wait(gate, mark=mark))
    await raises(StaleEpoch, bench.engine.launch(replace(other, epoch=bench.epoch - 1)))
    await raises(StaleEpoch, bench.engine.stop(bench.epoch - 1, launch.job, launch.attempt, 0.0, "cancelled"))
    await raises(StaleEpoch, bench.engine.fence(bench.epoch - 1))
    assert await bench.record(other) is None
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, False, "")
    await raises(StaleEpoch, bench.engine.acknowledge(bench.epoch - 1, launch.job, launch.attempt))
    assert isinstance(await bench.record(launch), Ended)
    assert not mark.exists()
    await bench.finish(launch)


async def stale_attempt_is_refused(bench: EngineBench) -> None:
    """An attempt older than one that is known never starts, even if the newer one is over and acknowledged."""
    mark = bench.path("mark")
    launch = await bench.launch(bench.run.succeed, attempt=3)
    await bench.event(Exited, launch)
    older = await bench.launch_of(bench.run.wait(mark, mark=mark), job=launch.job, attempt=2)
    await raises(StaleAttempt, bench.engine.launch(older))
    await bench.finish(launch)
    await raises(StaleAttempt, bench.engine.launch(older))
    await bench.restart()
    await raises(StaleAttempt, bench.engine.launch(replace(older, epoch=bench.epoch)))
    assert not mark.exists()
    newer = await bench.launch(bench.run.succeed, job=launch.job, attempt=4)
    await bench.event(Exited, newer)
    await bench.finish(newer)


async def nothing_runs_twice(bench: EngineBench) -> None:
    """A second live attempt of a job, or a second one on a slot, is refused and leaves nothing; also after a restart."""
    mark, gate = bench.path("mark"), bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate))
    for _ in range(2):
        again = await bench.launch_of(bench.run.wait(gate, mark=mark), job=launch.job, attempt=2)
        beside = await bench.launch_of(bench.run.wait(gate, mark=mark))
        for refused in (again, beside):
            await raises(EngineInvariant, bench.engine.launch(refused))
            assert await bench.record(refused) is None
        await bench.restart()
    await raises(EngineInvariant, bench.engine.acknowledge(bench.epoch, launch.job, launch.attempt))
    bench.run.open(gate)
    await bench.ended(launch)
    await bench.finish(launch)
    assert not mark.exists()


async def nonsense_is_refused(bench: EngineBench) -> None:
    """A gang that no world could start is the scheduler's error, and leaves nothing."""
    good = await bench.launch_of(bench.run.succeed)
    task = good.tasks[0]
    slots = {node.name: node.gpus for node in await bench.engine.inventory()}
    for tasks in (
        (),
        (replace(task, rank=1),),
        (replace(task, node="no such node"),),
        (replace(task, gpus=(slots[task.node],)),),
        (replace(task, gpus=(-1,)),),
        (replace(task, gpus=(0, 0)),),
        (task, replace(task, rank=1)),
    ):
        await raises(EngineInvariant, bench.engine.launch(replace(good, tasks=tasks)))
    assert await bench.record(good) is None
    with contextlib.suppress(ValueError):
        await bench.engine.stop(bench.epoch, good.job, 1, float("nan"), "cancelled")
        raise AssertionError("a grace that is not a number was taken")


async def raises(kind: type[Exception], call: Awaitable[object]) -> None:
    """Assert that a call is refused."""
    try:
        await call
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


Check: TypeAlias = Callable[[EngineBench], Awaitable[None]]

ENGINE_CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        completes,
        tells_exit_code,
        launch_is_idempotent,
        stop_of_unknown_is_no_error,
        stop_gives_grace,
        stop_kills_after_grace,
        second_stop_may_hurry,
        one_crash_fails_the_gang,
        failed_start_leaves_nothing,
        restart_finds_what_runs,
        ends_are_kept_until_acknowledged,
        stop_after_restart,
        stale_epoch_is_refused,
        stale_attempt_is_refused,
        nothing_runs_twice,
        nonsense_is_refused,
    )
}


async def run_engine_check(
    check: Check, make: Make, *, scratch: Path, commands: Commands | None = None, timeout_s: float = 30.0
) -> None:
    """Run one check in a fresh world. `scratch` is an empty directory; `timeout_s` bounds each wait, in seconds."""
    bench = EngineBench(make, scratch, commands, timeout_s)
    await bench.open()
    try:
        await check(bench)
    finally:
        await bench.close()


async def check_engine(make: Make, *, scratch: Path, commands: Commands | None = None, timeout_s: float = 30.0) -> None:
    """Run all of `ENGINE_CHECKS` in one world; nothing may be left of one when the next begins."""
    bench = EngineBench(make, scratch, commands, timeout_s)
    await bench.open()
    try:
        for name, check in ENGINE_CHECKS.items():
            await check(bench)
            left = await bench.engine.snapshot()
            assert left == (), f"{name} left {left}"
    finally:
        await bench.close()
