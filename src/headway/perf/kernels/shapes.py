"""The compiled fit of one curve: every shape by least squares, then quantiles of the mixture. `headway.perf.curve` says what it
is and why."""

from __future__ import annotations

import math

import numpy as np

from headway.core.arrays import Floats, Ints
from headway.core.jit import inner, kernel
from headway.perf.kernels.quantiles import weighted_quantile
from headway.perf.observed import LARGEST, O_BEST, O_BOUND, O_K_LAST, O_NOISE, O_NOW, O_SCALE, O_SIGN, SMALLEST
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
SHAPES, PER_RATE = len(SHAPE_RATE), len(POWERS)
RECENCY = 3.0
COUNTED = 4.0
VARIANCE_SHAPE, VARIANCE_SCALE = 1.0, 1e-4
RIDGE = 1e-3
AMPLITUDE_MIN = 0.02
"""Of the improvement so far: a curve that improves is not fitted by one that doesn't."""
END_TILT = 2
END_TRUST, END_FLOOR = 0.5, 0.001
"""A known end counts as twice as sure as it is, since shapes are too sure of themselves; and what it rules out stays possible."""
RATIO_MIN, RATIO_MAX = 1.005, 100.0
PHI_MIN, PHI_MAX = (
    np.expm1(-SHAPE_POWER * np.log1p(SHAPE_RATE * (ratio - 1))) / (SHAPE_POWER * SHAPE_RATE) for ratio in (RATIO_MIN, RATIO_MAX)
)
"""What each shape has come down to at the smallest and at the largest ratio."""
NODES = np.array([-1.6, -0.7, 0.0, 0.7, 1.6])
NODE_WEIGHTS = np.array([0.13, 0.24, 0.26, 0.24, 0.13])
NODE_COUNT = len(NODES)
KEPT = 24
"""Shapes that the plateau's mixture keeps."""
ENDS = 1 / (1 - (np.arange(7) + 0.5) / 7)
"""Equally likely x = k_end / k_last when nothing is known of the end: 1 / uniform."""
END_COUNT = len(ENDS)
END_NODES = np.array([-1.465, -0.792, -0.366, 0.0, 0.366, 0.792, 1.465])
"""Equally likely quantiles of a normal distribution."""
SPREAD_MIN, SPREAD_SHARE = 0.02, 0.5
"""No plateau is known better than to this share of the improvement so far, and of what is still to come."""
TIME_SPREAD_MIN = 0.4
FAR = 1e9
"""Targets further away than so many times the improvement so far count as just as far."""
FEW = 5
FLAT_NOISES = 2.0
FLAT_TIME_SPREAD = 3.0
OK, FEW_POINTS, FLAT, DIVERGING, NO_DATA, ONE_POINT = (int(status) for status in Status)

X_LOG_WEIGHT, X_WEIGHT, X_A, X_B, X_A_SD, X_LEFT = range(6)
"""Rows of the table of all shapes' fits: log weight and weight (the best one's is 1), amplitude, offset, standard deviation of
the amplitude, and whether the shape is not yet among the kept ones."""
CELLS = 6
EQUAL = 1e-9
"""Log weights that differ by no more than this may differ by rounding alone."""
MIXED = NODE_COUNT * max(SHAPES, KEPT * END_COUNT)
"""Values that a mixture has at most."""


@kernel
def phi(t: float, rate: float, power: float) -> float:
    """The shape: 0 at t = 1 with slope −1, falling. `rate` in (0, 1)."""
    return math.expm1(-power * math.log(max(1.0 + rate * (t - 1.0), 1e-12))) / (power * rate)


@kernel
def phi_inverse(v: float, rate: float, power: float) -> float:
    """The t ≥ 1 at which the shape has come down to v ≤ 0; infinite if it never does."""
    base = 1.0 + power * rate * min(v, 0.0)
    if not base > 0.0:
        return math.inf
    return 1.0 + math.expm1(min(-math.log(max(base, 1e-300)) / power, 700.0)) / rate


