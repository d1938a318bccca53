"""The simulated engine: a controller's connection to a `Machine`, with every fault that a network and a process can have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.plan import Capabilities
from headway.engines.base import EngineError, EngineEvent, EngineInvariant, EventStream, Launch, NodeInfo, Record
from headway.testing.engine_checks import Commands
from headway.testing.machine import Machine
from headway.testing.script import Script


class Died(BaseException):
    """The controller's process is gone; nothing may catch this."""


@dataclass
class Link:
    """How well the two ends hear each other. All off: at once, in order, once."""

    random: random.Random = field(default_factory=random.Random)
    lost: float = 0.0
    """Share of the reports that never come."""
    repeated: float = 0.0
    late_s: float = 0.0
    """A report comes up to so much later, each by a time of its own: so also in another order."""
    call_s: float = 0.0
    """A call takes up to so long on the way, and its answer on the way back."""
    broken: float = 0.0
    """Share of the calls that fail, and do nothing."""

    def delays_s(self) -> list[float]:
        """How much later the copies of one report come."""
        if self.random.random() < self.lost:
            return []
        copies = 2 if self.random.random() < self.repeated else 1
        return [self.random.uniform(0.0, self.late_s) if self.late_s else 0.0 for _ in range(copies)]

    def quiet(self) -> None:
        """No more faults."""
        self.lost = self.repeated = self.late_s = self.call_s = self.broken = 0.0


class SimulatedEngine:
    """One controller's engine. `at_call` is asked before and after each call takes effect, and may raise `Died`."""

    def __init__(self, machine: Machine, link: Link | None = None, at_call: Callable[[str], None] | None = None) -> None:
        self.machine, self.link = machine, link or Link()
        self._at_call = at_call or (lambda when: None)
        self._stream = EventStream()
        self._open = False

    def capabilities(self) -> Capabilities:
        return Capabilities(fractional_gpus=False)

    async def start(self) -> None:
        await self._before("start", fails=False)
        self._open = True
        self.machine.listeners.append(self._hear)

    async def close(self) -> None:
        self.cut()
        self._stream.close()

    def cut(self) -> None:
        """The connection is gone; nobody is told."""
        if self._open:
            self._open = False
            self.machine.listeners.remove(self._hear)

    async def inventory(self) -> tuple[NodeInfo, ...]:
        await self._before("inventory")
        return self.machine.inventory()

    async def fence(self, epoch: int) -> None:
        await self._before("fence", fails=False)
        self.machine.enter(epoch)
        await self._after("fence")

    async def launch(self, launch: Launch) -> None:
        try:
            await self._before("launch")
        except EngineError:
            self.machine.failed.setdefault(launch.name, set()).add(
                launch.attempt
            )  # To a controller, a launch that is refused is a failed start.
            raise
        try:
            self.machine.launch(launch)
        except EngineInvariant as error:
            if not self.machine.lossy:
                self.machine.wrong(f"the scheduler has made an error: {error}")
            raise
        await self._after("launch")

    async def stop(self, epoch: int, job: int, attempt: int, grace_s: float, reason: str) -> None:
        self.machine.excuse(job, attempt)
        await self._before("stop")
        self.machine.excuse(job, attempt)
        self.machine.stop(epoch, job, attempt, grace_s, reason)
        await self._after("stop")

    async def snapshot(self) -> tuple[Record, ...]:
        await self._before("snapshot")
        records = self.machine.snapshot()
        await self._after("snapshot")
        return records

    async def acknowledge(self, epoch: int, job: int, attempt: int) -> None:
        await self._before("acknowledge")
        self.machine.acknowledge(epoch, job, attempt)
        await self._after("acknowledge")

    def events(self) -> AsyncIterator[EngineEvent]:
        return self._stream

    def log_path(self, job: int, attempt: int, rank: int) -> Path:
        return Path("/nonexistent", str(job), str(attempt), f"{rank}.log")

    async def _before(self, call: str, *, fails: bool = True) -> None:
        self._at_call(f"before {call}")
        await self._wait()
        if fails and self.link.broken and self.link.random.random() < self.link.broken:
            raise EngineError(f"{call}: no connection")
        self._at_call(f"sent {call}")

    async def _after(self, call: str) -> None:
        await self._wait()
        self._at_call(f"after {call}")

    async def _wait(self) -> None:
        if self.link.call_s:
            await asyncio.sleep(self.link.random.uniform(0.0, self.link.call_s))

    def _hear(self, event: EngineEvent) -> None:
        for delay_s in self.link.delays_s():
            if delay_s:
                asyncio.get_running_loop().call_later(delay_s, self._stream.put, event)
            else:
                self._stream.put(event)


class SimulatedCommands(Commands):
    """What the conformance suite's tasks run on a `Machine`."""

    succeed = Script().text()

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def fail(self, code: int) -> str:
        return Script(codes=(code,)).text()

    def die(self, number: int) -> str:
        return Script(signal=number).text()

    def wait(self, gate: Path, code: int = 0, mark: Path | None = None) -> str:
        return Script(gate=str(gate), codes=(code,), mark=str(mark) if mark else "").text()

    def devices(self, mark: Path, gate: Path) -> str:
        return Script(gate=str(gate), devices=str(mark)).text()

    def obey(self, mark: Path, saved: Path) -> str:
        return Script(gate="never", mark=str(mark), saved=str(saved), save_s=0.2).text()

    def ignore(self, mark: Path) -> str:
        return Script(gate="never", mark=str(mark), ignores_term=True).text()

    def open(self, gate: Path) -> None:
        self._machine.open(str(gate))
