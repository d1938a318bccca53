"""Guards of the live controller, taken away one at a time: by some seed each is missed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from headway.core.events import EMPTY, EventBuffer
from headway.core.round import settled
from headway.engines.base import Exited, StartFailed
from headway.runtime import controller as controller_module
from headway.runtime import launch as launch_module
from headway.runtime.controller import Controller
from headway.runtime.intake import Intake
from headway.runtime.journal import JournalError
from headway.testing import live_process
from headway.testing.live_process import MemoryJournal
from headway.testing.machine import Machine
from headway.testing.simulated import SimulatedEngine

Patch = Callable[[Any, str, Any], None]


class Nothing(Exception):
    """In the place of something that is to be recognised no more."""


def no_fencing(patch: Patch) -> None:
    patch(Machine, "enter", lambda self, epoch: None)


def no_fenced_acknowledgement(patch: Patch) -> None:
    real = Machine.acknowledge
    patch(Machine, "acknowledge", lambda self, epoch, job, attempt: real(self, self.epoch, job, attempt))


def no_attempt_check(patch: Patch) -> None:
    """The engine launches what it is told to, also an attempt that it knows."""

    def launch(self: Machine, launch: Any) -> None:
        self.enter(launch.epoch)
        self._begin(launch)

    patch(Machine, "launch", launch)
    # The request is carried out twice, as over a connection that repeats it.
    real = SimulatedEngine.launch

    async def twice(self: SimulatedEngine, launch: Any) -> None:
        await real(self, launch)
        await real(self, launch)

    patch(SimulatedEngine, "launch", twice)


def acknowledged_before_the_journal(patch: Patch) -> None:
    real = Controller._take_in

    async def take_in(self: Controller) -> None:
        for entry in list(self._inbox):
            if isinstance(entry, Exited | StartFailed):
                await self._acknowledge(entry.job, entry.attempt)
        await real(self)

    patch(Controller, "_take_in", take_in)


def launched_before_the_journal(patch: Patch) -> None:
    async def carry_out(self: Controller, batch: Any) -> None:
        while len(batch):
            for record in batch.records:
                job, attempt = int(record[2]), int(record[3])
                if record[1] == controller_module.EventKind.START_REQUESTED:
                    payload = batch.pool[: record[7]]
                    await self._launch(job, attempt, payload, EventBuffer(8, 8))
                    break
            self._record(batch, own=True)
            self._record(await self._execute(batch))
            batch = controller_module._owned(settled(self.state, self.now_us()))

    patch(Controller, "_carry_out", carry_out)


def no_look_at_recovery(patch: Patch) -> None:
    real = Controller._reconcile

    async def reconcile(self: Controller) -> None:
        if self.rounds.held:
            await real(self)

    patch(Controller, "_reconcile", reconcile)


def no_look_later(patch: Patch) -> None:
    async def look(self: Controller) -> None:
        self._reconcile_us = self.now_us() + self.pace.reconcile_us

    patch(Controller, "_look", look)


def any_attempt_is_the_present_one(patch: Patch) -> None:
    real = Intake.report

    def report(self: Intake, event: Any, now: int, out: Any, over: Any) -> None:
        row = self.state.row(event.job) if hasattr(event, "job") else None
        if row is not None:
            event = replace(event, attempt=int(self.state.J[controller_module.c.J_ATTEMPT, row]))
        real(self, event, now, out, over)

    patch(Intake, "report", report)


def segments_are_overwritten(patch: Patch) -> None:
    """Two controllers write one journal, and nobody notices."""

    def append(self: MemoryJournal, batch: Any) -> None:
        self._at_append("before append")
        self._segments.append(live_process.encode(batch))
        self._at_append("after append")

    patch(MemoryJournal, "append", append)


def errors_of_the_journal_are_passed_over(patch: Patch) -> None:
    real = MemoryJournal.append

    def append(self: MemoryJournal, batch: Any) -> None:
        with suppress(JournalError):
            real(self, batch)

    patch(MemoryJournal, "append", append)


def a_lost_node_is_the_jobs_failure(patch: Patch) -> None:
    patch(launch_module, "NODE_REBOOTED", "-")
    patch(launch_module, "NODE_LOST", "-")


def no_room_on_the_network_is_the_jobs_failure(patch: Patch) -> None:
    patch(controller_module, "NodeUnreachable", Nothing)


def no_grace(patch: Patch) -> None:
    real = SimulatedEngine.stop

    async def stop(self: SimulatedEngine, epoch: int, job: int, attempt: int, grace_s: float, reason: str) -> None:
        await real(self, epoch, job, attempt, 0.0, reason)

    patch(SimulatedEngine, "stop", stop)


def an_id_may_come_again(patch: Patch) -> None:
    patch(Intake, "_known", lambda self, public_id, fresh: None)


def a_report_about_a_node_counts_for_ever(patch: Patch) -> None:
    patch(controller_module, "reach_events", lambda state, nodes, now, drains: EMPTY)


def a_stop_is_asked_for_once(patch: Patch) -> None:
    patch(controller_module, "Running", Nothing)


def a_cancellation_is_answered_and_not_written(patch: Patch) -> None:
    patch(Intake, "cancellations", lambda self, numbers, now: EMPTY)


def each_attempt_has_its_own_checkpoints(patch: Patch) -> None:
    real = launch_module.make_launch

    def make(*args: Any) -> Any:
        made = real(*args)
        return replace(made, checkpoint_dir=f"{made.checkpoint_dir}-{made.attempt}" if made.checkpoint_dir else "")

    patch(controller_module, "make_launch", make)


def what_is_out_of_reach_is_gone(patch: Patch) -> None:
    real = Machine.snapshot

    def snapshot(self: Machine) -> Any:
        away = {
            gang.key for gang in self.gangs.values() if any(not self.nodes[task.wanted.node].reachable for task in gang.tasks)
        }
        return tuple(record for record in real(self) if (record.job, record.attempt) not in away)

    patch(Machine, "snapshot", snapshot)


MUTANTS = (
    no_fencing, no_fenced_acknowledgement, no_attempt_check, acknowledged_before_the_journal, launched_before_the_journal,
    no_look_at_recovery, no_look_later, any_attempt_is_the_present_one, segments_are_overwritten,
    errors_of_the_journal_are_passed_over, a_lost_node_is_the_jobs_failure, no_room_on_the_network_is_the_jobs_failure, no_grace,
    an_id_may_come_again, a_report_about_a_node_counts_for_ever, a_stop_is_asked_for_once,
    a_cancellation_is_answered_and_not_written, each_attempt_has_its_own_checkpoints, what_is_out_of_reach_is_gone,
)  # fmt: skip
