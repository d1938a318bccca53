"""Working memory of a round."""

from __future__ import annotations

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.events import EventBuffer


class Scratch:
    """Arrays that a round works in, made once and reused: the plan being drafted and the room that placement kernels take from."""

    def __init__(self) -> None:
        self.O: Table = np.zeros((64, c.OVERRIDE), np.int64)
        self.OT: Table = np.zeros((128, c.PLACE), np.int64)
        self.M: Ints = np.zeros(6, np.int64)
        self.sizes = (-1, -1, -1)
        self.rows = 0
        self.queues: Ints = np.zeros(1, np.int64)
        self.round_events = EventBuffer()

    def fit(self, nodes: int, gpus: int, bucket_shape: tuple[int, ...], rows: int, tasks: int, kinds: int) -> None:
        """Make every array large enough for a plan over the whole state."""
        if self.sizes != (nodes, gpus, bucket_shape[0]):
            self.sizes = (nodes, gpus, bucket_shape[0])
            wide = max(nodes, kinds, 1)
            self.A, self.P = np.zeros((4, wide), np.int64), np.zeros((4, wide), np.int64)
            self.AB, self.PB = np.zeros(bucket_shape, np.int64), np.zeros(bucket_shape, np.int64)
            self.out = np.zeros((6, wide), np.int64)
            self.GB, self.owner = np.zeros(max(gpus, 1), np.int64), np.zeros(max(gpus, 1), np.int64)
            self.dG, self.dN = np.zeros((2, max(gpus, 1)), np.int64), np.zeros((2, max(nodes, 1)), np.int64)
        if rows > self.rows:
            self.rows = 2 * rows
            self.mark, self.waiting = np.zeros(self.rows, np.int64), np.zeros(self.rows, np.int64)
            self.victims, self.seen = np.zeros(self.rows, np.int64), np.zeros(self.rows, np.int64)
        if 2 * rows + 16 > len(self.O):
            self.O = widened(self.O, 4 * rows + 64)
        if tasks + 16 > len(self.OT):
            self.OT = widened(self.OT, 2 * tasks + 128)


def widened(table: Table, rows: int) -> Table:
    """A copy of a (rows × columns) array with more rows."""
    bigger = np.zeros((rows, table.shape[1]), np.int64)
    bigger[: len(table)] = table
    return bigger
