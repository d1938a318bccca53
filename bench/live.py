"""The live controller's figures: how long until a job starts under a policy that thinks for long, how long until one starts on a
place that another gives up, and what the controller costs with 10,000 jobs queued and 200 running.

`python bench/live.py [start|preempt|large]…`; each part prints one line of JSON. The first two run real processes by the local
engine, the last has an engine that only answers.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.events import concatenate
from headway.core.model import Checkpoint, GpuDemand, JobSpec, Parallelism, Resources
from headway.core.plan import Plan
from headway.core.round import Brains
from headway.core.view import ClusterView
from headway.engines.base import EngineEvent, EventStream, Exited, Launch, NodeInfo, Place, Record, Running, Started
from headway.engines.local import LocalEngine
from headway.policies.registry import choose
from headway.runtime.controller import Controller
from headway.runtime.journal import Journal
from headway.runtime.rounds import Pace
from headway.runtime.warm import warm_up

US = 1_000_000
SLEEPS_S = 2.0


@dataclass
class Slow:
    """Another policy that takes its time: asleep, or (`spins`) in Python that never lets go of the interpreter by itself."""

    inner: Any
    think_s: float
    spins: bool = False
    name: str = "slow"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        end = time.monotonic() + self.think_s
        while self.spins and time.monotonic() < end:
            pass
        time.sleep(max(end - time.monotonic(), 0))
        plan: Plan = self.inner.decide(view, memo)
        return plan


@dataclass
class Answers:
    """An engine that does nothing, and says that it has done it."""

    nodes: tuple[NodeInfo, ...]
    running: dict[tuple[int, int], Launch] = field(default_factory=dict)
    stream: EventStream = field(default_factory=EventStream)

    async def start(self) -> None: ...
    async def close(self) -> None:
        self.stream.close()

    async def inventory(self) -> tuple[NodeInfo, ...]:
        return self.nodes

    async def fence(self, epoch: int) -> None: ...
    async def launch(self, launch: Launch) -> None:
        self.running[launch.job, launch.attempt] = launch
        self.stream.put(Started(launch.job, launch.attempt))

    async def stop(self, epoch: int, job: int, attempt: int, grace_s: float, reason: str) -> None:
        self.end(job, attempt, reason)

    def end(self, job: int, attempt: int, reason: str = "") -> None:
        if self.running.pop((job, attempt), None):
            self.stream.put(Exited(job, attempt, 0, None, bool(reason), reason))

    async def snapshot(self) -> tuple[Record, ...]:
        return tuple(
            Running(job, number, one.epoch, "running", tuple(Place(t.rank, t.node, t.gpus) for t in one.tasks))
            for (job, number), one in self.running.items()
        )

    async def acknowledge(self, epoch: int, job: int, attempt: int) -> None: ...
    def events(self) -> AsyncIterator[EngineEvent]:
        return self.stream

    def log_path(self, job: int, attempt: int, rank: int) -> Path:
        return Path("/nonexistent")


def brains(policy: Any) -> Brains:
    keep = choose("fifo-backfill").policy
    warm_up(keep)
    return Brains(policy, keep, keep)


def spec(name: str, run: str, **more: Any) -> JobSpec:
    return JobSpec(
        name=name, run=run, workdir="/", resources=Resources((GpuDemand(milli=1000),), 100), parallelism=Parallelism(data=1),
        checkpoint=Checkpoint(grace_s=5.0), **more,
    )  # fmt: skip


def ranks(values_s: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values_s, [50, 99])
    return {"median_ms": round(p50 * 1e3, 1), "p99_ms": round(p99 * 1e3, 1), "max_ms": round(max(values_s) * 1e3, 1)}


async def start(home: Path, think_s: float, spins: bool, count: int = 60) -> dict[str, Any]:
    """From handing a job in to the word that its process runs, with free slots."""
    engine = LocalEngine(home / "engine", {"n0": 16}, home=home)
    inner = choose("srtf").policy
    warm_up(inner)
    controller = Controller(
        Journal(home / "journal.db"), engine, brains(Slow(inner, think_s, spins)), capabilities=engine.capabilities()
    )
    await controller.start()
    running = asyncio.create_task(controller.run())
    waited, requested = [], []
    for i in range(count):
        begin = time.monotonic()
        record, _ = await controller.submit(spec(f"j{i}", "sleep 1", estimate_s=1.0))
        while record.first_started_us is None:
            await controller.changed(5.0)
        waited.append(time.monotonic() - begin)
        requested.append((record.first_started_us - record.submitted_us) / US)
        await asyncio.sleep(0.37)
    told = {
        "part": "start",
        "thinks_s": think_s,
        "spins": spins,
        "jobs": count,
        "by the clock": ranks(waited),
        "by the journal": ranks(requested),
    }
    told |= {
        "rounds": controller.rounds.held,
        "started meanwhile": controller.rounds.spared,
        "refused": controller.rounds.refused,
    }
    controller.stop()
    await running
    await controller.close()
    return told


async def preempt(home: Path, think_s: float, count: int = 12) -> dict[str, Any]:
    """From the end of a job that is stopped for another to that one's start."""
    engine = LocalEngine(home / "engine", {"n0": 1}, home=home)
    inner = choose("srtf").policy
    warm_up(inner)
    policy = Slow(inner, think_s) if think_s else inner
    controller = Controller(Journal(home / "journal.db"), engine, brains(policy), capabilities=engine.capabilities())
    await controller.start()
    running = asyncio.create_task(controller.run())
    long, _ = await controller.submit(spec("long", "sleep 1000", estimate_s=1000.0))
    for i in range(count):
        while controller.live_column(long, c.J_PHASE) != c.Phase.RUNNING:
            await controller.changed(5.0)
        record, _ = await controller.submit(spec(f"j{i}", "true", estimate_s=1.0))
        while not record.ended:
            await controller.changed(5.0)
    await controller.cancel("long-1")
    while not long.ended:
        await controller.changed(5.0)
    controller.stop()
    await running
    await controller.close()
    reader = Journal(home / "journal.db")
    batch = concatenate(list(reader.read()))
    reader.close()
    waits, stopped = [], None
    for t, kind, job in batch.records[:, [c.E_T, c.E_KIND, c.E_ID]].tolist():
        if kind == EventKind.STOPPED and job == 1:
            stopped = t
        elif kind == EventKind.STARTED and job != 1 and stopped is not None:
            waits.append((t - stopped) / US)
            stopped = None
    return {"part": "preempt", "thinks_s": think_s, "preemptions": len(waits), "exit to start": ranks(waits)}


