"""The shapes of the API's JSON, for its description and for what it is checked against. Times are ISO 8601 in UTC; what is not
known yet is null."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

State = Literal["queued", "starting", "running", "stopping", "completed", "failed", "cancelled", "rejected"]
RoleWord = Literal["user", "operator", "admin"]


class NodePlace(BaseModel):
    """What a job has on one node."""

    node: str
    gpus: list[int] = Field(description="indices within the node; none for a job without GPUs")


class JobOut(BaseModel):
    """One job. What is not known yet is null."""

    job: str = Field(description="its id")
    number: int
    name: str
    queue: str
    user: str
    group: str = Field(description="of trials of one question; empty: none")
    state: State
    reason: str = Field(description="why it is in that state, as one word; empty if there is nothing to say")
    message: str = Field(description="what the engine, or whoever refused it, says of its end")
    note: str = Field(description="what its owner should know of how it was taken in; empty if it is as handed in")
    priority: int
    urgency: int = Field(description="which it has: what was handed in, or what the user's budget left of it")
    held: bool = Field(description="its owner keeps it from starting")
    attempt: int = Field(description="0 before the first start")
    preemptions: int
    gpus: int
    tasks: int
    nodes: list[str] = Field(description="of the last attempt, in the order of the ranks")
    node_places: list[NodePlace] = Field(description="what it holds now")
    submitted_at: datetime | None
    started_at: datetime | None = Field(description="the first start")
    ended_at: datetime | None
    deadline_at: datetime | None
    time_limit_s: float | None
    wait_s: float = Field(description="from submission to the first start, or to now")
    run_s: float = Field(description="run time of all attempts up to now")
    eta_s: float | None = Field(description="estimate of the run time that is left")
    exit_code: int | None = Field(description="of the last attempt that is over")
    steps: int | None
    total: int | None
    loss: float | None
    accuracy: float | None
    saved_step: int | None = Field(description="of the newest durable checkpoint")
    saved_age_s: float | None = Field(description="how long ago that was")
    goal_accuracy: float | None
    stop_rule: str = Field(description="fixed, optstop or accuracy: the one in force")


class JobDetail(JobOut):
    """One job, with what was handed in."""

    spec: dict[str, Any]


class Deciding(BaseModel):
    """Who decides now, and why, if it is not the policy itself."""

    policy: str
    decides: str = Field(description="the policy, its teacher, or the fallback")
    in_charge: Literal["policy", "teacher", "fallback"]
    why: str = Field(description="empty: the policy decides, as it should")
    since: datetime | None


class JobList(BaseModel):
    """Jobs by number, the newest last."""

    jobs: list[JobOut]
    policy: Deciding
    more: int = Field(description="how many older ones were left out")
    next: str = Field(description="`cursor` of the page with the next older ones; empty: there are none")


class Submitted(BaseModel):
    """The answer to a job handed in."""

    job: str
    number: int
    state: State
    reason: str
    message: str
    note: str = Field(description="what is not as handed in: urgency that the user's budget has lowered")
    created: bool = Field(description="false: it had been handed in before under this id")


class DryRun(BaseModel):
    """What would become of a job that has only been checked."""

    dry_run: Literal[True]
    state: Literal["would-queue", "rejected"]
    message: str = Field(description="why it would be rejected; empty otherwise")
    name: str
    user: str
    queue: str
    gpus: int
    tasks: int


class Refused(BaseModel):
    """One job of a batch that was not taken in."""

    id: str
    error: str
    status: int


class BatchOut(BaseModel):
    """What has become of each job of a batch, in their order."""

    results: list[Submitted | Refused]


class Fault(BaseModel):
    """Why something was not done for one job."""

    job: str
    error: str


class BulkOut(BaseModel):
    """The jobs for which it was done, as they are now, and those for which it was not."""

    jobs: list[JobOut]
    errors: list[Fault]


class Bulk(BaseModel, extra="forbid"):
    """Which jobs: their ids, or all that the filters leave."""

    jobs: list[str] | None = Field(default=None, max_length=100_000)
    all: bool = False
    user: str = ""
    queue: str = ""
    state: str = Field(default="", description="states, parted by commas; also `live`; default: all live ones")


class Change(BaseModel, extra="forbid"):
    """What is to change of a job; what is left out stays, null takes it away."""

    priority: int | None = None
    deadline: str | float | None = Field(default=None, description="from its submission: `2h`, or seconds; null: none")
    time_limit: str | float | None = Field(default=None, description="of run time over all attempts; null: none")
    urgency: int | None = None
    queue: str | None = None


class Point(BaseModel):
    """One observation of a job."""

    t: float = Field(description="when, by the wall clock, in seconds since 1970")
    step: int
    loss: float | None
    accuracy: float | None


class Saved(BaseModel):
    """The newest durable checkpoint."""

    step: int
    path: str
    age_s: float | None


class FindingOut(BaseModel):
    """What was wrong with a report."""

    fault: str
    sentence: str


class ProgressOut(BaseModel):
    """What a job has told of itself."""

    points: list[Point]
    saved: Saved | None
    findings: list[FindingOut]


class OneReport(BaseModel, extra="ignore"):
    """What a job tells of itself at one step. Numbers may be NaN or infinite: they count as not told."""

    step: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    total: float | None = None
    saved: str | None = Field(default=None, max_length=4096, description="a checkpoint of this step is durable there")
    done: bool = False


class ReportsIn(BaseModel, extra="ignore"):
    """Reports of one task, in their order."""

    attempt: int = Field(ge=1, le=1 << 53)
    rank: int = Field(default=0, ge=0, le=1 << 53)
    reports: list[OneReport] = Field(max_length=10_000)


class ReportsOut(BaseModel):
    """How many of the reports count, and what was wrong with any."""

    accepted: int
    findings: list[FindingOut]


class StopOut(BaseModel):
    """Whether a task is to save itself and end."""

    stop: bool
    reason: str


class NodeOut(BaseModel):
    """One node."""

    node: str
    state: Literal["up", "draining", "down"]
    gpu_kind: str
    gpus: int
    gpus_free: int = Field(description="that no job is to have")
    gpus_held: int = Field(description="on which processes run")
    reasons: list[str] = Field(description="why it takes no jobs: drained, sick, quarantine; each with its why")


class NodeList(BaseModel):
    """All nodes of the engine."""

    nodes: list[NodeOut]
    policy: Deciding


class QueueOut(BaseModel):
    """One queue."""

    queue: str
    parent: str = Field(description="empty: none")
    quota_gpus: int | None
    limit_gpus: int | None
    weight: int
    gpus_used: int
    queued: int
    running: int


class QueueList(BaseModel):
    """All queues that are in the settings, or that a job has named."""

    queues: list[QueueOut]


class UserOut(BaseModel):
    """What one user has in the cluster now, and may have."""

    user: str
    queued: int
    running: int
    gpus_used: int
    queued_max: int | None
    gpus_max: int | None = Field(description="of one job")
    urgency_budget: int | None
    admin: bool = Field(description="may hand jobs in beside the one user of a controller that does not run as root")


class UserList(BaseModel):
    """Users who have handed a job in, or are in the settings; a user sees only himself."""

    users: list[UserOut]


class Me(BaseModel):
    """Whose token this is."""

    token: str = Field(description="its name; empty: the home's own")
    user: str
    role: RoleWord


class Status(BaseModel):
    """The cluster in a few numbers."""

    version: str
    url: str
    policy: str
    deciding: Deciding
    epoch: int
    now: datetime | None
    jobs: dict[str, int] = Field(description="live jobs by state")
    nodes: int
    nodes_up: int
    gpus: int
    gpus_used: int = Field(description="that processes hold")
    rounds: int
    refused_plans: int
    events: int = Field(description="of the journal; the number of the newest, for `since` of /v1/events")
    stopping: bool


class TokenOut(BaseModel):
    """One token; never the secret."""

    name: str
    user: str
    role: RoleWord
    created_at: datetime
    expires_at: datetime | None


class TokenMade(TokenOut):
    """A new token."""

    token: str = Field(description="the secret: shown this once")


class TokenIn(BaseModel, extra="forbid"):
    """A token that is to be made."""

    name: str
    user: str = Field(default="", description="whose jobs it hands in; default: the token's name")
    role: str = "user"
    expires_at: datetime | None = Field(default=None, description="null: never")
    expires: str | float | None = Field(default=None, description="instead: `30d`, or seconds")


class TokenList(BaseModel):
    """All tokens, by name."""

    tokens: list[TokenOut]


class Reload(BaseModel):
    """What a reload of the settings has done."""

    file: str = Field(description="empty: there is none")
    changed: list[str] = Field(description="keys that are in force now")
    restart: list[str] = Field(description="keys that take effect at the next start")


class Stopping(BaseModel):
    """The controller stops; its jobs go on running."""

    stopping: Literal[True]
    live_jobs: int


class Health(BaseModel):
    """That the controller lives; needs no token."""

    status: str
    version: str


class EventOut(BaseModel):
    """One event of the journal, as the data of a server-sent event."""

    seq: int
    t: datetime | None
    kind: str
    job: str | None
    attempt: int | None
    node: str | None
    reason: str
    message: str
