"""What people ask of a controller: to hand jobs in, to look at them, and to change what becomes of them.

Each verb of many jobs is one write of the journal, and answers each job for itself: its record, or why it could not be done for
that one. Everything is in the journal when a verb returns. Who may ask for what is not looked at here.

| verb | a waiting job | a running one (or one that is coming up) | one that is stopping |
|---|---|---|---|
| cancel | ends at once | is told to stop, and ends | ends when it has stopped |
| hold | does not start | goes on, but does not start again after a stop | does not start again |
| release | may start | as if it had never been held | may start again |
| requeue | nothing | is told to stop, saves itself, and waits again | nothing: it waits again anyway |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.core import columns as c
from headway.core.columns import Phase
from headway.core.errors import UserError, shown
from headway.core.events import EventBatch
from headway.core.model import JobSpec
from headway.core.state import State
from headway.runtime.board import Board, JobRecord
from headway.runtime.inbox import Change, Entry, Submission
from headway.runtime.intake import Intake, NoSuchJobError


@dataclass(frozen=True, slots=True)
class Update:
    """What is to change of a live job; None: stays as it is."""

    priority: int | None = None
    deadline_us: int | None = None
    """From its submission; NEVER: none any more."""
    time_limit_us: int | None = None
    """Of running, over all its attempts; NEVER: none any more. One that it has reached already ends it at once."""
    urgency: int | None = None
    """As much of it as the user's budget allows."""
    queue: str | None = None
    """Only while it waits."""


Answer = JobRecord | UserError


class Verbs:
    """The people's side of a controller."""

    state: State
    board: Board
    intake: Intake
    stopping: bool

    def _ask(self, *entries: Entry) -> None:
        """Put into the inbox what the next step is to take in, together."""
        raise NotImplementedError

    async def submit(self, spec: JobSpec, public_id: str = "") -> tuple[JobRecord, bool]:
        """Hand a valid job in; returns its record, and whether it is new. With a `public_id` of one's own the same job can be
        handed in again without harm. A job larger than the cluster is new, and rejected.

        Raises:
            ConflictError: the id belongs to a job with another spec.
            UserError: an id that is no name, or a demand that can't be met.
        """
        raise NotImplementedError

    async def submit_many(self, jobs: Sequence[tuple[JobSpec, str]]) -> list[tuple[JobRecord, bool] | UserError]:
        """As `submit`, for many jobs in one write; the answers in the order of the jobs."""
        raise NotImplementedError

    async def cancel(self, public_id: str) -> JobRecord:
        """Ask a job to end for good. Nothing happens if it has ended, or has been asked before."""
        raise NotImplementedError

    async def cancel_many(self, public_ids: Sequence[str]) -> list[Answer]:
        """As `cancel`, for many jobs; an id that nobody has is answered with `NoSuchJobError`."""
        raise NotImplementedError

    async def hold_many(self, public_ids: Sequence[str], held: bool) -> list[Answer]:
        """Keep jobs from starting, or let them start again. `UserError` for a job that has ended."""
        raise NotImplementedError

    async def requeue_many(self, public_ids: Sequence[str]) -> list[Answer]:
        """Send running jobs back to the queue. `UserError` for a job that has ended, or is to end."""
        raise NotImplementedError

    async def update(self, public_id: str, update: Update) -> JobRecord:
        """Change a live job.

        Raises:
            UserError: it has ended, or the change is not possible; nothing is done.
        """
        raise NotImplementedError

    def select(self, *, user: str = "", queue: str = "", states: frozenset[Phase] = frozenset()) -> list[JobRecord]:
        """The jobs of a user, in a queue, in one of these phases, the newest last; what is empty selects all."""
        raise NotImplementedError

    def phase(self, job: JobRecord) -> Phase:
        """Where a job stands now."""
        raise NotImplementedError

    async def change(self, make: Callable[[int], EventBatch]) -> None:
        """Journal and apply the events that `make` gives for the journal time. What `make` refuses is raised: nothing is done."""
        raise NotImplementedError

    def find(self, public_id: str) -> JobRecord:
        """A job by its id, or by its number."""
        raise NotImplementedError
