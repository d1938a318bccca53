"""Reader of the Philly trace: `timestamp,duration,num_gpus,…,cluster`, one finished job a row, plain or gzip.

A row is a gang of `num_gpus` workers of one GPU, 1 cpu and 4 GB each, which runs `duration` seconds. Its virtual cluster
(`cluster`) is its queue and its user. Rows are put in order of (timestamp, row); equal rows are different jobs. The first
submission is time 0.

The trace holds no estimates. The user's estimate is the true duration times one of {0.5, 0.8, 1, 1, 1.25, 2, 3}, chosen by
SplitMix64 of the row's number in the file (0 is the first after the header): the same for every run. `estimates=exact` takes
the true duration.

A row that cannot be a job is dropped and counted by what is wrong with it: too few fields, no timestamp, a duration that is
not a positive number of at most 100 years, GPUs that are not a whole number from 1 to 10,000. A file without a single job is
refused.
"""

from __future__ import annotations

import csv
import datetime
import io
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.errors import UserError, shown
from headway.core.units import DURATION_MAX_US, US_PER_S
from headway.workloads.schema import JOBS_MAX, Workload, plain_spec, set_workers

if TYPE_CHECKING:
    from _csv import Reader

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
GPUS_MAX = 10_000
FILE_BYTES_MAX = 1 << 30
ESTIMATES = ("noisy", "exact")
ESTIMATE_TWENTIETHS = (10, 16, 20, 20, 25, 40, 60)
"""The estimate's factors, times 20."""

_TWO_DIGITS = {f"{i:02d}": i for i in range(60)}
_HOURS = {f"{i:02d}": i * 3600 for i in range(24)}


def read_philly(path: Path, *, name: str = "", estimates: str = "noisy") -> Workload:
    """Return the jobs of a Philly file. `UserError` in one line for a file that is none."""
    return parse_philly(read_table(path), file=str(path), name=name or str(path), estimates=estimates)


