"""How long live jobs have to run yet, as far as one can tell, and draws of it for forks of the state (`sim.fork`).

Of a job that tells how far it is, the median and the spread are those of the REMAINING estimator (`perf.remaining`), made anew
for the instant: progress and measured pace first of all; draws are log-normal. Of one that does not, a draw is one of the run
times that it may have, given how long it has run already: what was announced times one of the factors by which the user's jobs
(everybody's, if he has had few) were longer; without such a word the run time of one of the jobs that are like it. Where fewer
than `POOL_MIN` of these are left, it is the estimator's median and spread again, which know of both. Where nothing at all is
known a job is taken to need `UNKNOWN_S`, or as long again as it has run, give or take `UNKNOWN_LOG_SD`. No job runs on beyond its
time limit. Draws are independent of each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import Estimator, Phase
from headway.core.state import State
from headway.core.units import US_PER_S
from headway.core.view import ClusterView
from headway.perf.forecast import NORMAL, Z90
from headway.perf.histories import Histories
from headway.perf.params import R_BY_PROGRESS, R_MEDIAN, R_Q95, WIDTH
from headway.perf.remaining import estimate_remaining
from headway.sim.fork import Truth, loss_and_accuracy

UNKNOWN_S = 3600.0
UNKNOWN_LOG_SD = 1.5
LEFT_S_MAX = 10 * 365 * 86400.0
LIKE_MAX = 128
"""The newest run times of like jobs that are looked at, and the newest factors."""
POOL_MIN = 8


@dataclass(frozen=True, slots=True)
class Known:
    """What the past tells of live jobs beside the state. Columns side by side, in order of the jobs' numbers."""

    jobs: Ints
    rate: Floats
    """Units per second of the present attempt, NaN: not measured."""
    told: Ints
    """Reports in all."""
    last_us: Ints
    """When the present attempt last told how far it was; −1: it has not."""
    like_s: tuple[Sequence[float], ...]
    """Run times of ended jobs that are like it."""
    words: tuple[Sequence[float], ...]
    """Run times over what was announced, of jobs of its user."""


def known_of(state: State, histories: Histories | None) -> Known:
    """Take down what is known now: values of its own, which the histories may go on without."""
    jobs = np.sort(state.J[c.J_ID, state.live_rows()])
    count = len(jobs)
    rate, told, last = np.full(count, np.nan), np.zeros(count, np.int64), np.full(count, -1, np.int64)
    groups: dict[tuple[int, int, int], tuple[float, ...]] = {}
    said: dict[int, tuple[float, ...]] = {}
    like: list[Sequence[float]] = [()] * count
    words: list[Sequence[float]] = [()] * count
    for i, job in enumerate(jobs.tolist() if histories is not None else ()):
        assert histories is not None
        past = histories.live.get(job)
        if past is None:
            continue
        key = past.user, past.model, past.gpus
        if key not in groups:
            groups[key] = tuple(histories.ended.like(*key)[-LIKE_MAX:])
        if past.user not in said:
            said[past.user] = tuple(histories.ended.words(past.user)[-LIKE_MAX:])
        like[i], words[i], told[i] = groups[key], said[past.user], past.told
        if past.last is not None:
            last[i] = past.last[0]
        if (measured := past.measured()) is not None and measured[0] > 0:
            rate[i] = 1 / measured[0]
    return Known(jobs, rate, told, last, tuple(like), tuple(words))


