"""A machine of one's own for the controller: an engine in virtual time that checks what it is asked, and the clock that goes
with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.columns import NEVER, EventKind
from headway.core.events import EventBatch, concatenate
from headway.core.model import JobSpec
from headway.core.round import Brains
from headway.engines.base import (
    Ended,
    EngineError,
    EngineEvent,
    EngineInvariant,
    EventStream,
    Launch,
    NodeInfo,
    Place,
    Record,
    Running,
    StaleAttempt,
    StaleEpoch,
    Started,
    ended_event,
)
from headway.policies.registry import choose
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller
from headway.runtime.journal import Journal
from headway.runtime.rounds import Inline, Pace

US = 1_000_000
STEPS_MAX = 100_000


class VirtualClock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.us = 0

    def now_us(self) -> int:
        return self.us


@dataclass
class Attempt:
    """A gang in the fake world."""

    launch: Launch
    since_us: int
    left_us: int
    ends_us: int
    stop_reason: str | None = None
    ended: Ended | None = None


@dataclass
class FakeEngine:
    """Runs gangs for as long as `work_us` says (0 for a job that it does not name). Its memory outlives controllers, as a
    machine's does.

    A stopped gang ends after `save_us` and keeps its progress; from its second attempt on it first restores for
    `restore_us`. `exit_codes` are those of a job's attempts, one after the other; then 0.
    """

    clock: VirtualClock
    nodes: tuple[NodeInfo, ...]
    work_us: dict[int, int] = field(default_factory=dict)
    exit_codes: dict[int, list[int]] = field(default_factory=dict)
    save_us: int = 0
    restore_us: int = 0
    epoch: int = -1
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    done_us: dict[int, int] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    before_launch: Callable[[Launch], None] = lambda launch: None
    stream: EventStream = field(default_factory=EventStream)

    async def start(self) -> None:
        self.stream = EventStream()

    async def close(self) -> None:
        self.stream.close()

    async def inventory(self) -> tuple[NodeInfo, ...]:
        return self.nodes

    async def fence(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise StaleEpoch(f"{epoch} < {self.epoch}")
        self.epoch = epoch

    async def launch(self, launch: Launch) -> None:
        await self.fence(launch.epoch)
        self.before_launch(launch)
        newest = max([number for job, number in self.attempts if job == launch.job] + [self.acknowledged.get(launch.job, 0)])
        if launch.attempt < newest:
            raise StaleAttempt(f"job {launch.job}: attempt {launch.attempt} is older than attempt {newest}")
        if launch.attempt == newest:
            return
        taken = {(task.node, gpu) for other in self.live() for task in other.launch.tasks for gpu in task.gpus}
        if any(other.launch.job == launch.job for other in self.live()):
            raise EngineInvariant("a second live attempt")
        if taken & {(task.node, gpu) for task in launch.tasks for gpu in task.gpus}:
            raise EngineInvariant("a slot is held")
        self.launches.append(launch)
        left = self.work_us.get(launch.job, 0) - self.done_us.get(launch.job, 0)
        restore = self.restore_us if launch.attempt > 1 else 0
        now = self.clock.us
        self.attempts[launch.job, launch.attempt] = Attempt(launch, now + restore, left, now + restore + left)
        self.stream.put(Started(launch.job, launch.attempt))

    async def stop(self, epoch: int, job: int, attempt: int, grace_s: float, reason: str) -> None:
        await self.fence(epoch)
        found = self.attempts.get((job, attempt))
        if found is None or found.ended is not None or found.stop_reason is not None:
            return
        self.done_us[job] = self.done_us.get(job, 0) + max(0, self.clock.us - found.since_us)
        found.stop_reason, found.ends_us = reason, self.clock.us + self.save_us

    async def snapshot(self) -> tuple[Record, ...]:
        records: list[Record] = []
        for (job, number), attempt in sorted(self.attempts.items()):
            places = tuple(Place(task.rank, task.node, task.gpus) for task in attempt.launch.tasks)
            phase: Any = "stopping" if attempt.stop_reason is not None else "running"
            records.append(attempt.ended or Running(job, number, attempt.launch.epoch, phase, places))
        return tuple(records)

    async def acknowledge(self, epoch: int, job: int, attempt: int) -> None:
        await self.fence(epoch)
        if (job, attempt) in self.attempts:
            if self.attempts[job, attempt].ended is None:
                raise EngineInvariant("still live")
            del self.attempts[job, attempt]
            self.acknowledged[job] = attempt

    def events(self) -> AsyncIterator[EngineEvent]:
        return self.stream

    def log_path(self, job: int, attempt: int, rank: int) -> Path:
        return Path("/nonexistent")

    # -- the world's side -----------------------------------------------------------------------------------------
    def live(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.ended is None]

    def next_us(self) -> int:
        return min((attempt.ends_us for attempt in self.live()), default=NEVER)

    def advance(self) -> None:
        """Let what is due happen; tell completions before stops, each by job number."""
        due = [attempt for attempt in self.live() if attempt.ends_us <= self.clock.us]
        for attempt in sorted(due, key=lambda a: (a.stop_reason is not None, a.launch.job)):
            job, number = attempt.launch.job, attempt.launch.attempt
            codes = self.exit_codes.get(job, [])
            code = codes[number - 1] if number <= len(codes) and attempt.stop_reason is None else 0
            reason = attempt.stop_reason or ""
            attempt.ended = Ended(job, number, attempt.launch.epoch, True, code, None, attempt.stop_reason is not None, reason)
            self.stream.put(ended_event(attempt.ended))


def fake_nodes(nodes: int = 2, gpus: int = 2) -> tuple[NodeInfo, ...]:
    """Nodes with the cpus and memory of `NODESxGPUS` in the simulator."""
    return tuple(NodeInfo(f"n{i}", gpus, "gpu", 8000 * gpus, 64 * 10**9 * gpus) for i in range(nodes))


def brains_of(policy: str) -> Brains:
    keep = choose("fifo-backfill").policy
    return Brains(choose(policy).policy, keep, keep)


class World:
    """A fake machine and the controllers that come and go on it, over one journal file."""

    def __init__(self, path: Path, policy: str = "fifo", *, nodes: int = 2, gpus: int = 2, pace: Pace | None = None) -> None:
        self.path, self.policy = path, policy
        self.pace = pace or Pace(gap_us=0)
        self.clock = VirtualClock()
        self.engine = FakeEngine(self.clock, fake_nodes(nodes, gpus))
        self.controller: Controller

    async def start(self) -> Controller:
        journal = Journal(self.path)
        brains = brains_of(self.policy)
        self.controller = Controller(journal, self.engine, brains, pace=self.pace, clock=self.clock, worker=Inline())
        await self.controller.start()
        await self.drain()
        return self.controller

    async def drain(self) -> int:
        """Take steps until nothing more comes at this instant; when the controller wants to be called again."""
        for _ in range(STEPS_MAX):
            for _ in range(3):
                await asyncio.sleep(0)
            due = await self.controller.step()
            for _ in range(3):
                await asyncio.sleep(0)
            if not self.controller._inbox and due > self.clock.us:
                return due
        raise AssertionError("the controller never comes to rest")

    async def submit(self, spec: JobSpec, public_id: str = "") -> JobRecord:
        task = asyncio.ensure_future(self.controller.submit(spec, public_id))
        await self.drain()
        return (await task)[0]

    async def cancel(self, public_id: str) -> JobRecord:
        task = asyncio.ensure_future(self.controller.cancel(public_id))
        await self.drain()
        return await task

    async def to(self, until_us: int, arrivals: Sequence[tuple[int, JobSpec]] = ()) -> None:
        """Let time pass up to `until_us`, with jobs handed in on the way."""
        left = list(arrivals)
        due = await self.drain()
        while True:
            now = min(self.engine.next_us(), due, left[0][0] if left else NEVER)
            if now > until_us:
                break
            self.clock.us = max(now, self.clock.us)
            self.engine.advance()
            answers = []
            while left and left[0][0] <= self.clock.us:
                answers.append(asyncio.ensure_future(self.controller.submit(left.pop(0)[1])))
            due = await self.drain()
            for answer in answers:
                await answer
        self.clock.us = max(self.clock.us, until_us)

    def journal(self) -> EventBatch:
        """Everything that has been journalled."""
        reader = Journal(self.path)
        found = concatenate(list(reader.read()))
        reader.close()
        return found

    def kinds(self, number: int) -> list[str]:
        """What the journal says of one job, in short."""
        batch = self.journal()
        of_job = (
            (batch.records[:, 2] == number)
            & (batch.records[:, 1] >= EventKind.SUBMITTED)
            & (batch.records[:, 1] != EventKind.WHY)
        )
        return [EventKind(int(kind)).name for kind in batch.records[of_job, 1]]


class CrashError(EngineError):
    """Not raised by any engine: where a test lets the controller die."""


def job(name: str = "job", gpus: int = 1, workers: int = 1, **more: Any) -> JobSpec:
    """A job of equal workers."""
    from headway.core.model import GpuDemand, Parallelism, Resources

    resources = Resources(gpu_alternatives=(GpuDemand(milli=1000 * gpus),))
    return JobSpec(name=name, run="true", workdir="/tmp", resources=resources, parallelism=Parallelism(data=workers), **more)
