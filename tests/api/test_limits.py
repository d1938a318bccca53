"""What a request, a token and the whole cluster may ask for, and input that no honest client sends."""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.api.world import TOKEN, Api, is_problem
from tests.runtime.fake import US, job

from headway.api.meters import Meters, Rates
from headway.api.problems import TooManyError
from headway.api.server import ApiServer
from headway.core.errors import UserError
from headway.core.model import to_json
from headway.runtime.rules import settings_events
from headway.runtime.settings import parse_settings

BAD = ["../x", "a\0b", "x" * 4096, "\u202egpj.exe", "-rf", "a/b", "", " ", "x\ny", "..", "a\u2028b"]
GOOD = ["dédé 你好 🦙", "%2e%2e", '";drop']


# -- names ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", BAD + GOOD)
async def test_names_of_any_script_are_good_and_the_others_are_refused(name: str, api: Api) -> None:
    spec = to_json(job("x"), compact=True)
    answers = [
        await api.client.post("/v1/jobs", json=spec | {"name": name}),
        await api.client.post("/v1/jobs", json=spec, params={"id": name or " "}),
        await api.client.post("/v1/jobs", json=spec | {"queue": name}),
        await api.client.post("/v1/jobs", json=spec | {"user": name or " "}),
    ]
    for answer in answers:
        if name in GOOD:
            assert answer.status_code == 201, answer.text
        else:
            assert is_problem(answer, 422, "expected"), name
    for path in ("", "/logs", "/progress", "/stop", "/why"):
        if name not in ("", ".."):  # which mean other paths
            answer = await api.client.get(f"/v1/jobs/{quote(name, safe='')}{path}")
            assert answer.status_code == 200 if name in GOOD else answer.status_code in (404, 422), answer.text
            assert answer.status_code == 200 or answer.headers["content-type"] == "application/problem+json"
    assert (await api.client.get("/v1/jobs", params={"queue": name, "user": name, "group": name})).status_code == 200
    assert (await api.client.get("/v1/jobs")).status_code == 200
    assert (await api.client.get("/metrics")).status_code == 200


@pytest.mark.parametrize("key", ["name", "run", "workdir", "priority", "env", "user", "deadline_s", "resources", "stop"])
async def test_values_that_are_none_never_break_anything(key: str, api: Api) -> None:
    good = {"schema": 1, "name": "x", "run": "true", "workdir": "/"}
    for text in ('"\\ud800"', '"a\\u0000b"', "1e999", "9" * 30, "null", "{}", "[[]]", "NaN", '"' + "\\u202e" * 9 + '"'):
        body = json.dumps(good | {key: "@"}).replace('"@"', text)
        answer = await api.client.post("/v1/jobs", content=body)
        assert answer.status_code in (201, 400, 422), answer.text
    assert (await api.client.get("/v1/jobs")).status_code == 200


