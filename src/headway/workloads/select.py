"""Which jobs of a workload a person wants: `--window` and `--filter` as masks over columns."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence

import numpy as np

from headway.core import units
from headway.core.arrays import Bools, Ints
from headway.core.errors import UserError, did_you_mean, shown

_TEST = re.compile(r"([A-Za-z_]+)\s*(>=|<=|!=|=|>|<)\s*(.+)")
_COMPARE: dict[str, Callable[[Ints, int], Bools]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
FILTER_KEYS = ("queue", "user", "gpus")


def parse_window(text: str) -> tuple[float, float]:
    """Return (start, end) in seconds of `START..END`: durations since the first submission, either of which may be left out."""
    start, dots, end = text.strip().partition("..")
    try:
        if not dots:
            raise units.refusal("START..END such as 0..7d", text)
        first = units.parse_duration(start) if start.strip() else 0
        last = units.parse_duration(end) if end.strip() else units.DURATION_MAX_US
    except ValueError as error:
        raise UserError(str(error), key="window") from None
    if first >= last:
        raise UserError(f"expected START before END, got {shown(text)}", key="window")
    return first / units.US_PER_S, last / units.US_PER_S


def filter_mask(text: str, queue: Ints, queues: Sequence[str], user: Ints, users: Sequence[str], gpus: Ints) -> Bools:
    """Return which jobs pass every test of `queue=NAME,user=NAME,gpus>=N`; `!=`, `<=`, `<` and `>` work too."""
    mask = np.ones(len(gpus), np.bool_)
    for item in text.split(","):
        match = _TEST.fullmatch(item.strip())
        if match is None:
            raise UserError(f"expected tests such as queue=NAME,gpus>=8, got {shown(item)}", key="filter")
        key, sign, value = match[1], match[2], match[3].strip()
        if key == "gpus":
            try:
                wanted = units.parse_int(value)
            except ValueError as error:
                raise UserError(str(error), key="filter gpus") from None
            mask &= _COMPARE[sign](gpus, wanted)
        elif key in ("queue", "user"):
            column, names = (queue, queues) if key == "queue" else (user, users)
            if sign not in ("=", "!="):
                raise UserError(f"expected {key}=NAME, got {shown(item)}", key="filter")
            if value not in names:
                hint = did_you_mean(value, names) or f"; known: {', '.join(names[:20])}{', …' if len(names) > 20 else ''}"
                raise UserError(f"no job of {key} {shown(value)}{hint}", key="filter")
            mask &= _COMPARE[sign](column, names.index(value))
        else:
            hint = did_you_mean(key, FILTER_KEYS) or f"; known: {', '.join(FILTER_KEYS)}"
            raise UserError(f"cannot filter by {shown(key)}{hint}", key="filter")
    return mask
