"""Values of sbatch's options, as Slurm writes them. Each raises ValueError that says what was expected and what was given."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from headway.core.units import DURATION_MAX_US, GPU_KIND, SIZE_MAX_BYTES, US_PER_S, refusal

WHOLE_MAX = 1 << 20
DAY_S = 86_400
_TIME = "a time limit such as 90 (minutes), 1:30:00 or 2-12 (days-hours)"
_DEADLINE = "a time such as now+6hours, 18:00 or 2030-01-31T12:00"
_MEMORY = re.compile(r"([0-9]{1,12})([KMGT]?)B?", re.IGNORECASE)
_MEMORY_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_FROM_NOW = re.compile(r"now\+([0-9]{1,9})([a-z]*)")
_SPANS_S = {"": 1, "second": 1, "minute": 60, "hour": 3_600, "day": DAY_S, "week": 7 * DAY_S}
_SIGNAL = re.compile(r"(?:[RB]+:)?(?:SIG)?([A-Z0-9+-]{1,12})(?:@([0-9]{1,5}))?", re.IGNORECASE)
_INDEX = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?")


def whole(text: str) -> int:
    """A number of 1 or more."""
    if not re.fullmatch(r"[0-9]{1,7}", text) or not 1 <= int(text) <= WHOLE_MAX:
        raise refusal(f"a whole number from 1 to {WHOLE_MAX}", text)
    return int(text)


def signed(text: str) -> int:
    """A whole number with or without a sign."""
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text):
        raise refusal("a whole number", text)
    return int(text)


def one_word(text: str) -> str:
    """A name; of several, none can be chosen here."""
    if "," in text:
        raise refusal("one name, not several", text)
    return text


def nodes(text: str) -> tuple[int, int]:
    """`2`, or `2-4`: at least and at most."""
    low, dash, high = text.partition("-")
    if not dash:
        return whole(low), whole(low)
    if whole(low) > whole(high):
        raise refusal("a range of nodes, low-high", text)
    return whole(low), whole(high)


def gpus(text: str) -> tuple[str, int]:
    """`4`, or `a100:4`: (kind or nothing, GPUs)."""
    kind, _, count = text.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,6}", count) or (kind and not GPU_KIND.fullmatch(kind.lower())):
        raise refusal("GPUs such as 4 or a100:4", text)
    return kind.lower(), int(count)


def gres(text: str) -> tuple[str, int]:
    """`gpu`, `gpu:4` or `gpu:a100:4`: (kind or nothing, GPUs)."""
    name, _, rest = text.partition(":")
    if name != "gpu" or "," in text:
        raise refusal("gpu, gpu:N or gpu:KIND:N", text)
    if not rest:
        return "", 1
    return gpus(rest) if rest.rpartition(":")[2].isdecimal() else gpus(f"{rest}:1")


def memory_bytes(text: str) -> int:
    """`4000` (MiB), `16G`; Slurm's letters are powers of 1024. 0 is all that there is, and books none."""
    match = _MEMORY.fullmatch(text)
    size_bytes = int(match[1]) * _MEMORY_UNITS[match[2].upper()] if match else -1
    if not 0 <= size_bytes <= SIZE_MAX_BYTES:
        raise refusal("memory such as 4000 (MiB) or 16G", text)
    return size_bytes


def time_limit_us(text: str) -> int | None:
    """`minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours[:minutes[:seconds]]` in µs; None: no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts + ([days] if dash else [])) or len(parts) > 3:
        raise refusal(_TIME, text)
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    us = (int(days or 0) * DAY_S + hours * 3_600 + minutes * 60 + seconds) * US_PER_S
    if not 0 < us <= DURATION_MAX_US:
        raise refusal(_TIME, text)
    return us


def deadline_us(text: str, now: datetime) -> int:
    """How long it is from `now` (with a time zone) to a deadline: `now+6hours`, `18:00` (the next), `2030-01-31T12:00`."""
    if match := _FROM_NOW.fullmatch(text):
        unit = match[2].removesuffix("s")
        if unit not in _SPANS_S:
            raise refusal(_DEADLINE, text)
        us = int(match[1]) * _SPANS_S[unit] * US_PER_S
    else:
        us = (_moment(text, now) - now) // timedelta(microseconds=1)
    if not 0 < us <= DURATION_MAX_US:
        raise refusal(f"{_DEADLINE}, that is still to come", text)
    return us


def _moment(text: str, now: datetime) -> datetime:
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", text):
        hour, minute, second = ([int(part) for part in text.split(":")] + [0])[:3]
        if hour < 24 and minute < 60 and second < 60:
            when = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return when if when > now else when + timedelta(days=1)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise refusal(_DEADLINE, text) from None
    return when if when.tzinfo is not None else when.replace(tzinfo=now.tzinfo)


def signal(text: str) -> tuple[str, float]:
    """`USR1@90`, `B:TERM`: (signal, seconds before the end, 60 where it is not said)."""
    match = _SIGNAL.fullmatch(text)
    if match is None:
        raise refusal("a signal and seconds such as TERM@90", text)
    return match[1].upper(), float(match[2] or 60)


def split_commas(text: str) -> list[str]:
    """Words between commas; a comma between quotes does not part."""
    return [word.strip().replace("'", "").replace('"', "") for word in re.findall(r"(?:[^,'\"]|'[^']*'|\"[^\"]*\")+", text)]


def indices(text: str, most: int) -> list[int]:
    """`0-3`, `1,5,9`, `0-100:10`, with or without `%4` behind: the indices of an array."""
    found: dict[int, None] = {}
    for part in text.partition("%")[0].split(","):
        match = _INDEX.fullmatch(part)
        if match is None:
            raise refusal("indices such as 0-3, 1,5,9 or 0-100:10", text)
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if low > high or step < 1 or (high - low) // step + 1 + len(found) > most:
            raise refusal(f"at most {most} indices, from low to high", text)
        found |= dict.fromkeys(range(low, high + 1, step))
    return list(found)
