"""The cells of Slurm's accounting: job ids, times, durations, memory, resources (TRES and GRES), states, lists of hosts.

Every `parse_…` takes the text of one cell and raises `ValueError` that says what was expected and what was given. Cells repeat
from row to row, so some are remembered.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from zoneinfo import ZoneInfo

from headway.core.units import DURATION_MAX_US, US_PER_S, refusal

GPUS_MAX = 10_000
"""GPUs of one job."""
HOSTS_MAX = 1 << 17
UNKNOWN_WORDS = frozenset({"", "unknown", "none", "n/a", "(null)", "none assigned", "invalid"})
UNLIMITED_WORDS = frozenset({"unlimited", "partition_limit", "infinite"})
FIRST_YEAR_S = 365 * 86_400
"""What Slurm writes for a time that it doesn't know is at most so far from 1970."""
SECONDS_MAX = DURATION_MAX_US // US_PER_S

_JOB_ID = re.compile(r"[0-9]+(?:_(?:[0-9]+|\[[0-9,:%\-]*(?:\.\.\.)?[0-9,:%\-]*\])|\+[0-9]+)?")
_DURATION = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,9}):)?([0-9]{1,9}):([0-9]{1,2})(\.[0-9]{1,9})?")
_DAYS_HOURS = re.compile(r"([0-9]{1,6})-([0-9]{1,2})")
_MEMORY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([KMGTP]?)([nc]?)")
_MEMORY_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_GRES = re.compile(r"(?:gres[/:])?gpu(?::([A-Za-z][A-Za-z0-9._-]*))?(?::([0-9]+))?")
_HOSTS = re.compile(r"([^\[\],]+)|\[([0-9,\-]+)\]")


@dataclass(frozen=True, slots=True)
class Tres:
    """What a job asked for or held, over all its nodes; None where the cell doesn't say."""

    cpus: int | None = None
    memory_bytes: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    kind: str = ""
    """The one type of GPU that is named; empty for none or several."""


def is_step(job_id: str) -> bool:
    """Whether an id names a step of a job (`12.batch`, `12.extern`, `12_3.0`, `12+0.1`)."""
    return "." in job_id.replace("...", "")


def parse_job_id(text: str) -> str:
    """Return the id of a job (`12`), of a task of an array (`12_3`, tasks that wait together `12_[0-9%2]`) or of a part of a
    heterogeneous job (`12+0`)."""
    if not _JOB_ID.fullmatch(text):
        raise refusal("a job id such as 12, 12_3, 12_[0-9] or 12+0", text)
    return text


def is_unknown(text: str) -> bool:
    """Whether a cell says that there is nothing to say."""
    return text.lower() in UNKNOWN_WORDS


def parse_time(text: str, zone: datetime.tzinfo) -> tuple[int | None, bool]:
    """Return (seconds since 1970 in UTC, whether the text itself says its zone); None for a time that is not known.

    ISO 8601 with or without an offset, or seconds since 1970. A time without an offset is one of `zone`; of the two that an
    hour put back gives, it is the first.
    """
    if is_unknown(text):
        return None, True
    if text.isdecimal() and len(text) <= 12:
        seconds, zoned = int(text), True
    else:
        try:
            when = datetime.datetime.fromisoformat(text)
            zoned = when.tzinfo is not None
            seconds = math.floor((when if zoned else when.replace(tzinfo=zone)).timestamp())
        except (ValueError, OverflowError):
            raise refusal("a time such as 2024-03-01T12:00:00", text) from None
    return (seconds if seconds > FIRST_YEAR_S else None), zoned


def find_zone(name: str) -> datetime.tzinfo:
    """Return the time zone of a name such as `Europe/Paris`, or of `UTC`."""
    if name.upper() == "UTC":
        return datetime.UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise refusal("a time zone such as Europe/Paris, or UTC", name) from None


@lru_cache(maxsize=1 << 14)
def parse_duration(text: str) -> int | None:
    """Return µs of `[D-][HH:]MM:SS[.mmm]` or `D-HH`; None for one that is not known, or without a limit."""
    if is_unknown(text) or text.lower() in UNLIMITED_WORDS:
        return None
    if match := _DURATION.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
        us = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * US_PER_S + round(float(match[5] or 0) * US_PER_S)
    elif match := _DAYS_HOURS.fullmatch(text):
        us = (int(match[1]) * 24 + int(match[2])) * 3600 * US_PER_S
    else:
        raise refusal("a duration such as 1-02:03:04", text)
    return us


@lru_cache(maxsize=1 << 14)
def parse_whole(text: str, high: int = 10**12) -> int | None:
    """Return a whole number of 0 or more; None where the cell is empty or says unknown."""
    if is_unknown(text):
        return None
    try:
        number = float(text) if len(text) <= 30 and "_" not in text else -1.0
    except ValueError:
        number = -1.0
    if not 0 <= number <= high or number != int(number):
        raise refusal(f"a whole number from 0 to {high}", text)
    return int(number)


