"""How long a controller takes to know again what a journal of a million events says.

The journal is that of a simulated run, cut into segments as a live controller writes them: one for each instant at which
something happened.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from itertools import pairwise
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
    for seq, (begin, stop) in enumerate(pairwise(starts), start=1):
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
    """CPU seconds that recovery takes, and how many events came from a snapshot."""
    begin = time.process_time()
    journal = Journal(path)
    recover(journal, Folded.empty(make_policy(POLICY)))
    took = time.process_time() - begin
    assert journal.damage is None
    journal.close()
    return took, journal.kept_events


def measure(count: int, tail: int) -> dict[str, float]:
    """Recovery of a journal of so many events, and of one whose last `tail` events follow a snapshot (CPU seconds, which depend
    less on what else the machine does)."""
    whole = events(count)
    with tempfile.TemporaryDirectory() as folder:
        every, kept = Path(folder, "all.db"), Path(folder, "kept.db")
        segments = write(every, whole)
        write(kept, whole.cut(0, count - tail))
        journal = Journal(kept)
        epoch = journal.lead()
        journal.close()
        recovery_s(every)  # loads the kernels
        begin = time.process_time()
        keeper.keep(kept, epoch, make_policy(POLICY))
        keep_s = time.process_time() - begin
        append_rest(kept, every)
        replay_s, from_none = recovery_s(every)
        snapshot_s, from_snapshot = recovery_s(kept)
        assert from_none == 0 and from_snapshot > 0
        return {"segments": segments, "replay_s": replay_s, "snapshot_s": snapshot_s, "keep_s": keep_s}


def append_rest(path: Path, whole: Path) -> None:
    """The segments that a journal lacks, from another that has them."""
    db = sqlite3.connect(path)
    db.execute("ATTACH ? AS whole", (str(whole),))
    (last,) = db.execute("SELECT max(last) FROM archives").fetchone()
    db.execute("DELETE FROM segments")
    db.execute("INSERT INTO segments SELECT seq, schema, events, body, epoch FROM whole.segments WHERE seq > ?", (last,))
    db.commit()
    db.close()