@kernel
def odd(row: int, points: int, about: Floats, params: Floats) -> int:
    """The status of a curve. One that cannot be extrapolated (FLAT and beyond) gets its defined result."""
    if points < 2:
        state = NO_DATA if points == 0 else ONE_POINT
        for i in range(WIDTH):
            params[row, i] = np.nan
        params[row, 1] = float(state)
        return state
    now, best, sign, k_last = about[row, O_NOW], about[row, O_BEST], about[row, O_SIGN], about[row, O_K_LAST]
    wiggle = FLAT_NOISES * about[row, O_NOISE]
    if about[row, O_SCALE] > max(wiggle, 1e-9 * abs(now)):
        return FEW_POINTS if points < FEW else OK
    worse = now - best > max(wiggle, 0.05 * abs(best) + 1e-12)
    params[row, C_K_LAST], params[row, C_RATE] = k_last, 1.0 / k_last
    params[row, C_SLOPE], params[row, C_POWER] = 0.0, 1.0
    params[row, C_LEVEL] = sign * now
    params[row, C_PLATEAU] = sign * (best if worse else now)
    params[row, C_PLATEAU_SPREAD] = max(max(wiggle, abs(now - best)), 0.02 * abs(now))
    params[row, C_TIME_SPREAD] = FLAT_TIME_SPREAD
    return DIVERGING if worse else FLAT


@kernel
def mark_odd(points: Ints, about: Floats, params: Floats, status: Ints) -> None:
    """Fill in the status of each job, and what it says instead of a fit."""
    for row in range(points.shape[0]):
        status[row] = odd(row, points[row], about, params)


@inner
def raised(base: float, f: Floats, j: int) -> None:
    """f[i, j] = base^−POWERS[i] − 1: products of two powers and of one exponential take a third of the time of nine of these."""
    log, once = math.log(base), 1.0 / base
    third = math.exp(-0.3 * log)
    twice = once * once
    f[0, j], f[1, j], f[2, j], f[3, j] = base - 1.0, 1.0 / (third * third) - 1.0, 1.0 / third - 1.0, math.expm1(-0.01 * log)
    f[4, j], f[5, j], f[6, j], f[7, j] = third - 1.0, third * third - 1.0, once - 1.0, twice - 1.0
    f[8, j] = twice * twice * twice - 1.0


@kernel
def fit_cells(t: Floats, z: Floats, row: int, size: int, cells: Floats, w: Floats, f: Floats) -> None:
    """The weighted least-squares fit of every shape."""
    total = 0.0
    for j in range(size):
        recent = max(t[row, j], 1e-3)
        w[j] = recent * recent * recent
        total += w[j]
    count, sum_z, sum_zz = 0.0, 0.0, 0.0
    for j in range(size):
        w[j] *= min(float(size), COUNTED) / total
        count += w[j]
        sum_z += w[j] * z[row, j]
        sum_zz += w[j] * z[row, j] * z[row, j]
    top = -math.inf
    for cell in range(SHAPES):
        rate, power, kind = SHAPE_RATE[cell], SHAPE_POWER[cell], cell % PER_RATE
        if kind == 0:
            for j in range(size):
                raised(max(1.0 + rate * (t[row, j] - 1.0), 1e-12), f, j)
        whole, unit = phi(0.0, rate, power), power * rate
        s1, s2, sum_fz = 0.0, 0.0, 0.0
        for j in range(size):
            wf = w[j] * f[kind, j]
            s1 += wf
            s2 += wf * f[kind, j]
            sum_fz += wf * z[row, j]
        s1, s2, sum_fz = s1 / unit, s2 / (unit * unit) + RIDGE * whole * whole, sum_fz / unit + RIDGE * whole
        det = max(count * s2 - s1 * s1, 1e-12 * whole * whole)
        a = max((count * sum_fz - s1 * sum_z) / det, AMPLITUDE_MIN / whole)
        b = (sum_z - a * s1) / count
        rest = sum_zz - 2.0 * b * sum_z - 2.0 * a * sum_fz + b * b * count + 2.0 * a * b * s1 + a * a * s2
        rest = VARIANCE_SCALE + max(rest, 0.0) / 2.0
        log_weight = -0.5 * math.log(det / (whole * whole)) - (VARIANCE_SHAPE + count / 2.0 - 1.0) * math.log(rest)
        top = max(top, log_weight)
        cells[X_LOG_WEIGHT, cell], cells[X_A, cell], cells[X_B, cell] = log_weight, a, b
        cells[X_A_SD, cell] = math.sqrt(rest / (VARIANCE_SHAPE + count / 2.0) * count / det)
    for cell in range(SHAPES):
        cells[X_LOG_WEIGHT, cell] -= top
        cells[X_WEIGHT, cell] = math.exp(cells[X_LOG_WEIGHT, cell])


