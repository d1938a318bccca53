"""The classics: fifo, fifo-backfill, srtf, oracle-srtf, las, tiresias. Exact rules: `docs/semantics.md` §4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import ROW_MASK, Op
from headway.core.explain import Explanation, Term
from headway.core.plan import EMPTY_COUNTS, Draft, Plan
from headway.core.view import ClusterView
from headway.place.assign import M_MORE, M_OVERRIDES, M_UNPLACED, M_UNSELECTED
from headway.place.passes import LEAVING_BITS, as_they_fit, in_order, leaving_keys, with_backfill
from headway.place.quotas import begin, by_rank_within_quotas, has_limits, has_quotas, serve_claims, work_arrays
from headway.place.ranked import EVICTED, NOBODY, by_rank
from headway.place.shared_backfill import backfill_shares, up_to_head
from headway.place.shared_ranked import by_rank_shared
from headway.policies.explain import SERVICE, WAITING_ONLY, by_keys, by_rows, own_key, row_of, seconds, sorted_keys
from headway.policies.params import Common, param
from headway.policies.ranks import area_keys, attained_us, placed_crossing, remaining_keys, run_us, service_keys

US = 1_000_000
SRTF_UNIT_US = 10_000
"""Remaining times closer than this rank as equal (10 ms)."""
BEST = 1024
"""How many waiting jobs are sorted at first; seldom are more needed to fill a cluster."""
NO_ORDER: Ints = np.zeros(0, np.int64)


def waiting_in_order(view: ClusterView) -> Ints:
    """Waiting rows by priority, then arrival."""
    rows = view.waiting_rows()
    if view.state.C[c.C_PRIORITY_MIN] == view.state.C[c.C_PRIORITY_MAX]:
        return rows
    return rows[np.argsort(-view.state.J[c.J_PRIORITY, rows], kind="stable")]


def place_claims(
    view: ClusterView, draft: Draft, waiting: Ints, placed: Ints, used: Ints, stuck: Ints, kernel: int, *,
    in_turn: bool = False, sharing: bool = False, skew_ppm: int = c.NEVER,
) -> int:  # fmt: skip
    """Serve the queues that claim what is theirs, before a pass: `waiting` (by rank) and `placed` are keys or rows. How many
    claims could not be served."""
    s, st = draft.scratch, view.state
    begin(placed, len(placed), st.J, st.T, st.N, st.G, st.Q, st.B, st.C, used, s.A, s.AB, s.owner, s.mark, s.M)
    return serve_claims(
        waiting, len(waiting), placed, len(placed), kernel, skew_ppm, in_turn, sharing, view.now_us, st.J, st.T, st.N, st.Q,
        st.C, used, stuck, s.A, s.AB, s.P, s.PB, s.out, s.owner, s.mark, s.victims, s.O, s.OT, s.M,
    )  # fmt: skip


def after_claims(
    view: ClusterView, draft: Draft, order: Ints, kernel: int, *, in_turn: bool = False, sharing: bool = False
) -> Ints:  # fmt: skip
    """The rows of `order` (waiting jobs by rank) that are left when the claims of queues have been served. The draft wakes at
    once if a job was released, or a claim was not served."""
    s, st = draft.scratch, view.state
    used, stuck = work_arrays(st.Q)
    missed = place_claims(view, draft, order, view.placed_rows(), used, stuck, kernel, in_turn=in_turn, sharing=sharing)
    s.planned[:] = used - st.Q[c.Q_BOOKED]
    if missed or s.M.item(M_UNSELECTED):
        draft.wake_at_us(view.now_us)
    left: Ints = order[s.mark[order] == NOBODY]
    return left


def place_by_rank(
    view: ClusterView, placed: int, waiting: int, kernel: int, skew_ppm: int = c.NEVER, *, sharing: bool = False,
    hardest: bool = False,
) -> Draft:  # fmt: skip
    """The preemptive pass over the keys in the scratch (`placed` and `waiting` many); the draft wakes at once if something was
    left undone that time alone may change. With `sharing` see `share_by_rank`."""
    draft = view.draft()
    s, st = draft.scratch, view.state
    s.keys_placed[:placed].sort()
    keys = s.keys_waiting[:waiting]
    if sharing:
        keys.sort()
        share_by_rank(view, draft, placed, waiting, kernel, hardest)
        return draft
    quotas = has_quotas(st.Q)
    if quotas or has_limits(st.Q):
        keys.sort()
        used, stuck = work_arrays(st.Q)
        place_claims(view, draft, keys, s.keys_placed[:placed], used, stuck, kernel, skew_ppm=skew_ppm)
        by_rank_within_quotas(
            keys, waiting, s.keys_placed, placed, quotas, kernel, skew_ppm, view.now_us, st.J, st.T, st.N, st.Q, st.C, used,
            stuck, s.A, s.AB, s.P, s.PB, s.out, s.owner, s.mark, s.victims, s.O, s.OT, s.M,
        )  # fmt: skip
        if s.M.item(M_UNPLACED) or s.M.item(M_UNSELECTED):
            draft.wake_at_us(view.now_us)
        return draft
    best = waiting
    if waiting > 2 * BEST:
        best = BEST
        keys.partition(best)
    keys[:best].sort()
    while True:
        by_rank(
            s.keys_placed, placed, s.keys_waiting, best, waiting, kernel, skew_ppm, view.now_us,
            st.J, st.T, st.N, st.B, st.C, s.A, s.AB, s.P, s.PB, s.out, s.owner, s.mark, s.waiting,
            s.victims, s.O, s.OT, s.M,
        )  # fmt: skip
        if not s.M.item(M_MORE):
            break
        s.keys_placed[:placed].sort()
        keys.sort()
        best = waiting
        s.M[:] = EMPTY_COUNTS
    if s.M.item(M_UNPLACED) or s.M.item(M_UNSELECTED):
        draft.wake_at_us(view.now_us)
    return draft


def share_by_rank(view: ClusterView, draft: Draft, placed: int, waiting: int, kernel: int, hardest: bool) -> None:
    """The preemptive pass with shares of GPUs over the sorted keys in the scratch. Where queues have quotas, nobody is stopped
    but for the claims that come first. `hardest`: the tasks of a job are dealt by falling share of a GPU."""
    s, st = draft.scratch, view.state
    if has_quotas(st.Q):
        order = after_claims(view, draft, s.keys_waiting[:waiting] & ROW_MASK, kernel, sharing=True)
        as_they_fit(
            order, len(order), kernel, True, view.now_us, st.J, st.T, st.N, st.G, st.Q, st.B, st.C, s.planned, s.A, s.AB, s.GB,
            s.out, s.O, s.OT, s.M,
        )  # fmt: skip
        return
    below, below_bits, below_milli = np.empty_like(s.A), np.empty_like(s.AB), np.empty_like(s.GB)
    by_rank_shared(
        s.keys_placed, placed, s.victims, s.waiting, s.keys_waiting, waiting, kernel, hardest, view.now_us,
        st.J, st.T, st.N, st.G, st.Q, st.B, st.C, s.planned, s.A, s.AB, s.GB, below, below_bits, below_milli, s.P, s.PB,
        np.empty_like(s.GB), s.out, s.owner, s.mark, s.O, s.OT, s.M,
    )  # fmt: skip
    if s.M.item(M_UNPLACED) or s.M.item(M_UNSELECTED):
        draft.wake_at_us(view.now_us)


@dataclass(frozen=True, slots=True)
class Fifo:
    """First come, first served; a job that does not fit holds up those that want the same kind of GPU."""

    params: Common
    name: str = "fifo"
    strict: ClassVar[bool] = True

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        draft = view.draft()
        if view.waiting == 0:
            return draft.plan()
        s, st = draft.scratch, view.state
        equal = st.C[c.C_PRIORITY_MIN] == st.C[c.C_PRIORITY_MAX]
        order = NO_ORDER if equal else waiting_in_order(view)
        if has_quotas(st.Q):
            sharing = self.params.sharing
            order = after_claims(view, draft, waiting_in_order(view), self.params.kernel, in_turn=True, sharing=sharing)
            if not len(order):
                return draft.plan()
        in_order(
            order, len(order), self.params.kernel, self.params.sharing, view.now_us, st.J, st.T, st.N, st.G, st.Q,
            st.B, st.C, s.planned, s.A, s.AB, s.GB, s.out, s.O, s.OT, s.M,
        )  # fmt: skip
        return draft.plan()

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        words = f"first come, first served; who does not fit holds up all that want the same kind of GPU; {WAITING_ONLY}"
        return by_rows(view, waiting_in_order(view), job, (), words)


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
        equal = view.state.C[c.C_PRIORITY_MIN] == view.state.C[c.C_PRIORITY_MAX]
        sharing = self.params.sharing
        order = NO_ORDER if equal and not sharing and not has_quotas(view.state.Q) else waiting_in_order(view)
        backfill(view, draft, order, self.params.kernel, self.params.depth, in_turn=True, sharing=sharing)
        return draft.plan()

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        words = f"first come, first served; later jobs fill the gaps that do not delay the first; {WAITING_ONLY}"
        return by_rows(view, waiting_in_order(view), job, (), words)


def backfill(
    view: ClusterView, draft: Draft, order: Ints, kernel: int, depth: int, *, in_turn: bool = False, sharing: bool = False
) -> None:  # fmt: skip
    """Place waiting jobs in order, with EASY backfill behind the first that does not fit. `order`: rows; empty: by arrival (not
    with `sharing`)."""
    s, st = draft.scratch, view.state
    placed = leaving_keys(st.J, st.C, view.now_us, s.keys_placed)
    leaving = s.keys_placed[:placed]
    if has_quotas(st.Q):
        order = after_claims(view, draft, order, kernel, in_turn=in_turn, sharing=sharing)
        if not len(order):
            return
        stay = leaving[s.mark[leaving & ROW_MASK] != EVICTED]
        placed = len(stay)
        s.keys_placed[:placed] = stay
        leaving = s.keys_placed[:placed]
    if sharing:
        head = share_with_backfill(view, draft, order, kernel, depth, leaving)
        wake_when_overdue(view, draft, head, np.sort(leaving))
        return
    leaving.sort()
    head = with_backfill(
        order, len(order), kernel, view.now_us, depth, s.keys_placed, placed, st.J, st.T, st.N, st.Q, st.B, st.C, s.planned,
        s.A, s.AB, s.P, s.PB, s.out, s.O, s.OT, s.M,
    )  # fmt: skip
    wake_when_overdue(view, draft, head, leaving)


def wake_when_overdue(view: ClusterView, draft: Draft, head: int, leaving: Ints) -> None:
    """Wake when the next placed job (sorted keys of `leaving_keys`) passes its estimated end if a head waits, and at once if jobs
    were placed behind it and others not looked at."""
    if draft.scratch.M.item(M_MORE):
        draft.wake_at_us(view.now_us)
    if head >= 0:
        later = int(np.searchsorted(leaving, 1 << c.ROW_BITS))
        if later < len(leaving):
            draft.wake_at_us(view.now_us + (int(leaving[later]) >> c.ROW_BITS))


def share_with_backfill(view: ClusterView, draft: Draft, order: Ints, kernel: int, depth: int, leaving: Ints) -> int:
    """As `with_backfill`, with shares of GPUs; `leaving` (`leaving_keys`) need not be sorted. Returns the head's row, or -1."""
    s, st = draft.scratch, view.state
    reached = up_to_head(
        order, len(order), kernel, view.now_us, st.J, st.T, st.N, st.G, st.Q, st.B, st.C, s.planned, s.A, s.AB, s.GB, s.out,
        s.O, s.OT, s.M,
    )  # fmt: skip
    if reached == len(order):
        return -1
    new = s.O[: s.M.item(M_OVERRIDES)]
    new = new[new[:, c.O_OP] == Op.PLACE]
    rows = new[:, c.O_ROW]
    begins = np.full(int(st.C[c.C_ROWS]), -1, np.int64)
    begins[rows] = new[:, c.O_TASK0]
    left = np.minimum(np.maximum(st.J[c.J_ESTIMATE, rows] - st.J[c.J_RUN, rows], 0), (1 << LEAVING_BITS) - 1)
    ends = np.sort(np.concatenate([leaving, left << c.ROW_BITS | rows]))
    backfill_shares(
        order, reached, len(order), kernel, view.now_us, depth, ends, len(ends), begins, st.J, st.T, st.N, st.Q, st.C, s.planned,
        s.A, s.AB, s.GB, s.P, s.PB, np.empty_like(s.GB), s.out, s.O, s.OT, s.M,
    )  # fmt: skip
    return int(order[reached])


