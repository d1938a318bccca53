"""The live controller and the simulator decide alike: same jobs, same policy, same starts and stops at the same instants."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.events import EventBatch
from headway.core.model import JobSpec
from headway.policies.registry import choose
from headway.runtime.admit import Names, spec_columns
from headway.runtime.rounds import Pace
from headway.sim.run import simulate
from headway.workloads.cluster import parse_cluster
from headway.workloads.schema import Workload

from .fake import US, World, job

NODES, GPUS = 3, 4
POLICIES = ["fifo", "fifo-backfill", "srtf", "las:quantum=20", "tiresias:threshold=30"]


def jobs_of(seed: int, count: int) -> list[tuple[int, int, JobSpec]]:
    """(submitted µs, work µs, job), in order."""
    rng = random.Random(seed)
    made, at = [], 0
    for i in range(count):
        at += rng.randrange(1, 12 * US)
        work = rng.randrange(1 * US, 90 * US)
        gpus = rng.choice([1, 1, 1, 2, 4])
        workers = rng.choice([1, 1, 2, 3])
        estimate = work / US * rng.choice([0.5, 1, 2])
        made.append((at, work, job(f"j{i}", gpus, workers, priority=rng.choice([50, 50, 60]), estimate_s=estimate)))
    return made


def decisions(batch: EventBatch, first: int) -> list[tuple[int, ...]]:
    """Starts, stops and completions, with jobs numbered from 0."""
    found = []
    for record, payload in zip(batch.records, batch.payloads(), strict=True):
        t, kind, number, attempt, a = (int(x) for x in record[:5])
        if kind in (EventKind.START_REQUESTED, EventKind.STOP_REQUESTED, EventKind.COMPLETED):
            found.append((t, kind, number - first, attempt, a if kind == EventKind.STOP_REQUESTED else 0, *payload.tolist()))
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(2))
async def test_a_live_controller_decides_as_the_simulator_does(policy: str, seed: int, tmp_path: Path) -> None:
    jobs = jobs_of(seed, 30)
    interval, save, restore = 5 * US, 2 * US, 3 * US
    names = Names()
    rows = [spec_columns(spec, names) for _, _, spec in jobs]
    spec = np.stack(rows, axis=1)
    spec[c.J_SAVE], spec[c.J_RESTORE] = save, restore
    times, works = np.array([t for t, _, _ in jobs]), np.array([w for _, w, _ in jobs])
    workload = Workload("test", times, spec, works)
    outcome = simulate(
        workload, parse_cluster(f"{NODES}x{GPUS}"), choose(policy).policy, interval_s=interval / US, keep_journal=True, seed=0
    )
    assert outcome.journal is not None

    # Triggers are for people who wait; with them left out, rounds come when the simulator's do.
    world = World(tmp_path / "journal.db", policy, nodes=NODES, gpus=GPUS, pace=Pace(interval, 1 << 60, 7 * US))
    world.engine.save_us, world.engine.restore_us = save, restore
    world.engine.work_us = {number: int(work) for number, work in enumerate(works, start=1)}
    await world.start()
    await world.to(int(times[-1]) + 3600 * US, [(t, spec) for t, _, spec in jobs])
    live = decisions(world.journal(), 1)
    assert live == decisions(outcome.journal, 0)
    assert sum(1 for entry in live if entry[1] == EventKind.COMPLETED) == len(jobs)
    assert outcome.refused == world.controller.rounds.refused == 0
    await world.controller.close()
