"""`GET /v1/jobs/{id}/why`: why a job is, or is not, running, and when it probably will (`app.why_live`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse

from headway.app.why_live import why_live
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller


def register(app: FastAPI, controller: Controller, found: Callable[..., JobRecord] | None = None) -> None:
    """Declare the path. `found` is the dependency that gives the job of the path's `job_id`, if it is there for whoever asks
    (default: every job is)."""

    def any_job(job_id: str) -> JobRecord:
        return controller.find(job_id)

    the_job: Any = Depends(found or any_job)

    @app.get("/v1/jobs/{job_id}/why", tags=["jobs"])
    async def why(job: JobRecord = the_job) -> JSONResponse:
        """Its rank, each term of its priority, what it waits for, what would help, and when it will probably start and end."""
        return JSONResponse(plain(await why_live(controller, job)))


def plain(value: Any) -> Any:
    """The same for JSON: numbers that are not finite are null."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