# -- bodies --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_100_mb_is_refused_and_not_kept(chunked: bool, api: Api) -> None:
    """Over a real connection: the answer comes, and the server goes on."""
    import asyncio

    server = ApiServer(api.controller, api.access)
    await server.start()

    def send() -> tuple[int, dict[str, Any], int]:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        piece = b" " * 1_000_000
        if chunked:
            connection.request("POST", "/v1/jobs/cancel", (piece for _ in range(100)), headers, encode_chunked=True)
        else:
            headers["Content-Length"] = str(100 * len(piece))
            connection.request("POST", "/v1/jobs", (piece for _ in range(100)), headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        connection.request("GET", "/healthz")
        health = connection.getresponse().status
        connection.close()
        return answer.status, told, health

    try:
        status, told, health = await asyncio.to_thread(send)
        assert (status, health) == (413, 200) and "at most 1000000 bytes" in told["detail"]
    finally:
        await server.close()


async def test_each_path_with_a_body_has_the_limit(api: Api) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 50_000

    for method, path in [("POST", "/v1/jobs/batch"), ("POST", "/v1/jobs/hold"), ("PATCH", "/v1/jobs/x"), ("POST", "/v1/tokens"),
                         ("POST", "/v1/jobs/x/reports")]:  # fmt: skip
        await api.post_job(job("x"), "x")
        assert is_problem(await api.client.request(method, path, content=pieces()), 413, "at most"), path


# -- queues --------------------------------------------------------------------------------------------------------
async def test_so_many_jobs_wait_at_once(api: Api) -> None:
    api.world.engine.work_us = dict.fromkeys(range(1, 30), 10**12)
    api.controller.intake.obey(parse_settings("[limits]\nqueue = 3\n[users.ann]\nqueued = 1\n"))
    for _ in range(4):
        assert (await api.post_job(job("x"))).status_code == 201
        await api.settle()  # runs
    for _ in range(2):
        assert (await api.post_job(job("x"))).status_code == 201
    assert (await api.post_job(job("x", user="ann"), "a")).status_code == 201
    refused = await api.post_job(job("x", user="ann"))
    assert is_problem(refused, 429, "3 jobs wait already") and int(refused.headers["retry-after"]) > 0
    assert (await api.post_job(job("x", user="ann"), "a")).status_code == 200, "it has been taken in: this is no other one"
    assert is_problem(await api.post_job(job("x"), dry_run=True), 429, "3 jobs wait already")
    await api.client.post("/v1/jobs/5/cancel")
    assert is_problem(await api.post_job(job("x", user="ann")), 429, "at most 1 jobs waiting")
    entries = [{"spec": to_json(job("y"), compact=True)} for _ in range(3)]
    results = (await api.client.post("/v1/jobs/batch", json={"jobs": entries})).json()["results"]
    assert [result.get("status", 201) for result in results] == [201, 429, 429]


# -- rates ---------------------------------------------------------------------------------------------------------
def test_a_bucket_holds_one_second_and_may_be_overdrawn_once() -> None:
    now = [0.0]
    rates = Rates(Meters(), lambda: now[0])
    rates.take("reports", "a", 25, 10)  # overdraws
    with pytest.raises(TooManyError) as caught:
        rates.take("reports", "a", 1, 10)
    assert caught.value.retry_s == pytest.approx(1.6)
    rates.take("reports", "b", 1, 10)  # another one's bucket
    rates.take("logs", "a", 1, 10)  # of something else
    now[0] = 1.59
    with pytest.raises(TooManyError):
        rates.take("reports", "a", 1, 10)
    now[0] = 1.61
    rates.take("reports", "a", 1, 10)
    now[0] = 1000.0
    for _ in range(10):
        rates.take("reports", "a", 1, 10)
    with pytest.raises(TooManyError):
        rates.take("reports", "a", 1, 10)


async def test_reports_and_logs_have_rates(api: Api) -> None:
    api.controller.intake.obey(parse_settings("[limits]\nreports = 5\nlogs = 2\n"))
    api.world.engine.work_us = {1: 1000 * US}
    await api.post_job(job("x"), "x")
    await api.settle()
    async with api.of("job-1-1") as task:
        body = {"attempt": 1, "reports": [{"step": n} for n in range(8)]}
        assert (await task.post("/v1/jobs/x/reports", json=body)).json()["accepted"] == 8
        refused = await task.post("/v1/jobs/x/reports", json=body)
        assert is_problem(refused, 429, "too many reports: at most 5 a second") and refused.headers["retry-after"] == "1"
        assert (await task.get("/v1/jobs/x/stop")).status_code == 200
    for _ in range(2):
        assert (await api.client.get("/v1/jobs/x/logs")).status_code == 200
    assert is_problem(await api.client.get("/v1/jobs/x/logs"), 429, "too many logs")
    figures = (await api.client.get("/metrics")).text
    assert 'headway_rate_limited_total{what="reports"} 1.0' in figures and "headway_reports_total 8.0" in figures


# -- reports -------------------------------------------------------------------------------------------------------
async def test_numbers_that_are_none_never_fail_a_job_and_json_stays_valid(api: Api) -> None:
    api.world.engine.work_us = {1: 1000 * US}
    await api.post_job(job("x"), "x")
    await api.settle()
    api.world.clock.us += 10 * US
    reports = '{"step": 1, "loss": NaN}, {"step": 2, "loss": -Infinity, "accuracy": Infinity}, {"step": 3, "loss": 0.5}'
    body = f'{{"attempt": 1, "reports": [{reports}]}}'
    answer = await api.client.post("/v1/jobs/x/reports", content=body)
    assert answer.status_code == 200 and answer.json()["accepted"] == 3, answer.text
    assert {finding["fault"] for finding in answer.json()["findings"]} >= {"no-loss"}
    for path in ("/v1/jobs/x", "/v1/jobs", "/v1/jobs/x/progress", "/v1/jobs/x/why", "/v1/status"):
        text = (await api.client.get(path)).text
        json.loads(text, parse_constant=pytest.fail)
    assert (await api.client.get("/v1/jobs/x")).json()["loss"] == 0.5
    for bad, status in [
        ('{"attempt": 0, "reports": []}', 422), ('{"attempt": 1}', 422), ("[]", 422), ("{", 400), ("", 400), ("[" * 5000, 400),
        ('{"attempt": 1, "reports": [{"step": "x"}]}', 422), ('{"attempt": NaN, "reports": []}', 422),
        ('{"attempt": 1e400, "reports": []}', 422),
    ]:  # fmt: skip
        assert is_problem(await api.client.post("/v1/jobs/x/reports", content=bad), status, ""), bad


# -- figures -------------------------------------------------------------------------------------------------------
async def test_the_figures_for_prometheus(api: Api) -> None:
    api.world.engine.work_us = {1: US, **dict.fromkeys(range(2, 9), 10**12)}
    settings, controller = parse_settings("[queues.vision]\nquota = 3\n"), api.controller
    controller.intake.obey(settings)
    await controller.change(lambda now: settings_events(controller.state, controller.names, settings, now))
    for n in range(6):
        await api.post_job(job("x", queue="vision" if n else "default"), f"x{n}")
    await api.post_job(job("big", workers=9))
    await api.settle()
    api.world.clock.us += 2 * US
    api.world.engine.advance()
    await api.settle()
    await api.client.get("/v1/nothing/x0")
    answer = await api.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    wanted = {
        ("headway_jobs", ("queue", "vision"), ("state", "running")): 4,
        ("headway_jobs", ("queue", "vision"), ("state", "queued")): 1,
        ("headway_jobs", ("queue", "default"), ("state", "running")): 0,
        ("headway_jobs_submitted_total",): 7,
        ("headway_jobs_ended_total", ("state", "completed")): 1,
        ("headway_jobs_ended_total", ("state", "rejected")): 1,
        ("headway_nodes", ("state", "up")): 2,
        ("headway_gpus",): 4,
        ("headway_gpus_used",): 4,
        ("headway_queue_gpus_used", ("queue", "vision")): 4,
        ("headway_queue_gpus_quota", ("queue", "vision")): 3,
        ("headway_job_wait_seconds_count",): 5,
        ("headway_preemptions_total",): 0,
        ("headway_plans_refused_total",): 0,
        ("headway_journal_events_total",): api.controller.journal.events,
        ("headway_http_requests_total", ("method", "POST"), ("path", "/v1/jobs"), ("status", "201")): 7,
        ("headway_http_requests_total", ("method", "GET"), ("path", "none"), ("status", "404")): 1,
    }
    assert {key: found[key] for key in wanted} == wanted
    assert found["headway_decide_seconds_count",] > 0 and all(not math.isnan(value) for value in found.values())
    assert all(name.startswith("headway_") for name, *_ in found)
    assert not any("x0" in str(key) for key in found), "no label names a job"


async def test_work_that_is_lost_is_counted(api: Api) -> None:
    api.world.engine.work_us = {1: 10**12}
    await api.post_job(job("x"), "x")
    await api.settle()
    api.world.clock.us += 100 * US
    await api.client.post("/v1/jobs/x/reports", json={"attempt": 1, "reports": [{"step": 40, "saved": "/ckpt"}, {"step": 100}]})
    await api.settle()
    await api.client.post("/v1/jobs/x/requeue")
    api.world.engine.advance()
    await api.settle()
    figures = (await api.client.get("/metrics")).text
    lost = float(next(line for line in figures.splitlines() if line.startswith("headway_lost_work_seconds_total")).split()[1])
    assert lost == pytest.approx(60, abs=1), "100 s for 100 steps, 40 of which are safe"


def test_settings_of_limits_are_checked() -> None:
    assert parse_settings("[limits]\nqueue = 7\nreports = 5\nlogs = 3\n[cluster]\nhost = '0.0.0.0'\n").to_json()["limits"] == {
        "body": "1MB", "queue": 7, "reports": 5, "logs": 3,
    }  # fmt: skip
    for text in ("[limits]\nlogs = 0\n", "[limits]\nqueue = -1\n", "[cluster]\nhost = 'a b'\n", "[cluster]\nhost = ''\n"):
        with pytest.raises(UserError):
            parse_settings(text)
