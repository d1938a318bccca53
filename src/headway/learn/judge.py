"""How a network does on held-out jobs, and whether MLF-RL may take over from MLF-H (MLFS §3.4; `specs` §4.3).

The paper switches once training "has converged" and gives no test. Ours: the moving mean of the reward over 20 evaluation
episodes has changed by less than 1 % for 5 evaluations, and on held-out jobs the network's mean reward is not below the
teacher's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.learn.phases import Ground, mean_known
from headway.learn.rollout import Episode, Played
from headway.learn.spec import Json, figure_gain
from headway.policies.mlfs.net import Net

WINDOW = 20
"""Evaluation episodes in the moving mean."""
STEADY, CHANGE_MAX = 5, 0.01
SHOWN = ("avg_jct_s", "avg_wait_s", "deadline_ratio", "avg_accuracy", "accuracy_ratio")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an evaluation found: `score` is the objective's mean over held-out episodes (share better than the teacher), −∞ where
    one of them has none; rewards are means over episodes."""

    score: float
    reward: float
    teacher_reward: float
    rewards: tuple[float, ...]
    gains: dict[str, float | None]

    def to_json(self) -> Json:
        """Without infinities."""
        finite = {key: value if math.isfinite(value) else None for key, value in self._numbers().items()}
        return {**finite, "gains": self.gains}

    def _numbers(self) -> dict[str, float]:
        return {"score": self.score, "reward": self.reward, "teacher_reward": self.teacher_reward}


def judge(ground: Ground, net: Net) -> Verdict:
    """Have a network run all held-out jobs, greedily."""
    spec = ground.spec
    cases = [(setting, seed) for setting in spec.settings for seed in spec.held_out]
    played = ground.play([Episode(setting, seed, teacher=spec.teacher, arrays=net.to_arrays()) for setting, seed in cases])
    return verdict(ground, played, [ground.base(setting, seed) for setting, seed in cases])


def verdict(ground: Ground, played: Sequence[Played], bases: Sequence[Played]) -> Verdict:
    """What held-out episodes say of a network beside the teacher's."""
    spec = ground.spec
    pairs = list(zip(played, bases, strict=True))
    fitness = [spec.fitness(mine, base) for mine, base in pairs]
    score = math.fsum(fitness) / len(fitness) if all(map(math.isfinite, fitness)) else -math.inf
    rewards = tuple(spec.whole_reward(mine) for mine in played)
    gains = {name: mean_known([figure_gain(name, m.figures, b.figures) for m, b in pairs]) for name in SHOWN}
    known = tuple(reward if math.isfinite(reward) else 0.0 for reward in rewards)
    return Verdict(score, _mean(rewards), _mean([spec.whole_reward(base) for base in bases]), known, gains)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def switch(rewards: Sequence[Sequence[float]], best: Verdict) -> Json:
    """Whether MLF-RL may take over, from the rewards of all evaluations in turn and the verdict on the network that is kept."""
    means, flat = [], []
    for found in rewards:
        flat += list(found)
        means.append(math.fsum(flat[-WINDOW:]) / len(flat[-WINDOW:]))
    changes = [abs(b - a) / max(abs(a), 1e-9) for a, b in pairwise(means)]
    converged = len(changes) >= STEADY and all(change < CHANGE_MAX for change in changes[-STEADY:])
    beats = bool(best.reward >= best.teacher_reward)
    return {
        "converged": converged, "beats_teacher": beats, "passed": converged and beats, "evaluations": len(rewards),
        "reward": best.reward if math.isfinite(best.reward) else None,
        "teacher_reward": best.teacher_reward if math.isfinite(best.teacher_reward) else None,
        "changes": changes[-STEADY:],
    }  # fmt: skip
