"""Rows from outside: a table's text becomes columns of cells, cells become numbers, and what is wrong is counted.

All readers of traces share one way. A reader takes whole columns, turns them into numbers, and says of which rows what is wrong
(`Rows.drop`): such a row is left out and counted once, by the first thing that is wrong with it. What is odd but kept is counted
by `Rows.note`. `to_workload` makes jobs of the rows that are left. `docs/traces.md` states each format's rules.
"""

from __future__ import annotations

import csv
import datetime
import io
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core.arrays import Bools, Floats, Ints
from headway.core.errors import UserError, shown
from headway.core.units import DURATION_MAX_US, GPU_KIND, US_PER_S
from headway.workloads.cluster import KINDS_MAX
from headway.workloads.generators.draws import ESTIMATE_TWENTIETHS
from headway.workloads.schema import JOBS_MAX, Workload, plain_spec

FILE_BYTES_MAX = 1 << 30
GPUS_MAX = 10_000
EXACT_MAX = 2**53
"""Up to here every whole number is a float."""
CLOCK_MAX_US = EXACT_MAX
"""285 years after a clock's zero: to 2255 for one that counts from 1970."""
CLOCK_EXPECTED = "a time from 0 to 285 years"
UNKNOWN_NAMED_MAX = 20
ESTIMATES = ("noisy", "exact")
"""How a job that says nothing of it gets an estimate."""

_DIGITS = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18]
_MARKS = [4, 7, 13, 16]
_PARTS = (slice(0, 8), slice(8, 10), slice(10, 12), slice(12, 14))
"""Of the 14 digits of a wall clock's time: date, hour, minute, second."""
_PLACES = 10 ** np.arange(7, -1, -1)

Cells = Sequence[str] | Ints | Floats
"""A column: text as it was written, or numbers none of which is missing."""


