"""The figures of a run, as people compare them. A figure that has no meaning for a run is None; none is ever NaN.

- JCT: completion − submission of the jobs that completed. A percentile p is by nearest rank: of n values in order, the one
  at ⌈p/100 · n⌉.
- Makespan: last completion − first submission.
- Waiting: the periods between submission and completion in which a job was not up: before its first start, and from each stop
  to the next start. Restoring and saving are not waiting.
- `gpu_booked_frac`: GPU time held by jobs, from each start request to the end of that attempt, over GPUs × makespan.
  `gpu_busy_frac`: only from `started` to the stop request or the end (restoring is busy: the journal doesn't tell it apart).
- `gpu_hours_booked`: that GPU time itself. `gpu_overhead_frac`: the share of it in which jobs that were up restored (from the
  second attempt on, as long as their specification says) or saved (from the stop request to the end of the attempt).
- Bounded slowdown = max(1, JCT / max(run time, 10 s)), on average over the jobs that completed (Feitelson, JSSPP 2001).
- `deadline_ratio`: of the jobs with a deadline, those completed by then; rejected, failed and unfinished ones missed it.
  `urgent_deadline_ratio`: the same of the urgent ones, whose urgency is above 8 (MLFS §4.2.2).
- Accuracy (MLFS §4.2, A25): true, as the engine tells it when a job ends. `avg_accuracy`: the mean by the deadline (at the
  end, if that comes first) of the jobs that ended with one; `avg_final_accuracy`: at the end. `accuracy_ratio`: of all jobs
  that require one, those that had it by the deadline; rejected and unfinished ones had not.
- `cross_node_bytes`: what tasks sent to tasks on other nodes; None if no engine counted.
- Finish-time fairness ρ (as Themis, NSDI '20) = JCT / isolated JCT, for the jobs that completed and ran. Isolated is the job
  alone on its 1/n share of the cluster's G GPUs: run time × max(1, n · its GPUs / G), with n the mean number of live jobs
  during its life, and the run time without restoring and saving, which a job alone would not do. Above 1 the job would have
  done better alone.
  `fairness_jain` is Jain's index of the ρ of all jobs, (Σρ)² / (n · Σρ²): 1 if all fared alike, 1/n if one had it all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from headway.core.arrays import Ints
from headway.core.columns import NEVER, WHOLE, Phase
from headway.core.units import US_PER_S

URGENT_ABOVE = 8
PPM = 1_000_000
SHORTEST_RUN_US = 10 * US_PER_S
"""Bounded slowdown takes a shorter run for one of ten seconds."""
GPU_US_PER_GPU_HOUR = 3600 * US_PER_S


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run."""

    jobs: int
    finished: int
    failed: int
    cancelled: int
    rejected: int
    unfinished: int
    avg_jct_s: float | None
    p50_jct_s: float | None
    p90_jct_s: float | None
    p99_jct_s: float | None
    makespan_s: float | None
    avg_wait_s: float | None
    p50_wait_s: float | None
    p99_wait_s: float | None
    max_wait_s: float | None
    avg_bounded_slowdown: float | None
    queue_length_avg: float | None
    queue_length_max: int
    gpu_booked_frac: float | None
    gpu_busy_frac: float | None
    gpu_hours_booked: float
    gpu_overhead_frac: float | None
    deadline_ratio: float | None
    urgent_jobs: int
    urgent_deadline_ratio: float | None
    avg_accuracy: float | None
    avg_final_accuracy: float | None
    accuracy_ratio: float | None
    finish_time_fairness: float | None
    finish_time_fairness_max: float | None
    unfair_job_frac: float | None
    fairness_jain: float | None
    cross_node_bytes: int | None
    preemptions: int
    migrations: int
    attempts: int

    def to_json(self) -> dict[str, int | float | None]:
        """The figures by name."""
        return asdict(self)


