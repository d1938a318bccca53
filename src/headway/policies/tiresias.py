"""Tiresias (Gu et al., NSDI 2019): discretised two-dimensional least attained service, and its Gittins variant.

What the paper says: jobs are ranked by attained service = GPUs × time, in a few queues, so that jobs of about the same service do not preempt each other; within a
queue first come, first served; a starving job is promoted to the first queue. With a known distribution of services, the Gittins index ranks instead.
Jobs whose model is skewed (one large tensor) need consolidated placement; others take what there is.
What we read into it: promotion by the wait since the last stop (the paper's knob times the run time); a promoted job's service counts from that start. The
Gittins index is taken over the services of the jobs that completed, in bins a factor of 2^(1/4) wide, for jobs within one queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.columns import EventKind, Phase
from headway.core.events import EventBatch
from headway.core.plan import Plan
from headway.core.view import ClusterView
from headway.place.gang import Kernel
from headway.policies.classic import KEY_BITS, US, place_by_rank, ranked, wake_at_crossing
from headway.policies.params import Common, param

BINS = 160
BINS_PER_OCTAVE = 4
INDEX_BITS = 20
HISTORY_MIN = 20
"""Completed jobs before the Gittins index is trusted; until then arrival order ranks."""


@dataclass(frozen=True, slots=True)
class TiresiasParams(Common):
    queues: int = param(2, "number of service queues", low=1, high=16)
    threshold: float = param(3600.0, "GPU-seconds at which a job leaves the first queue", low=1e-3)
    factor: float = param(10.0, "each further threshold is so many times the last", low=1.0, high=1e6)
    promote: float = param(8.0, "a job that has waited so many times its run time starts again in the first queue; 0: never")
    skew: float = param(1.0, "largest partition share from which a job needs the fewest nodes possible; 1: off", high=1.0)
    variant: str = param("las", "order within a queue", choices=("las", "gittins"))


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Discretised 2D-LAS with promotion and the consolidation rule; with `variant=gittins` the Gittins index within a queue."""

    params: TiresiasParams
    name: str = "tiresias"
    thresholds_us: Ints = field(init=False, compare=False)

    def __post_init__(self) -> None:
        p = self.params
        values = [round(p.threshold * p.factor**i * US) for i in range(p.queues - 1)]
        object.__setattr__(self, "thresholds_us", np.array([min(v, c.NEVER - 1) for v in values], np.int64))

    # -- memo: what the completed jobs have needed (Gittins only) ---------------------------------------------------
    def start(self) -> Any:
        return None if self.params.variant == "las" else {"service": {}, "bins": np.zeros(BINS, np.int64)}

    def fold(self, memo: Any, events: EventBatch) -> Any:
        """Count the service bins of completed jobs. Service is followed from the events themselves: (since, milli, GPU·µs) of every live job."""
        if memo is None:
            return None
        service: dict[int, tuple[int, int, int]] = dict(memo["service"])
        bins = memo["bins"].copy()
        at = 0
        for record in events.records.tolist():
            t, kind, job, _, _, _, _, size = record
            since, milli, got = service.get(job, (-1, 0, 0))
            if kind == EventKind.START_REQUESTED:
                places = events.pool[at : at + size].reshape(-1, c.PLACE).tolist()
                service[job] = (-1, sum(bin(mask & (2**64 - 1)).count("1") * book for _, mask, book in places), got)
            elif kind == EventKind.STARTED and job in service:
                service[job] = (t, milli, got)
            elif kind in (EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED) and job in service:
                got += (t - since) * milli // 1000 if since >= 0 else 0
                service[job] = (-1, milli, got)
                if kind == EventKind.COMPLETED:
                    bins[service_bin(got)] += 1
                    del service[job]
            at += size
        return {"service": service, "bins": bins}

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        rows = view.ranked_rows()
        attained = view.attained_us(rows)
        effective, promotion = self._effective(view, rows, attained)
        queue = np.searchsorted(self.thresholds_us, effective, side="right") if len(self.thresholds_us) else np.zeros(len(rows), np.int64)
        keys = queue.astype(np.int64)
        if memo is not None:
            keys = keys << INDEX_BITS | gittins_rank(memo["bins"], attained)
        limits = np.append(self.thresholds_us, c.NEVER)[queue]
        skew = round(self.params.skew * 1_000_000) if self.params.skew < 1 else c.NEVER
        draft = place_by_rank(view, ranked(view, rows, keys), int(Kernel.CONSOLIDATED), skew)
        wake_at_crossing(draft, view, rows, effective, limits)
        draft.wake_at_us(promotion)
        return draft.plan()

    def _effective(self, view: ClusterView, rows: Ints, attained: Ints) -> tuple[Ints, int]:
        """Attained service that counts for the queue (GPU·µs), and the next instant of a promotion (µs)."""
        promote = self.params.promote
        if promote == 0:
            return attained, c.NEVER
        J: Table = view.state.J
        now = view.now_us
        waits = (J[c.J_PHASE, rows] == Phase.QUEUED) & (J[c.J_PLACED, rows] == 0)
        ran = np.where(waits, J[c.J_RUN, rows], J[c.J_RUN_AT_START, rows])
        limit = promotion_limits(ran, promote)
        wait = np.where(waits, now - J[c.J_QUEUED_AT, rows], J[c.J_LAST_WAIT, rows])
        promoted = (ran > 0) & (wait >= limit)
        effective = np.where(promoted, np.where(J[c.J_STARTED_AT, rows] >= 0, attained - J[c.J_ATTAINED_AT_START, rows], 0), attained)
        above = waits & ~promoted & (ran > 0) & (attained >= self.thresholds_us[0]) if len(self.thresholds_us) else waits & False
        due = J[c.J_QUEUED_AT, rows[above]] + limit[above]
        return effective, int(due.min()) if len(due) else c.NEVER