class Rows:
    """The rows of one table, column by column, and what is wrong with them."""

    def __init__(self, file: str, columns: Mapping[str, Cells], index: Ints, line_of: Callable[[int], int] = lambda _: 0) -> None:
        """`index`: each row's number in its file (0: the first after the header); `line_of` finds the line of a row by that."""
        self.file, self.columns, self.index, self.line_of = file, columns, index, line_of
        self.good: Bools = np.ones(len(index), np.bool_)
        self.dropped: Counter[str] = Counter()
        self.noted: Counter[str] = Counter()
        self._first: tuple[int, str, str] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def drop(self, bad: Bools, kind: str, key: str = "", expected: str = "", got: Callable[[int], str] | None = None) -> None:
        """Leave out the rows of a mask that are still good. `expected` and the cell of column `key` tell of the first; `got`
        finds other words for it.
        """
        rows = np.flatnonzero(bad & self.good)
        if len(rows) == 0:
            return
        self.dropped[kind] += len(rows)
        self.good[rows] = False
        first = int(rows[0])
        if self._first is None or first < self._first[0]:
            found = got(first) if got else shown(str(self.columns[key][first])) if key in self.columns else kind
            self._first = (first, key, f"expected {expected}, got {found}")

    def drop_repeated(self, ids: Iterable[Hashable], key: str, *, unless_empty: bool = False) -> None:
        """Leave out the rows whose id a good row before them has."""
        seen: set[Hashable] = set()
        repeated = np.zeros(len(self), np.bool_)
        for row, (value, good) in enumerate(zip(ids, self.good.tolist(), strict=True)):
            if not good or (unless_empty and not value):
                continue
            if value in seen:
                repeated[row] = True
            seen.add(value)
        self.drop(repeated, "duplicate id", key, "an id of its own")

    def note(self, odd: Bools, kind: str) -> None:
        """Count rows that are odd and are kept; call it when all checks are done."""
        if count := int(np.count_nonzero(odd & self.good)):
            self.noted[kind] += count

    def first_fault(self, prefix: str = "") -> UserError | None:
        """Where the first row that was left out stands, and what was wrong with it."""
        if self._first is None:
            return None
        row, key, message = self._first
        return UserError(prefix + message, file=self.file, line=self.line_of(int(self.index[row])), key=key)

    # -- cells to numbers ---------------------------------------------------------------------------------------------
    def numbers(self, key: str, low: float, high: float, expected: str) -> Floats:
        """A column's numbers; rows whose cell is empty, no number, or outside `low`…`high` are dropped (and 0)."""
        cells = self.columns[key]
        values = floats(cells)
        self._drop_missing(key, expected)
        self.drop(~((values >= low) & (values <= high)), f"bad {key}", key, expected)
        return np.where(self.good, values, 0.0)

    def counts(self, key: str, low: int, high: int) -> Ints:
        """A column's whole numbers from `low` to `high`; other rows are dropped (and `low`)."""
        expected = f"a whole number from {low} to {high}"
        values = floats(self.columns[key])
        self._drop_missing(key, expected)
        self.drop(~((values >= low) & (values <= high) & (values == np.floor(values))), f"bad {key}", key, expected)
        whole: Ints = np.where(self.good, values, low).astype(np.int64)
        return whole

    def clock_us(self, key: str, unit_us: int = US_PER_S) -> Ints:
        """Points in time (µs) of a column that counts in `unit_us` from any origin that its rows share."""
        values = self.numbers(key, 0, CLOCK_MAX_US / unit_us, CLOCK_EXPECTED)
        return to_us(values, unit_us)

    def durations_us(self, key: str, unit_us: int = US_PER_S) -> Ints:
        """Durations (µs, at least 1). Zero, negative, longer than 100 years or no number: dropped, and each counted apart."""
        values = floats(self.columns[key])
        expected = f"a duration above 0, at most {DURATION_MAX_US / unit_us:.0f} (100 years)"
        self._drop_missing(key, expected)
        self.drop(np.isnan(values), f"bad {key}", key, expected)
        self.drop_lengths(values * unit_us, key, expected)
        return np.maximum(to_us(np.where(self.good, values, 0.0), unit_us), 1)

    def drop_lengths(self, length_us: Floats | Ints, key: str, expected: str, negative: str = "negative duration") -> None:
        """Leave out rows whose job would take no time, less than none, or more than 100 years."""
        self.drop(length_us < 0, negative, key, expected)
        self.drop(length_us == 0, "zero duration", key, expected)
        self.drop(length_us > DURATION_MAX_US, "duration over 100 years", key, expected)

    def _drop_missing(self, key: str, expected: str) -> None:
        cells = self.columns[key]
        if not isinstance(cells, np.ndarray):
            self.drop(np.array([not cell or cell.isspace() for cell in cells], np.bool_), f"missing {key}", key, expected)

    def gpu_kinds(self, key: str) -> tuple[tuple[str, ...], Ints]:
        """The GPU kinds that cells such as `V100|T4` name, in lower case and in order, and each row's mask of them (-1: any).

        Raises:
            UserError: more kinds than a mask has bits.
        """
        cells = self.words(key)
        sets: dict[str, frozenset[str] | None] = {}
        for cell in dict.fromkeys(cells):
            words = [word.strip().lower() for word in cell.split("|")] if cell.strip() else []
            sets[cell] = frozenset(words) if all(map(GPU_KIND.fullmatch, words)) else None
        self.drop(np.array([sets[cell] is None for cell in cells], np.bool_), f"bad {key}", key, "GPU kinds such as v100|t4")
        used = dict.fromkeys(cell for cell, good in zip(cells, self.good.tolist(), strict=True) if good)
        kinds = tuple(sorted(frozenset().union(*(sets[cell] or () for cell in used))))
        if len(kinds) > KINDS_MAX:
            raise UserError(f"over {KINDS_MAX} GPU kinds", file=self.file, key=key)
        masks = {cell: sum(1 << kinds.index(kind) for kind in sets[cell] or ()) or -1 for cell in used}
        return kinds, np.array([masks.get(cell, -1) for cell in cells], np.int64)

    def words(self, key: str) -> Sequence[str]:
        """A column as text."""
        cells = self.columns[key]
        return [str(cell) for cell in cells.tolist()] if isinstance(cells, np.ndarray) else cells

    def texts(self, key: str, default: str) -> list[str]:
        """A column as text without the space around it, and `default` where there is none."""
        return [cell.strip() or default for cell in self.words(key)]


