"""Compiled preparation of observations, in place; `headway.perf.observed` says what it is for."""

from __future__ import annotations

import math

import numpy as np

from headway.core.arrays import Bools, Floats, Ints
from headway.core.jit import inner, kernel
from headway.perf.kernels.quantiles import median, middle_of_three
from headway.perf.observed import (
    LARGEST,
    NOISE_UNIT,
    O_BEST,
    O_BOUND,
    O_K_LAST,
    O_NOISE,
    O_NOW,
    O_SCALE,
    O_SIGN,
    POINTS_MAX,
    RAW_MAX,
    RECENT,
    SMALLEST,
    SMOOTH_FROM,
    SMOOTH_MORE_FROM,
    SPAN_MAX,
    WARM_UP_FROM,
    WARM_UP_RUN,
)


@kernel
def merge_sorted(k: Floats, y: Floats, lo: int, hi: int, spare_k: Floats, spare_y: Floats) -> None:
    """Sort the pairs in [lo, hi) by k, stably: runs of 1, 2, 4 … are merged."""
    width = 1
    while width < hi - lo:
        begin = lo
        while begin < hi:
            middle, end = min(begin + width, hi), min(begin + 2 * width, hi)
            left, right = begin, middle
            for at in range(begin, end):
                if left < middle and (right >= end or k[left] <= k[right]):
                    spare_k[at], spare_y[at] = k[left], y[left]
                    left += 1
                else:
                    spare_k[at], spare_y[at] = k[right], y[right]
                    right += 1
            begin = end
        for at in range(lo, hi):
            k[at], y[at] = spare_k[at], spare_y[at]
        width *= 2


@kernel
def clean(k: Floats, y: Floats, lo: int, hi: int, spare_k: Floats, spare_y: Floats) -> int:
    """Keep of [lo, hi) the finite observations at k above 0 (a value at 0 is before training) in order of k: equal k averaged,
    more than RAW_MAX averaged in blocks. Returns where they end."""
    end, ordered = lo, True
    for i in range(lo, hi):
        if k[i] > SMALLEST and k[i] < LARGEST and abs(y[i]) < LARGEST:
            ordered = ordered and (end == lo or k[i] > k[end - 1])
            k[end], y[end] = k[i], y[i]
            end += 1
    if not ordered:
        merge_sorted(k, y, lo, end, spare_k, spare_y)
        at, i = lo, lo
        while i < end:
            here, total, same = k[i], y[i], 1
            while i + same < end and k[i + same] == here:
                total += y[i + same]
                same += 1
            k[at], y[at] = here, total / same
            at += 1
            i += same
        end = at
    if end - lo > RAW_MAX:
        block = (end - lo + RAW_MAX - 1) // RAW_MAX
        at, i = lo, lo
        while i < end:
            many, sum_k, sum_y = min(block, end - i), 0.0, 0.0
            for j in range(i, i + many):
                sum_k += k[j]
                sum_y += y[j]
            k[at], y[at] = sum_k / many, sum_y / many
            at += 1
            i += many
        end = at
    return end


@kernel
def noise_of(y: Floats, lo: int, hi: int, spare: Floats) -> float:
    """Robust standard deviation of the noise on a smooth series: from the second differences."""
    if hi - lo < 4:
        return 0.0
    for i in range(lo, hi - 2):
        spare[i] = abs((y[i + 2] - y[i + 1]) - (y[i + 1] - y[i]))
    return median(spare, lo, hi - 2) / NOISE_UNIT


@inner
def mirrored(i: int, lo: int, hi: int) -> int:
    """An index that runs over an end of [lo, hi), as far inside of it."""
    return 2 * lo - i if i < lo else (2 * (hi - 1) - i if i >= hi else i)


@kernel
def smooth(y: Floats, lo: int, hi: int, width: int, spare: Floats) -> None:
    """Put the centred median of `width` neighbours (3 or 5) in place of each value; the ends are mirrored."""
    for i in range(lo, hi):
        b, c, d = y[mirrored(i - 1, lo, hi)], y[i], y[mirrored(i + 1, lo, hi)]
        if width == 3:
            spare[i] = middle_of_three(b, c, d)
        else:
            a, e = y[mirrored(i - 2, lo, hi)], y[mirrored(i + 2, lo, hi)]
            # The median of five is that of e and what is left of the other four without their least and their greatest.
            low = max(min(a, b), min(c, d))
            high = min(max(a, b), max(c, d))
            spare[i] = middle_of_three(e, low, high)
    for i in range(lo, hi):
        y[i] = spare[i]


