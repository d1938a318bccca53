"""The files of one attempt that tell of its progress, read as they grow: report files, output, TensorBoard files.

`poll` looks at each file's size before it reads, and reads no more than it is told: 200 jobs that are silent cost 200 × a few
`stat`. Reports that were left in a file are all read; of output that grows faster than it can be read, the newest part is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.model import JobSpec
from headway.progress.lines import Lines, OutputReader, text_of
from headway.progress.names import MetricNames
from headway.progress.patterns import Matcher
from headway.progress.reports import LINE_BYTES_MAX, read_report
from headway.progress.tensorboard import EventFiles
from headway.progress.told import Told

LINES_MAX = 500
"""So many of the newest lines of one look are read whole; of older ones only those that say something rare."""
RARE_IN_REPORTS = (b'"saved"', b'"done"')
BEHIND_BYTES_MAX = 1 << 18
"""Output that is further behind than this is left out, but for its newest part."""
FIRST_BYTES_MAX = 32 << 20
"""The same, at the first look after a start of the controller: which bars there were is in what was read before."""
RANKS_MAX = 64
"""The output of so many ranks is read."""


class Tail:
    """Reads what a file has grown by. A file that has become shorter is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0
        self.behind = 0
        """How many bytes there are beyond what has been read."""

    def read(self, budget_bytes: int, behind_max: int | None = None) -> tuple[bytes, bool]:
        """What is new, up to the budget, and whether something was left out to get no further behind than `behind_max`."""
        try:
            size = os.stat(self.path).st_size
        except OSError:
            return b"", False
        if size < self.at:
            self.at = 0
        self.behind = size - self.at
        if not self.behind or budget_bytes <= 0:
            return b"", False
        left_out = behind_max is not None and self.behind > max(behind_max, budget_bytes)
        if left_out:
            self.at = size - budget_bytes
        try:
            with open(self.path, "rb") as file:
                file.seek(self.at)
                data = file.read(budget_bytes)
        except OSError:
            return b"", left_out
        self.at += len(data)
        self.behind = max(size - self.at, 0)
        return data, left_out


class ReportTail:
    """The report file of one task."""

    def __init__(self, path: Path, rank: int) -> None:
        self.tail, self._rank, self._open = Tail(path), rank, b""

    def poll(self, budget_bytes: int, out: list[Told]) -> int:
        data, _ = self.tail.read(budget_bytes)
        if not data:
            return 0
        *lines, last = (self._open + data).split(b"\n")
        self._open = last[: LINE_BYTES_MAX + 1]
        old = len(lines) - LINES_MAX
        for index, line in enumerate(lines):
            if not line or len(line) > LINE_BYTES_MAX:
                continue
            if index >= old or any(word in line for word in RARE_IN_REPORTS):
                if (told := read_report(line, self._rank)) is not None:
                    out.append(told)
        return len(data)


class OutputTail:
    """The log of one task."""

    def __init__(self, path: Path, reader: OutputReader, matcher: Matcher | None) -> None:
        self.tail, self._reader, self._lines, self._matcher = Tail(path), reader, Lines(), matcher

    def poll(self, budget_bytes: int, out: list[Told], behind_max: int, last: bool = False) -> int:
        """`last`: the task has ended, so what has no line end is a line too."""
        data, left_out = self.tail.read(budget_bytes, behind_max)
        if left_out:
            self._lines.skip()
        lines = self._lines.feed(data) if data else []
        if last and not self.tail.behind:
            lines += self._lines.rest()
        texts = [text_of(line) for line in lines[-LINES_MAX:]]
        if self._matcher is not None and texts:
            out.extend(told for groups in self._matcher.match(texts) if (told := self._reader.matched(groups)) is not None)
        out.extend(told for text in texts if (told := self._reader.read(text)) is not None)
        return len(data)


@dataclass(slots=True)
class Attempt:
    """What is known of where one attempt leaves its traces."""

    job: int
    number: int
    spec: JobSpec
    since_s: float
    """Wall-clock time before which nothing of it can have been written."""
    up: bool = False
    """Its processes live: what it tells counts."""
    reads_again: bool = False
    """It ran before this controller started: what it has told may be known already."""
    heard: list[Told] = field(default_factory=list)
    """What has been read, and not been taken in yet."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    reports: list[ReportTail] = field(default_factory=list)
    outputs: list[OutputTail] = field(default_factory=list)
    boards: EventFiles | None = None

    def poll(self, budget_bytes: int, last: bool = False) -> int:
        """Read what is new into `heard`; returns how many bytes that were. The lock must be held."""
        done = 0
        for report in self.reports:
            done += report.poll(budget_bytes, self.heard)
        for output in self.outputs:
            behind = FIRST_BYTES_MAX if self.reads_again else BEHIND_BYTES_MAX
            done += output.poll(budget_bytes, self.heard, behind, last)
        if self.boards is not None:
            done += self.boards.poll(budget_bytes, self.heard, now=last)
        return done

    @property
    def behind(self) -> bool:
        """Whether there is more than was read."""
        return any(report.tail.behind for report in self.reports) or any(output.tail.behind for output in self.outputs)


def watch(
    job: int, attempt: int, spec: JobSpec, tasks: int, since_s: float, log_path: Callable[[int, int, int], Path],
    report_path: Callable[[int, int, int], Path], matcher: Matcher | None, shared: Callable[[], bool],
) -> Attempt:  # fmt: skip
    """An attempt to be read. `shared` says whether another job runs in the same working directory."""
    names = MetricNames(spec.progress.loss, spec.progress.accuracy)
    found = Attempt(job, attempt, spec, since_s)
    for rank in range(tasks):
        found.reports.append(ReportTail(report_path(job, attempt, rank), rank))
    for rank in range(min(tasks, RANKS_MAX)):
        reader = OutputReader(names, rank, spec.progress.total)
        found.outputs.append(OutputTail(log_path(job, attempt, rank), reader, matcher))
    found.boards = EventFiles(places(spec), names, since_s, (job, attempt), shared)
    return found


def places(spec: JobSpec) -> Sequence[Path]:
    """Where a job's TensorBoard files are looked for: its working directory, and where it saves itself."""
    work = Path(spec.workdir)
    return [work, *([work / spec.checkpoint.dir] if spec.checkpoint.dir else [])]
