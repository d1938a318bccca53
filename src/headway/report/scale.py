"""Numbers as people read them, and ticks where people expect them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NBSP = "\u00a0"
"""Holds a number and its unit together."""
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
_UNITS = (("d", DAY_S), ("h", HOUR_S), ("min", MINUTE_S))
_WORDS = {"d": "days", "h": "hours", "min": "minutes", "s": "seconds"}
_TIME_STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(n * MINUTE_S for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR_S for n in (1, 2, 3, 6, 12)),
    *(n * DAY_S for n in (1, 2, 5, 7, 14, 30, 60, 100, 200, 500, 1000)),
)
_LOG_TICKS_S = ((1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (6 * 3600, "6 h"), (DAY_S, "1 d"),
                (7 * DAY_S, "7 d"), (30 * DAY_S, "30 d"), (365 * DAY_S, "1 y"), (3650 * DAY_S, "10 y"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis, and what is written there."""

    value: float
    label: str


def number(value: float | None, digits: int = 3) -> str:
    """A number to so many figures, with thousands parted; a dash for nothing."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{min(decimals, 6)}f}".replace("-", "−")


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal."""
    if share is None:
        return "–"
    return f"{100 * share:.1f}{NBSP}%".replace("-", "−").replace(f"−0.0{NBSP}", f"0.0{NBSP}")


def duration(seconds: float | None) -> str:
    """A time with one decimal in the unit that suits it: 45.0 s, 3.2 h."""
    if seconds is None:
        return "–"
    for unit, size in _UNITS:
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.1f}{NBSP}{unit}"
    return f"{seconds:.1f}{NBSP}s"


def durations(values: Sequence[float | None]) -> list[str]:
    """Times that stand beside each other: to three figures in one unit, if one suits them all, else each in its own."""
    known = [abs(value) for value in values if value]
    for unit, size in (*_UNITS, ("s", 1)):
        if known and 2 * size <= max(known) < 1000 * size and min(known) >= 0.1 * size:
            return ["–" if value is None else f"{_three(value / size)}{NBSP}{unit}" for value in values]
    return [duration(value) for value in values]


def _three(value: float) -> str:
    if value == 0:
        return "0"
    decimals = min(max(2 - math.floor(math.log10(abs(value))), 0), 3)
    return f"{value:,.{decimals}f}".replace("-", "−")


def linear_ticks(high: float, count: int = 5, low: float = 0.0, *, step_min: float = 0.0) -> list[Tick]:
    """Some `count` ticks at multiples of 1, 2 or 5 times a power of ten (at least `step_min`), the last at or above `high`, the
    first at or below `low`.
    """
    span = high - low
    if not span > 0:
        low, span = min(low, 0.0), 1.0
        high = low + span
    rough = max(span / max(count, 1), step_min)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    decimals = max(-math.floor(math.log10(step) + 1e-9), 0)
    return [Tick(k * step, f"{k * step:,.{decimals}f}".replace("-", "−")) for k in range(first, last + 1)]


def time_unit(span_s: float) -> tuple[str, int]:
    """The unit in which an axis of this length is labelled, in words, and its seconds."""
    for unit, size in _UNITS:
        if span_s >= 3 * size:
            return _WORDS[unit], size
    return _WORDS["s"], 1


def time_ticks(low_s: float, high_s: float, count: int = 8) -> list[Tick]:
    """At most `count` + 1 ticks within a span of time, in the unit of `time_unit`."""
    span = max(high_s - low_s, 1e-9)
    _, unit = time_unit(span)
    step = next((s for s in _TIME_STEPS_S if s * count >= span), 1000 * DAY_S * math.ceil(span / (1000 * DAY_S * count)))
    first, last = math.ceil(low_s / step - 1e-9), math.floor(high_s / step + 1e-9)
    decimals = 0 if step >= unit and step % unit == 0 else 1 if (10 * step) % unit == 0 else 2
    return [Tick(k * step, f"{k * step / unit:,.{decimals}f}") for k in range(first, last + 1)]


def log_time_ticks(low_s: float, high_s: float) -> list[Tick]:
    """Ticks at round times on a logarithmic axis; at its ends, where there are not two round times between them."""
    ticks = [Tick(value, label) for value, label in _LOG_TICKS_S if low_s <= value * (1 + 1e-9) and value <= high_s * (1 + 1e-9)]
    return ticks if len(ticks) > 1 else [Tick(value, duration(value)) for value in (low_s, high_s)]


def thinned(ticks: Sequence[Tick], positions: Sequence[float], char: float, gap: float = 8.0) -> list[Tick]:
    """The ticks whose labels, centred at `positions`, do not run into each other; `char` is a letter's width."""
    kept: list[Tick] = []
    end = -math.inf
    for tick, x in zip(ticks, positions, strict=True):
        half = len(tick.label) * char / 2
        if x - half >= end + gap:
            kept.append(tick)
            end = x + half
    return kept
