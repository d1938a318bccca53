"""From what happened to what would have happened anyway: the work, times and curves of jobs, whoever had scheduled them.

All times are µs, of an attempt's own clock:

* *start*: from the start request until the gang is up. *Warm-up*: from then until it makes progress, found by going back from
  the first report at the job's own pace. *Restore*: by how much longer that takes from the second attempt on.
* *Pace*: the time of all spans between an attempt's first and last report, over the units made in them.
* *Work*: what the run took without these, and without work that was done twice. A job that completed in one attempt worked for
  its run time less the warm-up. With reports, it is units × pace, and what came after the last report. Without reports, each
  attempt counts as far as it was kept: up to the stop request for a job that saves, up to its last periodic save if it died.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headway.app.replay_facts import Attempt, Facts, Job
from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import Estimator, EventKind, Name, Phase, Reason
from headway.perf.estimators import JobHistory, answer
from headway.perf.forecast import value_at
from headway.sim.recorded import Points, Truth
from headway.workloads.schema import Workload

BEYOND_POINTS = 16
"""So many points stand for a curve beyond what was told of it."""
NEARLY = 0.95
"""A job that completed with so much of its announced units told has done them all."""
AS_TOLD, BY_TOTAL, BY_ESTIMATE, BY_LIKE, NEVER_ENDS, AS_STOPPED = (
    "", "total", "estimate", "like", "until-cancelled", "as-stopped",
)  # fmt: skip
ASSUMED = {
    BY_TOTAL: "had not ended: they are taken to end at their announced total, at the pace that they had",
    BY_ESTIMATE: "had not ended: they are taken to need the time that was announced",
    BY_LIKE: "had not ended, and announced nothing: they are taken to need the median time of the jobs that completed",
    NEVER_ENDS: "were cancelled: they are cancelled at the same time again, and do not end before that",
    AS_STOPPED: "were ended before they said how long they are: they are taken to end after the same work",
}


@dataclass(frozen=True, slots=True)
class Timing:
    """What is known of one job's times; None: it was not measured. `pace_us`: µs a unit."""

    start_us: int | None = None
    warm_us: int | None = None
    restore_us: int | None = None
    save_us: int | None = None
    pace_us: float | None = None
    worked_us: int = 0
    """Effective work until its end (or that of the journal)."""
    units: int = 0
    """Units that it told of at last."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The whole work of a job, and what was assumed for it (a key of ASSUMED; empty: nothing)."""

    work_us: int
    units: int
    assumed: str


# -- one job --------------------------------------------------------------------------------------------------------
def measure(job: Job, horizon_us: int) -> Timing:
    """The times of a job, as far as its attempts tell."""
    ran = job.ran
    pace = pace_of(ran)
    starts = [one.started_us - one.requested_us for one in ran]
    saves = [one.ended_us - one.stop_us for one in ran if one.stop_us >= 0 and one.ended_us >= 0 and one.end == EventKind.STOPPED]
    warms = _warm_ups(job, pace) if pace is not None else {}
    first = warms.get(0)
    later = [warm for i, warm in warms.items() if i > 0]
    warm = first if first is not None else _median(later)
    restore = max((_median(later) or 0) - (warm or 0), 0) if later else None
    told = job.reports
    base = Timing(_median(starts), warm, restore, _median(saves), pace, 0, max((r[1] for r in told), default=0))
    return replace(base, worked_us=_worked(job, base, horizon_us))


def pace_of(attempts: Iterable[Attempt]) -> float | None:
    """µs a unit over all spans of reports; None if no attempt told of two different units."""
    time, units = 0, 0
    for attempt in attempts:
        reports = [r for r in attempt.reports if attempt.stop_us < 0 or r[0] <= attempt.stop_us]
        if len(reports) >= 2 and reports[-1][1] > reports[0][1]:
            time += reports[-1][0] - reports[0][0]
            units += reports[-1][1] - reports[0][1]
    return time / units if units and time else None


def _warm_ups(job: Job, pace: float) -> dict[int, int]:
    """By the index of an attempt: from when it was up until it made progress, where it is known from where it went on."""
    found = {}
    base: int | None = 0
    for i, attempt in enumerate(job.ran):
        if attempt.reports and base is not None:
            t, units = attempt.reports[0][:2]
            found[i] = max(round(t - attempt.started_us - (units - base) * pace), 0)
        base = 0 if job.loses else attempt.saved_units if attempt.saved_units >= 0 else None
    return found