@inner
def amplitude(cells: Floats, cell: int, node: int) -> float:
    """A shape's amplitude, so many standard deviations off."""
    return float(max(cells[X_A, cell] + NODES[node] * cells[X_A_SD, cell], 0.1 * cells[X_A, cell]))


@inner
def end_density(x: float, end_log: float, end_sd: float) -> float:
    """The prior of log x, x = k_end / k_last, up to a factor: log-normal where an end is known, else x^−END_TILT."""
    if math.isnan(end_log):
        return 1.0 / float(x**END_TILT)
    off = (math.log(x) - end_log) / (end_sd * END_TRUST)
    return math.exp(max(-0.5 * off * off, -200.0)) + END_FLOOR


@kernel
def time_to(cells: Floats, q: float, end_log: float, end_sd: float, v: Floats, w: Floats) -> tuple[float, float]:
    """Median of x = k_target / k_last, and half the log distance of the 16 % and 84 % quantiles of x − 1."""
    count, total = 0, 0.0
    for cell in range(SHAPES):
        for node in range(NODE_COUNT):
            down = (q - cells[X_B, cell]) / amplitude(cells, cell, node)
            x = RATIO_MIN if down > PHI_MAX[cell] else RATIO_MAX
            if PHI_MAX[cell] < down < PHI_MIN[cell]:
                x = phi_inverse(down, SHAPE_RATE[cell], SHAPE_POWER[cell])
            v[count], w[count] = x, cells[X_WEIGHT, cell] * NODE_WEIGHTS[node] * end_density(x, end_log, end_sd)
            total += w[count]
            count += 1
    middle = weighted_quantile(v, w, count, 0.5 * total)
    low, high = weighted_quantile(v, w, count, 0.16 * total), weighted_quantile(v, w, count, 0.84 * total)
    return middle, 0.5 * math.log((high - 1.0) / (low - 1.0))


@kernel
def end_values(cells: Floats, end_log: float, end_sd: float, v: Floats, w: Floats) -> tuple[float, float, float]:
    """The 5 %, 50 % and 95 % quantile of z at the end of training, of the KEPT shapes that weigh most."""
    known = np.isfinite(end_log)
    count, total = 0, 0.0
    for cell in range(SHAPES):
        cells[X_LEFT, cell] = 1.0
    for _ in range(KEPT):
        best, weight = 0, -1.0
        for cell in range(SHAPES):
            if cells[X_LEFT, cell] > 0.0 and cells[X_WEIGHT, cell] > weight:
                best, weight = cell, cells[X_WEIGHT, cell]
        cells[X_LEFT, best] = 0.0
        for i in range(END_COUNT):
            end = max(math.exp(min(end_log + end_sd * END_NODES[i], 5.0)), RATIO_MIN) if known else ENDS[i]
            down = phi(end, SHAPE_RATE[best], SHAPE_POWER[best])
            for node in range(NODE_COUNT):
                v[count] = cells[X_B, best] + amplitude(cells, best, node) * down
                w[count] = weight * NODE_WEIGHTS[node]
                total += w[count]
                count += 1
    middle = weighted_quantile(v, w, count, 0.5 * total)
    return weighted_quantile(v, w, count, 0.05 * total), middle, weighted_quantile(v, w, count, 0.95 * total)


