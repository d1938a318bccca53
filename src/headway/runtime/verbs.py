"""What people ask of a controller: to hand jobs in, to look at them, and to change what becomes of them.

A verb of many jobs is one write of the journal, and answers each job for itself: its record, or why it could not be done for
that one. Everything is in the journal when a verb returns. Who may ask for what is not looked at here.

| verb | a waiting job | one that runs or is coming up | one that is stopping |
|---|---|---|---|
| cancel | ends at once | is told to stop, and ends | ends when it has stopped |
| hold | does not start | goes on, but does not start again after a stop | does not start again |
| release | may start | as if it had never been held | may start again |
| requeue | nothing | is told to stop, has its grace, and waits again | nothing: it waits again anyway |

A job that has ended, or is about to end, can't be held, released, requeued or updated: a `UserError` says so.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import EventKind, Name, Phase, Reason
from headway.core.errors import UserError, shown
from headway.core.events import EventBatch, EventBuffer
from headway.core.model import JobSpec, validate
from headway.core.state import State
from headway.core.view import ClusterView, JobView
from headway.runtime.board import Board, JobRecord
from headway.runtime.inbox import Cancellation, Change, Entry, Submission
from headway.runtime.intake import Intake, NoSuchJobError
from headway.runtime.launch import spec_of
from headway.runtime.rights import permit_queue

US_PER_S = 1_000_000
Answer = JobRecord | UserError
"""What one job of many is answered with."""


@dataclass(frozen=True, slots=True)
class Update:
    """What is to change of a live job; None: stays as it is."""

    priority: int | None = None
    deadline_us: int | None = None
    """From its submission; NEVER: none any more."""
    time_limit_us: int | None = None
    """Of running, over all its attempts; NEVER: none any more. One that it has reached already ends it at once."""
    urgency: int | None = None
    """It gets as much of it as the user's budget has left."""
    queue: str | None = None
    """Only while it waits."""


