"""scikit-learn's handwritten digits (1,797 pictures of 8 × 8), cut into batches that depend on the step alone.

So a run that goes on from step k sees the same pictures in the same order as one that was never stopped: there is no
sampler and no random state to save. The batch of a step is global; each data-parallel replica takes its part of it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

HELD_OUT = 357
BATCH = 64
NOISE = 0.15
"""Standard deviation of what is added to each pixel (of 0 … 1), in training alone."""


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels (n × 64, 0 … 1) and labels, as `sklearn.datasets.load_digits` reads them; without its import, which takes longer
    than an epoch."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise SystemExit("the examples need scikit-learn's digits: pip install scikit-learn")
    table = np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=",", dtype=np.float32)
    return torch.from_numpy(table[:, :-1] / 16), torch.from_numpy(table[:, -1].astype(np.int64))


class Digits:
    """Training and held-out pictures (n × 1 × 8 × 8, 0 … 1) with their labels; the same split for every seed."""

    def __init__(self, seed: int, batch: int = BATCH) -> None:
        x, y = load()
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1797))
        x, y = x[order].reshape(-1, 1, 8, 8), y[order]
        self.held_out = x[:HELD_OUT], y[:HELD_OUT]
        self._x, self._y = x[HELD_OUT:], y[HELD_OUT:]
        self._seed, self._batch = seed, batch
        self.steps_per_epoch = len(self._y) // batch
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The whole batch of a step: shuffled anew each epoch, with noise that belongs to the step."""
        epoch, at = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, torch.randperm(len(self._y), generator=self._random(epoch, 0))
        rows = self._order[at * self._batch : (at + 1) * self._batch]
        x = self._x[rows]
        return x + NOISE * torch.randn(x.shape, generator=self._random(step, 1)), self._y[rows]

    def _random(self, number: int, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed((self._seed * 1_000_003 + number) * 2 + stream)