def floats(cells: Cells) -> Floats:
    """Each cell as a number; NaN where it is none, or not a finite one."""
    if isinstance(cells, np.ndarray):
        values = cells.astype(np.float64)
    else:
        try:
            values = np.array(list(map(float, cells)), np.float64)
        except ValueError:
            values = np.array([_float(cell) for cell in cells], np.float64)
        if any("_" in cell for cell in cells):  # which Python takes between digits, and no table means
            values[["_" in cell for cell in cells]] = np.nan
    values[~np.isfinite(values)] = np.nan
    return values


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def wall_clock_s(cells: Sequence[str]) -> Ints:
    """Seconds since year 1 of each `YYYY-MM-DD HH:MM:SS` (or with a T between), or -1 where a cell is none."""
    letters = np.array(cells, "U20").view(np.uint32).reshape(len(cells), 20) if len(cells) else np.zeros((0, 20), np.uint32)
    digits = letters[:, _DIGITS].astype(np.int64) - ord("0")
    good = np.all((digits >= 0) & (digits <= 9), axis=1) & (letters[:, 19] == 0)
    good &= np.all(letters[:, _MARKS] == [ord(mark) for mark in "--::"], axis=1)
    good &= (letters[:, 10] == ord(" ")) | (letters[:, 10] == ord("T"))
    day, hour, minute, second = (digits[:, part] @ _PLACES[part.start - part.stop :] for part in _PARTS)
    good &= (hour < 24) & (minute < 60) & (second < 60)
    dates, which = np.unique(np.where(good, day, 0), return_inverse=True)
    days = np.array([_day(date) for date in dates.tolist()], np.int64)[which]
    return np.where(good & (days >= 0), days * 86_400 + hour * 3600 + minute * 60 + second, -1)


