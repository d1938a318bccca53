"""Phase 1: a network learns to decide as its teacher does.

The rank head by pairs: of two jobs that the teacher does not hold equal, the one with the higher utility should have the higher
score (logistic loss). The server and the move head by cross-entropy: the candidate that the teacher took, among all. Adam, at a
rate of 1e-3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.learn.adam import Adam, Vector
from headway.learn.nets import Twin
from headway.learn.rollout import Kept

RATE = 1e-3
BATCH = 64
"""Decisions of each head in a step."""
PAIRS = 128
"""Of jobs, in a decision."""
STEPS = 200
"""Between two looks at how it does."""


def rank_loss(twin: Twin, decisions: Sequence[Kept], random: np.random.Generator) -> Tensor | None:
    """The logistic loss over pairs of jobs that the teacher parts; None where it parts none.

    Half of the pairs are any two jobs, half are of those below the teacher's best: a teacher that stops nobody holds all that
    have a place equal and first, and whom it takes next is among the others.
    """
    X, better, worse, at = [], [], [], 0
    for kept in decisions:
        pairs = _pairs(kept, random)
        if len(pairs):
            used, where = np.unique(pairs, return_inverse=True)
            where = where.reshape(pairs.shape) + at
            X.append(kept.X[used])
            better.append(where[:, 0])
            worse.append(where[:, 1])
            at += len(used)
    if not X:
        return None
    scores = twin.scores("rank", torch.from_numpy(np.concatenate(X)))
    ahead = scores[torch.from_numpy(np.concatenate(better))] - scores[torch.from_numpy(np.concatenate(worse))]
    loss: Tensor = torch.nn.functional.softplus(-ahead).mean()
    return loss


def _pairs(kept: Kept, random: np.random.Generator) -> NDArray[np.int64]:
    """(pairs, 2): the better and the worse of two candidates; without ties."""
    u = kept.utilities
    n = len(kept.X)
    if u is None or n < 2:
        return np.zeros((0, 2), np.int64)
    a, b = random.integers(n, size=(2, PAIRS))
    waiting = np.flatnonzero(u < u.max()) if len(u) else u
    if len(waiting) > 1:
        half = PAIRS // 2
        a[:half], b[:half] = random.choice(waiting, (2, half))
    swap = u[b] > u[a]
    a[swap], b[swap] = b[swap], a[swap]
    apart = u[a] > u[b]
    return np.stack([a[apart], b[apart]], axis=1)


def choice_loss(twin: Twin, head: str, decisions: Sequence[Kept]) -> Tensor | None:
    """Cross-entropy of what was taken among the candidates; None where there was nothing to choose."""
    some = [kept for kept in decisions if len(kept.order) and len(kept.X) > 1]
    if not some:
        return None
    most = max(len(kept.X) for kept in some)
    X = np.zeros((len(some), most, some[0].X.shape[1]), np.float32)
    there = np.zeros((len(some), most), bool)
    for k, kept in enumerate(some):
        X[k, : len(kept.X)], there[k, : len(kept.X)] = kept.X, True
    scores = twin.scores(head, torch.from_numpy(X)).masked_fill(~torch.from_numpy(there), -torch.inf)
    taken = torch.tensor([int(kept.order[0]) for kept in some])
    loss: Tensor = torch.nn.functional.cross_entropy(scores, taken)
    return loss


class Imitation:
    """The state of phase 1: the twin, Adam's, and the decisions that were watched."""

    def __init__(self, twin: Twin, decisions: Mapping[str, Sequence[Kept]], adam: Adam | None = None) -> None:
        self.twin, self.decisions = twin, decisions
        self.adam = adam or Adam.of(len(twin.flat()), RATE, clip=1.0)

    def steps(self, random: np.random.Generator, count: int = STEPS) -> float:
        """So many steps; the mean loss. Without a decision to learn from: 0, and nothing changes."""
        losses = []
        flat: Vector = self.twin.flat()
        for _ in range(count):
            parts = []
            for head, kept in self.decisions.items():
                if not kept:
                    continue
                drawn = [kept[i] for i in random.integers(len(kept), size=min(BATCH, len(kept)))]
                loss = rank_loss(self.twin, drawn, random) if head == "rank" else choice_loss(self.twin, head, drawn)
                if loss is not None:
                    parts.append(loss)
            if not parts:
                break
            total = torch.stack(parts).sum()
            flat = self.adam.descend(flat, self.twin.gradient(total))
            self.twin.take(flat)
            losses.append(float(total.detach()))
        return float(np.mean(losses)) if losses else 0.0
