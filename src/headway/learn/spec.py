"""What to train, and what it is worth: the settings, the teacher, the seeds, and the objective."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.features.table import ML_COLUMNS, MOVE, RANK, SERVER
from headway.learn.rollout import Played, Setting
from headway.metrics.compare import HIGHER_IS_BETTER
from headway.metrics.reward import BETAS, reward, terms

Json = dict[str, Any]
REWARD = "reward"
"""The objective of Eq. 7; the others are figures."""
JCT_ALONE = (1.0, 0.0, 0.0, 0.0, 0.0)
WHOLE = ("avg_jct_s", "deadline_ratio", "accuracy_ratio", "avg_accuracy", "cross_node_bytes")
PHASES = ("imitate", "reinforce", "ppo", "pgpe")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """A training, whole: the same spec gives the same network, but for a budget of time."""

    settings: tuple[Setting, ...]
    kind: str = "mlf-rl"
    teacher: str = "mlf-h"
    phases: tuple[str, ...] = ("imitate", "pgpe")
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    held_out: tuple[int, ...] = (50, 51, 52, 53)
    seed: int = 0
    objective: tuple[tuple[str, float], ...] = ((REWARD, 1.0),)
    betas: tuple[float, ...] = BETAS
    normalize: bool = True
    judge_every: int = 5
    keep: int = 600
    """Decisions of each head that are kept of an episode, for phases that learn from them."""
    pairs: int = 6
    """PGPE: pairs of rollouts in an iteration."""
    journal_sha256: str = ""
    """Of the events of the journal whose policy is imitated."""
    scope: str = "skip"
    sigma: float = 0.3
    rate: float = 0.3
    """PGPE: step of the mean, in σ."""
    rollouts: int = 10
    """REINFORCE and PPO: rollouts of the same jobs in an iteration."""
    gradient_rate: float = 1e-4
    entropy: float = 0.01
    noise: float = 1.0
    """REINFORCE and PPO: scale of the Gumbel noise."""

    def to_json(self) -> Json:
        """All of it, ready for JSON."""
        return asdict(self)

    @property
    def weights(self) -> tuple[float, ...]:
        """The reward's β: of `rl-placement` the JCT alone."""
        return JCT_ALONE if self.kind == "rl-placement" else self.betas

    @property
    def masks(self) -> dict[str, NDArray[np.float32]] | None:
        """What the network may see: of `rl-placement` nothing that comes from machine learning."""
        if self.kind != "rl-placement":
            return None
        names = {"rank": RANK, "server": SERVER, "move": MOVE}
        return {head: np.array([name not in ML_COLUMNS for name in of], np.float32) for head, of in names.items()}

    def fitness(self, played: Played, base: Played) -> float:
        """How much better an episode is than the teacher's of the same jobs, as a share; NaN where that cannot be told."""
        total = 0.0
        for name, weight in self.objective:
            gain = self._reward_gain(played, base) if name == REWARD else figure_gain(name, played.figures, base.figures)
            total += weight * gain
        return total / sum(weight for _, weight in self.objective)

    def reward_of(self, played: Played) -> float:
        """The mean reward of an episode's rounds; NaN of none, and where jobs waited for ever."""
        return float(reward(played.goals, self.weights).mean()) if len(played.goals) else math.nan

    def whole_reward(self, played: Played) -> float:
        """The reward of an episode as one window (Eq. 7): what becomes of its jobs, each counted once. NaN where jobs waited for
        ever. The mean over rounds counts an hour in which only the longest jobs end as much as one in which all others do.
        """
        of = played.figures
        if of is None or not of.get("makespan_s"):
            return math.nan
        told = {name: math.nan if (value := of.get(name)) is None else value for name in WHOLE}
        goals = terms(
            [told["avg_jct_s"]], [told["deadline_ratio"]], [told["accuracy_ratio"]], [told["avg_accuracy"]],
            told["cross_node_bytes"], window_s=float(of["makespan_s"] or 1.0),
        )  # fmt: skip
        return float(reward(goals, self.weights))

    def _reward_gain(self, played: Played, base: Played) -> float:
        mine, theirs = self.reward_of(played), self.reward_of(base)
        return (mine - theirs) / max(abs(theirs), 1e-9)


def figure_gain(name: str, mine: Mapping[str, float | None] | None, base: Mapping[str, float | None] | None) -> float:
    """The improvement of one figure, as a share of the base's; NaN where one of them is not known."""
    y, z = (None if side is None else side.get(name) for side in (mine, base))
    if y is None or not z:
        return math.nan
    return (1.0 if name in HIGHER_IS_BETTER else -1.0) * (y - z) / abs(z)
