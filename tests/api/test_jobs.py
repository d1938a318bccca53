"""Many jobs: batches, bulk verbs, pages, changes, dry runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from headway.core.model import to_json
from headway.runtime.settings import parse_settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.api.world import Api, is_problem
from tests.runtime.fake import US, job


def entry(name: str, job_id: str = "", **more: Any) -> dict[str, Any]:
    return {"id": job_id, "spec": to_json(job(name, **more), compact=True)}


async def fill(api: Api, count: int, **more: Any) -> None:
    """So many jobs, a0 first; the cluster of four GPUs runs the first four for ever."""
    api.world.engine.work_us = dict.fromkeys(range(1, count + 1), 10**12)
    body = {"jobs": [entry("a", f"a{n}", **more) for n in range(count)]}
    answer = await api.client.post("/v1/jobs/batch", json=body)
    assert [result["job"] for result in answer.json()["results"]] == [f"a{n}" for n in range(count)]
    await api.settle()


# -- batches -------------------------------------------------------------------------------------------------------
async def test_each_job_of_a_batch_is_answered_for_itself(api: Api) -> None:
    await api.post_job(job("known"), "known")
    segments = api.controller.journal.segments
    body = {
        "jobs": [
            entry("one"),
            entry("two", "mine"),
            entry("three", "mine"),  # the id belongs to two, of this very batch
            entry("known", "known"),
            {"spec": {"schema": 1, "name": "x", "run": "true", "workdir": "rel"}},
            entry("big", workers=99),
            {"spec": 7},
        ]
    }
    answer = await api.client.post("/v1/jobs/batch", json=body)
    assert answer.status_code == 200
    one, two, three, known, relative, big, seven = answer.json()["results"]
    assert (one["job"], one["created"], two["job"], two["created"]) == ("one-1", True, "mine", True)
    assert (three["id"], three["status"]) == ("mine", 409) and "another job" in three["error"]
    assert (known["number"], known["created"]) == (1, False)
    assert relative["status"] == 422 and relative["error"].startswith("workdir: expected an absolute path")
    assert (big["state"], big["reason"]) == ("rejected", "larger-than-cluster")
    assert seven["status"] == 422
    assert api.controller.journal.segments - segments < 10, "the batch is one write, beside what rounds write"
    again = (await api.client.post("/v1/jobs/batch", json={"jobs": [entry("two", "mine")]})).json()["results"]
    assert again[0]["number"] == two["number"] and not again[0]["created"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ([], 400, '{"jobs"'),
        ({}, 400, '{"jobs"'),
        ({"jobs": {}}, 400, '{"jobs"'),
        ({"jobs": [], "more": 1}, 400, '{"jobs"'),
        ({"jobs": [1]}, 422, "jobs[0]: expected"),
        ({"jobs": [{"id": "x"}]}, 422, "jobs[0]: expected"),
        ({"jobs": [{"id": 1, "spec": {}}]}, 422, "jobs[0]: expected"),
        ({"jobs": [{"spec": {}, "sepc": {}}]}, 422, "jobs[0]: expected"),
        ({"jobs": [{"spec": {}}] * 10_001}, 422, "at most 10000 jobs"),
    ],
)
async def test_what_is_no_batch_is_refused_whole(body: Any, status: int, text: str, api: Api) -> None:
    assert is_problem(await api.client.post("/v1/jobs/batch", json=body), status, text)
    assert len(api.controller.board) == 0


# -- verbs ---------------------------------------------------------------------------------------------------------
async def test_held_jobs_wait_until_they_are_released(api: Api) -> None:
    await fill(api, 6)
    held = await api.client.post("/v1/jobs/a4/hold")
    assert (held.json()["held"], held.json()["state"], held.json()["reason"]) == (True, "queued", "held-by-user")
    await api.client.post("/v1/jobs/cancel", json={"jobs": ["a0"]})
    api.world.engine.advance()
    await api.settle()
    states = {found["job"]: found["state"] for found in (await api.client.get("/v1/jobs")).json()["jobs"]}
    assert (states["a0"], states["a4"], states["a5"]) == ("cancelled", "queued", "running"), "a5 has passed the held a4"
    assert (await api.client.post("/v1/jobs/a4/release")).json()["held"] is False
    assert is_problem(await api.client.post("/v1/jobs/a0/hold"), 422, "has ended")


@pytest.mark.parametrize("batch", [False, True])
async def test_a_job_that_is_handed_in_held_never_starts_before_it_is_released(batch: bool, api: Api) -> None:
    """On an empty cluster, where it would start at once."""
    body, path = ({"jobs": [entry("a", "a")]}, "/v1/jobs/batch") if batch else (entry("a")["spec"], "/v1/jobs")
    await api.client.post(path, params={"hold": True, "id": "a"}, json=body)
    await api.settle()
    found = (await api.client.get("/v1/jobs/a")).json()
    assert (found["state"], found["reason"], found["held"], found["attempt"]) == ("queued", "held-by-user", True, 0)
    await api.client.post("/v1/jobs/a/release")
    await api.settle()
    assert (await api.client.get("/v1/jobs/a")).json()["attempt"] == 1


async def test_a_requeued_job_goes_on_with_its_next_attempt(api: Api) -> None:
    await fill(api, 1)
    assert (await api.client.post("/v1/jobs/a0/requeue")).json()["state"] == "stopping"
    api.world.engine.advance()
    await api.settle()
    found = (await api.client.get("/v1/jobs/a0")).json()
    assert (found["state"], found["attempt"], found["preemptions"]) == ("running", 2, 0)


async def test_all_that_the_filters_leave(api: Api) -> None:
    await fill(api, 8)
    many = (await api.client.post("/v1/jobs/hold", json={"all": True, "state": "queued"})).json()
    assert [found["job"] for found in many["jobs"]] == ["a4", "a5", "a6", "a7"] and many["errors"] == []
    assert all(found["held"] for found in many["jobs"])
    many = (await api.client.post("/v1/jobs/release", json={"jobs": ["a4", "5", "a4", "nobody"]})).json()
    assert [found["job"] for found in many["jobs"]] == ["a4"]
    assert [fault["job"] for fault in many["errors"]] == ["nobody"] or many["errors"]
    assert (await api.client.post("/v1/jobs/cancel", json={"all": True, "queue": "none"})).json()["jobs"] == []
    many = (await api.client.post("/v1/jobs/cancel", json={"all": True})).json()
    assert len(many["jobs"]) == 8 and {found["state"] for found in many["jobs"]} == {"stopping", "cancelled"}
    for body, text in [
        ({}, "either"), ({"all": True, "jobs": []}, "either"), ({"jobs": [], "user": "x"}, "filters"),
        ({"all": True, "state": "quued"}, "did you mean 'queued'"), ({"jobs": ["a0"], "every": 1}, "every"),
    ]:  # fmt: skip
        assert is_problem(await api.client.post("/v1/jobs/cancel", json=body), 422, text)


async def test_a_live_job_is_changed(api: Api) -> None:
    await fill(api, 5, deadline_s=7200.0)
    before = (await api.client.get("/v1/jobs/a4")).json()
    answer = await api.client.patch("/v1/jobs/a4", json={"priority": 80, "deadline": None, "time_limit": "1h", "urgency": 7})
    assert answer.status_code == 200, answer.text
    changed = answer.json()
    assert (changed["priority"], changed["deadline_at"], changed["time_limit_s"], changed["urgency"]) == (80, None, 3600, 7)
    assert before["priority"] == 50 and before["time_limit_s"] is None
    assert (await api.client.patch("/v1/jobs/a4", json={"queue": "other"})).json()["queue"] == "other"
    assert (await api.client.patch("/v1/jobs/a4", json={"time_limit": 90})).json()["time_limit_s"] == 90
    for body, text in [
        ({}, "something to change"), ({"priority": 101}, "priority"), ({"priority": None}, "priority: expected a value"),
        ({"deadline": "soon"}, "deadline: expected a duration"), ({"prio": 1}, "prio"), ({"time_limit": -1}, "time_limit"),
        ({"urgency": 11}, "urgency"), ({"queue": "../x"}, "queue"), ([], "the body"),
    ]:  # fmt: skip
        assert is_problem(await api.client.patch("/v1/jobs/a4", json=body), 422, text), body
    assert is_problem(await api.client.patch("/v1/jobs/a4", content=b'{"deadline": NaN}'), 422, "")
    await api.client.post("/v1/jobs/a4/cancel")
    assert is_problem(await api.client.patch("/v1/jobs/a4", json={"priority": 1}), 422, "has ended")


# -- pages ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("limit", [1, 3, 7, 20, 21, 100])
async def test_pages_show_each_job_once_whatever_comes_meanwhile(limit: int, api: Api) -> None:
    await fill(api, 20)
    seen: list[str] = []
    params: dict[str, Any] = {"limit": limit}
    more = 20
    while True:
        page = (await api.client.get("/v1/jobs", params=params)).json()
        names = [found["job"] for found in page["jobs"]]
        assert len(names) <= limit and page["more"] == max(more - len(names), 0)
        seen, more = names + seen, page["more"]
        await api.post_job(job("later"))
        if not page["next"]:
            break
        params["cursor"] = page["next"]
    assert seen == [f"a{n}" for n in range(20)]


async def test_the_oldest_may_come_first(api: Api) -> None:
    await fill(api, 7)
    page = (await api.client.get("/v1/jobs", params={"state": "queued", "limit": 2, "order": "oldest"})).json()
    assert [found["job"] for found in page["jobs"]] == ["a4", "a5"] and (page["more"], page["next"]) == (1, "6")
    page = (await api.client.get("/v1/jobs", params={"limit": 2, "order": "oldest", "cursor": "6"})).json()
    assert [found["job"] for found in page["jobs"]] == ["a6"] and (page["more"], page["next"]) == (0, "")


async def test_pages_of_a_group(api: Api) -> None:
    await fill(api, 9, group="sweep")
    await api.post_job(job("alone"))
    page = (await api.client.get("/v1/jobs", params={"group": "sweep", "limit": 4})).json()
    assert [found["job"] for found in page["jobs"]] == ["a5", "a6", "a7", "a8"] and (page["more"], page["next"]) == (5, "6")
    page = (await api.client.get("/v1/jobs", params={"group": "sweep", "limit": 9, "cursor": "6"})).json()
    assert [found["job"] for found in page["jobs"]] == ["a0", "a1", "a2", "a3", "a4"] and (page["more"], page["next"]) == (0, "")
    assert is_problem(await api.client.get("/v1/jobs", params={"cursor": "x"}), 422, "cursor")


# -- dry runs ------------------------------------------------------------------------------------------------------
async def test_a_dry_run_says_what_would_be_and_does_nothing(api: Api) -> None:
    api.controller.intake.obey(parse_settings("[users.ann]\ngpus = 2\n[queues.vision]\n"))
    segments, names = api.controller.journal.segments, dict(api.controller.state.names)
    told = await api.post_job(job("x", workers=2, queue="vision", user="new"), dry_run=True)
    assert (told.status_code, told.json()) == (200, {
        "dry_run": True, "state": "would-queue", "message": "", "name": "x", "user": "new", "queue": "vision", "gpus": 2,
        "tasks": 2,
    })  # fmt: skip
    big = (await api.post_job(job("x", workers=9, queue="vision"), dry_run=True)).json()
    assert big["state"] == "rejected" and "needs 9 workers" in big["message"]
    assert is_problem(await api.post_job(job("x", queue="visoin"), dry_run=True), 422, "did you mean 'vision'")
    assert is_problem(await api.post_job(job("x", workers=3, user="ann", queue="vision"), dry_run=True), 422, "at most 2 GPUs")
    assert is_problem(await api.post_job(job("x", queue="vision"), "a/b", dry_run=True), 422, "id: expected")
    assert (api.controller.journal.segments, api.controller.state.names) == (segments, names) and not len(api.controller.board)


# -- what is shown -------------------------------------------------------------------------------------------------
async def test_a_job_tells_all_that_is_known_of_it(api: Api) -> None:
    api.world.engine.work_us = {1: 10**12}
    spec = to_json(job("x", workers=3, priority=70, group="g", estimate_s=100.0, deadline_s=600.0, time_limit_s=300.0,
                       goal_accuracy=0.9), compact=True)  # fmt: skip
    spec |= {"progress": {"total": 50}, "stop": {"rule": "optstop"}}
    assert (await api.post_job(spec, "x")).status_code == 201
    await api.settle()
    api.world.clock.us += 10 * US
    found = (await api.client.get("/v1/jobs/x")).json()
    wanted = {
        "priority": 70, "group": "g", "time_limit_s": 300.0, "total": 50, "goal_accuracy": 0.9, "stop_rule": "optstop",
        "held": False, "eta_s": 90.0, "run_s": 10.0, "saved_step": None, "saved_age_s": None,
        "node_places": [{"node": "n0", "gpus": [0, 1]}, {"node": "n1", "gpus": [0]}],
    }  # fmt: skip
    assert {key: found[key] for key in wanted} == wanted
    listed = (await api.client.get("/v1/jobs")).json()["jobs"][0]
    assert listed == {key: value for key, value in found.items() if key != "spec"}
    queues = (await api.client.get("/v1/queues")).json()["queues"]
    assert queues[0] | {"queue": ""} == {
        "queue": "", "parent": "", "quota_gpus": None, "limit_gpus": None, "weight": 1, "gpus_used": 3, "queued": 0, "running": 1,
    }  # fmt: skip
    status = (await api.client.get("/v1/status")).json()
    assert (status["jobs"]["running"], status["gpus"], status["gpus_used"], status["policy"]) == (1, 4, 3, "fifo")
    await api.client.post("/v1/jobs/x/cancel")
    api.world.engine.advance()
    await api.settle()
    ended = (await api.client.get("/v1/jobs/x")).json()
    assert {key: ended[key] for key in ("priority", "group", "time_limit_s", "total", "stop_rule", "node_places", "eta_s")} == {
        "priority": 70, "group": "g", "time_limit_s": 300.0, "total": 50, "stop_rule": "optstop", "node_places": [],
        "eta_s": None,
    }  # fmt: skip
