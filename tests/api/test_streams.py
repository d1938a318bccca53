"""What goes on: events of the journal, and logs, as server-sent events."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway.api import feed as feeds
from headway.core.columns import EventKind

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.api.world import Api, is_problem
from tests.runtime.fake import US, job

EVENTS = {"Accept": "text/event-stream"}


def events_in(answer: httpx.Response) -> list[tuple[str, str, dict[str, Any]]]:
    """The (id, event, data) of a stream, by the rules of the HTML standard."""
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream"), answer.text
    found = []
    for block in answer.text.split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines() if line and not line.startswith(":")]
        fields = {name: value for name, _, value in lines}
        if "data" in fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return found


async def test_events_of_a_job_from_the_beginning(api: Api) -> None:
    api.world.engine.work_us = {1: US}
    await api.post_job(job("x", user="ann", env=(("SECRET", "swordfish"),)))
    await api.settle()
    api.world.clock.us += 2 * US
    api.world.engine.advance()
    await api.settle()
    answer = await api.client.get("/v1/events", params={"since": 0, "follow": False})
    found = [(event, data) for _, event, data in events_in(answer) if data["job"]]
    assert [event for event, _ in found] == ["submitted", "start-requested", "started", "completed"]
    assert {data["job"] for _, data in found} == {"x-1"} and [data["attempt"] for _, data in found] == [0, 1, 1, 1]
    assert "swordfish" not in answer.text
    ids = [int(number) for number, _, _ in events_in(answer)]
    assert ids == sorted(set(ids)) and ids[-1] <= api.controller.journal.events
    middle = ids[len(ids) // 2]
    later = await api.client.get("/v1/events", params={"since": 0, "follow": False}, headers={"Last-Event-ID": str(middle)})
    assert [int(number) for number, _, _ in events_in(later)] == [number for number in ids if number > middle]
    assert events_in(await api.client.get("/v1/events", params={"follow": False})) == []
    one = await api.client.get("/v1/events", params={"since": 0, "follow": False, "kinds": "completed"})
    assert [event for _, event, _ in events_in(one)] == ["completed"]
    everything = await api.client.get("/v1/events", params={"since": 0, "follow": False, "kinds": "all"})
    assert [int(number) for number, _, _ in events_in(everything)] == list(range(1, api.controller.journal.events + 1))
    assert is_problem(await api.client.get("/v1/events", params={"kinds": "complted"}), 422, "did you mean 'completed'")
    assert is_problem(await api.client.get("/v1/events", params={"since": -1}), 422, "since")


async def test_a_user_hears_of_his_own_jobs_alone(api: Api) -> None:
    for user in ("ann", "bob"):
        await api.post_job(job("x", user=user), f"{user}s")
    await api.client.post("/v1/nodes/n1/drain")
    await api.settle()
    async with api.of(api.token("user", "bob")) as bob:
        mine = events_in(await bob.get("/v1/events", params={"since": 0, "follow": False, "kinds": "all"}))
    assert mine and {data["job"] for _, _, data in mine} == {"bobs"}
    staff = events_in(await api.client.get("/v1/events", params={"since": 0, "follow": False}))
    assert {"anns", "bobs", None} == {data["job"] for _, _, data in staff}
    assert [data["node"] for _, event, data in staff if event == "node-draining"] == ["n1"]


async def test_old_events_come_from_the_journal(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "KEPT", 5)
    monkeypatch.setattr(feeds, "READ_MAX", 7)
    for n in range(10):
        await api.post_job(job(f"j{n}"))
    await api.settle()
    for since in (0, 1, 13, 30, api.controller.journal.events - 1):
        answer = await api.client.get("/v1/events", params={"since": since, "follow": False, "kinds": "all"})
        assert [int(number) for number, _, _ in events_in(answer)] == list(range(since + 1, api.controller.journal.events + 1))


async def test_events_come_as_they_happen_and_end_with_the_controller(api: Api) -> None:
    following = asyncio.create_task(api.client.get("/v1/events"))
    await api.settle()
    await api.post_job(job("x"))
    await api.settle()
    assert not following.done()
    api.controller.stop()
    found = events_in(await asyncio.wait_for(following, 10))
    assert found[0][1] == "submitted" and {data["job"] for _, _, data in found} == {"x-1"}


async def test_one_token_has_so_many_streams_at_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.api.meters.STREAMS_MAX", 2)
    following = [asyncio.create_task(api.client.get("/v1/events")) for _ in range(2)]
    await api.settle()
    third = await api.client.get("/v1/events")
    assert is_problem(third, 429, "at most 2 answers") and third.headers["retry-after"] == "1"
    async with api.of(api.token("user", "ann")) as ann:
        assert (await ann.get("/v1/events", params={"follow": False})).status_code == 200
    api.controller.stop()
    await asyncio.wait(following)


async def test_logs_as_events_over_attempts_and_from_where_one_left(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(api.world.engine, "log_path", lambda job, attempt, rank: tmp_path / f"{attempt}.log")
    api.world.engine.work_us = {1: 100 * US}
    await api.post_job(job("x"))
    await api.settle()
    (tmp_path / "1.log").write_bytes(b"step 1\r\xff" + "né".encode()[:2])
    following = asyncio.create_task(api.client.get("/v1/jobs/x-1/logs", headers=EVENTS))
    await asyncio.sleep(0.15)
    with (tmp_path / "1.log").open("ab") as file:
        file.write("né".encode()[2:] + b"\n")
    await api.client.post("/v1/jobs/x-1/requeue")
    (tmp_path / "2.log").write_bytes(b"again")
    api.world.engine.advance()
    await api.settle()
    api.world.clock.us += 101 * US
    api.world.engine.advance()
    found = events_in(await asyncio.wait_for(following, 10))
    assert "".join(data["text"] for _, event, data in found if event == "log") == "step 1\r\ufffdné\nagain"
    assert [number for number, event, _ in found if event == "log"][-1] == "2-5"
    assert found[0][0] == "1-9", "half a character is not told yet, and does not count"
    assert found[-1][1] == "end" and found[-1][2] == {"job": "x-1", "state": "completed", "reason": "", "exit_code": 0}
    for at, text in [("1-9", "é\nagain"), ("2-3", "in"), ("3", "in"), ("", "again")]:
        answer = await api.client.get("/v1/jobs/x-1/logs", headers=EVENTS | {"Last-Event-ID": at})
        assert "".join(data["text"] for _, event, data in events_in(answer) if event == "log") == text
    assert is_problem(await api.client.get("/v1/jobs/x-1/logs", headers=EVENTS | {"Last-Event-ID": "x"}), 422, "last-event-id")


async def test_kinds_have_words(api: Api) -> None:
    from headway.api.events import USUAL, WORDS

    assert set(WORDS.values()) == set(EventKind) and set(EventKind) > USUAL
