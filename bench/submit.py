"""What the controller does in a second for the people who ask it: jobs handed in one by one and in batches, the queue told, and
all of it cancelled. Every write is on the disk before it is answered. The engine only answers, the API is not in it.

`python bench/submit.py [JOBS]` prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headway.core.columns import Phase
from headway.core.errors import UserError
from headway.engines.base import NodeInfo
from headway.policies.registry import choose
from headway.runtime.controller import Controller
from headway.runtime.journal import Journal
from headway.runtime.rounds import Pace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.live import Answers, brains, spec

BATCH = 1000
CLIENTS = 8
ONE_BY_ONE = 1000
"""So many jobs are handed in by one client, each after the answer to the one before."""


class Watch:
    """Wall and processor time since it was last looked at."""

    def __init__(self) -> None:
        self._begin = time.perf_counter(), time.process_time()

    def _since(self) -> tuple[float, float]:
        (wall, cpu), self._begin = self._begin, (time.perf_counter(), time.process_time())
        return self._begin[0] - wall, self._begin[1] - cpu

    def time(self, told: dict[str, Any], name: str) -> None:
        """Note how long it was."""
        told[f"{name}, s"], told[f"{name}, cpu s"] = self._since()

    def rate(self, told: dict[str, Any], name: str, count: int) -> None:
        """Note how many that makes in a second."""
        wall, cpu = self._since()
        told[f"{name}, jobs/s"], told[f"{name}, jobs/cpu s"] = count / wall, count / cpu


async def measure(home: Path, queued: int = 10_000, policy: str = "fifo") -> dict[str, Any]:
    """Jobs a second and seconds, with up to `queued` jobs waiting behind one that has all there is."""
    engine = Answers((NodeInfo("n0", 1, "gpu", 64_000, 10**12),))
    controller = Controller(Journal(home / "journal.db"), engine, brains(choose(policy).policy), pace=Pace())
    await controller.start()
    running = asyncio.create_task(controller.run())
    jobs = [spec(f"j{i % 50}", "python train.py", estimate_s=3600.0 + i) for i in range(queued)]
    told: dict[str, Any] = {"jobs": queued, "policy": policy}

    watch = Watch()
    for first in range(0, queued, BATCH):
        answers = await controller.submit_many([(one, "") for one in jobs[first : first + BATCH]])
        assert not any(isinstance(answer, UserError) for answer in answers)
    watch.rate(told, "batches", queued)
    for i in range(ONE_BY_ONE):
        await controller.submit(jobs[i])
    watch.rate(told, "one by one", ONE_BY_ONE)

    async def client(number: int) -> None:
        for i in range(number, ONE_BY_ONE, CLIENTS):
            await controller.submit(jobs[i], f"client-{i}")

    watch = Watch()
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    watch.rate(told, f"one by one from {CLIENTS}", ONE_BY_ONE)

    waiting = controller.select(states=frozenset({Phase.QUEUED}))
    watch.time(told, "select")
    told["queued"] = len(waiting)
    ids = [job.id for job in waiting]
    await controller.hold_many(ids, True)
    watch.time(told, "hold all")
    await controller.hold_many(ids, False)
    watch.time(told, "release all")
    await controller.cancel_many(ids)
    watch.time(told, "cancel all")
    assert not controller.select(states=frozenset({Phase.QUEUED}))
    controller.stop()
    await running
    await controller.close()
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in told.items()}


def figures(queued: int = 10_000) -> dict[str, Any]:
    """`measure` in a home of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder), queued))


if __name__ == "__main__":
    print(json.dumps(figures(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)))
