"""One controller's process in a simulated world: it has a journal, an engine, and a way to die."""

from __future__ import annotations

import asyncio
import io
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from headway.core.codec import decode, encode
from headway.core.events import EventBatch
from headway.core.policy import Policy
from headway.core.round import Brains
from headway.engines.base import EngineError
from headway.policies.registry import choose
from headway.runtime.controller import Controller
from headway.runtime.journal import Damage, Journal, JournalError, SnapshotRow
from headway.runtime.lease import FencedError
from headway.runtime.rounds import Pace
from headway.testing.live_scenarios import Death
from headway.testing.simulated import Died, SimulatedEngine
from headway.testing.virtual import Gate, pausable

if TYPE_CHECKING:
    from headway.testing.live_run import LiveRun

PACE = Pace(think_us_max=25_000_000)


@cache
def _policy(spec: str) -> Policy:
    """A policy keeps nothing between rounds, so all runs may share it; to look one up takes longer than many a run."""
    return choose(spec).policy


class MemoryJournal(Journal):
    """A journal whose segments are in memory, shared by those who write it, as is the epoch of its lease.

    `at_append` is asked before a batch is written and after, and may raise.
    """

    def __init__(
        self, segments: list[bytes], lease: list[int] | None = None, at_append: Callable[[str], None] | None = None
    ) -> None:
        self._segments, self._lease = segments, [0] if lease is None else lease
        self._at_append = at_append or (lambda when: None)
        self.damage: Damage | None = None
        self.lost = ""
        self.epoch = self.events = self.kept_events = 0
        self._next = 1

    def lead(self) -> int:
        if not self.epoch:
            self._lease[0] += 1
            self.epoch = self._lease[0]
        return self.epoch

    def snapshots(self) -> list[SnapshotRow]:
        return []

    def read(self, after: int = 0, events: int = 0) -> Iterator[EventBatch]:
        while self._next <= len(self._segments):
            body = self._segments[self._next - 1]
            self._next += 1
            yield next(iter(decode(io.BytesIO(body))))

    def append(self, batch: EventBatch) -> None:
        self._at_append("before append")
        self.check()
        if self._lease[0] != self.epoch:
            raise FencedError(f"the lease of epoch {self.epoch} has gone to another controller")
        assert len(self._segments) < self._next, "two controllers have written under one lease"
        self._segments.append(encode(batch))
        self._next += 1
        self._at_append("after append")

    def close(self) -> None:
        """Nothing is held open."""


class Process:
    """One controller's process."""

    def __init__(self, run: LiveRun, number: int, death: Death) -> None:
        self.run, self.number, self.death = run, number, death
        self.gate = Gate()
        self.dead = self.ready = False
        self._counts: Counter[str] = Counter()
        self.link = run.link()
        self.engine = SimulatedEngine(run.machine, self.link, self._at)
        journal = run.journal(self._at)
        keep = _policy("fifo-backfill")
        brains = Brains(_policy(run.scenario.policy), keep, keep)
        pace = replace(PACE, meanwhile=run.scenario.meanwhile)
        self.controller = Controller(journal, self.engine, brains, pace=pace, seed=run.scenario.seed)
        self.task = asyncio.create_task(pausable(self._main(), self.gate), name=f"controller-{number}")
        if not death.where and death.after_s:
            asyncio.get_running_loop().call_later(death.after_s, self._die_of_time)

    async def _main(self) -> None:
        await self.controller.start()
        self.ready = True
        await self.controller.run()

    def _at(self, when: str) -> None:
        """A point at which the process may die."""
        if self.dead:
            raise Died
        death = self.death
        point = "after append" if death.where == "lies: written" else death.where
        point = "before append" if point == "lies: not written" else point
        if when != point or not self.run.stormy:
            return
        self._counts[when] += 1
        if self._counts[when] != death.count:
            return
        self.run.machine.note(f"controller {self.number} dies: {death.where}, the {death.count}th")
        if death.where.startswith("lies"):
            raise JournalError(f"the journal {death.where}")
        self.dead = True
        raise Died

    def _die_of_time(self) -> None:
        if self.run.stormy and not self.task.done():
            self.run.machine.note(f"controller {self.number} is killed")
            self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        self.dead = True
        self.gate.open()
        self.task.cancel()

    async def over(self) -> str:
        """Wait for the end; how it was."""
        try:
            await asyncio.wait([self.task])
        finally:
            self.engine.cut()
            pump = self.controller._pump
            if pump is not None:
                pump.cancel()
        if self.task.cancelled():
            return "killed"
        error = self.task.exception()
        if error is None:
            return "stopped"
        if not isinstance(error, (Died, FencedError, JournalError, EngineError)):
            lines = "".join(traceback.format_exception(error)[-4:])
            self.run.machine.wrong(f"controller {self.number} ended with {type(error).__name__}: {error}\n{lines}")
        return f"{type(error).__name__}: {error}"
