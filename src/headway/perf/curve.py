"""Fit all curves of a batch at once, and say what they will come to: plateau, value at k, k at a value, each with its quantiles.

**Shapes.** A curve turned to fall is `z(t) = b + a·φ(t)`, t = k / k_last, with
`φ(t) = ((1 + r·(t − 1))^−p − 1) / (p·r)`, r = s / (1 + s): p = 1 is Optimus' `1/(b0·k + b1) + b2`, larger p tends to an
exponential, smaller ones are power laws (pow3, pow4), p → 0 a logarithm, and p < 0 keeps improving, as real runs do whose
learning rate decays until the end. All (s, p) of a grid are fitted by weighted least squares, in closed form: nothing
iterates, nothing can fail. The arithmetic is compiled (`headway.perf.kernels.shapes`), job by job.

**Posterior.** A shape's weight is its marginal likelihood (noise variance integrated out) with the points counted as few
(`COUNTED`), since what a curve does later differs from all shapes in a way that doesn't average out. Recent points weigh most
(`RECENCY`). At a random moment of a job's life the share that is done is uniform, so the ratio x = k_end / k_last has the
density x^−2; with `END_TILT` that prior leans on where a target is reached. A k at which training is expected to end
(declared by the job, or from finished jobs of its family) is a log-normal prior on x instead.

Intervals are widened by factors measured on real curves (`headway.perf.calibrate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headway.core.arrays import Floats, Ints
from headway.perf.calibrate import Calibration, shipped
from headway.perf.observed import POINTS_MAX, prepare
from headway.perf.params import C_PLATEAU_SPREAD, C_TIME_SPREAD, WIDTH


@dataclass(frozen=True, slots=True)
class CurveFits:
    """Fits of a batch: `params` (jobs × 8, see `headway.perf.params`) and `status` (jobs)."""

    params: Floats
    status: Ints


def fit_curves(
    series: Sequence[tuple[ArrayLike, ArrayLike]],
    rising: ArrayLike = False,
    *,
    target: ArrayLike = np.nan,
    k_end: ArrayLike = np.nan,
    k_end_log_sd: ArrayLike = 0.15,
    calibration: Calibration | None = None,
) -> CurveFits:
    """Fit the observations (k, y) of each job; any order, any values: what cannot be used is left out.

    Args:
        series: for each job its k (steps, samples, epochs: any unit that grows) and the values there.
        rising: whether the value should go up (accuracy) rather than down (loss).
        target: the value that the job must reach, NaN if none: it sharpens the estimate of when.
        k_end: where training is expected to end (the job's total, or the median of its family), NaN if unknown.
        k_end_log_sd: how sure that is: standard deviation of its logarithm.
        calibration: factors on the spreads; the shipped ones if None.
    """
    from headway.perf.kernels.shapes import CELLS, MIXED, PER_RATE, SHAPES, fit_rows

    n = len(series)
    flags, goal, end, sd = np.empty(n, np.bool_), np.empty(n), np.empty(n), np.empty(n)
    flags[:], goal[:], end[:], sd[:] = rising, target, k_end, k_end_log_sd
    sd = np.clip(np.where(np.isfinite(sd), sd, 1.0), 0.05, 3.0)
    seen = prepare(series, flags)
    params, status, ratio = np.empty((n, WIDTH)), np.empty(n, np.int64), np.empty(n)
    fit_rows(
        seen.t, seen.z, seen.size, seen.points, seen.about, goal, end, sd, np.empty((CELLS, SHAPES)), np.empty(POINTS_MAX),
        np.empty((PER_RATE, POINTS_MAX)), np.empty(MIXED), np.empty(MIXED), params, status, ratio,
    )  # fmt: skip
    fitted = np.isfinite(ratio)
    factors = calibration or shipped()
    stratum = factors.stratum(ratio[fitted], seen.points[fitted], end[fitted] > 0)
    params[fitted, C_PLATEAU_SPREAD] *= factors.plateau[stratum]
    params[fitted, C_TIME_SPREAD] *= factors.late[stratum]
    return CurveFits(params, status)
