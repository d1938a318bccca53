"""The phases of a training. Each goes on by iterations, and all that it knows is in its arrays and facts, for a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.learn.adam import Adam
from headway.learn.agreement import Agreement
from headway.learn.rollout import Episode, Kept, Played, Setting
from headway.learn.spec import Json, TrainSpec
from headway.policies.mlfs.net import Net

Arrays = dict[str, NDArray[Any]]
PATIENCE = 3
"""Imitation stops when agreement has not risen for so many looks."""
RISE = 0.001


class Ground(Protocol):
    """What a phase trains on."""

    spec: TrainSpec
    recorded: Mapping[str, Sequence[Kept]] | None
    """Decisions of a journal, to be imitated instead of the teacher's."""

    def play(self, episodes: Sequence[Episode]) -> list[Played]:
        """Run episodes; in their order."""
        ...

    def base(self, setting: Setting, seed: int) -> Played:
        """The teacher's episode of these jobs."""
        ...

    def saw(self, ranges: Mapping[str, NDArray[np.float32]]) -> None:
        """Widen the ranges that the network was trained on."""
        ...


class Phase(Protocol):
    """One way to train."""

    @property
    def done(self) -> bool: ...
    def iterate(self, random: np.random.Generator) -> Json:
        """One iteration; what is worth telling of it."""
        ...

    def net(self) -> Net: ...
    def arrays(self) -> Arrays: ...
    def facts(self) -> Json: ...


class Imitate:
    """Phase 1 (`learn.imitation`). An iteration is some hundred steps, and a look at held-out rounds."""

    def __init__(self, ground: Ground, net: Net, arrays: Arrays | None = None, facts: Json | None = None) -> None:
        from headway.learn.imitation import Imitation
        from headway.learn.nets import Twin

        self.ground, self.facts_ = ground, facts or {"best": -1.0, "stale": 0, "adam": 0}
        self.twin, self.best = Twin(net, ground.spec.masks), net
        adam = None
        if arrays is not None:
            self.twin.take(arrays["flat"])
            adam = Adam(arrays["rate"].item(), arrays["m"], arrays["v"], int(self.facts_["adam"]), clip=1.0)
            self.best = Net.from_arrays({name[5:]: array for name, array in arrays.items() if name.startswith("best.")})
        self.learner = Imitation(self.twin, self._watched(), adam)

    @property
    def done(self) -> bool:
        return int(self.facts_["stale"]) >= PATIENCE

    def _watched(self) -> dict[str, list[Kept]]:
        spec = self.ground.spec
        if self.ground.recorded is not None:
            return {head: list(kept) for head, kept in self.ground.recorded.items()}
        episodes = [
            Episode(setting, seed, teacher=spec.teacher, keep=spec.keep, watch=True)
            for setting in spec.settings for seed in spec.seeds
        ]  # fmt: skip
        found: dict[str, list[Kept]] = {"rank": [], "server": [], "move": []}
        for played in self.ground.play(episodes):
            self.ground.saw(played.ranges)
            for head, kept in played.kept.items():
                found[head] += kept
        return found

    def iterate(self, random: np.random.Generator) -> Json:
        loss = self.learner.steps(random)
        agreement = self.agreement(self.twin.net())
        frac = agreement.frac
        risen = frac is not None and frac > float(self.facts_["best"]) + RISE
        if risen:
            self.best = self.twin.net()
        self.facts_ |= {
            "best": frac if risen else self.facts_["best"], "stale": 0 if risen else int(self.facts_["stale"]) + 1,
            "adam": self.learner.adam.steps,
        }  # fmt: skip
        return {"loss": loss, **agreement.to_json()}

    def agreement(self, net: Net) -> Agreement:
        """On held-out rounds: the first held-out seed of each setting."""
        spec, found = self.ground.spec, Agreement()
        episodes = [
            Episode(setting, spec.held_out[0], teacher=spec.teacher, arrays=net.to_arrays(), compare=True)
            for setting in spec.settings
        ]  # fmt: skip
        for played in self.ground.play(episodes):
            if played.agreement is not None:
                found.add(played.agreement)
        return found

    def net(self) -> Net:
        return self.best

    def arrays(self) -> Arrays:
        adam = self.learner.adam
        best: Arrays = {f"best.{name}": array for name, array in self.best.to_arrays().items()}
        return {"flat": self.twin.flat(), "rate": np.array([adam.rate]), "m": adam.m, "v": adam.v, **best}

    def facts(self) -> Json:
        return dict(self.facts_)


class Explore:
    """Phase 2 by PGPE (`learn.pgpe`). An iteration is some pairs of rollouts, each pair on jobs of its own."""

    def __init__(self, ground: Ground, net: Net, arrays: Arrays | None = None, facts: Json | None = None) -> None:
        from headway.learn.pgpe import Pgpe

        spec = ground.spec
        self.ground, self.around, self.count = ground, net, int((facts or {}).get("count", 0))
        self.search = Pgpe.of(net, spec.scope, spec.rate, spec.sigma)
        if spec.masks:
            self.search.hide(spec.masks)
        if arrays is not None:
            s = self.search
            s.mean, s.sigma = arrays["mean"], arrays["sigma"]
            s.adam = Adam(spec.rate, arrays["m"], arrays["v"], int((facts or {})["adam"]))

    def iterate(self, random: np.random.Generator) -> Json:
        spec, search = self.ground.spec, self.search
        epsilon = search.draw(spec.pairs, random)
        cases = [self._case(self.count + k) for k in range(spec.pairs)]
        episodes = [
            Episode(setting, seed, teacher=spec.teacher, arrays=search.net(self.around, search.mean + sign * drawn).to_arrays())
            for (setting, seed), drawn in zip(cases, epsilon, strict=True) for sign in (1, -1)
        ]  # fmt: skip
        played = self.ground.play(episodes)
        bases = [self.ground.base(setting, seed) for setting, seed in cases for _ in range(2)]
        fitness = np.array([spec.fitness(mine, base) for mine, base in zip(played, bases, strict=True)])
        search.step(epsilon, fitness[::2], fitness[1::2])
        self.count += spec.pairs
        known = fitness[np.isfinite(fitness)]
        return {
            "fitness": float(known.mean()) if len(known) else None, "stuck": int(len(fitness) - len(known)),
            "sigma": float(search.sigma[search.free].mean()),
        }  # fmt: skip

    @property
    def done(self) -> bool:
        return False

    def _case(self, number: int) -> tuple[Setting, int]:
        """The jobs of the n-th pair: settings by turns, then seeds."""
        settings, seeds = self.ground.spec.settings, self.ground.spec.seeds
        return settings[number % len(settings)], seeds[number // len(settings) % len(seeds)]

    def net(self) -> Net:
        return self.search.net(self.around)

    def arrays(self) -> Arrays:
        s = self.search
        return {"mean": s.mean, "sigma": s.sigma, "m": s.adam.m, "v": s.adam.v}

    def facts(self) -> Json:
        return {"count": self.count, "adam": self.search.adam.steps}


Maker = Callable[[Ground, Net, "Arrays | None", "Json | None"], Phase]


def phase_of(name: str) -> Maker:
    """Who makes a phase."""
    if name == "imitate":
        return Imitate
    if name == "pgpe":
        return Explore
    from headway.learn.gradient import Gradient, Proximal

    return Gradient if name == "reinforce" else Proximal


def mean_known(values: Sequence[float]) -> float | None:
    """The mean of what is finite; None of nothing."""
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None