def parse_memory(text: str, cpus: int, nodes: int) -> int | None:
    """Return bytes over all nodes of `16Gn` (each node), `4000Mc` (each cpu) or `244G` (all); without a letter it is MiB.

    Slurm's letters are powers of 1024.
    """
    if is_unknown(text) or text == "0":
        return None
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise refusal("memory such as 16Gn, 4000Mc or 244G", text)
    each = round(float(match[1]) * _MEMORY_UNITS[match[2]])
    return each * {"": 1, "n": max(nodes, 1), "c": max(cpus, 1)}[match[3]]


@lru_cache(maxsize=1 << 16)
def parse_tres(text: str) -> Tres:
    """Return what `billing=8,cpu=8,gres/gpu=4,gres/gpu:a100=4,mem=64G,node=1` says. `gres/gpu` is the number of GPUs; where it
    is missing, the types are added up. Other resources are passed over."""
    found: dict[str, str] = {}
    for item in text.split(",") if text and not is_unknown(text) else ():
        key, equals, value = item.rpartition("=")
        if not equals:
            raise refusal("resources such as cpu=8,gres/gpu=4,mem=64G", text)
        found[key.strip().lower()] = value.strip()
    typed = {key.partition(":")[2]: _gpus(value) for key, value in found.items() if key.startswith("gres/gpu:")}
    plain = found.get("gres/gpu")
    gpus = _gpus(plain) if plain is not None else sum(typed.values()) if typed else None
    if gpus is not None and gpus > GPUS_MAX:
        raise refusal(f"at most {GPUS_MAX} GPUs", text)
    kinds = sorted(kind for kind, count in typed.items() if count)
    return Tres(
        cpus=parse_whole(found.get("cpu", "")),
        memory_bytes=parse_memory(found.get("mem", ""), 1, 1),
        nodes=parse_whole(found.get("node", "")),
        gpus=gpus,
        kind=kinds[0] if len(kinds) == 1 and typed[kinds[0]] == gpus else "",
    )


def _gpus(text: str) -> int:
    count = parse_whole(text, GPUS_MAX)
    if count is None:
        raise refusal("a number of GPUs", text)
    return count


def parse_gres(text: str) -> dict[str, int]:
    """Return GPUs by type (empty: no type) of `gpu:a100:4(S:0-1),gpu:2,shard:8`; other resources are passed over."""
    found: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        if match := _GRES.fullmatch(item.strip()):
            kind = (match[1] or "").lower()
            found[kind] = found.get(kind, 0) + int(match[2] or 1)
    return {kind: count for kind, count in found.items() if count}


@lru_cache(maxsize=1 << 10)
def parse_state(text: str) -> str:
    """Return the first word of a state: `CANCELLED by 1000` is `CANCELLED`, a cut-off `OUT_OF_ME+` is `OUT_OF_MEMORY`."""
    word = text.upper().split(" ", 1)[0].split(",", 1)[0]
    if word.endswith("+"):
        stem = word[:-1]
        return next((state for state in STATES if state.startswith(stem)), stem)
    return SHORT_STATES.get(word, word)


STATES = (
    "CANCELLED", "COMPLETED", "COMPLETING", "CONFIGURING", "BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PENDING", "PREEMPTED", "RUNNING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "REVOKED", "SUSPENDED", "TIMEOUT",
)  # fmt: skip
SHORT_STATES = {
    "CA": "CANCELLED", "CD": "COMPLETED", "BF": "BOOT_FAIL", "DL": "DEADLINE", "F": "FAILED", "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING", "RQ": "REQUEUED", "RS": "RESIZING",
    "RV": "REVOKED", "S": "SUSPENDED", "TO": "TIMEOUT",
}  # fmt: skip
RUN_AGAIN = frozenset({"REQUEUED", "NODE_FAIL", "PREEMPTED", "REQUEUE_HOLD", "REQUEUE_FED", "BOOT_FAIL"})
"""States of a run after which Slurm may have queued the job again."""
NOT_OVER = frozenset({"RUNNING", "SUSPENDED", "RESIZING", "COMPLETING", "CONFIGURING"})


def parse_hosts(text: str) -> list[str]:
    """Return the names of `gpu[01-04,07],rack[1-2]n[1-8],login`, in that order, leading zeros kept."""
    if is_unknown(text):
        return []
    names: list[str] = []
    for item in re.split(r",(?![^\[]*\])", text):
        parts: list[Sequence[str]] = []
        at = 0
        while at < len(item):
            match = _HOSTS.match(item, at)
            if match is None:
                raise refusal("hosts such as gpu[01-04,07]", text)
            parts.append([match[1]] if match[1] is not None else _ranges(match[2], text))
            at = match.end()
        if not parts or len(names) + math.prod(map(len, parts)) > HOSTS_MAX:
            raise refusal(f"1 to {HOSTS_MAX} hosts such as gpu[01-04,07]", text)
        names += ["".join(choice) for choice in product(*parts)]
    return names


def _ranges(inside: str, text: str) -> list[str]:
    numbers: list[str] = []
    for piece in inside.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or max(len(first), len(last)) > 12:
            raise refusal("hosts such as gpu[01-04,07]", text)
        low, high = int(first), int(last or first)
        if not 0 <= high - low < HOSTS_MAX:
            raise refusal(f"1 to {HOSTS_MAX} hosts such as gpu[01-04,07]", text)
        numbers += [f"{number:0{len(first)}d}" for number in range(low, high + 1)]
    return numbers
