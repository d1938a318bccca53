"""Phase 2 by policy gradient: REINFORCE (Williams 1992) with a baseline for each step, and PPO (Schulman et al. 2017) beside.

∇J = E[Σ_t ∇log π(a_t|s_t) (R_t − b_t)]: R_t is the discounted reward of the rounds that follow (Eq. 7), b_t its mean at round t
over rollouts of the same jobs, as in DeepRM and in the code of MLFS's authors. Rollouts are of different lengths: they are
aligned by their rounds, and b_t is the mean of those that got so far. Advantages are divided by their spread; the entropy of
each choice has a bonus; the gradient's norm is clipped to 1.

An order of jobs is drawn as Plackett and Luce have it, which Gumbel noise on the scores does: the first by softmax of all, the
next by softmax of those left. Those count that have places after the pass, the first 64 of them.

Rewards that are no number end in no change: a rollout with one is left out. Where all candidates are masked, or there is none,
there was no choice: it has probability 1 and entropy 0. A rollout alone is its own baseline, and teaches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.learn.adam import Adam, Vector
from headway.learn.nets import Twin
from headway.learn.phases import Arrays, Ground
from headway.learn.rollout import US_PER_S, Episode, Kept, Noise, Played
from headway.learn.spec import Json
from headway.metrics.reward import returns, reward
from headway.policies.mlfs.net import Net

POSITIONS = 64
CLIP_NORM = 1.0
EPOCHS, CLIP = 4, 0.2
"""PPO: passes over a batch, and how far a choice's probability may move in them."""
RATIO_MAX = 20.0
"""Of the logarithm of a ratio of probabilities."""
ROUND_US = 60 * US_PER_S


@dataclass(frozen=True, slots=True)
class Step:
    """A choice, and by how much what followed was better than usual, in units of the batch's spread."""

    head: str
    kept: Kept
    advantage: float


def log_probability(logits: Tensor, order: Tensor, mask: Tensor | None = None) -> Tensor:
    """The logarithm of the probability that the candidates `order` are drawn first, in this order (Plackett–Luce).

    `mask` (candidates): True for those there are. What `order` names beyond them, or beyond its first 64, does not count; of
    nothing it is 0.
    """
    order = order[:POSITIONS]
    if mask is not None:
        order = order[mask[order]]
    if not len(order):
        return logits.new_zeros(())
    rest = torch.ones(len(logits), dtype=torch.bool) if mask is None else mask.clone()
    rest[order] = False
    chosen = logits[order]
    left = torch.logcumsumexp(chosen.flip(0), 0).flip(0)
    if rest.any():
        left = torch.logaddexp(left, torch.logsumexp(logits[rest], 0))
    found: Tensor = (chosen - left).sum()
    return found


