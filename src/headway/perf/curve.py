"""Fit all curves of a batch at once, and say what they will come to: plateau, value at k, k at a value, each with its quantiles.

**Shapes.** A curve turned to fall is `z(t) = b + a·φ(t)`, t = k / k_last, with
`φ(t) = ((1 + r·(t − 1))^−p − 1) / (p·r)`, r = s / (1 + s): p = 1 is Optimus' `1/(b0·k + b1) + b2`, larger p tends to an
exponential, smaller ones are power laws (pow3, pow4), p → 0 a logarithm, and p < 0 keeps improving, as real runs do whose
learning rate decays until the end. All (s, p) of a grid are fitted by weighted least squares, in closed form: nothing
iterates, nothing can fail.

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
from headway.perf.observed import LARGEST, SMALLEST, Observed, prepare
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

RATES = 10.0 ** np.linspace(-1, 3, 15)
POWERS = np.array([-1.0, -0.6, -0.3, 0.01, 0.3, 0.6, 1.0, 2.0, 6.0])
SHAPE_RATE = np.repeat(RATES / (1 + RATES), len(POWERS))
SHAPE_POWER = np.tile(POWERS, len(RATES))
SHAPES = len(SHAPE_RATE)
RECENCY = 3.0
COUNTED = 4.0
VARIANCE_SHAPE, VARIANCE_SCALE = 1.0, 1e-4
RIDGE = 1e-3
AMPLITUDE_MIN = 0.02
"""Of the improvement so far: a curve that improves is not fitted by one that doesn't."""
END_TILT = 2.0
END_TRUST, END_FLOOR = 0.5, 0.001
"""A known end counts as twice as sure as it is, since shapes are too sure of themselves; and what it rules out stays possible."""
RATIO_MIN, RATIO_MAX = 1.005, 100.0
NODES = np.array([-1.6, -0.7, 0.0, 0.7, 1.6])
NODE_WEIGHTS = np.array([0.13, 0.24, 0.26, 0.24, 0.13])
KEPT = 24
"""Shapes that the plateau's mixture keeps."""
ENDS = 1 / (1 - (np.arange(7) + 0.5) / 7)
"""Equally likely x = k_end / k_last when nothing is known of the end: 1 / uniform."""
END_NODES = np.array([-1.465, -0.792, -0.366, 0.0, 0.366, 0.792, 1.465])
"""Equally likely quantiles of a normal distribution."""
SPREAD_MIN, SPREAD_SHARE = 0.02, 0.5
"""No plateau is known better than to this share of the improvement so far, and of what is still to come."""
TIME_SPREAD_MIN = 0.4
FAR = 1e9
"""Targets further away than so many times the improvement so far count as just as far."""
FEW = 5
FLAT_NOISES = 2.0
CHUNK = 256


@dataclass(frozen=True, slots=True)
class CurveFits:
    """Fits of a batch: `params` (jobs × 8, see `headway.perf.params`) and `status` (jobs)."""

    params: Floats
    status: Ints


@dataclass(frozen=True, slots=True)
class _Cells:
    """The weighted least-squares fit of every shape: log weight, amplitude, offset, standard deviation of the amplitude."""

    log_weight: Floats
    a: Floats
    b: Floats
    a_sd: Floats


def phi(t: Floats | float, rate: Floats | float, power: Floats | float) -> Floats:
    """The shape: 0 at t = 1 with slope −1, falling. `rate` in (0, 1)."""
    base = np.maximum(1 + rate * (np.asarray(t) - 1), 1e-12)
    result: Floats = np.expm1(-power * np.log(base)) / (power * rate)
    return result


def phi_inverse(v: Floats, rate: Floats, power: Floats) -> Floats:
    """The t ≥ 1 at which the shape has come down to v ≤ 0; infinite if it never does."""
    base = 1 + power * rate * np.minimum(v, 0.0)
    with np.errstate(over="ignore"):
        t = 1 + np.expm1(np.minimum(-np.log(np.maximum(base, 1e-300)) / power, 700.0)) / rate
    result: Floats = np.where(base > 0, t, np.inf)
    return result


