"""`GET /v1/jobs/{id}/logs`: the output of one task, as it was written, or as server-sent events."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Header, Query, Request
from fastapi.responses import StreamingResponse

from headway.api.auth import Person, still_valid, visible
from headway.api.context import Api
from headway.api.jobs import JobId
from headway.api.jobviews import job_json
from headway.api.problems import problems
from headway.api.streams import KEEP_ALIVE, KEEP_ALIVE_S, MEDIA_TYPE, Stream, sent_event, wants_events
from headway.core.errors import UserError
from headway.runtime.board import JobRecord

CHUNK_BYTES = 1 << 16
LOOK_S = 0.1
"""How often a log that is followed is looked at, in seconds."""
VALID_LOOKS = 10
"""At every so many looks, whether the token still opens anything."""
TEXT = "text/plain; charset=utf-8"
_TEXT = {"schema": {"type": "string"}}
COUNT_MAX = 1 << 62


def add_logs(app: FastAPI, api: Api) -> None:
    """Declare the path."""
    controller = api.controller

    @app.get(
        "/v1/jobs/{job_id}/logs", response_class=StreamingResponse, tags=["jobs"],
        responses=problems(404, also={200: {"content": {"text/plain": _TEXT, MEDIA_TYPE: _TEXT}}}),
    )  # fmt: skip
    async def logs(
        request: Request,
        who: Person,
        job_id: JobId,
        rank: Annotated[int, Query(ge=0, le=COUNT_MAX)] = 0,
        attempt: Annotated[int, Query(ge=0, le=COUNT_MAX, description="0: the newest")] = 0,
        offset: Annotated[int, Query(ge=0, le=COUNT_MAX, description="bytes to skip")] = 0,
        follow: Annotated[bool, Query(description="go on until the job has ended, over all its attempts")] = False,
        last_event_id: Annotated[
            str, Header(pattern="^([0-9]{1,18}-)?[0-9]{0,18}$", description="ATTEMPT-OFFSET or OFFSET, from where to go on")
        ] = "",
    ) -> StreamingResponse:
        """The output of one task, as it was written. With `Accept: text/event-stream` as events: `data` is
        `{"attempt", "rank", "offset", "text"}`, `id` is where to go on (ATTEMPT-OFFSET), they follow the job, and `end` is the
        last."""
        api.rates.take("logs", who.key, 1, controller.intake.settings.limits.logs_per_s)
        job = visible(controller, who, job_id)
        if rank >= job.tasks:
            raise UserError(f"the job has {job.tasks} tasks, ranks 0 to {job.tasks - 1}, got {rank}", key="rank")
        only = attempt > 0
        if last_event_id and wants_events(request):
            of, _, at = last_event_id.rpartition("-")
            attempt, offset = int(of) if of else attempt, int(at or 0)
        if attempt > job.attempt:
            raise UserError(f"the job has had {job.attempt} attempts, got {attempt}", key="attempt")
        look = _Look(api, request, job, rank, attempt or job.attempt, offset, only)
        if wants_events(request):
            return Stream(look.events(), MEDIA_TYPE, api.rates, who)
        return Stream(look.raw(follow), TEXT, api.rates, who)


class _Look:
    """One look at a task's output: where it is, and how it goes on."""

    def __init__(self, api: Api, request: Request, job: JobRecord, rank: int, attempt: int, offset: int, only: bool) -> None:
        self.api, self.request, self.job, self.rank = api, request, job, rank
        self.attempt, self.offset, self.only = attempt, offset, only

    async def raw(self, follow: bool) -> AsyncIterator[bytes]:
        """What was written; with `follow` also what is still to come, of this attempt and of later ones."""
        async for chunk in self._chunks(follow):
            if chunk:
                yield chunk

    async def events(self) -> AsyncIterator[bytes]:
        """The same as events. A character that is not whole yet waits for its rest, and so does the offset."""
        decoder, of, quiet_s = codecs.getincrementaldecoder("utf-8")("replace"), self.attempt, 0.0
        yield KEEP_ALIVE
        async for chunk in self._chunks(True):
            if self.attempt != of:
                decoder.reset()
                of = self.attempt
            text = decoder.decode(chunk) if chunk else ""
            if text:
                begin = self.offset - len(chunk)
                data = {"attempt": of, "rank": self.rank, "offset": begin, "text": text}
                yield sent_event("log", data, f"{of}-{self.offset - len(decoder.getstate()[0])}")
            quiet_s = 0.0 if text else quiet_s + LOOK_S
            if quiet_s >= KEEP_ALIVE_S:
                quiet_s = 0.0
                yield KEEP_ALIVE
        ended = job_json(self.api.controller, self.job)
        yield sent_event("end", {key: ended[key] for key in ("job", "state", "reason", "exit_code")})

    async def _chunks(self, follow: bool) -> AsyncIterator[bytes]:
        """Pieces as they come; an empty one after each look that has found nothing."""
        controller, job, looks = self.api.controller, self.job, 0
        while True:
            over = job.ended or job.attempt > self.attempt or controller.stopping
            for chunk in _read(controller.log_path(job, self.attempt, self.rank), self.offset):
                self.offset += len(chunk)
                yield chunk
                await asyncio.sleep(0)
            if not follow or controller.stopping:
                return
            if not over:
                yield b""
                looks += 1
                if looks % VALID_LOOKS == 0 and not still_valid(self.api.access, controller, self.request):
                    return
                await (asyncio.sleep(LOOK_S) if job.started_us is not None else controller.changed(LOOK_S))
            elif job.attempt > self.attempt and not self.only:
                self.attempt, self.offset = job.attempt, 0
            else:
                return


def _read(path: Path, offset: int) -> Iterator[bytes]:
    """What a file holds from `offset` on; nothing if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except (OSError, OverflowError):
        return
