"""Reader of Slurm's accounting: what `sacct -P` (or `-p`, any delimiter, any columns) or `sacct --json` prints, plain or gzip.

Needed are the columns JobID (or JobIDRaw), Submit, Start, and one of ElapsedRaw, Elapsed, End. The rules:

- **One job a row**, but for job steps and repeated headers, which are passed over (`ignored`). Tasks of an array and parts of a
  heterogeneous job are jobs of their own. Runs of one id after REQUEUED, NODE_FAIL, PREEMPTED or BOOT_FAIL (`--duplicates`)
  are one job, submitted once; its run time is the sum of its runs. The same run twice is dropped as a duplicate (the fuller one
  stays); an id that comes again after its job has ended is another job.
- **Submission** is Eligible where that is later than Submit: before it nobody could have started the job. The first is time 0;
  within a second the lower id comes first.
- **Run time** is Elapsed (so an hour that the clock skips or repeats does no harm), else End − Start. Jobs keep what they ran,
  also failed, cancelled and timed-out ones, and running ones what they ran so far.
- **Estimate** is the time limit, which is what a user of Slurm declares; without one, the run time.
- **Shape**: as many workers as nodes, equal parts of what was allocated. GPUs that the nodes cannot share equally are workers of
  one GPU each. A type of GPU binds a job if it asked for it (ReqTRES). No GPUs: a job of cpus and memory.
- Users are J_USER; the queue is the partition (`queue=partition|account|qos`). Priorities are not taken over.
- **Dropped**, and counted by kind: jobs that never ran (waiting, cancelled before they started), ran less than a second or over
  100 years, ended before they started, started before they were submitted, and rows that cannot be read.

Times without an offset are of the zone `tz` (default UTC).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.errors import UserError, one_line, shown
from headway.core.units import US_PER_S
from headway.workloads import slurm_cells as cells
from headway.workloads.rows import read_table
from headway.workloads.schema import Workload, plain_spec, set_workers
from headway.workloads.slurm_rows import Reader, Record

QUEUES = ("partition", "account", "qos")
NAME_LENGTH_MAX = 128


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job: when and where it held its GPUs. Times in µs since the first submission."""

    job: int
    start_us: int
    end_us: int
    hosts: str


@dataclass(frozen=True)
class SlurmHistory:
    """What the accounting tells: the jobs, and what became of them under Slurm. Sequences by job, in order of submission."""

    workload: Workload
    zero_s: int
    """The first submission, in seconds since 1970 (UTC)."""
    started_us: Ints
    """First start."""
    ended_us: Ints
    """End of the last run; of a job that still ran, the time up to which it is known."""
    runs: tuple[Run, ...]
    partitions: tuple[str, ...]
    accounts: tuple[str, ...]
    kinds_asked: tuple[str, ...]
    """The type of GPU that each job asked for; empty: any."""
    rows: int
    ignored: dict[str, int]
    """Rows that are no job's own, by kind."""
    merged: int
    """Rows of further runs of jobs that were requeued."""
    noted: dict[str, int]
    """Jobs that were kept, by what was odd about them."""
    missing: tuple[str, ...] = ()
    """What the file has no columns for: `GPUs`, `cpus`, `memory`, `time limits`, `hosts`."""

    @property
    def waited_us(self) -> Ints:
        """How long each job waited in all: from its submission to its end, without its runs."""
        return self.ended_us - self.workload.submitted_us - self.workload.work_us

    def resubmitted(self, submitted_us: Ints, order: Ints) -> SlurmHistory:
        """The same jobs with other times of submission, in the order in which these come; the first is time 0 again."""
        load, zero_us = self.workload, int(submitted_us[order[0]])
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        moved = replace(
            load,
            submitted_us=submitted_us[order] - zero_us,
            spec=np.ascontiguousarray(load.spec[:, order]),
            work_us=load.work_us[order],
            job_names=tuple(load.job_names[i] for i in order),
        )
        return replace(
            self,
            workload=moved,
            zero_s=self.zero_s + zero_us // US_PER_S,
            started_us=self.started_us[order] - zero_us,
            ended_us=self.ended_us[order] - zero_us,
            runs=tuple(Run(int(number[run.job]), run.start_us - zero_us, run.end_us - zero_us, run.hosts) for run in self.runs),
            partitions=tuple(self.partitions[i] for i in order),
            accounts=tuple(self.accounts[i] for i in order),
            kinds_asked=tuple(self.kinds_asked[i] for i in order),
        )


def read_slurm(path: Path, *, name: str = "", queue: str = "partition", tz: str = "UTC") -> Workload:
    """Return the jobs of an accounting file. `UserError` in one line for a file that is none."""
    return read_history(path, name=name, queue=queue, tz=tz).workload


def read_history(path: Path, *, name: str = "", queue: str = "partition", tz: str = "UTC") -> SlurmHistory:
    """Return the jobs of an accounting file, and what became of them."""
    return parse_slurm(read_table(path), file=str(path), name=name or str(path), queue=queue, tz=tz)


