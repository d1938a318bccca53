"""`/api/2.0/mlflow/…`: the metrics of tasks that log to an MLflow server, for which they take this one (`progress.mlflow`). A
task's token says whose they are. It is no part of the description: MLflow's own documentation describes it."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request, Response

from headway.api.answers import answer
from headway.api.auth import Someone, visible
from headway.api.context import Api
from headway.api.problems import ForbiddenError

PREFIX = "/api/2.0/mlflow"


def add_mlflow(app: FastAPI, api: Api) -> None:
    """Declare the paths."""
    controller = api.controller

    @app.api_route(f"{PREFIX}/{{path:path}}", methods=["GET", "POST", "PATCH", "DELETE"], include_in_schema=False)
    async def mlflow(request: Request, who: Someone, path: str) -> Response:
        """One request of an MLflow client."""
        if who.role is not None:
            raise ForbiddenError("this is for the tasks of jobs, with the token that each of them has")
        job = visible(controller, who, str(who.job))
        fields = await _fields(request)
        if fields is None:
            return answer({"error_code": "BAD_REQUEST", "message": "expected an object in JSON"}, 400)
        told = controller.reporting.mlflow(controller.state, job.number, who.attempt, job.name, request.method, path, fields)
        if told.told:
            api.rates.take("reports", who.key, len(told.told), controller.intake.settings.limits.reports_per_s)
            api.meters.reports.inc(len(told.told))
            await controller.report(job.number, who.attempt, told.told)
        return answer(told.fields, told.status)


async def _fields(request: Request) -> dict[str, Any] | None:
    """The fields of a request: its query, or its body; None where that is no object. Words such as NaN are numbers here."""
    if request.method == "GET":
        return dict(request.query_params)
    try:
        found = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
