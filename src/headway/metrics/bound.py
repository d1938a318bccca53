"""A lower bound on the mean JCT of any schedule: what no policy, however clever, can fall below.

A job *i* is released at r, runs for p at best, on g GPUs, and so needs the GPU work w = g · p. The cluster has G GPUs.
Placement, gangs, GPU kinds, cpus, memory, rounds and the price of a preemption are left out: that only makes schedules
possible that were not, so the best of the relaxed problem is below the best of the real one. Three sums are each below Σ C,
the sum of completion times of every schedule:

- *alone*: Σ (r + p). No job ends earlier than it would on an empty cluster.
- *pooled*: Σ C of SRPT on one machine that does G GPU·s of work a second. Any schedule of the cluster is one of that machine
  too: at each instant the machine shares itself among the jobs as the GPUs are shared (never more than G), so each job ends at
  the same time. Among the preemptive schedules of one machine, sharing included, SRPT has the least Σ C (Schrage 1968).
- *mean busy*: Σ (m + p/2), where m is the mean time at which a job is worked on, averaged over its work, on that same
  machine. In a schedule of the cluster a job is worked on at g GPUs at most, so the work before its end takes at least p, and
  its mean is at most C − p/2: Σ C ≥ Σ (m + p/2). Σ m is the work of every instant weighted with 1/w, and is least when the
  machine always works on the released job with the smallest w (as in Goemans, Queyranne, Schulz, Skutella, Wang 2002).

Leaving jobs out is a relaxation as well. So jobs may be parted into those that are bounded alone and those that are pooled;
jobs without GPUs are always bounded alone. The largest of the three sums is the bound, and divided by the number of jobs,
minus their releases, it bounds the mean JCT. Jobs that end before their work is done are not covered.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

import numpy as np

from headway.core.arrays import Ints
from headway.core.columns import WHOLE
from headway.core.units import US_PER_S


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bounds on the mean JCT of some jobs, in seconds: the three of the module's text."""

    alone_s: float
    pooled_s: float
    mean_busy_s: float

    @property
    def avg_jct_s(self) -> float:
        """The best of them."""
        return max(self.alone_s, self.pooled_s, self.mean_busy_s)


def jct_bound(release_us: Ints, run_us: Ints, gpu_milli: Ints, gpus: int) -> Bound | None:
    """Return the bound for jobs released at `release_us` (in any order) that need at least `run_us` on `gpu_milli` thousandths
    of GPUs, on a cluster of `gpus`; None if there is no job, or no GPU for one that needs some.
    """
    count = len(release_us)
    on_gpus = (gpu_milli > 0) & (run_us > 0)
    if count == 0 or (gpus < 1 and on_gpus.any()):
        return None
    alone = sum(run_us.tolist())
    apart = sum(run_us[~on_gpus].tolist())
    order = np.argsort(release_us[on_gpus], kind="stable")
    release, run, milli = (column[on_gpus][order].tolist() for column in (release_us, run_us, gpu_milli))
    speed = max(gpus, 1) * WHOLE
    """The pooled machine's work a microsecond, in milli-GPU·µs."""
    work = [p * g for p, g in zip(run, milli, strict=True)]
    start = [r * speed for r in release]
    per_job = count * US_PER_S
    pooled = (_srpt(start, work) - sum(start)) / speed
    busy = _mean_busy(start, work) / speed + sum(run) / 2
    return Bound(alone / per_job, (apart + pooled) / per_job, (apart + busy) / per_job)


def _srpt(release: list[int], work: list[int]) -> int:
    """The sum of completion times under SRPT on one machine of speed one; releases ascend."""
    left: list[int] = []
    """Remaining work, a heap; the first is being worked on."""
    now = total = 0
    for i, at in enumerate([*release, None]):
        while left and (at is None or now + left[0] <= at):
            now += heappop(left)
            total += now
        if at is None:
            break
        if left:
            heapreplace(left, left[0] - (at - now))
        now = at
        heappush(left, work[i])
    return total


def _mean_busy(release: list[int], work: list[int]) -> float:
    """The sum of (mean busy time − release) when the released job with the smallest work is always worked on."""
    left: list[tuple[int, int]] = []
    """(work, job), a heap; the first is being worked on."""
    remaining = list(work)
    now = 0
    total = 0.0
    for i, at in enumerate([*release, None]):
        while left and (at is None or now < at):
            size, job = left[0]
            piece = remaining[job] if at is None else min(remaining[job], at - now)
            total += (now - release[job] + piece / 2) * (piece / size)
            now += piece
            remaining[job] -= piece
            if remaining[job] == 0:
                heappop(left)
        if at is None:
            break
        now = max(now, at)
        heappush(left, (work[i], i))
    return total
