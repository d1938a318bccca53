"""The connection to a controller: one for each command. Whatever goes wrong with it is one line that says what to do next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from headway import __version__
from headway.core.errors import UserError, one_line, shown
from headway.runtime.home import find_home

Json = dict[str, Any]
CONNECT_S = 5.0
ANSWER_S = 60.0
START_ONE = "start one with: headway up"
EVENT_BYTES_MAX = 1 << 24
VERSION_HEADER = "X-Headway-Version"
"""On every request: this version. On every answer: the controller's."""


class NoControllerError(UserError):
    """Nobody answers."""


class Client:
    """Where the controller is, the token that it wants, and the one connection to it, which is made when it is needed."""

    def __init__(self, url: str, token: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url, self.token = url, token
        self._transport = transport
        self._connection: httpx.Client | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def move(self, other: Client) -> None:
        """Talk to where another one points: a controller that has followed this one."""
        self.close()
        self.url, self.token = other.url, other.token

    def close(self) -> None:
        """End the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> httpx.Client:
        if self._connection is None:
            # A proxy for the outside world must not be asked for a controller on this machine.
            local = (urlsplit(self.url).hostname or "") in ("127.0.0.1", "localhost", "::1")
            self._connection = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {self.token}", VERSION_HEADER: __version__},
                timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
                trust_env=not local,
                transport=self._transport,
            )
        return self._connection

    @contextmanager
    def _http(self) -> Iterator[httpx.Client]:
        """The connection; what goes wrong with it is a `UserError` of one line."""
        try:
            yield self._connected()
        except httpx.ConnectError as error:
            raise self._unreachable(error) from None
        except httpx.TimeoutException:
            raise UserError(f"the controller at {self.url} does not answer in time") from None
        except httpx.RemoteProtocolError as error:
            if "illegal" in str(error) and self.url.startswith("http:"):
                raise UserError(
                    f"what answers at {self.url} does not speak HTTP; perhaps HTTPS: set HEADWAY_URL to https://{self.url[7:]}"
                ) from None
            raise NoControllerError(f"the controller at {self.url} has gone while it answered: {error}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoControllerError(f"the controller at {self.url} has gone while it answered: {error}") from None

    def _unreachable(self, error: httpx.ConnectError) -> UserError:
        said = one_line(str(error))
        if "CERTIFICATE_VERIFY" in said:
            return UserError(f"the certificate of {self.url} is not trusted; SSL_CERT_FILE names one that is")
        if "SSL" in said:
            return UserError(f"what answers at {self.url} does not speak HTTPS; set HEADWAY_URL to http://{self.url[8:]}")
        if "Name or service" in said or "resolution" in said or "nodename" in said:
            host = urlsplit(self.url).hostname
            return NoControllerError(f"there is no host {shown(host)}: check HEADWAY_URL, which is {self.url}")
        return NoControllerError(f"no controller answers at {self.url}; {START_ONE}")

    def ask(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None, keys: Sequence[str] = ()
    ) -> Json:
        """One request; its JSON, which must have these keys. `UserError` with the controller's sentence if it refuses."""
        with self._http() as http:
            answer = http.request(method, path, params=dict(params or {}), json=body)
        self._refuse(answer)
        found = {} if answer.status_code == 204 else self._object(answer)
        if any(key not in found for key in keys):
            raise self._other(answer, f"what answers at {self.url} is no Headway controller; check HEADWAY_URL")
        return found

    def stream(self, path: str, params: Mapping[str, Any], accept: str = "*/*") -> Iterator[bytes]:
        """The bytes of an answer, as they come; for as long as they come."""
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        headers = {"Accept": accept}
        with self._http() as http, http.stream("GET", path, params=dict(params), headers=headers, timeout=timeout) as answer:
            if answer.is_error:
                answer.read()
            self._refuse(answer)
            yield from answer.iter_bytes()

    def events(self, path: str, params: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
        """The events of a stream of server-sent events: the id of each (or nothing), and its data, an object in JSON."""
        number, data, rest = "", "", b""
        for chunk in self.stream(path, params, "text/event-stream"):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) + len(data) > EVENT_BYTES_MAX:
                raise UserError(f"expected events of at most {EVENT_BYTES_MAX} bytes from {self.url}")
            for line in lines:
                field, _, value = line.decode("utf-8", "replace").rstrip("\r").partition(":")
                value = value.removeprefix(" ")
                if field == "id":
                    number = value
                elif field == "data":
                    data += value
                elif not field and not value and data:
                    yield number, self._parsed(data)
                    number, data = "", ""

    def _parsed(self, text: str) -> Json:
        try:
            found = json.loads(text)
        except json.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise UserError(f"what answers at {self.url} is no Headway controller; check HEADWAY_URL")
        return found

    def _refuse(self, answer: httpx.Response) -> None:
        """Raise what the controller's problem report says."""
        if not answer.is_error:
            return
        try:
            report = self._object(answer)
        except UserError:
            report = {}
        detail = report.get("detail")
        if answer.status_code == 401:
            raise UserError("the controller refuses the token: set HEADWAY_TOKEN, or HEADWAY_HOME to the controller's home")
        if not isinstance(detail, str):
            if answer.status_code in (404, 405):
                raise self._other(answer, f"what answers at {self.url} is no Headway controller; check HEADWAY_URL")
            raise UserError(f"the server at {self.url} answers {answer.status_code} {one_line(answer.reason_phrase)}".rstrip())
        if answer.status_code == 405 or (answer.status_code == 404 and detail.startswith("there is nothing at ")):
            raise self._other(answer, f"the controller at {self.url}: {detail}")
        if answer.status_code == 503:
            raise NoControllerError(f"the controller at {self.url} is stopping; {START_ONE}")
        if answer.status_code == 429 and (after := answer.headers.get("Retry-After", "")).isdigit():
            detail += f" (try again in {after} s)"
        raise UserError(detail)

    def _other(self, answer: httpx.Response, otherwise: str) -> UserError:
        """The error for an answer that does not fit this version: the controller is of another one, or `otherwise`."""
        version = answer.headers.get(VERSION_HEADER) or self._version()
        if version and version != __version__:
            return UserError(
                f"the controller at {self.url} is headway {one_line(version[:40])}, and this is headway {__version__}: use the "
                "same version of both"
            )
        return UserError(otherwise)

    def _version(self) -> str:
        """The version that the server says it has; nothing if it is no controller."""
        try:
            with self._http() as http:
                return str(self._object(http.get("/healthz")).get("version", ""))
        except UserError:
            return ""

    def _object(self, answer: httpx.Response) -> Json:
        try:
            found = answer.json()
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UserError(f"what answers at {self.url} is no Headway controller; check HEADWAY_URL")
        return found


def connect(environment: Mapping[str, str]) -> Client:
    """The controller that `HEADWAY_URL` and `HEADWAY_TOKEN` name, or the one of `HEADWAY_HOME`.

    Raises:
        NoControllerError: no controller has said where it listens.
    """
    home = find_home(environment)
    url = environment.get("HEADWAY_URL") or str(home.address().get("url", ""))
    if not url:
        raise NoControllerError(f"no controller runs on the home {home.root}; {START_ONE}")
    if not _is_address(url):
        raise UserError(f"expected a URL such as http://127.0.0.1:8080, got {shown(url)}", key="HEADWAY_URL")
    token = environment.get("HEADWAY_TOKEN") or home.read_token()
    if not token.isascii() or not token.isprintable():
        raise UserError("expected a token of plain letters and digits", key="HEADWAY_TOKEN")
    return Client(url.rstrip("/"), token)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