async def large(home: Path, policy: str, queued: int = 10_000, running_jobs: int = 200, for_s: float = 60.0) -> dict[str, Any]:
    """Memory and CPU share, while each second a job ends, one starts, and one is handed in."""
    engine = Answers(tuple(NodeInfo(f"n{i}", 8, "gpu", 64_000, 10**12) for i in range(running_jobs // 8)))
    chosen = choose(policy).policy
    warm_up(chosen)
    controller = Controller(Journal(home / "journal.db"), engine, brains(chosen), pace=Pace())
    await controller.start()
    running = asyncio.create_task(controller.run())
    begin = time.monotonic()
    jobs = [spec(f"j{i % 50}", "python train.py", estimate_s=3600.0 + i) for i in range(queued + running_jobs)]
    for first in range(0, len(jobs), 500):
        await asyncio.gather(*(controller.submit(one) for one in jobs[first : first + 500]))
    handed_s = time.monotonic() - begin
    await asyncio.sleep(2)
    cpu, begin, rounds = time.process_time(), time.monotonic(), controller.rounds.held
    while time.monotonic() - begin < for_s:
        engine.end(*next(iter(engine.running)))
        await controller.submit(spec("more", "python train.py", estimate_s=7200.0))
        await asyncio.sleep(1.0)
    share = (time.process_time() - cpu) / (time.monotonic() - begin)
    C = controller.state.C
    told = {
        "part": "large", "policy": policy, "queued": int(C[c.C_WAITING]), "running": int(C[c.C_RUNNING]),
        "handed in, s": round(handed_s, 1), "cpu_share": round(share, 3), "rounds": controller.rounds.held - rounds,
        "rss_mb": round(_rss_mb()), "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }  # fmt: skip
    controller.stop()
    await running
    await controller.close()
    return told


def _rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def main(words: list[str]) -> None:
    """Measure the parts that are named, or all."""
    parts = words or ["start", "preempt", "large"]
    runs: list[Any] = []
    if "start" in parts:
        runs += [
            lambda home: start(home, SLEEPS_S, False),
            lambda home: start(home, SLEEPS_S, True),
            lambda home: start(home, 0.0, False),
        ]
    if "preempt" in parts:
        runs += [lambda home: preempt(home, 0.0)]
    if "large" in parts:
        runs += [lambda home: large(home, "fifo"), lambda home: large(home, "srtf"), lambda home: large(home, "mlf-h")]
    for run in runs:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(run(Path(folder)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
