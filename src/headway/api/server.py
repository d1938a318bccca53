"""The REST interface under /v1, served in the controller's own event loop: where its parts meet, and the server that listens.

`docs/api.md` is the reference for people; `/v1/openapi.json` the one for programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI, Response

from headway import __version__
from headway.api.answers import answer
from headway.api.auth import Access, Guard
from headway.api.batch import add_batch
from headway.api.cluster import add_cluster
from headway.api.context import Api
from headway.api.events import add_events
from headway.api.feed import Feed
from headway.api.jobs import add_jobs
from headway.api.logs import add_logs
from headway.api.meters import Meters, Rates
from headway.api.metrics import add_metrics
from headway.api.mlflow import add_mlflow
from headway.api.problems import Problem, add_problems, problem, problems
from headway.api.reports import add_reports
from headway.api.schemas import EventOut, Health, OneReport
from headway.api.tokens import add_tokens
from headway.api.why import add_why
from headway.app.operate import Reloader
from headway.core.errors import UserError, shown
from headway.runtime.controller import Controller

GRACE_S = 1
"""How long open connections may take when the controller stops, in seconds."""
LOOPBACK = "127.0.0.1"


def make_app(controller: Controller, access: Access, reloader: Reloader | None = None, *, url: str = "") -> FastAPI:
    """The API of a controller that has been started. Without a `reloader`, its settings stay as they are."""
    meters = Meters()
    api = Api(controller, access, meters, Rates(meters), Feed(controller), reloader, url)
    app = FastAPI(
        title="Headway",
        version=__version__,
        summary="A scheduler for training jobs",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(Guard, controller=controller, access=access, meters=meters)
    add_problems(app, controller)
    # The first path that fits answers: what has a fixed name comes before what has a job's.
    add_batch(app, api)
    add_jobs(app, api)
    add_reports(app, api)
    add_mlflow(app, api)
    add_why(app, api)
    add_logs(app, api)
    add_events(app, api)
    add_cluster(app, api)
    add_tokens(app, api)
    add_metrics(app, api)
    _add_health(app, controller)
    _describe(app)
    return app


def _add_health(app: FastAPI, controller: Controller) -> None:
    @app.get("/healthz", response_model=Health, tags=["health"])
    async def healthz() -> Response:
        """That the controller lives. Needs no token."""
        return answer({"status": "ok", "version": __version__})

    @app.get("/readyz", response_model=Health, responses=problems(), tags=["health"])
    async def readyz() -> Response:
        """That the controller takes jobs in: it leads, its journal can be written, and it does not stop. Needs no token."""
        if controller.stopping:
            return problem(503, "the controller is stopping")
        if controller.journal.lost:
            return problem(503, "another controller has taken over")
        return answer({"status": "ready", "version": __version__})


def _describe(app: FastAPI) -> None:
    """Add to the description what no path says for itself: that a token is needed, what the data of an event look like, and
    problems."""
    describe = app.openapi

    def openapi() -> dict[str, object]:
        described = describe()
        components = described.setdefault("components", {})
        components["securitySchemes"] = {"HTTPBearer": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"HTTPBearer": []}]
        schemas = components.setdefault("schemas", {})
        for model in (EventOut, Problem, OneReport):
            schemas.setdefault(model.__name__, model.model_json_schema(ref_template="#/components/schemas/{model}"))
        return described

    app.openapi = openapi  # type: ignore[method-assign]


class _Server(uvicorn.Server):
    """A server that leaves signals to the controller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def is_loopback(host: str) -> bool:
    """Whether an address, or what a name stands for, can be reached from this machine alone."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)


def may_listen(host: str, access: Access) -> None:
    """Refuse to listen where others can reach it while nobody has been given a token of his own: then there is only the
    owner's, and whoever is told that one may do everything.

    Raises:
        UserError: no token has been made.
    """
    if not is_loopback(host) and (access.store is None or not access.store.any_valid()):
        raise UserError(
            f"{shown(host)[1:-1]} can be reached from elsewhere, and nobody has a token of his own: make one first, with: "
            "headway token create NAME",
            key="host",
        )


class ApiServer:
    """The API on a port, in the running event loop."""

    def __init__(
        self, controller: Controller, access: Access, port: int = 0, reloader: Reloader | None = None, *, host: str = LOOPBACK,
    ) -> None:  # fmt: skip
        """Port 0: one that is free.

        Raises:
            UserError: the port is taken, there is no such address, or it is no loopback address and there are no tokens.
        """
        may_listen(host, access)
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        except (OSError, UnicodeError) as error:
            raise UserError(f"there is no address {shown(host)}: {error}", key="host") from None
        # Only where the protocol is named does asyncio set TCP_NODELAY; without it each answer takes 40 ms more.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(address)
        except OSError as error:
            self._socket.close()
            raise UserError(f"can't listen on {host}, port {port}: {error.strerror or error}", key="port") from None
        config = uvicorn.Config(
            make_app(controller, access, reloader, url=self.url),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE_S,
            ws="none",
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where this machine reaches it: an address that stands for all of them is not one to connect to."""
        host, port = self._socket.getsockname()[:2]
        if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
            host = LOOPBACK if self._socket.family == socket.AF_INET else "::1"
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

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