def parse_slurm(
    text: str, *, file: str = "accounting", name: str = "", queue: str = "partition", tz: str = "UTC"
) -> SlurmHistory:
    """Return the jobs of an accounting's text, and what became of them."""
    if queue not in QUEUES:
        raise UserError(f"expected {', '.join(QUEUES[:-1])} or {QUEUES[-1]}, got {shown(queue)}", key="queue")
    try:
        zone = cells.find_zone(tz)
    except ValueError as error:
        raise UserError(str(error), key="tz") from None
    reader = Reader(file, zone)
    reader.read(text)
    return _Folding(reader, file).history(name or file, queue)


# -- jobs ---------------------------------------------------------------------------------------------------------
class _Folding:
    """Records become jobs: runs of one job are put together, duplicates and jobs that never ran are dropped."""

    def __init__(self, reader: Reader, file: str) -> None:
        self.reader, self.file = reader, file
        self.merged = 0
        self.noted: Counter[str] = Counter()

    def jobs(self) -> list[list[Record]]:
        """Each job as its runs, in order of (submission, id, row)."""
        by_id: dict[tuple[str, str], list[Record]] = {}
        for record in self.reader.records:
            by_id.setdefault((record.cluster, record.id), []).append(record)
        jobs = [job for records in by_id.values() for job in (self._split(records) if len(records) > 1 else [records])]
        kept = [job for job in jobs if self._ran(job)]
        kept.sort(key=lambda job: (_submitted(job), _number(job[0].id), job[0].line))
        return kept

    def _split(self, records: list[Record]) -> list[list[Record]]:
        """The jobs that the rows of one id stand for."""
        fullest: dict[tuple[int, int | None], Record] = {}
        for record in records:
            key = (record.submit, record.start)
            other = fullest.get(key)
            if other is None:
                fullest[key] = record
                continue
            better = (record.end is not None, record.elapsed_us) > (other.end is not None, other.elapsed_us)
            fullest[key] = record if better else other
            loser = other if better else record
            self.reader.drop(loser.line, "duplicate row", "JobID", f"the run of {shown(loser.id)} stands here twice")
        ordered = sorted(fullest.values(), key=lambda r: (r.submit, r.start is None, r.start or 0, r.line))
        jobs: list[list[Record]] = []
        for record in ordered:
            last = jobs[-1][-1] if jobs else None
            if last is None:
                jobs.append([record])
            elif record.start is not None and last.start is not None and record.start < _end_s(last):
                self.reader.drop(record.line, "duplicate id", "JobID", f"{shown(record.id)} runs already")
            elif last.state in cells.RUN_AGAIN:
                jobs[-1].append(record)
            else:
                self.noted["id used again"] += 1
                jobs.append([record])
        return jobs

    def _ran(self, job: list[Record]) -> bool:
        """Whether a job has run; one that hasn't is dropped by what became of it."""
        last = job[-1]
        if sum(record.elapsed_us for record in job) > 0:
            self.merged += len(job) - 1
            return True
        if last.state == "PENDING":
            kind, message = "still waiting", "has not started"
        elif last.state == "CANCELLED":
            kind, message = "cancelled before its start", "was cancelled before it ran"
        elif last.start is None:
            kind, message = "never started", "has no start time"
        else:
            kind, message = "zero duration", "ran less than a second"
        for record in job:
            self.reader.drop(record.line, kind, "", f"job {record.id} {message}")
        return False

    def history(self, name: str, queue: str) -> SlurmHistory:
        """The records as a workload, with what became of each job."""
        reader = self.reader
        jobs = self.jobs()
        first = ""
        if reader.first is not None:
            line, key, message = reader.first
            first = str(UserError(message, file=self.file, line=line, key=key))
        if not jobs:
            if reader.first is None:
                raise UserError("no row is a job" if reader.rows else "a header and no rows", file=self.file)
            line, key, message = reader.first
            raise UserError(f"no row is a job that ran; the first: {message}", file=self.file, line=line, key=key)
        for job in jobs:
            self._note(job)
        if reader.local_times and reader.zoned_times:
            self.noted["times without a zone among times with one"] = reader.local_times
        zero = _submitted(jobs[0])
        load = _workload(name, jobs, zero, queue)
        load = Workload(
            load.name, load.submitted_us, load.spec, load.work_us, load.users, load.queues, load.kinds, load.job_names,
            dropped=dict(reader.dropped), dropped_first=first, rows_read=reader.rows - reader.ignored.total(),
            noted=dict(self.noted + Counter({f"{kind}, passed over": count for kind, count in reader.ignored.items()})),
        )  # fmt: skip
        runs = tuple(
            Run(i, (record.start - zero) * US_PER_S, (record.start - zero) * US_PER_S + record.elapsed_us, record.hosts)
            for i, job in enumerate(jobs)
            for record in job
            if record.start is not None and record.elapsed_us
        )
        started = np.full(len(jobs), c.NEVER, np.int64)
        ended = np.zeros(len(jobs), np.int64)
        for run in runs:
            started[run.job] = min(started[run.job], run.start_us)
            ended[run.job] = max(ended[run.job], run.end_us)
        return SlurmHistory(
            workload=load,
            zero_s=zero,
            started_us=started,
            ended_us=ended,
            runs=runs,
            partitions=tuple(job[-1].partition for job in jobs),
            accounts=tuple(_name(job[-1].account) for job in jobs),
            kinds_asked=tuple(job[-1].kind for job in jobs),
            rows=reader.rows,
            ignored=dict(reader.ignored),
            merged=self.merged,
            noted={kind: count for kind, count in self.noted.items() if count},
            missing=_missing(reader.columns, jobs),
        )

    def _note(self, job: list[Record]) -> None:
        """Count what is odd about a job that is kept."""
        last = job[-1]
        self.noted.update({odd for record in job for odd in record.odd})
        self.noted["still running"] += last.state in cells.NOT_OVER
        self.noted["no time limit"] += last.limit_us is None
        self.noted["no user"] += not last.user
        self.noted["requeued"] += len(job) > 1
        self.noted["requeued, earlier runs not in the file"] += last.restarts >= len(job)
        self.noted["eligible later than submitted"] += _submitted(job) > job[0].submit
        self.noted["part of a heterogeneous job"] += "+" in last.id
        self.noted["GPUs that its nodes cannot share equally"] += last.gpus % last.nodes != 0
        self.noted["delimiter in a name"] += "|" in last.name