def _fit_cells(seen: Observed) -> _Cells:
    n = len(seen.t)
    w = seen.w * np.maximum(seen.t, 1e-3) ** RECENCY
    total = w.sum(1)
    w *= (np.minimum(seen.w.sum(1), COUNTED) / np.where(total > 0, total, 1.0))[:, None]
    count = np.maximum(w.sum(1), 1e-3)
    wz = w * seen.z
    sum_z, sum_zz = wz.sum(1), (wz * seen.z).sum(1)
    log_weight, a, b, a_sd = (np.empty((n, SHAPES)) for _ in range(4))
    for i, rate in enumerate(RATES / (1 + RATES)):
        log_base = np.log(np.maximum(1 + rate * (seen.t - 1), 1e-12))
        for j, power in enumerate(POWERS):
            cell = i * len(POWERS) + j
            f = np.expm1(-power * log_base) / (power * rate)
            whole = float(phi(0.0, rate, power))
            wf = w * f
            s1, s2 = wf.sum(1), (wf * f).sum(1) + RIDGE * whole**2
            sum_fz = (wf * seen.z).sum(1) + RIDGE * whole
            det = np.maximum(count * s2 - s1 * s1, 1e-12 * whole**2)
            amp = np.maximum((count * sum_fz - s1 * sum_z) / det, AMPLITUDE_MIN / whole)
            off = (sum_z - amp * s1) / count
            rest = sum_zz - 2 * off * sum_z - 2 * amp * sum_fz + off * off * count + 2 * amp * off * s1 + amp * amp * s2
            rest = VARIANCE_SCALE + np.maximum(rest, 0.0) / 2
            log_weight[:, cell] = -0.5 * np.log(det / whole**2) - (VARIANCE_SHAPE + count / 2 - 1) * np.log(rest)
            a[:, cell], b[:, cell] = amp, off
            a_sd[:, cell] = np.sqrt(rest / (VARIANCE_SHAPE + count / 2) * count / det)
    return _Cells(log_weight, a, b, a_sd)


def _quantiles(values: Floats, weights: Floats, levels: Sequence[float]) -> list[Floats]:
    """Quantiles of each row of weighted values."""
    order = np.argsort(values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, 1)
    mass = np.cumsum(np.take_along_axis(weights, order, 1), axis=1)
    rows, last = np.arange(len(values)), values.shape[1] - 1
    return [ranked[rows, np.minimum((mass < level * mass[:, -1:]).sum(1), last)] for level in levels]


def _end_density(log_x: Floats, end_log: Floats, end_sd: Floats) -> Floats:
    """The prior of log x = log(k_end / k_last), up to a factor: log-normal where an end is known, else x^−END_TILT."""
    known = np.isfinite(end_log)[:, None]
    centre, sd = np.where(known, end_log[:, None], 0.0), np.where(known, end_sd[:, None] * END_TRUST, 1.0)
    normal = np.exp(np.maximum(-0.5 * ((log_x - centre) / sd) ** 2, -200.0)) + END_FLOOR
    result: Floats = np.where(known, normal, np.exp(-END_TILT * log_x))
    return result


def _time_to(cells: _Cells, weight: Floats, q: Floats, end_log: Floats, end_sd: Floats) -> tuple[Floats, Floats]:
    """Median of x = k_target / k_last, and half the log distance of the 16 % and 84 % quantiles of x − 1."""
    xs, ws = [], []
    for node, share in zip(NODES, NODE_WEIGHTS, strict=True):
        a = np.maximum(cells.a + node * cells.a_sd, 0.1 * cells.a)
        x = np.clip(phi_inverse((q[:, None] - cells.b) / a, SHAPE_RATE, SHAPE_POWER), RATIO_MIN, RATIO_MAX)
        xs.append(x)
        ws.append(weight * share * _end_density(np.log(x), end_log, end_sd))
    x, w = np.concatenate(xs, axis=1), np.concatenate(ws, axis=1)
    low, middle, high = _quantiles(x, w, (0.16, 0.5, 0.84))
    return middle, 0.5 * np.log((high - 1) / (low - 1))


def _end_values(cells: _Cells, weight: Floats, end_log: Floats, end_sd: Floats) -> tuple[Floats, Floats, Floats]:
    """The 5 %, 50 % and 95 % quantile of z at the end of training."""
    order = np.argsort(-weight, axis=1, kind="stable")[:, :KEPT]
    w, a, b, a_sd = (np.take_along_axis(m, order, 1) for m in (weight, cells.a, cells.b, cells.a_sd))
    rate, power = SHAPE_RATE[order], SHAPE_POWER[order]
    known = np.isfinite(end_log)
    ahead = np.exp(np.minimum(np.where(known, end_log, 0.0)[:, None] + np.where(known, end_sd, 0.0)[:, None] * END_NODES, 5.0))
    ends = np.where(known[:, None], np.maximum(ahead, RATIO_MIN), ENDS)
    values, weights = [], []
    for i in range(len(ENDS)):
        down = phi(ends[:, i : i + 1], rate, power)
        for node, share in zip(NODES, NODE_WEIGHTS, strict=True):
            values.append(b + np.maximum(a + node * a_sd, 0.1 * a) * down)
            weights.append(w * share)
    low, middle, high = _quantiles(np.concatenate(values, axis=1), np.concatenate(weights, axis=1), (0.05, 0.5, 0.95))
    return low, middle, high