@dataclass(frozen=True, slots=True)
class Guess:
    """The time that each live job has left: medians (s), deviations of their logarithm, and what a time limit leaves (s)."""

    jobs: Ints
    median_s: Floats
    log_sd: Floats
    most_s: Floats
    stop_us: Ints
    """What a job that is stopping now takes to be gone: what its owner says that saving takes."""
    curves: Floats
    """The newest journalled CURVE of each (jobs × 8), NaN: none."""
    done: Ints
    total: Ints
    pools: Mapping[int, Floats] = field(default_factory=dict)
    """By place in the columns: what such a job may have left (s, ascending), where that is known better than by two numbers."""

    def draw(self, seed: int | None) -> Truth:
        """One way in which it may be; with None the medians."""
        count = len(self.jobs)
        z = np.zeros(count) if seed is None else np.random.default_rng(seed).standard_normal(count)
        left_s = self.median_s * np.exp(np.minimum(z * self.log_sd, 50.0))
        for at, pool in self.pools.items():
            left_s[at] = pool[min(int(NORMAL.cdf(float(z[at])) * len(pool)), len(pool) - 1)]
        left_s = np.minimum(left_s, np.minimum(self.most_s, LEFT_S_MAX))
        left: Ints = np.maximum(np.round(left_s * US_PER_S), 1).astype(np.int64)
        if not np.isfinite(self.curves[:, 0]).any():
            return Truth(self.jobs, left, self.stop_us)
        loss, accuracy = loss_and_accuracy(self.curves, self.done, self.total)
        return Truth(self.jobs, left, self.stop_us, loss, accuracy)


def guess(state: State, known: Known, now_us: int) -> Guess:
    """What is guessed at an instant, from a state and what was known of its jobs."""
    rows = np.array([state.row(job) for job in known.jobs.tolist()], np.int64)
    J = state.J[:, rows]
    run_s = ClusterView(state, now_us, 0).run_us(rows) / US_PER_S
    done, total = np.maximum(J[c.J_UNITS_DONE], 0).astype(np.float64), J[c.J_UNITS_TOTAL].astype(np.float64)
    since_s = np.where((known.last_us >= 0) & (J[c.J_PHASE] == Phase.RUNNING), (now_us - known.last_us) / US_PER_S, 0.0)
    ahead = np.where(np.isfinite(known.rate), known.rate * since_s, 0.0)
    reached = np.where(total > 0, np.minimum(done + ahead, np.maximum(done, 0.999 * total)), done)
    announced = J[c.J_ESTIMATE] / US_PER_S
    announced[J[c.J_ESTIMATE] >= c.NEVER] = np.nan
    vectors = estimate_remaining(
        run_s, reached, np.where(total > 0, total, np.nan), rate=known.rate, points=np.maximum(known.told, 1),
        like=known.like_s, announced_s=announced,
    )  # fmt: skip
    median = vectors[:, R_MEDIAN]
    with np.errstate(divide="ignore", invalid="ignore"):
        sd = np.log(vectors[:, R_Q95] / median) / Z90
    unknown = ~np.isfinite(median)
    median = np.where(unknown, np.maximum(run_s, UNKNOWN_S), median)
    sd = np.where(unknown, UNKNOWN_LOG_SD, np.where(np.isfinite(sd), sd, 0.0))
    limit = J[c.J_TIME_LIMIT]
    most = np.where(limit < c.NEVER, np.maximum(limit / US_PER_S - run_s, 0.0), np.inf)
    first = Estimator.CURVE * WIDTH
    curves = state.F[first : first + WIDTH, rows].T.copy()
    curves[~curves.any(axis=1)] = np.nan  # a row that was never filled is all zeros
    pools = {i: pool for i in np.flatnonzero(np.isnan(vectors[:, R_BY_PROGRESS])).tolist()
             if (pool := _pool(known, i, float(run_s[i]), float(announced[i]))) is not None}  # fmt: skip
    units, saved = J[c.J_UNITS_DONE].copy(), J[c.J_SAVE].copy()
    return Guess(known.jobs, median, sd, most, saved, curves, units, J[c.J_UNITS_TOTAL].copy(), pools)


def _pool(known: Known, i: int, run_s: float, announced_s: float) -> Floats | None:
    """What a job may have left that has run for `run_s`, by what became of others; None: too few got so far."""
    if np.isfinite(announced_s) and announced_s > 0:
        whole = np.array(known.words[i], np.float64) * announced_s
    else:
        whole = np.array(known.like_s[i], np.float64)
    left: Floats = np.sort(whole[whole > run_s] - run_s)
    return left if len(left) >= POOL_MIN else None
