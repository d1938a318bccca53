"""`GET /v1/jobs/{id}/why`: why a job is, or is not, running, and when it probably will (`app.why_live`)."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Response

from headway.api.answers import answer
from headway.api.auth import Person, visible
from headway.api.context import Api
from headway.api.jobs import JobId
from headway.api.problems import problems
from headway.app.why_live import why_live


def add_why(app: FastAPI, api: Api) -> None:
    """Declare the path."""

    @app.get("/v1/jobs/{job_id}/why", responses=problems(404), response_model=dict[str, Any], tags=["jobs"])
    async def why(who: Person, job_id: JobId) -> Response:
        """Its rank, each term of its priority, what it waits for, what would help, and when it will probably start and end."""
        return answer(await why_live(api.controller, visible(api.controller, who, job_id)))
