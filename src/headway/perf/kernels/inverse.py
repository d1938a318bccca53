"""The compiled fit of Optimus' curve to one job: a grid over the plateau, then Gauss–Newton. `headway.perf.optimus` says what
it is and why."""

from __future__ import annotations

import math

import numpy as np

from headway.core.arrays import Bools, Floats, Ints
from headway.core.jit import kernel
from headway.perf.kernels.nnls import nnls_normal, solve
from headway.perf.observed import O_BEST, O_BOUND, O_K_LAST, O_NOW, O_SCALE

GRID = np.concatenate([np.linspace(0, 0.9, 20), 1 - np.geomspace(0.08, 0.001, 20)])
GRID_COUNT = len(GRID)
FIRST_THIRD, SECOND_THIRD, LAST_THIRD = 1 / 256, 1 / 16, 1.0
"""Weights of the first, second and last third of the history."""
STEPS = 6
POINTS_MIN = 3
B0_MAX, B1_MIN, B1_MAX, B2_MAX = 1e6, 1e-6, 1e6, 0.999
U_MIN = 1e-9


@kernel
def loss_of(b: Floats, t: Floats, row: int, size: int, loss: Floats, w: Floats) -> float:
    """The weighted sum of squares of the curve b0, b1, b2."""
    total = 0.0
    for j in range(size):
        rest = loss[j] - 1.0 / max(b[0] * t[row, j] + b[1], U_MIN) - b[2]
        total += w[j] * rest * rest
    return total


@kernel
def normal(b: Floats, t: Floats, row: int, size: int, loss: Floats, w: Floats, inner: Floats, right: Floats) -> None:
    """The normal equations of a Gauss–Newton step from the curve b0, b1, b2, with a touch of damping."""
    for i in range(3):
        right[i] = 0.0
        for j in range(3):
            inner[i, j] = 0.0
    for j in range(size):
        u = max(b[0] * t[row, j] + b[1], U_MIN)
        rest, d1 = loss[j] - 1.0 / u - b[2], -1.0 / (u * u)
        d0 = t[row, j] * d1
        inner[0, 0] += w[j] * d0 * d0
        inner[0, 1] += w[j] * d0 * d1
        inner[0, 2] += w[j] * d0
        inner[1, 1] += w[j] * d1 * d1
        inner[1, 2] += w[j] * d1
        inner[2, 2] += w[j]
        right[0] += w[j] * d0 * rest
        right[1] += w[j] * d1 * rest
        right[2] += w[j] * rest
    damping = 1e-9 * (inner[0, 0] + inner[1, 1] + inner[2, 2]) + 1e-12
    for i in range(3):
        inner[i, i] += damping
        for j in range(i):
            inner[i, j] = inner[j, i]


@kernel
def on_grid(
    t: Floats, row: int, size: int, loss: Floats, w: Floats, b: Floats, tried: Floats, gram: Floats, right: Floats, best: Floats,
    chosen: Ints, scale: Floats, part: Floats, x: Floats,
) -> float:  # fmt: skip
    """Fill `b` with the best curve of the grid; returns its sum of squares."""
    least = math.inf
    for cell in range(GRID_COUNT):
        s0, s1, s2, r0, r1 = 0.0, 0.0, 0.0, 0.0, 0.0
        for j in range(size):
            rest = loss[j] - GRID[cell]
            weight = w[j] * (rest * rest) * (rest * rest)
            s0 += weight
            s1 += weight * t[row, j]
            s2 += weight * t[row, j] * t[row, j]
            r0 += weight * t[row, j] / rest
            r1 += weight / rest
        gram[0, 0], gram[0, 1], gram[1, 0], gram[1, 1], right[0], right[1] = s2, s1, s1, s0, r0, r1
        nnls_normal(gram, right, 2, best, chosen, scale, part, x)
        tried[0], tried[1], tried[2] = best[0], best[1], GRID[cell]
        total = loss_of(tried, t, row, size, loss, w)
        if total < least:
            least = total
            b[0], b[1], b[2] = tried[0], tried[1], tried[2]
    return least


