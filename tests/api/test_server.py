"""The API over a controller on a fake machine: what it answers, and whom it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.world import AUTH, TOKEN, Api, is_problem
from tests.runtime.fake import US, job

from headway.api.server import ApiServer
from headway.core.errors import UserError
from headway.runtime.budgets import UrgencyBudgets
from headway.runtime.settings import BODY_BYTES


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Basic correct horse", f"Bearer {TOKEN} ", "Bearer \xff"])
async def test_only_the_token_opens(header: str | None, api: Api) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    async with httpx.AsyncClient(transport=api.client._transport, base_url="http://headway") as stranger:
        for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/metrics"), ("GET", "/nowhere")):
            answer = await stranger.request(method, path, headers=headers)
            if header == f"Bearer {TOKEN} ":
                assert answer.status_code != 401, "space around it is no part of the token"
            else:
                assert is_problem(answer, 401, "token") and answer.headers["www-authenticate"] == "Bearer"
        for path in ("/healthz", "/readyz", "/v1/openapi.json"):
            assert (await stranger.get(path)).status_code == 200


async def test_who_has_spent_his_urgency_budget_is_told_so_and_the_job_is_taken_in(api: Api) -> None:
    api.world.controller.intake.budgets = UrgencyBudgets(default=1)
    answer = await api.post_job(job("train", user="ann", urgency=9))
    note = "urgency 6 instead of 9: 1 of the user's points above 5 was left"
    assert (answer.status_code, answer.json()["note"]) == (201, note)
    found = (await api.client.get("/v1/jobs/train-1")).json()
    assert (found["urgency"], found["note"], found["spec"]["urgency"]) == (6, note, 9)


async def test_a_job_is_handed_in_seen_and_cancelled(api: Api) -> None:
    api.world.engine.work_us = {1: 100 * US}
    answer = await api.post_job(job("trainé", workers=2, time_limit_s=500))
    assert answer.status_code == 201
    told = answer.json()
    assert told.pop("state") in ("queued", "starting", "running")
    assert told.pop("reason") in ("", "behind-others")  # the round that starts it may not be over yet
    assert told == {"job": "trainé-1", "number": 1, "message": "", "note": "", "created": True}
    await asyncio.sleep(0.05)
    found = (await api.client.get("/v1/jobs/trainé-1")).json()
    assert {key: found[key] for key in ("state", "attempt", "nodes", "gpus", "tasks", "loss", "user")} == {
        "state": "running", "attempt": 1, "nodes": ["n0"], "gpus": 2, "tasks": 2, "loss": None, "user": "",
    }  # fmt: skip
    assert found["spec"]["run"] == "true" and found["spec"]["time_limit_s"] == 500
    assert (await api.client.get("/v1/jobs/1")).json()["job"] == "trainé-1"
    nodes = (await api.client.get("/v1/nodes")).json()["nodes"]
    assert [(n["node"], n["state"], n["gpus"], n["gpus_free"], n["gpus_held"]) for n in nodes] == [
        ("n0", "up", 2, 0, 2),
        ("n1", "up", 2, 2, 0),
    ]
    for _ in range(2):
        assert (await api.client.post("/v1/jobs/trainé-1/cancel")).status_code == 200
    api.world.engine.advance()
    ended = (await api.client.get("/v1/jobs/trainé-1", params={"wait": 5})).json()
    assert (ended["state"], ended["reason"]) == ("cancelled", "cancelled")
    assert (await api.client.post("/v1/jobs/trainé-1/cancel")).json()["state"] == "cancelled"


async def test_the_same_id_is_the_same_job(api: Api) -> None:
    first, again = await api.post_job(job("x"), "mine"), await api.post_job(job("x"), "mine")
    assert (first.status_code, again.status_code) == (201, 200) and first.json()["number"] == again.json()["number"]
    assert is_problem(await api.post_job(job("y"), "mine"), 409, "belongs to another job")
    assert is_problem(await api.post_job(job("y"), "a/b"), 422, "id: expected")


async def test_a_job_larger_than_the_cluster_is_rejected_with_the_reason(api: Api) -> None:
    answer = (await api.post_job(job("big", workers=9))).json()
    assert (answer["state"], answer["reason"]) == ("rejected", "larger-than-cluster")
    assert "needs 9 workers" in answer["message"]


async def test_the_list_and_its_filters(api: Api) -> None:
    api.world.engine.work_us = {n: 1000 * US for n in (1, 2, 3)}
    for i, queue in enumerate(("a", "a", "b")):
        await api.post_job(job(f"j{i}", workers=2, queue=queue, user=f"u{i}"))
    await api.client.post("/v1/jobs/j0-1/cancel")
    await api.settle()
    api.world.engine.advance()
    await api.settle()

    async def ids(**params: Any) -> list[str]:
        return [found["job"] for found in (await api.client.get("/v1/jobs", params=params)).json()["jobs"]]

    assert await ids() == ["j0-1", "j1-1", "j2-1"]
    assert await ids(state="live") == ["j1-1", "j2-1"] == await ids(state="running,queued")
    assert await ids(state="ended") == ["j0-1"] == await ids(state="cancelled")
    assert await ids(queue="b") == ["j2-1"] and await ids(user="u1") == ["j1-1"]
    assert await ids(limit=2) == ["j1-1", "j2-1"]
    assert (await api.client.get("/v1/jobs", params={"limit": 1})).json()["more"] == 2
    assert is_problem(await api.client.get("/v1/jobs", params={"state": "runing"}), 422, "did you mean 'running'")
    assert is_problem(await api.client.get("/v1/jobs", params={"limit": 0}), 422, "limit: ")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"\xff\xfe\x00", 400, "JSON"),
        (b"[" * 100_000, 400, "JSON"),
        (b"[]", 422, "expected a job"),
        (b'{"schema": 1, "name": "x", "run": "true", "deadline_s": NaN}', 400, "JSON"),
        (b'{"schema": 2, "name": "x"}', 422, "schema"),
        (b'{"schema": 1, "name": "x", "run": "true", "workdir": "/", "prioritty": 1}', 422, "did you mean 'priority'"),
        (b'{"schema": 1, "name": "x", "run": "", "workdir": "/"}', 422, "run: expected a command"),
        (b'{"schema": 1, "name": "../x", "run": "true", "workdir": "/"}', 422, "name: expected"),
        (b'{"schema": 1, "name": "a\\u0000b", "run": "true", "workdir": "/"}', 422, "name: expected"),
        (b'{"schema": 1, "name": "\\u202ex", "run": "true", "workdir": "/"}', 422, "name: expected"),
        (b'{"schema": 1, "name": "x", "run": "true"}', 422, "workdir: expected an absolute path"),
        (b'{"schema": 1, "name": "' + b"x" * 4096 + b'", "run": "true", "workdir": "/"}', 422, "name: expected"),
        (
            b'{"schema": 1, "name": "x", "run": "true", "workdir": "/", "resources": {"gpu_alternatives": []}}',
            422,
            "resources.gpu",
        ),
        (b'{"schema": 1, "name": "x", "run": "true", "workdir": "/", "parallelism": {"data": 100000}}', 422, "parallelism"),
        (b'"' + b"x" * BODY_BYTES + b'"', 413, "at most"),
    ],
)
async def test_what_is_no_job_is_refused_in_one_sentence(body: bytes, status: int, text: str, api: Api) -> None:
    assert is_problem(await api.client.post("/v1/jobs", content=body), status, text)
    assert len(api.world.controller.board) == 0


async def test_a_long_body_in_pieces_is_refused_too(api: Api) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 50_000

    assert is_problem(await api.client.post("/v1/jobs", content=pieces()), 413, "at most")


async def test_what_is_not_there_is_said(api: Api) -> None:
    await api.post_job(job("x"))
    assert is_problem(await api.client.get("/v1/jobs/nobody"), 404, 'there is no job "nobody"')
    assert is_problem(await api.client.get("/v1/jobs/" + "9" * 40), 404, "there is no job")
    assert is_problem(await api.client.get("/v1/jobs/%00"), 404, "there is no job")
    assert is_problem(await api.client.post("/v1/jobs/nobody/cancel"), 404, "there is no job")
    assert is_problem(await api.client.get("/v1/nothing"), 404, "there is nothing at /v1/nothing")
    assert is_problem(await api.client.delete("/v1/jobs"), 405, "DELETE")
    assert is_problem(await api.client.get("/v1/jobs/x-1/logs", params={"rank": 1}), 422, "rank: the job has 1 tasks")
    assert is_problem(await api.client.get("/v1/jobs/x-1/logs", params={"attempt": 9}), 422, "attempt: ")
    assert is_problem(await api.client.get("/v1/jobs/x-1/logs", params={"offset": -1}), 422, "offset: ")


async def test_an_error_inside_is_told_as_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.world.controller, "nodes", lambda: 1 / 0)
    assert is_problem(await api.client.get("/v1/nodes"), 500, "inside the controller")


async def test_logs_as_they_were_written(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    monkeypatch.setattr(api.world.engine, "log_path", lambda job, attempt, rank: path)
    api.world.engine.work_us = {1: 10 * US}
    await api.post_job(job("x"))
    assert (await api.client.get("/v1/jobs/x-1/logs")).content == b""
    path.write_bytes(b"a\r\xff" + "é".encode() + b"x" * 200_000)
    answer = await api.client.get("/v1/jobs/x-1/logs")
    assert answer.content == path.read_bytes() and answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert (await api.client.get("/v1/jobs/x-1/logs", params={"offset": 200_003})).content == b"xx"
    follow = asyncio.create_task(api.client.get("/v1/jobs/x-1/logs", params={"follow": True, "offset": 200_000}))
    await asyncio.sleep(0.15)
    assert not follow.done()
    with path.open("ab") as file:
        file.write(b"the last line")
    api.world.clock.us = 11 * US
    api.world.engine.advance()
    assert (await asyncio.wait_for(follow, 10)).content == b"xxxxxthe last line"


async def test_it_listens_on_loopback_alone_and_a_taken_port_is_said(api: Api) -> None:
    server = ApiServer(api.world.controller, api.access)
    await server.start()
    try:
        assert server.url.startswith("http://127.0.0.1:")
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/v1/jobs")).status_code == 401
            told = (await client.get("/v1/jobs", headers=AUTH)).json()
            assert told.pop("policy")["in_charge"] == "policy" and told == {"jobs": [], "more": 0, "next": ""}
        with pytest.raises(UserError, match="port: can't listen"):
            other = ApiServer(api.world.controller, api.access, int(server.url.rsplit(":", 1)[1]))
            await other.start()
    finally:
        await server.close()


async def test_nodes_are_drained_and_given_back(api: Api) -> None:
    answer = await api.client.post("/v1/nodes/n1/drain", params={"reason": "new fans"})
    assert (answer.status_code, answer.json()["state"], answer.json()["reasons"]) == (200, "draining", ["drained: new fans"])
    nodes = (await api.client.get("/v1/nodes")).json()["nodes"]
    assert [(node["node"], node["reasons"]) for node in nodes] == [("n0", []), ("n1", ["drained: new fans"])]
    answer = await api.client.post("/v1/nodes/n1/undrain")
    assert (answer.json()["state"], answer.json()["reasons"]) == ("up", [])
    assert is_problem(await api.client.post("/v1/nodes/n9/drain"), 404, 'there is no node "n9"')
    assert is_problem(await api.client.post("/v1/nodes/n1/drain", params={"reason": "x" * 300}), 422, "reason: expected one line")


async def test_a_controller_without_settings_has_none_to_reload(api: Api) -> None:
    assert is_problem(await api.client.post("/v1/reload"), 422, "no settings to reload")
