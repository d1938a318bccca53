"""One run of the live controller under faults: controllers that die, are paused and replaced, owners who ask again, and what
must hold at last."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

from headway.core.columns import Phase, Reason
from headway.core.errors import UserError
from headway.core.state import State
from headway.runtime.board import JobRecord
from headway.runtime.intake import ConflictError, NoSuchJobError
from headway.runtime.journal import Journal
from headway.testing.invariants import verify
from headway.testing.live_process import MemoryJournal, Process
from headway.testing.live_scenarios import STORMS_S, Asked, Death, LiveScenario, NodeFault, Owned, Pause, live_scenario
from headway.testing.machine import Machine
from headway.testing.simulated import Link
from headway.testing.virtual import US, VirtualLoop, now_us, run_virtual

ENDS_S_MAX = 6000.0
"""So long after the start every job must have ended (virtual seconds)."""
ASK_S = 5.0
"""So long an owner waits for an answer before he asks again."""
AGAIN_S = 0.7
LOOK_S = 2.0
REST_S = 70.0
"""After the last job's end, for what is still on its way: two rounds of looking for lost reports."""
TRACE_SHOWN = 60
EPOCH_OF_WALL = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Outcome:
    """What a run came to. `wrongs`: what must never be, and was."""

    scenario: LiveScenario
    wrongs: list[str]
    ends: dict[str, str]
    trace: list[str]
    controllers: int
    launches: int
    virtual_s: float

    def __str__(self) -> str:
        what = [str(self.scenario), *(f"WRONG {wrong}" for wrong in self.wrongs)]
        return "\n".join([*what, f"the last {TRACE_SHOWN} lines of the trace:", *self.trace[-TRACE_SHOWN:]])


