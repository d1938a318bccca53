"""What running jobs tell, from their files and over HTTP, as events: the collecting thread, and the part that the loop calls.

The thread reads the files of the attempts that are up, once in `TICK_S`, and leaves what it has found with each attempt. The
controller's loop takes that in at each step (`due`), journals it, and keeps what people want to see: the curve's raw numbers in
HOME/metrics/JOB.jsonl, and what was wrong with reports, once a job and fault.

**The end of an attempt.** Before it is journalled, its files are read to their ends (`ending`), so that what a job has written
last counts, also of one that prints and exits at once.

**After a start of the controller** the files are read again from their beginnings. What they tell of steps that the tables have
already is left out, so no report is lost, and none counts twice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core import columns as c
from headway.core.columns import EventKind, Phase
from headway.core.errors import UserError
from headway.core.events import EventBatch, EventBuffer
from headway.core.model import JobSpec, from_json
from headway.core.state import State
from headway.engines.base import Launch
from headway.progress.mlflow import Answer, Tracking
from headway.progress.names import MetricNames
from headway.progress.patterns import Matcher, PatternProcess
from headway.progress.reports import told_by
from headway.progress.told import Merge, Told
from headway.runtime.background import Background
from headway.runtime.jobtokens import JobTokens, is_present, load_key
from headway.runtime.metricfile import MetricFile, read_points
from headway.runtime.progress import Fault, Finding, Progress, Report, Saved
from headway.runtime.sources import Attempt, watch

log = logging.getLogger(__name__)

TICK_S = 0.5
TICK_BYTES = 1 << 19
"""So much is read in one tick, of all jobs together; each may have its share, but `EACH_BYTES_MIN` at least."""
EACH_BYTES_MIN = 1 << 13
LAST_BYTES = 4 << 20
"""So much is read of an attempt that has ended, at once."""
_FAULTS = frozenset(fault.value for fault in Fault)
HEARD_MAX = 20_000
"""So much may have been heard of an attempt and not been taken in; then nothing more of it is read."""


@dataclass(slots=True)
class Known:
    """What is known of one live job beside the tables."""

    metrics: MetricFile | None
    merges: dict[int, Merge] = field(default_factory=dict)
    """By attempt; only the present one is kept."""
    findings: dict[Fault, Finding] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    """The newest step that each path has held."""
    done: int = 0
    """The attempt that has said that the job is done."""


class Reporting:
    """All that is told of live jobs. Without a `root` (the controller's home) nothing is collected: reports come by `hear` alone.

    `log_path` is the engine's. `wake` is called from the thread when something was heard. `url` says where the API listens.
    """

    def __init__(
        self, root: Path | None, log_path: Callable[[int, int, int], Path], wake: Callable[[], None], url: Callable[[], str] = str
    ) -> None:
        self.progress = Progress()
        self.tokens = JobTokens(load_key(root / "job.key")) if root is not None else None
        self._root, self._log_path, self._url = root, log_path, url
        self._known: dict[int, Known] = {}
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._patterns, self._tracking = PatternProcess(), Tracking()
        self._too_slow: list[tuple[int, int]] = []
        self._thread = Collector(self._attempts, wake)

    # -- life -------------------------------------------------------------------------------------------------------
    def start(self, state: State) -> None:
        """After recovery: go on with what runs, forget what is left of jobs that don't live, and start the thread."""
        if self._root is None:
            return
        rows = state.live_rows()
        for row in [int(each) for each in rows]:
            if state.J[c.J_PHASE, row] != Phase.QUEUED:
                job, attempt = int(state.J[c.J_ID, row]), int(state.J[c.J_ATTEMPT, row])
                log_folder = self._log_path(job, attempt, 0).parent
                since_s = log_folder.stat().st_mtime if log_folder.exists() else time.time()
                self._watch(state, job, attempt, since_s, reads_again=True)
        live = {str(int(state.J[c.J_ID, int(row)])) for row in rows}
        with contextlib.suppress(OSError):
            for folder in (self._root / "reports").iterdir():
                if folder.name not in live:
                    shutil.rmtree(folder, ignore_errors=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()
        self._patterns.close()

    # -- starts and ends --------------------------------------------------------------------------------------------
    def launching(self, launch: Launch, state: State) -> Launch:
        """A launch with what its tasks are told, and watched from now on."""
        job, attempt = launch.job, launch.attempt
        spec = self._watch(state, job, attempt, time.time())
        saved = int(state.J[c.J_UNITS_SAVED, state.row(job)])
        url = self._url()
        told = {"HEADWAY_URL": url, "HEADWAY_RESUME": str(saved) if saved > 0 else "", "HEADWAY_RESUME_PATH": ""}
        if self._root is None or self.tokens is None:
            return replace(launch, told=told)
        metrics = self._job(job).metrics
        if saved > 0 and metrics is not None and (newest := metrics.newest_saved()) is not None and newest[0] == saved:
            told["HEADWAY_RESUME_PATH"] = newest[1]
        told |= {"HEADWAY_TOKEN": self.tokens.make(job, attempt), "HEADWAY_JOB_UID": self.tokens.uid(job)}
        if url and spec is not None and wants_mlflow(spec):
            told |= {
                "MLFLOW_TRACKING_URI": url, "MLFLOW_TRACKING_TOKEN": told["HEADWAY_TOKEN"],
                "MLFLOW_RUN_ID": f"{job}-{attempt}", "MLFLOW_EXPERIMENT_NAME": launch.name,
            }  # fmt: skip
        folder = self._root / "reports" / str(job)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in folder.iterdir():
                if old.name.split("-")[0] != str(attempt):
                    old.unlink(missing_ok=True)  # that attempt's end is in the journal
        except OSError as error:
            log.warning("%s can't be made: %s; the jobs' reports come over HTTP alone", folder, error)
            return replace(launch, told=told)
        return replace(launch, told=told, reports_dir=str(folder))

    def ending(self, state: State, ends: Iterable[tuple[int, int]], now_us: int) -> EventBatch:
        """What attempts have told last, which must be journalled before their ends; they are not watched any more."""
        out = EventBuffer(4, 4)
        for job, attempt in ends:
            if not is_present(state, job, attempt):
                continue
            if (found := self._attempts.get((job, attempt))) is not None:
                with found.lock:
                    del self._attempts[job, attempt]
                    found.poll(LAST_BYTES, last=True)
                out.extend(self._take(state, found, now_us))
            out.extend(self.progress.flush(job, now_us))
        return out.take()

    def is_done(self, job: int, attempt: int) -> bool:
        """Whether an attempt has said that the job is finished."""
        known = self._known.get(job)
        return known is not None and known.done == attempt

    # -- what is told -----------------------------------------------------------------------------------------------
    def due(self, state: State, now_us: int) -> EventBatch:
        """Everything that has been heard, and the reports whose time has come."""
        out = EventBuffer(16, 4)
        for key, found in list(self._attempts.items()):
            if not found.up:
                row = state.row(found.job)
                if row is None or state.J[c.J_ATTEMPT, row] != found.number or state.J[c.J_PHASE, row] == Phase.QUEUED:
                    del self._attempts[key]
                found.up = row is not None and state.J[c.J_PHASE, row] in (Phase.RUNNING, Phase.STOPPING)
            elif found.heard:
                out.extend(self._take(state, found, now_us))
        while self._too_slow:
            job, attempt = self._too_slow.pop()
            sentence = "progress.pattern takes too long: it is not used any more"
            self._note(Finding(job, attempt, Fault.NO_PATTERN, sentence))
        out.extend(self.progress.due(state, now_us))
        for job in [job for job in self._known if state.row(job) is None]:
            self._known.pop(job)
        return out.take()

    def next_us(self, now_us: int) -> int:
        """When `due` has something to give at the latest (µs), or NEVER."""
        if any(found.up and found.heard for found in self._attempts.values()):
            return now_us
        return self.progress.next_us()

    def hear(self, state: State, job: int, attempt: int, told: Sequence[Told], now_us: int) -> tuple[EventBatch, list[Finding]]:
        """What an attempt has told over HTTP, as events, and what was wrong with it."""
        return self._fold(state, job, attempt, told, now_us, 0)

    def mlflow(
        self, state: State, job: int, attempt: int, name: str, method: str, path: str, fields: Mapping[str, Any]
    ) -> Answer:
        """The answer to an MLflow client's request, for the API; what it has told is to be handed in like any other report."""
        spec = _spec(state, job)
        names = MetricNames(spec.progress.loss, spec.progress.accuracy) if spec is not None else MetricNames()
        return self._tracking.answer(job, attempt, name, names, method, path, fields, round(time.time() * 1000))

    def progress_of(self, state: State, job: int) -> dict[str, Any]:
        """What `GET /v1/jobs/{id}/progress` answers."""
        known = self._known.get(job)
        metrics = known.metrics if known is not None else self._metrics(job)
        points, faults = read_points(metrics.path) if metrics is not None else ([], {})
        newest = None
        if metrics is not None and (saved := metrics.newest_saved()) is not None:
            newest = {"step": saved[0], "path": saved[1], "age_s": max(time.time() - saved[2], 0.0)}
        findings = [{"fault": Fault(fault), "sentence": sentence} for fault, sentence in faults.items() if fault in _FAULTS]
        return {"points": points, "saved": newest, "findings": findings}

    # -- inside -----------------------------------------------------------------------------------------------------
    def _take(self, state: State, found: Attempt, now_us: int) -> EventBatch:
        """What has been heard of an attempt."""
        with found.lock:
            heard, found.heard = found.heard, []
        row = state.row(found.job)
        known_steps = int(state.J[c.J_UNITS_DONE, row]) if row is not None and found.reads_again else 0
        batch, _ = self._fold(state, found.job, found.number, heard, now_us, known_steps)
        if found.reads_again and not found.behind:
            found.reads_again = False
        return batch

    def _fold(
        self, state: State, job: int, attempt: int, told: Sequence[Told], now_us: int, known_steps: int
    ) -> tuple[EventBatch, list[Finding]]:
        """`known_steps`: what is told of so many steps is known already."""
        out = EventBuffer(4, 4)
        findings: list[Finding] = []
        if not is_present(state, job, attempt):
            sentence = f"attempt {attempt} of job {job} is over" if state.row(job) is not None else f"job {job} does not live"
            fault = Fault.STALE if state.row(job) is not None else Fault.UNKNOWN
            return out.take(), [Finding(job, attempt, fault, sentence)] * bool(told)
        known = self._job(job)
        if attempt not in known.merges:
            known.merges = {attempt: Merge(self._by_epoch(state, job))}
        merge, reports = known.merges[attempt], []
        for each in told:
            if each.done:
                known.done = attempt
            if each.saved is not None:
                self._saved(state, known, Saved(job, attempt, each.step, each.saved), now_us, known_steps, out, findings)
            elif (point := merge.take(each)) is not None and (point.step > known_steps or not known_steps):
                reports.append(Report(job, attempt, point.step, point.loss, point.accuracy, point.total))
        batch, wrong = self.progress.take(state, reports, now_us)
        out.extend(batch)
        findings += wrong
        if known.metrics is not None and not known_steps:
            known.metrics.write(told, reports, attempt, time.time())
        for finding in findings:
            self._note(finding)
        return out.take(), findings

    def _saved(
        self, state: State, known: Known, saved: Saved, now_us: int, known_steps: int, out: EventBuffer, findings: list[Finding]
    ) -> None:  # fmt: skip
        step = self.progress.saved(state, saved, known.saved.get(saved.path))
        if isinstance(step, Finding):
            findings.append(step)
            return
        known.saved[saved.path] = step
        row = state.row(saved.job)
        if known_steps and step <= state.J[c.J_UNITS_SAVED, row]:
            return  # it is read again
        out.add(now_us, EventKind.SAVED, saved.job, saved.attempt, a=step)
        if known.metrics is not None:
            known.metrics.saved(step, saved.path, saved.attempt, time.time())

    def _note(self, finding: Finding) -> None:
        """Keep the first of each fault, and say it once."""
        known = self._known.get(finding.job)
        if known is not None and finding.fault not in known.findings:
            known.findings[finding.fault] = finding
            if known.metrics is not None:
                known.metrics.found(finding.fault.value, finding.sentence, finding.attempt, time.time())
            log.info("job %d, attempt %d: %s (%s)", finding.job, finding.attempt, finding.sentence, finding.fault.value)

    def _job(self, job: int) -> Known:
        if job not in self._known:
            self._known[job] = Known(self._metrics(job))
            metrics = self._known[job].metrics
            if metrics is not None and (saved := metrics.newest_saved()) is not None:
                self._known[job].saved[saved[1]] = saved[0]
        return self._known[job]

    def _metrics(self, job: int) -> MetricFile | None:
        return MetricFile(self._root / "metrics", job) if self._root is not None else None

    def _by_epoch(self, state: State, job: int) -> bool:
        spec = _spec(state, job)
        return spec is not None and spec.progress.unit == "epoch"

    def _watch(self, state: State, job: int, attempt: int, since_s: float, *, reads_again: bool = False) -> JobSpec | None:
        spec, row = _spec(state, job), state.row(job)
        if self._root is None or spec is None or row is None:
            return spec
        root, matcher = self._root, None
        if spec.progress.pattern:
            matcher = Matcher(self._patterns, spec.progress.pattern, lambda: self._too_slow.append((job, attempt)))
        found = watch(
            job, attempt, spec, int(state.J[c.J_TASKS, row]), since_s, self._log_path,
            lambda job, attempt, rank: root / "reports" / str(job) / f"{attempt}-{rank}.jsonl", matcher,
            lambda: any(other.job != job and other.spec.workdir == spec.workdir for other in list(self._attempts.values())),
        )  # fmt: skip
        found.reads_again = reads_again
        self._attempts[job, attempt] = found
        return spec


class Collector(Background):
    """The thread: reads what has grown, of each attempt in turn."""

    def __init__(self, attempts: Mapping[tuple[int, int], Attempt], wake: Callable[[], None]) -> None:
        self._attempts, self._wake = attempts, wake
        super().__init__("headway-collector")

    def _run(self) -> None:
        while not self._end.wait(TICK_S):
            self.tick()

    def tick(self) -> None:
        """Look at everything once."""
        watched = [found for found in list(self._attempts.values()) if found.up]
        budget, heard = max(TICK_BYTES // max(len(watched), 1), EACH_BYTES_MIN), False
        for found in watched:
            with found.lock:
                try:
                    if len(found.heard) < HEARD_MAX and (found.job, found.number) in self._attempts:
                        found.poll(budget)
                except Exception:
                    log.exception("job %d, attempt %d: what it has written can't be read", found.job, found.number)
                    found.outputs, found.boards = [], None
                heard = heard or bool(found.heard)
        if heard:
            self._wake()


def wants_mlflow(spec: JobSpec) -> bool:
    """Whether a job's tasks are to log to Headway as to an MLflow server."""
    return spec.progress.mlflow or dict(spec.env).get("MLFLOW_TRACKING_URI") == "headway"


def told_reports(reports: Sequence[Mapping[str, Any]], rank: int) -> list[Told]:
    """What reports that came over HTTP tell; what is none is left out."""
    return [told for report in reports if (told := told_by(dict(report), rank)) is not None]


def _spec(state: State, job: int) -> JobSpec | None:
    try:
        return from_json(json.loads(state.files[job]))
    except (KeyError, ValueError, UserError):
        return None
