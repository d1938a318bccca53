"""Server-sent events (the HTML standard's `text/event-stream`), and answers that go on for as long as somebody reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headway.api.answers import dumps
from headway.api.auth import Principal
from headway.api.meters import Rates

MEDIA_TYPE = "text/event-stream"
KEEP_ALIVE_S = 15.0
"""A comment is sent after so long a silence, so that nothing between takes the connection for dead, in seconds."""
KEEP_ALIVE = b": still here\n\n"


def wants_events(request: Request) -> bool:
    """Whether the client asks for server-sent events."""
    return MEDIA_TYPE in request.headers.get("accept", "")


def sent_event(event: str, data: dict[str, Any], event_id: str = "") -> bytes:
    """One event; its data are JSON, so they never hold a line break."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {event}\n".encode() + b"data: " + dumps(data) + b"\n\n"


class Stream(StreamingResponse):
    """An answer that goes on. It counts against how many a token may have at once; `TooManyError` if that is too many."""

    def __init__(self, content: AsyncIterator[bytes], media_type: str, rates: Rates, who: Principal) -> None:
        rates.open_stream(who.key)
        super().__init__(content, media_type=media_type, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._rates, self._key = rates, who.key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._rates.close_stream(self._key)
