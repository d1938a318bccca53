"""Sizes, durations, counts, ranges, GPU demands and names, as people write them.

Every ``parse_…`` function takes text or a number, and raises ``ValueError`` whose text says what was
expected and what was given. All of them refuse NaN, infinities, negatives, booleans, exponents in text
(``1e309``), decimal commas and anything empty. Numbers in text are decimal digits with at most one point.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .errors import shown

US_PER_S = 1_000_000
DURATION_MAX_US = 100 * 365 * 86_400 * US_PER_S
SIZE_MAX_BYTES = 2**60
COUNT_MAX = 10**15
GPUS_MAX = 2**16
CPUS_MAX = 2**20
ALTERNATIVES_MAX = 16

_NUMBER = re.compile(r"[0-9]{1,30}(?:\.[0-9]{1,30})?")
_NUMBER_AND_UNIT = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s?([A-Za-z]*)")
_DURATION = re.compile(
    r"(?:(?P<w>N)w)?\s?(?:(?P<d>N)d)?\s?(?:(?P<h>N)h)?\s?(?:(?P<m>N)m(?!s))?\s?(?:(?P<s>N)s)?\s?(?:(?P<ms>N)ms)?"
    r"\s?(?:(?P<us>N)us)?".replace("N", _NUMBER.pattern)
)
_DURATION_UNITS = {
    "w": 7 * 86_400 * US_PER_S,
    "d": 86_400 * US_PER_S,
    "h": 3_600 * US_PER_S,
    "m": 60 * US_PER_S,
    "s": US_PER_S,
    "ms": 1_000,
    "us": 1,
}
_SIZE_DECIMAL = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3}
_SIZE_BINARY = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_SIZE_UNITS = {"": 1, "B": 1, "KB": 10**3, **_SIZE_DECIMAL, **_SIZE_BINARY}
_COUNT_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
NAME_LENGTH_MAX = 128
CONTROL_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
NO_TEXT = re.compile("[\0\ud800-\udfff]")
DIRECTION_CONTROLS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
GPU_KIND = re.compile(r"[a-z][a-z0-9._-]{0,63}")

_SIZE = "a size such as 512MB, 4GB or 1.5GiB"
_TIME = "a duration such as 90 (seconds), 10m or 1h30m"
_GPU = "a positive number or KIND:N"


@dataclass(frozen=True, slots=True)
class GpuDemand:
    """GPUs that one task wants: thousandths of a GPU (``milli``) of one kind; the kind ``""`` means any."""

    kind: str = ""
    milli: int = 1000


def refusal(expected: str, got: object) -> ValueError:
    """Return the error of every refusal here: ``expected …, got …``, on one line."""
    return ValueError(f"expected {expected}, got {shown(got)}")


def _fraction(value: object, expected: str) -> Fraction:
    """Return a number, or text that is a number, exactly; refuse everything else."""
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
        return Fraction(match[0])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refusal(expected, value)
    if (isinstance(value, float) and not math.isfinite(value)) or value < 0:
        raise refusal(expected, value)
    return Fraction(value)


def parse_int(value: object, low: int = 0, high: int = COUNT_MAX) -> int:
    """Return a whole number from ``low`` to ``high``, both included; ``low`` is 0 or more."""
    expected = f"a whole number from {low} to {high}"
    if high == COUNT_MAX:
        expected = f"a whole number of {low} or more"
    number = _fraction(value, expected)
    if number.denominator != 1 or not low <= number <= high:
        raise refusal(expected, value)
    return int(number)


def parse_frac(value: object) -> float:
    """Return a share from 0 to 1, written as a number (``0.1``) or in percent (``"10%"``)."""
    expected = "a share from 0 to 1, or from 0% to 100%"
    text = value.strip() if isinstance(value, str) else value
    percent = isinstance(text, str) and text.endswith("%")
    try:
        share = _fraction(text[:-1] if isinstance(text, str) and percent else text, expected)
    except ValueError:
        raise refusal(expected, value) from None
    share /= 100 if percent else 1
    if share > 1:
        raise refusal(expected, value)
    return float(share)


def _milli(number: Fraction) -> int | None:
    """Return thousandths, or None for steps finer than 0.001; a float may miss its step by rounding."""
    milli = round(number * 1000)
    return milli if abs(number * 1000 - milli) <= Fraction(1, 1_000_000) else None


def parse_cpus(value: object) -> int:
    """Return thousandths of a CPU core: ``2`` is 2000, ``"0.5"`` is 500."""
    expected = "a number of cores such as 2 or 0.5, in steps of 0.001"
    milli = _milli(_fraction(value, expected))
    if milli is None or milli > CPUS_MAX * 1000:
        raise refusal(expected, value)
    return milli


def parse_size(value: object) -> int:
    """Return bytes: kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB of 1024; a plain number is bytes.

    Rounded to the nearest byte; at most 2^60.
    """
    unit = ""
    number = value
    if isinstance(value, str):
        match = _NUMBER_AND_UNIT.fullmatch(value.strip())
        if match is None or match[2] not in _SIZE_UNITS:
            raise refusal(_SIZE, value)
        number, unit = match[1], match[2]
    size = round(_fraction(number, _SIZE) * _SIZE_UNITS[unit])
    if size > SIZE_MAX_BYTES:
        raise refusal(f"{_SIZE}, of at most 2^60 bytes", value)
    return size


def parse_rate(value: object) -> int:
    """Return bytes per second: a size, with or without ``/s`` behind it (``100MB/s``)."""
    try:
        return parse_size(value.strip().removesuffix("/s") if isinstance(value, str) else value)
    except ValueError:
        raise refusal("bytes per second such as 100MB/s (bytes, not bits)", value) from None


def parse_count(value: object) -> int:
    """Return a whole number of things: ``"25.6M"`` is 25,600,000. Suffixes k, M, G (or B, billion), T."""
    expected = "a whole number such as 3000, 25.6M or 7B"
    unit = ""
    number = value
    if isinstance(value, str):
        match = _NUMBER_AND_UNIT.fullmatch(value.strip())
        if match is None or match[2] not in _COUNT_UNITS:
            raise refusal(expected, value)
        number, unit = match[1], match[2]
    count = _fraction(number, expected) * _COUNT_UNITS[unit]
    if count.denominator != 1 or count > COUNT_MAX:
        raise refusal(expected, value)
    return int(count)


def parse_range(value: object, high: int = COUNT_MAX) -> tuple[int, int]:
    """Return (least, most) of ``"1..8"``; a single number N is (N, N). Neither may pass ``high``."""
    expected = "a whole number N, or a range LOW..HIGH"
    ends: list[object] = list(value.split("..")) if isinstance(value, str) else [value]
    if len(ends) > 2:
        raise refusal(expected, value)
    try:
        low, top = parse_int(ends[0]), parse_int(ends[-1])
    except ValueError:
        raise refusal(expected, value) from None
    if low > top:
        raise refusal("a range LOW..HIGH with LOW at most HIGH", value)
    if top > high:
        raise refusal(f"{expected}, of at most {high}", value)
    return low, top


def parse_duration(value: object) -> int:
    """Return int microseconds: ``"1h30m"``, ``"2d"``, ``"250ms"``; a plain number is seconds.

    Units w, d, h, m, s, ms, us, largest first. At most 100 years.
    """
    try:
        us = _fraction(value, _TIME) * US_PER_S
    except ValueError:
        match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or not any(match.groups()):
            raise refusal(_TIME, value) from None
        parts = match.groupdict(default="0").items()
        us = sum((Fraction(number) * _DURATION_UNITS[unit] for unit, number in parts), Fraction())
    if us > DURATION_MAX_US:
        raise refusal(f"{_TIME}, of at most 100 years", value)
    return round(us)


def parse_gpu(value: object) -> GpuDemand:
    """Return a GPU demand: ``8``, ``"0.5"``, ``"a100:2"``; ``0`` means none and forgets the kind.

    A part of a GPU is allowed below 1 only, in steps of 0.001. Kinds are lower-cased; Slurm's ``gpu:a100:2``
    and ``gpu:2`` are understood.
    """
    kind = ""
    count = value
    if isinstance(value, str):
        kind, colon, count = value.strip().lower().removeprefix("gpu:").rpartition(":")
        if colon and not GPU_KIND.fullmatch(kind):
            raise refusal(_GPU, value)
    try:
        number = _fraction(count, _GPU)
    except ValueError:
        raise refusal(_GPU, value) from None
    milli = _milli(number)
    if milli is None or (milli > 1000 and milli % 1000):
        raise refusal("a whole number of GPUs, or a part of one below 1 in steps of 0.001", value)
    if milli > GPUS_MAX * 1000:
        raise refusal(f"at most {GPUS_MAX} GPUs in one task", value)
    return GpuDemand(kind if milli else "", milli)


def parse_gpus(value: object) -> tuple[GpuDemand, ...]:
    """Return the alternatives of a GPU demand, in the order wanted: one demand, or ``{"any_of": [...]}``."""
    if not isinstance(value, dict):
        return (parse_gpu(value),)
    if set(value) != {"any_of"} or not isinstance(value["any_of"], (list, tuple)):
        raise refusal("{any_of: [KIND:N, …]}", value)
    wanted = tuple(parse_gpu(item) for item in value["any_of"])
    if not 1 <= len(wanted) <= ALTERNATIVES_MAX:
        raise refusal(f"1 to {ALTERNATIVES_MAX} alternatives in any_of", len(wanted))
    if len(set(wanted)) < len(wanted):
        raise refusal("alternatives that differ in any_of", ", ".join(map(format_gpu, wanted)))
    return wanted


def _decimal(number: Fraction) -> str:
    """Write a fraction whose denominator divides 10^6, without trailing zeros."""
    whole, rest = divmod(round(number * 1_000_000), 1_000_000)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")


def format_size(size_bytes: int) -> str:
    """Write bytes exactly, in the shortest unit: ``parse_size(format_size(n)) == n``."""
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 0:
        raise refusal("bytes, a whole number of 0 or more", size_bytes)
    texts = [f"{size_bytes}B"]
    for unit, per in _SIZE_DECIMAL.items():
        if size_bytes * 1000 % per == 0:
            texts.append(_decimal(Fraction(size_bytes, per)) + unit)
    texts += [f"{size_bytes // per}{unit}" for unit, per in _SIZE_BINARY.items() if size_bytes % per == 0]
    return min(texts, key=lambda text: (len(text), text))


def format_duration(duration_s: float) -> str:
    """Write seconds as ``"1h30m"``, exact to the microsecond: ``parse_duration`` gives them back."""
    if isinstance(duration_s, bool) or not math.isfinite(duration_s) or duration_s < 0:
        raise refusal("seconds, a number of 0 or more", duration_s)
    rest = round(Fraction(duration_s) * US_PER_S)
    text = ""
    for unit in ("d", "h", "m"):
        number, rest = divmod(rest, _DURATION_UNITS[unit])
        text += f"{number}{unit}" if number else ""
    return text + f"{_decimal(Fraction(rest, US_PER_S))}s" if rest or not text else text


def format_milli(milli: int) -> str:
    """Write thousandths as a number: 500 is ``"0.5"``, 2000 is ``"2"``."""
    return _decimal(Fraction(milli, 1000))


def format_gpu(demand: GpuDemand) -> str:
    """Write a GPU demand as ``parse_gpu`` reads it: ``"a100:2"``, ``"0.5"``."""
    return f"{demand.kind}:{format_milli(demand.milli)}" if demand.kind else format_milli(demand.milli)


def format_gpus(alternatives: Sequence[GpuDemand]) -> str:
    """Write the alternatives for people: ``"a100:1 or v100:2"``."""
    return " or ".join(map(format_gpu, alternatives)) or "0"


def is_number(value: object) -> bool:
    """Whether a value is a finite number, and no boolean."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: object) -> bool:
    """Whether a value is text that a file, a process and a journal can hold: valid Unicode without NUL."""
    return isinstance(value, str) and not NO_TEXT.search(value)


