"""What all paths of one server share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os.path import isabs
from typing import Any

import orjson
from fastapi import Request
from starlette.exceptions import HTTPException

from headway.api.auth import Access, Principal
from headway.api.feed import Feed
from headway.api.meters import Meters, Rates
from headway.api.problems import ForbiddenError
from headway.app.operate import Reloader
from headway.core.columns import Phase
from headway.core.errors import UserError, did_you_mean, shown
from headway.core.model import JobSpec, from_json, validate
from headway.runtime.controller import Controller
from headway.runtime.tokens import Role

LIVE = frozenset({Phase.QUEUED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING})
STATES = frozenset(Phase)
ID_LENGTH_MAX = 4096


@dataclass(slots=True)
class Api:
    """A controller and its API. Without a `reloader`, the settings stay as they are."""

    controller: Controller
    access: Access
    meters: Meters
    rates: Rates
    feed: Feed
    reloader: Reloader | None = None
    url: str = ""
    """Where it listens."""


def handed_in(who: Principal, body: Any) -> JobSpec:
    """The job in a body, in the name of whoever hands it in. It must be able to run wherever the controller stands, so its
    workdir is absolute.

    Raises:
        ForbiddenError: in the name of somebody else.
        UserError: it is no sound job.
    """
    spec = from_json(body)
    for fault in validate(spec):
        raise UserError(f"expected {fault.expected}, got {fault.got}", key=fault.key)
    if not isabs(spec.workdir):
        raise UserError(f"expected an absolute path, got {shown(spec.workdir)}", key="workdir")
    if not who.user or spec.user == who.user or (spec.user and who.is_at_least(Role.ADMIN)):
        return spec
    if spec.user:
        raise ForbiddenError(f"expected the token's own user {shown(who.user)}, got {shown(spec.user)}", key="user")
    return replace(spec, user=who.user)


async def read_json(request: Request, what: str) -> Any:
    """The body as JSON, in which all numbers are finite and all text is Unicode."""
    try:
        return orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"expected {what} in JSON: {error}") from None


def phases(given: str) -> frozenset[Phase]:
    """The states that a filter names: a list such as `queued,running`; `live` and `ended` stand for several; nothing: all."""
    wanted: set[Phase] = set()
    known = {phase.name.lower(): frozenset({phase}) for phase in Phase} | {"live": LIVE, "ended": STATES - LIVE}
    for word in given.lower().split(",") if given else ():
        if word not in known:
            hint = did_you_mean(word, known) or "; known: " + ", ".join(sorted(known))
            raise UserError(f"unknown state {shown(word)}{hint}", key="state")
        wanted |= known[word]
    return frozenset(wanted) or STATES
