"""A binary heap of events to come, ordered by (time, rank and id). Entries that became void are left in it and skipped by their
version."""

from __future__ import annotations

from headway.core.arrays import Ints, Table
from headway.core.jit import kernel
from headway.sim.columns import H_KEY, H_T, X_HEAP


@kernel
def before(H: Table, i: int, j: int) -> bool:
    """Whether entry i comes before entry j."""
    return bool(H[i, H_T] < H[j, H_T] or (H[i, H_T] == H[j, H_T] and H[i, H_KEY] < H[j, H_KEY]))


@kernel
def swap(H: Table, i: int, j: int) -> None:
    for column in range(4):
        H[i, column], H[j, column] = H[j, column], H[i, column]


@kernel
def push(H: Table, X: Ints, t: int, key: int, version: int, what: int) -> None:
    """Add an entry; the caller has made room."""
    i = X[X_HEAP]
    X[X_HEAP] = i + 1
    H[i, 0], H[i, 1], H[i, 2], H[i, 3] = t, key, version, what
    while i > 0:
        parent = (i - 1) >> 1
        if not before(H, i, parent):
            return
        swap(H, i, parent)
        i = parent


@kernel
def sift_down(H: Table, i: int, size: int) -> None:
    """Let entry i sink to its place."""
    while True:
        child = 2 * i + 1
        if child >= size:
            return
        if child + 1 < size and before(H, child + 1, child):
            child += 1
        if not before(H, child, i):
            return
        swap(H, i, child)
        i = child


@kernel
def pop(H: Table, X: Ints) -> None:
    """Remove the first entry."""
    size = X[X_HEAP] - 1
    X[X_HEAP] = size
    for column in range(4):
        H[0, column] = H[size, column]
    sift_down(H, 0, size)
