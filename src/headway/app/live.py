"""What people do with a running controller, over its API: hand jobs in, look, steer, cancel. Functions of a `Client`."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headway.app.client import Client, Json, NoControllerError, connect
from headway.core.errors import UserError, shown
from headway.core.model import JobSpec, to_json

__all__ = ["Client", "Json", "NoControllerError", "connect"]

WAIT_S = 20.0
"""How long one request for a job's end waits before it is asked again, in seconds."""
AGAIN_S = 0.2
GONE_S = 30.0
"""How long a controller that is waited for may be away (while it is restarted), in seconds."""
PAGE = 10_000
BATCH, BATCH_BYTES = 1_000, 500_000
"""At most so many jobs in one request, and so many bytes of them: a controller takes 1 MB unless its settings say otherwise."""
FINAL = frozenset({"completed", "failed", "cancelled", "rejected"})
RUNNING = ("starting", "running", "stopping")


# -- handing in ------------------------------------------------------------------------------------------------------
def prepared(spec: JobSpec, user: str) -> JobSpec:
    """A job as this user hands it in from here: its workdir no longer depends on where one stands."""
    workdir = os.path.abspath(Path(spec.workdir).expanduser())
    return replace(spec, user=spec.user or user, workdir=workdir)


def submitter(client: Client, environment: Mapping[str, str]) -> str:
    """Under whose name jobs are handed in from here: whoever is logged in, as far as the token may say so; otherwise its user."""
    if environment.get("HEADWAY_TOKEN") and (mine := me(client))["role"] != "admin":
        return str(mine["user"])
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def submit(client: Client, spec: JobSpec, *, job_id: str = "", dry_run: bool = False, hold: bool = False) -> Json:
    """Hand a job in; what the controller says of it. `dry_run`: only what it would say. `hold`: it does not start yet."""
    params = {key: value for key, value in (("id", job_id), ("dry_run", dry_run), ("hold", hold)) if value}
    return client.ask("POST", "/v1/jobs", params=params, body=to_json(spec, compact=True), keys=("state", "message"))


def submit_many(client: Client, jobs: Sequence[tuple[JobSpec, str]], *, hold: bool = False) -> list[Json]:
    """Hand jobs in, each with an id or none; what the controller says of each: an answer, or `error` and `status`."""
    results: list[Json] = []
    batch: list[Json] = []
    size_bytes = 0

    def send() -> None:
        params = {"hold": hold} if hold else None
        results.extend(client.ask("POST", "/v1/jobs/batch", params=params, body={"jobs": batch}, keys=("results",))["results"])
        batch.clear()

    for spec, job_id in jobs:
        entry = {"id": job_id, "spec": to_json(spec, compact=True)}
        bytes_of_it = len(json.dumps(entry))
        if batch and (len(batch) == BATCH or size_bytes + bytes_of_it > BATCH_BYTES):
            send()
            size_bytes = 0
        batch.append(entry)
        size_bytes += bytes_of_it
    if batch:
        send()
    return results


# -- looking ---------------------------------------------------------------------------------------------------------
def queue(
    client: Client, *, states: Sequence[str] = (), name: str = "", user: str = "", group: str = "", limit: int = 1000,
    oldest: bool = False,
) -> Json:  # fmt: skip
    """Jobs in these states (`live` and `ended` stand for several), of a queue, of a user, of a group; the newest (or the
    `oldest`) `limit`, and how many `more` there are.
    """
    wanted = {"state": ",".join(states), "queue": name, "user": user, "group": group}
    params: dict[str, Any] = {key: value for key, value in wanted.items() if value}
    if oldest:
        params["order"] = "oldest"
    return client.ask("GET", "/v1/jobs", params=params | {"limit": limit}, keys=("jobs", "more"))


