"""Who may do what: each path by each role, what a user sees of others, and tokens that die."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.api.world import TOKEN, Api, is_problem
from tests.runtime.fake import US, job

from headway.api.auth import Access
from headway.api.server import ApiServer, is_loopback
from headway.core.errors import UserError
from headway.core.model import to_json
from headway.runtime.tokens import Role, TokenStore

USER, OPERATOR, ADMIN, TASK, NOBODY = "user", "operator", "admin", "task", "nobody"
PEOPLE = {USER, OPERATOR, ADMIN}
STAFF = {OPERATOR, ADMIN}
SPEC = to_json(job("new", user="ann"), compact=True)
REPORT = {"attempt": 1, "reports": [{"step": 1}]}
# Of ann's running job `mine`: method, path, body, who may.
PATHS: list[tuple[str, str, Any, set[str]]] = [
    ("GET", "/v1/jobs", None, PEOPLE),
    ("POST", "/v1/jobs", SPEC, PEOPLE - {OPERATOR}),  # the operator is not ann
    ("POST", "/v1/jobs?dry_run=true", SPEC, PEOPLE - {OPERATOR}),
    ("POST", "/v1/jobs/batch", {"jobs": []}, PEOPLE),
    ("POST", "/v1/jobs/cancel", {"jobs": []}, PEOPLE),
    ("POST", "/v1/jobs/hold", {"jobs": []}, PEOPLE),
    ("POST", "/v1/jobs/release", {"jobs": []}, PEOPLE),
    ("POST", "/v1/jobs/requeue", {"jobs": []}, PEOPLE),
    ("GET", "/v1/jobs/mine", None, PEOPLE | {TASK}),
    ("GET", "/v1/jobs/mine/why", None, PEOPLE),
    ("GET", "/v1/jobs/mine/progress", None, PEOPLE | {TASK}),
    ("GET", "/v1/jobs/mine/stop", None, PEOPLE | {TASK}),
    ("POST", "/v1/jobs/mine/reports", REPORT, PEOPLE | {TASK}),
    ("GET", "/v1/jobs/mine/logs", None, PEOPLE),
    ("PATCH", "/v1/jobs/mine", {"priority": 60}, PEOPLE),
    ("POST", "/v1/jobs/mine/hold", None, PEOPLE),
    ("POST", "/v1/jobs/mine/release", None, PEOPLE),
    ("GET", "/v1/events?follow=false", None, PEOPLE),
    ("GET", "/v1/nodes", None, PEOPLE),
    ("GET", "/v1/queues", None, PEOPLE),
    ("GET", "/v1/users", None, PEOPLE),
    ("GET", "/v1/me", None, PEOPLE),
    ("GET", "/v1/status", None, PEOPLE),
    ("GET", "/metrics", None, PEOPLE),
    ("POST", "/v1/nodes/n1/drain", None, STAFF),
    ("POST", "/v1/nodes/n1/undrain", None, STAFF),
    ("GET", "/v1/tokens", None, {ADMIN}),
    ("POST", "/v1/tokens", {"name": "x"}, {ADMIN}),
    ("DELETE", "/v1/tokens/x", None, {ADMIN}),
    ("POST", "/v1/jobs/mine/requeue", None, PEOPLE),
    ("POST", "/v1/jobs/mine/cancel", None, PEOPLE),
]


async def running(api: Api, name: str = "mine", user: str = "ann") -> None:
    """A job of this user that runs."""
    number = len(api.controller.board) + 1
    api.world.engine.work_us[number] = 1000 * US
    assert (await api.post_job(job(name, user=user), name)).status_code == 201
    await api.settle()
    assert (await api.client.get(f"/v1/jobs/{name}")).json()["state"] == "running"


@pytest.mark.parametrize("who", [USER, OPERATOR, ADMIN, TASK, NOBODY])
async def test_each_path_by_each_role(who: str, api: Api) -> None:
    await running(api)
    tokens = {USER: api.token("user", "ann"), OPERATOR: api.token("operator"), ADMIN: api.token("admin")}
    tokens |= {TASK: "job-1-1", NOBODY: "hw_nobody_x"}
    async with api.of(tokens[who]) as client:
        for method, path, body, may in PATHS:
            answer = await client.request(method, path, json=body)
            if who == NOBODY:
                assert is_problem(answer, 401, "token"), path
            elif who not in may:
                assert is_problem(answer, 403, ""), path
            else:
                assert answer.status_code < 300, (method, path, answer.text)


async def test_no_path_is_left_out(api: Api) -> None:
    described = (await api.client.get("/v1/openapi.json")).json()["paths"]
    there = {(method.upper(), path) for path, methods in described.items() for method in methods}
    looked_at = {
        (method, path.split("?")[0].replace("mine", "{job_id}").replace("/n1/", "/{node}/").replace("tokens/x", "tokens/{name}"))
        for method, path, _, _ in PATHS
    }
    only_admin = {("POST", "/v1/reload"), ("POST", "/v1/stop")}  # below
    assert there - looked_at - only_admin == {("GET", "/healthz"), ("GET", "/readyz")}


async def test_only_an_admin_reloads_and_stops(api: Api) -> None:
    for role in ("user", "operator"):
        async with api.of(api.token(role)) as client:
            for path in ("/v1/reload", "/v1/stop"):
                assert is_problem(await client.post(path), 403, f"the token is that of a {role}" if role == "user" else "admin")
    async with api.of(api.token("admin")) as client:
        assert is_problem(await client.post("/v1/reload"), 422, "no settings to reload")
        answer = await client.post("/v1/stop")
        assert (answer.status_code, answer.json()) == (202, {"stopping": True, "live_jobs": 0})
        assert api.controller.stopping
        assert is_problem(await client.post("/v1/jobs", json=SPEC), 503, "stopping")
        assert is_problem(await client.get("/readyz"), 503, "stopping")


async def test_a_user_sees_and_changes_only_his_own_jobs(api: Api) -> None:
    await running(api, "anns", "ann")
    await running(api, "bobs", "bob")
    async with api.of(api.token("user", "bob")) as bob:
        assert [found["job"] for found in (await bob.get("/v1/jobs")).json()["jobs"]] == ["bobs"]
        assert (await bob.get("/v1/jobs", params={"user": "ann"})).json()["jobs"] == []
        for method, path in [
            ("GET", "anns"), ("GET", "1"), ("GET", "anns/logs"), ("GET", "anns/progress"), ("GET", "anns/stop"),
            ("POST", "anns/cancel"), ("POST", "anns/hold"), ("POST", "anns/requeue"), ("POST", "anns/release"),
        ]:  # fmt: skip
            name = path.split("/")[0]
            assert is_problem(await bob.request(method, f"/v1/jobs/{path}"), 404, f'there is no job "{name}"')
        assert is_problem(await bob.patch("/v1/jobs/anns", json={"priority": 1}), 404, "there is no job")
        assert is_problem(await bob.post("/v1/jobs/anns/reports", json=REPORT), 404, "there is no job")
        many = (await bob.post("/v1/jobs/cancel", json={"jobs": ["anns", "bobs", "nobodys"]})).json()
        assert [found["job"] for found in many["jobs"]] == ["bobs"]
        assert [(fault["job"], fault["error"]) for fault in many["errors"]] == [
            ("anns", 'there is no job "anns"'), ("nobodys", 'there is no job "nobodys"'),
        ]  # fmt: skip
        assert (await bob.post("/v1/jobs/cancel", json={"all": True, "user": "ann"})).json() == {"jobs": [], "errors": []}
        assert [user["user"] for user in (await bob.get("/v1/users")).json()["users"]] == ["bob"]
        assert (await bob.get("/v1/me")).json() == {"token": "bob-0", "user": "bob", "role": "user"}
    assert (await api.client.get("/v1/jobs/anns")).json()["state"] == "running"
    async with api.of(api.token("operator", "olga")) as olga:
        assert len((await olga.get("/v1/jobs")).json()["jobs"]) == 2
        assert (await olga.post("/v1/jobs/anns/cancel")).status_code == 200


async def test_the_token_says_whose_job_it_is(api: Api) -> None:
    async with api.of(api.token("user", "ann")) as ann:
        answer = await ann.post("/v1/jobs", json=to_json(job("x"), compact=True))
        assert answer.status_code == 201
        assert (await ann.get(f"/v1/jobs/{answer.json()['job']}")).json()["user"] == "ann"
        assert is_problem(await ann.post("/v1/jobs", json=to_json(job("x", user="bob"), compact=True)), 403, "user: expected")
        batch = {"jobs": [{"spec": to_json(job("y", user=user), compact=True)} for user in ("ann", "bob")]}
        results = (await ann.post("/v1/jobs/batch", json=batch)).json()["results"]
        assert results[0]["created"] and results[1]["status"] == 403 and "bob" in results[1]["error"]
    async with api.of(api.token("operator", "olga")) as olga:
        assert is_problem(await olga.post("/v1/jobs", json=to_json(job("x", user="bob"), compact=True)), 403, "user: expected")
    async with api.of(api.token("admin", "ada")) as ada:
        assert (
            await ada.post("/v1/jobs", json=to_json(job("z", user="bob"), compact=True), params={"id": "z"})
        ).status_code == 201
        assert (await ada.get("/v1/jobs/z")).json()["user"] == "bob"


async def test_anothers_id_is_taken_and_no_more_is_said(api: Api) -> None:
    assert (await api.post_job(job("x", user="bob"), "taken")).status_code == 201
    async with api.of(api.token("user", "ann")) as ann:
        answer = await ann.post("/v1/jobs", json=to_json(job("x"), compact=True), params={"id": "taken"})
        assert is_problem(answer, 409, 'the id "taken" belongs to another job')


# -- tokens of people ----------------------------------------------------------------------------------------------
async def test_a_token_is_made_used_and_revoked(api: Api) -> None:
    made = (await api.client.post("/v1/tokens", json={"name": "ann-laptop", "user": "ann", "expires": "30d"})).json()
    assert made["token"].startswith("hw_ann-laptop_") and made["role"] == "user"
    left = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=29.9) < left <= timedelta(days=30)
    listed = (await api.client.get("/v1/tokens")).json()["tokens"]
    assert [token["name"] for token in listed] == ["ann-laptop"] and "token" not in listed[0]
    kept = api.access.store.path.read_text()  # type: ignore[union-attr]
    assert made["token"] not in kept and made["token"].split("_")[-1] not in kept
    assert api.access.store.path.stat().st_mode & 0o777 == 0o600  # type: ignore[union-attr]
    async with api.of(made["token"]) as ann:
        assert (await ann.get("/v1/me")).json() == {"token": "ann-laptop", "user": "ann", "role": "user"}
        assert (await api.client.delete("/v1/tokens/ann-laptop")).status_code == 200
        assert is_problem(await ann.get("/v1/me"), 401, "token")
    assert is_problem(await api.client.delete("/v1/tokens/ann-laptop"), 404, "there is no token")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"name": "../x"}, 422, "name: expected"),
        ({"name": "x" * 41}, 422, "name: expected"),
        ({"name": "é"}, 422, "name: expected"),
        ({"name": "x", "user": "a\u202eb"}, 422, "user: expected a name"),
        ({"name": "x", "role": "operater"}, 422, "did you mean 'operator'"),
        ({"name": "x", "expires": "soon"}, 422, "expires: "),
        ({"name": "x", "expires": "0"}, 422, "future"),
        ({"name": "x", "expires_at": "2001-01-01T00:00:00Z"}, 422, "future"),
        ({"name": "x", "expires_at": "2101-01-01T00:00:00Z", "expires": "1d"}, 422, "either"),
        ({"name": "x", "rolle": "user"}, 422, "rolle"),
        ({}, 422, "name"),
        ([], 422, "the body"),
    ],
)
async def test_what_is_no_token_is_refused(body: Any, status: int, text: str, api: Api) -> None:
    assert is_problem(await api.client.post("/v1/tokens", json=body), status, text)
    assert not api.access.store.all()  # type: ignore[union-attr]


async def test_a_name_is_taken_once(api: Api) -> None:
    assert (await api.client.post("/v1/tokens", json={"name": "x"})).status_code == 201
    assert is_problem(await api.client.post("/v1/tokens", json={"name": "x"}), 409, "already")


async def test_an_answer_that_goes_on_ends_with_its_token(api: Api) -> None:
    secret = api.token("user", "ann")
    async with api.of(secret) as ann:
        following = asyncio.create_task(ann.get("/v1/events"))
        await api.settle()
        assert not following.done()
        api.access.store.remove("ann-0")  # type: ignore[union-attr]
        await api.post_job(job("x"))  # something happens
        assert (await asyncio.wait_for(following, 10)).status_code == 200


# -- tokens of tasks -----------------------------------------------------------------------------------------------
async def test_a_tasks_token_dies_with_its_attempt(api: Api) -> None:
    await running(api)
    await running(api, "other")
    async with api.of("job-1-1") as task:
        assert (await task.post("/v1/jobs/mine/reports", json=REPORT)).json() == {"accepted": 1, "findings": []}
        assert (await task.get("/v1/jobs/mine/stop")).json() == {"stop": False, "reason": ""}
        assert is_problem(await task.get("/v1/jobs/other"), 404, "there is no job")
        assert is_problem(await task.post("/v1/jobs/other/reports", json=REPORT), 404, "there is no job")
        assert is_problem(await task.post("/v1/jobs/mine/reports", json=REPORT | {"attempt": 2}), 410, "attempt 2")
        api.world.engine.save_us = 5 * US
        await api.client.post("/v1/jobs/mine/cancel")
        await api.settle()
        assert (await task.get("/v1/jobs/mine/stop")).json() == {"stop": True, "reason": "cancelled"}
        api.world.clock.us += 6 * US
        api.world.engine.advance()
        await api.settle()
        assert (await api.client.get("/v1/jobs/mine")).json()["state"] == "cancelled"
        for answer in (await task.get("/v1/jobs/mine"), await task.post("/v1/jobs/mine/reports", json=REPORT)):
            assert is_problem(answer, 410, "attempt 1 of job 1 is over")
    for never in ("job-1-2", "job-99-1"):
        async with api.of(never) as task:
            assert is_problem(await task.get("/v1/jobs/mine/stop"), 410, "is over")
    assert is_problem(await api.client.post("/v1/jobs/mine/reports", json=REPORT), 410, 'attempt 1 of job "mine" is over')


async def test_what_an_mlflow_client_logs_is_the_jobs_progress(api: Api) -> None:
    await running(api)
    api.world.clock.us += 10 * US
    root = "/api/2.0/mlflow/runs"
    assert is_problem(await api.client.post(f"{root}/create", json={}), 403, "for the tasks of jobs")
    async with api.of("job-1-1") as task:
        run = (await task.post(f"{root}/create", json={"experiment_id": "0"})).json()["run"]["info"]["run_id"]
        metrics = [{"key": "loss", "value": 0.25, "step": 3, "timestamp": 1}, {"key": "loss", "value": "NaN", "step": 4}]
        for metric in metrics:
            assert (await task.post(f"{root}/log-metric", json=metric | {"run_id": run})).status_code in (200, 400)
        assert (await task.get(f"{root}/get", params={"run_id": run})).json()["run"]["info"]["status"] == "RUNNING"
        assert (await task.post(f"{root}/log-metric", content=b"[")).status_code == 400
        assert (await task.get(f"{root}/get", params={"run_id": "other"})).status_code == 404
    await api.settle()
    found = (await api.client.get("/v1/jobs/mine")).json()
    assert (found["steps"] in (3, 4)) and found["loss"] == 0.25
    async with api.of("job-1-2") as stale:
        assert is_problem(await stale.post(f"{root}/create", json={}), 410, "is over")


# -- where it listens ----------------------------------------------------------------------------------------------
def test_what_is_loopback() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("127.9.9.9") and is_loopback("localhost") and is_loopback("::1")
    assert not is_loopback("0.0.0.0") and not is_loopback("::") and not is_loopback("no such host")


async def test_it_listens_elsewhere_only_when_there_are_tokens(api: Api, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"host: 0\.0\.0\.0 can be reached from elsewhere.*headway token create"):
        ApiServer(api.controller, api.access, host="0.0.0.0")
    store = TokenStore(tmp_path / "other.json")
    store.add("gone", "x", Role.USER, datetime.now(UTC) + timedelta(milliseconds=20))
    await asyncio.sleep(0.03)
    with pytest.raises(UserError, match="host: "):
        ApiServer(api.controller, Access(TOKEN, "", store), host="0.0.0.0")
    store.add("ann", "ann", Role.USER)
    server = ApiServer(api.controller, Access(TOKEN, "", store), host="0.0.0.0")
    await server.start()
    try:
        assert server.url.startswith("http://127.0.0.1:"), "an address that one can connect to"
    finally:
        await server.close()
    with pytest.raises(UserError, match="host: there is no address"):
        ApiServer(api.controller, Access(TOKEN, "", store), host="no such host")
