"""When a job will probably start and end: many forks of the live state (`sim.fork`), each with other guesses of what is left.

Pure but for the clock of the budget: with `samples` whole runs within it the answer is a function of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headway.app.calibration import Range
from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.plan import Capabilities
from headway.core.policy import Memo
from headway.core.round import Brains
from headway.core.state import State
from headway.core.units import US_PER_S
from headway.sim.fork import ForkResult, Rhythm, fork
from headway.sim.guess import Guess

SAMPLES = 16
SAMPLES_MIN = 3
"""With fewer than that no interval is told."""
BUDGET_S = 2.0
WHOLE_MAX = 300
"""With more live jobs a fork ends with the job that was asked about."""
HORIZON_US = 90 * 86_400 * US_PER_S
LEVELS = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the forks say of all jobs that were live at `now_us`. Tables: forks × jobs, times in µs, NEVER: not within a fork."""

    now_us: int
    jobs: Ints
    start_us: Table
    end_us: Table
    stop_us: Table
    preemptions: Table
    whole: bool
    """All forks went on until nothing more would have happened or the horizon was reached."""
    until_us: int
    """Up to when the shortest of them went."""
    cut: bool
    """The time for it was over before all of them were made."""

    @property
    def samples(self) -> int:
        return len(self.start_us)

    def column(self, job: int) -> int | None:
        """Where a job stands; None if it was not live."""
        at = int(np.searchsorted(self.jobs, job))
        return at if at < len(self.jobs) and self.jobs[at] == job else None

    def start(self, at: int) -> Range:
        """When the job in a column comes up, from `now_us` on."""
        return quantiles(self.start_us[:, at], self.now_us)

    def end(self, at: int) -> Range:
        return quantiles(self.end_us[:, at], self.now_us)


def forecast(
    state: State, memo: Memo, brains: Brains, guess: Guess, *, now_us: int, watch: int | None = None, samples: int = SAMPLES,
    seed: int = 0, rhythm: Rhythm | None = None, capabilities: Capabilities | None = None, horizon_us: int = HORIZON_US,
    budget_s: float = BUDGET_S, clock: Callable[[], float] = lambda: 0.0,
) -> Forecast:  # fmt: skip
    """Fork a state `samples` times, or as often as `budget_s` allows by `clock`. A run that is not over when the time is counts
    only if there is no other.

    `watch`: the job that matters; each fork ends with it.
    """
    begin = clock()
    made: list[ForkResult] = []
    cut = over = False

    def go_on() -> bool:
        nonlocal over
        over = clock() - begin > budget_s
        return not over

    for sample in range(samples):
        if sample and clock() - begin > budget_s * sample / (sample + 1):
            cut = True
            break
        result = fork(
            state, memo, brains.policy, guess.draw(seed + sample), now_us=now_us, horizon_us=horizon_us, seed=seed,
            rhythm=rhythm, brains=brains, capabilities=capabilities, watch=watch, go_on=go_on,
        )  # fmt: skip
        cut = cut or over
        if over and made:
            break
        made.append(result)
    return Forecast(
        now_us, guess.jobs, _table([one.start_us for one in made]), _table([one.end_us for one in made]),
        _table([one.stop_us for one in made]), _table([one.preemptions for one in made]), watch is None and not cut,
        min(one.until_us for one in made), cut,
    )  # fmt: skip


def _table(rows: list[Ints]) -> Table:
    return np.stack(rows)


def quantiles(times_us: Ints, now_us: int) -> Range:
    """The 10, 50 and 90 % quantiles of times from now on, s; None where so many of them do not come."""
    after: Floats = np.where(times_us >= c.NEVER, np.inf, np.maximum(times_us - now_us, 0) / US_PER_S)
    found = [_at(np.sort(after), level) for level in LEVELS]
    if len(after) < SAMPLES_MIN:
        return Range(None, found[1], None)
    return Range(*found)


def _at(ranked: Floats, level: float) -> float | None:
    """A quantile by p · (n + 1), which is unbiased for few values; infinite ones are None."""
    at = min(max(level * (len(ranked) + 1) - 1, 0.0), len(ranked) - 1.0)
    low, high = float(ranked[int(at)]), float(ranked[min(int(at) + 1, len(ranked) - 1)])
    part = at - int(at)
    if not np.isfinite(high):
        return low if part == 0 and np.isfinite(low) else None
    return low + part * (high - low)