def read_table(path: Path) -> str:
    """Return the text of a file, plain or gzip; `UserError` for one that is missing, empty, cut off, too large or not text."""
    file = str(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", file=file) from None
    if data.startswith(b"\x1f\x8b"):
        data = _unzipped(data, file)
    if len(data) > FILE_BYTES_MAX:
        raise UserError(f"over {FILE_BYTES_MAX} bytes", file=file)
    if not data.strip():
        raise UserError("the file is empty", file=file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError("not a text file", file=file) from None
    if "\0" in text:
        raise UserError("not a text file", file=file)
    return text


def _unzipped(data: bytes, file: str) -> bytes:
    """Return what gzip members hold, without ever holding more than the limit."""
    parts: list[bytes] = []
    room = FILE_BYTES_MAX + 1
    try:
        while data.startswith(b"\x1f\x8b") and room > 0:
            member = zlib.decompressobj(wbits=31)
            parts.append(member.decompress(data, room))
            room -= len(parts[-1])
            if room > 0 and not member.eof:
                raise UserError("the gzip file is cut off", file=file)
            data = member.unused_data
    except zlib.error as error:
        raise UserError(f"the gzip file is damaged: {error}", file=file) from None
    return b"".join(parts)


def parse_philly(text: str, *, file: str = "workload", name: str = "", estimates: str = "noisy") -> Workload:
    """Return the jobs of a Philly table's text."""
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [cell.strip() for cell in next(rows, [])]
    except csv.Error as error:
        raise UserError(f"not a table: {error}", file=file, line=1) from None
    for column in COLUMNS:
        if header.count(column) != 1:
            found = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
            problem = "no" if column not in header else "more than one"
            raise UserError(f"{problem} column '{column}'; found {shown(found)}", file=file, line=1)
    jobs = _Jobs(*(header.index(column) for column in COLUMNS))
    try:
        jobs.read(rows)
    except csv.Error as error:
        raise UserError(f"not a table: {error}", file=file, line=rows.line_num) from None
    if not jobs.submitted:
        if jobs.first_fault:
            line, key, message = jobs.first_fault
            raise UserError(f"no row is a job; the first: {message}", file=file, line=line, key=key)
        raise UserError("a header and no rows", file=file)
    if len(jobs.submitted) > JOBS_MAX:
        raise UserError(f"over {JOBS_MAX} jobs", file=file)
    return jobs.workload(name or file, file, exact=estimates == "exact")


class _Jobs:
    """The good rows' columns so far, and what was wrong with the others."""

    def __init__(self, timestamp: int, duration: int, num_gpus: int, cluster: int) -> None:
        self.at = (timestamp, duration, num_gpus, cluster)
        self.width = max(self.at) + 1
        self.submitted: list[int] = []
        self.duration: list[float] = []
        self.gpus: list[int] = []
        self.queue: list[str] = []
        self.row: list[int] = []
        self.faults: Counter[str] = Counter()
        self.first_fault: tuple[int, str, str] | None = None
        self._days: dict[str, int] = {}
        self._gpus: dict[str, int] = {}

    def read(self, rows: Reader) -> None:
        """Take in all rows. Dates and GPU counts repeat, so each is parsed once."""
        at_time, at_duration, at_gpus, at_queue = self.at
        days, gpus_of = self._days, self._gpus
        for row, cells in enumerate(rows):
            if len(cells) < self.width:
                if cells:
                    self.fault(rows.line_num, "too few fields", "", f"expected at least {self.width} fields, got {len(cells)}")
                continue
            text = cells[at_time]
            day = days.get(text[:10])
            if day is None:
                day = days[text[:10]] = _day(text[:10])
            hour, minute, second = _HOURS.get(text[11:13]), _TWO_DIGITS.get(text[14:16]), _TWO_DIGITS.get(text[17:])
            if day < 0 or hour is None or minute is None or second is None or text[10] not in " T" or text[13] + text[16] != "::":
                self.fault(rows.line_num, "bad timestamp", "timestamp", f"expected YYYY-MM-DD HH:MM:SS, got {shown(text)}")
                continue
            text = cells[at_duration]
            try:
                duration = float(text)
            except ValueError:
                duration = -1.0
            if not 0.0 < duration <= DURATION_MAX_US / US_PER_S or "_" in text:
                expected = "seconds above 0, at most 100 years"
                self.fault(rows.line_num, "bad duration", "duration", f"expected {expected}, got {shown(text)}")
                continue
            text = cells[at_gpus]
            gpus = gpus_of.get(text)
            if gpus is None:
                gpus = gpus_of[text] = _gpus(text)
            if gpus < 0:
                expected = f"a whole number from 1 to {GPUS_MAX}"
                self.fault(rows.line_num, "bad num_gpus", "num_gpus", f"expected {expected}, got {shown(text)}")
                continue
            self.submitted.append(day * 86_400 + hour + minute * 60 + second)
            self.duration.append(duration)
            self.gpus.append(gpus)
            self.queue.append(cells[at_queue])
            self.row.append(row)

    def fault(self, line: int, kind: str, key: str, message: str) -> None:
        self.faults[kind] += 1
        if self.first_fault is None:
            self.first_fault = (line, key, message)

    def workload(self, name: str, file: str, *, exact: bool) -> Workload:
        """The rows as a workload, in order of submission."""
        submitted = np.array(self.submitted, np.int64) * US_PER_S
        order = np.argsort(submitted, kind="stable")
        submitted = submitted[order] - submitted.min()
        work = np.maximum(np.rint(np.array(self.duration, np.float64)[order] * US_PER_S).astype(np.int64), 1)
        queues = sorted(set(self.queue))
        index = {queue: i for i, queue in enumerate(queues)}
        spec = plain_spec(len(order))
        spec[c.J_QUEUE] = np.array([index[queue] for queue in self.queue], np.int64)[order]
        spec[c.J_USER] = spec[c.J_QUEUE]
        set_workers(spec, np.array(self.gpus, np.int64)[order])
        spec[c.J_ESTIMATE] = work if exact else noisy_estimates(work, np.array(self.row, np.int64)[order])
        names = tuple(queue.strip() or "default" for queue in queues)
        first = ""
        if self.first_fault:
            line, key, message = self.first_fault
            first = str(UserError(message, file=file, line=line, key=key))
        return Workload(name, submitted, spec, work, users=names, queues=names, dropped=dict(self.faults), dropped_first=first)


def _day(text: str) -> int:
    """The day's number, or -1 where the text is no date."""
    try:
        return datetime.date.fromisoformat(text).toordinal() if len(text) == 10 and text[4] == "-" == text[7] else -1
    except ValueError:
        return -1


def _gpus(text: str) -> int:
    """The number of GPUs, or -1 where the text is no whole number in range."""
    try:
        number = float(text)
    except ValueError:
        return -1
    return int(number) if 1 <= number <= GPUS_MAX and number == int(number) and "_" not in text else -1


def noisy_estimates(work_us: Ints, row: Ints) -> Ints:
    """What users say their jobs take: the truth times a factor that hangs on the row's number alone."""
    choice = ((splitmix64(row) >> np.uint64(32)) * np.uint64(len(ESTIMATE_TWENTIETHS))) >> np.uint64(32)
    estimates: Ints = work_us * np.array(ESTIMATE_TWENTIETHS, np.int64)[choice.astype(np.int64)] // 20
    return np.maximum(estimates, 1)


def splitmix64(counter: Ints) -> NDArray[np.uint64]:
    """The SplitMix64 output for each counter (Steele, Lea and Flood 2014): a hash of 64 bits."""
    z = (counter.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
