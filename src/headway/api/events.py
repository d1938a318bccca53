"""`GET /v1/events`: what the journal says, as it happens. A user hears of his own jobs, an operator of all and of the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request
from fastapi.responses import StreamingResponse

from headway.api.auth import Person, Principal, still_valid
from headway.api.context import Api
from headway.api.feed import Event, read_after, reason_in
from headway.api.problems import problems
from headway.api.streams import KEEP_ALIVE, KEEP_ALIVE_S, MEDIA_TYPE, Stream, sent_event
from headway.core import columns as c
from headway.core.columns import EventKind, Name, Reason
from headway.core.errors import UserError, did_you_mean, shown
from headway.runtime.tokens import Role

_OF_NODES = frozenset({EventKind.NODE_ADDED, EventKind.NODE_UP, EventKind.NODE_DOWN, EventKind.NODE_DRAINING})
_OF_NONE = frozenset({
    EventKind.NAMED, EventKind.QUEUE_SET, EventKind.CLUSTER_SET, EventKind.SETTINGS_SET, EventKind.ROUND, EventKind.EPOCH,
    EventKind.SHADOWED, EventKind.GUARDED,
})  # fmt: skip
_SECRET_TEXT = frozenset({EventKind.SUBMITTED, EventKind.EPOCH, EventKind.SETTINGS_SET})
"""Their text is not for people: a job's whole file, with its environment, a clock, settings."""
USUAL = frozenset({
    EventKind.NODE_ADDED, EventKind.NODE_UP, EventKind.NODE_DOWN, EventKind.NODE_DRAINING, EventKind.SETTINGS_SET,
    EventKind.SUBMITTED, EventKind.REJECTED, EventKind.CANCEL_REQUESTED, EventKind.HOLD_SET, EventKind.PRIORITY_SET,
    EventKind.START_REQUESTED, EventKind.STOP_REQUESTED, EventKind.FINISHED, EventKind.RULE_SET, EventKind.REFUSED,
    EventKind.STARTED, EventKind.START_FAILED, EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED, EventKind.OBSERVED,
    EventKind.SAVED, EventKind.EPOCH, EventKind.GUARDED,
})  # fmt: skip
"""What is told unless `kinds` says otherwise: what happens to jobs and nodes, but not what rounds think."""
WORDS = {kind.name.lower().replace("_", "-"): kind for kind in EventKind}
_WORD_OF = {kind: word for word, kind in WORDS.items()}


def add_events(app: FastAPI, api: Api) -> None:
    """Declare the path."""

    @app.get(
        "/v1/events", responses=problems(also={200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}}),
        response_class=StreamingResponse, tags=["cluster"],
    )  # fmt: skip
    async def events(
        request: Request,
        who: Person,
        since: Annotated[
            int | None, Query(ge=0, le=1 << 62, description="only events after this number; 0: all; default: only new ones")
        ] = None,
        kinds: Annotated[str, Query(description="kinds, parted by commas; `all`; default: those of jobs and nodes")] = "",
        follow: Annotated[bool, Query(description="false: end when there are no more for now")] = True,
        last_event_id: Annotated[str, Header(pattern="^[0-9]{0,18}$", description="as `since`, and above it")] = "",
    ) -> StreamingResponse:
        """The journal's events as server-sent events: `id` is the event's number, `event` its kind, `data` an `EventOut`."""
        after = int(last_event_id) if last_event_id else api.feed.last if since is None else since
        wanted = _kinds(kinds)
        return Stream(_events(api, request, who, min(after, api.feed.last), wanted, follow), MEDIA_TYPE, api.rates, who)


def _kinds(given: str) -> frozenset[EventKind]:
    if not given:
        return USUAL
    if given == "all":
        return frozenset(EventKind)
    found = set()
    for word in given.lower().split(","):
        if word not in WORDS:
            raise UserError(f"unknown kind {shown(word)}{did_you_mean(word, WORDS)}", key="kinds")
        found.add(WORDS[word])
    return frozenset(found)


async def _events(
    api: Api, request: Request, who: Principal, since: int, wanted: frozenset[EventKind], follow: bool
) -> AsyncIterator[bytes]:
    controller = api.controller
    yield KEEP_ALIVE  # the client knows that it is connected
    while not controller.stopping and still_valid(api.access, controller, request):
        found = api.feed.after(since)
        if found is None:
            found = await asyncio.to_thread(read_after, api.feed.journal, since)
        for event in found:
            told = event_json(api, who, event) if event.record[c.E_KIND] in wanted else None
            if told is not None:
                yield sent_event(told["kind"], told, str(event.seq))
        if found:
            since = found[-1].seq
            await asyncio.sleep(0)
        elif not follow:
            return
        else:
            yield KEEP_ALIVE
        if since >= api.feed.last:
            if not follow:
                return
            await controller.changed(KEEP_ALIVE_S)


def event_json(api: Api, who: Principal, event: Event) -> dict[str, Any] | None:
    """The fields of `EventOut`; None where it is not for whoever asks."""
    controller, kind, subject = api.controller, EventKind(int(event.record[c.E_KIND])), int(event.record[c.E_ID])
    names, operator = controller.state.names, who.is_at_least(Role.OPERATOR)
    of_job = kind not in _OF_NODES and kind not in _OF_NONE and not (kind == EventKind.REFUSED and subject == 0)
    job = controller.board.by_number(subject) if of_job else None
    if not operator and (job is None or not who.sees(job)):
        return None
    reason = reason_in(event)
    told: dict[str, Any] = {
        "seq": event.seq,
        "t": controller.calendar.wall(int(event.record[c.E_T])),
        "kind": _WORD_OF[kind],
        "job": (job.id if job is not None else names[Name.JOB].get(subject, str(subject))) if of_job else None,
        "attempt": int(event.record[c.E_ATTEMPT]) if of_job else None,
        "node": names[Name.NODE].get(subject, str(subject)) if kind in _OF_NODES else None,
        "reason": "" if reason is Reason.NONE else reason.word,
        "message": "" if kind in _SECRET_TEXT else event.text,
    }
    if kind == EventKind.OBSERVED:
        loss, accuracy = int(event.record[c.E_B]), int(event.record[c.E_C])
        told |= {
            "step": int(event.record[c.E_A]),
            "loss": None if loss == c.NOTHING else loss / 1e9,
            "accuracy": None if accuracy == c.NOTHING else accuracy / 1e6,
        }
    elif kind == EventKind.SAVED:
        told["step"] = int(event.record[c.E_A])
    return told