def name_fault(name: str, *, slash: bool = False) -> str | None:
    """Return what a name must be and isn't, or None for a good one. Any script and emoji are good.

    Refused: more than 128 characters, control characters (also those that turn the direction of text, or
    end a line), lone surrogates, a leading ``-``, ``.`` and ``..``, and slashes unless ``slash``.
    """
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        return f"of 1 to {NAME_LENGTH_MAX} characters"
    plain = name.isascii() and name.isprintable()
    if not plain and any(unicodedata.category(c) in CONTROL_CATEGORIES or c in DIRECTION_CONTROLS for c in name):
        return "without control characters"
    if not name.strip() or name != name.strip():
        return "without space around it"
    if name.startswith("-"):
        return "that doesn't start with '-'"
    pieces = name.replace("\\", "/").split("/")
    if "." in pieces or ".." in pieces or (len(pieces) > 1 and not slash):
        return "without '..' and path separators"
    return None


def is_gpu_demand(demand: GpuDemand) -> bool:
    """Whether a demand has a sound kind, and is whole or a part of one GPU."""
    milli = demand.milli
    sound = type(milli) is int and 0 <= milli <= GPUS_MAX * 1000 and (milli < 1000 or milli % 1000 == 0)
    return sound and (not demand.kind or GPU_KIND.fullmatch(demand.kind) is not None)
