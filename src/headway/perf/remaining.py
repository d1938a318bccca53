"""The time that jobs have left: from what they have done, from what like jobs took, and from both.

**By progress.** With d of u units done in r seconds, `r · (u − d) / d` are left (at a rate that was measured, `(u − d) /
rate`). Young jobs know little of their rate: the log standard deviation is `RATE_LOG_SD / √points`, at least RATE_LOG_SD_MIN.

**By history.** Run times of ended jobs of the same (user, name, size), else (user, size), else (user), else (size), else all:
the first group with GROUP_MIN members. What is left is the distribution of their run times beyond what this job has run
already, less that.

**By the user's word.** The run time that was announced, less what has run; users are off by a factor of two either way.

**Together.** Medians are averaged in log space by precision (1/variance), where history's variance comes from its quartiles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from headway.core.arrays import Floats
from headway.perf.forecast import NORMAL
from headway.perf.params import R_BY_HISTORY, R_BY_PROGRESS, R_MEDIAN, R_Q05, R_Q25, R_Q75, R_Q95, R_STATUS, WIDTH, Status

GROUP_MIN = 3
WORDS_MIN = 10
"""Jobs that a user must have had before his own word is judged by them alone."""
KEPT_MAX = 256
"""The newest run times that a group remembers."""
RATE_LOG_SD, RATE_LOG_SD_MIN = 0.5, 0.03
HISTORY_LOG_SD_MIN = 0.1
USER_LOG_SD = 0.7
BEYOND_LOG_SD = 1.0
"""Where a job has outrun all of its like, or its user's word: it is expected to take as long again, give or take."""
LEVELS = ((R_Q05, 0.05), (R_Q25, 0.25), (R_MEDIAN, 0.5), (R_Q75, 0.75), (R_Q95, 0.95))


@dataclass(slots=True)
class History:
    """Run times (s) of jobs that completed, by the keys that like jobs share."""

    groups: dict[tuple[object, ...], list[float]] = field(default_factory=lambda: defaultdict(list))

    @staticmethod
    def keys(user: int | str, name: int | str, size: int) -> tuple[tuple[object, ...], ...]:
        """From the most to the least alike. `name` is the job's name without its counter; size in GPUs."""
        return ("uns", user, name, size), ("us", user, size), ("u", user), ("s", size), ("all",)

    def add(self, user: int | str, name: int | str, size: int, run_s: float) -> None:
        """Remember a job that completed; what is no positive time is left out."""
        if not (np.isfinite(run_s) and run_s > 0):
            return
        for key in self.keys(user, name, size):
            times = self.groups[key]
            times.append(float(run_s))
            if len(times) > KEPT_MAX:
                del times[0]

    def add_word(self, user: int | str, announced_s: float, run_s: float) -> None:
        """Remember by how much a job that completed was longer than announced; what is no positive time is left out."""
        if np.isfinite(announced_s) and np.isfinite(run_s) and announced_s > 0 and run_s > 0:
            for key in (("word", user), ("word",)):
                kept = self.groups[key]
                kept.append(float(run_s / announced_s))
                if len(kept) > KEPT_MAX:
                    del kept[0]

    def words(self, user: int | str) -> list[float]:
        """Run times over what was announced, of a user's jobs, of everybody's if he has had too few."""
        own = self.groups.get(("word", user), [])
        return own if len(own) >= WORDS_MIN else self.groups.get(("word",), [])

    def like(self, user: int | str, name: int | str, size: int) -> list[float]:
        """Run times of the closest group with enough members; all there are if none has."""
        times: list[float] = []
        for key in self.keys(user, name, size):
            times = self.groups.get(key, [])
            if len(times) >= GROUP_MIN:
                break
        return times


