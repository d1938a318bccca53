"""The classics: fifo, fifo-backfill, srtf, oracle-srtf, las, tiresias. Exact rules: `docs/semantics.md` §4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import Op
from headway.core.plan import Draft, Plan
from headway.core.view import ClusterView
from headway.place.assign import M_OVERRIDES, M_UNPLACED, M_UNSELECTED
from headway.place.passes import in_order, with_backfill
from headway.place.ranked import ROW_BITS, by_rank
from headway.policies.params import Common, param

US = 1_000_000
SRTF_UNIT_US = 10_000
"""Remaining times closer than this rank as equal (10 ms)."""
KEY_BITS = 34
KEY_MAX = (1 << KEY_BITS) - 1
NO_ORDER: Ints = np.zeros(0, np.int64)


def ranked(view: ClusterView, rows: Ints, keys: Ints) -> Ints:
    """Rows in order, packed for `by_rank`: priority (higher first), then key (lower first, cut at KEY_MAX), then arrival."""
    J = view.state.J
    packed = np.minimum(keys, KEY_MAX) << ROW_BITS | rows
    if view.state.C[c.C_PRIORITY_MIN] != view.state.C[c.C_PRIORITY_MAX]:
        packed |= (100 - J[c.J_PRIORITY, rows]) << (ROW_BITS + KEY_BITS)
    packed.sort()
    return packed


def waiting_in_order(view: ClusterView) -> Ints:
    """Waiting rows by priority, then arrival."""
    rows = view.waiting_rows()
    if view.state.C[c.C_PRIORITY_MIN] == view.state.C[c.C_PRIORITY_MAX]:
        return rows
    return rows[np.argsort(-view.state.J[c.J_PRIORITY, rows], kind="stable")]


def place_by_rank(view: ClusterView, order: Ints, kernel: int, skew_ppm: int = c.NEVER) -> Draft:
    """The preemptive pass over packed ranks; the draft wakes at once if the pass left something undone that time alone may change."""
    draft = view.draft()
    s, st = draft.scratch, view.state
    by_rank(
        order, len(order), kernel, skew_ppm, view.now_us, st.J, st.T, st.N, st.G, st.B, st.C, s.A, s.AB, s.P, s.PB, s.out, s.owner, s.mark,
        s.waiting, s.victims, s.O, s.OT, s.M,
    )  # fmt: skip
    if s.M[M_UNPLACED] or s.M[M_UNSELECTED]:
        draft.wake_at_us(view.now_us)
    return draft


def wake_at_crossing(draft: Draft, view: ClusterView, rows: Ints, service: Ints, limits: Ints) -> None:
    """Wake when the first job that runs, or is placed by this draft, will have got its limit of service (GPU·µs; NEVER: none)."""
    J, s = view.state.J, draft.scratch
    milli = np.where(J[c.J_STARTED_AT, rows] >= 0, J[c.J_HELD_MILLI, rows], 0)
    overrides = s.O[: s.M[M_OVERRIDES]]
    new = overrides[overrides[:, c.O_OP] == Op.PLACE, c.O_ROW]
    placed = np.searchsorted(rows, new)
    milli[placed] = J[c.J_GPUS, new] * c.WHOLE
    runs = (milli > 0) & (limits < c.NEVER)
    if runs.any():
        need = limits[runs] - service[runs]
        draft.wake_at_us(int(view.now_us + (-(-need * 1000 // milli[runs])).min()))


@dataclass(frozen=True, slots=True)
class FifoParams(Common):
    sharing: bool = param(False, "put jobs that allow it side by side on one GPU")


@dataclass(frozen=True, slots=True)
class Fifo:
    """First come, first served; a job that does not fit holds up those that want the same kind of GPU."""

    params: FifoParams
    name: str = "fifo"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        draft = view.draft()
        if view.waiting == 0:
            return draft.plan()
        s, st = draft.scratch, view.state
        equal = st.C[c.C_PRIORITY_MIN] == st.C[c.C_PRIORITY_MAX]
        order = NO_ORDER if equal else waiting_in_order(view)
        in_order(
            order, len(order), self.params.kernel, self.params.sharing, view.now_us, st.J, st.T, st.N, st.G, st.B, st.C, s.A, s.AB, s.GB, s.out,
            s.O, s.OT, s.M,
        )  # fmt: skip
        return draft.plan()


@dataclass(frozen=True, slots=True)
class BackfillParams(Common):
    depth: int = param(1000, "how many jobs behind the head are looked at")


@dataclass(frozen=True, slots=True)
class FifoBackfill:
    """First come, first served, with EASY backfill: the head gang holds a reservation that later jobs may not delay."""

    params: BackfillParams
    name: str = "fifo-backfill"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        draft = view.draft()
        if view.waiting == 0:
            return draft.plan()
        s, st = draft.scratch, view.state
        order = waiting_in_order(view)
        placed = view.placed_rows()
        ends = estimated_ends_us(view, placed)
        by_end = np.argsort(ends, kind="stable")
        leaving, ends = placed[by_end], ends[by_end]
        head = with_backfill(
            order, len(order), self.params.kernel, view.now_us, self.params.depth, leaving, ends, len(placed), st.J, st.T, st.N, st.B, st.C,
            s.A, s.AB, s.P, s.PB, s.out, s.O, s.OT, s.M,
        )  # fmt: skip
        if head >= 0:
            later = np.searchsorted(ends, view.now_us, side="right")
            if later < len(ends):
                draft.wake_at_us(int(ends[later]))
        return draft.plan()


def estimated_ends_us(view: ClusterView, rows: Ints) -> Ints:
    """When placed jobs leave, by their estimates: now for those that are over it (µs)."""
    J = view.state.J
    started = J[c.J_STARTED_AT, rows]
    begin = np.where(started >= 0, started, view.now_us)
    return np.maximum(view.now_us, begin + np.maximum(J[c.J_ESTIMATE, rows] - J[c.J_RUN, rows], 0))


@dataclass(frozen=True, slots=True)
class Srtf:
    """Shortest remaining time first, on the users' estimates, with preemption."""

    params: Common
    name: str = "srtf"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        rows = view.ranked_rows()
        left = np.maximum(view.state.J[c.J_ESTIMATE, rows] - view.run_us(rows), 0) // SRTF_UNIT_US
        return place_by_rank(view, ranked(view, rows, left), self.params.kernel).plan()


@dataclass(frozen=True, slots=True)
class OracleSrtf(Srtf):
    """Shortest remaining time first on the true durations: an oracle, for comparison only."""

    name: str = "oracle-srtf"
    oracle: bool = True


@dataclass(frozen=True, slots=True)
class LasParams(Common):
    quantum: float = param(3600.0, "GPU-seconds of service within which jobs rank as equal; more than a restart costs a gang", low=1e-3)


@dataclass(frozen=True, slots=True)
class Las:
    """Least attained service first, with preemption; service is GPU-time."""

    params: LasParams
    name: str = "las"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        rows = view.ranked_rows()
        quantum = round(self.params.quantum * US)
        attained = view.attained_us(rows)
        keys = attained // quantum
        draft = place_by_rank(view, ranked(view, rows, keys), self.params.kernel)
        wake_at_crossing(draft, view, rows, attained, (keys + 1) * quantum)
        return draft.plan()
