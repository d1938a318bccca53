"""How the API says no: `application/problem+json` (RFC 9457) with one clear sentence, whatever went wrong."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from headway import __version__
from headway.api.answers import dumps
from headway.app.operate import NoSuchNodeError
from headway.core.errors import UserError, one_line, shown
from headway.runtime.controller import Controller
from headway.runtime.intake import ConflictError, NoSuchJobError
from headway.runtime.rights import FullError
from headway.runtime.tokens import NoSuchTokenError, TokenExistsError

log = logging.getLogger(__name__)

VERSION_HEADER = "X-Headway-Version"
"""On every answer: the controller's version. A client may send its own."""


class Problem(BaseModel):
    """What went wrong (RFC 9457); `detail` is one sentence."""

    title: str
    status: int
    detail: str


class ForbiddenError(UserError):
    """Whoever asks may not."""


class GoneError(UserError):
    """What is asked for is over."""


class TooManyError(UserError):
    """Too much is asked for at once; after `retry_s` it may be asked again."""

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(message)
        self.retry_s = retry_s


_STATUS: tuple[tuple[type[UserError], int], ...] = (
    (NoSuchJobError, 404),
    (NoSuchNodeError, 404),
    (NoSuchTokenError, 404),
    (ConflictError, 409),
    (TokenExistsError, 409),
    (ForbiddenError, 403),
    (GoneError, 410),
    (TooManyError, 429),
    (FullError, 429),
)
FULL_RETRY_S = 10.0
"""When to try again where the queue is full, in seconds."""


def status_of(error: UserError) -> int:
    """The HTTP status of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 422)


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """An error as RFC 9457 wants it."""
    body = {"title": HTTPStatus(status).phrase, "status": status, "detail": one_line(detail)}
    return Response(dumps(body), status, headers, media_type="application/problem+json")


def problems(*statuses: int, also: Mapping[int, dict[str, Any]] | None = None) -> dict[int | str, dict[str, Any]]:
    """What a path may answer beside its result, for OpenAPI: these, what any path may answer, and `also`."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    found: dict[int | str, dict[str, Any]] = dict(also.items()) if also else {}
    for status in sorted({400, 401, 403, 422, 429, 503, *statuses}):
        found[status] = {"description": HTTPStatus(status).phrase, "content": content}
    return found


def add_problems(app: FastAPI, controller: Controller) -> None:
    """Have all errors answered so."""

    @app.exception_handler(UserError)
    async def refused(request: Request, error: UserError) -> Response:
        status = status_of(error)
        if controller.stopping:
            status = 503
        retry_s = error.retry_s if isinstance(error, TooManyError) else FULL_RETRY_S
        return problem(status, str(error), {"Retry-After": str(max(1, round(retry_s)))} if status == 429 else None)

    @app.exception_handler(HTTPException)
    async def not_served(request: Request, error: HTTPException) -> Response:
        detail = str(error.detail)
        if error.status_code == 404:
            detail = f"there is nothing at {request.url.path[:200]}{_other_version(request)}"
        elif error.status_code == 405:
            detail = f"{request.method[:40]} is not possible here{_other_version(request)}"
        return problem(error.status_code, detail, dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def not_understood(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return problem(422, f"{where or 'the body'}: {first['msg']}{_other_version(request)}")

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(500, "an error inside the controller; its log says more")


def _other_version(request: Request) -> str:
    """A hint for a client of another version, which may ask for what this one does not know."""
    client = request.headers.get(VERSION_HEADER, "")
    if not client or client == __version__:
        return ""
    return f" (the client is Headway {shown(client)[1:-1]}, this controller {__version__})"
