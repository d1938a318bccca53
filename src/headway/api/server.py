"""The REST interface under /v1, served in the controller's own event loop.

Every path but /healthz wants the home's bearer token. Errors are `application/problem+json` with one clear sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from headway import __version__
from headway.api.schemas import (
    Health,
    JobDetail,
    JobList,
    JobOut,
    NodeList,
    NodeOut,
    Problem,
    Reload,
    Submitted,
    job_fields,
    node_out,
)
from headway.app import operate
from headway.app.operate import NoSuchNodeError, Reloader
from headway.core.columns import Phase
from headway.core.errors import UserError, did_you_mean, one_line, shown
from headway.core.model import JobSpec, from_json, validate
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller
from headway.runtime.intake import ConflictError, NoSuchJobError

log = logging.getLogger(__name__)

LIST_MAX = 10_000
CHUNK_BYTES = 1 << 16
LOOK_S = 0.1
"""How often a log that is followed is looked at, in seconds."""
WAIT_S_MAX = 30.0
GRACE_S = 1
"""How long open connections may take when the controller stops, in seconds."""
LIVE = frozenset(phase.name.lower() for phase in (Phase.QUEUED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING))
STATES = frozenset(phase.name.lower() for phase in Phase)
OPEN_PATH = "/healthz"


def problem(status: int, detail: str) -> JSONResponse:
    """An error as RFC 9457 wants it."""
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=one_line(detail)).model_dump()
    return JSONResponse(body, status, media_type="application/problem+json")


def body_bytes_max(controller: Controller) -> int:
    """How many bytes a request's body may have."""
    return controller.intake.settings.limits.body_bytes


class Guard:
    """Lets through only requests with the token, and bodies of at most so many bytes as the settings say."""

    def __init__(self, app: ASGIApp, token: str, controller: Controller) -> None:
        self.app, self.token, self.controller = app, token.encode(), controller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == OPEN_PATH:
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not secrets.compare_digest(given.strip(), self.token):
            answer = problem(401, "a bearer token is needed: the one in the file 'token' of the controller's home")
            answer.headers["WWW-Authenticate"] = "Bearer"
            await answer(scope, receive, send)
            return
        length = headers.get(b"content-length", b"0")
        most = body_bytes_max(self.controller)
        if length.isdigit() and int(length) > most:
            await problem(413, f"expected a body of at most {most} bytes")(scope, receive, send)
            return
        await self.app(scope, receive, send)


def make_app(controller: Controller, token: str, reloader: Reloader | None = None) -> FastAPI:
    """The API of a controller that has been started. Without a `reloader`, its settings stay as they are."""
    app = FastAPI(
        title="Headway",
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(HTTPBearer(auto_error=False))],
    )
    app.add_middleware(Guard, token=token, controller=controller)
    _add_errors(app, controller)
    _add_jobs(app, controller)

    _add_operation(app, controller, reloader)

    @app.get(OPEN_PATH)
    async def healthz() -> Health:
        """That the controller lives. Needs no token."""
        return Health(status="ok", version=__version__)

    return app


def _add_operation(app: FastAPI, controller: Controller, reloader: Reloader | None) -> None:
    def found(name: str) -> NodeOut:
        return next(node_out(controller, node) for node in controller.nodes() if node.name == name)

    @app.get("/v1/nodes")
    async def nodes() -> NodeList:
        """All nodes, how many of their GPUs are in use, and why one takes no jobs."""
        return NodeList(nodes=[node_out(controller, node) for node in controller.nodes()])

    @app.post("/v1/nodes/{node}/drain", responses=_PROBLEMS)
    async def drain(node: str, reason: Annotated[str, Query(description="why, for people")] = "") -> NodeOut:
        """Give a node no more jobs; what runs there runs on."""
        await operate.drain(controller, node, reason)
        return found(node)

    @app.post("/v1/nodes/{node}/undrain", responses=_PROBLEMS)
    async def undrain(node: str) -> NodeOut:
        """Give a drained node jobs again; it also ends a quarantine."""
        await operate.undrain(controller, node)
        return found(node)

    @app.post("/v1/reload", responses=_PROBLEMS)
    async def reload() -> Reload:
        """Read the settings again; a file with a mistake changes nothing."""
        if reloader is None:
            raise UserError("this controller has no settings to reload")
        return Reload(**(await reloader.reload()).to_json())