def _representative(cells: _Cells, log_weight: Floats, x: Floats, z: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """The likely shape that comes nearest to (x, z), and level and amplitude so that it passes there exactly."""
    at = cells.b + cells.a * phi(x[:, None], SHAPE_RATE, SHAPE_POWER)
    gap = (at - z[:, None]) / np.maximum(np.abs(cells.b - z[:, None]), 1e-3)
    cell = np.argmax(log_weight - (gap / 0.2) ** 2, axis=1)
    rows = np.arange(len(x))
    rate, power = SHAPE_RATE[cell], SHAPE_POWER[cell]
    level = np.maximum(cells.b[rows, cell], z + 1e-9)
    return level, (z - level) / phi(x, rate, power), rate, power


def _fit_chunk(seen: Observed, target: Floats, end: Floats, end_sd: Floats, calibration: Calibration) -> CurveFits:
    n = len(seen.t)
    params, status = np.full((n, WIDTH), np.nan), np.full(n, int(Status.OK), np.int64)
    cells = _fit_cells(seen)
    log_weight = cells.log_weight - cells.log_weight.max(1, keepdims=True)
    weight = np.exp(log_weight)
    with np.errstate(divide="ignore", invalid="ignore"):
        end_log = np.where(end > 0, np.log(np.clip(end, SMALLEST, LARGEST) / seen.k_last), np.nan)
    scale = np.where(seen.scale > 0, seen.scale, 1.0)
    q = np.clip(np.clip(target, -LARGEST, LARGEST) * seen.sign - seen.now, -FAR * scale, FAR * scale) / scale
    low, middle, high = _end_values(cells, weight, end_log, end_sd)
    floor = np.where(seen.bounded, (seen.bound - seen.now) / scale, -np.inf)
    low, middle, high = (np.maximum(v, floor) for v in (low, middle, high))
    ahead = np.isfinite(q) & (q < 0)
    z_target = np.where(ahead, q, 0.5 * np.minimum(middle, -1e-6))
    x_target, sd_target = _time_to(cells, weight, z_target, end_log, end_sd)
    level, amplitude, rate, power = _representative(cells, log_weight, x_target, z_target)
    middle = np.minimum(middle, level)
    noise = seen.noise / scale
    least = np.maximum(np.maximum(noise / 2, SPREAD_MIN), SPREAD_SHARE * np.abs(level - middle))
    spread = np.maximum(np.maximum(high - middle, middle - low), least)
    params[:, C_K_LAST] = seen.k_last
    params[:, C_LEVEL] = seen.sign * (seen.now + level * scale)
    params[:, C_SLOPE] = -seen.sign * amplitude * scale / seen.k_last
    params[:, C_RATE] = rate / seen.k_last
    params[:, C_POWER] = power
    params[:, C_PLATEAU] = seen.sign * (seen.now + middle * scale)
    stratum = calibration.stratum(x_target, seen.points, np.isfinite(end_log))
    params[:, C_PLATEAU_SPREAD] = spread * scale * calibration.plateau[stratum]
    params[:, C_TIME_SPREAD] = np.maximum(sd_target, TIME_SPREAD_MIN) * calibration.late[stratum]
    mark_odd(params, status, seen)
    return CurveFits(params, status)


def mark_odd(params: Floats, status: Ints, seen: Observed) -> None:
    """Give curves that cannot be extrapolated their defined result."""
    status[seen.points < FEW] = Status.FEW_POINTS
    wiggle = FLAT_NOISES * seen.noise
    flat = (seen.scale <= np.maximum(wiggle, 1e-9 * np.abs(seen.now))) & (seen.points > 1)
    worse = flat & (seen.now - seen.best > np.maximum(wiggle, 0.05 * np.abs(seen.best) + 1e-12))
    status[flat], status[worse] = Status.FLAT, Status.DIVERGING
    best = seen.sign * seen.best
    here = seen.sign * seen.now
    params[flat, C_K_LAST], params[flat, C_RATE] = seen.k_last[flat], 1 / seen.k_last[flat]
    params[flat, C_SLOPE], params[flat, C_POWER] = 0.0, 1.0
    params[flat, C_LEVEL] = here[flat]
    params[flat, C_PLATEAU] = np.where(worse, best, here)[flat]
    reach = np.maximum(np.maximum(wiggle, np.abs(seen.now - seen.best)), 0.02 * np.abs(seen.now))
    params[flat, C_PLATEAU_SPREAD] = reach[flat]
    params[flat, C_TIME_SPREAD] = 3.0
    for value, state in ((0, Status.NO_DATA), (1, Status.ONE_POINT)):
        rows = seen.points == value
        status[rows] = state
        params[rows] = np.nan
        params[rows, 1] = float(state)


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
    n = len(series)
    flags = np.broadcast_to(np.asarray(rising, np.bool_), n)
    goal, end, sd = (np.broadcast_to(np.asarray(v, np.float64), n) for v in (target, k_end, k_end_log_sd))
    sd = np.clip(np.where(np.isfinite(sd), sd, 1.0), 0.05, 3.0)
    known = calibration or shipped()
    parts = []
    for at in range(0, n, CHUNK):
        rows = slice(at, at + CHUNK)
        parts.append(_fit_chunk(prepare(series[rows], flags[rows]), goal[rows], end[rows], sd[rows], known))
    if not parts:
        return CurveFits(np.empty((0, WIDTH)), np.empty(0, np.int64))
    return CurveFits(np.concatenate([p.params for p in parts]), np.concatenate([p.status for p in parts]))
