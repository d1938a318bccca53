"""What tasks say over HTTP, and what they ask: reports of progress, and whether to stop. A task's token opens its own job alone,
and only while its attempt is the job's present one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from headway.api.answers import answer
from headway.api.auth import Someone, of_attempt, visible
from headway.api.context import Api
from headway.api.jobs import JobId
from headway.api.jobviews import live_row
from headway.api.problems import GoneError, problems
from headway.api.schemas import ProgressOut, ReportsIn, ReportsOut, StopOut
from headway.core import columns as c
from headway.core.columns import Phase, Reason
from headway.core.errors import UserError
from headway.runtime.collect import told_reports
from headway.runtime.progress import REFUSED, Fault, Finding

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "Reports of one task. The words NaN, Infinity and -Infinity are taken as numbers.",
        "content": {"application/json": {"schema": ReportsIn.model_json_schema(ref_template="#/components/schemas/{model}")}},
    }
}
_BODY["requestBody"]["content"]["application/json"]["schema"].pop("$defs")


def add_reports(app: FastAPI, api: Api) -> None:
    """Declare the paths."""
    controller = api.controller

    @app.post(
        "/v1/jobs/{job_id}/reports", openapi_extra=_BODY, responses=problems(404, 410, 413), response_model=ReportsOut,
        tags=["tasks"],
    )  # fmt: skip
    async def report(request: Request, who: Someone, job_id: JobId) -> Response:
        """Tell of progress: steps, loss, accuracy, checkpoints that are durable, that the job is done. Numbers that can't be are
        refused one by one and said; they never fail the job."""
        job = visible(controller, who, job_id)
        told = _reports(await request.body())
        of_attempt(who, job, told.attempt)
        api.rates.take("reports", who.key, len(told.reports), controller.intake.settings.limits.reports_per_s)
        each = [report.model_dump(exclude_none=True) for report in told.reports]
        findings = await controller.report(job.number, told.attempt, told_reports(each, told.rank))
        api.meters.reports.inc(len(told.reports))
        refused = sum(finding.fault in REFUSED for finding in findings)
        return answer({"accepted": max(len(told.reports) - refused, 0), "findings": findings_json(findings)})

    @app.get("/v1/jobs/{job_id}/stop", responses=problems(404, 410), response_model=StopOut, tags=["tasks"])
    async def stop(who: Someone, job_id: JobId) -> Response:
        """Whether the job's present attempt is to save itself and end."""
        job = visible(controller, who, job_id)
        row = live_row(controller, job)
        if row is None:
            raise GoneError("the job has ended")
        stops = row[c.J_PHASE] == Phase.STOPPING
        reason = Reason(row[c.J_REASON]) if stops else Reason.NONE
        return answer({"stop": stops, "reason": reason.word if reason else ""})

    @app.get("/v1/jobs/{job_id}/progress", responses=problems(404, 410), response_model=ProgressOut, tags=["jobs"])
    async def progress(who: Someone, job_id: JobId) -> Response:
        """What the job has told of itself: its curve, its newest durable checkpoint, and what was wrong with reports."""
        job = visible(controller, who, job_id)
        found = await asyncio.to_thread(controller.reporting.progress_of, controller.state, job.number)
        faults = [{"fault": word_of(each["fault"]), "sentence": each["sentence"]} for each in found["findings"]]
        points = [point | {"step": int(step)} for point in found["points"] if isinstance(step := point["step"], int | float)]
        return answer(found | {"points": points, "findings": faults})


def word_of(fault: Fault) -> str:
    """A fault as one word."""
    return fault.name.lower().replace("_", "-")


def findings_json(findings: list[Finding]) -> list[dict[str, str]]:
    """What was wrong, each sort once."""
    each = {(finding.fault, finding.sentence): finding for finding in findings}
    return [{"fault": word_of(finding.fault), "sentence": finding.sentence} for finding in each.values()]


def _reports(body: bytes) -> ReportsIn:
    """Reports in JSON, in which words for numbers that are not finite are allowed, as Python writes them."""
    try:
        return ReportsIn.model_validate(json.loads(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{where or 'the body'}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"expected reports in JSON: {error}") from None
