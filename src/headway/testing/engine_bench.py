"""What the conformance suite of engines stands on: a world with an engine, as a controller sees it, and what its tasks run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar

from headway.engines.base import Ended, Engine, EngineEvent, Exited, Launch, Running, Started, StartFailed, TaskLaunch

__all__ = ["Commands", "EngineBench", "Make", "raises"]

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

    def devices(self, mark: Path, gate: Path) -> str:
        """Write the devices that the task was given, parted by commas, into the mark; end once the gate is open."""
        return f"echo \"${{HEADWAY_SLOTS:-$CUDA_VISIBLE_DEVICES}}\" > '{mark}'; {self.wait(gate)}"

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


async def raises(kind: type[Exception], call: Awaitable[object]) -> None:
    """Assert that a call is refused."""
    try:
        await call
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
