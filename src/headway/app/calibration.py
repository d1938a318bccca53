"""How far past forecasts were off, and intervals widened (or narrowed) by that: conformalised quantile regression.

A forecast says when something will happen at the earliest and at the latest (its 10 % and 90 % quantiles), counted from when it
was made. When it has happened, two scores are kept: by which factor it came before the one and by which after the other. An
interval is then moved at each end by the 90 % quantile of the newest scores there (Romano, Patterson and Candès, 2019,
asymmetric), so that in the long run 10 % of what happens lies beyond each end, whatever the forecasts leave out: arrivals above
all, and users' estimates that are all too high. Scores are factors of time + `OFFSET_S`, since seconds matter less of hours.

What has not happened yet counts as soon as it is later than the latest, as late as it is by then: else only what comes early
would be learned from.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

OFFSET_S = 30.0
KEPT_MAX = 400
"""The newest scores that count."""
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
    low: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_MAX))
    high: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_MAX))
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
        for one in made if at_s is not None else ():
            assert at_s is not None
            low, high = scores(one, at_s - one.at_s)
            self.low.append(low)
            self.high.append(high)

    @property
    def count(self) -> int:
        """How many scores there are."""
        return len(self.low)

    def late(self, now_s: float) -> list[float]:
        """Scores at the far end of forecasts whose time is over without it."""
        return [
            score for all_of in self.open.values() for one in all_of[-1:]
            if (score := scores(one, now_s - one.at_s)[1]) > 0
        ]  # fmt: skip

    def widened(self, said: Range, now_s: float) -> Range:
        """The range with its ends moved. The median stays, but for an interval that it lies outside of."""
        if self.count < SCORES_MIN or said.p10 is None:
            return said
        early = _upper(list(self.low))
        late = _upper([*self.high, *self.late(now_s)])
        low = max((said.p10 + OFFSET_S) * math.exp(-early) - OFFSET_S, 0.0)
        high = None if said.p90 is None else max((said.p90 + OFFSET_S) * math.exp(late) - OFFSET_S, low)
        middle = said.p50
        if middle is not None:
            middle = max(middle, low) if high is None else min(max(middle, low), high)
        return Range(low, middle, high)


def scores(made: Made, after_s: float) -> tuple[float, float]:
    """By how much (log of a factor) it came before the earliest, and after the latest."""
    came = math.log(max(after_s, 0.0) + OFFSET_S)
    return math.log(made.low_s + OFFSET_S) - came, came - math.log(made.high_s + OFFSET_S)


def _upper(values: list[float]) -> float:
    """The quantile that a new value stays below with probability 1 − TAIL."""
    ranked = sorted(values)
    return ranked[min(math.ceil((1 - TAIL) * (len(ranked) + 1)), len(ranked)) - 1]
