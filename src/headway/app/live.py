"""What people do with a running controller, over its API: hand jobs in, look, read logs, cancel. Functions of a `Client`."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from headway.core.errors import UserError, shown
from headway.core.model import JobSpec, to_json
from headway.runtime.home import find_home

Json = dict[str, Any]
CONNECT_S = 5.0
ANSWER_S = 60.0
WAIT_S = 20.0
"""How long one request for a job's end waits before it is asked again, in seconds."""
AGAIN_S = 0.2
GONE_S = 30.0
"""How long a controller that is waited for may be away (while it is restarted), in seconds."""
START_ONE = "start one with: headway up"
FINAL = frozenset({"completed", "failed", "cancelled", "rejected"})


class NoControllerError(UserError):
    """Nobody answers."""


@dataclass(frozen=True, slots=True)
class Client:
    """Where the controller is, and the token that it wants."""

    url: str
    token: str

    @contextmanager
    def _http(self, timeout_s: float | None = ANSWER_S) -> Iterator[httpx.Client]:
        """A connection; what goes wrong with it is a `UserError` of one line."""
        # A proxy for the outside world must not be asked for a controller on this machine.
        local = (urlsplit(self.url).hostname or "") in ("127.0.0.1", "localhost", "::1")
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
            with httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=not local) as http:
                yield http
        except httpx.ConnectError:
            raise NoControllerError(f"no controller answers at {self.url}; {START_ONE}") from None
        except httpx.TimeoutException:
            raise UserError(f"the controller at {self.url} does not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoControllerError(f"the controller at {self.url} has gone while it answered: {error}") from None

    def ask(self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None) -> Json:
        """One request; its JSON. `UserError` with the controller's sentence if it refuses."""
        with self._http() as http:
            answer = http.request(method, path, params=dict(params or {}), json=body)
            _refuse(answer)
            return _object(answer)

    def stream(self, path: str, params: Mapping[str, Any]) -> Iterator[bytes]:
        """The bytes of an answer, as they come; for as long as they come."""
        with self._http(None) as http, http.stream("GET", path, params=dict(params)) as answer:
            if answer.is_error:
                answer.read()
            _refuse(answer)
            yield from answer.iter_raw()


def connect(environment: Mapping[str, str]) -> Client:
    """The controller that `HEADWAY_URL` and `HEADWAY_TOKEN` name, or the one of `HEADWAY_HOME`.

    Raises:
        NoControllerError: no controller has said where it listens.
    """
    home = find_home(environment)
    url = environment.get("HEADWAY_URL") or str(home.address().get("url", ""))
    if not url:
        raise NoControllerError(f"no controller runs on the home {home.root}; {START_ONE}")
    if urlsplit(url).scheme not in ("http", "https"):
        raise UserError(f"expected a URL such as http://127.0.0.1:8080, got {shown(url)}", key="HEADWAY_URL")
    token = environment.get("HEADWAY_TOKEN") or home.read_token()
    if not token.isascii() or not token.isprintable():
        raise UserError("expected a token of plain letters and digits", key="HEADWAY_TOKEN")
    return Client(url.rstrip("/"), token)


def prepared(spec: JobSpec) -> JobSpec:
    """A job as it is handed in from here: its owner is this user, its workdir no longer depends on where one stands."""
    workdir = os.path.abspath(Path(spec.workdir).expanduser())
    return replace(spec, user=spec.user or _user(), workdir=workdir)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def submit(client: Client, spec: JobSpec, *, job_id: str = "") -> Json:
    """Hand a job in; what the controller says of it."""
    return client.ask("POST", "/v1/jobs", params={"id": job_id} if job_id else None, body=to_json(spec, compact=True))


def queue(client: Client, *, states: Sequence[str] = (), name: str = "", user: str = "", limit: int = 1000) -> Json:
    """Jobs in these states (`live` and `ended` stand for several), of a queue, of a user; the newest `limit`."""
    params = {"state": ",".join(states), "queue": name, "user": user, "limit": limit}
    return client.ask("GET", "/v1/jobs", params={key: value for key, value in params.items() if value})


def show(client: Client, job_id: str) -> Json:
    """One job."""
    return client.ask("GET", _path(job_id))


def why(client: Client, job_id: str) -> Json:
    """Why a job is, or is not, running, and when it will."""
    return client.ask("GET", f"{_path(job_id)}/why")


def cancel(client: Client, job_id: str) -> Json:
    """Ask a job to end for good."""
    return client.ask("POST", f"{_path(job_id)}/cancel")


def nodes(client: Client) -> Json:
    """All nodes."""
    return client.ask("GET", "/v1/nodes")


def drain(client: Client, node: str, reason: str = "") -> Json:
    """Give a node no more jobs; the node."""
    return client.ask("POST", f"{_node_path(node)}/drain", params={"reason": reason} if reason else None)


def undrain(client: Client, node: str) -> Json:
    """Give a drained node jobs again; the node."""
    return client.ask("POST", f"{_node_path(node)}/undrain")


def reload(client: Client) -> Json:
    """Have the controller read its settings again; what has changed."""
    return client.ask("POST", "/v1/reload")


def logs(
    client: Client, job_id: str, *, rank: int = 0, attempt: int = 0, offset: int = 0, follow: bool = False
) -> Iterator[bytes]:
    """The output of one task of a job."""
    params = {"rank": rank, "attempt": attempt, "offset": offset, "follow": follow}
    return client.stream(f"{_path(job_id)}/logs", params)


def wait(client: Client, job_id: str, find: Callable[[], Client]) -> Json:
    """Wait for a job's end; the job then. One controller may follow another meanwhile: `find` finds the new one."""
    away_since: float | None = None
    while True:
        try:
            found = client.ask("GET", _path(job_id), params={"wait": WAIT_S})
            away_since = None
        except NoControllerError:
            away_since = time.monotonic() if away_since is None else away_since
            if time.monotonic() - away_since > GONE_S:
                raise
            time.sleep(AGAIN_S)
            with suppress(NoControllerError):
                client = find()
            continue
        if found["state"] in FINAL:
            return found


def _path(job_id: str) -> str:
    if not job_id or job_id in (".", ".."):
        raise UserError(f"there is no job {shown(job_id)}")
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _node_path(node: str) -> str:
    if not node or node in (".", ".."):
        raise UserError(f"there is no node {shown(node)}")
    return f"/v1/nodes/{quote(node, safe='')}"


def _refuse(answer: httpx.Response) -> None:
    """Raise what the controller's problem report says."""
    if not answer.is_error:
        return
    if answer.status_code == 401:
        raise UserError("the controller refuses the token: set HEADWAY_TOKEN, or HEADWAY_HOME to the controller's home")
    try:
        detail = str(_object(answer)["detail"])
    except (UserError, KeyError):
        detail = f"the controller answers {answer.status_code} {answer.reason_phrase}"
    raise UserError(detail)


def _object(answer: httpx.Response) -> Json:
    try:
        found = answer.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"what answers at {answer.url.scheme}://{answer.url.netloc.decode()} is no Headway controller")
    return found
