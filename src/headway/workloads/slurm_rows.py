"""The rows of Slurm's accounting become records; what a row says that cannot be is counted by kind. The rules are in
`workloads.slurm`.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from headway.core.errors import UserError, shown
from headway.core.units import US_PER_S
from headway.workloads import slurm_cells as cells
from headway.workloads.schema import JOBS_MAX
from headway.workloads.slurm_json import json_rows

T = TypeVar("T")
Cell = Callable[[str], str]
"""From a column's name to the text of a row's cell, empty where there is none."""
FREE_TEXT = ("JobName", "Comment", "AdminComment", "SystemComment", "WorkDir", "SubmitLine", "Constraints", "Reason")
"""Columns in which a delimiter may stand."""
DELIMITERS = ("|", "\t", ";", ",")
CLOCK_CHANGES_S = (1800, 3600)


@dataclass(slots=True)
class Record:
    """One row, parsed. Times in seconds since 1970; None: not known."""

    line: int
    id: str
    name: str
    user: str
    account: str
    partition: str
    qos: str
    cluster: str
    submit: int
    eligible: int | None
    start: int | None
    end: int | None
    elapsed_us: int
    limit_us: int | None
    state: str
    nodes: int
    cpus: int
    memory_bytes: int
    gpus: int
    kind: str
    hosts: str
    restarts: int
    odd: list[str] = field(default_factory=list)


class RowFaultError(Exception):
    """A row that cannot be a job: the kind of fault, the column, what is wrong."""

    def __init__(self, kind: str, column: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.column, self.message = kind, column, message


class Reader:
    """Rows become records; those that cannot are counted by kind."""

    def __init__(self, file: str, zone: datetime.tzinfo) -> None:
        self.file, self.zone = file, zone
        self.records: list[Record] = []
        self.rows = 0
        self.ignored: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.first: tuple[int, str, str] | None = None
        self.columns: frozenset[str] = frozenset()
        self.local_times = self.zoned_times = 0

    def drop(self, line: int, kind: str, column: str, message: str) -> None:
        self.dropped[kind] += 1
        if self.first is None or line < self.first[0]:
            self.first = (line, column, message)

    def read(self, text: str) -> None:
        """Take in a whole text: JSON, or a table."""
        if text.lstrip()[:1] == "{":
            rows = enumerate(json_rows(text, self.file), start=1)
            self.read_rows((number, lambda column, row=row: row.get(column, "")) for number, row in rows)  # type: ignore[misc]
        else:
            self.read_table(text)

    def read_table(self, text: str) -> None:
        """Take in the lines of a table with a header."""
        # Not splitlines(): a job's name may hold what else Unicode calls the end of a line.
        lines = text.split("\n")
        at = next(i for i, line in enumerate(lines) if line.strip())
        delimiter = max(DELIMITERS, key=lambda d: (lines[at].count(d), -DELIMITERS.index(d)))
        header = [_canonical(cell) for cell in lines[at].rstrip("\r").split(delimiter)]
        trailing = header[-1] == ""
        header = header[:-1] if trailing else header
        self._check_header(header, at + 1, lines[at + 1] if at + 1 < len(lines) else "")
        place = {column: i for i, column in enumerate(header)}
        free = [place[column] for column in FREE_TEXT if column in place]

        def rows() -> Iterator[tuple[int, Cell]]:
            for number, line in enumerate(lines[at + 1 :], start=at + 2):
                line = line.rstrip("\r")
                if not line.strip():
                    continue
                row = line.split(delimiter)
                row = row[:-1] if trailing and row[-1] == "" else row
                extra = len(row) - len(header)
                if extra > 0 and len(free) == 1:  # a delimiter in the one text that people choose freely
                    i = free[0]
                    row[i : i + extra + 1] = [delimiter.join(row[i : i + extra + 1])]
                elif extra:
                    self.rows += 1
                    kind = "too many fields" if extra > 0 else "too few fields"
                    self.drop(number, kind, "", f"expected {len(header)} fields, got {len(row)}")
                    continue
                if not row[0][:1].isdecimal() and [_canonical(cell) for cell in row] == header:
                    self.rows += 1
                    self.ignored["repeated header"] += 1
                    continue
                yield number, lambda column, row=row: row[place[column]].strip() if column in place else ""  # type: ignore[misc]

        self.read_rows(rows())

    def _check_header(self, header: list[str], line: int, below: str) -> None:
        self.columns = frozenset(header)
        found = shown(", ".join(header[:8]) + (", …" if len(header) > 8 else ""))
        if below.strip() and not below.strip(" -"):
            raise UserError("columns padded with spaces: expected the output of `sacct -P`", file=self.file, line=line)
        for column in header:
            if column and header.count(column) > 1:
                raise UserError(f"more than one column '{column}'; found {found}", file=self.file, line=line)
        wanted = (("JobID", "JobIDRaw"), ("Submit",), ("Start",), ("ElapsedRaw", "Elapsed", "End"))
        missing = [" or ".join(f"'{column}'" for column in group) for group in wanted if not self.columns & set(group)]
        if missing:
            raise UserError(f"no column {', '.join(missing)}; found {found}", file=self.file, line=line)

    def read_rows(self, rows: Iterable[tuple[int, Cell]]) -> None:
        """Take in rows, each as its number and a function from a column's name to the cell."""
        for line, cell in rows:
            self.rows += 1
            if self.rows > JOBS_MAX:
                raise UserError(f"over {JOBS_MAX} rows", file=self.file)
            job_id = cell("JobID") or cell("JobIDRaw")
            if cells.is_step(job_id):
                self.ignored["job step"] += 1
                continue
            try:
                self.records.append(self._record(line, job_id, cell))
            except RowFaultError as fault:
                self.drop(line, fault.kind, fault.column, fault.message)

    def _record(self, line: int, job_id: str, cell: Cell) -> Record:
        _parsed("bad job id", "JobID", cells.parse_job_id, job_id)
        submit = self._time("Submit", cell)
        if submit is None:
            raise RowFaultError("no submit time", "Submit", f"expected a time, got {shown(cell('Submit'))}")
        start, end = self._time("Start", cell), self._time("End", cell)
        elapsed_us = _elapsed_us(cell)
        hosts = cell("NodeList")
        nodes, cpus, memory, gpus, kind = _resources(cell, hosts)
        record = Record(
            line=line,
            id=job_id,
            name=cell("JobName"),
            user=cell("User"),
            account=cell("Account"),
            partition=cell("Partition"),
            qos=cell("QOS"),
            cluster=cell("Cluster"),
            submit=submit,
            eligible=self._time("Eligible", cell),
            start=start,
            end=end,
            elapsed_us=0,
            limit_us=_limit_us(cell),
            state=cells.parse_state(cell("State")),
            nodes=nodes,
            cpus=cpus,
            memory_bytes=memory,
            gpus=gpus,
            kind=kind,
            hosts="" if cells.is_unknown(hosts) else hosts,
            restarts=_parsed("bad Restarts", "Restarts", cells.parse_whole, cell("Restarts")) or 0,
        )
        if start is not None:
            _settle_times(record, elapsed_us)
        return record

    def _time(self, column: str, cell: Cell) -> int | None:
        text = cell(column)
        try:
            seconds, zoned = cells.parse_time(text, self.zone)
        except ValueError as error:
            raise RowFaultError(f"bad {column.lower()} time", column, str(error)) from None
        if seconds is not None:
            self.zoned_times += zoned
            self.local_times += not zoned
        return seconds