def _missing(columns: frozenset[str], jobs: Sequence[Sequence[Record]]) -> tuple[str, ...]:
    groups = {
        "GPUs": ("ReqTRES", "AllocTRES", "ReqGRES", "AllocGRES"),
        "cpus": ("ReqTRES", "AllocTRES", "AllocCPUS", "NCPUS", "ReqCPUS"),
        "memory": ("ReqTRES", "AllocTRES", "ReqMem"),
        "time limits": ("Timelimit", "TimelimitRaw"),
        "hosts": ("NodeList",),
    }
    if not columns:  # JSON has members instead, and all of them
        return () if any(job[-1].hosts for job in jobs) else ("hosts",)
    return tuple(what for what, names in groups.items() if not columns & set(names))


def _submitted(job: Sequence[Record]) -> int:
    """When a job could have been started: once it was submitted and eligible."""
    first = job[0]
    late = first.eligible is not None and first.eligible > first.submit
    if late and (first.start is None or first.eligible is None or first.eligible <= first.start):
        return first.eligible or first.submit
    return first.submit


def _number(job_id: str) -> tuple[int, int]:
    """A job's id as numbers: ids rise with submissions, which are told to the second only."""
    base, _, part = job_id.replace("+", "_").partition("_")
    return int(base), int(part) if part.isdecimal() else 0


def _end_s(record: Record) -> int:
    return (record.start or 0) + record.elapsed_us // US_PER_S


@lru_cache(maxsize=1 << 14)
def _name(text: str) -> str:
    """A name that a terminal and a journal can hold."""
    return one_line(text.strip())[:NAME_LENGTH_MAX]


def _workload(name: str, jobs: Sequence[Sequence[Record]], zero: int, queue: str) -> Workload:
    count = len(jobs)
    last = [job[-1] for job in jobs]
    spec = plain_spec(count)
    users, spec[c.J_USER] = _numbered([record.user for record in last], "unknown")
    queues, spec[c.J_QUEUE] = _numbered([getattr(record, queue) for record in last], "default")
    work = np.array([sum(record.elapsed_us for record in job) for job in jobs], np.int64)
    limits = np.array([record.limit_us or 0 for record in last], np.int64)
    spec[c.J_ESTIMATE] = np.where(limits > 0, limits, work)
    nodes, gpus, cpus, memory = (
        np.array([getattr(record, column) for record in last], np.int64) for column in ("nodes", "gpus", "cpus", "memory_bytes")
    )
    workers = np.where(gpus % nodes == 0, nodes, gpus)
    set_workers(spec, workers)
    spec[c.J_GPU_TASK] = gpus // workers * c.WHOLE
    spec[c.J_CPU_TASK] = cpus * 1000 // workers
    spec[c.J_MEM_TASK] = memory // workers
    kinds = tuple(sorted({record.kind for record in last if record.kind}))
    bit = {kind: 1 << i for i, kind in enumerate(kinds[:62])}
    spec[c.J_KIND_MASK] = [bit.get(record.kind, -1) if record.gpus else -1 for record in last]
    submitted = np.array([_submitted(job) - zero for job in jobs], np.int64) * US_PER_S
    return Workload(name, submitted, spec, work, users, queues, kinds, tuple(_name(record.name) for record in last))


def _numbered(names: Sequence[str], otherwise: str) -> tuple[tuple[str, ...], Ints]:
    """The different names in order, and each row's number among them."""
    clean = {name: _name(name) or otherwise for name in set(names)}
    different = sorted(set(clean.values()))
    index = {name: i for i, name in enumerate(different)}
    return tuple(different), np.array([index[clean[name]] for name in names], np.int64)