class Verbs(ABC):
    """The people's side of a controller."""

    state: State
    board: Board
    intake: Intake

    @abstractmethod
    def now_us(self) -> int:
        """Journal time."""

    @abstractmethod
    def _ask(self, *entries: Entry) -> None:
        """Have the next step take these in, together."""

    # -- handing in -----------------------------------------------------------------------------------------------
    async def submit(self, spec: JobSpec, public_id: str = "", *, held: bool = False) -> tuple[JobRecord, bool]:
        """Hand a valid job in; returns its record, and whether it is new. With a `public_id` of one's own the same job can be
        handed in again without harm. A job larger than the cluster is new, and rejected. One that is `held` does not start before
        it is released.

        Raises:
            ConflictError: the id belongs to a job with another spec.
            UserError: an id that is no name, or a demand that can't be met.
        """
        entry = Submission(spec, public_id, asyncio.get_running_loop().create_future(), held)
        self._ask(entry)
        return await entry.answer

    async def submit_many(
        self, jobs: Sequence[tuple[JobSpec, str]], *, held: bool = False
    ) -> list[tuple[JobRecord, bool] | UserError]:
        """As `submit`, for many jobs in one write; the answers in the order of the jobs."""
        loop = asyncio.get_running_loop()
        entries = [Submission(spec, public_id, loop.create_future(), held) for spec, public_id in jobs]
        self._ask(*entries)
        answers: list[tuple[JobRecord, bool] | UserError] = []
        for found in await asyncio.gather(*(entry.answer for entry in entries), return_exceptions=True):
            if isinstance(found, BaseException) and not isinstance(found, UserError):
                raise found
            answers.append(found)
        return answers

    # -- what becomes of them -------------------------------------------------------------------------------------
    async def cancel(self, public_id: str) -> JobRecord:
        """Ask a job to end for good. Nothing happens if it has ended, or has been asked before."""
        return _record(await self.cancel_many([public_id]))

    async def cancel_many(self, public_ids: Sequence[str]) -> list[Answer]:
        """As `cancel`, for many jobs; an id that nobody has is answered with `NoSuchJobError`."""
        answers = [self._found(public_id) for public_id in public_ids]
        numbers = [job.number for job in answers if isinstance(job, JobRecord)]
        if not numbers:
            return answers
        entry = Cancellation(numbers, asyncio.get_running_loop().create_future())
        self._ask(entry)
        await entry.answer
        return answers

    async def hold_many(self, public_ids: Sequence[str], held: bool) -> list[Answer]:
        """Keep jobs from starting, or let them start again."""
        return await self._each(public_ids, lambda job, now, out: hold(self.intake, job, held, now, out))

    async def requeue_many(self, public_ids: Sequence[str]) -> list[Answer]:
        """Send running jobs back to the queue: no retry is spent, and no preemption counted."""
        return await self._each(public_ids, lambda job, now, out: requeue(self.intake, job, now, out))

    async def update(self, public_id: str, update: Update) -> JobRecord:
        """Change a live job.

        Raises:
            UserError: it has ended, or the change is not possible; nothing is done.
        """
        return _record(await self._each([public_id], lambda job, now, out: change(self.intake, job, update, now, out)))

    async def _each(self, public_ids: Sequence[str], do: Callable[[JobRecord, int, EventBuffer], None]) -> list[Answer]:
        """Do something to each job, once, however it is named; a `UserError` of one concerns that one alone."""
        found = [self._found(public_id) for public_id in public_ids]
        done = {job.number: job for job in found if isinstance(job, JobRecord)}
        refused: dict[int, UserError] = {}

        def make(now: int) -> EventBatch:
            out = EventBuffer()
            for job in done.values():
                try:
                    do(job, now, out)
                except UserError as error:
                    refused[job.number] = error
            return out.take()

        if done:
            await self.change(make)
        return [refused.get(job.number, job) if isinstance(job, JobRecord) else job for job in found]

    async def change(self, make: Callable[[int], EventBatch], *, quiet: bool = False) -> None:
        """Journal, apply and carry out the events that `make` gives for the journal time. What `make` refuses is raised: nothing
        is done. `quiet`: that makes no round due."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ask(Change(make, answer, quiet))
        await answer

    # -- looking --------------------------------------------------------------------------------------------------
    def find(self, public_id: str) -> JobRecord:
        """A job by its id, or by its number."""
        job = self.board.by_id(public_id)
        if job is None:
            raise NoSuchJobError(f"there is no job {shown(public_id)}")
        return job

    def _found(self, public_id: str) -> Answer:
        try:
            return self.find(public_id)
        except NoSuchJobError as error:
            return error

    def select(self, *, user: str = "", queue: str = "", states: frozenset[Phase] = frozenset()) -> list[JobRecord]:
        """The jobs of a user, in a queue, in one of these phases, the newest last; what is empty selects all."""
        return [
            job
            for job in self.board
            if (not user or job.user == user) and (not queue or job.queue == queue) and (not states or self.phase(job) in states)
        ]

    def phase(self, job: JobRecord) -> Phase:
        """Where a job stands now."""
        row = None if job.ended else self.state.row(job.number)
        return job.phase if row is None else Phase(int(self.state.J[c.J_PHASE, row]))

    def live_view(self, job: JobRecord) -> JobView | None:
        """What the state knows of a job now; None if it has ended."""
        try:
            return ClusterView(self.state, self.now_us(), 0).job(job.number)
        except KeyError:
            return None

    def live_column(self, job: JobRecord, column: int) -> int | None:
        """One number of the tables (`core.columns`) for a live job."""
        row = self.state.row(job.number)
        return None if row is None else int(self.state.J[column, row])


def _record(answers: list[Answer]) -> JobRecord:
    """The answer for a single job; a refusal is raised."""
    (answer,) = answers
    if isinstance(answer, UserError):
        raise answer
    return answer


# -- from a verb to its events -----------------------------------------------------------------------------------------
def _live(state: State, job: JobRecord) -> Ints:
    """The tables' column of a job that may go on; `UserError` if it has ended, or is to end."""
    row = state.row(job.number)
    if row is None:
        raise UserError(f"job {shown(job.id)} has ended")
    column: Ints = state.J[:, row]
    if column[c.J_MUST_STOP] == Reason.CANCELLED or (column[c.J_PHASE] == Phase.STOPPING and column[c.J_FINISHING]):
        raise UserError(f"job {shown(job.id)} is about to end")
    return column


def hold(intake: Intake, job: JobRecord, held: bool, now: int, out: EventBuffer) -> None:
    """Hold or release a job. One that is held gives up a place that it waits for."""
    row = _live(intake.state, job)
    if bool(row[c.J_HOLD]) == held:
        return
    out.add(now, EventKind.HOLD_SET, job.number, a=int(held))
    if held:
        _give_up_place(row, Reason.HELD_BY_USER, now, out)


