"""Whether a job's reports still get better: no progress as people mean it, whatever a policy does about it.

The fitted curve says whether a plateau is reached. It goes one way only, so it does not say that a loss which fell at first rises
now: that is seen in the reports themselves, against their own noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headway.core.arrays import Floats
from headway.perf.forecast import plateau
from headway.perf.observed import clean, noise_of, rolling_median
from headway.perf.params import C_K_LAST, C_LEVEL, Status

PLATEAU_FRAC = 0.99
"""A curve that has come so far of its way to its plateau counts as being on it."""
WORSE_NOISES, WORSE_FRAC = 4.0, 0.1
"""Worse than the best so far by more than so many deviations of the noise, and than this share of what was gained: divergence."""
LAST = 3
"""So many reports in a row have to agree."""
RECENT_FRAC = 0.2
"""The newest part of what has been done, over which the change is told."""
PLATEAU, DIVERGENCE = "plateau", "divergence"


@dataclass(frozen=True, slots=True)
class Trend:
    """How a series of reports (a loss or an accuracy) gets on."""

    sign: str | None
    """`plateau`, `divergence`, or None: it improves, or too little is known."""
    words: str
    last: float
    best: float
    noise: float
    """Standard deviation of a report."""
    done_frac: float | None
    """How much of its way to the plateau is done; None without a curve."""
    change: float | None
    """Of the smoothed reports over the last `change_units` units: positive is up."""
    change_units: float
    worse_by: float
    """The smoothed reports' distance from their best, at least 0."""
    missing: int
    """How many of the last reports have no finite value, after some that had one."""


def trend(k: ArrayLike, y: ArrayLike, *, rising: bool, fit: Floats, status: Status) -> Trend | None:
    """The trend of the reports y at k (units done; NaN where one has no finite value), whose fitted curve (a CURVE vector) is
    `fit`; `rising`: more is better. None if no report has a finite value.
    """
    raw = np.asarray(y, np.float64)
    finite = np.flatnonzero(np.isfinite(raw))
    if not len(finite):
        return None
    sign = -1.0 if rising else 1.0
    missing = len(raw) - 1 - int(finite[-1])
    at, values = clean(k, raw)
    if not len(at):
        return None
    noise = noise_of(values)
    smooth = rolling_median(values, 5 if len(values) >= 15 else 3) if len(values) >= 7 else values
    down = sign * smooth
    best = int(np.argmin(down))
    gained = float(down[: max(1, len(down) // 8)].max() - down[best])
    worse_by = float(down[-1] - down[best])
    margin = max(WORSE_NOISES * noise, WORSE_FRAC * gained, 1e-9 * abs(float(down[best])))
    rises = len(down) > LAST and bool((down[-LAST:] - down[best] > margin).all())
    recent = at >= at[-1] * (1 - RECENT_FRAC)
    change = float(smooth[-1] - smooth[recent][0]) if recent.sum() > 1 else None
    span = float(at[-1] - at[recent][0])
    done = _done(float(raw[finite[0]]), fit)
    what, words = _sign(missing, rises, worse_by, status, done)
    best_of = float(raw[finite].max() if rising else raw[finite].min())
    return Trend(what, words, float(raw[finite[-1]]), best_of, noise, done, change, span, worse_by, missing)


def _done(first: float, fit: Floats) -> float | None:
    """The share of the way from the first report to the plateau that is done."""
    if not np.isfinite(fit[C_K_LAST]):
        return None
    end = float(plateau(fit))
    way = abs(end - first)
    return min(abs(float(fit[C_LEVEL]) - first) / way, 1.0) if way > 0 else 1.0


def _sign(missing: int, rises: bool, worse_by: float, status: Status, done: float | None) -> tuple[str | None, str]:
    if missing >= LAST:
        return DIVERGENCE, f"no progress: divergence; its last {missing} reports have no finite value"
    if rises or status == Status.DIVERGING:
        return DIVERGENCE, f"no progress: divergence; it is worse than its best by {worse_by:.4g}, and not by its noise"
    if status == Status.FLAT:
        return PLATEAU, "no progress: plateau; what it reports does not change beyond its noise"
    if status == Status.OK and done is not None and done >= PLATEAU_FRAC:
        return PLATEAU, f"no progress to come: plateau; {done:.1%} of the way to it is done"
    few = status in (Status.FEW_POINTS, Status.ONE_POINT)
    return None, "it has reported too little for a sure forecast" if few else "it improves"
