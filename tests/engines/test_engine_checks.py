"""The local engine passes the conformance suite that is shipped for all engines."""

from __future__ import annotations

import pytest

from headway.testing.engine_checks import ENGINE_CHECKS, check_engine, run_engine_check

from .conftest import LocalWorld

pytestmark = pytest.mark.live


@pytest.mark.parametrize("use_pidfd", [True, False], ids=["pidfd", "polling"])
@pytest.mark.parametrize("name", ENGINE_CHECKS)
async def test_local_engine(world: LocalWorld, name: str, use_pidfd: bool) -> None:
    world.options["use_pidfd"] = use_pidfd
    await run_engine_check(ENGINE_CHECKS[name], world.make, scratch=world.scratch)


async def test_all_in_one_world(world: LocalWorld) -> None:
    await check_engine(world.make, scratch=world.scratch)
