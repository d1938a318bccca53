"""Where a journal can be: a SQLite file, and a real PostgreSQL where one is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.runtime.journal_db import Where

from .postgres import Postgres, missing


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if why := missing():
        pytest.skip(f"no PostgreSQL here: {why}")
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """A place for a new journal."""
    if request.param == "sqlite":
        return tmp_path / "journal.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()
