"""MLF-RL's network where it decides: NumPy and Numba alone, from plain arrays. `learn.nets` is its twin for training.

A head scores rows of features one by one, so that it does not matter how many jobs or nodes there are: `score(x) = skip·x +
w3·relu(W2ᵀ·relu(W1ᵀ·x + b1) + b2) + b3`, in float32. Sums run in the order of the columns, so that a score is the same on every
machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core.errors import UserError
from headway.core.jit import kernel
from headway.features import table as f
from headway.features.table import Singles

HEADS = ("rank", "server", "move")
WIDTHS = (64, 32)
COLUMNS = {"rank": f.RANK, "server": f.SERVER, "move": f.MOVE}
PARTS = ("w1", "b1", "w2", "b2", "w3", "b3", "skip")


@kernel
def score_rows(
    n: int, X: Singles, w1: Singles, b1: Singles, w2: Singles, b2: Singles, w3: Singles, b3: Singles, skip: Singles,
    hidden: Singles, out: Singles,
) -> None:  # fmt: skip
    """Score the first `n` rows of `X` (rows × columns). `hidden`: scratch, 2 × the wider layer."""
    columns, first, second = X.shape[1], b1.shape[0], b2.shape[0]
    for i in range(n):
        for j in range(first):
            hidden[0, j] = b1[j]
        for j in range(second):
            hidden[1, j] = b2[j]
        score = b3[0]
        for k in range(columns):
            x = X[i, k]
            if x != 0.0:
                score += skip[k] * x
                for j in range(first):
                    hidden[0, j] += x * w1[k, j]
        for k in range(first):
            x = hidden[0, k]
            if x > 0.0:
                for j in range(second):
                    hidden[1, j] += x * w2[k, j]
        for k in range(second):
            if hidden[1, k] > 0.0:
                score += w3[k] * hidden[1, k]
        out[i] = score


@dataclass(frozen=True, slots=True)
class Head:
    """The weights of one head, float32, rows first."""

    w1: Singles
    b1: Singles
    w2: Singles
    b2: Singles
    w3: Singles
    b3: Singles
    skip: Singles

    def arrays(self) -> tuple[Singles, Singles, Singles, Singles, Singles, Singles, Singles]:
        """In the order in which kernels take them."""
        return self.w1, self.b1, self.w2, self.b2, self.w3, self.b3, self.skip


def shapes(head: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a head's parts."""
    columns, (first, second) = len(COLUMNS[head]), WIDTHS
    return {
        "w1": (columns, first), "b1": (first,), "w2": (first, second), "b2": (second,), "w3": (second,), "b3": (1,),
        "skip": (columns,),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Net:
    """The three heads of MLF-RL."""

    rank: Head
    server: Head
    move: Head

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any]) -> Net:
        """A network from its named arrays.

        Raises:
            UserError: one is missing, has another shape, or holds a number that is none.
        """
        heads = {}
        for head in HEADS:
            parts = {}
            for part, shape in shapes(head).items():
                found = arrays.get(f"{head}.{part}")
                if found is None or tuple(found.shape) != shape:
                    got = "nothing" if found is None else "×".join(map(str, found.shape))
                    raise UserError(f"expected an array of {'×'.join(map(str, shape))}, got {got}", key=f"{head}.{part}")
                parts[part] = np.ascontiguousarray(found, np.float32)
                if not np.isfinite(parts[part]).all():
                    raise UserError("expected finite numbers", key=f"{head}.{part}")
            heads[head] = Head(**parts)
        return Net(**heads)

    def to_arrays(self) -> dict[str, Singles]:
        """Its arrays by name."""
        return {f"{head}.{part}": getattr(getattr(self, head), part) for head in HEADS for part in PARTS}

    @staticmethod
    def plain(seed: int | None = None) -> Net:
        """A network to begin with: jobs by the logarithm of (time left × √GPUs), those with a place a little ahead; nodes as the
        pass chose them; nobody moves. With a seed the hidden layers are small random numbers, without one they are 0."""
        random = np.random.default_rng(0 if seed is None else seed)
        arrays: dict[str, Singles] = {}
        for head in HEADS:
            for part, shape in shapes(head).items():
                array = np.zeros(shape, np.float32)
                if seed is not None and part in ("w1", "w2", "w3"):
                    scale = 0.1 if part == "w3" else 1.0
                    array = (random.standard_normal(shape) * scale * np.sqrt(2.0 / shape[0])).astype(np.float32)
                arrays[f"{head}.{part}"] = array
        rank = arrays["rank.skip"]
        rank[f.RANK.index("left_told")] = -f.LEFT_RANGE
        rank[f.RANK.index("gpus")] = -0.5 * f.GPUS_RANGE
        rank[f.RANK.index("placed")] = 0.2
        arrays["server.skip"][f.SERVER.index("by_pass")] = 20.0
        arrays["move.skip"][f.MOVE.index("stays")] = 20.0
        return Net.from_arrays(arrays)


def scores(head: Head, X: Singles) -> Singles:
    """The score of each row."""
    out, hidden = np.empty(len(X), np.float32), np.empty((2, max(WIDTHS)), np.float32)
    score_rows(len(X), np.ascontiguousarray(X, np.float32), *head.arrays(), hidden, out)
    return out
