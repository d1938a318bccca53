"""Non-negative least squares for few columns, a whole batch at once: every set of active columns is tried (Lawson and Hanson's
conditions pick the same one), so there is nothing to iterate."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from headway.core.arrays import Floats

COLUMNS_MAX = 6


def nnls(a: Floats, y: Floats) -> Floats:
    """x ≥ 0 that minimises |a·x − y|² for each problem: a (problems × rows × columns), y (problems × rows) → (problems ×
    columns).

    Among equally good sets the one with fewer columns wins. Rows that don't count must be zero.
    """
    columns = a.shape[2]
    assert 1 <= columns <= COLUMNS_MAX, "2^columns sets are tried"
    inner = np.einsum("nri,nrj->nij", a, a)
    right = np.einsum("nri,nr->ni", a, y)
    scale = np.sqrt(np.maximum(np.einsum("nii->ni", inner), 1e-300))
    inner, right = inner / scale[:, :, None] / scale[:, None, :], right / scale
    best = np.zeros((len(a), columns))
    gain_best = np.zeros(len(a))
    for size in range(1, columns + 1):
        for chosen in combinations(range(columns), size):
            index = np.array(chosen)
            part = inner[:, index[:, None], index] + 1e-12 * np.eye(size)
            x = np.linalg.solve(part, right[:, index][:, :, None])[:, :, 0]
            gain = (x * right[:, index]).sum(1)
            better = np.all(x >= 0, axis=1) & (gain > gain_best * (1 + 1e-12))
            gain_best = np.where(better, gain, gain_best)
            rows = np.flatnonzero(better)
            best[rows] = 0.0
            best[rows[:, None], index] = x[rows]
    result: Floats = best / scale
    return result
