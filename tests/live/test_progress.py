"""What real jobs tell of themselves, under a real controller in this process."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headway.core import columns as c
from headway.core.columns import EventKind, Phase, Reason
from headway.core.events import EventBuffer
from headway.core.model import Checkpoint, GpuDemand, JobSpec, Progress, Resources
from headway.core.round import Brains
from headway.engines.local import LocalEngine
from headway.policies.registry import choose
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller
from headway.runtime.journal import Journal
from headway.runtime.rounds import Pace
from headway.runtime.warm import warm_up

from .conftest import ROOT, Cluster, until

pytestmark = pytest.mark.live
PATIENCE_S = 40.0


class Live:
    """A controller with a home, and jobs that are Python scripts."""

    def __init__(self, cluster: Cluster) -> None:
        cluster.home.mkdir(exist_ok=True)
        self.home, self.scratch = cluster.home, cluster.scratch
        keep = choose("fifo").policy
        warm_up(keep)
        self.journal = cluster.home / "journal.db"
        self.brains = Brains(keep, keep, keep)
        self.controller = self.make()

    def make(self) -> Controller:
        engine = LocalEngine(self.home / "engine", {"n0": 2}, gang_grace_s=0.5, poll_s=0.05, home=self.home)
        return Controller(Journal(self.journal), engine, self.brains, pace=Pace(interval_us=100_000), home=self.home)

    async def open(self) -> None:
        await self.controller.start()
        self.running = asyncio.create_task(self.controller.run())

    async def close(self) -> None:
        self.controller.stop()
        await self.running
        await self.controller.close()

    async def restart(self) -> None:
        await self.close()
        self.controller = self.make()
        await self.open()

    async def submit(self, code: str, *, name: str = "job", **more: Any) -> JobRecord:
        script = self.scratch / f"{name}.py"
        script.write_text(code)
        spec = JobSpec(
            name=name,
            run=f"exec {sys.executable} {shlex.quote(str(script))}",
            workdir=str(self.scratch),
            env=(("PYTHONPATH", str(ROOT / "src")),),
            resources=Resources((GpuDemand(milli=1000),), 100),
            **{"retry_max": 0, "checkpoint": Checkpoint(dir="ckpt", grace_s=20.0), **more},
        )
        return (await self.controller.submit(spec))[0]

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await self.controller.changed(0.02)

    def events(self, kind: EventKind) -> list[tuple[int, int, int]]:
        """Fields a, b, c of all events of a kind, in order."""
        found: list[tuple[int, int, int]] = []
        journal = Journal(self.journal)
        for batch in journal.read():
            found += [(int(row[c.E_A]), int(row[c.E_B]), int(row[c.E_C])) for row in batch.records if row[c.E_KIND] == kind]
        journal.close()
        return found

    def output(self, job: JobRecord, attempt: int) -> str:
        return self.controller.log_path(job, attempt, 0).read_text("utf-8")

    async def stop(self, job: JobRecord) -> None:
        """Preempt a job."""
        out = EventBuffer()
        out.add(self.controller.now_us(), EventKind.STOP_REQUESTED, job.number, job.attempt, a=Reason.PREEMPTED)
        await self.controller.change(lambda _: out.take())
        await self.controller.engine.stop(self.controller.epoch, job.number, job.attempt, 20.0, "preempted")

    def steps(self, job: JobRecord) -> int:
        return self.controller.live_column(job, c.J_UNITS_DONE) or 0


@pytest.fixture
async def live(cluster: Cluster) -> AsyncIterator[Live]:
    made = Live(cluster)
    await made.open()
    yield made
    await made.close()


async def test_a_plain_script_that_prints_and_exits_at_once(live: Live) -> None:
    job = await live.submit("print('step=1 loss=2.0')\nprint('step=7 loss=0.5 acc=0.25', end='')")
    await live.until(lambda: job.ended)
    assert job.phase == Phase.COMPLETED
    assert live.events(EventKind.OBSERVED)[-1] == (7, 500_000_000, 250_000)


async def test_a_plain_script_shows_its_progress_while_it_runs(live: Live) -> None:
    gate = live.scratch / "gate"
    code = f"""
import os, time
for step in range(1, 6):
    print(f"\\rstep={{step}} loss={{1 / step}}", end="", flush=True)
print()
while not os.path.exists({str(gate)!r}):
    time.sleep(0.02)
