"""Who asks: the guard before all paths, and what each role may do.

Three kinds of token open the API: the one in the home's file `token` (its owner's, an admin's), those that `headway token`
makes (`runtime.tokens`), and those of tasks (`JobTokens`), which die with their attempt. The guard finds out who it is; a path
says by the type of its argument (`Someone`, `Person`, `Operator`, `Admin`) whom it wants. What a user may not see is not there
for him: 404, not 403.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from fastapi import Depends, Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway import __version__
from headway.api.meters import Meters
from headway.api.problems import VERSION_HEADER, ForbiddenError, GoneError, problem
from headway.core.errors import shown
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller
from headway.runtime.intake import NoSuchJobError
from headway.runtime.jobtokens import is_present
from headway.runtime.tokens import Role, TokenStore

OPEN = frozenset({"/healthz", "/readyz", "/v1/openapi.json"})
"""Paths that need no token."""
VERSION = (VERSION_HEADER.lower().encode(), __version__.encode())


class JobTokens(Protocol):
    """The tokens of tasks."""

    def read(self, token: str) -> tuple[int, int] | None:
        """The job and the attempt that a token was made for; None for one that is not ours."""
        ...


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks."""

    key: str
    """Tells this token from others: what rates are counted by."""
    name: str
    """Of the token."""
    user: str
    role: Role | None
    """None: a task."""
    job: int = 0
    attempt: int = 0
    """Of a task."""

    @property
    def word(self) -> str:
        return "task" if self.role is None else self.role.word

    def is_at_least(self, role: Role) -> bool:
        return self.role is not None and self.role >= role

    def sees(self, job: JobRecord) -> bool:
        """Whether a job is there for whoever asks."""
        if self.role is None:
            return job.number == self.job
        return self.role >= Role.OPERATOR or job.user == self.user


@dataclass(slots=True)
class Access:
    """Who may talk to a controller.

    `owner_token`: the home's own; `owner`: the user whose it is. Without a `store` or `job_tokens` there are no others.
    """

    owner_token: str
    owner: str = ""
    store: TokenStore | None = None
    job_tokens: JobTokens | None = None

    def who(self, token: str) -> Principal | None:
        """Whose token it is; None for one that opens nothing. Whether a task's attempt still lives is not looked at."""
        if not token:
            return None
        if secrets.compare_digest(token.encode(), self.owner_token.encode()):
            return Principal("owner", "", self.owner, Role.ADMIN)
        if self.store is not None and (found := self.store.find(token)) is not None:
            return Principal(f"token:{found.name}", found.name, found.user, found.role)
        if self.job_tokens is not None and (task := self.job_tokens.read(token)) is not None:
            return Principal(f"job:{task[0]}", "", "", None, *task)
        return None

    def has_expired(self, token: str) -> bool:
        """Whether a token has been good once."""
        return self.store is not None and self.store.has_expired(token)


@dataclass(slots=True)
class Guard:
    """Lets through only requests with a token that is good now, and bodies that are not too large; adds the version to every
    answer, and counts them."""

    app: ASGIApp
    controller: Controller
    access: Access
    meters: Meters = field(default_factory=Meters)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), VERSION]
            await send(message)

        try:
            await self._answer(scope, receive, told)
        finally:
            route = getattr(scope.get("route"), "path", "")
            self.meters.count(str(scope["method"]), route, status, time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if scope["path"] not in OPEN:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            who = self.access.who(given.strip().decode("latin-1")) if scheme.lower() == b"bearer" else None
            if who is None:
                expired = self.access.has_expired(given.strip().decode("latin-1"))
                detail = "this token has expired: ask for a new one" if expired else _NO_TOKEN
                await problem(401, detail, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
            if who.role is None and not is_present(self.controller.state, who.job, who.attempt):
                detail = f"attempt {who.attempt} of job {who.job} is over, and its token with it"
                await problem(410, detail)(scope, receive, send)
                return
            scope.setdefault("state", {})["who"] = who
        length, most = headers.get(b"content-length", b"0"), body_bytes_max(self.controller)
        if length.isdigit() and int(length[:20]) > most:
            await problem(413, f"expected a body of at most {most} bytes")(scope, receive, send)
            return
        # All bodies are JSON, whatever a client such as curl calls them.
        others = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
        scope["headers"] = [*others, (b"content-type", b"application/json")]
        await self.app(scope, _limited(receive, most), send)


def _limited(receive: Receive, most: int) -> Receive:
    """The same messages, but no more bytes of a body than these, however it is sent."""
    left = most

    async def limited() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, f"expected a body of at most {most} bytes")
        return message

    return limited


_NO_TOKEN = (
    "a bearer token is needed: one that 'headway token' has made and that is still valid, or the one in the file 'token' of the "
    "controller's home"
)


def body_bytes_max(controller: Controller) -> int:
    """How many bytes a request's body may have."""
    return controller.intake.settings.limits.body_bytes


# -- what a path wants ----------------------------------------------------------------------------------------------
def _someone(request: Request) -> Principal:
    who: Principal = request.state.who
    return who


def _at_least(role: Role) -> Callable[[Request], Awaitable[Principal]]:
    async def person(request: Request) -> Principal:
        who = _someone(request)
        if not who.is_at_least(role):
            wanted = "a person" if role is Role.USER else f"an {role.word}"
            raise ForbiddenError(f"this is for {wanted}, and the token is that of a {who.word}")
        return who

    return person


async def _anyone(request: Request) -> Principal:
    return _someone(request)


Someone = Annotated[Principal, Depends(_anyone)]
"""A person, or a task about its own job."""
Person = Annotated[Principal, Depends(_at_least(Role.USER))]
Operator = Annotated[Principal, Depends(_at_least(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(_at_least(Role.ADMIN))]


def visible(controller: Controller, who: Principal, job_id: str) -> JobRecord:
    """A job by its id or number. `NoSuchJobError` if there is none, or it is not there for whoever asks."""
    job = controller.find(job_id)
    if not who.sees(job):
        raise NoSuchJobError(f"there is no job {shown(job_id)}")
    return job


def still_valid(access: Access, controller: Controller, request: Request) -> bool:
    """Whether the token of a request that is still being answered has not been revoked meanwhile."""
    _, _, given = request.headers.get("authorization", "").partition(" ")
    who = access.who(given.strip())
    return who is not None and (who.role is not None or is_present(controller.state, who.job, who.attempt))


def of_attempt(who: Principal, job: JobRecord, attempt: int) -> None:
    """Refuse what is said in the name of another attempt than the present one. `GoneError`."""
    mine = who.attempt if who.role is None else attempt
    if attempt != mine or attempt != job.attempt or job.ended:
        raise GoneError(f"attempt {attempt} of job {shown(job.id)} is over")
