"""Compiled non-negative least squares for few columns: every set of active columns is tried."""

from __future__ import annotations

import math

from headway.core.arrays import Floats, Ints
from headway.core.jit import kernel

RIDGE = 1e-12
"""Added to the diagonal of the normal equations, whose columns have length one."""
BETTER = 1 + 1e-12
"""By this factor a set of columns has to gain more than one that was tried before it."""


@kernel
def solve(m: Floats, x: Floats, size: int) -> None:
    """Solve m·x = right by elimination with partial pivoting. `x` holds the right side before and the solution after; `m` is used
    up."""
    for i in range(size):
        pivot = i
        for r in range(i + 1, size):
            if abs(m[r, i]) > abs(m[pivot, i]):
                pivot = r
        if pivot != i:
            for j in range(i, size):
                m[i, j], m[pivot, j] = m[pivot, j], m[i, j]
            x[i], x[pivot] = x[pivot], x[i]
        for r in range(i + 1, size):
            factor = m[r, i] / m[i, i]
            for j in range(i + 1, size):
                m[r, j] -= factor * m[i, j]
            x[r] -= factor * x[i]
    for i in range(size - 1, -1, -1):
        for j in range(i + 1, size):
            x[i] -= m[i, j] * x[j]
        x[i] /= m[i, i]


@kernel
def next_set(chosen: Ints, size: int, columns: int) -> bool:
    """Go on to the next set of `size` columns in lexical order; False after the last."""
    i = size - 1
    while i >= 0 and chosen[i] == columns - size + i:
        i -= 1
    if i < 0:
        return False
    chosen[i] += 1
    for j in range(i + 1, size):
        chosen[j] = chosen[j - 1] + 1
    return True


@kernel
def nnls_normal(
    gram: Floats, right: Floats, columns: int, best: Floats, chosen: Ints, scale: Floats, part: Floats, x: Floats
) -> None:  # fmt: skip
    """Fill `best` with the x ≥ 0 that fits the normal equations gram·x = right. All of these are COLUMNS_MAX wide; `gram` and
    `right` are overwritten, the last four are room to work in."""
    for i in range(columns):
        scale[i] = math.sqrt(max(gram[i, i], 1e-300))
        best[i] = 0.0
    for i in range(columns):
        right[i] /= scale[i]
        for j in range(columns):
            gram[i, j] = gram[i, j] / scale[i] / scale[j]
    gain_best = 0.0
    for size in range(1, columns + 1):
        for i in range(size):
            chosen[i] = i
        more = True
        while more:
            for i in range(size):
                x[i] = right[chosen[i]]
                for j in range(size):
                    part[i, j] = gram[chosen[i], chosen[j]] + (RIDGE if i == j else 0.0)
            solve(part, x, size)
            gain, least = 0.0, x[0]
            for i in range(size):
                gain += x[i] * right[chosen[i]]
                least = min(least, x[i])
            if least >= 0.0 and gain > gain_best * BETTER:
                gain_best = gain
                for i in range(columns):
                    best[i] = 0.0
                for i in range(size):
                    best[chosen[i]] = x[i]
            more = next_set(chosen, size, columns)
    for i in range(columns):
        best[i] /= scale[i]


@kernel
def nnls_rows(
    a: Floats, y: Floats, found: Floats, gram: Floats, right: Floats, best: Floats, chosen: Ints, scale: Floats, part: Floats,
    x: Floats,
) -> None:  # fmt: skip
    """Solve each problem; the rest is room to work in (see `nnls_normal`)."""
    columns = a.shape[2]
    for problem in range(a.shape[0]):
        for i in range(columns):
            right[i] = 0.0
            for j in range(columns):
                gram[i, j] = 0.0
        for row in range(a.shape[1]):
            for i in range(columns):
                right[i] += a[problem, row, i] * y[problem, row]
                for j in range(columns):
                    gram[i, j] += a[problem, row, i] * a[problem, row, j]
        nnls_normal(gram, right, columns, best, chosen, scale, part, x)
        for i in range(columns):
            found[problem, i] = best[i]