def nearest_rank(ordered: Ints, percent: int) -> int:
    """The percentile of values in order: the smallest that at least `percent` % of them do not exceed."""
    return int(ordered[max(-(-len(ordered) * percent // 100), 1) - 1])


def mean_s(values_us: Ints) -> float | None:
    """The mean in seconds, from an exact sum; None of nothing."""
    return sum(values_us.tolist()) / len(values_us) / US_PER_S if len(values_us) else None


def percentile_s(ordered_us: Ints, percent: int) -> float | None:
    """A percentile of times in order, in seconds; None of nothing."""
    return nearest_rank(ordered_us, percent) / US_PER_S if len(ordered_us) else None


def summarise(jobs: Mapping[str, Ints], gpus: int, *, queue_length_max: int, queued_ms: int) -> Summary:
    """Return the figures of jobs given as the columns of `metrics.fold`; `queued_ms` is the integral of the queue's length."""
    phase = jobs["phase"]
    done = phase == Phase.COMPLETED
    counts = {p: int(np.count_nonzero(phase == p)) for p in Phase}
    submitted, end = jobs["submitted"], jobs["end"]
    jct = np.sort(end[done] - submitted[done])
    finished = len(jct)
    makespan = int(end[done].max() - submitted.min()) if finished else 0
    capacity = makespan * gpus
    held = sum(jobs["held_gpu_us"].tolist())
    waited = np.sort(jobs["waited"][done])
    due, urgent = jobs["deadline"] < NEVER, jobs["urgency"] > URGENT_ABOVE
    judged, wants = jobs["accuracy"] >= 0, jobs["required"] > 0
    if not judged.any():
        wants = judged
    in_time = done & (end <= jobs["deadline"])
    fairness = _fairness({name: column[done] for name, column in jobs.items()}, gpus) if gpus else []
    return Summary(
        jobs=len(phase),
        finished=finished,
        failed=counts[Phase.FAILED],
        cancelled=counts[Phase.CANCELLED],
        rejected=counts[Phase.REJECTED],
        unfinished=sum(counts[p] for p in Phase if p <= Phase.STOPPING),
        avg_jct_s=mean_s(jct),
        p50_jct_s=percentile_s(jct, 50),
        p90_jct_s=percentile_s(jct, 90),
        p99_jct_s=percentile_s(jct, 99),
        makespan_s=makespan / US_PER_S if finished else None,
        avg_wait_s=mean_s(waited),
        p50_wait_s=percentile_s(waited, 50),
        p99_wait_s=percentile_s(waited, 99),
        max_wait_s=percentile_s(waited, 100),
        avg_bounded_slowdown=_bounded_slowdown(end[done] - submitted[done], jobs["run"][done]),
        queue_length_avg=queued_ms * 1000 / makespan if makespan else None,
        queue_length_max=queue_length_max,
        gpu_booked_frac=held / capacity if capacity else None,
        gpu_busy_frac=sum(jobs["busy_gpu_us"].tolist()) / capacity if capacity else None,
        gpu_hours_booked=held / GPU_US_PER_GPU_HOUR,
        gpu_overhead_frac=sum(jobs["overhead_gpu_us"].tolist()) / held if held else None,
        deadline_ratio=float(np.mean(in_time[due])) if due.any() else None,
        urgent_jobs=int(np.count_nonzero(urgent)),
        urgent_deadline_ratio=float(np.mean(in_time[due & urgent])) if (due & urgent).any() else None,
        avg_accuracy=float(np.mean(jobs["accuracy_due"][judged])) / PPM if judged.any() else None,
        avg_final_accuracy=float(np.mean(jobs["accuracy"][judged])) / PPM if judged.any() else None,
        accuracy_ratio=float(np.mean((judged & (jobs["accuracy_due"] >= jobs["required"]))[wants])) if wants.any() else None,
        finish_time_fairness=math.fsum(fairness) / len(fairness) if fairness else None,
        finish_time_fairness_max=max(fairness, default=None),
        unfair_job_frac=sum(rho > 1 for rho in fairness) / len(fairness) if fairness else None,
        fairness_jain=jain(fairness),
        cross_node_bytes=sum(jobs["moved_bytes"].tolist()) if jobs["told"].any() else None,
        preemptions=int(jobs["preemptions"].sum()),
        migrations=int(jobs["migrations"].sum()),
        attempts=int(jobs["attempt"].sum()),
    )


def jain(values: Sequence[float]) -> float | None:
    """Jain's fairness index of values that are not negative; None of nothing, or of zeros."""
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else None


def _bounded_slowdown(jct_us: Ints, run_us: Ints) -> float | None:
    if not len(jct_us):
        return None
    return math.fsum(np.maximum(jct_us / np.maximum(run_us, SHORTEST_RUN_US), 1.0).tolist()) / len(jct_us)


def _fairness(done: Mapping[str, Ints], gpus: int) -> list[float]:
    """ρ of each completed job that ran. Live jobs are counted in job·ms; a job of less than a millisecond was as good as
    alone.
    """
    alone = done["run"] - done["overhead"]
    ran = alone > 0
    jct, run = (done["end"] - done["submitted"])[ran], alone[ran]
    life_ms = done["end"][ran] // 1000 - done["submitted"][ran] // 1000
    live_ms = (done["live_at_end"] - done["live_at_submission"])[ran]
    live = np.maximum(live_ms / np.maximum(life_ms, 1), 1.0)
    slowdown = np.maximum(live * done["gpu_milli"][ran] / (gpus * WHOLE), 1.0)
    rho: list[float] = (jct / (run * slowdown)).tolist()
    return rho