"""
    job = await live.submit(code, progress=Progress(total=1000))
    await live.until(lambda: live.steps(job) == 5)
    assert live.controller.live_column(job, c.J_LOSS) == 200_000_000
    gate.touch()
    await live.until(lambda: job.ended)


async def test_saved_stopped_and_resumed(live: Live) -> None:
    code = """
import sys, time
import headway.job as job
found = job.resume_from()
step = found.step if found else 0
assert found is None or found.path.read_text() == str(step)
print("from", step, flush=True)
while step < 1000:
    step += 1
    job.report(step, loss=1 / step, total=1000)
    time.sleep(0.01)
    if job.should_stop():
        with job.saving(step) as path:
            path.write_text(str(step))
        sys.exit(0)
    if job.attempt == 2 and found:
        job.done()
        sys.exit(0)
"""
    job = await live.submit(code)
    await live.until(lambda: live.steps(job) > 3)
    await live.stop(job)
    await live.until(lambda: job.ended)
    assert job.phase == Phase.COMPLETED and job.attempt == 2
    saved = live.events(EventKind.SAVED)[0][0]
    assert saved > 3 and live.events(EventKind.STOPPED)[0][1] == saved
    assert live.output(job, 2) == f"from {saved}\n"


async def test_done_after_a_stop_request_is_completed(live: Live) -> None:
    code = """
import sys, time
import headway.job as job
while not job.should_stop():
    job.report(1)
    time.sleep(0.01)
job.done()
"""
    job = await live.submit(code)
    await live.until(lambda: live.steps(job) == 1)
    await live.stop(job)
    await live.until(lambda: job.ended)
    assert (job.phase, job.attempt, job.exit_code) == (Phase.COMPLETED, 1, 0)


async def test_a_controller_that_starts_again_loses_and_doubles_nothing(live: Live) -> None:
    gate = live.scratch / "gate"
    code = f"""
import os, time
step = 0
while not os.path.exists({str(gate)!r}):
    step += 1
    print(f"step={{step}} loss={{1 / step}}", flush=True)
    time.sleep(0.01)
print(f"step=100000 loss=0.25", flush=True)
"""
    job = await live.submit(code)
    await live.until(lambda: live.steps(job) > 20)
    await live.restart()
    job = live.controller.find("job-1")
    before = live.steps(job)
    await live.until(lambda: live.steps(job) > before)
    gate.touch()
    await live.until(lambda: job.ended)
    seen = [a for a, _, _ in live.events(EventKind.OBSERVED)]
    assert seen == sorted(set(seen)) and seen[-1] == 100_000


async def test_what_tasks_are_told_is_secret(live: Live) -> None:
    job = await live.submit("import os; print(os.environ['HEADWAY_TOKEN'], os.environ['HEADWAY_REPORTS'])")
    await live.until(lambda: job.ended)
    token, reports = live.output(job, 1).split()
    assert live.controller.reporting.tokens is not None
    assert live.controller.reporting.tokens.read(token) == (job.number, 1)
    assert live.controller.reporting.tokens.live(token, live.controller.state) is None
    assert Path(reports).parent == live.home / "reports" / str(job.number)
    assert (live.home / "job.key").stat().st_mode & 0o777 == 0o600
    logs = {live.controller.log_path(job, 1, 0)}
    for path in live.home.rglob("*"):
        if path.is_file() and path not in logs:
            assert token.encode() not in path.read_bytes(), path


def test_show_tells_the_steps_and_the_loss_of_a_script_that_only_prints(cluster: Cluster) -> None:
    gate = cluster.scratch / "gate"
    (cluster.scratch / "plain.py").write_text(
        f"""
import os, time
for step in range(1, 11):
    print(f"step={{step}} loss={{1 / step}}", flush=True)
while not os.path.exists({str(gate)!r}):
    time.sleep(0.05)
"""
    )
    job_file = cluster.scratch / "plain.yaml"
    job_file.write_text(f"name: plain\nrun: exec {sys.executable} plain.py\nprogress: {{total: 1000}}\n")
    cluster.up("--nodes", "1x1", "--policy", "fifo")
    job = json.loads(cluster.run("submit", str(job_file), "--json").stdout)["job"]

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(cluster.run("show", job, "--json").stdout)
        return found if found["steps"] == 10 else {}

    found = until(shown, "the tenth step")
    assert (found["loss"], found["accuracy"], found["attempt"], found["state"]) == (0.1, None, 1, "running")
    gate.touch()
