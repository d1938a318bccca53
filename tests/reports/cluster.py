"""A live controller on simulated machines, in virtual time, for tests that tell what users have reported of other schedulers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from headway.core.columns import Phase
from headway.core.model import Checkpoint, GpuDemand, JobSpec, Parallelism, Resources
from headway.core.round import Brains
from headway.engines.base import NodeInfo
from headway.policies.registry import choose
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller
from headway.runtime.rounds import Pace
from headway.testing.invariants import verify
from headway.testing.live_process import MemoryJournal
from headway.testing.machine import Machine
from headway.testing.script import Script
from headway.testing.simulated import Link, SimulatedEngine
from headway.testing.virtual import US, VirtualClock, now_us, run_virtual

LONG_S = 10_000.0


class Cluster:
    """Machines, and the controllers that come and go on them over one journal."""

    def __init__(self, policy: str = "fifo", gpus: Sequence[int] = (4,), cpus: Sequence[int] | None = None, link: Any = None):
        cores = cpus or [64] * len(gpus)
        self.nodes = tuple(
            NodeInfo(f"n{i}", n, "gpu", c * 1000, 10**12) for i, (n, c) in enumerate(zip(gpus, cores, strict=True))
        )
        self.policy = policy
        self.machine = Machine(self.nodes)
        self.segments: list[bytes] = []
        self.lease = [0]
        self.link = link or Link()
        self.controller: Controller
        self.task: asyncio.Task[None]

    async def up(self) -> Controller:
        """Start a controller; returns when it is ready."""
        keep = choose("fifo-backfill").policy
        brains = Brains(choose(self.policy).policy, keep, keep)
        engine = SimulatedEngine(self.machine, self.link)
        self.controller = Controller(MemoryJournal(self.segments, self.lease), engine, brains, pace=Pace(), clock=VirtualClock())
        await self.controller.start()
        self.task = asyncio.create_task(self.controller.run())
        return self.controller

    async def down(self) -> None:
        """End the controller as SIGKILL does: nothing is said to anybody."""
        self.task.cancel()
        await asyncio.wait([self.task])
        pump = self.controller._pump
        assert pump is not None and isinstance(self.controller.engine, SimulatedEngine)
        pump.cancel()
        self.controller.engine.cut()

    async def submit(self, name: str, gpus: int = 1, workers: int = 1, **more: Any) -> JobRecord:
        """Hand in a gang of `workers` with `gpus` GPUs each. Words of `Script` say what it does, others are the job's own."""
        words = {key: more.pop(key) for key in list(more) if key in Script.__slots__ and key not in ("tasks",)}
        script = replace(Script(tasks=workers), **words)
        cpus_milli = more.pop("cpus", 1) * 1000
        grace_s = more.pop("gives_s", max(30.0, script.grace_s))
        spec = JobSpec(
            name=name,
            run=replace(script, cpus_milli=cpus_milli).text(),
            workdir="/",
            resources=Resources(gpu_alternatives=(GpuDemand(milli=1000 * gpus),), cpus_milli=cpus_milli),
            parallelism=Parallelism(data=workers),
            checkpoint=Checkpoint(dir=f"ckpt-{name}", grace_s=grace_s),
            **more,
        )
        record, _ = await self.controller.submit(spec, name)
        return record

    async def to(self, at_s: float) -> None:
        """Let time pass up to a second."""
        await asyncio.sleep(max(at_s - now_us() / US, 0.0))

    async def end(self, *jobs: JobRecord, by_s: float = LONG_S) -> list[str]:
        """Wait for the jobs' ends; how they have ended. The records may be an older controller's."""
        ids = [job.id for job in jobs]
        while True:
            found = [self.controller.find(name) for name in ids]
            if all(job.ended for job in found):
                return [job.phase.name for job in found]
            assert now_us() < by_s * US, [(job.id, self.phase(job.id)) for job in found]
            await asyncio.sleep(0.25)

    def phase(self, name: str) -> Phase:
        """Where a job is now."""
        job = self.controller.find(name)
        view = self.controller.live_view(job)
        return view.phase if view is not None else job.phase

    def starts(self, name: str) -> list[float]:
        """When the job was launched (s)."""
        return self._when(f"launch {name} ")

    def ends(self, name: str) -> list[float]:
        """When attempts of the job were gone (s)."""
        return self._when(f"gone {name} ")

    def _when(self, begin: str) -> list[float]:
        lines = [line.strip().split("  ", 1) for line in self.machine.trace]
        return [float(at) for at, what in lines if what.startswith(begin)]

    def judge(self) -> None:
        """What must never be has not been, and the tables are sound."""
        assert self.machine.wrongs == []
        verify(self.controller.state)


def live(body: Callable[..., Awaitable[None]], **words: Any) -> Cluster:
    """Run a test's body in virtual time, and judge at its end."""
    cluster = Cluster(**words)

    async def main() -> None:
        await cluster.up()
        await body(cluster)
        cluster.judge()
        await cluster.down()

    run_virtual(main)
    return cluster