def _add_errors(app: FastAPI, controller: Controller) -> None:
    @app.exception_handler(UserError)
    async def refused(request: Request, error: UserError) -> Response:
        known = 404 if isinstance(error, (NoSuchJobError, NoSuchNodeError)) else 409 if isinstance(error, ConflictError) else 422
        return problem(503 if controller.stopping else known, str(error))

    @app.exception_handler(HTTPException)
    async def not_served(request: Request, error: HTTPException) -> Response:
        what = {404: f"there is nothing at {request.url.path}", 405: f"{request.method} is not possible here"}
        return problem(error.status_code, what.get(error.status_code, str(error.detail)))

    @app.exception_handler(RequestValidationError)
    async def not_understood(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return problem(422, f"{'.'.join(str(part) for part in first['loc'][1:])}: {first['msg']}")

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return problem(500, "an error inside the controller; its log says more")


async def _read_json(request: Request, most: int) -> Any:
    """The body as JSON; of at most `most` bytes, however it is sent."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"expected a body of at most {most} bytes")
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"expected a job in JSON: {error}") from None


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _checked(body: Any) -> JobSpec:
    """The job in a body. It must be able to run wherever the controller stands, so its workdir is absolute."""
    spec = from_json(body)
    for fault in validate(spec):
        raise UserError(f"expected {fault.expected}, got {fault.got}", key=fault.key)
    if not Path(spec.workdir).is_absolute():
        raise UserError(f"expected an absolute path, got {shown(spec.workdir)}", key="workdir")
    return spec


def _states(given: str) -> frozenset[str]:
    """The states that a filter names: a list such as `queued,running`; `live` and `ended` stand for several."""
    wanted: set[str] = set()
    for word in given.lower().split(","):
        if word == "live":
            wanted |= LIVE
        elif word == "ended":
            wanted |= STATES - LIVE
        elif word in STATES:
            wanted.add(word)
        else:
            known = [*sorted(STATES), "live", "ended"]
            raise UserError(
                f"unknown state {shown(word)}{did_you_mean(word, known) or '; known: ' + ', '.join(known)}", key="state"
            )
    return frozenset(wanted)


def _add_jobs(app: FastAPI, controller: Controller) -> None:
    @app.post("/v1/jobs", status_code=201, openapi_extra=_JOB_BODY, responses=_PROBLEMS)
    async def submit(
        request: Request,
        response: Response,
        id: Annotated[str, Query(description="an id of one's own: the same job may be handed in again under it")] = "",
    ) -> Submitted:
        """Hand a job in. 201 when it is new, 200 when it had been handed in before; it is safe in the journal then."""
        spec = _checked(await _read_json(request, body_bytes_max(controller)))
        job, created = await controller.submit(spec, id)
        response.status_code = 201 if created else 200
        fields = job_fields(controller, job)
        return Submitted(created=created, **{key: fields[key] for key in ("job", "number", "state", "reason", "message", "note")})

    @app.get("/v1/jobs", responses=_PROBLEMS)
    async def list_jobs(
        state: Annotated[str, Query(description="states, parted by commas; also `live` and `ended`; default: all")] = "",
        queue: Annotated[str, Query()] = "",
        user: Annotated[str, Query()] = "",
        limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 1000,
    ) -> JobList:
        """Jobs by number; of many, the newest."""
        wanted = _states(state) if state else STATES
        found = [
            fields
            for job in list(controller.board)
            if (not queue or job.queue == queue) and (not user or job.user == user) and (job.ended or wanted & LIVE)
            if (fields := job_fields(controller, job))["state"] in wanted
        ]
        kept = found[-limit:]
        return JobList(jobs=[JobOut(**fields) for fields in kept], more=len(found) - len(kept))

    @app.get("/v1/jobs/{job_id}", responses=_PROBLEMS)
    async def show(
        job_id: str,
        wait: Annotated[float, Query(ge=0, le=WAIT_S_MAX, description="seconds to wait for its end before answering")] = 0.0,
    ) -> JobDetail:
        """One job, and what was handed in."""
        job = controller.find(job_id)
        if wait:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    while not job.ended and not controller.stopping:
                        await controller.changed(wait)
        return JobDetail(spec=json.loads(job.spec) if job.spec else {}, **job_fields(controller, job))

    @app.post("/v1/jobs/{job_id}/cancel", responses=_PROBLEMS)
    async def cancel(job_id: str) -> JobOut:
        """Ask a job to end for good; nothing happens if it has ended."""
        return JobOut(**job_fields(controller, await controller.cancel(job_id)))

    @app.get("/v1/jobs/{job_id}/logs", responses=_PROBLEMS, response_class=StreamingResponse)
    async def logs(
        job_id: str,
        rank: Annotated[int, Query(ge=0)] = 0,
        attempt: Annotated[int, Query(ge=0, description="0: the newest")] = 0,
        offset: Annotated[int, Query(ge=0, description="bytes to skip")] = 0,
        follow: Annotated[bool, Query(description="go on until the job has ended, over all its attempts")] = False,
    ) -> StreamingResponse:
        """The output of one task, as it was written."""
        job = controller.find(job_id)
        if rank >= job.tasks:
            raise UserError(f"the job has {job.tasks} tasks, ranks 0 to {job.tasks - 1}, got {rank}", key="rank")
        if attempt > job.attempt:
            raise UserError(f"the job has had {job.attempt} attempts, got {attempt}", key="attempt")
        return StreamingResponse(_log(controller, job, rank, attempt, offset, follow), media_type="text/plain; charset=utf-8")


async def _log(
    controller: Controller, job: JobRecord, rank: int, attempt: int, offset: int, follow: bool
) -> AsyncIterator[bytes]:
    """The bytes of a log; with `follow` also those that are still to come, of this attempt and of later ones."""
    at, only = attempt or job.attempt, attempt > 0
    while True:
        over = job.ended or job.attempt > at or controller.stopping
        for chunk in _chunks(controller.log_path(job, at, rank), offset):
            offset += len(chunk)
            yield chunk
            await asyncio.sleep(0)
        if not follow or controller.stopping:
            return
        if not over:
            await (asyncio.sleep(LOOK_S) if job.started_us is not None else controller.changed(LOOK_S))
        elif job.attempt > at and not only:
            at, offset = job.attempt, 0
        else:
            return


def _chunks(path: Path, offset: int) -> Iterator[bytes]:
    """What a file holds from `offset` on; nothing if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError:
        return


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "content": {"application/problem+json": {}}} for status in (400, 401, 404, 409, 413, 422)
}
_JOB_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": 'A job: the keys of the job file under `"schema": 1`, as `headway.core.model.to_json` writes them.',
        "content": {"application/json": {"schema": {"type": "object", "required": ["schema", "name", "run", "workdir"]}}},
    }
}


class _Server(uvicorn.Server):
    """A server that leaves signals to the controller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ApiServer:
    """The API on a loopback port, in the running event loop."""

    def __init__(self, controller: Controller, token: str, port: int = 0, reloader: Reloader | None = None) -> None:
        """`UserError` if the port is taken. Port 0: one that is free."""
        # Only where the protocol is named does asyncio set TCP_NODELAY; without it each answer takes 40 ms more.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
        except OSError as error:
            self._socket.close()
            raise UserError(f"can't listen on port {port}: {error.strerror or error}", key="port") from None
        config = uvicorn.Config(
            make_app(controller, token, reloader),
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            ws="none",
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    async def start(self) -> None:
        """Listen; returns once connections are taken."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="headway-api")
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            self._task.result()
            raise UserError("the API could not be started", key="port")

    async def close(self) -> None:
        """Listen no more; what is being answered may end."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()
