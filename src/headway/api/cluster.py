"""Paths of the cluster: its nodes, queues and users, whose token this is, and what an admin does with the controller."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Response
from starlette.background import BackgroundTask

from headway import __version__
from headway.api.answers import answer
from headway.api.auth import Admin, Operator, Person
from headway.api.context import ID_LENGTH_MAX, Api
from headway.api.jobviews import deciding_json, live_rows, node_json
from headway.api.problems import problems
from headway.api.schemas import Me, NodeList, NodeOut, QueueList, Reload, Status, Stopping, UserList
from headway.app import operate
from headway.core import columns as c
from headway.core.columns import Name, NodePhase, Phase
from headway.core.errors import UserError
from headway.runtime.controller import Controller
from headway.runtime.settings import EVERYBODY
from headway.runtime.tokens import Role

NodeName = Annotated[str, Path(max_length=ID_LENGTH_MAX)]


def add_cluster(app: FastAPI, api: Api) -> None:
    """Declare the paths."""
    controller = api.controller

    @app.get("/v1/nodes", responses=problems(), response_model=NodeList, tags=["cluster"])
    async def nodes(who: Person) -> Response:
        """All nodes, how many of their GPUs are in use, and why one takes no jobs."""
        return answer(
            {"nodes": [node_json(controller, node) for node in controller.nodes()], "policy": deciding_json(controller)}
        )

    @app.post("/v1/nodes/{node}/drain", responses=problems(404), response_model=NodeOut, tags=["cluster"])
    async def drain(who: Operator, node: NodeName, reason: Annotated[str, Query(description="why, for people")] = "") -> Response:
        """Give a node no more jobs; what runs there runs on."""
        await operate.drain(controller, node, reason)
        return _node(controller, node)

    @app.post("/v1/nodes/{node}/undrain", responses=problems(404), response_model=NodeOut, tags=["cluster"])
    async def undrain(who: Operator, node: NodeName) -> Response:
        """Give a drained node jobs again; it also ends a quarantine."""
        await operate.undrain(controller, node)
        return _node(controller, node)

    @app.get("/v1/queues", responses=problems(), response_model=QueueList, tags=["cluster"])
    async def queues(who: Person) -> Response:
        """All queues: what each is guaranteed and may have, and what it uses."""
        return answer({"queues": queues_json(controller)})

    @app.get("/v1/users", responses=problems(), response_model=UserList, tags=["cluster"])
    async def users(who: Person) -> Response:
        """What users have in the cluster, and may have. A user sees himself."""
        found = users_json(controller)
        if not who.is_at_least(Role.OPERATOR):
            found = [user for user in found if user["user"] == who.user] or [_user_json(controller, who.user, _Counts())]
        return answer({"users": found})

    @app.get("/v1/me", responses=problems(), response_model=Me, tags=["cluster"])
    async def me(who: Person) -> Response:
        """Whose token this is."""
        return answer({"token": who.name, "user": who.user, "role": who.word})

    @app.get("/v1/status", responses=problems(), response_model=Status, tags=["cluster"])
    async def status(who: Person) -> Response:
        """The cluster in a few numbers."""
        return answer(status_json(api))

    @app.post("/v1/reload", responses=problems(), response_model=Reload, tags=["admin"])
    async def reload(who: Admin) -> Response:
        """Read the settings again; a file with a mistake changes nothing."""
        if api.reloader is None:
            raise UserError("this controller has no settings to reload")
        return answer((await api.reloader.reload()).to_json())

    @app.post("/v1/stop", status_code=202, responses=problems(), response_model=Stopping, tags=["admin"])
    async def stop(who: Admin) -> Response:
        """Stop the controller, once this has been answered. Its jobs go on running; the next controller takes them over."""
        told = answer({"stopping": True, "live_jobs": len(controller.state.live_rows())}, 202)

        async def last() -> None:
            controller.stop()

        told.background = BackgroundTask(last)
        return told


def _node(controller: Controller, name: str) -> Response:
    return answer(next(node_json(controller, node) for node in controller.nodes() if node.name == name))


def phase_counts(controller: Controller) -> dict[Phase, int]:
    """How many live jobs are in which state."""
    state = controller.state
    found = state.J[c.J_PHASE, state.live_rows()].tolist()
    return {phase: found.count(phase) for phase in (Phase.QUEUED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING)}


def status_json(api: Api) -> dict[str, Any]:
    """The fields of `Status`."""
    controller = api.controller
    nodes = controller.nodes()
    return {
        "version": __version__,
        "url": api.url,
        "policy": controller.brains.policy.name,
        "deciding": deciding_json(controller),
        "epoch": controller.epoch,
        "now": controller.calendar.wall(controller.now_us()),
        "jobs": {phase.name.lower(): count for phase, count in phase_counts(controller).items()},
        "nodes": len(nodes),
        "nodes_up": sum(node.phase == NodePhase.UP for node in nodes),
        "gpus": sum(node.gpus for node in nodes),
        "gpus_used": sum(node.held for node in nodes),
        "rounds": controller.rounds.held,
        "refused_plans": controller.rounds.refused,
        "events": controller.journal.events,
        "stopping": controller.stopping,
    }


class _Counts:
    """What the live jobs of a queue or a user come to."""

    def __init__(self) -> None:
        self.queued = self.running = self.milli = 0

    def add(self, row: Any) -> None:
        if row[c.J_PHASE] == Phase.QUEUED:
            self.queued += 1
        else:
            self.running += 1
            self.milli += row[c.J_HELD_MILLI]

    @property
    def gpus(self) -> int:
        return -(-self.milli // c.WHOLE)


def _counted(controller: Controller, column: int) -> dict[int, _Counts]:
    found: dict[int, _Counts] = {}
    for row in live_rows(controller).values():
        found.setdefault(row[column], _Counts()).add(row)
    return found


def queues_json(controller: Controller) -> list[dict[str, Any]]:
    """The fields of `QueueOut` of each queue that the settings or a job have named, by name."""
    state, counted = controller.state, _counted(controller, c.J_QUEUE)
    named = controller.intake.settings.queues
    found = []
    for number, name in state.names[Name.QUEUE].items():
        counts, row = counted.get(number, _Counts()), state.Q[:, number].tolist()
        parent = row[c.Q_PARENT]
        found.append({
            "queue": name,
            "parent": state.name(Name.QUEUE, parent) if parent >= 0 else "",
            "quota_gpus": None if row[c.Q_QUOTA] < 0 else row[c.Q_QUOTA] // c.WHOLE,
            "limit_gpus": None if row[c.Q_LIMIT] < 0 else row[c.Q_LIMIT] // c.WHOLE,
            "weight": row[c.Q_WEIGHT],
            "gpus_used": counts.gpus,
            "queued": counts.queued,
            "running": counts.running,
        })  # fmt: skip
    there = {queue["queue"] for queue in found}
    for name, queue in named.items():
        if name not in there:
            found.append({
                "queue": name, "parent": queue.parent or "", "quota_gpus": queue.quota_gpus, "limit_gpus": queue.limit_gpus,
                "weight": queue.weight, "gpus_used": 0, "queued": 0, "running": 0,
            })  # fmt: skip
    return sorted(found, key=lambda queue: str(queue["queue"]))


def users_json(controller: Controller) -> list[dict[str, Any]]:
    """The fields of `UserOut` of each user that the settings or a job have named, by name."""
    counted = _counted(controller, c.J_USER)
    there = {name: counted.get(number, _Counts()) for number, name in controller.state.names[Name.USER].items()}
    named = {name for name in controller.intake.settings.users if name != EVERYBODY}
    return [_user_json(controller, name, there.get(name, _Counts())) for name in sorted({*there, *named})]


def _user_json(controller: Controller, name: str, counts: _Counts) -> dict[str, Any]:
    settings = controller.intake.settings
    may = settings.user(name)
    return {
        "user": name,
        "queued": counts.queued,
        "running": counts.running,
        "gpus_used": counts.gpus,
        "queued_max": may.queued_max,
        "gpus_max": may.gpus_max,
        "urgency_budget": may.urgency_budget,
        "admin": may.admin,
    }
