"""Parameter-exploring policy gradients (PGPE: Sehnke et al., Neural Networks 23, 2010), with symmetric sampling.

Each rollout draws parameters θ ~ N(μ, σ²) and keeps them for the whole episode: a scheduler that explores anew in each
round would make jobs give way to each other and back. Samples come in pairs μ ± ε on the same seed of the same workload, so
that what the workload does falls out of their difference; μ follows ½ (f⁺ − f⁻) ε / σ², σ follows
½ (f⁺ + f⁻ − 2 b)(ε² − σ²) / σ³, b being the mean over the iteration. Fitness is divided by its spread, and the
steps of μ are Adam's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.learn.adam import Adam, Vector
from headway.policies.mlfs.net import Net, shapes

SCOPES = {
    "skip": ("rank.skip",),
    "skips": ("rank.skip", "server.skip", "move.skip"),
    "last": ("rank.skip", "rank.w3", "rank.b3"),
    "lasts": ("rank.skip", "rank.w3", "rank.b3", "server.skip", "server.w3", "move.skip", "move.w3"),
}
"""Which arrays are searched, by the name of a scope."""
SIGMA_RATE = 0.1
SIGMA_SHRINK = 0.5
"""σ changes by no more than this factor, up or down, in an iteration."""
SIGMA_MIN = 1e-4


@dataclass
class Pgpe:
    """The search's state: where it is, how far it looks, and Adam's. All of it is arrays, for a checkpoint."""

    names: tuple[str, ...]
    mean: Vector
    sigma: Vector
    free: NDArray[np.bool_]
    """Which parameters are searched; a hidden column stays as it is."""
    adam: Adam

    @staticmethod
    def of(net: Net, scope: str, rate: float, sigma: float) -> Pgpe:
        """A search around a network; `sigma` is the spread of every weight that the scope names."""
        names, arrays = SCOPES[scope], net.to_arrays()
        mean = np.concatenate([arrays[name].ravel() for name in names]).astype(np.float64)
        return Pgpe(names, mean, np.full(len(mean), sigma), np.ones(len(mean), bool), Adam.of(len(mean), rate))

    def hide(self, masks: dict[str, NDArray[np.float32]]) -> None:
        """Leave alone what a mask hides of a head's skip."""
        at = 0
        for name, size in self._sizes():
            head, part = name.split(".")
            if part == "skip" and head in masks:
                self.free[at : at + size] &= masks[head] > 0
            at += size

    def _sizes(self) -> list[tuple[str, int]]:
        parts = [name.split(".") for name in self.names]
        return [(name, int(np.prod(shapes(head)[part]))) for name, (head, part) in zip(self.names, parts, strict=True)]

    def draw(self, pairs: int, random: np.random.Generator) -> NDArray[np.float64]:
        """(pairs, parameters): the ε of each pair."""
        drawn: NDArray[np.float64] = random.standard_normal((pairs, len(self.mean))) * self.sigma * self.free
        return drawn

    def net(self, base: Net, flat: Vector | None = None) -> Net:
        """A network with these parameters; the others are `base`'s."""
        arrays, at = dict(base.to_arrays()), 0
        values = self.mean if flat is None else flat
        for name in self.names:
            shape = arrays[name].shape
            size = arrays[name].size
            arrays[name] = values[at : at + size].reshape(shape).astype(np.float32)
            at += size
        return Net.from_arrays(arrays)

    def step(self, epsilon: NDArray[np.float64], plus: Vector, minus: Vector) -> None:
        """Follow the gradient that pairs tell: `plus` and `minus` are the fitness (more is better) of μ + ε and μ − ε.

        A pair of which one side has no finite fitness tells nothing, and is left out; without any nothing changes.
        """
        known = np.isfinite(plus) & np.isfinite(minus)
        if not known.any():
            return
        epsilon, plus, minus = epsilon[known], plus[known], minus[known]
        spread = float(np.std(np.concatenate([plus, minus])))
        if spread <= 0.0:
            return
        half = (plus - minus) / (2 * spread)
        gradient = np.where(self.free, (half[:, None] * epsilon).mean(axis=0) / np.maximum(self.sigma, SIGMA_MIN) ** 2, 0.0)
        # In units of σ, so that Adam's rate is a share of how far the search looks.
        self.mean = self.mean + self.sigma * (self.adam.descend(np.zeros(len(self.mean)), -gradient * self.sigma) * self.free)
        level = (plus + minus) / 2
        odd = (level - level.mean()) / spread
        change = (odd[:, None] * (epsilon**2 - self.sigma**2) / np.maximum(self.sigma, SIGMA_MIN) ** 2).mean(axis=0)
        factor = np.exp(np.clip(SIGMA_RATE * change, np.log(SIGMA_SHRINK), -np.log(SIGMA_SHRINK)))
        self.sigma = np.where(self.free, np.maximum(self.sigma * factor, SIGMA_MIN), self.sigma)
