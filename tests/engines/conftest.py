"""Worlds for the engines' tests: a directory of its own each, and nothing left running at the end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.engines import proc
from headway.engines.local import LocalEngine
from headway.testing.engine_checks import EngineBench


class LocalWorld:
    """A state directory, engines on it, and a look at the processes that they have started."""

    def __init__(self, root: Path) -> None:
        self.state_dir = root / "state"
        self.scratch = root / "scratch"
        self.scratch.mkdir()
        self.options: dict[str, Any] = {"gang_grace_s": 0.3, "start_timeout_s": 0.3, "idle_s": 2.0}

    async def make(self) -> LocalEngine:
        return LocalEngine(self.state_dir, {"n0": 2, "n1": 2}, **self.options)

    def bench(self) -> EngineBench:
        return EngineBench(self.make, self.scratch)

    def identity(self, job: int, rank: int = 0, attempt: int = 1) -> dict[str, Any]:
        path = self.state_dir / "attempts" / f"{job}.{attempt}" / f"{rank}.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def agent(self, node: str = "n0") -> proc.Process | None:
        """The node's agent, if it lives."""
        card = proc.read_json(self.state_dir / "nodes" / node / "agent.json")
        return proc.lives(card["pid"], card["start_ticks"]) if card else None

    def end_all(self) -> None:
        """Kill what is left, found by the cards and identities on the disk."""
        for path in self.state_dir.glob("attempts/*/*.json"):
            if not path.stem.isdigit():
                continue
            identity = json.loads(path.read_text())
            for pid, ticks in (("pid", "start_ticks"), ("task_pid", "task_start_ticks")):
                found = proc.process(identity[pid]) if identity[pid] else None
                if found is not None and found.start_ticks == identity[ticks]:
                    for one in [*proc.descendants(found.pid), found]:
                        proc.kill(one, signal.SIGKILL)
        for node in ("n0", "n1"):
            if (agent := self.agent(node)) is not None:
                for number in (signal.SIGCONT, signal.SIGTERM):  # It takes its control groups away.
                    proc.kill(agent, number)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LocalWorld]:
    made = LocalWorld(tmp_path)
    try:
        yield made
    finally:
        made.end_all()
