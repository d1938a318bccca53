"""The API over a controller on a fake machine."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.api.world import Api, api_at


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with api_at(tmp_path) as found:
        yield found