@kernel
def after_warm_up(y: Floats, lo: int, hi: int) -> int:
    """Where falling observations begin to count: at the last one before five in a row lie below the first one."""
    if hi - lo < WARM_UP_FROM:
        return lo
    run = 0
    for i in range(lo, hi):
        run = run + 1 if y[i] < y[lo] else 0
        if run == WARM_UP_RUN:
            start = max(i - WARM_UP_RUN, lo)
            return start if hi - start >= 5 else lo
    return lo


@kernel
def thin(k: Floats, y: Floats, lo: int, hi: int, t: Floats, z: Floats, row: int) -> int:
    """Write at most POINTS_MAX averages over spans of k that grow geometrically from the start; returns how many."""
    if hi - lo <= POINTS_MAX:
        for i in range(lo, hi):
            t[row, i - lo], z[row, i - lo] = k[i], y[i]
        return hi - lo
    first = math.log(k[lo] / k[hi - 1] + RECENT)
    step = (math.log(1.0 + RECENT) - first) / POINTS_MAX
    count, span, many, sum_k, sum_y = 0, 0, 0, 0.0, 0.0
    for i in range(lo, hi):
        here, scale = span, math.log(k[i] / k[hi - 1] + RECENT)
        while here < POINTS_MAX - 1 and scale >= first + (here + 1) * step:
            here += 1
        if here != span and many > 0:
            t[row, count], z[row, count] = sum_k / many, sum_y / many
            count += 1
            many, sum_k, sum_y = 0, 0.0, 0.0
        span = here
        many += 1
        sum_k += k[i]
        sum_y += y[i]
    t[row, count], z[row, count] = sum_k / many, sum_y / many
    return count + 1


@kernel
def prepare_rows(
    k: Floats, y: Floats, ends: Ints, rising: Bools, spare_k: Floats, spare_y: Floats, t: Floats, z: Floats, size: Ints,
    points: Ints, about: Floats,
) -> None:  # fmt: skip
    """Prepare each job's observations, which end at `ends` and are overwritten."""
    lo = 0
    for row in range(ends.shape[0]):
        after = ends[row]
        hi = clean(k, y, lo, after, spare_k, spare_y)
        points[row] = hi - lo
        sign = -1.0 if rising[row] else 1.0
        about[row, O_SIGN], about[row, O_K_LAST], about[row, O_BOUND] = sign, 1.0, -np.inf
        if hi > lo:
            low, high = y[lo], y[lo]
            for i in range(lo, hi):
                low, high = min(low, y[i]), max(high, y[i])
                y[i] *= sign
            if low >= 0.0 and (not rising[row] or high <= 1.0):
                about[row, O_BOUND] = -1.0 if rising[row] else 0.0
            about[row, O_NOISE] = noise_of(y, lo, hi, spare_y)
            if hi - lo >= SMOOTH_FROM:
                smooth(y, lo, hi, 5 if hi - lo >= SMOOTH_MORE_FROM else 3, spare_y)
            best = y[lo]
            for i in range(lo, hi):
                best = min(best, y[i])
            about[row, O_BEST], about[row, O_K_LAST] = best, k[hi - 1]
            size[row] = thin(k, y, after_warm_up(y, lo, hi), hi, t, z, row)
            scaled(t, z, row, size[row], about)
        lo = after


@inner
def scaled(t: Floats, z: Floats, row: int, size: int, about: Floats) -> None:
    """Count k in its last one, and values from the present one in the improvement so far."""
    now = z[row, size - 1]
    if size >= 6:
        now = middle_of_three(z[row, size - 3], z[row, size - 2], now)
    top, far = z[row, 0], 0.0
    for i in range(max(1, size // 8)):
        top = max(top, z[row, i])
    for i in range(size):
        t[row, i] /= about[row, O_K_LAST]
        z[row, i] -= now
        far = max(far, abs(z[row, i]))
    scale = top - now
    if scale > 0.0:
        scale = max(scale, far / SPAN_MAX)
    for i in range(size):
        z[row, i] = z[row, i] / scale if scale > 0.0 else 0.0
    about[row, O_NOW], about[row, O_SCALE] = now, scale
