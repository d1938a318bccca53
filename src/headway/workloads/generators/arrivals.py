"""Times of arrival: sorted draws over a weekly profile. Time 0 is Monday, 00:00."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from headway.core.arrays import Ints
from headway.core.errors import UserError
from headway.core.units import DURATION_MAX_US
from headway.workloads.generators.draws import share_of

HOUR_US = 3_600_000_000
WEEK_US = 168 * HOUR_US

_HOURS = (124, 97, 107, 110, 66, 107, 172, 211, 116, 104, 103, 92, 76, 67, 68, 65, 94, 62, 79, 77, 100, 86, 109, 107)
_WEEKDAYS = (84, 105, 112, 127, 152, 60, 60)
FLAT = (1,) * 168
OFFICE = tuple(hour * day for day in _WEEKDAYS for hour in _HOURS)
"""Weights of the hours of a week: Philly's submissions by hour × by weekday (Monday first), in ten-thousandths of the mean."""


def span_us(gpu_us: int, load: Fraction, gpus: int, name: str) -> int:
    """How long the arrivals last so that `gpu_us` (GPU·µs) is `load` of what `gpus` GPUs give in that time.

    Raises:
        UserError: over 100 years.
    """
    span = int(Fraction(gpu_us) / (load * gpus))
    if span > DURATION_MAX_US:
        raise UserError("so many jobs would take over 100 years to arrive; expected a higher load", key=f"workload {name}: load")
    return span


def arrivals(draws: Ints, span: int, profile: tuple[int, ...]) -> Ints:
    """The draws, sorted, as times (µs) over `span` µs of the profile: with C(t) the sum of the weights up to `t`, a draw `u`
    comes at the time where C is `u · C(span) / 2³²`, rounded down. Of the last hour only the part within the span counts.
    """
    weights = np.array(profile, np.int64)
    before = np.concatenate(([0], np.cumsum(weights)[:-1])) * HOUR_US
    week = int(weights.sum()) * HOUR_US
    weeks, rest = divmod(span, WEEK_US)
    hour, part = divmod(rest, HOUR_US)
    whole = weeks * week + int(before[hour]) + profile[hour] * part
    ordered = np.sort(draws)
    if whole < 1 << 62:
        weeks_in, inside = np.divmod(share_of(ordered, whole), week)
    else:  # the product of a span of decades and the weights needs more than 64 bits
        pairs = [divmod(draw * whole >> 32, week) for draw in ordered.tolist()]
        weeks_in, inside = np.array(pairs, np.int64).reshape(-1, 2).T
    at = np.searchsorted(before, inside, side="right") - 1
    times: Ints = weeks_in * WEEK_US + at * HOUR_US + (inside - before[at]) // weights[at]
    return times
