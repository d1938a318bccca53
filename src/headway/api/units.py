"""Times as people write them in requests: `2h`, or a number of seconds."""

from __future__ import annotations

from math import isfinite

from headway.core import units
from headway.core.errors import UserError, shown


def seconds_us(value: str | float, key: str) -> int:
    """A time in µs. `UserError` with the key for what is none."""
    if isinstance(value, float) and not isfinite(value):
        raise UserError(f"expected a time such as 1h30m or a number of seconds, got {shown(value)}", key=key)
    try:
        return units.parse_duration(value)
    except ValueError as error:
        raise UserError(str(error), key=key) from None
