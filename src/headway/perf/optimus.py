"""Optimus' own curve, `l(k) = 1/(b0·k + b1) + b2` with b0, b1, b2 ≥ 0, fitted to a whole batch: the baseline that policies of
papers use.

b2 is profiled out: for each of 40 values below the lowest loss, 1/(l − b2) = b0·k + b1 is linear and solved by NNLS with weights
(l − b2)⁴ (delta method) and recency; the least squares *in loss* decide, and Gauss–Newton steps polish. (Peng et al.,
EuroSys'18.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headway.core.arrays import Bools, Floats
from headway.perf.curve import CurveFits, mark_odd
from headway.perf.forecast import Z90
from headway.perf.nnls import nnls
from headway.perf.observed import POINTS_MAX, Observed, prepare
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

GRID = np.concatenate([np.linspace(0, 0.9, 20), 1 - np.geomspace(0.08, 0.001, 20)])
THIRDS = (1 / 256, 1 / 16, 1.0)
"""Weights of the first, second and last third of the history."""
STEPS = 6
EXAMPLE = np.linspace(1 / POINTS_MAX, 1, POINTS_MAX)
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
    seen = prepare(series, rising)
    found = _fit(seen, rising)
    b0, b1, b2 = found.b.T
    params, status = np.full((len(series), WIDTH), np.nan), np.full(len(series), int(Status.OK), np.int64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = b0 * seen.k_last + b1
        turned = found.sign * (1 / u + b2 - found.offset)
        slope = -found.sign * b0 / u**2
        q = b2 + 0.5 / u
        k, sd = found.k_at(found.sign * (q - found.offset))
        late = np.log1p(Z90 * sd / np.maximum(k - seen.k_last, 1e-12))
    params[:, C_K_LAST], params[:, C_LEVEL], params[:, C_SLOPE] = seen.k_last, turned, slope
    params[:, C_RATE], params[:, C_POWER] = b0 / u, 1.0
    params[:, C_PLATEAU] = found.sign * (b2 - found.offset)
    params[:, C_PLATEAU_SPREAD] = Z90 * np.sqrt(np.maximum(found.covariance[:, 2, 2], 0.0))
    params[:, C_TIME_SPREAD] = np.clip(late, TIME_SPREAD_MIN, TIME_SPREAD_MAX)
    params[~(np.abs(slope) > 0)] = np.nan
    mark_odd(params, status, seen)
    unknown = ~np.isfinite(params).all(1) & (status < Status.NO_DATA)
    params[unknown] = np.nan
    params[unknown, 1] = status[unknown] = int(Status.NO_DATA)
    return CurveFits(params, status)


def _fit(seen: Observed, rising: Bools) -> InverseFits:
    n = len(seen.t)
    turned = seen.now[:, None] + seen.z * seen.scale[:, None]
    top = np.where(seen.bounded, 1.0, 1.5 * np.abs(seen.best))
    offset = np.where(rising, top, np.where(seen.bounded, 0.0, 1.5 * np.abs(seen.best)))
    loss = turned + offset[:, None]
    live = seen.w > 0
    lowest = np.where(live, loss, np.inf).min(1)
    usable = (seen.w.sum(1) >= 3) & (lowest > 1e-9 * np.where(live, loss, 0.0).max(1)) & (seen.scale > 0)
    unit = np.where(usable, lowest, 1.0)
    loss = np.where(live & usable[:, None], loss / unit[:, None], 2.0)
    # What can't be fitted is given a curve that can, so that the batch has one path; its result is dropped.
    t = np.where(usable[:, None], seen.t, EXAMPLE)
    loss = np.where(usable[:, None], loss, 1 / (t + 1) + 0.5)
    points = np.where(usable[:, None], seen.w, 1.0)
    order = (np.cumsum(points, axis=1) - 1) / points.sum(1)[:, None]
    w = points * np.select([order < 1 / 3, order < 2 / 3], THIRDS[:2], THIRDS[2])
    best = np.full(n, np.inf)
    b = np.full((n, 3), np.nan)
    for b2 in GRID:
        rest = loss - b2
        weight = w * rest**4
        columns = np.stack([t, np.ones_like(t)], axis=2)
        solution = nnls(columns * np.sqrt(weight)[:, :, None], np.sqrt(weight) / rest)
        fitted = 1 / np.maximum(solution[:, :1] * t + solution[:, 1:], 1e-9) + b2
        sse = (w * (loss - fitted) ** 2).sum(1)
        better = sse < best
        best = np.where(better, sse, best)
        b[better] = np.column_stack([solution, np.full(n, b2)])[better]
    b, covariance = _polish(b, t, loss, w)
    b[~usable] = np.nan
    covariance[~usable] = np.nan
    back = np.stack([1 / (unit * seen.k_last), 1 / unit, unit], axis=1)
    return InverseFits(b * back, covariance * back[:, :, None] * back[:, None, :], seen.sign, offset)


def _polish(b: Floats, t: Floats, loss: Floats, w: Floats) -> tuple[Floats, Floats]:
    """Damped Gauss–Newton from the grid's best, keeping what improves; and the covariance of the coefficients."""

    def residual(b: Floats) -> tuple[Floats, Floats]:
        u = np.maximum(b[:, :1] * t + b[:, 1:2], 1e-9)
        return loss - 1 / u - b[:, 2:], u

    def normal(u: Floats) -> tuple[Floats, Floats]:
        jacobian = np.stack([-t / u**2, -1 / u**2, np.ones_like(t)], axis=2)
        inner = np.einsum("npi,np,npj->nij", jacobian, w, jacobian)
        trace = np.trace(inner, axis1=1, axis2=2)
        return jacobian, inner + (1e-9 * trace + 1e-12)[:, None, None] * np.eye(3)

    rest, u = residual(b)
    sse = (w * rest**2).sum(1)
    for _ in range(STEPS):
        jacobian, inner = normal(u)
        step = np.linalg.solve(inner, np.einsum("npi,np,np->ni", jacobian, w, rest)[:, :, None])[:, :, 0]
        tried = np.clip(b + step, [0, 1e-6, 0], [1e6, 1e6, 0.999])
        rest_tried, u_tried = residual(tried)
        sse_tried = (w * rest_tried**2).sum(1)
        better = sse_tried < sse
        b = np.where(better[:, None], tried, b)
        sse = np.where(better, sse_tried, sse)
        rest, u = np.where(better[:, None], rest_tried, rest), np.where(better[:, None], u_tried, u)
    _, inner = normal(u)
    free = np.maximum((w > 0).sum(1) - 3, 1)
    count = (w > 0).sum(1)
    variance = sse / np.maximum(w.sum(1), 1e-12) * count / free
    # The weights say which points matter, not how noisy they are: normalised to a mean of one.
    covariance = np.linalg.inv(inner * (count / np.maximum(w.sum(1), 1e-12))[:, None, None]) * variance[:, None, None]
    return b, covariance
