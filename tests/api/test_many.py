"""10,000 jobs from eight clients at once, over real HTTP: each job is there exactly once, however often it was handed in."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.api.test_openapi import Server
from tests.api.world import TOKEN

from headway.runtime.journal import Journal

CLIENTS, EACH, BATCH = 8, 1_250, 50
SPEC = {"schema": 1, "name": "train", "run": "true", "workdir": "/"}


def hand_in(url: str, client: int) -> dict[str, int]:
    """Hand this client's jobs in, singly and in batches, one in five twice; the number of each id as it was told."""
    rng = random.Random(client)
    ids = [f"c{client}-{n}" for n in range(EACH)]
    told: dict[str, int] = {}

    def note(job_id: str, number: int) -> None:
        assert told.setdefault(job_id, number) == number, "the same id is the same job"

    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120, trust_env=False) as http:
        at = 0
        while at < EACH:
            if rng.random() < 0.5:
                some = ids[at : at + BATCH]
                at += BATCH
                some += rng.sample(ids[:at], min(len(some) // 5, at))
                body = {"jobs": [{"id": job_id, "spec": SPEC} for job_id in some]}
                for job_id, result in zip(some, http.post("/v1/jobs/batch", json=body).json()["results"], strict=True):
                    note(job_id, result["number"])
            else:
                for job_id in [*ids[at : at + 4], ids[rng.randrange(at + 1)]]:
                    answer = http.post("/v1/jobs", json=SPEC, params={"id": job_id})
                    assert answer.status_code in (200, 201), answer.text
                    note(job_id, answer.json()["number"])
                at += 4
    return told


@pytest.mark.slow
def test_each_of_10000_jobs_of_8_clients_is_there_once(tmp_path: Path) -> None:
    with Server(tmp_path, jobs=()) as server, ThreadPoolExecutor(CLIENTS) as pool:
        told: dict[str, int] = {}
        for mine in pool.map(lambda client: hand_in(server.url, client), range(CLIENTS)):
            told |= mine
        assert len(told) == CLIENTS * EACH and len(set(told.values())) == len(told)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        seen: list[str] = []
        cursor = ""
        while True:
            page = httpx.get(
                f"{server.url}/v1/jobs", params={"limit": 3_000, "cursor": cursor}, headers=headers, timeout=60, trust_env=False
            ).json()
            seen += [job["job"] for job in page["jobs"]]
            if not (cursor := page["next"]):
                break
        assert sorted(seen) == sorted(told)
        everything = httpx.post(
            f"{server.url}/v1/jobs/cancel", content=json.dumps({"all": True}), headers=headers, timeout=60, trust_env=False
        ).json()
        assert everything["errors"] == []
    journal = Journal(tmp_path / "j.db", writes=False)
    handed_in = [int(record[2]) for batch in journal.read() for record in batch.records if record[1] == 10]
    journal.close()
    assert sorted(handed_in) == sorted(told.values())
