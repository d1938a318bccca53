"""Observations of a job made fit for fitting: finite, in order, de-noised, without warm-up, and thinned to a fixed number."""

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


@dataclass(frozen=True, slots=True)
class Observed:
    """Prepared observations of `n` jobs. `t` = k / k_last in (0, 1] and `z`: 1 at the start, 0 now, falling; padded to
    POINTS_MAX.

    `w` is 1 where there is a point. `y = sign · (now + z · scale)`: all curves are turned so that they fall.
    """

    t: Floats
    z: Floats
    w: Floats
    k_last: Floats
    now: Floats
    scale: Floats
    noise: Floats
    """Standard deviation of an observation, from second differences, in units of y."""
    best: Floats
    sign: Floats
    bounded: Bools
    """Whether the value can't fall below `bound` (0 for losses, −1 for accuracies that are shares)."""
    bound: Floats
    points: Ints
    """Usable observations before thinning."""


def clean(k: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    """The finite observations in order of k, at k above 0 (a value at 0 is before training), equal k averaged."""
    k, y = np.asarray(k, np.float64).ravel(), np.asarray(y, np.float64).ravel()
    size = min(len(k), len(y))
    k, y = k[:size], y[:size]
    keep = np.isfinite(k) & np.isfinite(y) & (k > SMALLEST) & (k < LARGEST) & (np.abs(y) < LARGEST)
    k, y = k[keep], y[keep]
    if len(k) > 1 and not np.all(np.diff(k) > 0):
        k, which = np.unique(k, return_inverse=True)
        y = np.bincount(which, y) / np.bincount(which)
    if len(k) > RAW_MAX:
        block = -(-len(k) // RAW_MAX)
        starts = np.arange(0, len(k), block)
        counts = np.diff(np.append(starts, len(k)))
        k, y = np.add.reduceat(k, starts) / counts, np.add.reduceat(y, starts) / counts
    return k, y


def rolling_median(y: Floats, width: int) -> Floats:
    """The centred median of `width` (odd) neighbours; the ends are mirrored."""
    padded = np.pad(y, width // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    result: Floats = np.sort(windows, axis=1)[:, width // 2]
    return result


def noise_of(y: Floats) -> float:
    """Robust standard deviation of the noise on a smooth series: from the second differences."""
    if len(y) < 4:
        return 0.0
    return float(np.median(np.abs(np.diff(y, 2)))) / (0.6745 * math.sqrt(6.0))


def without_warm_up(k: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Falling observations from the last one before five in a row lie below the first one."""
    if len(y) < 12:
        return k, y
    below = (y < y[0]).astype(np.int64)
    runs = np.flatnonzero(below[:-4] + below[1:-3] + below[2:-2] + below[3:-1] + below[4:] == 5)
    start = max(int(runs[0]) - 1, 0) if len(runs) else 0
    return (k[start:], y[start:]) if len(y) - start >= 5 else (k, y)


def thinned(k: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most POINTS_MAX averages over spans of k that grow geometrically from the start."""
    if len(k) <= POINTS_MAX:
        return k, y
    scale = np.log(k / k[-1] + RECENT)
    edges = np.linspace(scale[0], scale[-1], POINTS_MAX + 1)
    span = np.minimum(np.searchsorted(edges, scale, side="right") - 1, POINTS_MAX - 1)
    count = np.bincount(span, minlength=POINTS_MAX)
    some = count > 0
    return np.bincount(span, k, POINTS_MAX)[some] / count[some], np.bincount(span, y, POINTS_MAX)[some] / count[some]


def prepare(series: Sequence[tuple[ArrayLike, ArrayLike]], rising: Bools) -> Observed:
    """Prepare the observations (k, y) of each job; `rising` says which of them should go up (accuracies)."""
    n = len(series)
    t, z, w = np.ones((n, POINTS_MAX)), np.zeros((n, POINTS_MAX)), np.zeros((n, POINTS_MAX))
    k_last, now, scale, noise, best = np.ones(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    bounded, bound, points = np.zeros(n, np.bool_), np.zeros(n), np.zeros(n, np.int64)
    sign = np.where(rising, -1.0, 1.0)
    for i, (raw_k, raw_y) in enumerate(series):
        k, y = clean(raw_k, raw_y)
        points[i] = size = len(k)
        if size == 0:
            continue
        low, high = float(y.min()), float(y.max())
        bounded[i] = low >= 0 and (not rising[i] or high <= 1)
        bound[i] = -1.0 if rising[i] else 0.0
        y = y * sign[i]
        noise[i] = noise_of(y)
        if size >= 7:
            y = rolling_median(y, 5 if size >= 15 else 3)
        best[i] = y.min()
        k_last[i] = k[-1]
        k, y = thinned(*without_warm_up(k, y))
        size = len(k)
        now[i] = np.sort(y[-3:])[1] if size >= 6 else y[-1]
        scale[i] = y[: max(1, size // 8)].max() - now[i]
        t[i, :size] = k / k_last[i]
        if scale[i] > 0:
            scale[i] = max(scale[i], float(np.abs(y - now[i]).max()) / SPAN_MAX)
            z[i, :size] = (y - now[i]) / scale[i]
        w[i, :size] = 1.0
    return Observed(t, z, w, k_last, now, scale, noise, best, sign, bounded, bound, points)