def queue_with_running(
    client: Client, *, states: Sequence[str] = (), name: str = "", user: str = "", group: str = "", limit: int = 1000
) -> Json:
    """As `queue`; where older jobs are left out, those of them that run are not."""
    found = queue(client, states=states, name=name, user=user, group=group, limit=limit)
    if found["more"] and (not states or "live" in states):
        running = queue(client, states=RUNNING, name=name, user=user, group=group, limit=PAGE)["jobs"]
        shown_already = {job["job"] for job in found["jobs"]}
        older = [job for job in running if job["job"] not in shown_already]
        found = {**found, "jobs": older + found["jobs"], "more": max(found["more"] - len(older), 0)}
    return found


def show(client: Client, job_id: str) -> Json:
    """One job."""
    return client.ask("GET", job_path(job_id), keys=("job", "state"))


def why(client: Client, job_id: str) -> Json:
    """Why a job is, or is not, running, and when it will."""
    return client.ask("GET", f"{job_path(job_id)}/why")


def nodes(client: Client) -> Json:
    """All nodes."""
    return client.ask("GET", "/v1/nodes", keys=("nodes",))


def queues(client: Client) -> Json:
    """All queues, with their quotas and what they use."""
    return client.ask("GET", "/v1/queues", keys=("queues",))


def users(client: Client) -> Json:
    """Users who have jobs, or limits of their own."""
    return client.ask("GET", "/v1/users", keys=("users",))


def me(client: Client) -> Json:
    """Whose token this is."""
    return client.ask("GET", "/v1/me", keys=("user", "role"))


def status(client: Client) -> Json:
    """The controller in figures."""
    return client.ask("GET", "/v1/status", keys=("jobs", "events"))


def events(client: Client, *, since: int | None = None, follow: bool, kinds: str = "") -> Iterator[Json]:
    """What the journal says after event `since` (0: from its beginning; None: what is new), and with `follow` goes on to say."""
    given = {"since": since, "kinds": kinds}
    params: dict[str, Any] = {key: value for key, value in given.items() if value not in (None, "")}
    for _, event in client.events("/v1/events", params | {"follow": follow}):
        yield event


# -- steering --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Jobs: by their ids (`*`, `?` and `[…]` stand for letters), or all that are live, of a user, of a queue, in a state."""

    jobs: tuple[str, ...] = ()
    all: bool = False
    user: str = ""
    queue: str = ""
    state: str = ""

    @property
    def by_rule(self) -> bool:
        """Whether something else than ids says which jobs are meant."""
        return self.all or bool(self.user or self.queue or self.state)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Those of the ids that stand for several."""
        return tuple(job for job in self.jobs if any(letter in job for letter in "*?["))


def expanded(client: Client, selection: Selection) -> list[str]:
    """The ids that a selection names, each once, in the order given.

    Raises:
        UserError: a pattern that no live job's id has.
    """
    if not selection.patterns:
        return list(dict.fromkeys(selection.jobs))
    live = [job["job"] for job in queue(client, states=["live"], limit=PAGE)["jobs"]]
    ids: dict[str, None] = {}
    for word in selection.jobs:
        matching = [word] if word not in selection.patterns or word in live else [job for job in live if fnmatchcase(job, word)]
        if not matching:
            raise UserError(f"no job that waits or runs has an id like {shown(word)}")
        ids |= dict.fromkeys(matching)
    return list(ids)


def count(client: Client, selection: Selection) -> int:
    """How many live jobs a selection by rule means."""
    states = [word.strip() for word in selection.state.split(",")] if selection.state else ["live"]
    found = queue(client, states=states, name=selection.queue, user=selection.user, limit=1)
    return len(found["jobs"]) + int(found["more"])


def act_by_rule(client: Client, verb: str, selection: Selection) -> Json:
    """As `act`, for all live jobs that a selection by rule means."""
    body = {"all": True, "user": selection.user, "queue": selection.queue, "state": selection.state}
    return client.ask("POST", f"/v1/jobs/{verb}", body=body, keys=("jobs", "errors"))


def act(client: Client, verb: str, jobs: Sequence[str]) -> Json:
    """Cancel, hold, release or requeue jobs; those that it was done to (`jobs`), and why not to others (`errors`)."""
    done: Json = {"jobs": [], "errors": []}
    for i in range(0, len(jobs), BATCH):
        answer = client.ask("POST", f"/v1/jobs/{verb}", body={"jobs": list(jobs[i : i + BATCH])}, keys=("jobs", "errors"))
        done["jobs"] += answer["jobs"]
        done["errors"] += answer["errors"]
    return done


def cancel(client: Client, job_id: str) -> Json:
    """Ask a job to end for good."""
    return client.ask("POST", f"{job_path(job_id)}/cancel", keys=("job", "state"))


def update(client: Client, job_id: str, changes: Mapping[str, Any]) -> Json:
    """Change what a live job asks for; None: no longer."""
    return client.ask("PATCH", job_path(job_id), body=dict(changes), keys=("job", "state"))


def wait(client: Client, job_id: str, find: Callable[[], Client]) -> Json:
    """Wait for a job's end; the job then. One controller may follow another meanwhile: `find` finds the new one."""
    patience = Patience(client, find)
    while True:
        try:
            found = client.ask("GET", job_path(job_id), params={"wait": WAIT_S}, keys=("job", "state"))
        except NoControllerError as error:
            patience.again(error)
            continue
        patience.found()
        if found["state"] in FINAL:
            return found


