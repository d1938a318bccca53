"""What a command says where no controller, another one, or something else answers: one line, with what to do next."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.cli.conftest import URL, CommandLine, problem

from headway.app.client import Client, NoControllerError, connect
from headway.core.errors import UserError


@pytest.fixture
def server() -> Iterator[Callable[[bytes], int]]:
    """Servers that answer whatever they are asked with these bytes; the port of each."""
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> int:
        listening = socket.create_server(("127.0.0.1", 0))
        sockets.append(listening)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return int(listening.getsockname()[1])

    yield start
    for one in sockets:
        one.shutdown(socket.SHUT_RDWR)
        one.close()
    for thread in threads:
        thread.join()


def refusal(url: str, path: str = "/v1/nodes", **options: Any) -> str:
    with Client(url, "x") as client, pytest.raises(UserError) as caught:
        client.ask("GET", path, **options)
    return str(caught.value)


PAGE = b"HTTP/1.1 %s\r\nContent-Type: text/html\r\nContent-Length: 5\r\nConnection: close\r\n\r\n<h1>x"


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found", b"302 Found", b"405 Method Not Allowed"])
def test_a_web_page_is_no_controller(status: bytes, server: Callable[[bytes], int]) -> None:
    assert "is no Headway controller; check HEADWAY_URL" in refusal(f"http://127.0.0.1:{server(PAGE % status)}")


def test_other_json_is_no_controller(server: Callable[[bytes], int]) -> None:
    answer = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\nConnection: close\r\n\r\n{"a": "bc"}'
    assert "is no Headway controller" in refusal(f"http://127.0.0.1:{server(answer)}", keys=("nodes",))


def test_http_where_https_is_spoken_and_the_other_way_round(server: Callable[[bytes], int]) -> None:
    alert = b"\x15\x03\x03\x00\x02\x02\x46"
    assert "perhaps HTTPS: set HEADWAY_URL to https://127.0.0.1:" in refusal(f"http://127.0.0.1:{server(alert)}")
    assert "does not speak HTTPS; set HEADWAY_URL to http://127.0.0.1:" in refusal(
        f"https://127.0.0.1:{server(PAGE % b'200 OK')}"
    )


def test_nobody_listens(server: Callable[[bytes], int]) -> None:
    assert refusal("http://127.0.0.1:9") == "no controller answers at http://127.0.0.1:9; start one with: headway up"
    assert "has gone while it answered" in refusal(f"http://127.0.0.1:{server(b'')}")
    assert "there is no host" in refusal("http://headway.invalid:8080")


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://[", "http://x:99999", "http://x:y"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UserError, match="HEADWAY_URL: expected a URL such as http"):
        connect({"HEADWAY_URL": url})


def test_a_controller_of_another_version_is_told_in_one_line(cli: CommandLine) -> None:
    older = {"X-Headway-Version": "0.0.1"}
    cli.controller.says("GET", "/v1/queues", problem(404, 'there is nothing at "/v1/queues"', **older))
    said = cli.refusal("queues")
    assert said.startswith(f"the controller at {URL} is headway 0.0.1, and this is headway ") and said.endswith(
        "use the same version of both"
    )
    cli.controller.says("GET", "/v1/nodes", httpx.Response(200, json={"hosts": []}, headers=older))
    assert "is headway 0.0.1" in cli.refusal("nodes")


def test_a_controller_that_says_its_version_only_when_asked(cli: CommandLine) -> None:
    cli.controller.says("GET", "/v1/queues", problem(405, "GET is not possible here", **{"X-Headway-Version": ""}))
    cli.controller.says("GET", "/healthz", {"status": "ok", "version": "9.9"})
    assert "is headway 9.9" in cli.refusal("queues")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (problem(401, "a bearer token is needed"), "the controller refuses the token: set HEADWAY_TOKEN, or HEADWAY_HOME"),
        (problem(403, "this is for an admin, and the token is that of a user"), "this is for an admin"),
        (problem(404, 'there is no job "train-1"'), 'there is no job "train-1"'),
        (problem(429, "too many requests", **{"Retry-After": "3"}), "too many requests (try again in 3 s)"),
        (problem(503, "stopping"), "is stopping; start one with: headway up"),
        (problem(500, "an error inside the controller; its log says more"), "its log says more"),
        (httpx.Response(502, text="<h1>bad gateway"), "answers 502 Bad Gateway"),
        (httpx.Response(200, content=b"\xff\xfe"), "is no Headway controller"),
        (httpx.Response(200, content=b"[" * 100_000), "is no Headway controller"),
    ],
)
def test_a_no_is_told_in_the_controllers_words(answer: httpx.Response, text: str, cli: CommandLine) -> None:
    cli.controller.says("GET", "/v1/jobs/train-1", answer)
    assert text in cli.refusal("show", "train-1")


def test_events_come_whole_however_they_are_cut() -> None:
    text = 'event: x\r\nid: 7\r\ndata: {"a":\r\ndata: 1}\r\n\r\n: alive\n\nid: 8\ndata: {"b": "é"}\n\ndata: {"torn"'.encode()

    def pieces(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Bytes([text[i : i + 3] for i in range(0, len(text), 3)]))

    class Bytes(httpx.SyncByteStream):
        def __init__(self, parts: list[bytes]) -> None:
            self.parts = parts

        def __iter__(self) -> Iterator[bytes]:
            return iter(self.parts)

    with Client(URL, "x", httpx.MockTransport(pieces)) as client:
        assert list(client.events("/v1/events", {})) == [("7", {"a": 1}), ("8", {"b": "é"})]


def test_one_connection_serves_a_command_and_can_move(cli: CommandLine) -> None:
    with Client(URL, "x", httpx.MockTransport(cli.controller)) as client:
        client.ask("GET", "/v1/nodes")
        first = client._connection
        client.ask("GET", "/v1/nodes")
        assert client._connection is first and first is not None
        client.move(Client("http://127.0.0.1:1", "y"))
        assert first.is_closed
        client.ask("GET", "/v1/nodes")
        assert client._connection is not None and str(client._connection.base_url) == "http://127.0.0.1:1"


def test_a_controller_that_stays_away_for_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.app import live

    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: now)
    patience = live.Patience(Client(URL, "x"), lambda: Client(URL, "x"))
    with pytest.raises(NoControllerError):
        while True:
            patience.again(NoControllerError("gone"))
    assert now == pytest.approx(live.GONE_S, abs=1.0)