def _give_up_place(row: Ints, reason: Reason, now: int, out: EventBuffer) -> None:
    """A job without processes, or with such as are stopping, no longer wants its next place."""
    if row[c.J_PLACED] and row[c.J_PHASE] in (Phase.QUEUED, Phase.STOPPING):
        out.add(now, EventKind.UNWANTED, int(row[c.J_ID]), int(row[c.J_ATTEMPT]), a=reason)


def requeue(intake: Intake, job: JobRecord, now: int, out: EventBuffer) -> None:
    """Ask a job to stop, and to wait again."""
    row = _live(intake.state, job)
    if row[c.J_PHASE] in (Phase.STARTING, Phase.RUNNING):
        out.add(now, EventKind.STOP_REQUESTED, job.number, int(row[c.J_ATTEMPT]), a=Reason.REQUEUED)


def change(intake: Intake, job: JobRecord, update: Update, now: int, out: EventBuffer) -> None:
    """Change a job as it was asked for, if all of it is possible."""
    row = _live(intake.state, job)
    try:
        spec = spec_of(intake.state, job.number)
    except (ValueError, KeyError) as error:
        raise UserError(f"job {shown(job.id)} can't be changed: what was handed in can't be read ({error})") from None
    spec = _as_asked(spec, update)
    if moves := update.queue is not None and update.queue != job.queue:
        if row[c.J_PHASE] != Phase.QUEUED:
            raise UserError(f"job {shown(job.id)} is {_word(row)}: its queue can be changed only while it waits", key="queue")
        permit_queue(spec, intake.settings)

    def note(column: int, value: int, asked: int = 0) -> None:
        if row[column] != value:
            out.add(now, EventKind.UPDATED, job.number, a=column, b=value, c=asked)

    if update.priority is not None and update.priority != row[c.J_PRIORITY]:
        out.add(now, EventKind.PRIORITY_SET, job.number, a=update.priority)
    if moves:
        queue = intake.names.number(Name.QUEUE, spec.queue)
        intake.names.take_news(out, now)
        _give_up_place(row, Reason.NONE, now, out)
        note(c.J_QUEUE, queue)
    if update.deadline_us is not None:
        note(c.J_DEADLINE, min(int(row[c.J_SUBMITTED]) + update.deadline_us, c.NEVER))
    if update.urgency is not None:
        granted = intake.grants().again(spec.user, update.urgency, int(row[c.J_URGENCY]))
        if (granted, update.urgency) != (job.urgency, job.urgency_asked):
            out.add(now, EventKind.UPDATED, job.number, a=c.J_URGENCY, b=granted, c=update.urgency)
    if update.time_limit_us is not None:
        note(c.J_TIME_LIMIT, update.time_limit_us)
        if spec.estimate_s is None:
            note(c.J_ESTIMATE, update.time_limit_us)
        if _run_us(row, now) >= update.time_limit_us:
            kind = EventKind.FINISHED if row[c.J_PHASE] == Phase.QUEUED else EventKind.STOP_REQUESTED
            out.add(now, kind, job.number, int(row[c.J_ATTEMPT]), a=Reason.TIME_LIMIT)


def _as_asked(spec: JobSpec, update: Update) -> JobSpec:
    """The job as it would have been handed in with the new values; `UserError` if that were no valid job."""
    asked: dict[str, Any] = {name: getattr(update, name) for name in ("priority", "urgency", "queue")}
    asked = {name: value for name, value in asked.items() if value is not None}
    for name, time_us in (("deadline_s", update.deadline_us), ("time_limit_s", update.time_limit_us)):
        if time_us is not None:
            asked[name] = None if time_us == c.NEVER else time_us / US_PER_S
    changed = replace(spec, **asked)
    before = {problem.key for problem in validate(spec, runnable=False)}
    for problem in validate(changed, runnable=False):
        if problem.key not in before:
            raise UserError(f"expected {problem.expected}, got {problem.got}", key=problem.key)
    return changed


def _run_us(row: Ints, now: int) -> int:
    """How long a job has run, over all its attempts, µs."""
    return int(row[c.J_RUN] + (now - row[c.J_STARTED_AT] if row[c.J_STARTED_AT] >= 0 else 0))


def _word(row: Ints) -> str:
    return Phase(int(row[c.J_PHASE])).name.lower()