class Patience:
    """Bears with a controller that is restarted: `again` waits a little and finds the new one, until that takes too long."""

    def __init__(self, client: Client, find: Callable[[], Client]) -> None:
        self._client, self._find = client, find
        self._away_since: float | None = None

    def found(self) -> None:
        """It has answered."""
        self._away_since = None

    def again(self, error: NoControllerError) -> None:
        """Nobody answers: `error` is raised when that has gone on for too long."""
        now = time.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since > GONE_S:
            raise error
        time.sleep(AGAIN_S)
        with suppress(NoControllerError):
            self._client.move(self._find())


# -- operators and admins --------------------------------------------------------------------------------------------
def drain(client: Client, node: str, reason: str = "") -> Json:
    """Give a node no more jobs; the node."""
    return client.ask("POST", f"{_node_path(node)}/drain", params={"reason": reason} if reason else None, keys=("node",))


def undrain(client: Client, node: str) -> Json:
    """Give a drained node jobs again; the node."""
    return client.ask("POST", f"{_node_path(node)}/undrain", keys=("node",))


def reload(client: Client) -> Json:
    """Have the controller read its settings again; what has changed."""
    return client.ask("POST", "/v1/reload", keys=("changed", "restart"))


def stop(client: Client) -> Json:
    """Have the controller stop; what runs goes on running."""
    return client.ask("POST", "/v1/stop")


def wait_gone(client: Client) -> None:
    """Wait until the controller has stopped to answer."""
    deadline = time.monotonic() + GONE_S
    with suppress(NoControllerError):
        while time.monotonic() < deadline:
            client.ask("GET", "/healthz")
            time.sleep(AGAIN_S)
        raise UserError(f"the controller at {client.url} still answers")


def tokens(client: Client) -> Json:
    """All tokens, without their secrets."""
    return client.ask("GET", "/v1/tokens", keys=("tokens",))


def create_token(client: Client, name: str, *, user: str, role: str, expires: str = "") -> Json:
    """Make a token; its secret is told this once."""
    body = {"name": name, "user": user, "role": role} | ({"expires": expires} if expires else {})
    return client.ask("POST", "/v1/tokens", body=body, keys=("name", "token"))


def revoke_token(client: Client, name: str) -> Json:
    """Have a token be worth nothing from now on."""
    return client.ask("DELETE", f"/v1/tokens/{_segment(name, 'token')}")


# -- paths -----------------------------------------------------------------------------------------------------------
def job_path(job_id: str) -> str:
    """Where a job is found."""
    return f"/v1/jobs/{_segment(job_id, 'job')}"


def _node_path(node: str) -> str:
    return f"/v1/nodes/{_segment(node, 'node')}"


def _segment(name: str, what: str) -> str:
    if not name or name in (".", ".."):
        raise UserError(f"there is no {what} {shown(name)}")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise UserError(f"there is no {what} {shown(name)}") from None