def entropy(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Of the first choice, in nats; 0 where there is none."""
    there = logits if mask is None else logits[mask]
    if not len(there):
        return logits.new_zeros(())
    logs = torch.log_softmax(there, 0)
    found: Tensor = -(logs.exp() * logs).sum()
    return found


def steps_of(played: Sequence[Played], betas: Sequence[float]) -> list[Step]:
    """The choices of rollouts of the same jobs, with their advantages."""
    curves: list[NDArray[np.float64] | None] = []
    for one in played:
        rewards = rewards_of(one, betas)
        curves.append(None if rewards is None else returns(rewards))
    known = [curve for curve in curves if curve is not None]
    longest = max(map(len, known), default=0)
    padded = np.full((len(known), longest), np.nan)
    for row, credited in enumerate(known):
        padded[row, : len(credited)] = credited
    counts = np.maximum((~np.isnan(padded)).sum(axis=0), 1)
    usual = np.nansum(padded, axis=0) / counts
    found: list[tuple[str, Kept, float]] = []
    for one, curve in zip(played, curves, strict=True):
        if curve is None:
            continue
        for head, kept in one.kept.items():
            for choice in kept:
                at = choice.now_us // ROUND_US - one.first_round
                if 0 <= at < len(curve) and len(choice.X) and len(choice.order):
                    found.append((head, choice, float(curve[at] - usual[at])))
    spread = float(np.std([advantage for *_, advantage in found])) if found else 0.0
    if not np.isfinite(spread) or spread < 1e-12:
        return []
    return [Step(head, choice, advantage / spread) for head, choice, advantage in found]


def rewards_of(played: Played, betas: Sequence[float]) -> NDArray[np.float64] | None:
    """The reward of each round; None where there is none, or one is no number."""
    if not len(played.goals) or np.isnan(played.goals).any():
        return None
    found = reward(played.goals, betas)
    return found if np.isfinite(found).all() else None


class Learner:
    """What REINFORCE and PPO share: the twin, Adam's, and a batch of choices."""

    def __init__(self, twin: Twin, adam: Adam, bonus: float, noise: float) -> None:
        self.twin, self.adam, self.bonus, self.noise = twin, adam, bonus, max(noise, 1e-6)

    def logs(self, steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
        """(choices) the logarithm of each choice's probability, and its entropy."""
        logs, chaos = [], []
        for step in steps:
            logits = self.twin.scores(step.head, torch.from_numpy(step.kept.X)) / self.noise
            logs.append(log_probability(logits, torch.from_numpy(step.kept.order)))
            chaos.append(entropy(logits))
        return torch.stack(logs), torch.stack(chaos)

    def reinforce(self, steps: Sequence[Step]) -> float:
        """One step up the gradient; the loss. Without a choice to learn from nothing changes."""
        if not steps:
            return 0.0
        logs, chaos = self.logs(steps)
        advantage = torch.tensor([step.advantage for step in steps])
        return self._descend(-(advantage * logs).mean() - self.bonus * chaos.mean())

    def proximal(self, steps: Sequence[Step]) -> float:
        """Some steps, as far as the probabilities stay near those with which the choices were made; the mean loss."""
        if not steps:
            return 0.0
        with torch.no_grad():
            before = self.logs(steps)[0]
        advantage = torch.tensor([step.advantage for step in steps])
        losses = []
        for _ in range(EPOCHS):
            logs, chaos = self.logs(steps)
            ratio = (logs - before).clamp(-RATIO_MAX, RATIO_MAX).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            losses.append(self._descend(-gain.mean() - self.bonus * chaos.mean()))
        return float(np.mean(losses))

    def _descend(self, loss: Tensor) -> float:
        flat: Vector = self.twin.flat()
        self.twin.take(self.adam.descend(flat, self.twin.gradient(loss)))
        return float(loss.detach())


class Gradient:
    """REINFORCE: an iteration is some rollouts of one sequence of jobs, and one step."""

    def __init__(self, ground: Ground, net: Net, arrays: Arrays | None = None, facts: Json | None = None) -> None:
        spec = ground.spec
        self.ground, self.count = ground, int((facts or {}).get("count", 0))
        twin = Twin(net, spec.masks)
        adam = Adam.of(len(twin.flat()), spec.gradient_rate, clip=CLIP_NORM)
        if arrays is not None:
            twin.take(arrays["flat"])
            adam = Adam(spec.gradient_rate, arrays["m"], arrays["v"], int((facts or {})["adam"]), CLIP_NORM)
        self.learner = Learner(twin, adam, spec.entropy, spec.noise)

    @property
    def done(self) -> bool:
        return False

    def iterate(self, random: np.random.Generator) -> Json:
        spec = self.ground.spec
        setting = spec.settings[self.count % len(spec.settings)]
        seed = spec.seeds[self.count // len(spec.settings) % len(spec.seeds)]
        arrays = self.net().to_arrays()
        episodes = [
            Episode(
                setting, seed, teacher=spec.teacher, arrays=arrays, keep=spec.keep // 4,
                noise=Noise(int(random.integers(2**31)), spec.noise, spec.noise),
            )
            for _ in range(spec.rollouts)
        ]  # fmt: skip
        played = self.ground.play(episodes)
        for one in played:
            self.ground.saw(one.ranges)
        steps = steps_of(played, spec.weights)
        self.count += 1
        loss = self.update(steps)
        base = self.ground.base(setting, seed)
        fitness = np.array([spec.fitness(one, base) for one in played])
        known = fitness[np.isfinite(fitness)]
        return {
            "loss": loss, "choices": len(steps), "fitness": float(known.mean()) if len(known) else None,
            "stuck": int(len(fitness) - len(known)),
        }  # fmt: skip

    def update(self, steps: Sequence[Step]) -> float:
        """Learn from the choices; the loss."""
        return self.learner.reinforce(steps)

    def net(self) -> Net:
        return self.learner.twin.net()

    def arrays(self) -> Arrays:
        adam = self.learner.adam
        return {"flat": self.learner.twin.flat(), "m": adam.m, "v": adam.v}

    def facts(self) -> Json:
        return {"count": self.count, "adam": self.learner.adam.steps}


class Proximal(Gradient):
    """PPO: the same, with some steps in an iteration."""

    def update(self, steps: Sequence[Step]) -> float:
        return self.learner.proximal(steps)