class LiveRun:
    """The world, the controllers of one scenario, and the owners of its jobs."""

    def __init__(self, scenario: LiveScenario) -> None:
        self.scenario = scenario
        self.segments: list[bytes] = []
        self.lease = [0]
        self.random = random.Random(scenario.seed + 1)
        self.machine = Machine(scenario.nodes, presume_s=scenario.presume_s)
        self.processes: list[Process] = []
        self.current: Process
        self.stormy = True
        self.lossy = False
        self.ends: dict[str, JobRecord] = {}
        self.cancel_asked: set[str] = set()
        self.limited: set[str] = set()
        """Jobs whose owners have asked for a time limit."""
        self.boots, self.boot_us, self.wall_step_s = 1, 0, 0.0
        self._tasks: list[asyncio.Task[None]] = []

    # -- what the processes get -----------------------------------------------------------------------------------
    def link(self) -> Link:
        """A new connection to the engine."""
        s = self.scenario
        link = Link(self.random, s.lost, s.repeated, s.late_s, s.call_s, s.broken)
        if not self.stormy:
            link.quiet()
        return link

    def journal(self, at_append: Callable[[str], None]) -> Journal:
        """The journal, opened anew."""
        return MemoryJournal(self.segments, self.lease, at_append)

    # -- controllers come and go ----------------------------------------------------------------------------------
    def _start(self) -> Process:
        number = len(self.processes)
        deaths = self.scenario.deaths
        self.machine.note(f"controller {number} starts")
        self.current = Process(self, number, deaths[number] if number < len(deaths) and self.stormy else Death(restart_s=0.1))
        self.processes.append(self.current)
        self._do(self._watch(self.current))
        return self.current

    async def _watch(self, process: Process) -> None:
        """Like systemd: when the newest controller has ended, another one is started."""
        how = await process.over()
        self.machine.note(f"controller {process.number} has ended: {how}")
        if process is not self.current:
            return
        if how.startswith("FencedError") and not self.lossy:
            self.machine.wrong(f"controller {process.number} is the newest, and gives up: {how}")
        await asyncio.sleep(process.death.restart_s if process.death.restart_s else 0.001)
        if process is not self.current:
            return
        if all(one.task.done() for one in self.processes):
            if process.death.tail_lost and how.startswith("Died"):
                self._lose_tail(process.death.tail_lost)
            if self.scenario.reboots:
                self.boots, self.boot_us = self.boots + 1, now_us()
        self._start()

    def _lose_tail(self, count: int) -> None:
        self.lossy = self.machine.lossy = True
        keep = max(1, len(self.segments) - count)
        self.machine.note(f"the journal loses {len(self.segments) - keep} segments")
        del self.segments[keep:]

    async def _pause(self, pause: Pause) -> None:
        await asyncio.sleep(pause.at_s)
        old = self.current
        if old.task.done() or not self.stormy:
            return
        self.machine.note(f"controller {old.number} is paused")
        old.gate.close()
        asyncio.get_running_loop().call_later(pause.for_s, self._wake, old)
        await asyncio.sleep(pause.other_s)
        if self.current is old and self.stormy:
            self._start()

    def _wake(self, process: Process) -> None:
        if process.gate.closed:
            self.machine.note(f"controller {process.number} goes on")
            process.gate.open()

    async def _node_fault(self, fault: NodeFault) -> None:
        await asyncio.sleep(fault.at_s)
        if self.stormy:
            (self.machine.power_off if fault.power else self.machine.cut_off)(fault.node, fault.notice_s)
            await asyncio.sleep(fault.for_s)
            self.machine.heal(fault.node)

    def _calm(self) -> None:
        """The faults are over."""
        self.stormy = False
        self.machine.note("the faults are over")
        for node in self.machine.nodes:
            self.machine.heal(node)
        for process in self.processes:
            process.link.quiet()
            self._wake(process)

    # -- owners ---------------------------------------------------------------------------------------------------
    async def _owner(self, job: Owned) -> None:
        """Hands his job in until he has an answer, asks for this and that, cancels it perhaps, and looks until it has ended."""
        await asyncio.sleep(job.at_s)
        await self._hand_in(job)
        asking = asyncio.ensure_future(self._ask_all(job))
        if job.cancel_s is not None:
            await asyncio.sleep(max(job.cancel_s - now_us() / US, 0))
            await self._cancel(job)
        while True:
            found = self._find(job)
            if found is None:
                await self._hand_in(job)
            elif found.ended and asking.done():
                await asking
                self.ends[job.id] = found
                return
            elif found.held and asking.done():
                await self._ask_for(job, Asked(0.0, "release"))  # the journal has lost that he did
            await asyncio.sleep(LOOK_S)

    async def _ask_all(self, job: Owned) -> None:
        for asked in job.asks:
            await asyncio.sleep(max(asked.at_s - now_us() / US, 0))
            await self._ask_for(job, asked)

    async def _ask_for(self, job: Owned, asked: Asked) -> None:
        """Asks until there is an answer; a job that is held and waits must not be launched until he asks for its release."""
        if asked.verb == "update" and asked.update.time_limit_us is not None:
            self.limited.add(job.id)
        self.machine.held.discard(job.id)
        while self._find(job) is not None:
            controller = self.current.controller
            try:
                if asked.verb == "update":
                    await asyncio.wait_for(controller.update(job.id, asked.update), ASK_S)
                    return
                if asked.verb == "requeue":
                    verb = controller.requeue_many([job.id])
                else:
                    verb = controller.hold_many([job.id], asked.verb == "hold")
                (answer,) = await asyncio.wait_for(verb, ASK_S)
                if isinstance(answer, JobRecord):
                    self.machine.note(f"the owner of {job.id} has been told: {asked.verb}")
                    if asked.verb == "hold" and controller.phase(answer) == Phase.QUEUED:
                        self.machine.held.add(job.id)
                return
            except (UserError, TimeoutError):
                if asked.verb == "update":
                    return  # it may be that he may not, or that nobody has answered
                await asyncio.sleep(AGAIN_S)

    async def _hand_in(self, job: Owned) -> None:
        while True:
            try:
                record, _ = await asyncio.wait_for(self.current.controller.submit(job.spec, job.id), ASK_S)
                if record.spec and record.name != job.spec.name:
                    self.machine.wrong(f"the owner of {job.id} is given {record.name}")
                return
            except ConflictError as error:
                self.machine.wrong(f"{job.id} can't be handed in again: {error}")
                return
            except (UserError, TimeoutError):
                await asyncio.sleep(AGAIN_S)

    async def _cancel(self, job: Owned) -> None:
        self.cancel_asked.add(job.id)
        while True:
            try:
                record = await asyncio.wait_for(self.current.controller.cancel(job.id), ASK_S)
            except NoSuchJobError:
                if self._find(job) is None:
                    await self._hand_in(job)
            except (UserError, TimeoutError):
                await asyncio.sleep(AGAIN_S)
            else:
                if not record.ended or record.phase == Phase.CANCELLED:
                    self.machine.cancelled.add(job.id)
                    self.machine.note(f"the owner of {job.id} has been told that it is cancelled")
                return

    def _find(self, job: Owned) -> JobRecord | None:
        """What the newest controller says of a job; None if the journal has lost it."""
        process = self.current
        while not process.ready and process.number:
            process = self.processes[process.number - 1]
        if not process.ready:
            return self.ends.get(job.id) or _UNKNOWN
        try:
            return process.controller.find(job.id)
        except NoSuchJobError:
            if process is not self.current:
                return _UNKNOWN
            if not self.lossy:
                self.machine.wrong(f"{job.id} was taken in, and is lost")
            return None

    # -- the whole ------------------------------------------------------------------------------------------------
    async def main(self) -> Outcome:
        """Run to the end, and judge."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if self.scenario.think_s:
            loop.think_s = lambda: self.random.uniform(0.0, self.scenario.think_s) if self.stormy else 0.0
        for at_s, step_s in self.scenario.wall_steps:
            loop.call_later(at_s, self._step_wall, step_s)
        loop.call_later(STORMS_S, self._calm)
        self._start()
        for pause in self.scenario.pauses:
            self._do(self._pause(pause))
        for fault in self.scenario.node_faults:
            self._do(self._node_fault(fault))
        owners = [asyncio.ensure_future(self._owner(job)) for job in self.scenario.jobs]
        _, late = await asyncio.wait(owners, timeout=ENDS_S_MAX)
        for owner in owners:
            if owner.done() and not owner.cancelled() and (error := owner.exception()) is not None:
                raise error
        if self.stormy:
            self._calm()
        if late:
            self._say_who_is_late()
        await asyncio.sleep(REST_S)
        self._judge()
        await self._close()
        ends = {job: record.phase.name for job, record in self.ends.items()}
        machine = self.machine
        return Outcome(
            self.scenario, machine.wrongs, ends, machine.trace, len(self.processes), machine.launched, now_us() / US
        )  # fmt: skip

    def _step_wall(self, seconds: float) -> None:
        self.wall_step_s += seconds

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.ensure_future(what))

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self.processes:
            process.kill()
            with suppress(BaseException):
                await process.task

    def _say_who_is_late(self) -> None:
        for job in self.scenario.jobs:
            if job.id not in self.ends:
                found = self._find(job)
                state = found and self.current.controller.live_view(found)
                self.machine.wrong(f"{job.id} has not ended after {ENDS_S_MAX:g} s: {state or found}")

    def _judge(self) -> None:
        """What must hold at last."""
        machine, controller = self.machine, self.current.controller
        for job in self.scenario.jobs:
            if job.id not in self.ends:
                continue
            try:
                self._judge_end(job, controller.find(job.id))
            except NoSuchJobError:
                if not self.lossy:
                    machine.wrong(f"{job.id} was taken in, and is lost")
        if left := machine.snapshot():
            machine.wrong(f"the engine still has {left}")
        if not self.current.ready:
            machine.wrong("the last controller is not ready")
            return
        state = controller.state
        if live := len(state.live_rows()):
            machine.wrong(f"{live} jobs are live in the tables")
        try:
            verify(state)
        except AssertionError as error:
            machine.wrong(f"the tables: {error}")
        again = State()
        for batch in MemoryJournal(self.segments).read():
            again.apply(batch)
        if again.digest() != state.digest():
            machine.wrong("the journal, replayed, gives another state")

    def _judge_end(self, job: Owned, record: JobRecord) -> None:
        """Whether the job has ended as the world says that it should."""
        machine, name = self.machine, job.id
        machine.note(f"{name}: {record.phase.name}, {record.reason.word}, attempts {record.attempt}, {record.message}")
        failures, may_fail = machine.failed.get(name, set()), job.spec.retry_max
        failed, must_count = len(failures), len(failures - machine.asked.get(name, set()))
        if record.phase == Phase.COMPLETED and name not in machine.completed:
            machine.wrong(f"{name} counts as completed, and is not")
        elif record.phase == Phase.CANCELLED and name not in self.cancel_asked:
            machine.wrong(f"{name} is cancelled, and nobody has asked for that")
        elif record.phase == Phase.REJECTED:
            machine.wrong(f"{name} is rejected: {record.message}")
        elif record.phase == Phase.FAILED and record.reason == Reason.TIME_LIMIT:
            if job.spec.time_limit_s is None and name not in self.limited:
                machine.wrong(f"{name} has no time limit, and was stopped by it")
        elif record.phase == Phase.FAILED and failed <= may_fail and not self.lossy:
            machine.wrong(f"{name} counts as failed after {failed} failures, and may fail {may_fail} times")
        if name in machine.completed and record.phase != Phase.COMPLETED and name not in self.cancel_asked and not self.lossy:
            machine.wrong(f"{name} had completed, and counts as {record.phase.name}")
        if must_count > may_fail + 1 and not self.lossy:
            machine.wrong(f"{name} has failed {failed} times, and may fail {may_fail} times")


_UNKNOWN = JobRecord(-1, "", "", "", "", "", 0)


def run_live(scenario: LiveScenario) -> Outcome:
    """Run a scenario; the outcome says what went wrong."""
    run = LiveRun(scenario)
    clock = "headway.runtime.clock"
    with ExitStack() as patches:
        patches.enter_context(mock.patch(f"{clock}.boottime_us", lambda: now_us() - run.boot_us))
        patches.enter_context(mock.patch(f"{clock}.read_boot_id", lambda: f"boot-{run.boots}"))
        wall = lambda: EPOCH_OF_WALL + timedelta(microseconds=now_us(), seconds=run.wall_step_s)  # noqa: E731
        patches.enter_context(mock.patch(f"{clock}.wall_now", wall))
        return run_virtual(run.main)


def replay_live_seed(seed: int, policy: str = "") -> Outcome:
    """Run one seed of `live_scenario` again; print the outcome to see the world's trace."""
    return run_live(live_scenario(seed, policy))