@kernel
def representative(cells: Floats, x: float, z: float) -> int:
    """The likely shape that comes nearest to (x, z), the first of equals (all straight lines are one and the same)."""
    found, most = 0, -math.inf
    for cell in range(SHAPES):
        at = cells[X_B, cell] + cells[X_A, cell] * phi(x, SHAPE_RATE[cell], SHAPE_POWER[cell])
        gap = (at - z) / max(abs(cells[X_B, cell] - z), 1e-3) / 0.2
        if cells[X_LOG_WEIGHT, cell] - gap * gap > most + EQUAL:
            found, most = cell, cells[X_LOG_WEIGHT, cell] - gap * gap
    return found


@kernel
def fit_rows(
    t: Floats, z: Floats, size: Ints, points: Ints, about: Floats, target: Floats, k_end: Floats, k_end_log_sd: Floats,
    cells: Floats, w: Floats, f: Floats, values: Floats, weights: Floats, params: Floats, status: Ints, ratio: Floats,
) -> None:  # fmt: skip
    """Fit each job's curve. Fills `params` (spreads as the mixture has them), `status`, and the `ratio` of the k at the target to
    k_last, NaN where nothing was fitted. Room to work in: `cells` (CELLS × SHAPES), `w` (a point each), `f` (PER_RATE × points),
    `values` and `weights` (MIXED)."""
    for row in range(points.shape[0]):
        ratio[row] = np.nan
        status[row] = odd(row, points[row], about, params)
        if status[row] >= FLAT:
            continue
        now, sign, k_last, scale = about[row, O_NOW], about[row, O_SIGN], about[row, O_K_LAST], about[row, O_SCALE]
        fit_cells(t, z, row, size[row], cells, w, f)
        end_log, end_sd = np.nan, k_end_log_sd[row]
        if k_end[row] > 0.0:
            end_log = math.log(min(max(k_end[row], SMALLEST), LARGEST) / k_last)
        low, middle, high = end_values(cells, end_log, end_sd, values, weights)
        floor = (about[row, O_BOUND] - now) / scale
        low, middle, high = max(low, floor), max(middle, floor), max(high, floor)
        q = 0.5 * min(middle, -1e-6)
        if not np.isnan(target[row]):
            goal = max(min(max(target[row], -LARGEST), LARGEST) * sign - now, -FAR * scale) / scale
            q = goal if goal < 0.0 else q
        x, sd = time_to(cells, q, end_log, end_sd, values, weights)
        cell = representative(cells, x, q)
        level = max(cells[X_B, cell], q + 1e-9)
        slope = (q - level) / phi(x, SHAPE_RATE[cell], SHAPE_POWER[cell])
        middle = min(middle, level)
        least = max(max(about[row, O_NOISE] / scale / 2.0, SPREAD_MIN), SPREAD_SHARE * abs(level - middle))
        params[row, C_K_LAST] = k_last
        params[row, C_LEVEL] = sign * (now + level * scale)
        params[row, C_SLOPE] = -sign * slope * scale / k_last
        params[row, C_RATE], params[row, C_POWER] = SHAPE_RATE[cell] / k_last, SHAPE_POWER[cell]
        params[row, C_PLATEAU] = sign * (now + middle * scale)
        params[row, C_PLATEAU_SPREAD] = max(max(high - middle, middle - low), least) * scale
        params[row, C_TIME_SPREAD] = max(sd, TIME_SPREAD_MIN)
        ratio[row] = x
