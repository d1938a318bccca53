"""What waits for the controller's next step: reports of the engine, and what people ask, each with its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.errors import UserError
from headway.core.events import EventBatch
from headway.core.model import JobSpec
from headway.engines.base import EngineEvent, NodeBack, NodeHealth, NodeLost
from headway.runtime.board import JobRecord


@dataclass(slots=True)
class Submission:
    """A job that waits to be taken in; the answer is its record, and whether it is new."""

    spec: JobSpec
    public_id: str
    answer: asyncio.Future[tuple[JobRecord, bool]]


@dataclass(slots=True)
class Cancellation:
    """A job that is to end."""

    number: int
    answer: asyncio.Future[JobRecord]


@dataclass(slots=True)
class Change:
    """What an operator changes: `make` is called with the journal time, in the loop, and gives the events that say so."""

    make: Callable[[int], EventBatch]
    answer: asyncio.Future[None]

    def carry_out(self, now: int, record: Callable[[EventBatch], None]) -> None:
        """Journal it and answer; a `UserError` is answered, and nothing is done."""
        try:
            record(self.make(now))
        except UserError as error:
            self.answer.set_exception(error)
            return
        give(self.answer, None)


Entry = EngineEvent | Submission | Cancellation | Change
OF_PEOPLE = (Submission, Cancellation, Change)
OF_NODES = (NodeLost, NodeBack, NodeHealth)


def refuse(inbox: Sequence[Entry]) -> None:
    """Tell whoever still waits that there will be no answer."""
    for entry in inbox:
        if isinstance(entry, OF_PEOPLE) and not entry.answer.done():
            entry.answer.set_exception(UserError("the controller has stopped"))


def give(future: asyncio.Future[Any], value: object) -> None:
    """Answer, if whoever asked still waits."""
    if not future.done():
        future.set_result(value)
