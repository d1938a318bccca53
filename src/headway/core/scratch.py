"""Working memory of a round."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.events import EventBuffer

D = TypeVar("D", np.int64, np.float64)


class Scratch:
    """Arrays that a round works in, made once and reused: the plan being drafted and the room that placement kernels take from"""

    def __init__(self) -> None:
        self.M: Ints = np.zeros(7, np.int64)
        self.queues: Ints = np.zeros(1, np.int64)
        self.planned: Ints = np.zeros(1, np.int64)
        self.round_events = EventBuffer()
        self.of_policy: dict[str, Any] = {}
        """A policy's own working memory, by name; filled with anything when a decision begins."""

    def fit_cluster(self, nodes: int, gpus: int, bucket_shape: tuple[int, ...]) -> None:
        """Make every array over nodes, GPUs and buckets as large as the cluster."""
        wide = max(nodes, bucket_shape[0], 1)
        self.A, self.P = np.zeros((4, wide), np.int64), np.zeros((4, wide), np.int64)
        self.AB, self.PB = np.zeros(bucket_shape, np.int64), np.zeros(bucket_shape, np.int64)
        self.out = np.zeros((6, wide), np.int64)
        self.GB, self.owner = np.zeros(max(gpus, 1), np.int64), np.zeros(max(gpus, 1), np.int64)
        self.dG, self.dN = np.zeros((2, max(gpus, 1)), np.int64), np.zeros((2, max(nodes, 1)), np.int64)

    def fit(self, rows: int, tasks: int) -> None:
        """Make every array over job and task rows as large as the tables: a plan may name each job twice (a place and a
        reason)."""
        self.mark, self.waiting = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.victims, self.seen = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.keys_placed, self.keys_waiting = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.O = np.zeros((2 * rows + 16, c.OVERRIDE), np.int64)
        self.OT = np.zeros((tasks + 16, c.PLACE), np.int64)

    def ints(self, name: str, rows: int, columns: int) -> Table:
        """A table that a policy works in within one decision, filled with anything. It is made anew only where it has to be
        larger: fresh memory of some MB costs as much as the work of a round."""
        return self._table(name, rows, columns, np.int64)

    def floats(self, name: str, rows: int, columns: int) -> Floats:
        """As `ints`, of float64."""
        return self._table(name, rows, columns, np.float64)

    def _table(self, name: str, rows: int, columns: int, dtype: type[D]) -> NDArray[D]:
        size, kept = rows * columns, self.of_policy.get(name)
        if kept is None or kept.size < size:
            kept = self.of_policy[name] = np.zeros(size + size // 4, dtype)
        return cast("NDArray[D]", kept[:size].reshape(rows, columns))


def widened(table: Table, rows: int) -> Table:
    """A copy of a (rows × columns) array with more rows."""
    bigger = np.zeros((rows, table.shape[1]), np.int64)
    bigger[: len(table)] = table
    return bigger