def _by_history(times: Sequence[float], run_s: float) -> tuple[float, float]:
    """Median of what is left (s) and its log standard deviation; NaN without like jobs."""
    if not times:
        return np.nan, np.nan
    longer = np.array([t for t in times if t > run_s]) - run_s
    if len(longer) == 0:
        return max(run_s, 1.0), BEYOND_LOG_SD
    low, middle, high = np.quantile(longer, (0.25, 0.5, 0.75))
    sd = np.log(max(high, 1e-3) / max(low, 1e-3)) / (2 * NORMAL.inv_cdf(0.75))
    return float(middle), float(max(sd, HISTORY_LOG_SD_MIN))


def _by_progress(run_s: Floats, done: Floats, total: Floats, rate: Floats, points: Floats) -> tuple[Floats, Floats]:
    """Median of what is left (s) and its log standard deviation; NaN where progress or total isn't known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.where(np.isfinite(rate) & (rate > 0), rate, done / run_s)
        left = np.maximum(total - done, 0.0) / pace
    known = np.isfinite(left) & (total > 0) & (done >= 0) & (pace > 0) & np.isfinite(pace)
    sd = np.maximum(RATE_LOG_SD / np.sqrt(np.maximum(np.nan_to_num(points), 1.0)), RATE_LOG_SD_MIN)
    return np.where(known, left, np.nan), np.where(known, sd, np.nan)


def _by_word(announced_s: Floats, run_s: Floats) -> tuple[Floats, Floats]:
    """Median of what is left (s) and its log standard deviation; NaN where nothing was announced."""
    said = np.isfinite(announced_s) & (announced_s > 0)
    within = said & (announced_s > run_s)
    left = np.where(within, announced_s - run_s, np.where(said, np.maximum(run_s, 1.0), np.nan))
    return left, np.where(within, USER_LOG_SD, np.where(said, BEYOND_LOG_SD, np.nan))


def estimate_remaining(
    run_s: ArrayLike,
    done: ArrayLike,
    total: ArrayLike,
    *,
    rate: ArrayLike = np.nan,
    points: ArrayLike = 1,
    like: Sequence[Sequence[float]] | None = None,
    announced_s: ArrayLike = np.nan,
) -> Floats:
    """(jobs × 8) REMAINING vectors (`headway.perf.params`).

    Args:
        run_s: how long each job has run, over all attempts.
        done, total: units of progress; a total that is not known is NaN or 0.
        rate: units per second measured lately on its present shape; NaN: the mean so far.
        points: how many observations of progress there were.
        like: for each job the run times of its like (`History.like`).
        announced_s: the run time that the user announced; NaN or 0: none.
    """
    columns = np.broadcast_arrays(run_s, done, total, rate, points, announced_s)
    run, d, u, v, n, word = (np.atleast_1d(np.asarray(x, np.float64)) for x in columns)
    run = np.maximum(np.nan_to_num(run, posinf=0.0), 0.0)
    progress, progress_sd = _by_progress(run, d, u, v, n)
    groups = like if like is not None else [()] * len(run)
    history, history_sd = np.array([_by_history(times, r) for times, r in zip(groups, run, strict=True)]).reshape(-1, 2).T
    user, user_sd = _by_word(word, run)
    weights = np.nan_to_num(np.stack([progress_sd**-2.0, history_sd**-2.0, user_sd**-2.0]))
    logs = np.log(np.maximum(np.nan_to_num(np.stack([progress, history, user]), nan=1.0), 1e-6))
    mass = weights.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = np.where(mass > 0, (weights * logs).sum(0) / mass, np.nan)
        sd = np.where(mass > 0, mass**-0.5, 0.0)
    params = np.full((len(run), WIDTH), np.nan)
    for at, level in LEVELS:
        params[:, at] = np.exp(np.minimum(middle + NORMAL.inv_cdf(level) * sd, 100.0))
    params[progress == 0, :R_BY_PROGRESS] = 0.0
    params[:, R_BY_PROGRESS], params[:, R_BY_HISTORY] = progress, history
    params[:, R_STATUS] = np.where(mass > 0, Status.OK, Status.NO_DATA)
    few = np.array([len(g) for g in groups]) < GROUP_MIN
    params[(mass > 0) & np.isnan(progress) & few, R_STATUS] = Status.FEW_POINTS
    return params
