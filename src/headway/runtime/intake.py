"""What comes in from people and engines, as events: new jobs, cancellations, reports, and what time alone asks for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind, Name, NodePhase, Phase, Reason
from headway.core.errors import UserError, shown
from headway.core.events import EventBatch, EventBuffer
from headway.core.state import State
from headway.core.units import name_fault
from headway.engines.base import Ended, EngineEvent, NodeBack, NodeHealth, NodeLost, Record, Started, Usage, ended_event
from headway.runtime.admit import Names, Room, details, rooms_of, spec_columns, too_large
from headway.runtime.board import Board
from headway.runtime.budgets import UNLIMITED, Grants, UrgencyBudgets
from headway.runtime.drains import SICK, Drains
from headway.runtime.inbox import OF_NODES, Submission
from headway.runtime.launch import UNKNOWN_UNITS, add_end, spec_text
from headway.runtime.rights import Identity, permit, permit_room
from headway.runtime.settings import EVERYBODY, Settings

log = logging.getLogger(__name__)


class NoSuchJobError(UserError):
    """Nobody knows a job of this id."""


class ConflictError(UserError):
    """The id belongs to another job."""


@dataclass(slots=True)
class Intake:
    """Turns what comes in into events, by what the tables and the board know."""

    state: State
    names: Names
    board: Board
    drains: Drains
    fractional_gpus: bool
    here: tuple[int, ...] = ()
    """The engine's nodes, by number."""
    last_job: int = 0
    """The highest number of a job that the engine knows: above the journal's own only if the journal has lost its end. A new job
    must not have such a number: what is told of the old one would be taken for its own."""
    settings: Settings = field(default_factory=Settings)
    """What users may do. May be set anew at any time: it counts for new jobs."""
    identity: Identity = Identity.NAMES
    is_done: Callable[[int, int], bool] = lambda _job, _attempt: False
    """Whether an attempt has said that its job is finished."""
    budgets: UrgencyBudgets = UNLIMITED
    """What urgency users may hand in. May be set anew at any time: it counts for new jobs."""

    def obey(self, settings: Settings) -> None:
        """Go by these settings from now on."""
        self.settings, self.drains.trust = settings, settings.trust
        named = {name: user.urgency_budget for name, user in settings.users.items() if name != EVERYBODY}
        self.budgets = UrgencyBudgets(named, settings.user(EVERYBODY).urgency_budget)

    def grants(self) -> Grants:
        """What the users' budgets have left."""
        return Grants(self.budgets, self.state, self.names)

    def admit_all(self, submissions: Sequence[Submission], now: int, out: EventBuffer) -> list[tuple[Submission, int, bool]]:
        """Append new jobs; returns whom to answer with which job's number, and whether it is new. Refusals are answered here."""
        answered: list[tuple[Submission, int, bool]] = []
        fresh: dict[str, tuple[int, str]] = {}
        waiting: Counter[str] = Counter()
        grants, rooms = self.grants(), rooms_of(self.state, self.here)
        number = max(int(self.state.C[c.C_LAST_ID]), self.last_job, 0) + 1
        for entry in submissions:
            try:
                text = spec_text(entry.spec)
                known = self._known(entry.public_id, fresh)
                if known is not None:
                    if known[1] != text:
                        raise ConflictError(f"the id {shown(entry.public_id)} belongs to another job")
                    answered.append((entry, known[0], False))
                    continue
                if entry.public_id and (fault := name_fault(entry.public_id)):
                    raise UserError(f"expected an id {fault}, got {shown(entry.public_id)}", key="id")
                user = entry.spec.user
                permit_room(self.settings, self.state, len(fresh))
                permit(entry.spec, self.settings, self.identity, self.state, self.names, waiting[user])
                public_id = self._admit(entry, text, number, now, out, grants, rooms)
                fresh[public_id] = number, text
                answered.append((entry, number, True))
                waiting[user] += 1
                number += 1
            except UserError as error:
                if not entry.answer.done():
                    entry.answer.set_exception(error)
        return answered

    def _admit(
        self, entry: Submission, text: str, number: int, now: int, out: EventBuffer, grants: Grants, rooms: Sequence[Room]
    ) -> str:
        """The columns have the urgency that was granted, the text what was handed in: the same job may be handed in again."""
        spec = entry.spec
        row = spec_columns(spec, self.names, submitted_us=now, fractional_gpus=self.fractional_gpus)
        row[c.J_URGENCY] = grants.urgency(spec)
        payload = np.concatenate([row, details(spec)])
        public_id = entry.public_id or self.names.next_id(spec.name)
        self.names.add(Name.JOB, public_id, number)
        self.names.take_news(out, now)
        out.add(now, EventKind.NAMED, number, a=Name.JOB, text=public_id)
        out.add(now, EventKind.SUBMITTED, number, payload=payload, text=text)
        if why := too_large(spec, row, rooms):
            out.add(now, EventKind.REJECTED, number, a=Reason.LARGER_THAN_CLUSTER, text=why)
            return public_id
        grants.spend(spec.user, int(row[c.J_URGENCY]))
        if entry.held:
            out.add(now, EventKind.HOLD_SET, number, a=1)
        return public_id

    def _known(self, public_id: str, fresh: dict[str, tuple[int, str]]) -> tuple[int, str] | None:
        """The number and the text of the job that has this id; one that the board has forgotten has no text."""
        if public_id in fresh or not public_id:
            return fresh.get(public_id)
        number = self.names.known(Name.JOB, public_id)
        if number is None:
            return None
        job = self.board.by_number(number)
        return number, job.spec if job is not None else ""

    def cancellations(self, numbers: Iterable[int], now: int) -> EventBatch:
        """The cancellations that are news."""
        out = EventBuffer(16, 16)
        for number in dict.fromkeys(numbers):
            row = self.state.row(number)
            if row is None:
                continue
            job = self.state.J[:, row]
            going = job[c.J_PHASE] == Phase.STOPPING and job[c.J_FINISHING] == Reason.CANCELLED
            if not going and job[c.J_MUST_STOP] != Reason.CANCELLED:
                out.add(now, EventKind.CANCEL_REQUESTED, number, int(job[c.J_ATTEMPT]))
        return out.take()

    def missed(self, records: Sequence[Record], now: int, out: EventBuffer, over: list[tuple[int, int]]) -> None:
        """As `report`, for the ends that a snapshot tells of; the start before may have been missed too."""
        for record in records:
            if not isinstance(record, Ended):
                continue
            row = self.state.row(record.job)
            waits = row is not None and self.state.J[c.J_PHASE, row] == Phase.STARTING
            if record.started and waits and self.state.J[c.J_ATTEMPT, row] == record.attempt:
                out.add(now, EventKind.STARTED, record.job, record.attempt)
            self.report(ended_event(record), now, out, over)

    def report(self, event: EngineEvent, now: int, out: EventBuffer, over: list[tuple[int, int]]) -> None:
        """Append what an engine's event means, unless it is old news; note the (job, attempt) whose end is to be acknowledged."""
        if isinstance(event, OF_NODES):
            self._of_node(event, now, out)
            return
        row = self.state.row(event.job)
        current = row is not None and self.state.J[c.J_ATTEMPT, row] == event.attempt
        if isinstance(event, Started):
            if current and self.state.J[c.J_PHASE, row] == Phase.STARTING:
                out.add(now, EventKind.STARTED, event.job, event.attempt)
            return
        if isinstance(event, Usage):
            if current and row is not None and event.rank < self.state.J[c.J_HELD_TASKS, row]:
                self._usage(row, event, now, out)
            return
        if (event.job, event.attempt) in over:
            return
        if current and self.state.J[c.J_PHASE, row] != Phase.QUEUED:
            done, saved = self.is_done(event.job, event.attempt), int(self.state.J[c.J_UNITS_SAVED, row])
            known = saved if saved > 0 else UNKNOWN_UNITS
            add_end(out, now, event, int(self.state.J[c.J_REASON, row]), done=done, saved=known)
        over.append((event.job, event.attempt))

    def _usage(self, row: int, event: Usage, now: int, out: EventBuffer) -> None:
        """What a task uses now. What isn't measured stays as the tables have it."""
        network = event.network_bytes_per_s
        if network is None:
            network = int(self.state.T[c.T_USE_NET, self.state.J[c.J_HELD_TASK0, row] + event.rank])
        figures = (event.gpu_milli, event.cpus_milli, event.memory_bytes, network)
        out.add(now, EventKind.USAGE, event.job, event.attempt, a=event.rank, payload=figures)

    def _of_node(self, event: NodeLost | NodeBack | NodeHealth, now: int, out: EventBuffer) -> None:
        """A node is lost, back, sick or well. A sick one takes no more jobs; what runs there runs on."""
        number = self.names.known(Name.NODE, event.node)
        if number is None:
            return
        if isinstance(event, NodeLost):
            out.add(now, EventKind.NODE_DOWN, number)
        elif isinstance(event, NodeBack):
            if self.state.N[c.N_PHASE, number] == NodePhase.DOWN:
                self.drains.back(number, now, out)
        elif event.problem:
            log.warning("node %s takes no more jobs: %s", event.node, event.problem)
            self.drains.hold(self.state, number, SICK, now, out, event.problem)
        elif self.drains.holds(number) & SICK:
            log.warning("node %s is well again", event.node)
            self.drains.lift(self.state, number, SICK, now, out)


def overdue(state: State, now: int) -> tuple[EventBatch, int]:
    """Stop requests for the jobs that have run for as long as they may, and when the next one will have (µs), or NEVER."""
    J = state.J
    running = np.flatnonzero(J[c.J_PHASE, : state.C[c.C_ROWS]] == Phase.RUNNING)
    limited = running[J[c.J_TIME_LIMIT, running] < c.NEVER]
    until = J[c.J_STARTED_AT, limited] + J[c.J_TIME_LIMIT, limited] - J[c.J_RUN, limited]
    out = EventBuffer(8, 8)
    for row in limited[until <= now].tolist():
        out.add(now, EventKind.STOP_REQUESTED, int(J[c.J_ID, row]), int(J[c.J_ATTEMPT, row]), a=Reason.TIME_LIMIT)
    return out.take(), int(until[until > now].min(initial=c.NEVER))
