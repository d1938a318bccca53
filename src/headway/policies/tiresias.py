"""Tiresias (Gu et al., NSDI 2019): discretised two-dimensional least attained service, and its Gittins variant.

What the paper says: jobs are ranked by attained service = GPUs × time, in a few queues, so that jobs of about the same service
do not preempt each other; within a
queue first come, first served; a starving job is promoted to the first queue. With a known distribution of services, the
Gittins index ranks instead.
Jobs whose model is skewed (one large tensor) need consolidated placement; others take what there is.
What we read into it: promotion by the wait since the last stop (the paper's knob times the run time); a promoted job's service
counts from that start. The Gittins index is taken over the services of the jobs that completed, in bins a factor of 2^(1/4) wide,
for jobs within one queue. In the Gittins variant a job that has never run is promoted too, when it has waited the knob times the
time that takes it out of the first queue, and the promoted go before the others of the first queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import EventKind
from headway.core.events import EventBatch
from headway.core.explain import Explanation, Term
from headway.core.plan import Plan
from headway.core.view import ClusterView
from headway.place.gang import Kernel
from headway.policies.classic import NO_ORDER, US, serve_least, service_order
from headway.policies.explain import SERVICE, by_keys, own_key, row_of, seconds
from headway.policies.params import Common, param
from headway.policies.ranks import BINS, attained_us, effective, limit_of, overdue, service_bin

BINS_PER_OCTAVE = 4
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

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        p = self.params
        within = NO_ORDER if memo is None else memo["order"]
        skew = round(p.skew * 1_000_000) if p.skew < 1 else c.NEVER
        promote, kernel = round(p.promote * 1000), int(Kernel.CONSOLIDATED)
        return serve_least(view, 0, self.thresholds_us, promote, within, kernel, skew, sharing=p.sharing)

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        J, row, now, limits, promote = view.state.J, row_of(view, job), view.now_us, self.thresholds_us, self.params.promote
        within, knob = NO_ORDER if memo is None else memo["order"], round(promote * 1000)
        keys = service_order(view, 0, limits, knob, within)
        attained = attained_us(J, row, now)
        service, promotion = effective(J, row, now, knob)
        queue, limit = limit_of(service, 0, limits)
        terms = [
            Term("attained", attained / US, SERVICE, "GPUs × run time so far"),
            Term("counted", service / US, SERVICE, "what counts of it: a promoted job starts again at 0"),
            Term("queue", float(queue), "", f"of {self.params.queues}, from 0: by the thresholds; the first goes first"),
            Term("queue's end", seconds(limit), SERVICE, "the service at which it goes to the next queue"),
            Term("promotion", seconds(promotion), "s", f"when it will have waited {promote:g} × its run time: back to queue 0"),
        ]
        words = "the first queue by attained service, and in it who came first"
        if memo is not None:
            first = int(limits[0]) if len(limits) else c.NEVER
            step, due = own_key(keys, row), overdue(J, row, now, knob, first)[0]
            index = float(gittins_index(memo["bins"])[service_bin(attained)]) if len(within) else None
            place = None if step is None or not len(within) else float(step % (len(within) + 1))
            terms.append(Term("gittins index", index, "1/s", f"by {int(memo['bins'].sum())} completed jobs: highest first"))
            terms.append(Term("place in queue", place, "", "by falling index; 0: promoted" + (", as it is" if due else "")))
            words = "the first queue by attained service, and in it the highest Gittins index"
        return by_keys(view, keys, job, terms, words, stops=True)


class TiresiasGittins(Tiresias):
    """The Gittins variant: a memo of what the completed jobs have needed ranks the jobs of a queue."""

    __slots__ = ()

    def start(self) -> Any:
        return {"service": {}, "bins": np.zeros(BINS, np.int64), "order": NO_ORDER}

    def fold(self, memo: Any, events: EventBatch) -> Any:
        """Count the service bins of completed jobs. Service is followed from the events themselves: (since, milli, GPU·µs) of
        every live job."""
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
        known = np.array_equal(bins, memo["bins"])
        return {"service": service, "bins": bins, "order": memo["order"] if known else gittins_order(bins)}


def bin_start_s(index: int) -> float:
    """The service at which a bin begins, s."""
    octave, quarter = divmod(index, BINS_PER_OCTAVE)
    return float((1 << octave) * (1 + quarter / BINS_PER_OCTAVE))


def gittins_index(bins: Ints) -> Floats:
    """The Gittins index of a job that has attained bin i, for each i: sup over Δ of P(done within Δ) / E[min(left, Δ)] (Gu et
    al., §3.1.2).

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


def gittins_order(bins: Ints) -> Ints:
    """For each service bin its place within a queue, lower first: by falling index. Empty until enough jobs have completed."""
    if bins.sum() < HISTORY_MIN:
        return NO_ORDER
    place = np.zeros(BINS, np.int64)
    place[np.argsort(-gittins_index(bins), kind="stable")] = np.arange(BINS)
    return place
