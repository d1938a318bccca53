"""Real jobs on this machine under a real controller: which jobs a seed stands for, and one run of them.

Each run has a home, a journal, an engine and a controller of its own. A slot is a core: a job's process binds itself to the
cores of its slots before it becomes the training script, so that two jobs do not slow each other more than they must.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import random
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import headway
from headway.core.errors import UserError
from headway.core.model import Checkpoint, GpuDemand, JobSpec, Model, Parallelism, Progress, Resources, StopRule, validate
from headway.core.round import Brains
from headway.engines.local import LocalEngine
from headway.policies.registry import choose
from headway.runtime.controller import Controller
from headway.runtime.home import Home
from headway.runtime.journal import Journal
from headway.runtime.rounds import Pace
from headway.runtime.settings import ClusterSettings, Settings
from headway.runtime.warm import warm_up

SCRIPT = "train.py"
STEPS_PER_EPOCH = 22
EPOCHS = {"svm": (150, 500), "mlp": (100, 280), "cnn-small": (25, 75), "lstm": (30, 85), "cnn-large": (10, 30)}
"""Model → the range of epochs: some five to fifteen seconds on one core."""
WIDE = "cnn-small"
"""Every second job of this model is data parallel on two slots: so ten jobs have every kind that there is."""
GAP_S = 4.5
"""Between two submissions, on average: somewhat more work than two slots can do at once."""
INTERVAL_S = 0.2
KEEP = "fifo-backfill"
PATIENCE_S = 1800.0
END_S = 30.0
BIND = (
    "import os,sys;"
    "cores=sorted(os.sched_getaffinity(0));"
    "slots=[int(s) for s in os.environ.get('HEADWAY_SLOTS','').split(',') if s];"
    "os.sched_setaffinity(0,{cores[s%len(cores)] for s in slots} or cores);"
    "os.execv(sys.executable,[sys.executable,*sys.argv[1:]])"
)
"""Bind this process to the cores of its slots, and become the script."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job of a live run."""

    name: str
    model: str
    workers: int
    epochs: int
    at_s: float
    seed: int
    deadline_s: float | None

    @property
    def steps(self) -> int:
        return self.epochs * STEPS_PER_EPOCH


def draw_jobs(seed: int, count: int) -> tuple[LiveJob, ...]:
    """The jobs that a seed stands for: all model types in turn, sizes and times by chance."""
    r = random.Random(f"live {seed}")
    models = list(EPOCHS)
    jobs, at_s = [], 0.0
    for i in range(count):
        if i % len(models) == 0:
            r.shuffle(models)
        model = models[i % len(models)]
        epochs = r.randint(*EPOCHS[model])
        workers = 2 if model == WIDE and i // len(models) % 2 else 1
        deadline_s = r.choice([None, 30.0, 60.0, 120.0])
        jobs.append(LiveJob(f"{model}-{i}", model, workers, epochs, at_s, seed * 1000 + i, deadline_s))
        at_s += r.expovariate(1 / GAP_S)
    return tuple(jobs)


def spec_of(job: LiveJob, scripts: Path, home: Path) -> JobSpec:
    """The job as it is handed in."""
    words = [
        sys.executable, "-c", BIND, SCRIPT, "--model", job.model, "--epochs", str(job.epochs), "--seed", str(job.seed),
    ]  # fmt: skip
    package = str(Path(headway.__file__).resolve().parents[1])
    paths = [package, *([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [])]
    spec = JobSpec(
        name=job.name,
        user=getpass.getuser(),
        run=shlex.join(words),
        workdir=str(scripts),
        env=(("OMP_NUM_THREADS", "1"), ("PYTHONPATH", os.pathsep.join(paths))),
        resources=Resources(gpu_alternatives=(GpuDemand(milli=1000),), cpus_milli=1000),
        parallelism=Parallelism(data=job.workers, sync="all-reduce" if job.workers > 1 else "none"),
        model=Model(name=job.model),
        progress=Progress(total=job.steps, accuracy="accuracy"),
        stop=StopRule("fixed"),
        deadline_s=job.deadline_s,
        checkpoint=Checkpoint(dir=str(home / "checkpoints" / job.name), grace_s=20.0),
    )
    if problems := validate(spec):
        raise UserError("; ".join(map(str, problems)), key="scripts")
    return spec


def check_scripts(scripts: Path) -> None:
    """Raise `UserError` unless the training script is there."""
    if not (scripts / SCRIPT).is_file():
        raise UserError(
            f"has no {SCRIPT}: expected the folder examples/jobs of a checkout; name it with --scripts", file=str(scripts)
        )


def run_live(policy: str, jobs: Sequence[LiveJob], *, scripts: Path, home: Path, slots: int) -> Path:
    """Run the jobs under a policy, from the first submission to the last end; returns the journal. What was in `home` is gone.

    Raises:
        UserError: the jobs have not ended within `PATIENCE_S` after the last submission.
    """
    warm_up(choose(policy).policy)
    shutil.rmtree(home, ignore_errors=True)
    place = Home(home)
    place.prepare()
    asyncio.run(_run(policy, jobs, scripts, place, slots))
    return place.journal


async def _run(policy: str, jobs: Sequence[LiveJob], scripts: Path, home: Home, slots: int) -> None:
    chosen, keep = choose(policy), choose(KEEP).policy
    settings = Settings(policy=chosen.spec, cluster=ClusterSettings(nodes=f"1x{slots}", round=f"{INTERVAL_S}s"))
    engine = LocalEngine(home.engine_dir, {"n0": slots}, home=home.root, idle_s=1.0)
    controller = Controller(
        Journal(home.journal), engine, Brains(chosen.policy, keep, keep), pace=Pace(interval_us=round(INTERVAL_S * 1e6)),
        capabilities=engine.capabilities(), settings=settings, home=home.root,
    )  # fmt: skip
    try:
        await controller.start()
        running = asyncio.create_task(controller.run())
        try:
            await asyncio.wait_for(_owners(controller, running, jobs, scripts, home.root), jobs[-1].at_s + PATIENCE_S)
        except TimeoutError:
            raise UserError(f"jobs have not ended within {PATIENCE_S:g} s after the last one was handed in") from None
        finally:
            if not running.done():
                await _end_all(controller)
            controller.stop()
            await asyncio.wait([running], timeout=END_S)
    finally:
        await controller.close()


async def _end_all(controller: Controller) -> None:
    """Leave no job behind, whatever has gone wrong: jobs outlive their controller."""
    live = [record.id for record in controller.board if not record.ended]
    for one in live:
        await controller.cancel(one)
    end = asyncio.get_running_loop().time() + END_S
    while not all(controller.find(one).ended for one in live) and asyncio.get_running_loop().time() < end:
        await controller.changed(1.0)


async def _owners(
    controller: Controller, running: asyncio.Task[None], jobs: Sequence[LiveJob], scripts: Path, home: Path
) -> None:
    """Hand the jobs in when they are due, and wait for the end of all."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    numbers = []
    for job in jobs:
        await asyncio.sleep(max(begin + job.at_s - loop.time(), 0.0))
        record, _ = await controller.submit(spec_of(job, scripts, home), job.name)
        numbers.append(record.id)
    while not all(controller.find(one).ended for one in numbers):
        if running.done():
            running.result()
            raise UserError("the controller has stopped")
        await controller.changed(5.0)