def promotion_limits(ran_us: Ints, promote: float) -> Ints:
    """How long a job must have waited to be promoted: `promote` × its run time, rounded up (µs), in exact integers for knobs of up to three decimals."""
    thousandths = round(promote * 1000)
    return np.where(ran_us > c.NEVER // max(thousandths, 1), c.NEVER, -(-ran_us * thousandths // 1000))


def service_bin(gpu_us: int) -> int:
    """The bin of a service: four to each doubling, from 1 GPU·s."""
    seconds = max(gpu_us // US, 1)
    octave = seconds.bit_length() - 1
    quarter = (seconds - (1 << octave)) * BINS_PER_OCTAVE >> octave
    return min(octave * BINS_PER_OCTAVE + quarter, BINS - 1)


def bin_start_s(index: int) -> float:
    """The service at which a bin begins, s."""
    octave, quarter = divmod(index, BINS_PER_OCTAVE)
    return float((1 << octave) * (1 + quarter / BINS_PER_OCTAVE))


def gittins_index(bins: Ints) -> Floats:
    """The Gittins index of a job that has attained bin i, for each i: sup over Δ of P(done within Δ) / E[min(left, Δ)] (Gu et al., §3.1.2).

    `bins` counts completed services; a job's service is taken to lie at its bin's start. 0 where no completed job has got so far.
    """
    values = np.array([bin_start_s(i) for i in range(BINS + 1)])
    index = np.zeros(BINS)
    for i in range(BINS):
        beyond = bins[i:]
        total = beyond.sum()
        if total == 0:
            continue
        done = np.cumsum(beyond)
        left = values[i + 1 : BINS + 1] - values[i]
        spent = np.cumsum(beyond * left) + (total - done) * left
        index[i] = (done / spent).max()
    return index


def gittins_rank(bins: Ints, attained_us: Ints) -> Ints:
    """Rank keys within a queue, lower first: the place of a job's bin in the order of the indices."""
    if bins.sum() < HISTORY_MIN:
        return np.zeros(len(attained_us), np.int64)
    index = gittins_index(bins)
    place = np.zeros(BINS, np.int64)
    place[np.argsort(-index, kind="stable")] = np.arange(BINS)
    return place[np.array([service_bin(int(a)) for a in attained_us], np.int64)]


assert BINS < 1 << INDEX_BITS < 1 << KEY_BITS
