"""`/v1/tokens`: an admin makes tokens for people and revokes them. A secret is shown once, when it is made."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import FastAPI, Path, Response

from headway.api.answers import answer
from headway.api.auth import Admin
from headway.api.context import ID_LENGTH_MAX, Api
from headway.api.problems import problems
from headway.api.schemas import TokenIn, TokenList, TokenMade, TokenOut
from headway.api.units import seconds_us
from headway.core.errors import UserError
from headway.runtime.tokens import Role, TokenStore


def add_tokens(app: FastAPI, api: Api) -> None:
    """Declare the paths."""

    @app.get("/v1/tokens", responses=problems(), response_model=TokenList, tags=["admin"])
    async def tokens(who: Admin) -> Response:
        """All tokens, also those that have expired; never a secret."""
        return answer({"tokens": [token.to_json() for token in _store(api).all()]})

    @app.post("/v1/tokens", status_code=201, responses=problems(409, 413), response_model=TokenMade, tags=["admin"])
    async def make(who: Admin, body: TokenIn) -> Response:
        """Make a token. The answer is the only time that the secret is shown."""
        token, secret = _store(api).add(body.name, body.user or body.name, Role.parse(body.role), expires_at(body))
        return answer(token.to_json() | {"token": secret}, 201)

    @app.delete("/v1/tokens/{name}", responses=problems(404), response_model=TokenOut, tags=["admin"])
    async def revoke(who: Admin, name: Annotated[str, Path(max_length=ID_LENGTH_MAX)]) -> Response:
        """Revoke a token: it opens nothing from now on, and answers that still go on over it end."""
        return answer(_store(api).remove(name).to_json())


def _store(api: Api) -> TokenStore:
    if api.access.store is None:
        raise UserError("this controller keeps no tokens")
    return api.access.store


def expires_at(body: TokenIn) -> datetime | None:
    """When a token is to expire; None: never. `UserError` for two ends, or one that is none."""
    if body.expires is None:
        end = body.expires_at
        return end if end is None or end.tzinfo else end.replace(tzinfo=UTC)
    if body.expires_at is not None:
        raise UserError("expected either expires_at or expires", key="expires")
    return datetime.now(UTC) + timedelta(microseconds=seconds_us(body.expires, "expires"))
