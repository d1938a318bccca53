"""Non-negative least squares for few columns: every set of active columns is tried (Lawson and Hanson's conditions pick the same
one), so there is nothing to iterate."""

from __future__ import annotations

import numpy as np

from headway.core.arrays import Floats, Ints

COLUMNS_MAX = 6


def room() -> tuple[Floats, Floats, Floats, Ints, Floats, Floats, Floats]:
    """What `nnls_normal` works in: gram, right, best, chosen, scale, part, x."""
    square, line = (COLUMNS_MAX, COLUMNS_MAX), (COLUMNS_MAX,)
    gram, right, best, scale, part, x = (np.empty(shape) for shape in (square, line, line, line, square, line))
    return gram, right, best, np.empty(line, np.int64), scale, part, x


def nnls(a: Floats, y: Floats) -> Floats:
    """x ≥ 0 that minimises |a·x − y|² for each problem: a (problems × rows × columns), y (problems × rows) → (problems ×
    columns).

    Among equally good sets the one with fewer columns wins. Rows that don't count must be zero.
    """
    from headway.perf.kernels.nnls import nnls_rows

    columns = a.shape[2]
    assert 1 <= columns <= COLUMNS_MAX, "2^columns sets are tried"
    found = np.empty((len(a), columns))
    nnls_rows(np.ascontiguousarray(a), np.ascontiguousarray(y), found, *room())
    return found
