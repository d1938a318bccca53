"""What waits for the controller's next step: reports of the engine, and what people ask, each with its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.errors import UserError
from headway.core.events import EMPTY, EventBatch
from headway.core.model import JobSpec
from headway.engines.base import EngineEvent, NodeBack, NodeHealth, NodeLost
from headway.runtime.board import JobRecord


@dataclass(slots=True)
class Submission:
    """A job that waits to be taken in; the answer is its record, and whether it is new."""

    spec: JobSpec
    public_id: str
    answer: asyncio.Future[tuple[JobRecord, bool]]
    held: bool = False
    """Whether it is held from the start."""


@dataclass(slots=True)
class Cancellation:
    """Jobs that are to end, by number."""

    numbers: Sequence[int]
    answer: asyncio.Future[None]


@dataclass(slots=True)
class Change:
    """What somebody changes: `make` is called with the journal time, in the loop, and gives the events that say so."""

    make: Callable[[int], EventBatch]
    answer: asyncio.Future[None]
    quiet: bool = False
    """It makes no round due."""

    def record(self, now: int, record: Callable[..., None]) -> EventBatch:
        """Journal it and answer; returns what there is to carry out. A `UserError` is answered, and nothing is done."""
        try:
            batch = self.make(now)
            record(batch, own=self.quiet)
        except UserError as error:
            if not self.answer.done():
                self.answer.set_exception(error)
            return EMPTY
        give(self.answer, None)
        return batch


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
