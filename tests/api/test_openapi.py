"""The API against its own description: whatever is sent, no error inside, and every answer as it is described.

The requests are drawn from the description by schemathesis, good and bad ones alike, with a fixed seed.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS
from schemathesis.config import SchemathesisConfig
from tests.api.world import TOKEN, api_at
from tests.runtime.fake import job

JOBS = ["a", "b", "c"]
EXAMPLES = 6
QUICK = {"follow": "false", "wait": "0"}
NAMES = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
NOT_BY_CHANCE = {"/v1/stop"}
"""Ends the world."""


class Server:
    """The API on a real port, in a thread of its own."""

    def __init__(self, path: Path, jobs: Sequence[str] = JOBS) -> None:
        self._path, self._jobs = path, jobs
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.url = ""

    async def _serve(self) -> None:
        from headway.api.server import ApiServer

        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with api_at(self._path) as api:
            for name in self._jobs:
                await api.post_job(job(name, user="ann"), name)
            server = ApiServer(api.controller, api.access)
            await server.start()
            self.url = server.url
            self._ready.set()
            await self._stop.wait()
            await server.close()

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(300)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("world")) as found:
        yield found


def described(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/v1/openapi.json", trust_env=False).json()
    return found


def test_the_description_is_valid_json_and_names_all_problems(server: Server) -> None:
    found = described(server)
    json.dumps(found, allow_nan=False)
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            assert operation["description"].strip(), (method, path)
            for status, answer in operation["responses"].items():
                if status.startswith(("4", "5")):
                    assert list(answer["content"]) == ["application/problem+json"], (method, path, status)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_answer_is_as_described(mode: str, server: Server) -> None:
    raw = described(server)
    for path in NOT_BY_CHANCE:
        del raw["paths"][path]
    # Most ids that are drawn are nobody's: give those that are there a chance.
    for methods in raw["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "job_id":
                    parameter["examples"] = {each: {"value": each} for each in JOBS}
    config = SchemathesisConfig.from_dict({"seed": 20, "generation": {"mode": mode, "max-examples": EXAMPLES}})
    schema = schemathesis.openapi.from_dict(raw, config=config)
    schema.config.update(base_url=server.url)
    checks = CHECKS.get_by_names(NAMES)
    seen: Counter[int] = Counter()
    session = requests.Session()
    session.trust_env = False
    for result in schema.get_all_operations():
        try_out(result.ok(), session, checks, seen)
    assert 200 in seen and 422 in seen, seen


def try_out(operation: Any, session: requests.Session, checks: Any, seen: Counter[int]) -> None:
    """Send requests to one path, and hold the answers against its description."""
    names = {parameter.name for parameter in operation.query}

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def one(case: Any) -> None:
        # What would wait for something that does not come in this world.
        case.query = {**(case.query or {}), **{key: value for key, value in QUICK.items() if key in names}}
        answer = case.call(session=session, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20)
        seen[answer.status_code] += 1
        case.validate_response(answer, checks=checks)

    one()
