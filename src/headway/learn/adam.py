"""Adam (Kingma, Ba 2015) on a vector, with the norm of the gradient clipped. Its state is plain arrays, for a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
B1, B2, TINY = 0.9, 0.999, 1e-8


@dataclass
class Adam:
    """`descend` goes one step downhill."""

    rate: float
    m: Vector
    v: Vector
    steps: int = 0
    clip: float = 0.0
    """The largest norm of a gradient; 0: any."""

    @staticmethod
    def of(size: int, rate: float, clip: float = 0.0) -> Adam:
        """One that has not stepped yet."""
        return Adam(rate, np.zeros(size), np.zeros(size), 0, clip)

    def descend(self, at: Vector, gradient: Vector) -> Vector:
        """The point after a step. A gradient with a number that is not finite is no direction: the point stays."""
        if not np.isfinite(gradient).all():
            return at
        norm = float(np.linalg.norm(gradient))
        if self.clip and norm > self.clip:
            gradient = gradient * (self.clip / norm)
        self.steps += 1
        self.m = B1 * self.m + (1 - B1) * gradient
        self.v = B2 * self.v + (1 - B2) * gradient**2
        mean, scale = self.m / (1 - B1**self.steps), self.v / (1 - B2**self.steps)
        found: Vector = at - self.rate * mean / (np.sqrt(scale) + TINY)
        return found
