"""Optimus' own curve, `l(k) = 1/(b0·k + b1) + b2` with b0, b1, b2 ≥ 0, fitted to a whole batch: the baseline that policies of
papers use.

b2 is profiled out: for each of 40 values below the lowest loss, 1/(l − b2) = b0·k + b1 is linear and solved by NNLS with weights
(l − b2)⁴ (delta method) and recency; the least squares *in loss* decide, and Gauss–Newton steps polish. (Peng et al.,
EuroSys'18.) The arithmetic is compiled (`headway.perf.kernels.inverse`), job by job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headway.core.arrays import Bools, Floats
from headway.perf.curve import CurveFits
from headway.perf.forecast import Z90
from headway.perf.nnls import room
from headway.perf.observed import O_K_LAST, O_SIGN, POINTS_MAX, Observed, prepare
from headway.perf.params import (
    C_K_LAST,
    C_LEVEL,
    C_PLATEAU,
    C_PLATEAU_SPREAD,
    C_POWER,
    C_RATE,
    C_SLOPE,
    C_TIME_SPREAD,
    WIDTH,
    Status,
)

TIME_SPREAD_MIN, TIME_SPREAD_MAX = 0.05, 3.0


@dataclass(frozen=True, slots=True)
class InverseFits:
    """(jobs × 3) b0, b1, b2 on the turned curve `offset + sign·y`, and the covariance (jobs × 3 × 3); NaN where it can't be
    fitted."""

    b: Floats
    covariance: Floats
    sign: Floats
    offset: Floats

    def k_at(self, target: ArrayLike) -> tuple[Floats, Floats]:
        """The k at which a target is reached (infinite: never), and its standard deviation by the delta method."""
        q = self.offset + self.sign * np.asarray(target, np.float64) - self.b[:, 2]
        b0, b1 = self.b[:, 0], self.b[:, 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            k = np.where((q > 0) & (b0 > 0), (1 / q - b1) / b0, np.inf)
            gradient = np.stack([-(1 / q - b1) / b0**2, -1 / b0, 1 / (b0 * q * q)], axis=1)
            variance = np.einsum("ij,ijk,ik->i", gradient, self.covariance, gradient)
            sd = np.where(np.isfinite(k), np.sqrt(np.maximum(variance, 0)), np.inf)
        return k, sd


def fit_inverse(series: Sequence[tuple[ArrayLike, ArrayLike]], rising: Bools) -> InverseFits:
    """Fit each job's (k, y). Accuracies are turned: 1 − y for shares, 1.5 · max − y for others."""
    return _fit(prepare(series, rising), rising)


def inverse_curves(series: Sequence[tuple[ArrayLike, ArrayLike]], rising: Bools) -> CurveFits:
    """Fit each job's (k, y) and give the CURVE vectors that all forecasts take; spreads follow from the covariance.

    The plateau is that of the formula, at infinite k.
    """
    from headway.perf.kernels.shapes import mark_odd

    seen = prepare(series, rising)
    found = _fit(seen, rising)
    k_last = seen.about[:, O_K_LAST]
    b0, b1, b2 = found.b.T
    params, status = np.full((len(series), WIDTH), np.nan), np.empty(len(series), np.int64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = b0 * k_last + b1
        turned = found.sign * (1 / u + b2 - found.offset)
        slope = -found.sign * b0 / u**2
        q = b2 + 0.5 / u
        k, sd = found.k_at(found.sign * (q - found.offset))
        late = np.log1p(Z90 * sd / np.maximum(k - k_last, 1e-12))
    params[:, C_K_LAST], params[:, C_LEVEL], params[:, C_SLOPE] = k_last, turned, slope
    params[:, C_RATE], params[:, C_POWER] = b0 / u, 1.0
    params[:, C_PLATEAU] = found.sign * (b2 - found.offset)
    params[:, C_PLATEAU_SPREAD] = Z90 * np.sqrt(np.maximum(found.covariance[:, 2, 2], 0.0))
    params[:, C_TIME_SPREAD] = np.clip(late, TIME_SPREAD_MIN, TIME_SPREAD_MAX)
    params[~(np.abs(slope) > 0)] = np.nan
    mark_odd(seen.points, seen.about, params, status)
    unknown = ~np.isfinite(params).all(1) & (status < Status.NO_DATA)
    params[unknown] = np.nan
    params[unknown, 1] = status[unknown] = int(Status.NO_DATA)
    return CurveFits(params, status)


def _fit(seen: Observed, rising: Bools) -> InverseFits:
    from headway.perf.kernels.inverse import fit_inverse_rows

    n = len(seen.size)
    b, covariance, offset = np.empty((n, 3)), np.empty((n, 3, 3)), np.empty(n)
    fit_inverse_rows(
        seen.t, seen.z, seen.size, seen.about, np.array(rising, np.bool_), np.empty(POINTS_MAX), np.empty(POINTS_MAX), *room(),
        np.empty(3), np.empty(3), b, covariance, offset,
    )  # fmt: skip
    return InverseFits(b, covariance, seen.about[:, O_SIGN], offset)
