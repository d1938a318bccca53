"""What a fitted curve says: functions of the journalled vectors alone (jobs × 8, see `headway.perf.params`).

All take one vector or a table of them, and return numbers or columns. Without an estimate the answer is NaN. `quantile` is
that of the answer: the lower tail of a value is its low side, whichever way the curve goes.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from headway.core.arrays import Floats
from headway.perf.calibrate import shipped
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
)

NORMAL = NormalDist()
Z90 = NORMAL.inv_cdf(0.95)
EARLY_OF_LATE_MAX = 8.0
"""However little is known of how early: not more than so many times the (log) spread on the late side."""


def _normal(quantile: float) -> float:
    """The standard normal quantile, in units of half a 90 % interval."""
    assert 0 < quantile < 1, "a quantile lies between 0 and 1"
    return NORMAL.inv_cdf(quantile) / Z90


def _rows(params: Floats, other: ArrayLike) -> tuple[tuple[int, ...], Floats, Floats, Floats]:
    """Vectors and numbers as rows side by side, room for as many answers, and the shape that these are to have."""
    numbers = np.asarray(other, np.float64)
    if params.ndim == 2 and numbers.shape == params.shape[:1]:
        return numbers.shape, np.ascontiguousarray(params), np.ascontiguousarray(numbers), np.empty(len(numbers))
    shape = np.broadcast_shapes(params.shape[:-1], numbers.shape)
    vectors = np.ascontiguousarray(np.broadcast_to(params, (*shape, WIDTH))).reshape(-1, WIDTH)
    numbers = np.array(np.broadcast_to(numbers, shape)).ravel()
    return shape, vectors, numbers, np.empty(len(numbers))


def value_at(params: Floats, k: ArrayLike, quantile: float = 0.5) -> Floats:
    """The value at k. The interval opens from the last observation to the plateau, as the curve does what is left of its way."""
    from headway.perf.kernels.values import value_rows

    shape, vectors, at, found = _rows(params, k)
    value_rows(vectors, at, _normal(quantile), found)
    return found.reshape(shape)


def plateau(params: Floats, quantile: float = 0.5) -> Floats:
    """The value at the end of training."""
    missing = np.isnan(params[..., C_K_LAST])
    result: Floats = params[..., C_PLATEAU] + _normal(quantile) * params[..., C_PLATEAU_SPREAD]
    return np.where(missing, np.nan, result)


def k_at(params: Floats, target: ArrayLike, quantile: float = 0.5, *, given: bool = False) -> Floats:
    """The k at which the curve reaches `target`: k_last if it has, infinite if the plateau's better 5 % quantile doesn't.

    With `given` the answer is that for jobs that do reach it, whatever the plateau (their owner, who set it, knows).
    """
    goal = np.asarray(target, np.float64)
    k_last, level, slope = params[..., C_K_LAST], params[..., C_LEVEL], params[..., C_SLOPE]
    rate, power = params[..., C_RATE], params[..., C_POWER]
    best = params[..., C_PLATEAU] + np.sign(slope) * params[..., C_PLATEAU_SPREAD]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        base = 1 - power * rate * (goal - level) / slope
        left = np.expm1(np.minimum(-np.log(np.maximum(base, 1e-300)) / power, 700.0)) / rate
        left = np.where(base > 0, left, np.inf)
        z = _normal(quantile)
        later = params[..., C_TIME_SPREAD]
        spread = np.exp(z * (later if z > 0 else np.minimum(shipped().early, EARLY_OF_LATE_MAX * later)))
        reached = np.where(slope == 0, False, (goal - level) * np.sign(slope) <= 0)
        beyond = (slope == 0) | ((goal - best) * np.sign(slope) > 0 if not given else False)
        k = np.where(reached, k_last, np.where(beyond, np.inf, k_last + left * spread))
    result: Floats = np.where(np.isnan(k_last) | np.isnan(goal), np.nan, k)
    return result


def reach_probability(params: Floats, target: ArrayLike) -> Floats:
    """The probability that training ends at `target` or better (for flat curves: better is what its plateau is)."""
    from headway.perf.kernels.values import reach_rows

    shape, vectors, goal, found = _rows(params, target)
    reach_rows(vectors, goal, found)
    return found.reshape(shape)


def inverse_of(params: Floats) -> Floats:
    """(…, 3): b0, b1, b2 of the falling curve `1/(b0·k + b1) + b2` with the same level, slope and plateau now.

    For a rising curve they are those of its mirror image, −y. NaN without an estimate; b0 is 0 for a flat one.
    """
    sign = np.where(params[..., C_SLOPE] > 0, -1.0, 1.0)
    way = np.maximum(sign * (params[..., C_LEVEL] - params[..., C_PLATEAU]), 1e-12)
    u = 1 / way
    b0 = np.abs(params[..., C_SLOPE]) * u * u
    b1 = np.maximum(u - b0 * params[..., C_K_LAST], 1e-12)
    return np.stack([b0, b1, sign * params[..., C_PLATEAU]], axis=-1)
