"""What the API says: the shapes of its JSON, and how they are made from the controller's records. Times are ISO 8601 in UTC."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from headway.core import columns as c
from headway.core.columns import NodePhase, Phase, Reason
from headway.core.view import NodeView
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller

US_PER_S = 1_000_000
PPM = 1_000_000
NANO = 1_000_000_000


class JobOut(BaseModel):
    """One job. What is not known yet is null."""

    job: str = Field(description="its id")
    number: int
    name: str
    queue: str
    user: str
    state: str = Field(description="queued, starting, running, stopping; completed, failed, cancelled, rejected")
    reason: str = Field(description="why it is in that state, as one word; empty if there is nothing to say")
    message: str = Field(description="what the engine, or whoever refused it, says of its end")
    urgency: int = Field(description="which it has: what was handed in, or what the user's budget left of it")
    note: str = Field(description="what its owner should know of how it was taken in; empty if it is as handed in")
    attempt: int = Field(description="0 before the first start")
    preemptions: int
    gpus: int
    tasks: int
    nodes: list[str] = Field(description="of the last attempt, in the order of the ranks")
    submitted_at: datetime | None
    started_at: datetime | None = Field(description="the first start")
    ended_at: datetime | None
    wait_s: float = Field(description="from submission to the first start, or to now")
    run_s: float = Field(description="run time of all attempts up to now")
    exit_code: int | None = Field(description="of the last attempt that is over")
    steps: int | None
    loss: float | None
    accuracy: float | None


class JobDetail(JobOut):
    """One job, with what was handed in."""

    spec: dict[str, Any]


class Submitted(BaseModel):
    """The answer to a job handed in."""

    job: str
    number: int
    state: str
    reason: str
    message: str
    note: str = Field(description="what is not as handed in: urgency that the user's budget has lowered")
    created: bool = Field(description="false: it had been handed in before under this id")


class JobList(BaseModel):
    """Jobs by number, the newest last."""

    jobs: list[JobOut]
    more: int = Field(description="how many older ones were left out")


class NodeOut(BaseModel):
    """One node."""

    node: str
    state: str
    gpu_kind: str
    gpus: int
    gpus_free: int = Field(description="that no job is to have")
    gpus_held: int = Field(description="on which processes run")
    reasons: list[str] = Field(description="why it takes no jobs: drained, sick, quarantine; each with its why")


class NodeList(BaseModel):
    """All nodes of the engine."""

    nodes: list[NodeOut]


class Reload(BaseModel):
    """What a reload of the settings has done."""

    file: str = Field(description="empty: there is none")
    changed: list[str] = Field(description="keys that are in force now")
    restart: list[str] = Field(description="keys that take effect at the next start")


class Health(BaseModel):
    """That the controller lives; the only answer that needs no token."""

    status: str
    version: str


class Problem(BaseModel):
    """What went wrong (RFC 9457); `detail` is one sentence."""

    title: str
    status: int
    detail: str


def job_fields(controller: Controller, job: JobRecord) -> dict[str, Any]:
    """The fields of `JobOut`."""
    now_us = controller.now_us()
    view = controller.live_view(job)
    phase, reason = (job.phase, job.reason) if view is None else (view.phase, view.reason)
    if view is not None and phase in (Phase.STARTING, Phase.RUNNING):
        reason = Reason.NONE
    run_us = job.run_us + (now_us - job.started_us if job.started_us is not None else 0)
    waited_to = job.first_started_us
    if waited_to is None:
        waited_to = job.ended_us if job.ended_us is not None else now_us
    wall = controller.calendar.wall
    return {
        "job": job.id,
        "number": job.number,
        "name": job.name,
        "queue": job.queue,
        "user": job.user,
        "state": phase.name.lower(),
        "reason": "" if reason in (Reason.NONE, Reason.DONE) else reason.word,
        "message": job.message,
        "urgency": job.urgency,
        "note": job.note,
        "attempt": job.attempt,
        "preemptions": job.preemptions,
        "gpus": job.gpus,
        "tasks": job.tasks,
        "nodes": list(job.nodes),
        "submitted_at": wall(job.submitted_us),
        "started_at": None if job.first_started_us is None else wall(job.first_started_us),
        "ended_at": None if job.ended_us is None else wall(job.ended_us),
        "wait_s": (waited_to - job.submitted_us) / US_PER_S,
        "run_s": run_us / US_PER_S,
        "exit_code": job.exit_code,
        "steps": controller.live_column(job, c.J_UNITS_DONE) or None,
        "loss": _observed(controller.live_column(job, c.J_LOSS), NANO),
        "accuracy": _observed(controller.live_column(job, c.J_ACCURACY), PPM),
    }


def _observed(value: int | None, scale: int) -> float | None:
    return None if value is None or value == c.NOTHING else value / scale


def node_out(controller: Controller, node: NodeView) -> NodeOut:
    state = {NodePhase.UP: "up", NodePhase.DRAINING: "draining", NodePhase.DOWN: "down"}[node.phase]
    return NodeOut(
        node=node.name,
        state=state,
        gpu_kind=node.kind,
        gpus=node.gpus,
        gpus_free=node.free,
        gpus_held=node.held,
        reasons=controller.drains.reasons(node.number),
    )