def _canonical(cell: str) -> str:
    """A column's name as Slurm writes it, however the header does; `%20` behind it is a width."""
    name = cell.strip().strip('"').partition("%")[0]
    return _COLUMNS.get(name.lower(), name)


_COLUMNS = {
    name.lower(): name
    for name in (
        *FREE_TEXT,
        *"""JobID JobIDRaw User Account Cluster Partition QOS Submit Eligible Start End Elapsed ElapsedRaw Timelimit TimelimitRaw
    State ExitCode NNodes AllocNodes NCPUS ReqCPUS AllocCPUS ReqMem ReqTRES AllocTRES ReqGRES AllocGRES NodeList Restarts
    Priority Suspended""".split(),
    )
}


def _parsed(kind: str, column: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise RowFaultError(kind, column, str(error)) from None


def _elapsed_us(cell: Cell) -> int | None:
    """What sacct says of the run time; None where it says nothing."""
    seconds = _parsed("bad duration", "ElapsedRaw", cells.parse_whole, cell("ElapsedRaw"))
    if seconds is not None:
        return seconds * US_PER_S
    return _parsed("bad duration", "Elapsed", cells.parse_duration, cell("Elapsed"))


def _limit_us(cell: Cell) -> int | None:
    """The time limit; None for none. TimelimitRaw is in minutes."""
    raw = cell("TimelimitRaw")
    if raw and raw.lower() not in cells.UNLIMITED_WORDS:
        minutes = _parsed("bad time limit", "TimelimitRaw", cells.parse_whole, raw)
        limit = None if minutes is None else minutes * 60 * US_PER_S
    else:
        limit = _parsed("bad time limit", "Timelimit", cells.parse_duration, cell("Timelimit"))
    return limit if limit and limit <= cells.SECONDS_MAX * US_PER_S else None


def _resources(cell: Cell, hosts: str) -> tuple[int, int, int, int, str]:
    """Nodes, cpus, memory in bytes, GPUs (all over all nodes), and the type of GPU that was asked for."""
    held = _parsed("bad AllocTRES", "AllocTRES", cells.parse_tres, cell("AllocTRES"))
    asked = _parsed("bad ReqTRES", "ReqTRES", cells.parse_tres, cell("ReqTRES"))

    def whole(*names: str) -> int | None:
        for column in names:
            if (number := _parsed(f"bad {column}", column, cells.parse_whole, cell(column))) is not None:
                return number
        return None

    nodes = held.nodes or whole("NNodes", "AllocNodes") or asked.nodes
    if not nodes:
        nodes = len(_parsed("bad NodeList", "NodeList", cells.parse_hosts, hosts)) or 1
    cpus = held.cpus or whole("AllocCPUS", "NCPUS", "ReqCPUS") or asked.cpus or 0
    memory = held.memory_bytes
    if memory is None:
        memory = asked.memory_bytes
    if memory is None:
        memory = _parsed("bad ReqMem", "ReqMem", lambda text: cells.parse_memory(text, cpus, nodes), cell("ReqMem")) or 0
    gpus, kind = held.gpus if held.gpus is not None else asked.gpus, asked.kind
    if gpus is None:  # older files: AllocGRES counts all nodes, ReqGRES one
        gres = cells.parse_gres(cell("AllocGRES")) or {k: n * nodes for k, n in cells.parse_gres(cell("ReqGRES")).items()}
        gpus = sum(gres.values())
        kind = next(iter(cells.parse_gres(cell("ReqGRES"))), "")
        if gpus > cells.GPUS_MAX:
            raise RowFaultError("bad AllocGRES", "AllocGRES", f"expected at most {cells.GPUS_MAX} GPUs, got {gpus}")
    for column, number, high in (("NNodes", nodes, cells.GPUS_MAX), ("NCPUS", cpus, 1 << 30), ("ReqMem", memory, 1 << 60)):
        if number > high:
            raise RowFaultError(f"bad {column}", column, f"expected at most {high}, got {number}")
    return nodes, cpus, memory, gpus, kind.lower()


def _settle_times(record: Record, elapsed_us: int | None) -> None:
    """Bring start, end and run time of a row into agreement, and note where they were not; a row that cannot be is a fault."""
    start, end = record.start, record.end
    assert start is not None
    if elapsed_us is None:
        if end is None:
            raise RowFaultError("no duration", "Elapsed", "expected Elapsed or End of a job that has started, got neither")
        if end < start:
            raise RowFaultError("end before start", "End", f"ends {start - end} s before it starts")
        elapsed_us = (end - start) * US_PER_S
    elif end is not None and not cells.is_unknown(record.state):
        gap = end - start - elapsed_us // US_PER_S
        if abs(gap) in CLOCK_CHANGES_S:
            record.odd.append("clock change in its run")
            if gap > 0 and end - elapsed_us // US_PER_S >= record.submit:
                record.start = end - elapsed_us // US_PER_S
        elif end < start:
            raise RowFaultError("end before start", "End", f"ends {start - end} s before it starts")
        elif abs(gap) > 1:
            record.odd.append("Elapsed is not End − Start")
    if elapsed_us > cells.SECONDS_MAX * US_PER_S:
        raise RowFaultError("impossible duration", "Elapsed", f"expected at most 100 years, got {elapsed_us // US_PER_S} s")
    assert record.start is not None
    if record.start < record.submit:
        raise RowFaultError("start before submission", "Start", f"starts {record.submit - record.start} s before it is submitted")
    record.elapsed_us = elapsed_us