@kernel
def polish(
    t: Floats, row: int, size: int, loss: Floats, w: Floats, b: Floats, tried: Floats, inner: Floats, step: Floats
) -> float:
    """Improve `b` by Gauss–Newton, as long as that improves it; returns its sum of squares."""
    least = loss_of(b, t, row, size, loss, w)
    for _ in range(STEPS):
        normal(b, t, row, size, loss, w, inner, step)
        solve(inner, step, 3)
        tried[0] = min(max(b[0] + step[0], 0.0), B0_MAX)
        tried[1] = min(max(b[1] + step[1], B1_MIN), B1_MAX)
        tried[2] = min(max(b[2] + step[2], 0.0), B2_MAX)
        total = loss_of(tried, t, row, size, loss, w)
        if not total < least:
            break
        least = total
        b[0], b[1], b[2] = tried[0], tried[1], tried[2]
    return least


@kernel
def invert(m: Floats, out: Floats, row: int) -> None:
    """Write the inverse of the symmetric m (3 × 3) to `out[row]`, by cofactors."""
    c00 = m[1, 1] * m[2, 2] - m[1, 2] * m[1, 2]
    c01 = m[0, 2] * m[1, 2] - m[0, 1] * m[2, 2]
    c02 = m[0, 1] * m[1, 2] - m[0, 2] * m[1, 1]
    det = m[0, 0] * c00 + m[0, 1] * c01 + m[0, 2] * c02
    out[row, 0, 0], out[row, 0, 1], out[row, 0, 2] = c00 / det, c01 / det, c02 / det
    out[row, 1, 1] = (m[0, 0] * m[2, 2] - m[0, 2] * m[0, 2]) / det
    out[row, 1, 2] = (m[0, 1] * m[0, 2] - m[0, 0] * m[1, 2]) / det
    out[row, 2, 2] = (m[0, 0] * m[1, 1] - m[0, 1] * m[0, 1]) / det
    out[row, 1, 0], out[row, 2, 0], out[row, 2, 1] = out[row, 0, 1], out[row, 0, 2], out[row, 1, 2]


@kernel
def fit_inverse_rows(
    t: Floats, z: Floats, size: Ints, about: Floats, rising: Bools, loss: Floats, w: Floats, gram: Floats, right: Floats,
    best: Floats, chosen: Ints, scale: Floats, part: Floats, x: Floats, now_b: Floats, tried: Floats, b: Floats,
    covariance: Floats, offset: Floats,
) -> None:  # fmt: skip
    """Fit each job. Fills `b` (jobs × 3), `covariance` (jobs × 3 × 3) and `offset`; the curve is fitted to `offset + sign·y`.

    Room to work in: `loss` and `w` (a point each), those from `gram` to `x` (see `nnls.room`), `now_b` and `tried` (three each).
    """
    for row in range(size.shape[0]):
        n, now, far, k_last = size[row], about[row, O_NOW], about[row, O_SCALE], about[row, O_K_LAST]
        bounded = np.isfinite(about[row, O_BOUND])
        top = 1.5 * abs(about[row, O_BEST])
        offset[row] = (1.0 if rising[row] else 0.0) if bounded else top
        low, high = math.inf, 0.0
        for j in range(n):
            loss[j] = now + z[row, j] * far + offset[row]
            low, high = min(low, loss[j]), max(high, loss[j])
        for i in range(3):
            b[row, i] = np.nan
            for j in range(3):
                covariance[row, i, j] = np.nan
        if n < POINTS_MIN or not low > 1e-9 * high or not far > 0.0:
            continue
        total = 0.0
        for j in range(n):
            loss[j] /= low
            w[j] = FIRST_THIRD if j / n < 1.0 / 3.0 else (SECOND_THIRD if j / n < 2.0 / 3.0 else LAST_THIRD)
            total += w[j]
        on_grid(t, row, n, loss, w, now_b, tried, gram, right, best, chosen, scale, part, x)
        sse = polish(t, row, n, loss, w, now_b, tried, gram, x)
        # The weights say which points matter, not how noisy they are: normalised to a mean of one.
        variance = sse / max(total, 1e-12) * n / max(n - 3, 1)
        normal(now_b, t, row, n, loss, w, gram, x)
        for i in range(3):
            for j in range(3):
                part[i, j] = gram[i, j] * (n / max(total, 1e-12))
        invert(part, covariance, row)
        back = (1.0 / (low * k_last), 1.0 / low, low)
        for i in range(3):
            b[row, i] = now_b[i] * back[i]
            for j in range(3):
                covariance[row, i, j] *= variance * back[i] * back[j]
