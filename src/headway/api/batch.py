"""Many jobs in one request: handed in together, or changed by a verb. Each job is answered for itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from headway.api.answers import answer
from headway.api.auth import Person, Principal, visible
from headway.api.context import LIVE, STATES, Api, handed_in, phases, read_json
from headway.api.jobs import JOB_SCHEMA, SUBMITTED, Hold, JobId
from headway.api.jobviews import job_json, jobs_json, live_rows, phase_of
from headway.api.problems import problems, status_of
from headway.api.schemas import BatchOut, Bulk, BulkOut, JobOut
from headway.core.errors import UserError, shown
from headway.core.model import JobSpec
from headway.runtime.board import JobRecord
from headway.runtime.intake import NoSuchJobError

BATCH_MAX = 10_000
"""Jobs of one batch."""
BATCH_KEYS = {"id", "spec"}
_BATCH_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["jobs"],
                    "properties": {
                        "jobs": {
                            "type": "array",
                            "maxItems": BATCH_MAX,
                            "items": {
                                "type": "object",
                                "required": ["spec"],
                                "properties": {
                                    "id": {"type": "string", "description": "as `id` of `POST /v1/jobs`; empty: none"},
                                    "spec": JOB_SCHEMA,
                                },
                            },
                        }
                    },
                }
            }
        },
    }
}
Verb = Callable[[Sequence[str]], Awaitable[Sequence[JobRecord | UserError]]]


def add_batch(app: FastAPI, api: Api) -> None:
    """Declare the paths."""
    controller = api.controller

    @app.post("/v1/jobs/batch", openapi_extra=_BATCH_BODY, responses=problems(413), response_model=BatchOut, tags=["jobs"])
    async def submit_batch(request: Request, who: Person, hold: Hold = False) -> Response:
        """Hand many jobs in, in one write of the journal. Each is taken in or refused for itself, as `POST /v1/jobs` would."""
        entries = _entries(await read_json(request, "a batch of jobs"))
        results: list[dict[str, Any] | None] = [None] * len(entries)
        sound: list[tuple[int, JobSpec, str]] = []
        for index, (job_id, body) in enumerate(entries):
            try:
                sound.append((index, handed_in(who, body), job_id))
            except UserError as error:
                results[index] = refused(job_id, error)
        answers = await controller.submit_many([(spec, job_id) for _, spec, job_id in sound], held=hold)
        taken = [found for found in answers if not isinstance(found, UserError)]
        fields = iter(jobs_json(controller, [job for job, _ in taken]))
        for (index, _, job_id), found in zip(sound, answers, strict=True):
            if isinstance(found, UserError):
                results[index] = refused(job_id, found)
            else:
                told = next(fields)
                results[index] = {key: told[key] for key in SUBMITTED} | {"created": found[1]}
        return answer({"results": results})

    async def hold(ids: Sequence[str]) -> Sequence[JobRecord | UserError]:
        return await controller.hold_many(ids, True)

    async def release(ids: Sequence[str]) -> Sequence[JobRecord | UserError]:
        return await controller.hold_many(ids, False)

    says = {
        "cancel": "Ask jobs to end for good; nothing happens to those that have ended.",
        "hold": "Keep jobs from starting; what runs goes on, but does not start again after it has stopped.",
        "release": "Let held jobs start again.",
        "requeue": "Send running jobs back to the queue: they save themselves, and go on from there with their next attempt.",
    }
    verbs: dict[str, Verb] = {
        "cancel": controller.cancel_many, "hold": hold, "release": release, "requeue": controller.requeue_many,
    }  # fmt: skip
    for word, verb in verbs.items():
        _add_verb(app, api, word, verb, says[word])


def _add_verb(app: FastAPI, api: Api, word: str, verb: Verb, says: str) -> None:
    controller = api.controller

    async def many(who: Person, which: Bulk) -> Response:
        chosen, results = _chosen(api, who, which), {}
        known = [job.id for job in chosen if isinstance(job, JobRecord)]
        for job_id, found in zip(known, await verb(known) if known else (), strict=True):
            results[job_id] = found
        done = [found for found in results.values() if isinstance(found, JobRecord)]
        errors = [{"job": job[0], "error": str(job[1])} for job in chosen if not isinstance(job, JobRecord)]
        errors += [{"job": job_id, "error": str(error)} for job_id, error in results.items() if isinstance(error, UserError)]
        return answer({"jobs": jobs_json(controller, done), "errors": errors})

    async def one(who: Person, job_id: JobId) -> Response:
        (found,) = await verb([visible(controller, who, job_id).id])
        if isinstance(found, UserError):
            raise found
        return answer(job_json(controller, found))

    app.post(
        f"/v1/jobs/{word}", responses=problems(413), response_model=BulkOut, tags=["jobs"], name=f"{word}_many", description=says
    )(many)
    app.post(
        f"/v1/jobs/{{job_id}}/{word}", responses=problems(404), response_model=JobOut, tags=["jobs"], name=word, description=says
    )(one)


def _chosen(api: Api, who: Principal, which: Bulk) -> list[JobRecord | tuple[str, str]]:
    """The jobs that are meant, each once; in place of one that is not there, its id and why."""
    controller = api.controller
    if (which.jobs is not None) == which.all:
        raise UserError('expected either "jobs", a list of ids, or "all": true')
    if which.jobs is not None:
        if which.user or which.queue or which.state:
            raise UserError('filters go with "all": true, not with a list of ids')
        found: dict[str, JobRecord | tuple[str, str]] = {}
        for job_id in which.jobs:
            try:
                job = visible(controller, who, job_id)
                found[job.id] = job
            except NoSuchJobError as error:
                found[job_id] = job_id, str(error)
        return list(found.values())
    wanted, rows = (phases(which.state) if which.state else STATES) & LIVE, live_rows(controller)
    return [
        job
        for job in controller.board
        if (not which.queue or job.queue == which.queue) and (not which.user or job.user == which.user) and who.sees(job)
        if not job.ended and phase_of(job, rows.get(job.number)) in wanted
    ]


def refused(job_id: str, error: UserError) -> dict[str, Any]:
    """The fields of `Refused`."""
    return {"id": job_id, "error": str(error), "status": status_of(error)}


def _entries(body: Any) -> list[tuple[str, Any]]:
    """The ids and specs of a batch."""
    jobs = body.get("jobs") if isinstance(body, dict) and len(body) == 1 else None
    if not isinstance(jobs, list):
        raise HTTPException(400, 'expected {"jobs": [{"id": "", "spec": {…}}, …]}')
    if len(jobs) > BATCH_MAX:
        raise UserError(f"expected at most {BATCH_MAX} jobs in one batch, got {len(jobs)}", key="jobs")
    found = []
    for index, job in enumerate(jobs):
        sound = isinstance(job, dict) and "spec" in job and job.keys() <= BATCH_KEYS and isinstance(job.get("id", ""), str)
        if not sound:
            raise UserError(f'expected {{"id": "", "spec": {{…}}}}, got {shown(job)}', key=f"jobs[{index}]")
        found.append((job.get("id", ""), job["spec"]))
    return found
