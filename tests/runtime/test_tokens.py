"""The tokens of people: what is kept of them, and until when they open anything."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headway.core.errors import UserError
from headway.runtime.tokens import NoSuchTokenError, Role, TokenExistsError, TokenStore


def store_in(path: Path) -> TokenStore:
    return TokenStore(path / "tokens.json")


def test_a_token_is_found_by_its_secret_and_the_secret_is_kept_nowhere(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    token, secret = store.add("laptop", "ann", Role.OPERATOR)
    found = store_in(tmp_path).find(secret)
    assert found == token and found is not None and (found.user, found.role) == ("ann", Role.OPERATOR)
    assert store.find(secret[:-1]) is None and store.find("") is None and store.find("\ud800") is None
    text = (tmp_path / "tokens.json").read_text()
    assert secret not in text and (tmp_path / "tokens.json").stat().st_mode & 0o777 == 0o600
    assert len(secret.split("_", 2)[2]) == 32  # 24 random bytes


def test_what_another_process_revokes_opens_nothing_at_once(tmp_path: Path) -> None:
    mine, other = store_in(tmp_path), store_in(tmp_path)
    secrets = [mine.add(f"t{n}", "ann", Role.USER)[1] for n in range(5)]
    for n, secret in enumerate(secrets):
        assert mine.find(secret) is not None
        other.remove(f"t{n}")
        assert mine.find(secret) is None
    (tmp_path / "tokens.json").unlink()
    assert mine.all() == []


def test_a_token_expires(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    soon = datetime.now(UTC) + timedelta(milliseconds=50)
    _, secret = store.add("x", "ann", Role.USER, soon)
    assert store.find(secret) is not None and store.any_valid()
    entry = json.loads((tmp_path / "tokens.json").read_text())
    entry["tokens"][0]["expires_at"] = "2020-01-01T00:00:00"  # no zone: UTC
    (tmp_path / "tokens.json").write_text(json.dumps(entry))
    assert store.find(secret) is None and store.has_expired(secret) and not store.any_valid()
    store.add("x", "bob", Role.USER)  # its name is free again
    assert [token.user for token in store.all()] == ["bob"]


def test_names_are_taken_once_and_what_is_not_there_is_said(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.add("laptop", "ann", Role.USER)
    with pytest.raises(TokenExistsError):
        store.add("laptop", "bob", Role.ADMIN)
    with pytest.raises(NoSuchTokenError, match="did you mean 'laptop'"):
        store.remove("labtop")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 2, "tokens": []}', '{"schema": 1, "tokens": [{"name": "x"}]}', "\0"])
def test_a_damaged_file_opens_nothing_and_is_not_overwritten(text: str, tmp_path: Path) -> None:
    store = store_in(tmp_path)
    _, secret = store.add("x", "ann", Role.USER)
    store.path.write_text(text)
    assert store.find(secret) is None
    for act in (store.all, store.any_valid, lambda: store.add("y", "ann", Role.USER), lambda: store.remove("x")):
        with pytest.raises(UserError, match=r"tokens\.json: can't be read"):
            act()
    assert store.path.read_text() == text


def test_nothing_is_lost_where_many_write_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = list(pool.map(lambda n: store_in(tmp_path).add(f"t{n}", "ann", Role.USER)[1], range(40)))
    store = store_in(tmp_path)
    assert len(store.all()) == 40 and all(store.find(secret) for secret in secrets)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tokens.json.") and path.suffix != ".lock"]