def _worked(job: Job, timing: Timing, horizon_us: int) -> int:
    ran, warm = job.ran, timing.warm_us or 0
    if not ran:
        return 0
    last = ran[-1]
    until = last.up_to_us(horizon_us)
    if len(ran) > 1 and timing.pace_us is not None and last.reports:
        return round(timing.units * timing.pace_us) + max(until - last.reports[-1][0], 0)
    restore = timing.restore_us if timing.restore_us is not None else job.spec(c.J_RESTORE)
    every, kept = job.spec(c.J_EVERY), 0
    for i, attempt in enumerate(ran):
        mine = max(attempt.up_to_us(horizon_us) - attempt.started_us - warm - (restore if i else 0), 0)
        if attempt is last:
            return kept + mine
        if job.loses:
            kept = 0
        elif attempt.stop_us >= 0 and attempt.reason != Reason.NODE_LOST:
            kept += mine
        elif every:
            kept = max((kept + mine) // every * every, kept)
    return kept


def needs(job: Job, timing: Timing, like_us: int | None) -> Needs:
    """The whole work of a job. `like_us`: the median of jobs like it that completed."""
    worked, units, total = timing.worked_us, timing.units, job.spec(c.J_UNITS_TOTAL)
    early = job.phase == Phase.COMPLETED and job.why == Reason.EARLY_STOP
    if job.phase == Phase.COMPLETED and not early and job.ran:
        return Needs(max(worked, 1), total if units and total and NEARLY * total <= units <= total else units, AS_TOLD)
    if job.phase == Phase.FAILED:
        return Needs(max(worked, 1), units, AS_TOLD)
    estimate = job.spec(c.J_ESTIMATE)
    if timing.pace_us is not None and total > units:
        return Needs(max(worked + round((total - units) * timing.pace_us), 1), total, BY_TOTAL)
    if job.phase == Phase.CANCELLED and not worked < estimate < c.NEVER:
        alive = max(job.end_us - job.submitted_us, 1)
        whole = max(worked, 1) + alive
        return Needs(whole, round(units * whole / worked) if worked else 0, NEVER_ENDS)
    if early and not estimate < c.NEVER:
        return Needs(max(worked, 1), units, AS_STOPPED)
    whole, why = (estimate, BY_ESTIMATE) if estimate < c.NEVER else (like_us or 0, BY_LIKE)
    whole = max(whole, worked, 1)
    return Needs(whole, round(units * whole / worked) if worked else total, why)


def points_of(job: Job, units: int) -> Points | None:
    """The curve that a job told of, up to `units`: beyond its last report as the curve estimator goes on with it."""
    by_units: dict[str, dict[int, int]] = {"loss": {}, "accuracy": {}}
    for _, k, loss, accuracy in job.reports:
        for name, value in (("loss", loss), ("accuracy", accuracy)):
            if value != c.NOTHING:
                by_units[name][k] = value
    if not by_units["loss"] and not by_units["accuracy"]:
        return None
    rising = job.file.get("progress", {}).get("mode", "max") != "min"
    series = {name: _beyond(found, units, name == "accuracy", rising) for name, found in by_units.items()}
    return Points(*series["loss"], *series["accuracy"])


def usage_of(job: Job) -> list[tuple[int, ...]]:
    """What each task used, the median of what was measured; nothing if it was not of every task."""
    tasks = max(job.usage, default=-1) + 1
    if len(job.usage) < tasks:
        return []
    return [tuple(np.median(np.array(job.usage[task]), axis=0).astype(np.int64).tolist()) for task in range(tasks)]


def _beyond(found: Mapping[int, int], units: int, of_accuracy: bool, rising: bool) -> tuple[Floats, Floats]:
    at = np.array(sorted(found), np.float64)
    values = np.array([found[int(k)] for k in at], np.float64)
    if len(at) < 2 or units <= at[-1]:
        return at, values
    scale = 1e6 if of_accuracy else 1e9
    nothing = np.full(len(at), np.nan)
    told = values / scale
    history = JobHistory(
        k=at, loss=nothing if of_accuracy else told, accuracy=told if of_accuracy else nothing, mode_max=rising,
        units_total=float(units), units_done=float(at[-1]),
    )  # fmt: skip
    fit = answer(Estimator.CURVE, [history], of_accuracy=of_accuracy).params[0]
    more = np.linspace(at[-1], units, BEYOND_POINTS + 1)[1:]
    guessed = value_at(fit, more)
    if not np.isfinite(guessed).all():
        return at, values
    if of_accuracy:
        guessed = np.clip(guessed, 0.0, 1.0)
    return np.concatenate([at, more]), np.concatenate([values, guessed * scale])


def _median(values: list[int]) -> int | None:
    return round(float(np.median(values))) if values else None


# -- all jobs -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Built:
    """A workload, what is true of it, and which of its jobs were assumed to go on how."""

    workload: Workload
    truth: Truth
    assumed: dict[int, str]
    """By number in the workload."""
    numbers: dict[int, int]
    """The jobs' numbers in the workload, by those in the journal."""


def build(facts: Facts, name: str) -> Built:
    """The workload of a journal: jobs as they were handed in, and what is true of them."""
    jobs = list(facts.jobs.values())
    timings = [measure(job, facts.horizon_us) for job in jobs]
    plain = typical(timings)
    done = [t.worked_us for t, job in zip(timings, jobs, strict=True) if job.phase == Phase.COMPLETED and t.worked_us]
    like = _median(done)
    wanted = [needs(job, timing, like) for job, timing in zip(jobs, timings, strict=True)]
    tells = [len(job.reports) for job in jobs]
    curves = [points_of(job, need.units) if job.reports else None for job, need in zip(jobs, wanted, strict=True)]
    filled = [_filled(t, plain, job) for t, job in zip(timings, jobs, strict=True)]
    return assemble(facts, name, filled, wanted, curves, tells, [usage_of(job) for job in jobs])


def typical(timings: Sequence[Timing]) -> Timing:
    """The median of each time over the jobs of which it was measured."""

    def middle(key: str) -> int | None:
        return _median([value for timing in timings if (value := getattr(timing, key)) is not None])

    return Timing(middle("start_us"), middle("warm_us"), middle("restore_us"), middle("save_us"))


def _filled(timing: Timing, plain: Timing, job: Job) -> Timing:
    """A job's times with those of other jobs, or of its specification, where its own were not seen."""
    warm = timing.warm_us
    if warm is None:
        warm = 0 if job.ran else plain.warm_us or 0  # of one that ran it is in its work
    restore = next((v for v in (timing.restore_us, job.spec(c.J_RESTORE) or None, plain.restore_us) if v is not None), 0)
    save = next((v for v in (timing.save_us, job.spec(c.J_SAVE) or None, plain.save_us) if v is not None), 0)
    start = timing.start_us if timing.start_us is not None else plain.start_us or 0
    return replace(timing, start_us=start, warm_us=warm, restore_us=restore, save_us=save)


def assemble(
    facts: Facts, name: str, timings: Sequence[Timing], wanted: Sequence[Needs], curves: Sequence[Points | None],
    tells: Sequence[int], usages: Sequence[Sequence[tuple[int, ...]]],
) -> Built:  # fmt: skip
    """The workload and the truth of jobs, in the order of `facts.jobs`: their times and needs, the curves that they tell of, how
    often they report (0: never), and what their tasks use."""
    jobs = list(facts.jobs.values())
    numbers = {job.number: i for i, job in enumerate(jobs)}
    sizes = [len(job.payload) - c.SPEC_COLUMNS for job in jobs]
    workload = Workload(
        name=name,
        submitted_us=np.array([job.submitted_us for job in jobs], np.int64),
        spec=np.ascontiguousarray(np.array([job.payload[: c.SPEC_COLUMNS] for job in jobs], np.int64).T),
        work_us=np.array([need.work_us for need in wanted], np.int64),
        users=facts.named(Name.USER, "user"),
        queues=facts.named(Name.QUEUE, "queue") or ("default",),
        kinds=facts.cluster.kinds,
        job_names=tuple(facts.names[Name.JOB].get(job.number, "") for job in jobs),
        models=facts.named(Name.MODEL, "model"),
        details=np.concatenate([job.payload[c.SPEC_COLUMNS :] for job in jobs]),
        detail_at=np.concatenate(([0], np.cumsum(sizes))),
    )

    def column(key: str) -> Ints:
        return np.array([getattr(timing, key) or 0 for timing in timings], np.int64)

    reports = np.array(tells, np.int64)
    units = np.where(reports > 0, np.array([need.units for need in wanted], np.int64), 0)
    outside = [replace(event, subject=numbers[event.subject]) for event in facts.of_jobs]
    truth = Truth(
        start_us=column("start_us"), warm_us=column("warm_us"), restore_us=column("restore_us"), save_us=column("save_us"),
        loses=np.array([int(job.loses) for job in jobs], np.int64),
        units=units,
        report_every=np.maximum(units // np.maximum(reports, 1), 1),
        points={i: curve for i, curve in enumerate(curves) if curve is not None},
        usage={i: used for i, used in enumerate(usages) if used},
        node_faults=tuple(facts.node_faults),
        cancels=tuple((job.cancel_us, i) for i, job in enumerate(jobs) if job.cancel_us >= 0),
        outside=sorted([*facts.of_queues, *facts.of_nodes, *outside], key=lambda event: event.t_us),
    )  # fmt: skip
    assumed = {i: need.assumed for i, need in enumerate(wanted) if need.assumed and not jobs[i].refused}
    return Built(workload, truth, assumed, numbers)
