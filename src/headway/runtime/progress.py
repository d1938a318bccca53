"""Reports of running jobs, held against what can be: from what a job tells of itself to the events that count.

`Progress.take` is a fold over reports, and pure: what it knows of a job is what it has let through, and the tables. It reads no
clock; `now_us` is when the reports have come in, the only time that a job cannot make up.

**Steps.** A job may go on from its checkpoint with lower steps than it had; the tables keep the highest. Upwards, it is credited
with what it had at its last *mark*, and `FASTER_MAX` times what its pace gives for its run time since (and a
`SLACK_US`). Marks are set when it has
run for `SETTLE_US`, and at each doubling of its run time. The pace is the greater of the announced one (total ÷ estimate) and
the one measured up to the mark, so that a lie is not at once the measure of the next one: in each doubling of its run time a job
can at most have five times the steps. A job that has announced no pace, for want of a total or of an estimate, is compared with
nothing before it has a measured one. A job without processes makes no steps: what it tells before they live, or after, is
refused.

**What cannot be told.** The total is what was handed in: one that is reported is held against it and goes no further. Nobody
gets beyond his total. Accuracies lie within 0 … 1, losses are bounded by `core.events.report_ints`; what is no such figure
counts as not told, and the rest of the report counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import NamedTuple

from headway.core import columns as c
from headway.core.columns import EventKind, Phase
from headway.core.events import EventBatch, EventBuffer, report_ints
from headway.core.state import State

US_PER_S = 1_000_000
STEPS_MAX = 1 << 53
"""A count beyond this is no count: 2^53, up to which JSON numbers are exact everywhere."""
FASTER_MAX = 4.0
"""By how much a job may be faster than its pace and be believed."""
SETTLE_US = 60 * US_PER_S
"""The run time before which nothing is measured: jobs compile, load and warm up."""
SLACK_US = 5 * US_PER_S
"""So much more run time, and one step, are believed: steps come in lumps, and reports are late."""
EACH_US = US_PER_S
"""Of a job, one report is kept in so long a time: the newest."""
POINTS_DENSE = 200
"""From so many kept reports on, one is kept in each hundredth of the run time, so that their number grows with its logarithm …"""
SPARSE = 100
EACH_US_MAX = 60 * US_PER_S
"""… but one a minute at least."""


class Report(NamedTuple):
    """What one attempt of a job tells of itself, as it came in."""

    job: int
    """Its number."""
    attempt: int
    step: object
    loss: float | None = None
    accuracy: float | None = None
    total: object = None


class Saved(NamedTuple):
    """A checkpoint of an attempt that is durable: where, and how many steps are in it."""

    job: int
    attempt: int
    step: object
    path: str


class Fault(StrEnum):
    """What is wrong with a report. Of the first four nothing is kept; of the others, what is left of them."""

    UNKNOWN = "no such live job"
    STALE = "of an attempt that is over"
    NOT_UP = "before its processes live"
    NO_STEP = "no step count"
    TOO_FAST = "more steps than it can have made"
    PAST_END = "more steps than it has in all"
    OTHER_TOTAL = "another total than was handed in"
    NO_ACCURACY = "an accuracy outside 0 to 1"
    NO_LOSS = "a loss that is no finite number"
    OLDER_SAVED = "a checkpoint of an older step in the place of a newer one"
    NO_PATTERN = "a pattern that takes too long"


REFUSED = frozenset({Fault.UNKNOWN, Fault.STALE, Fault.NOT_UP, Fault.NO_STEP})


class Finding(NamedTuple):
    """A fault of a report, and a sentence with its numbers."""

    job: int
    attempt: int
    fault: Fault
    sentence: str


@dataclass(slots=True)
class Pace:
    """What is known of one live job's reports. Run times are over all of its attempts, in µs."""

    attempt: int
    credited: int = 0
    """The highest step that was believed."""
    run_us: int = 0
    """How long it had run at its last report."""
    mark_steps: int = 0
    mark_run_us: int = 0
    """Steps credited and run time at the last mark; 0: none yet."""
    kept_us: int = -EACH_US
    """When a report of it was kept last."""
    kept: int = 0
    """How many were, up to `POINTS_DENSE`."""
    held: tuple[int, int, int] | None = None
    """The newest report that has not been kept yet: steps, loss, accuracy, as OBSERVED carries them."""
    faults: dict[Fault, int] = field(default_factory=dict)
    """How often which."""

    def next_us(self) -> int:
        """When the next report may be kept."""
        return self.kept_us + (EACH_US if self.kept < POINTS_DENSE else min(max(self.run_us // SPARSE, EACH_US), EACH_US_MAX))

    def mark(self) -> None:
        """Set a mark, if it is time for one."""
        if self.run_us >= max(2 * self.mark_run_us, SETTLE_US):
            self.mark_steps, self.mark_run_us = self.credited, self.run_us


class Progress:
    """The fold: what each live job has been credited with."""

    def __init__(self) -> None:
        self.jobs: dict[int, Pace] = {}

    def take(self, state: State, reports: Sequence[Report], now_us: int) -> tuple[EventBatch, list[Finding]]:
        """The OBSERVED events of reports that have come in at `now_us`, one a job at most, and what was wrong with any.

        What comes too soon after a job's last kept report waits; it is out with a later call (`flush` when the attempt ends).
        """
        findings: list[Finding] = []
        for report in reports:
            self._one(state, report, now_us, findings)
        for finding in findings:
            if (pace := self.jobs.get(finding.job)) is not None:
                pace.faults[finding.fault] = pace.faults.get(finding.fault, 0) + 1
        for job in {report.job for report in reports} & self.jobs.keys():
            self.jobs[job].mark()  # once for all that came together
        return self.due(state, now_us), findings

    def due(self, state: State, now_us: int) -> EventBatch:
        """The reports whose time has come; jobs that have ended are forgotten."""
        out = EventBuffer(16, 1)
        for job in list(self.jobs):
            if state.row(job) is None:
                del self.jobs[job]
            elif now_us >= self.jobs[job].next_us():
                self._keep(job, now_us, out)
        return out.take()

    def flush(self, job: int, now_us: int) -> EventBatch:
        """What a job's attempt has told last, which must be journalled before its end."""
        out = EventBuffer(1, 1)
        if job in self.jobs:
            self._keep(job, now_us, out)
        return out.take()

    def saved(self, state: State, saved: Saved, newest: int | None) -> Finding | int:
        """How many steps a durable checkpoint holds, or what is wrong with it; `newest` is what its path held before."""

        def found(fault: Fault, sentence: str) -> Finding:
            return Finding(saved.job, saved.attempt, fault, sentence)

        row = state.row(saved.job)
        if row is None:
            return found(Fault.UNKNOWN, f"job {saved.job} does not live")
        if saved.attempt != state.J[c.J_ATTEMPT, row] or state.J[c.J_PHASE, row] == Phase.QUEUED:
            return found(Fault.STALE, f"attempt {saved.attempt} of job {saved.job} is over")
        step, total = _count(saved.step), int(state.J[c.J_UNITS_TOTAL, row])
        if step is None:
            return found(Fault.NO_STEP, f"expected a whole number of steps from 0 to 2^53, got {saved.step!r:.40}")
        if newest is not None and step < newest:
            return found(Fault.OLDER_SAVED, f"step {step} in {saved.path[:200]}, which held step {newest}")
        if total > 0 and step > total:
            return found(Fault.PAST_END, f"a checkpoint of step {step} of {total}")
        return step

    def next_us(self) -> int:
        """When `due` has something to give at the latest, or NEVER."""
        return min((pace.next_us() for pace in self.jobs.values() if pace.held is not None), default=c.NEVER)

    def _keep(self, job: int, now_us: int, out: EventBuffer) -> None:
        pace = self.jobs[job]
        if pace.held is not None:
            steps, loss, accuracy = pace.held
            out.add(now_us, EventKind.OBSERVED, job, pace.attempt, a=steps, b=loss, c=accuracy)
            pace.held, pace.kept_us, pace.kept = None, now_us, min(pace.kept + 1, POINTS_DENSE)

    def _one(self, state: State, report: Report, now_us: int, findings: list[Finding]) -> None:
        """Take in one report."""

        def found(fault: Fault, sentence: str) -> None:
            findings.append(Finding(report.job, report.attempt, fault, sentence))

        row = state.row(report.job)
        if row is None:
            return found(Fault.UNKNOWN, f"job {report.job} does not live")
        J = state.J[:, row].tolist()
        if report.attempt != J[c.J_ATTEMPT] or J[c.J_PHASE] == Phase.QUEUED:
            return found(Fault.STALE, f"attempt {report.attempt} of job {report.job} is over")
        if J[c.J_PHASE] == Phase.STARTING:
            return found(Fault.NOT_UP, f"attempt {report.attempt} of job {report.job} is not up yet")
        if (step := _count(report.step)) is None:
            return found(Fault.NO_STEP, f"expected a whole number of steps from 0 to 2^53, got {report.step!r:.40}")
        total = J[c.J_UNITS_TOTAL]
        if report.total is not None and total > 0 and report.total != total:
            found(Fault.OTHER_TOTAL, f"{total} steps were handed in, {report.total!r:.40} are told now; the first count")
        ran = J[c.J_RUN] + (max(now_us - J[c.J_STARTED_AT], 0) if J[c.J_STARTED_AT] >= 0 else 0)
        pace = self._of(report, J, ran)
        most = believed_max(pace, ran, total, J[c.J_ESTIMATE])
        if total > 0 and step > total:
            found(Fault.PAST_END, f"step {step} of {total}")
            step = total
        if step > most:
            found(Fault.TOO_FAST, f"step {step} after {ran / US_PER_S:.0f} s, believed up to {most}")
            step = most
        pace.credited = max(pace.credited, step)
        pace.run_us = ran
        accuracy = report.accuracy
        if accuracy is not None and not 0 <= accuracy <= 1:  # NaN, too
            found(Fault.NO_ACCURACY, f"accuracy {accuracy:g}")
            accuracy = None
        if report.loss is not None and not isfinite(report.loss):
            found(Fault.NO_LOSS, f"loss {report.loss:g}")
        loss, ppm = report_ints(report.loss, accuracy)
        if pace.held is not None:  # what the newer one does not tell, the older one did
            loss = pace.held[1] if loss == c.NOTHING else loss
            ppm = pace.held[2] if ppm == c.NOTHING else ppm
        pace.held = step, loss, ppm
        return None

    def _of(self, report: Report, J: list[int], ran_us: int) -> Pace:
        """What is known of the job; after a start of the controller, what the tables say: it had told that a minute ago."""
        pace = self.jobs.get(report.job)
        if pace is None:
            done = max(J[c.J_UNITS_DONE], 0)
            pace = self.jobs[report.job] = Pace(report.attempt, done)
            if done and ran_us > 2 * SETTLE_US:
                pace.mark_steps, pace.mark_run_us = done, ran_us - SETTLE_US
        if pace.attempt != report.attempt:
            pace.attempt, pace.held = report.attempt, None
        return pace


def believed_max(pace: Pace, ran_us: int, total: int, estimate_us: int) -> int:
    """Up to how many steps a job is believed that has run for `ran_us`. `total` 0: it has named none."""
    measured = pace.mark_steps / pace.mark_run_us if pace.mark_run_us else 0.0
    announced = max(total, 0) / max(estimate_us, 1) if estimate_us < c.NEVER else 0.0
    if announced <= 0 and measured <= 0:
        return STEPS_MAX
    since_us = max(ran_us - pace.mark_run_us, 0) + SLACK_US
    most = pace.mark_steps + 1 + int(FASTER_MAX * max(announced, measured) * since_us)
    return min(max(most, pace.credited), STEPS_MAX)


def _count(step: object) -> int | None:
    """A whole number of steps, also one that is written 12.0; None for anything else."""
    if isinstance(step, bool) or not isinstance(step, int | float):
        return None
    if not 0 <= step <= STEPS_MAX or step != int(step):
        return None
    return int(step)
