"""Tokens for people, made and revoked: by the controller that runs, or in the home of one that does not run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from headway.app import live
from headway.app.client import Client, Json
from headway.core.errors import UserError
from headway.core.units import parse_duration
from headway.runtime.home import find_home
from headway.runtime.tokens import Role, TokenStore


class Tokens(Protocol):
    """Where tokens are kept."""

    def create(self, name: str, *, user: str, role: str, expires: str) -> Json:
        """Make a token; it and its secret, `token`. `expires`: from now; empty: never."""
        ...

    def all(self) -> list[Json]:
        """All tokens, without their secrets."""
        ...

    def revoke(self, name: str) -> None:
        """Have a token be worth nothing from now on."""
        ...


class RemoteTokens:
    """Those of a controller that runs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, name: str, *, user: str, role: str, expires: str) -> Json:
        return live.create_token(self._client, name, user=user, role=role, expires=expires)

    def all(self) -> list[Json]:
        found: list[Json] = live.tokens(self._client)["tokens"]
        return found

    def revoke(self, name: str) -> None:
        live.revoke_token(self._client, name)


class HomeTokens:
    """Those of a home whose owner stands before it."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> HomeTokens:
        """Those of the home that the environment names."""
        home = find_home(environment)
        home.prepare()
        return cls(TokenStore(home.tokens_file))

    def create(self, name: str, *, user: str, role: str, expires: str) -> Json:
        try:
            until = datetime.now(UTC) + timedelta(microseconds=parse_duration(expires)) if expires else None
        except ValueError as error:
            raise UserError(str(error), key="expires") from None
        token, secret = self._store.add(name, user, Role.parse(role), until)
        return {**token.to_json(), "token": secret}

    def all(self) -> list[Json]:
        return [token.to_json() for token in self._store.all()]

    def revoke(self, name: str) -> None:
        self._store.remove(name)