@dataclass(frozen=True, slots=True)
class SrtfParams(Common):
    gpus: float = param(0.0, "power of the GPUs that the remaining time is multiplied by; 0: the time alone", high=2)


@dataclass(frozen=True, slots=True)
class Srtf:
    """Shortest remaining time first, on the users' estimates, with preemption."""

    params: SrtfParams
    name: str = "srtf"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        s = view.state.scratch
        placed, waiting = self.fill(view, s.keys_placed, s.keys_waiting)
        return place_by_rank(view, placed, waiting, self.params.kernel, sharing=self.params.sharing).plan()

    def fill(self, view: ClusterView, placed: Ints, waiting: Ints) -> tuple[int, int]:
        """Fill in the rank keys; how many jobs have places, and how many wait."""
        st, power = view.state, self.params.gpus
        if power:
            return area_keys(st.J, st.C, view.now_us, SRTF_UNIT_US, power, placed, waiting)
        return remaining_keys(st.J, st.C, view.now_us, SRTF_UNIT_US, placed, waiting)

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        keys, power = sorted_keys(view, lambda placed, waiting: self.fill(view, placed, waiting)), self.params.gpus
        terms: tuple[Term, ...] = remaining_terms(view, remaining_order(view) if power else keys, job)
        if not power:
            return by_keys(view, keys, job, terms, "the shortest remaining time first", stops=True)
        terms = (*terms, *area_terms(view, keys, job, power))
        return by_keys(view, keys, job, terms, f"the least remaining time × GPUs^{power:g} first", stops=True)


