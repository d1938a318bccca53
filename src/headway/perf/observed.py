"""Observations of a job made fit for fitting: finite, in order, de-noised, without warm-up, and thinned to a fixed number.

A whole batch is prepared in one compiled pass (`headway.perf.kernels.points`), each job for itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headway.core.arrays import Bools, Floats, Ints

POINTS_MAX = 48
"""Points that a fit sees; more are averaged over spans that shrink towards the present."""
RAW_MAX = 4096
RECENT = 0.02
"""The smallest span of averaging, as a share of the last k."""
SPAN_MAX = 1e6
"""Values lie at most so many times the improvement away: a smaller improvement counts as that much."""
SMALLEST, LARGEST = 1e-100, 1e100
"""Values and k beyond count as not observed: their squares would overflow."""
SMOOTH_FROM, SMOOTH_MORE_FROM = 7, 15
"""Observations from which the median of three neighbours is taken, and of five."""
WARM_UP_FROM, WARM_UP_RUN = 12, 5
NOISE_UNIT = 0.6745 * math.sqrt(6.0)
"""Median of the absolute second differences of normal noise, over its standard deviation."""

O_K_LAST, O_NOW, O_SCALE, O_NOISE, O_BEST, O_SIGN, O_BOUND = range(7)
OBSERVED = 7


@dataclass(frozen=True, slots=True)
class Observed:
    """Prepared observations of `n` jobs, POINTS_MAX wide, of which each job fills the first `size`.

    `t` = k / k_last in (0, 1] and `z`: 1 at the start, 0 now, falling. `y = sign · (now + z · scale)`: all curves are turned so
    that they fall. `about` (jobs × OBSERVED): k_last, now, scale; the standard deviation of an observation, from second
    differences; the best value; sign; and what the value can't fall below (0 for losses, −1 for accuracies that are shares, else
    −∞). `points` counts usable observations before thinning.
    """

    t: Floats
    z: Floats
    size: Ints
    points: Ints
    about: Floats


def clean(k: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    """The finite observations in order of k, at k above 0 (a value at 0 is before training), equal k averaged."""
    from headway.perf.kernels import points

    at, values = np.array(k, np.float64).ravel(), np.array(y, np.float64).ravel()
    size = min(len(at), len(values))
    end = points.clean(at, values, 0, size, np.empty_like(at), np.empty_like(values))
    return at[:end], values[:end]


def noise_of(y: Floats) -> float:
    """Robust standard deviation of the noise on a smooth series: from the second differences."""
    from headway.perf.kernels import points

    return float(points.noise_of(y, 0, len(y), np.empty_like(y)))


def rolling_median(y: Floats, width: int) -> Floats:
    """The centred median of `width` (3 or 5) neighbours; the ends are mirrored. Fewer than three values stay as they are."""
    from headway.perf.kernels.points import smooth

    result = np.array(y, np.float64)
    if len(result) > 2:
        smooth(result, 0, len(result), width, np.empty_like(result))
    return result


def prepare(series: Sequence[tuple[ArrayLike, ArrayLike]], rising: Bools) -> Observed:
    """Prepare the observations (k, y) of each job; `rising` says which of them should go up (accuracies)."""
    from headway.perf.kernels.points import prepare_rows

    n = len(series)
    ks, ys = [], []
    for raw_k, raw_y in series:
        k, y = np.asarray(raw_k, np.float64).ravel(), np.asarray(raw_y, np.float64).ravel()
        count = min(len(k), len(y))
        ks.append(k[:count])
        ys.append(y[:count])
    ends = np.cumsum(np.array([len(k) for k in ks], np.int64))
    k, y = (np.concatenate(parts) if parts else np.empty(0) for parts in (ks, ys))
    seen = Observed(
        np.ones((n, POINTS_MAX)), np.zeros((n, POINTS_MAX)), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros((n, OBSERVED))
    )
    prepare_rows(
        k, y, ends, np.array(rising, np.bool_), np.empty_like(k), np.empty_like(y), seen.t, seen.z, seen.size, seen.points,
        seen.about,
    )  # fmt: skip
    return seen
