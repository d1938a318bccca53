"""How long a controller takes to know again what a journal of a million events says.

The journal is that of a simulated run, cut into segments as a live controller writes them: one for each instant at which
something happened.
"""

from __future__ import annotations

import resource
import sqlite3
import tempfile
import time
from pathlib import Path

import numpy as np

from headway.core import columns as c
from headway.core.codec import SCHEMA, encode
from headway.core.events import EventBatch
from headway.policies.registry import make_policy
from headway.runtime import keeper
from headway.runtime.folded import Folded, recover
from headway.runtime.journal import Journal
from headway.sim.run import simulate
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload

POLICY = "fifo-backfill"


def events(count: int) -> EventBatch:
    """The first `count` events of a run."""
    load = load_workload(f"poisson:jobs={count // 4},load=0.8,cluster=16x8")
    journal = simulate(load, parse_cluster("16x8"), make_policy(POLICY), keep_journal=True).journal
    assert journal is not None
    assert len(journal) >= count, f"only {len(journal)} events"
    return journal.cut(0, count)


def write(path: Path, batch: EventBatch) -> int:
    """A journal of these events; how many segments. They are written in one transaction, for the disk would take long."""
    journal = Journal(path)
    epoch = journal.lead()
    journal.close()
    times = batch.records[:, c.E_T]
    starts = [0, *(np.flatnonzero(times[1:] != times[:-1]) + 1).tolist(), len(batch)]
    at = np.concatenate(([0], np.cumsum(batch.records[:, c.E_POOL])))
    texts = sorted(batch.texts.items())
    db = sqlite3.connect(path)
    next_text = 0
    for seq, (begin, stop) in enumerate(zip(starts[:-1], starts[1:], strict=True), start=1):
        mine = {}
        while next_text < len(texts) and texts[next_text][0] < stop:
            mine[texts[next_text][0] - begin] = texts[next_text][1]
            next_text += 1
        body = encode(EventBatch(batch.records[begin:stop], batch.pool[at[begin] : at[stop]], mine))
        db.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", (seq, SCHEMA, stop - begin, body, epoch))
    db.commit()
    db.close()
    return len(starts) - 1


def recovery_s(path: Path) -> tuple[float, int]:
    """Seconds that recovery takes, and how many events came from a snapshot."""
    begin = time.perf_counter()
    journal = Journal(path)
    recover(journal, Folded.empty(make_policy(POLICY)))
    took = time.perf_counter() - begin
    assert journal.damage is None
    journal.close()
    return took, journal.kept_events


def measure(count: int) -> dict[str, float]:
    """Times of recovery of a journal of so many events: all replayed, from its archives, and from a snapshot (s)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.db")
        tail = min(keeper.SNAPSHOT_EVENTS, count // 2)
        batch = events(count)
        segments = write(path, batch.cut(0, count - tail))
        journal = Journal(path)
        epoch = journal.lead()
        journal.close()
        begin = time.perf_counter()
        keeper.keep(path, epoch, make_policy(POLICY))
        keep_s = time.perf_counter() - begin
        short = Path(folder, "all.db")
        segments = write(short, batch)
        first = recovery_s(Path(folder, "all.db"))[0]  # warms the kernels
        replay = recovery_s(short)[0]
        return {"segments": segments, "cold_s": first, "replay_s": replay, "keep_s": keep_s,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}  # fmt: skip