def remaining_order(view: ClusterView) -> Ints:
    """The rank keys by remaining time, in order."""
    st = view.state
    return sorted_keys(view, lambda placed, waiting: remaining_keys(st.J, st.C, view.now_us, SRTF_UNIT_US, placed, waiting))


def remaining_terms(view: ClusterView, keys: Ints, job: int) -> tuple[Term, Term, Term]:
    """The terms of a rank by remaining time."""
    J, row = view.state.J, row_of(view, job)
    key, estimate, run_s = own_key(keys, row), seconds(int(J[c.J_ESTIMATE, row])), run_us(J, row, view.now_us) / US
    left = None if key is None or estimate is None else key * SRTF_UNIT_US / US
    return (
        Term("estimate", estimate, "s", "run time that the policy was told; without one a job comes last", 1.0, estimate),
        Term("run time", run_s, "s", "what it has run so far", -1.0, 0.0 - run_s),
        Term("remaining", left, "s", "max(0, estimate − run time) in steps of 10 ms, as the policy compares it: least first"),
    )


def area_terms(view: ClusterView, keys: Ints, job: int, power: float) -> tuple[Term, Term]:
    """The further terms of a rank by remaining time × GPUs^power."""
    row = row_of(view, job)
    gpus, key = float(max(int(view.state.J[c.J_GPUS, row]), 1)), own_key(keys, row)
    area = None if key is None else key * SRTF_UNIT_US / US
    meaning = f"remaining time × GPUs^{power:g} in steps of 10 ms, as the policy compares it: least first"
    return (
        Term("GPUs", gpus, "", f"of the whole job: the remaining time is multiplied by {gpus**power:.4g}"),
        Term("area", area, "s", meaning),
    )


