"""One way in for whoever answers a plan's requests: `answer(kind, jobs)` gives a vector of eight numbers for each job of the
batch.

It takes what was observed and never raises for what is odd about it: a job without an estimate gets a vector that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headway.core.arrays import Floats, Ints
from headway.core.columns import Estimator
from headway.perf.calibrate import Calibration
from headway.perf.curve import fit_curves
from headway.perf.optimus import inverse_curves
from headway.perf.params import R_STATUS, WIDTH, Status, no_estimate, status_of
from headway.perf.remaining import estimate_remaining
from headway.perf.speed import Form, fit_optimus, fit_pollux

VERSION = 1
"""Of the estimators: `Estimated` events carry it, so that a later version's vectors can be told apart."""
NOTHING: Floats = np.empty(0)


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What a scheduler knows of one job when it asks; what it doesn't know stays as it is.

    Observations: `loss` and `accuracy` at `k` (units of progress; NaN where one was not reported). Measurements of speed, a
    row for each shape that ran: `step_s`, `workers`, `servers`, `nodes`, `batch` (of one worker).
    """

    k: Floats = field(default_factory=lambda: NOTHING)
    loss: Floats = field(default_factory=lambda: NOTHING)
    accuracy: Floats = field(default_factory=lambda: NOTHING)
    mode_max: bool = True
    """Whether the accuracy-like figure should rise (`progress.mode`)."""
    accuracy_required: float = np.nan
    units_total: float = np.nan
    k_end: float = np.nan
    """Where jobs of its family end, if there are any (`CurveFit.k_end` of the catalogue, or finished jobs)."""
    k_end_log_sd: float = 0.15
    step_s: Floats = field(default_factory=lambda: NOTHING)
    workers: Floats = field(default_factory=lambda: NOTHING)
    servers: Floats = field(default_factory=lambda: NOTHING)
    nodes: Floats = field(default_factory=lambda: NOTHING)
    batch: Floats = field(default_factory=lambda: NOTHING)
    run_s: float = 0.0
    units_done: float = 0.0
    units_per_s: float = np.nan
    like_s: Sequence[float] = ()
    """Run times of ended jobs that are like it (`History.like`)."""
    announced_s: float = np.nan
    """The run time that its user announced."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`params` (jobs × 8) as `headway.perf.params` lays them out, and a `Status` for each."""

    params: Floats
    status: Ints


def answer(
    kind: Estimator,
    jobs: Sequence[JobHistory],
    *,
    of_accuracy: bool | None = None,
    form: Form = Form.OPTIMUS,
    calibration: Calibration | None = None,
) -> Answer:
    """Estimate for a batch. SPEED has the given form; REMAINING takes progress, history and the user's word.

    CURVE is the curve of the accuracy where a job reports one, else of its loss; `of_accuracy` insists on one of the two. INVERSE
    is Optimus' curve, of the loss unless `of_accuracy`: for policies that are defined by it, and jobs whose loss is made so.
    `calibration` replaces the factors on the spreads that real runs need (`calibrate.NAIVE`: none, for simulated curves).
    """
    match kind:
        case Estimator.CURVE:
            return _curves(jobs, of_accuracy, False, calibration)
        case Estimator.INVERSE:
            return _curves(jobs, bool(of_accuracy), True, calibration)
        case Estimator.SPEED:
            return _speeds(jobs, form)
        case Estimator.REMAINING:
            return _remaining(jobs)


def reports_accuracy(job: JobHistory) -> bool:
    """Whether a curve of accuracy can be fitted: there are two finite values."""
    return int(np.count_nonzero(np.isfinite(job.accuracy))) >= 2


def _curves(jobs: Sequence[JobHistory], of_accuracy: bool | None, inverse: bool, calibration: Calibration | None) -> Answer:
    by_accuracy = [reports_accuracy(job) if of_accuracy is None else of_accuracy for job in jobs]
    series = [(job.k, job.accuracy if yes else job.loss) for job, yes in zip(jobs, by_accuracy, strict=True)]
    ends = [job.units_total if np.isfinite(job.units_total) and job.units_total > 0 else job.k_end for job in jobs]
    rising = np.array([yes and job.mode_max for job, yes in zip(jobs, by_accuracy, strict=True)], np.bool_)
    if inverse:
        found = inverse_curves(series, rising)
        return Answer(found.params, found.status)
    fits = fit_curves(
        series,
        rising,
        target=np.array([job.accuracy_required if yes else np.nan for job, yes in zip(jobs, by_accuracy, strict=True)]),
        k_end=np.array(ends),
        k_end_log_sd=np.array([job.k_end_log_sd for job in jobs]),
        calibration=calibration,
    )
    return Answer(fits.params, fits.status)


def _speeds(jobs: Sequence[JobHistory], form: Form) -> Answer:
    params = np.full((len(jobs), WIDTH), np.nan)
    for i, job in enumerate(jobs):
        rows = min((len(c) for c in (job.step_s, job.workers)), default=0)
        if rows == 0:
            params[i] = no_estimate(Status.NO_DATA)
            continue
        servers, nodes, batch = (
            column[:rows] if len(column) >= rows else np.full(rows, default)
            for column, default in ((job.servers, 0.0), (job.nodes, 1.0), (job.batch, 1.0))
        )
        if form == Form.POLLUX:
            params[i] = fit_pollux(job.step_s[:rows], job.workers[:rows], nodes, batch)
        else:
            params[i] = fit_optimus(job.step_s[:rows], job.workers[:rows], servers, nodes, batch)
    status = [Status.OK if np.isfinite(row[0]) else status_of(row) for row in params]
    return Answer(params, np.array(status, np.int64))


def _remaining(jobs: Sequence[JobHistory]) -> Answer:
    params = estimate_remaining(
        np.array([job.run_s for job in jobs]),
        np.array([job.units_done for job in jobs]),
        np.array([job.units_total for job in jobs]),
        rate=np.array([job.units_per_s for job in jobs]),
        points=np.array([max(len(job.k), 1) for job in jobs]),
        like=[job.like_s for job in jobs],
        announced_s=np.array([job.announced_s for job in jobs]),
    )
    return Answer(params, params[:, R_STATUS].astype(np.int64))
