"""The simulator as a Gymnasium environment: `headway/Cluster-v0` (`docs/environment.md`).

One step is one pick of the rank stage of MLF-RL (`policies.mlfs.rl`): who of this round's candidates is next to hold places, or
*stay*, which ends the round and leaves all others where they are. The order that has been picked goes through the preemptive
pass, as under `srtf`, and time goes on to the next round in which somebody waits. The reward of the step that ends a round is Eq. 7 of
the time until then (`metrics.reward`); of any other, 0.

It needs Gymnasium (`pip install 'headway[learn]'`). The simulation itself is `sim.episode`, which does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import UserError, did_you_mean, shown
from headway.core.units import US_PER_S
from headway.features.table import RANK
from headway.metrics.reward import BETAS, TERM_NAMES, reward
from headway.sim import gym_names
from headway.sim.episode import CLUSTER, WORKLOAD, Episode, Setting
from headway.workloads.cluster import Cluster
from headway.workloads.schema import Workload

try:
    import gymnasium as gym
    from gymnasium import spaces
    from gymnasium.error import InvalidAction, ResetNeeded
except ImportError:
    raise UserError("needs Gymnasium: pip install 'headway[learn]'", key="environment") from None

LOW, HIGH = -1.0, 4.0
"""Bounds of every feature: those that can go beyond are clipped to them. Nearly all lie in [0, 1]."""
HORIZON = 20_000
"""Rounds with a decision after which an episode is cut off: two weeks of rounds a minute apart."""
ROWS, QUEUE = 128, 64
OPTIONS = ("workload", "cluster")
Observation = dict[str, NDArray[Any]]
Info = dict[str, Any]


class ClusterEnv(gym.Env[Any, Any]):
    """A cluster whose jobs are ranked pick by pick.

    Observation (`Q_MAX` is `rows`, `F_RANK` the number of columns of `features.table.RANK`):
        jobs: (Q_MAX, F_RANK) float32 in [LOW, HIGH], the candidates by remaining time; rows of zeros after the last.
        picked: (Q_MAX,) float32 in [0, 1]: 1/k for the k-th pick of this round, 0 for who has not been picked.
        mask: (Q_MAX + 1,) int8: 1 for what may be done now. The last entry, *stay*, always is.

    Action: a row of `jobs`, or Q_MAX for *stay*. The round also ends when nobody is left to pick.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  Gymnasium's own name and type

    def __init__(
        self, workload: str | Workload = WORKLOAD, cluster: str | Cluster = CLUSTER, *, round_s: float = 60.0,
        sharing: bool = False, beside: str = "", rows: int = ROWS, queue: int = QUEUE, horizon: int = HORIZON,
        betas: Sequence[float] = BETAS, strict: bool = False, datasets: Any = None, render_mode: str | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            workload: a spec string, drawn anew with each episode's seed, or a `Workload`.
            cluster: a spec string, or a `Cluster`.
            round_s: seconds between rounds.
            sharing: put jobs that allow it side by side on one GPU.
            beside: what stands beside the picks: `mlf-c[:key=value,…]`, or nothing.
            rows: Q_MAX. Where there are more candidates, those with places that have the least left are not shown, nor are
                the waiting ones with the most left.
            queue: so many waiting jobs are shown in any case.
            horizon: rounds with a decision after which an episode is truncated.
            betas: the weights of the reward's five terms.
            strict: a pick that the mask forbids raises `InvalidAction`; else it is taken as *stay*.

        Raises:
            UserError: a number out of its range. What spec strings name is read by `reset`.
        """
        if not 2 <= rows <= 100_000 or not 1 <= queue < rows:
            raise UserError(
                f"expected 2 to 100,000 rows and a queue below that, got {shown(rows)} and {shown(queue)}", key="rows"
            )
        if horizon < 1:
            raise UserError(f"expected at least 1 round, got {shown(horizon)}", key="horizon")
        if render_mode is not None:
            raise UserError(f"nothing is drawn; expected None, got {shown(render_mode)}", key="render_mode")
        self.setting = Setting(
            workload=workload, cluster=cluster, round_s=round_s, sharing=sharing, beside=beside, datasets=datasets
        )
        self.rows, self.queue, self.horizon, self.strict = rows, queue, horizon, strict
        self.betas = tuple(betas)
        reward(np.zeros(len(TERM_NAMES)), self.betas)
        self.render_mode = None
        self.observation_space = spaces.Dict(
            {
                "jobs": spaces.Box(LOW, HIGH, (rows, len(RANK)), np.float32),
                "picked": spaces.Box(0.0, 1.0, (rows,), np.float32),
                "mask": spaces.MultiBinary(rows + 1),
            }
        )
        self.action_space = spaces.Discrete(rows + 1)
        self.episode: Episode | None = None
        self.done = True

    # -- Gymnasium's side -----------------------------------------------------------------------------------------
    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Info]:
        """A new episode, up to its first decision.

        Its seed is `seed`, and where none is given one drawn from the last that was. `options`: `workload` and `cluster`, from
        now on instead of those of the constructor.

        A workload without jobs begins at its end: there is nothing to pick, and the first step, whatever it does, terminates.

        Raises:
            UserError: an unknown option, or a spec string that is wrong.
        """
        super().reset(seed=seed)
        given = dict(options or {})
        for key in given:
            if key not in OPTIONS:
                raise UserError(f"unknown option {shown(key)}{did_you_mean(str(key), OPTIONS)}", key="reset")
        if given:
            old = self.setting
            self.setting = Setting(
                workload=given.get("workload", old.workload), cluster=given.get("cluster", old.cluster), round_s=old.round_s,
                sharing=old.sharing, beside=old.beside, datasets=old.datasets,
            )  # fmt: skip
        of_episode = int(self.np_random.integers(2**31)) if seed is None else int(seed)
        workload, cluster = self.setting.read(of_episode)
        self.episode = Episode(workload, cluster, self.setting, seed=of_episode, rows_max=self.rows, queue_max=self.queue)
        self.done = False
        self._begin_round()
        return self._observation(), {**self._info(), "seed": of_episode}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Pick a row of `jobs`, or stay.

        Raises:
            ResetNeeded: before `reset`, or after the end.
            InvalidAction: the mask forbids it, and the environment is `strict`.
        """
        episode, pick = self.episode, int(action)
        if episode is None or self.done:
            raise ResetNeeded("the episode is over: call reset()")
        allowed = 0 <= pick <= self.rows and bool(self._mask[pick])
        if not allowed:
            if self.strict:
                raise InvalidAction(f"action {pick} is masked: info['action_mask'] says what may be done")
            pick = self.rows
        if pick < self.rows:
            self._order.append(int(episode.rows[pick]))
            self._mask[pick], self._picked[pick] = 0, 1.0 / len(self._order)
            if self._mask[:-1].any():
                return self._observation(), 0.0, False, False, self._info(masked=not allowed)
        return self._end_round(episode, masked=not allowed)

    # -- rounds ---------------------------------------------------------------------------------------------------
    def _begin_round(self) -> None:
        assert self.episode is not None
        count = len(self.episode.rows)
        self._order: list[int] = []
        self._picked = np.zeros(self.rows, np.float32)
        self._mask = np.zeros(self.rows + 1, np.int8)
        self._mask[:count] = self._mask[-1] = 1
        self._jobs = np.zeros((self.rows, len(RANK)), np.float32)
        self._jobs[:count] = np.clip(self.episode.features(), LOW, HIGH)

    def _end_round(self, episode: Episode, *, masked: bool) -> tuple[Observation, float, bool, bool, Info]:
        earned, told = 0.0, {}
        if not episode.over:
            goals, window_s = episode.play(np.array(self._order, np.int64))
            earned = float(reward(goals, self.betas))
            told = {"window_s": window_s, "goals": dict(zip(TERM_NAMES, goals.tolist(), strict=True))}
        terminated = episode.over
        truncated = not terminated and episode.decisions >= self.horizon
        self.done = terminated or truncated
        self._begin_round()
        info = self._info(masked=masked) | told
        if self.done:
            info |= {"summary": episode.summary()}
        if terminated:
            info |= {"journal_sha256": episode.journal_sha256}
        return self._observation(), earned, terminated, truncated, info

    def _observation(self) -> Observation:
        return {"jobs": self._jobs.copy(), "picked": self._picked.copy(), "mask": self._mask.copy()}

    def _info(self, *, masked: bool = False) -> Info:
        """What may be done; `masked`: the action was not allowed, and taken as *stay*; the jobs' numbers (−1: no job there)."""
        assert self.episode is not None
        numbers = np.full(self.rows, -1, np.int64)
        numbers[: len(self.episode.rows)] = self.episode.jobs
        return {
            "action_mask": self._mask.copy(), "masked": masked, "jobs": numbers, "now_s": self.episode.now_us / US_PER_S,
            "decisions": self.episode.decisions,
        }  # fmt: skip


def make_vector(count: int, **options: Any) -> gym.vector.AsyncVectorEnv:
    """`count` environments, each in a process of its own. `options` are those of `ClusterEnv`, which have to be picklable.

    The processes import the main module anew: a script calls this under `if __name__ == "__main__":`.

    Raises:
        UserError: `count` is not from 1 to 1024.
    """
    if not 1 <= count <= 1024:
        raise UserError(f"expected 1 to 1024 environments, got {shown(count)}", key="make_vector")
    makers: list[Callable[[], ClusterEnv]] = [partial(ClusterEnv, **options)] * count
    return gym.vector.AsyncVectorEnv(makers, context="spawn")


gym_names.register()
