"""How far past forecasts were off, and intervals widened (or narrowed) by that: conformalised quantile regression, censored.

A forecast says when something will happen at the earliest and at the latest (its 10 % and 90 % quantiles), counted from when it
was made. When it has happened, two scores are kept: by which factor it came after the one and after the other. An interval is
then moved at each end to where 10 % of the newest scores there lie beyond it (Romano, Patterson and Candès, 2019, asymmetric):
so in the long run 10 % of what happens lies beyond each end, whatever the forecasts leave out, arrivals above all, and users'
estimates that are all too high. Scores are logarithms of factors of time + `OFFSET_S`, since seconds matter less of hours.

What has not happened yet counts as later than now. Without that, what comes early would be learned from first: of a day's
forecasts the short ones are known by the evening. So quantiles are those of Kaplan and Meier (1958) for censored times.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from headway.core.arrays import Bools, Floats

OFFSET_S = 30.0
KEPT_MAX = 2000
"""The newest forecasts that count."""
SCORES_MIN = 20
"""With fewer nothing is changed."""
TAIL = 0.1
OPEN_MAX = 20_000
"""Forecasts that wait for what happens."""


@dataclass(frozen=True, slots=True)
class Range:
    """Quantiles of a time from now, s; None: not within what was looked at."""

    p10: float | None
    p50: float | None
    p90: float | None

    def to_json(self) -> dict[str, float | None]:
        return {"p10": self.p10, "p50": self.p50, "p90": self.p90}


@dataclass(frozen=True, slots=True)
class Made:
    """A forecast: when it was made (s), and what it said from then on."""

    at_s: float
    low_s: float
    high_s: float


@dataclass(slots=True)
class Calibration:
    """Scores of the past. `expect` with each forecast, `happened` when it is known; both in order of time."""

    open: dict[int, list[Made]] = field(default_factory=dict)
    """By job."""
    scores: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=KEPT_MAX))
    """When it was made (s); after the earliest, and after the latest."""
    waiting: int = 0

    def expect(self, job: int, at_s: float, said: Range) -> None:
        """Remember a forecast."""
        if said.p10 is None or said.p90 is None or self.waiting >= OPEN_MAX:
            return
        self.open.setdefault(job, []).append(Made(at_s, said.p10, said.p90))
        self.waiting += 1

    def happened(self, job: int, at_s: float | None) -> None:
        """What was forecast of a job has happened; None: it never will (it was cancelled, say)."""
        made = self.open.pop(job, [])
        self.waiting -= len(made)
        if at_s is not None:
            self.scores.extend((one.at_s, *after(one, at_s - one.at_s)) for one in made)

    @property
    def count(self) -> int:
        """How many scores there are."""
        return len(self.scores)

    def moves(self, now_s: float) -> tuple[float, float]:
        """Where 10 % of the scores lie before, and 10 % after: the moves of the two ends (log of a factor)."""
        still = [(one.at_s, *after(one, now_s - one.at_s)) for made in self.open.values() for one in made]
        happened = np.repeat((True, False), (len(self.scores), len(still)))
        table = np.array([*self.scores, *still], np.float64).reshape(-1, 3)
        newest = np.argsort(table[:, 0], kind="stable")[-KEPT_MAX:]
        if not happened[newest].any():
            return 0.0, 0.0
        _, low, high = table[newest].T
        return quantile(low, happened[newest], TAIL), quantile(high, happened[newest], 1 - TAIL)

    def widened(self, said: Range, now_s: float, moves: tuple[float, float] | None = None) -> Range:
        """The range with its ends moved. The median stays, but for an interval that it lies outside of."""
        if self.count < SCORES_MIN or said.p10 is None:
            return said
        early, late = self.moves(now_s) if moves is None else moves
        low = max((said.p10 + OFFSET_S) * math.exp(early) - OFFSET_S, 0.0)
        high = None if said.p90 is None else max((said.p90 + OFFSET_S) * math.exp(late) - OFFSET_S, low)
        middle = said.p50
        if middle is not None:
            middle = max(middle, low) if high is None else min(max(middle, low), high)
        return Range(low, middle, high)


def after(made: Made, came_s: float) -> tuple[float, float]:
    """By how much (log of a factor) it came after the earliest, and after the latest."""
    came = math.log(max(came_s, 0.0) + OFFSET_S)
    return came - math.log(made.low_s + OFFSET_S), came - math.log(made.high_s + OFFSET_S)


def quantile(values: Floats, happened: Bools, level: float) -> float:
    """The quantile of values of which some are only known to be greater than they are (`happened` false): that of Kaplan and
    Meier's distribution; the greatest that has happened if that does not get so far."""
    order = np.lexsort((~happened, values))
    left = len(values) - np.arange(len(values))
    below = 1 - np.cumprod(np.where(happened[order], 1 - 1 / left, 1.0))
    beyond = happened[order] & (below >= level - 1e-12)
    at = int(np.argmax(beyond)) if beyond.any() else int(np.flatnonzero(happened[order])[-1])
    return float(values[order][at])
