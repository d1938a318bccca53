"""Paths of jobs: hand in, list, look, change. Batches and bulk verbs are in `api.batch`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any, Literal

import orjson
from fastapi import FastAPI, Path, Query, Request, Response

from headway.api.answers import answer
from headway.api.auth import Person, Someone, visible
from headway.api.context import ID_LENGTH_MAX, Api, handed_in, phases, read_json
from headway.api.jobviews import deciding_json, job_json, jobs_json, live_rows, phase_of
from headway.api.problems import problems
from headway.api.schemas import Change, DryRun, JobDetail, JobList, JobOut, Submitted
from headway.api.units import seconds_us
from headway.app.dryrun import dry_run_of
from headway.core import columns as c
from headway.core.errors import UserError
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller
from headway.runtime.verbs import Update

LIST_MAX = 10_000
WAIT_S_MAX = 30.0
JobId = Annotated[str, Path(description="a job's id, or its number", max_length=ID_LENGTH_MAX)]
NewId = Annotated[str, Query(description="an id of one's own: the same job may be handed in again under it")]
Hold = Annotated[bool, Query(description="held from the start: it waits until it is released")]
SUBMITTED = ("job", "number", "state", "reason", "message", "note")
JOB_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["schema", "name", "run", "workdir"],
    "properties": {
        "schema": {"const": 1},
        "name": {"type": "string", "minLength": 1, "maxLength": 128},
        "run": {"type": "string", "minLength": 1},
        "workdir": {"type": "string", "description": "an absolute path on the nodes"},
    },
}
_JOB_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": 'A job: the keys of the job file under `"schema": 1`, as `docs/api.md` lists them.',
        "content": {"application/json": {"schema": JOB_SCHEMA}},
    }
}


def submitted(controller: Controller, job: JobRecord, created: bool) -> dict[str, Any]:
    """The fields of `Submitted`."""
    fields = job_json(controller, job)
    return {key: fields[key] for key in SUBMITTED} | {"created": created}


def add_jobs(app: FastAPI, api: Api) -> None:
    """Declare the paths."""
    controller = api.controller

    @app.post(
        "/v1/jobs", status_code=201, openapi_extra=_JOB_BODY, tags=["jobs"],
        responses=problems(409, 413, also={200: {"model": Submitted | DryRun, "description": "Known, or only checked"}}),
        response_model=Submitted,
    )  # fmt: skip
    async def submit(
        request: Request,
        who: Person,
        id: NewId = "",
        dry_run: Annotated[bool, Query(description="only check it: it is not taken in")] = False,
        hold: Hold = False,
    ) -> Response:
        """Hand a job in. 201 when it is new, 200 when it had been handed in before; it is safe in the journal then."""
        spec = handed_in(who, await read_json(request, "a job"))
        if dry_run:
            return answer(dry_run_of(controller, spec, id))
        job, created = await controller.submit(spec, id, held=hold)
        return answer(submitted(controller, job, created), 201 if created else 200)

    @app.get("/v1/jobs", responses=problems(), response_model=JobList, tags=["jobs"])
    async def list_jobs(
        who: Person,
        state: Annotated[str, Query(description="states, parted by commas; also `live` and `ended`; default: all")] = "",
        queue: Annotated[str, Query()] = "",
        user: Annotated[str, Query()] = "",
        group: Annotated[str, Query()] = "",
        limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 1000,
        cursor: Annotated[str, Query(description="`next` of the page before", pattern="^([0-9]{1,18})?$")] = "",
        order: Annotated[Literal["newest", "oldest"], Query(description="which jobs come first where there are more")] = "newest",
    ) -> Response:
        """Jobs by number; of many, the newest (or the oldest). With `next` as `cursor` come the next older (newer) ones: none
        twice, none left out, whatever has been handed in meanwhile."""
        wanted, rows = phases(state), live_rows(controller)
        newest, at = order == "newest", int(cursor) if cursor else -1
        found = [
            job
            for job in controller.board
            if (not queue or job.queue == queue) and (not user or job.user == user) and who.sees(job)
            if at < 0 or (job.number < at if newest else job.number > at)
            if phase_of(job, rows.get(job.number)) in wanted
        ]
        if group:
            kept = [fields for fields in jobs_json(controller, found, rows) if fields["group"] == group]
            more, kept = max(len(kept) - limit, 0), kept[-limit:] if newest else kept[:limit]
        else:
            kept, more = jobs_json(controller, found[-limit:] if newest else found[:limit], rows), max(len(found) - limit, 0)
        after = str(kept[0 if newest else -1]["number"]) if more else ""
        return answer({"jobs": kept, "policy": deciding_json(controller), "more": more, "next": after})

    @app.get("/v1/jobs/{job_id}", responses=problems(404, 410), response_model=JobDetail, tags=["jobs"])
    async def show(
        who: Someone,
        job_id: JobId,
        wait: Annotated[float, Query(ge=0, le=WAIT_S_MAX, description="seconds to wait for its end before answering")] = 0.0,
    ) -> Response:
        """One job, and what was handed in."""
        job = visible(controller, who, job_id)
        if wait:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    while not job.ended and not controller.stopping:
                        await controller.changed(wait)
        return answer(job_json(controller, job) | {"spec": orjson.Fragment(job.spec or "{}")})

    @app.patch("/v1/jobs/{job_id}", responses=problems(404, 413), response_model=JobOut, tags=["jobs"])
    async def change(who: Person, job_id: JobId, change: Change) -> Response:
        """Change a live job: its priority, deadline, time limit, urgency (as far as its owner's budget goes), or, while it
        waits, its queue."""
        job = visible(controller, who, job_id)
        return answer(job_json(controller, await controller.update(job.id, update_of(change))))


def update_of(change: Change) -> Update:
    """What is to change, in the controller's units. `UserError` for what can't be."""
    given = change.model_fields_set
    for name in ("priority", "urgency", "queue"):
        if name in given and getattr(change, name) is None:
            raise UserError("expected a value, got nothing: it can't be taken away", key=name)
    if not given:
        raise UserError("expected something to change: priority, deadline, time_limit, urgency or queue")
    times = {name: c.NEVER if (value := getattr(change, name)) is None else seconds_us(value, name)
             for name in ("deadline", "time_limit") if name in given}  # fmt: skip
    return Update(
        priority=change.priority,
        deadline_us=times.get("deadline"),
        time_limit_us=times.get("time_limit"),
        urgency=change.urgency,
        queue=change.queue,
    )
