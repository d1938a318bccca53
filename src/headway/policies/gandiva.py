"""Gandiva (Xiao et al., OSDI 2018): introspective scheduling. First come, first served with time slices, packing by trial and
error, growth on idle GPUs, and moves.

What the paper says: jobs go to machines with jobs of the same size (affinity), the least loaded first. When more is wanted than
there is, jobs take turns in slices (suspend–resume, about a minute, round robin). Jobs are packed on a GPU where profiling gives
hope of more throughput; the time of a mini-batch is watched, what turns out slower is undone. Elastic jobs grow into idle GPUs
of their machine and shrink when others come. Jobs are moved off busy GPUs, and together when room comes up. MLFS (§4.1) compares
with this and adds the rule of its move: off a GPU used above a threshold goes the job that uses it least, to the GPU used least.
What we read into it: who lost his place, or came, first is next. All slices end at the multiples of their length, so that a gang
of any size gets its turn; a job gives way only where another needs its GPUs, the one that has run longest first. A restart costs
what the job's restore costs, so the slice is a parameter. With `sharing=true` jobs that allow company book their share; a job is
packed beside others when no GPUs are empty, a trial until its company has told enough: `f·g` of the newcomer (its speed over that
alone, or over the one that its user announced; its GPUs) against what the jobs beside it have lost, `Δf·g` each. If they lost
more, the newcomer gives its place up, and the pair is not tried again. With `sharing=false` nobody is packed, and no GPU is in
company that a job could be moved off. Where a queue has a quota or a limit, the ranked pass of `docs/semantics.md` §4 keeps it:
turns and slices as here, without affinity, packing, growth and moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Bools, Ints, Table
from headway.core.columns import Phase
from headway.core.events import EventBatch
from headway.core.explain import Explanation, Term
from headway.core.plan import M_TASKS, Draft, Plan
from headway.core.scratch import widened
from headway.core.state import State
from headway.core.view import ClusterView
from headway.place.gang import Kernel
from headway.place.quotas import has_limits, has_quotas
from headway.policies import gandiva_memo, gandiva_room
from headway.policies.classic import US, place_by_rank
from headway.policies.explain import by_rows, row_of
from headway.policies.gandiva_pass import cool_gpus, gandiva, gather, grow, turn_keys
from headway.policies.params import param
from headway.policies.ranks import KEY_BITS, PRIORITY_TOP

TURN_UNIT_US, TURN_BITS = 10_000, 32
"""Turns in the ranked pass: 10 ms, up to 16 months."""
NO_PAIRS: Table = np.zeros((0, 2), np.int64)
NO_ROWS: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class GandivaParams:
    slice: float = param(14400.0, "seconds after which a job may have to give way to one that waits", low=1)
    affinity: bool = param(True, "machines with jobs of the same size first")
    sharing: bool = param(False, "pack jobs that allow it on GPUs, by trial and error")
    pack: float = param(0.9, "up to this part a GPU in company is filled", low=0.05, high=1)
    trial: float = param(120.0, "seconds for which a packing is watched before it is judged; 0: none is judged")
    migrate: float = param(0.9, "use of a shared GPU from which a job moves off it; 0: no moves", high=10)
    defrag: bool = param(True, "move a gang to fewer machines when nobody waits")
    grow: bool = param(True, "elastic jobs use idle GPUs of their machines, until others come")
    cool_down: float = param(300.0, "seconds for which a job that has just come up is neither moved nor resized")


@dataclass(frozen=True, slots=True)
class Gandiva:
    """First come, first served, in time slices; packing by trial and error, growth on idle GPUs, moves off busy ones."""

    params: GandivaParams
    name: str = "gandiva"
    numbers: Ints = field(init=False, compare=False)

    def __post_init__(self) -> None:
        p = self.params
        H = np.zeros(gandiva_room.NUMBERS, np.int64)
        H[gandiva_room.H_SLICE_US], H[gandiva_room.H_COOL_US] = round(p.slice * US), round(p.cool_down * US)
        H[gandiva_room.H_LIMIT], H[gandiva_room.H_HOT] = round(p.pack * c.WHOLE), round(p.migrate * c.WHOLE)
        H[gandiva_room.H_SHARING], H[gandiva_room.H_AFFINITY] = p.sharing, p.affinity
        H[gandiva_room.H_DEFRAG], H[gandiva_room.H_GROW] = p.defrag, p.grow
        object.__setattr__(self, "numbers", H)

    def start(self) -> Any:
        return gandiva_memo.start()

    def fold(self, memo: Any, events: EventBatch) -> Any:
        """Follow elastic shapes, and with sharing who is beside whom and how fast."""
        trial_us = round(self.params.trial * US) if self.params.sharing and self.params.trial else 0
        return gandiva_memo.fold(memo, events, trial_us)

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        st = view.state
        if has_quotas(st.Q) or has_limits(st.Q):
            return self._ranked(view)
        draft, p, H = view.draft(), self.params, self.numbers
        s, rows = draft.scratch, int(st.C[c.C_ROWS])
        asked: Ints = np.zeros(rows, np.int64)
        for number, data in memo["asked"].items() if memo and p.grow else ():
            row = st.row(number)
            if row is not None:
                asked[row] = data
        undone = rows_of(st, memo["worse"]) if memo else NO_ROWS
        idle = view.waiting == 0
        moves = bool(st.C[c.C_RUNNING]) and (asked.any() or (p.sharing and p.migrate > 0) or (idle and p.defrag))
        if idle and not len(undone) and not moves:
            return draft.plan()
        pairs = pairs_of(st, memo["bad"]) if memo and memo["bad"] else NO_PAIRS
        label, ban = np.zeros(len(st.N[0]) + 1, np.int64), np.zeros(len(s.GB), np.int64)
        waiting, placed = turn_keys(view.now_us, H, st.J, st.T, st.N, st.C, s.keys_waiting, s.keys_placed)
        s.keys_waiting[:waiting].sort()
        s.keys_placed[:placed].sort()
        gandiva(
            view.now_us, H, undone, pairs, asked, s.keys_waiting, waiting, s.keys_placed, placed,
            st.J, st.T, st.N, st.G, st.Q, st.C, s.planned, s.A, s.GB, label, ban, s.mark, s.victims, s.out, s.O, s.OT, s.M,
        )  # fmt: skip
        if moves:
            self._move(view, draft, asked, label, idle=idle)
        if s.M[M_TASKS] and (asked.any() or p.defrag):  # who comes up now may be moved or grow later
            draft.wake_at_us(view.now_us)
        return draft.plan()

    def _move(self, view: ClusterView, draft: Draft, asked: Ints, label: Ints, *, idle: bool) -> None:
        """Moves off hot GPUs; and when nobody waits, gangs together and elastic jobs larger."""
        st, s, H, p = view.state, draft.scratch, self.numbers, self.params
        if p.sharing and p.migrate:
            cool_gpus(view.now_us, H, st.J, st.T, st.N, st.G, st.C, s.A, s.GB, s.mark, s.owner, s.O, s.OT, s.M)
        if not idle:
            return
        if p.defrag:
            gather(view.now_us, H, st.J, st.T, st.N, st.G, st.C, s.A, s.GB, label, s.mark, s.out, s.O, s.OT, s.M)
        if asked.any():
            J = st.J[:, : len(asked)]
            more = ((J[c.J_DATA_MAX] - J[c.J_DATA]) * J[c.J_PIPELINE] * J[c.J_TENSOR])[asked > 0]
            need = int(st.C[c.C_TASKS]) + int(np.minimum(more, st.C[c.C_GPUS]).clip(0).sum()) + 16
            if need > len(s.OT):
                s.OT = widened(s.OT, need)
            grow(view.now_us, H, asked, st.J, st.T, st.N, st.C, s.A, s.GB, s.mark, s.O, s.OT, s.M)

    def _ranked(self, view: ClusterView) -> Plan:
        """Turns and slices where queues have quotas or limits: jobs in their slice, who waits, jobs whose slice is over."""
        if view.waiting == 0:
            return view.draft().plan()
        length, s = int(self.numbers[gandiva_room.H_SLICE_US]), view.state.scratch
        placed, waiting = self._ranked_keys(view)
        s.keys_placed[: len(placed)], s.keys_waiting[: len(waiting)] = placed, waiting
        draft = place_by_rank(view, len(placed), len(waiting), int(Kernel.CONSOLIDATED))
        draft.wake_at_us((view.now_us // length + 1) * length)
        return draft.plan()

    def _ranked_keys(self, view: ClusterView) -> tuple[Ints, Ints]:
        """Keys of placed and of waiting jobs in the ranked pass."""
        J, length, now = view.state.J, int(self.numbers[gandiva_room.H_SLICE_US]), view.now_us
        placed, waiting = view.placed_rows(), view.waiting_rows()
        started, last = J[c.J_STARTED_AT, placed], (1 << TURN_BITS) - 1
        over = slice_over(J, placed, now, length)
        turn = np.where(over, (2 << TURN_BITS) | (last - np.minimum(started // TURN_UNIT_US, last)), 0)
        keys = ranked_keys(J, placed, turn)
        turn = (1 << TURN_BITS) | np.minimum(J[c.J_QUEUED_AT, waiting] // TURN_UNIT_US, last)
        return keys, ranked_keys(J, waiting, turn)

    def order(self, view: ClusterView) -> Ints:
        """The rows of placed and waiting jobs in the order of a round: in each class those in their slice, those that wait by
        turn, and those whose slice is over, the first to give way last."""
        st, H = view.state, self.numbers
        J = st.J
        if has_quotas(st.Q) or has_limits(st.Q):
            return np.sort(np.concatenate(self._ranked_keys(view))) & c.ROW_MASK
        keys = np.zeros((2, J.shape[1]), np.int64)
        waiting, leaving = turn_keys(view.now_us, H, J, st.T, st.N, st.C, keys[0], keys[1])
        rows = np.concatenate((view.placed_rows(), np.sort(keys[0, :waiting]) & c.ROW_MASK))
        turn = np.where(J[c.J_PLACED, rows] == 1, 0, 1)
        last = np.sort(keys[1, :leaving])[::-1] & c.ROW_MASK
        last = last[slice_over(J, last, view.now_us, int(H[gandiva_room.H_SLICE_US]))]
        kept = ~np.isin(rows, last)
        rows, turn = np.concatenate((rows[kept], last)), np.concatenate((turn[kept], np.full(len(last), 2)))
        order: Ints = rows[np.lexsort((turn, -J[c.J_PRIORITY, rows]))]
        return order

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        J, row, now, p = view.state.J, row_of(view, job), view.now_us, self.params
        length, placed = int(self.numbers[gandiva_room.H_SLICE_US]), J[c.J_PLACED, row] == 1
        started = int(J[c.J_STARTED_AT, row])
        terms = [Term("slice", p.slice, "s", "length; all slices end at its multiples")]
        if not placed:
            terms.append(Term("queued at", J[c.J_QUEUED_AT, row] / US, "s", "when it came or lost its place: the first is next"))
        elif started >= 0:
            ends = (started // length + 1) * length / US
            terms += [
                Term("running for", (now - started) / US, "s", "of those past their slice the longest gives way first"),
                Term("slice's end", ends, "s", "from that time on it may have to give way to a job that waits"),
            ]
        known = memo["jobs"].get(job) if memo else None
        if known is not None and p.sharing:
            terms += packing_terms(memo, job, known)
        words = "by turns: jobs in their slice keep their places, then who waits, then who is past his slice"
        return by_rows(view, self.order(view), job, terms, words, stops=True)


def ranked_keys(J: Table, rows: Ints, key: Ints) -> Ints:
    """Sortable keys of rows: priority, then `key` (below 2^34), then the row."""
    keys: Ints = ((PRIORITY_TOP - J[c.J_PRIORITY, rows]) << (c.ROW_BITS + KEY_BITS)) | (key << c.ROW_BITS) | rows
    return keys


def slice_over(J: Table, rows: Ints, now: int, length: int) -> Bools:
    """Which placed jobs run past a slice: a multiple of its length (µs) lies after their start and not after now."""
    started = J[c.J_STARTED_AT, rows]
    over: Bools = (J[c.J_PHASE, rows] == Phase.RUNNING) & (started >= 0) & (now // length > started // length)
    return over


def packing_terms(memo: Any, job: int, known: list[Any]) -> list[Term]:
    """What the policy remembers of a job's speed and company (`known`: its list in the memo)."""
    beside = {other for gpu in known[gandiva_memo.T_PLACE] for other in memo["on"].get(gpu, ()) if other != job}
    alone, here = (known[index] * US or None for index in (gandiva_memo.T_ALONE, gandiva_memo.T_NOW))
    watched = float(job in memo["trials"])
    return [
        Term("speed alone", alone, "units/s", "without company; announced until it is measured"),
        Term("speed here", here, "units/s", "since its company last changed, once that is measured"),
        Term("company", float(len(beside)) if known[gandiva_memo.T_RUNS] else None, "jobs", "that run on its GPUs too"),
        Term("trial", watched, "", "1 while its packing is watched; it is undone if the others lose more than it brings"),
        Term("not beside", float(len(memo["bad"].get(job, ()))), "jobs", "beside which it was slower, and is not tried again"),
    ]


def rows_of(state: State, jobs: list[int]) -> Ints:
    """The rows of those of the jobs that are live."""
    return np.array([row for job in jobs if (row := state.row(job)) is not None], np.int64)


def pairs_of(state: State, bad: dict[int, list[int]]) -> Table:
    """Pairs of live rows that are not to be packed together, each both ways."""
    found = []
    for job, others in bad.items():
        row = state.row(job)
        for other in others if row is not None else ():
            beside = state.row(other)
            if beside is not None:
                found += [(row, beside), (beside, row)]
    return np.array(sorted(found), np.int64).reshape(-1, 2)
