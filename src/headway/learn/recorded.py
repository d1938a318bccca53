"""What a journal says that its policy decided, to be imitated: the state is replayed, and looked at before each decision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats
from headway.core.columns import EventKind
from headway.core.events import EventBatch
from headway.core.state import State
from headway.core.view import ClusterView
from headway.learn.rollout import Sample
from headway.policies.mlfs.observe import rank_features
from headway.policies.mlfs.rl import Decision

STAYS, STARTS = 2.0, 1.0
"""Utilities of jobs that keep their places, and of those that are given one; of all others 0."""
DECISIONS = (EventKind.WANTED, EventKind.UNWANTED, EventKind.START_REQUESTED, EventKind.STOP_REQUESTED)


def decisions_of(batch: EventBatch, *, keep: int, sharing: bool, seed: int = 0) -> Sample:
    """The rank decisions of a journal, `keep` of them drawn evenly. A round in which nobody got or lost a place tells nothing."""
    sample, state, at = Sample(keep, seed), State(), 0
    for first, last in rounds_of(batch):
        state.apply(batch.cut(at, first))
        view = ClusterView(state, int(batch.records[first, c.E_T]), seed)
        rows = view.ranked_rows()
        ids, before = state.J[c.J_ID, rows].copy(), state.J[c.J_PLACED, rows] == 1
        X = rank_features(view, rows, sharing) if len(rows) else None
        state.apply(batch.cut(first, last))
        at = last
        if X is None:
            continue
        now = [state.row(int(number)) for number in ids]
        after = np.array([row is not None and bool(state.J[c.J_PLACED, row]) for row in now])
        if np.array_equal(before, after):
            continue
        utility: Floats = np.where(after, np.where(before, STAYS, STARTS), 0.0)
        order = np.argsort(-utility, kind="stable")[: int(after.sum())]
        sample.offer(Decision("rank", view.now_us, X, order), utility)
    return sample


def rounds_of(batch: EventBatch) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of the decisions of each instant, as they stand side by side in the journal."""
    deciding = np.isin(batch.records[:, c.E_KIND], DECISIONS)
    times = batch.records[:, c.E_T]
    at = np.flatnonzero(deciding)
    if not len(at):
        return
    breaks = np.flatnonzero((np.diff(at) > 1) | (np.diff(times[at]) != 0)) + 1
    for group in np.split(at, breaks):
        yield int(group[0]), int(group[-1]) + 1
