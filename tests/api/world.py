"""A controller on a fake machine behind its API, for tests: in this process, or over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.runtime.fake import World

from headway.api.auth import Access
from headway.api.server import make_app
from headway.core import columns as c
from headway.core.columns import Phase
from headway.core.model import to_json
from headway.runtime.controller import Controller
from headway.runtime.settings import Settings
from headway.runtime.tokens import TokenStore

TOKEN = "correct horse"
AUTH = {"Authorization": f"Bearer {TOKEN}"}


class FakeJobTokens:
    """Tokens of tasks without any secret: job-NUMBER-ATTEMPT."""

    def mint(self, job: int, attempt: int) -> str:
        return f"job-{job}-{attempt}"

    def read(self, token: str) -> tuple[int, int] | None:
        kind, *numbers = token.split("-")
        return (int(numbers[0]), int(numbers[1])) if kind == "job" and len(numbers) == 2 else None


class Api:
    """A client, and the world behind the API; `world.clock` stands still unless the test moves it."""

    def __init__(self, world: World, client: httpx.AsyncClient, access: Access, app: Any) -> None:
        self.world, self.client, self.access, self.app = world, client, access, app

    @property
    def controller(self) -> Controller:
        return self.world.controller

    async def post_job(self, spec: Any, job_id: str = "", **params: Any) -> httpx.Response:
        params = ({"id": job_id} if job_id else {}) | params
        body = spec if isinstance(spec, dict) else to_json(spec, compact=True)
        return await self.client.post("/v1/jobs", json=body, params=params)

    def token(self, role: str, user: str = "") -> str:
        """A new token of this role."""
        from headway.runtime.tokens import Role

        assert self.access.store is not None
        name = f"{user or role}-{len(self.access.store.all())}"
        return self.access.store.add(name, user or role, Role.parse(role))[1]

    def of(self, token: str) -> httpx.AsyncClient:
        """A client with another token."""
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(transport=self.client._transport, base_url="http://headway", headers=headers)

    async def settle(self) -> None:
        """Let the controller do what is due."""
        for _ in range(1000):
            await asyncio.sleep(0.005)
            if not self.controller._inbox and not self.controller.rounds.busy and not self._starting():
                return
        raise AssertionError("the controller never comes to rest")

    def _starting(self) -> bool:
        state = self.controller.state
        return bool((state.J[c.J_PHASE, state.live_rows()] == Phase.STARTING).any())


@asynccontextmanager
async def api_at(path: Path, *, nodes: int = 2, gpus: int = 2, policy: str = "fifo", owner: str = "") -> AsyncIterator[Api]:
    """The API of a new world."""
    world = World(path / "j.db", policy, nodes=nodes, gpus=gpus)
    controller = await world.start()
    controller.intake.obey(Settings())

    async def go_on() -> None:
        while True:
            await controller.step()
            await asyncio.sleep(0.001)

    running = asyncio.create_task(go_on())
    access = Access(TOKEN, owner, TokenStore(path / "tokens.json"), FakeJobTokens())
    app = make_app(controller, access)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://headway", headers=AUTH) as client:
        yield Api(world, client, access, app)
    running.cancel()
    await asyncio.wait([running])
    await controller.close()


def is_problem(answer: httpx.Response, status: int, text: str) -> bool:
    """Whether an answer is a problem report of one sentence with this in it."""
    assert answer.headers["content-type"] == "application/problem+json", (answer.status_code, answer.text)
    body = answer.json()
    assert body["status"] == answer.status_code == status, body
    assert text in body["detail"] and "\n" not in body["detail"], body
    return True