def _day(date: int) -> int:
    """The day's number of YYYYMMDD, or -1."""
    try:
        return datetime.date(date // 10_000, date // 100 % 100, date % 100).toordinal()
    except ValueError:
        return -1


def to_us(values: Floats, unit_us: int) -> Ints:
    """Times in µs, rounded to the nearest."""
    times: Ints = np.rint(values * unit_us).astype(np.int64)
    return times


# -- tables of text ---------------------------------------------------------------------------------------------------
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


def header_of(text: str) -> list[str]:
    """The names of a table's columns; none where its first line is no row."""
    try:
        return [cell.strip() for cell in next(csv.reader([text[: text.find("\n") + 1] or text]), [])]
    except csv.Error:
        return []


def refuse_columns(header: Sequence[str], columns: Iterable[str], file: str, line: int = 1) -> None:
    """Raise `UserError` for the first column that a table lacks or has more than once."""
    for column in columns:
        if header.count(column) != 1:
            found = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
            problem = "no" if column not in header else "more than one"
            raise UserError(f"{problem} column '{column}'; found {shown(found)}", file=file, line=line)


def read_csv(
    text: str, columns: Sequence[str], *, file: str, optional: Collection[str] = (), ignored: Collection[str] = (), line: int = 0
) -> Rows:
    """Return the rows of a comma-separated table: its `columns`, which it must have, and those of `optional` that it has.

    Other columns are noted, unless they are among the `ignored`. `line` counts lines of the file before the table.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [cell.strip() for cell in next(reader, [])]
    except csv.Error as error:
        raise UserError(f"not a table: {error}", file=file, line=line + 1) from None
    wanted = [*columns, *(column for column in dict.fromkeys(header) if column in optional)]
    refuse_columns(header, wanted, file, line + 1)
    at = [header.index(column) for column in wanted]
    width = max(at, default=0) + 1
    try:
        table = list(reader)
    except csv.Error as error:
        raise UserError(f"not a table: {error}", file=file, line=line + reader.line_num) from None
    fields = np.fromiter(map(len, table), np.int64, len(table))
    index = np.flatnonzero(fields)
    if len(index) > JOBS_MAX:
        raise UserError(f"over {JOBS_MAX} rows", file=file)
    fields = fields[index]
    short = fields < width
    if short.any() or len(index) < len(table):
        blank = [""] * width
        table = [table[row] if enough else blank for row, enough in zip(index.tolist(), (~short).tolist(), strict=True)]
    by_column = {column: [cells[i] for cells in table] for column, i in zip(wanted, at, strict=True)}
    rows = Rows(file, by_column, index, lambda row: line + _line(text, row))
    rows.drop(short, "too few fields", "", f"at least {width} fields", lambda row: str(fields[row]))
    rows.note(fields > len(header), "too many fields")
    note_unknown(rows, [name for name in header if name not in wanted and name not in ignored])
    return rows


def _line(text: str, row: int) -> int:
    """The line of a row, counted anew: cells in quotes may hold line ends."""
    reader = csv.reader(io.StringIO(text, newline=""))
    for at, _ in enumerate(reader):
        if at == row + 1:
            break
    return reader.line_num


def note_unknown(rows: Rows, names: Sequence[str]) -> None:
    """Count the columns that nobody reads, by name."""
    for name in names[:UNKNOWN_NAMED_MAX]:
        rows.noted[f"unknown column {shown(name)}"] = len(rows)
    if len(names) > UNKNOWN_NAMED_MAX:
        rows.noted[f"{len(names) - UNKNOWN_NAMED_MAX} more unknown columns"] = len(rows)


# -- rows to jobs -----------------------------------------------------------------------------------------------------
def to_workload(
    rows: Rows,
    name: str,
    *,
    submitted_us: Ints,
    work_us: Ints,
    spec: Mapping[int, Ints | int],
    users: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    job_names: Sequence[str] | None = None,
    kinds: tuple[str, ...] = (),
    estimates: str = "noisy",
    zero_us: int | None = None,
) -> Workload:
    """Return the jobs of the rows that are good, in order of (submission, row). `zero_us` becomes time 0; None: the first
    submission does.

    All columns are as long as the rows. `spec` holds what differs from a plain job. A job has the estimate of `spec`, or where
    that is 0 or not given one by the rule of `estimates`. Names are numbered in their order as text; an empty one of a model is
    none.

    Raises:
        UserError: no row is a job.
    """
    kept = np.flatnonzero(rows.good)
    if len(kept) == 0:
        raise rows.first_fault("no row is a job; the first: ") or UserError("a header and no rows", file=rows.file)
    order = kept[np.argsort(submitted_us[kept], kind="stable")]
    zero = int(submitted_us[order[0]]) if zero_us is None else zero_us
    submitted, work = submitted_us[order] - zero, work_us[order]
    table = plain_spec(len(order))
    for column, values in spec.items():
        table[column] = values[order] if isinstance(values, np.ndarray) else values
    chosen = order.tolist()
    queue_names, table[c.J_QUEUE] = numbered(queues, chosen, ("default",))
    if users is queues and users is not None:
        user_names, table[c.J_USER] = queue_names, table[c.J_QUEUE]
    else:
        user_names, table[c.J_USER] = numbered(users, chosen, ("user",))
    if models is not None:
        model_names, model = numbered(models, chosen, ())
        unnamed = int("" in model_names)
        model_names, table[c.J_MODEL] = model_names[unnamed:], model - unnamed
    else:
        model_names = ()
    table[c.J_DEADLINE] = np.where(table[c.J_DEADLINE] == c.NEVER, c.NEVER, table[c.J_DEADLINE] - zero)
    guess = work if estimates == "exact" else noisy_estimates(work, rows.index[order])
    table[c.J_ESTIMATE] = np.where(table[c.J_ESTIMATE] > 0, table[c.J_ESTIMATE], guess)
    fault = rows.first_fault()
    return Workload(
        name,
        submitted,
        table,
        work,
        users=user_names,
        queues=queue_names,
        kinds=kinds,
        models=model_names,
        job_names=tuple(job_names[row] for row in chosen) if job_names is not None else (),
        dropped=dict(rows.dropped),
        dropped_first=str(fault) if fault else "",
        noted=dict(rows.noted),
        rows_read=len(rows),
    )


def numbered(cells: Sequence[str] | None, order: Sequence[int], default: tuple[str, ...]) -> tuple[tuple[str, ...], Ints]:
    """The names that rows use, in order, and each row's number among them; `default` and zeros where there is no such column."""
    if cells is None:
        return default, np.zeros(len(order), np.int64)
    chosen = [cells[row] for row in order]
    names = sorted(set(chosen))
    number = {name: i for i, name in enumerate(names)}
    return tuple(names), np.array([number[name] for name in chosen], np.int64)


def gang(workers: Ints) -> dict[int, Ints | int]:
    """Spec columns of gangs that are not elastic, one GPU a worker."""
    return {c.J_DATA: workers, c.J_DATA_MIN: workers, c.J_DATA_MAX: workers}


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
