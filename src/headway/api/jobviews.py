"""From the controller's records and tables to a job's JSON (`schemas.JobOut`): one job, or thousands at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headway.core import columns as c
from headway.core.columns import Name, NodePhase, Phase, Reason, StopRule
from headway.core.view import NodeView, gpus_of, reason_of
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller
from headway.runtime.guard import standing

US_PER_S = 1_000_000
_STATES = tuple(phase.name.lower() for phase in Phase)
_RULES = tuple(rule.name.lower() for rule in StopRule)
_QUIET = (Reason.NONE, Reason.DONE)
Row = Sequence[int]
"""A live job's column of the job table (`core.columns`), as plain numbers."""


def live_rows(controller: Controller) -> dict[int, Row]:
    """The rows of all live jobs, by number."""
    state = controller.state
    table = state.J[:, state.live_rows()].T.tolist()
    return {row[c.J_ID]: row for row in table}


def _rows_of(controller: Controller, jobs: Sequence[JobRecord]) -> dict[int, Row]:
    """The rows of those of some jobs that are live, by number."""
    state = controller.state
    at = [row for job in jobs if (row := state.row(job.number)) is not None]
    return {row[c.J_ID]: row for row in state.J[:, at].T.tolist()}


def live_row(controller: Controller, job: JobRecord) -> Row | None:
    """The row of one job; None if it has ended."""
    at = controller.state.row(job.number)
    return None if at is None else controller.state.J[:, at].tolist()


def phase_of(job: JobRecord, row: Row | None) -> Phase:
    return job.phase if row is None else Phase(row[c.J_PHASE])


def job_json(controller: Controller, job: JobRecord) -> dict[str, Any]:
    """One job."""
    return job_fields(controller, job, live_row(controller, job), controller.now_us())


def jobs_json(controller: Controller, jobs: Iterable[JobRecord], rows: Mapping[int, Row] | None = None) -> list[dict[str, Any]]:
    """Many jobs as of one instant."""
    jobs, now_us = list(jobs), controller.now_us()
    rows = _rows_of(controller, jobs) if rows is None else rows
    return [job_fields(controller, job, rows.get(job.number), now_us) for job in jobs]


def job_fields(controller: Controller, job: JobRecord, row: Row | None, now_us: int) -> dict[str, Any]:
    """The fields of `JobOut`. `row`: of a live job."""
    phase, reason = job.phase, job.reason
    if row is not None:
        phase, reason = Phase(row[c.J_PHASE]), reason_of(row)
        if phase in (Phase.STARTING, Phase.RUNNING):
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
        "group": job.group,
        "state": _STATES[phase],
        "reason": "" if reason in _QUIET else reason.word,
        "message": job.message,
        "note": job.note,
        "priority": job.priority,
        "urgency": job.urgency,
        "held": job.held,
        "attempt": job.attempt,
        "preemptions": job.preemptions,
        "gpus": job.gpus,
        "tasks": job.tasks,
        "nodes": job.nodes,
        "node_places": _places(controller, row) if row is not None and row[c.J_HELD_TASKS] else (),
        "submitted_at": wall(job.submitted_us),
        "started_at": None if job.first_started_us is None else wall(job.first_started_us),
        "ended_at": None if job.ended_us is None else wall(job.ended_us),
        "deadline_at": None if job.deadline_us is None else wall(job.deadline_us),
        "time_limit_s": None if job.time_limit_us is None else job.time_limit_us / US_PER_S,
        "wait_s": (waited_to - job.submitted_us) / US_PER_S,
        "run_s": run_us / US_PER_S,
        "eta_s": None if row is None else _remaining_s(row, run_us),
        "exit_code": job.exit_code,
        "steps": job.units or None,
        "total": job.total,
        "loss": job.loss,
        "accuracy": job.accuracy,
        "saved_step": job.saved_units,
        "saved_age_s": None if row is None or row[c.J_SAVED_AT] < 0 else (now_us - row[c.J_SAVED_AT]) / US_PER_S,
        "goal_accuracy": job.goal_accuracy,
        "stop_rule": job.stop_rule if row is None else _RULES[row[c.J_RULE_IN_FORCE]],
    }


def _remaining_s(row: Row, run_us: int) -> float | None:
    """How much longer a job will run: by its pace up to now, or else by its owner's estimate."""
    done, total, estimate_us = row[c.J_UNITS_DONE], row[c.J_UNITS_TOTAL], row[c.J_ESTIMATE]
    if 0 < done <= total and run_us > 0:
        return run_us * (total - done) / done / US_PER_S
    return max(estimate_us - run_us, 0) / US_PER_S if 0 < estimate_us < c.NEVER else None


def _places(controller: Controller, row: Row) -> list[dict[str, Any]]:
    """The nodes and GPUs that a job holds."""
    state, first = controller.state, row[c.J_HELD_TASK0]
    held: dict[int, int] = {}
    for node, mask in state.T[[c.T_HELD_NODE, c.T_HELD_MASK], first : first + row[c.J_HELD_TASKS]].T.tolist():
        held[node] = held.get(node, 0) | mask
    return [{"node": state.name(Name.NODE, node), "gpus": list(gpus_of(mask))} for node, mask in held.items() if node >= 0]


def node_json(controller: Controller, node: NodeView) -> dict[str, Any]:
    """The fields of `NodeOut`."""
    return {
        "node": node.name,
        "state": {NodePhase.UP: "up", NodePhase.DRAINING: "draining", NodePhase.DOWN: "down"}[node.phase],
        "gpu_kind": node.kind,
        "gpus": node.gpus,
        "gpus_free": node.free,
        "gpus_held": node.held,
        "reasons": controller.drains.reasons(node.number),
    }


def deciding_json(controller: Controller) -> dict[str, Any]:
    """The fields of `Deciding`."""
    now = standing(controller.state, controller.brains, controller.now_us())
    return {
        "policy": controller.brains.policy.name,
        "decides": now.decides.name,
        "in_charge": now.who.value,
        "why": now.why,
        "since": None if now.since_us is None else controller.calendar.wall(now.since_us),
    }
