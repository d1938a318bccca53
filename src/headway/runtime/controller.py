"""The live controller: state by replay of the journal, an engine that carries out, and the loop that runs rounds.

Everything passes through `step`, one at a time: what engine and people have sent meanwhile is journalled as one batch,
applied, settled; then a round is begun if one is due. Nothing is done that is not in the journal yet. The policy thinks in a
worker (`runtime.rounds`), so the loop goes on however long that takes.

**Recovery.** Replay, a new epoch, `fence`, `snapshot`, and the difference as events. A start request that is in the journal
but never reached the engine (the controller died between the two) is reported stopped: the job queues again, and its next
start is a new attempt, so the lost one counts but can never run beside it. A stop request that the engine may have missed
is sent again. The same comparison is made every `reconcile_us`, in case a report is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.core import columns as c
from headway.core.columns import EventKind, Name, Phase, Reason
from headway.core.errors import UserError
from headway.core.events import EventBatch, EventBuffer
from headway.core.plan import Capabilities
from headway.core.reconcile import reconcile
from headway.core.round import Brains, settled
from headway.core.state import State
from headway.core.view import ClusterView, NodeView
from headway.engines.base import (
    Ended,
    Engine,
    EngineError,
    EngineEvent,
    Exited,
    NodeBack,
    NodeUnreachable,
    Running,
    StaleAttempt,
    StaleEpoch,
    StartFailed,
)
from headway.perf.histories import Histories
from headway.progress.told import Told
from headway.runtime.admit import Names
from headway.runtime.board import Board, JobRecord
from headway.runtime.budgets import UNLIMITED, UrgencyBudgets
from headway.runtime.clock import Calendar, Clock, JournalClock
from headway.runtime.collect import Reporting
from headway.runtime.drains import Drains
from headway.runtime.folded import Folded, note_anchors, recover
from headway.runtime.inbox import OF_NODES, OF_PEOPLE, Cancellation, Change, Entry, Submission, give, refuse
from headway.runtime.intake import Intake, overdue
from headway.runtime.inventory import inventory_events, reach_events
from headway.runtime.journal import Journal
from headway.runtime.launch import GRACE_OF_UNKNOWN_US, STRANGE_WAIT_US, found_in, make_launch, owned
from headway.runtime.lease import FencedError
from headway.runtime.progress import Finding
from headway.runtime.rights import Identity
from headway.runtime.rounds import Pace, Rounds
from headway.runtime.rules import settings_events
from headway.runtime.settings import Settings
from headway.runtime.verbs import Verbs

log = logging.getLogger(__name__)

US = 1_000_000
__all__ = ["Controller", "Pace"]
SETTLES_MAX = 1000  # answers that may follow from each other at one instant before something must be going round in circles
EPOCHS_TRIED_MAX = 40
WAIT_S_MAX = 3600.0
LOCAL = Capabilities(fractional_gpus=False)
"""What the local engine can do: it gives each slot to one job alone."""


class Controller(Verbs):
    """One cluster's scheduler. `start`, then `run` until `stop`, then `close`; or `step` by step, with a clock of one's own."""

    def __init__(
        self, journal: Journal, engine: Engine, brains: Brains, *, pace: Pace | None = None, capabilities: Capabilities = LOCAL,
        seed: int = 0, clock: Clock | None = None, budgets: UrgencyBudgets = UNLIMITED, worker: Executor | None = None,
        settings: Settings | None = None, identity: Identity = Identity.NAMES, home: Path | None = None,
    ) -> None:  # fmt: skip
        self.journal, self.engine, self.brains = journal, engine, brains
        self.pace = pace or Pace()
        self.state, self.names, self.board, self.calendar = State(), Names(), Board(), Calendar()
        self.drains = Drains()
        self.epoch, self._settings = 0, settings
        self.notes: list[str] = []
        """What whoever runs the cluster should be told of this start."""
        self.hearers: list[Callable[[EventBatch], None]] = []
        """Called with each batch that has been journalled and applied."""
        self._clock = clock
        self._inbox: list[Entry] = []
        self._wake, self._changed = asyncio.Event(), asyncio.Event()
        self.rounds = Rounds(brains, self.pace, capabilities, seed, self._wake.set, worker)
        self._pump: asyncio.Task[None] | None = None
        fractional = capabilities.fractional_gpus
        self.intake = Intake(self.state, self.names, self.board, self.drains, fractional, budgets=budgets, identity=identity)
        self.url = ""
        """Where the API listens, once it does."""
        self.reporting = Reporting(home, engine.log_path, self._heard, lambda: self.url)
        self.intake.is_done = self.reporting.is_done
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reconcile_us = self._strange_us = c.NEVER  # strange: since when attempts run of which the journal knows nothing
        self.stopping = False

    # -- life -----------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Replay the journal, take over the engine, and hold the first round.

        Raises:
            UserError: the journal can't be read at all, or the nodes don't fit to it.
        """
        self._loop = asyncio.get_running_loop()
        self._replay()
        if self._clock is None:
            last_us = int(self.state.C[c.C_NOW])
            self._clock = JournalClock(self.calendar.last, last_us if self.state.C[c.C_SEQUENCE] else -1)
        await self.engine.start()
        await self._take_over()
        nodes = await self.engine.inventory()
        self._record(inventory_events(self.state, nodes, self.now_us(), self.drains))
        numbers = {name: number for number, name in self.state.names[Name.NODE].items()}
        self.intake.here = tuple(numbers[node.name] for node in nodes)
        if self._settings is not None:
            self.intake.obey(self._settings)
            self._record(settings_events(self.state, self.names, self._settings, self.now_us()))
        self._pump = asyncio.create_task(self._listen(self.engine.events()), name="headway-engine-events")
        self._pump.add_done_callback(lambda _: self._wake.set())
        self.reporting.start(self.state)
        await self._reconcile()
        await self._settle()
        if not self._waits():
            await self._round()

    async def run(self) -> None:
        """Go on until `stop`. Raises `FencedError` or `JournalError` when it must not go on."""
        while not self.stopping:
            self.journal.check()
            due = await self.step()
            if self._pump is None or self._pump.done():
                raise EngineError("the engine tells no more what happens") from self._pump_error()
            self._wake.clear()
            if self._inbox or self.stopping:
                continue
            wait_s = (due - self.now_us()) / US
            with suppress(TimeoutError):
                async with asyncio.timeout(min(max(wait_s, 0.001), WAIT_S_MAX)):  # `wait_for` would make a task each time
                    await self._wake.wait()

    def _pump_error(self) -> BaseException | None:
        return self._pump.exception() if self._pump is not None and not self._pump.cancelled() else None

    def _heard(self) -> None:
        """Called from the collecting thread."""
        if self._loop is not None and not self.stopping:
            self._loop.call_soon_threadsafe(self._wake.set)

    def stop(self) -> None:
        """Ask `run` to return. The jobs go on running."""
        self.stopping = True
        self._wake.set()
        self._tell()

    async def close(self) -> None:
        """Let go of the engine and the journal; answers still owed become errors."""
        self.stopping = True
        self._tell()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])
        refuse(self._inbox)
        await asyncio.to_thread(self.reporting.close)
        self.rounds.close()
        await self.engine.close()
        self.journal.close()

    def now_us(self) -> int:
        """Journal time, never before the last event."""
        assert self._clock is not None
        return max(self._clock.now_us(), int(self.state.C[c.C_NOW]), 0)

    def _replay(self) -> None:
        """Take the lease, unless that has been done, and fold the journal."""
        self.journal.lead()
        histories = Histories()
        folded = Folded(self.brains.policy, self.state, self.names, self.board, self.calendar, self.drains, histories)
        self.notes.extend(recover(self.journal, folded))
        self.rounds.start(self.state, folded.memo, histories)
        if damage := self.journal.damage:
            kept = self.journal.cut()
            self.notes.append(f"{damage}; going on from there, what is damaged is kept as {kept}")

    def lose(self, why: str) -> None:
        """Another controller has taken over: `run` ends with `FencedError`."""
        self.journal.lost = self.journal.lost or why
        self._wake.set()

    async def _take_over(self) -> None:
        """A new epoch: journalled, then told to the engine. A journal that has lost its end knows an old one: go further."""
        step, lost = 1, False
        for _ in range(EPOCHS_TRIED_MAX):
            self.epoch = max(int(self.state.C[c.C_EPOCH]) + step, self.journal.epoch)
            out = EventBuffer()
            text = self._clock.anchor().to_text() if isinstance(self._clock, JournalClock) else None
            out.add(self.now_us(), EventKind.EPOCH, a=self.epoch, text=text)
            self._record(out.take())
            try:
                await self.engine.fence(self.epoch)
            except StaleEpoch:
                log.warning("the engine has seen a newer epoch than %d", self.epoch)
                step, lost = 2 * step, True
                continue
            if not lost:
                return
            step, lost = 1, False  # This one may be just as old as the newest; the next is newer than all.
        raise FencedError(f"the engine has seen a newer epoch than {self.epoch}")

    async def _listen(self, events: AsyncIterator[EngineEvent]) -> None:
        async for event in events:
            self._inbox.append(event)
            self._wake.set()

    # -- what people ask ------------------------------------------------------------------------------------------
    def adopt(self, brains: Brains, memo: object, histories: Histories | None) -> None:
        """Decide by another policy from the next round on; its memo and histories are those of the whole journal."""
        self.brains = brains
        self.rounds.adopt(brains, self.state, memo, histories, self.now_us())

    def _ask(self, *entries: Entry) -> None:
        if self.stopping:
            raise UserError("the controller is stopping")
        self._inbox.extend(entries)
        self._wake.set()

    async def report(self, job: int, attempt: int, told: Sequence[Told]) -> list[Finding]:
        """Take in what an attempt tells of itself over HTTP; what was wrong with it. What is kept is in the journal then."""
        findings: list[Finding] = []

        def make(now: int) -> EventBatch:
            batch, wrong = self.reporting.hear(self.state, job, attempt, told, now)
            findings.extend(wrong)
            return batch

        await self.change(make)
        return findings

    def nodes(self) -> list[NodeView]:
        """The nodes of the engine, by number."""
        return [node for node in ClusterView(self.state, self.now_us(), 0).nodes() if node.number in self.intake.here]

    def log_path(self, job: JobRecord, attempt: int, rank: int) -> Path:
        """Where the output of one task is; it may not exist yet."""
        return self.engine.log_path(job.number, attempt, rank)

    async def changed(self, timeout_s: float) -> None:
        """Wait until something is journalled, the controller stops, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- the loop -------------------------------------------------------------------------------------------------
    async def step(self) -> int:
        """Take in what has come, settle, and go on with the rounds. Returns when to come back at the latest (µs)."""
        await self._take_in()
        if self.now_us() >= self._reconcile_us:
            await self._look()
        now = self.now_us()
        self._record(self.drains.events(self.state, now))
        self._record(self.reporting.due(self.state, now))
        stops, next_overdue_us = overdue(self.state, now)
        await self._carry_out(stops)
        await self._settle()
        if not self._waits():
            await self._round(due=self.rounds.due_us())
        return min(
            c.NEVER if self._waits() else self.rounds.due_us(),
            self._reconcile_us,
            next_overdue_us,
            self.drains.next_us(),
            self.reporting.next_us(now),
        )

    def _waits(self) -> bool:
        """Whether nothing is started yet because of what runs and is not known: it has places that seem free."""
        return self._strange_us <= self.now_us() < self._strange_us + STRANGE_WAIT_US

    def _record(self, batch: EventBatch, *, own: bool = False) -> None:
        """Journal first, then apply. What a round itself asks for (`own`) makes no other round due."""
        if not len(batch):
            return
        self.journal.append(batch)
        self.state.apply(batch)
        self.names.learn(batch)
        self.board.fold(batch, self.state)
        note_anchors(self.calendar, batch)
        self.drains.fold(batch)
        self.rounds.note(batch, own=own)
        for hear in self.hearers:
            hear(batch)
        self._tell()

    async def _round(self, due: int = 0) -> None:
        """Begin a round if one is due, and do what has come of those that have begun."""
        rounds = self.rounds
        result = None
        if not rounds.busy and due <= self.now_us():
            result = await rounds.begin(self.state, self.now_us())
        result = result or rounds.concluded(self.state, self.now_us())
        if result is not None:
            await self._carry_out(owned(result.events))
            await rounds.ask(result.requests, self.now_us())
        self._record(rounds.answers(self.state, self.now_us()), own=True)
        await self._carry_out(owned(rounds.spare(self.state, self.now_us())))

    async def _settle(self) -> None:
        await self._carry_out(owned(settled(self.state, self.now_us())))

    async def _carry_out(self, batch: EventBatch) -> None:
        """Journal, apply, execute, take in the answers, and settle until nothing moves."""
        for _ in range(SETTLES_MAX):
            if not len(batch):
                return
            self._record(batch, own=True)
            self._record(await self._execute(batch))
            batch = owned(settled(self.state, self.now_us()))
        raise AssertionError("the engine's answers and the scheduler's requests go round in circles")

    async def _execute(self, batch: EventBatch) -> EventBatch:
        """Have the engine do what a batch requests; what it refused, as events."""
        answers = EventBuffer(8, 8)
        at = 0
        for record in batch.records:
            payload = batch.pool[at : at + record[c.E_POOL]]
            at += int(record[c.E_POOL])
            job, attempt = int(record[c.E_ID]), int(record[c.E_ATTEMPT])
            if record[c.E_KIND] == EventKind.START_REQUESTED:
                await self._launch(job, attempt, payload, answers)
            elif record[c.E_KIND] == EventKind.STOP_REQUESTED:
                await self._stop(job, attempt, Reason(int(record[c.E_A])))
        return answers.take()

    async def _launch(self, job: int, attempt: int, payload: Any, answers: EventBuffer) -> None:
        try:
            name, account = self.state.name(Name.JOB, job), self.intake.settings.account
            launch = make_launch(self.state, self.epoch, job, attempt, payload, name, account)
            await self.engine.launch(self.reporting.launching(launch, self.state))
        except StaleEpoch as error:
            raise FencedError(str(error)) from None
        except StaleAttempt as error:
            # Only after the journal has lost its end: the engine knows attempts that it doesn't. This one never ran.
            log.warning("%s", error)
            answers.add(self.now_us(), EventKind.STOPPED, job, attempt, a=Reason.NODE_LOST, b=-1, text=str(error))
        except NodeUnreachable as error:
            answers.add(self.now_us(), EventKind.STOPPED, job, attempt, a=Reason.NODE_LOST, b=-1, text=str(error))
            answers.add(self.now_us(), EventKind.NODE_DOWN, self.names.number(Name.NODE, error.node))
        except (EngineError, UserError, ValueError, KeyError, OSError) as error:
            log.warning("job %d, attempt %d can't be launched: %s", job, attempt, error)
            answers.add(self.now_us(), EventKind.START_FAILED, job, attempt, b=-1, text=str(error))

    async def _stop(self, job: int, attempt: int, reason: Reason) -> None:
        row = self.state.row(job)
        grace_us = int(self.state.J[c.J_GRACE, row]) if row is not None else GRACE_OF_UNKNOWN_US
        try:
            await self.engine.stop(self.epoch, job, attempt, grace_us / US, reason.word)
        except StaleEpoch as error:
            raise FencedError(str(error)) from None
        except (EngineError, OSError) as error:
            log.warning("job %d, attempt %d can't be stopped: %s; will be tried again", job, attempt, error)

    # -- taking in ------------------------------------------------------------------------------------------------
    async def _take_in(self) -> None:
        """Journal what has come since the last step: reports, then new jobs, then cancellations, then changes."""
        inbox, self._inbox = self._inbox, []
        if not inbox:
            return
        try:
            for job, attempt in self._take(inbox, self.now_us()):
                await self._acknowledge(job, attempt)
            for entry in inbox:
                if isinstance(entry, Change):
                    self._record(await self._execute(entry.record(self.now_us(), self._record)))
        except BaseException:
            refuse(inbox)
            raise
        if all(isinstance(entry, Submission) for entry in inbox):
            await asyncio.sleep(0)  # whoever has handed a job in has his answer before a round begins
        if any(isinstance(entry, NodeBack) for entry in inbox):
            await self._look()

    def _take(self, inbox: Sequence[Entry], now: int) -> list[tuple[int, int]]:
        """Journal and answer; returns the (job, attempt) of the ends that are safe now."""
        out = EventBuffer(64, 256)
        over: list[tuple[int, int]] = []
        for entry in inbox:
            if isinstance(entry, OF_NODES):
                self._record(out.take())  # what it means depends on all that has been said of the node
            elif isinstance(entry, Exited | StartFailed):
                self._record(out.take())
                self._record(self.reporting.ending(self.state, [(entry.job, entry.attempt)], now))
            if not isinstance(entry, OF_PEOPLE):
                self.intake.report(entry, now, out, over)
        answered = self.intake.admit_all([entry for entry in inbox if isinstance(entry, Submission)], now, out)
        self._record(out.take())
        for submission, number, is_new in answered:
            give(submission.answer, (self.board.by_number(number), is_new))
        cancellations = [entry for entry in inbox if isinstance(entry, Cancellation)]
        self._record(self.intake.cancellations([number for entry in cancellations for number in entry.numbers], now))
        for entry in cancellations:
            give(entry.answer, None)
        return over

    async def _look(self) -> None:
        """Reconcile; an engine that can't be asked now is asked again later."""
        self._reconcile_us = self.now_us() + self.pace.reconcile_us
        try:
            await self._reconcile()
        except (EngineError, OSError) as error:
            log.warning("the engine can't be asked what runs: %s; will be asked again", error)

    async def _reconcile(self) -> None:
        """Compare with what the engine really has: take in what was missed, end what must not run, ask again for stops."""
        records, nodes = await self.engine.snapshot(), await self.engine.inventory()
        now = self.now_us()
        self._record(reach_events(self.state, nodes, now, self.drains))
        self.intake.last_job = max([self.intake.last_job, *(record.job for record in records)])
        ends = [(record.job, record.attempt) for record in records if isinstance(record, Ended)]
        self._record(self.reporting.ending(self.state, ends, now))
        missed = EventBuffer(64, 64)
        over: list[tuple[int, int]] = []
        self.intake.missed(records, now, missed, over)
        self._record(missed.take())
        events, orphans = reconcile(self.state, found_in(records), now)
        self._record(events)
        for job, attempt in over:
            await self._acknowledge(job, attempt)
        strange = any(self.state.row(orphan.job) is None for orphan in orphans)
        self._strange_us = min(self._strange_us, now) if strange else c.NEVER
        self._reconcile_us = now + (US if strange else self.pace.reconcile_us)
        for orphan in orphans:
            row = self.state.row(orphan.job)
            if row is not None and self.state.J[c.J_ATTEMPT, row] == orphan.attempt:
                continue  # it is stopping: told again below, with its own reason
            log.warning("job %d, attempt %d runs, and should not: it is stopped", orphan.job, orphan.attempt)
            await self._stop(orphan.job, orphan.attempt, Reason.NODE_LOST)
        for record in records:
            row = self.state.row(record.job)
            if isinstance(record, Running) and row is not None and self.state.J[c.J_PHASE, row] == Phase.STOPPING:
                if record.phase != "stopping" and self.state.J[c.J_ATTEMPT, row] == record.attempt:
                    await self._stop(record.job, record.attempt, Reason(int(self.state.J[c.J_REASON, row])))

    async def _acknowledge(self, job: int, attempt: int) -> None:
        """The end of an attempt is safe in the journal."""
        try:
            await self.engine.acknowledge(self.epoch, job, attempt)
        except StaleEpoch as error:
            raise FencedError(str(error)) from None
        except (EngineError, OSError) as error:
            log.warning("job %d, attempt %d can't be acknowledged: %s", job, attempt, error)
