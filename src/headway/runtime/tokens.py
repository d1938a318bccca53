"""The tokens of people: who may talk to a controller, as whom, and how long (`docs/operations.md`).

HOME/tokens.json (mode 0600) holds the SHA-256 of each token and never a token itself: they are random, so nobody finds one
from its hash. A token is shown once, when it is made. The file is written whole or not at all, under a lock, by the
controller and by `headway token` alike; a reader looks at the file again whenever it has changed, so a token that has been
revoked is refused from the next request on.

The file `token` in the home is not one of these: it is its owner's, an admin's, and never expires.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

from headway.core.errors import UserError, did_you_mean, shown
from headway.core.units import name_fault

log = logging.getLogger(__name__)

SCHEMA = 1
TOKENS_MAX = 10_000
RANDOM_BYTES = 24
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.@-]{0,39}")


class Role(IntEnum):
    """What a token may do; each may also do what those before may."""

    USER = 1
    """Hand jobs in under the token's own name; see and change those, and no others."""
    OPERATOR = 2
    """See and change the jobs of all, and drain nodes."""
    ADMIN = 3
    """Make tokens, reload the settings, stop the controller, hand jobs in under any name."""

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, word: str) -> Role:
        """`UserError` for a word that is no role."""
        try:
            return cls[word.upper()]
        except KeyError:
            known = [role.word for role in cls]
            hint = did_you_mean(word, known) or f"; known: {', '.join(known)}"
            raise UserError(f"unknown role {shown(word)}{hint}", key="role") from None


class NoSuchTokenError(UserError):
    """There is no token of this name."""


class TokenExistsError(UserError):
    """There is one already."""


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of one token."""

    name: str
    user: str
    role: Role
    created_at: datetime
    expires_at: datetime | None
    """None: never."""
    digest: str
    """SHA-256 of the token, in hex."""

    def has_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def to_json(self) -> dict[str, Any]:
        """What people see; the digest is not among it."""
        return {
            "name": self.name,
            "user": self.user,
            "role": self.role.word,
            "created_at": self.created_at.isoformat(),
            "expires_at": None if self.expires_at is None else self.expires_at.isoformat(),
        }


class TokenStore:
    """The tokens of one home. Nothing is read before it is asked, and nothing is written but by `add` and `remove`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._by_name: dict[str, Token] = {}
        self._by_digest: dict[str, Token] = {}

    def all(self) -> list[Token]:
        """Every token, by name, also those that have expired. `UserError` if the file can't be read."""
        self._look()
        return [self._by_name[name] for name in sorted(self._by_name)]

    def any_valid(self) -> bool:
        """Whether somebody beside the home's owner can talk to the controller."""
        now = datetime.now(UTC)
        return any(not token.has_expired(now) for token in self.all())

    def find(self, secret: str) -> Token | None:
        """Whose token this is; None for one that is not known, has expired or has been revoked.

        A file that can't be read opens nothing.
        """
        try:
            self._look()
        except UserError as error:
            log.warning("no token is taken: %s", error)
            return None
        found = self._by_digest.get(_digest(secret))
        return None if found is None or found.has_expired(datetime.now(UTC)) else found

    def has_expired(self, secret: str) -> bool:
        """Whether a token is one of ours whose time is over."""
        found = self._by_digest.get(_digest(secret))
        return found is not None and found.has_expired(datetime.now(UTC))

    def add(self, name: str, user: str, role: Role, expires_at: datetime | None = None) -> tuple[Token, str]:
        """Make a token; it, and the secret, which is kept nowhere. One of that name that has expired gives way. `expires_at`
        has a time zone.

        Raises:
            TokenExistsError: the name is taken.
            UserError: a name or user that can't be one, an end in the past, or a file that can't be written.
        """
        if not NAME.fullmatch(name):
            raise UserError(f"expected up to 40 letters, digits, '.', '@' and '-', got {shown(name)}", key="name")
        if fault := name_fault(user):
            raise UserError(f"expected a name {fault}, got {shown(user)}", key="user")
        now = datetime.now(UTC)
        if expires_at is not None and expires_at <= now:
            raise UserError("expected a time in the future", key="expires_at")
        secret = f"hw_{name}_{secrets.token_urlsafe(RANDOM_BYTES)}"
        token = Token(name, user, role, now, expires_at, _digest(secret))
        with self._change() as tokens:
            taken = tokens.get(name)
            if taken is not None and not taken.has_expired(now):
                raise TokenExistsError(f"there is a token {shown(name)} already: revoke it first", key="name")
            if taken is None and len(tokens) >= TOKENS_MAX:
                raise UserError(f"there are {TOKENS_MAX} tokens already: revoke some first")
            tokens[name] = token
        return token, secret

    def remove(self, name: str) -> Token:
        """Revoke a token: it opens nothing from now on. `NoSuchTokenError` if there is none of that name."""
        with self._change() as tokens:
            if name not in tokens:
                raise NoSuchTokenError(f"there is no token {shown(name)}{did_you_mean(name, tokens)}")
            return tokens.pop(name)

    # -- the file -------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _change(self) -> Iterator[dict[str, Token]]:
        """The tokens by name, to be changed and then written; nothing is written if the body raises."""
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(f"can't be written: {error.strerror or error}", file=str(lock)) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._look()
            tokens = dict(self._by_name)
            yield tokens
            self._write(tokens)
        finally:
            os.close(descriptor)

    def _write(self, tokens: dict[str, Token]) -> None:
        body = {
            "schema": SCHEMA,
            "tokens": [token.to_json() | {"sha256": token.digest} for _, token in sorted(tokens.items())],
        }
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(body, file, indent=1, ensure_ascii=False)
                file.write("\n")
                file.flush()
                os.fsync(descriptor)
            os.replace(partial, self.path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise UserError(f"can't be written: {error.strerror or error}", file=str(self.path)) from None
        self._take(tokens)
        self._seen = None

    def _look(self) -> None:
        """Read the file if it has changed since."""
        try:
            stat = self.path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen == self._seen:
                return
            found = json.loads(self.path.read_text("utf-8"))
            self._take({token.name: token for token in map(_token, _listed(found))})
            self._seen = seen
        except FileNotFoundError:
            self._take({})
            self._seen = None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"can't be read: {error}", file=str(self.path)) from None

    def _take(self, tokens: dict[str, Token]) -> None:
        self._by_name = tokens
        self._by_digest = {token.digest: token for token in tokens.values()}


def _listed(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("tokens"), list):
        raise ValueError(f"expected tokens of schema {SCHEMA}")
    tokens: list[dict[str, Any]] = found["tokens"]
    return tokens


def _token(entry: dict[str, Any]) -> Token:
    return Token(
        str(entry["name"]),
        str(entry["user"]),
        Role.parse(str(entry["role"])),
        _instant(entry["created_at"]),
        None if entry["expires_at"] is None else _instant(entry["expires_at"]),
        str(entry["sha256"]),
    )


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
