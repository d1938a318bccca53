"""The simulated engine passes the conformance suite that is shipped for all engines, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.engines.base import NodeInfo
from headway.testing.engine_checks import ENGINE_CHECKS, check_engine, run_engine_check
from headway.testing.machine import Machine
from headway.testing.simulated import Link, SimulatedCommands, SimulatedEngine
from headway.testing.virtual import run_virtual

NODES = tuple(NodeInfo(f"n{i}", 2, "gpu", 16_000, 10**11) for i in range(2))


@pytest.mark.parametrize("name", ENGINE_CHECKS)
@pytest.mark.parametrize("slow", [False, True], ids=["at-once", "slow-calls"])
def test_simulated_engine(name: str, slow: bool, tmp_path: Path) -> None:
    machine = Machine(NODES)

    async def make() -> SimulatedEngine:
        return SimulatedEngine(machine, Link(call_s=0.02 if slow else 0.0))

    check = ENGINE_CHECKS[name]
    run_virtual(lambda: run_engine_check(check, make, scratch=tmp_path, commands=SimulatedCommands(machine)))


def test_all_in_one_world(tmp_path: Path) -> None:
    machine = Machine(NODES)

    async def make() -> SimulatedEngine:
        return SimulatedEngine(machine)

    run_virtual(lambda: check_engine(make, scratch=tmp_path, commands=SimulatedCommands(machine)))