@dataclass(frozen=True, slots=True)
class OracleSrtf(Srtf):
    """Shortest remaining time first on the true durations: an oracle, for comparison only."""

    name: str = "oracle-srtf"
    oracle: bool = True


@dataclass(frozen=True, slots=True)
class LasParams(Common):
    quantum: float = param(
        3600.0, "GPU-seconds of service within which jobs rank as equal; more than a restart costs a gang", low=1e-3
    )


@dataclass(frozen=True, slots=True)
class Las:
    """Least attained service first, with preemption; service is GPU-time."""

    params: LasParams
    name: str = "las"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        p = self.params
        return serve_least(view, round(p.quantum * US), NO_ORDER, 0, NO_ORDER, p.kernel, c.NEVER, sharing=p.sharing)

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        keys = service_order(view, round(self.params.quantum * US), NO_ORDER, 0, NO_ORDER)
        row, quantum = row_of(view, job), self.params.quantum
        step = own_key(keys, row)
        terms = (
            Term("attained", attained_us(view.state.J, row, view.now_us) / US, SERVICE, "GPUs × run time so far"),
            Term("quantum", quantum, SERVICE, "jobs in one quantum rank as equal"),
            Term("step", None if step is None else float(step), "quanta", "attained // quantum: least first"),
        )
        return by_keys(view, keys, job, terms, "the least attained service first, in steps of a quantum", stops=True)


def service_order(view: ClusterView, quantum: int, thresholds: Ints, promote: int, within: Ints) -> Ints:
    """The rank keys by attained service, in order. See `ranks.service_keys` for the arguments."""
    st = view.state
    return sorted_keys(
        view,
        lambda placed, waiting: service_keys(st.J, st.C, view.now_us, quantum, thresholds, promote, within, placed, waiting),
    )


def serve_least(
    view: ClusterView, quantum: int, thresholds: Ints, promote: int, within: Ints, kernel: int, skew_ppm: int, *, sharing: bool
) -> Plan:
    """The preemptive pass by attained service, waking when a rank changes. See `ranks.service_keys` for the arguments (GPU·µs)"""
    st = view.state
    s = st.scratch
    placed, waiting, wake = service_keys(
        st.J, st.C, view.now_us, quantum, thresholds, promote, within, s.keys_placed, s.keys_waiting
    )
    draft = place_by_rank(view, placed, waiting, kernel, skew_ppm, sharing=sharing)
    draft.wake_at_us(wake)
    count = s.M.item(M_OVERRIDES)
    draft.wake_at_us(placed_crossing(s.O, count, st.J, view.now_us, quantum, thresholds, promote, len(within) > 0))
    return draft.plan()
