"""The lines that `headway.job` appends to a task's report file."""

from __future__ import annotations

import json
from typing import Any

from headway.progress.told import Source, Told

LINE_BYTES_MAX = 65_536
OTHER_MAX = 64
TEXT_LENGTH_MAX = 4096


def number(value: object) -> float | None:
    """A JSON number, NaN and infinities among them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def read_report(line: bytes, rank: int) -> Told | None:
    """What a line tells; None if it is none of ours."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return told_by(found, rank)


def told_by(found: Any, rank: int) -> Told | None:
    """What one report tells, as the SDK writes it to a file or posts it."""
    if not isinstance(found, dict):
        return None
    saved = found.get("saved")
    done = found.get("done") is True
    step = number(found.get("step"))
    if step is None and not done:
        return None
    if isinstance(saved, str):
        return Told(Source.SDK, rank, step=step, saved=saved[:TEXT_LENGTH_MAX], done=done)
    other = found.get("other")
    pairs = list(other.items())[:OTHER_MAX] if isinstance(other, dict) else []
    return Told(
        Source.SDK,
        rank,
        step=step,
        loss=number(found.get("loss")),
        accuracy=number(found.get("accuracy")),
        total=number(found.get("total")),
        done=done,
        other=tuple((str(name)[:100], value) for name, each in pairs if (value := number(each)) is not None),
    )
