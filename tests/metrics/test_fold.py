"""The figures of journals that a person can work out, and the kernel against a plain twin on any journal."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import columns as c
from headway.core.columns import EventKind, Phase, Reason
from headway.core.events import EventBatch, EventBuffer
from headway.metrics.fold import COLUMN_NAMES, M_ACCURACY, M_ACCURACY_DUE, MetricsFold
from headway.workloads.schema import plain_spec, set_workers

S = 1_000_000


class Journal:
    """Events as a person writes them down, times in seconds."""

    def __init__(self) -> None:
        self.buffer = EventBuffer()

    def submit(
        self, t: float, job: int, gpus: int = 1, *, deadline: float | None = None, retries: int = 3, urgency: int = 5,
        restore: float = 0,
    ) -> None:  # fmt: skip
        spec = plain_spec(1)
        set_workers(spec, np.array([gpus], np.int64))
        spec[c.J_RETRY_MAX], spec[c.J_URGENCY], spec[c.J_USER], spec[c.J_QUEUE] = retries, urgency, 3, 2
        spec[c.J_RESTORE] = int(restore * S)
        if deadline is not None:
            spec[c.J_DEADLINE] = int(deadline * S)
        self.buffer.add(int(t * S), EventKind.SUBMITTED, job, payload=spec[:, 0])

    def add(self, t: float, kind: EventKind, job: int, attempt: int = 1, reason: int = 0) -> None:
        self.buffer.add(int(t * S), kind, job, attempt, a=int(reason), b=-1)

    def start(self, t: float, job: int, attempt: int = 1, gpus: int = 1) -> None:
        """A start request, and the start at the same instant."""
        place = [(0, (1 << gpus) - 1, 1000)]
        self.buffer.add(
            int(t * S), EventKind.START_REQUESTED, job, attempt, payload=[number for task in place for number in task]
        )
        self.add(t, EventKind.STARTED, job, attempt)

    def run(self, first: float, last: float, job: int, attempt: int = 1, gpus: int = 1) -> None:
        """A start, and the completion."""
        self.start(first, job, attempt, gpus)
        self.add(last, EventKind.COMPLETED, job, attempt)

    def fold(self) -> MetricsFold:
        fold = MetricsFold()
        fold.update(self.buffer.peek())
        return fold


def test_the_accuracy_of_a_job_that_ended_in_the_queue_is_told_afterwards() -> None:
    """It ran from 0 to 10 s, was stopped for another, and ended while it waited. What is told of a live job is passed over."""
    journal = Journal()
    for number in (0, 1):
        journal.submit(0, number)
    journal.start(0, 0)
    journal.buffer.add(10 * S, EventKind.STOP_REQUESTED, 0, 1, a=int(Reason.PREEMPTED))
    journal.buffer.add(10 * S, EventKind.STOPPED, 0, 1, a=int(Reason.PREEMPTED), b=50, payload=[700])
    journal.buffer.add(15 * S, EventKind.FINISHED, 0, 1, a=int(Reason.EARLY_STOP))
    for number in (0, 1, 99, -1):
        journal.buffer.add(15 * S, EventKind.EVALUATED, number, 1, payload=[0, 830_000, 820_000])
    fold = journal.fold()
    assert fold.column(M_ACCURACY).tolist() == [830_000, -1] and fold.column(M_ACCURACY_DUE).tolist() == [820_000, -1]
    figures = fold.summary(1)
    assert (figures.finished, figures.unfinished, figures.avg_final_accuracy, figures.cross_node_bytes) == (1, 1, 0.83, 700)


def row(fold: MetricsFold, job: int) -> dict[str, int]:
    return dict(zip(COLUMN_NAMES, fold.M[job].tolist(), strict=True))


def test_three_jobs_by_hand() -> None:
    """Two GPUs. Job 0 takes both, is preempted at 30 (saving till 35) for jobs 1 and 2, and runs on from 75 to 100."""
    journal = Journal()
    journal.submit(0, 0, gpus=2, deadline=99)
    journal.start(0, 0, gpus=2)
    journal.submit(10, 1, deadline=55)
    journal.submit(20, 2)
    journal.add(30, EventKind.STOP_REQUESTED, 0, 1, Reason.PREEMPTED)
    journal.add(35, EventKind.STOPPED, 0, 1)
    journal.start(35, 1)
    journal.start(35, 2)
    journal.add(55, EventKind.COMPLETED, 1)
    journal.add(75, EventKind.COMPLETED, 2)
    journal.run(75, 100, 0, attempt=2, gpus=2)
    fold = journal.fold()
    figures = fold.summary(2)
    assert (figures.jobs, figures.finished, figures.unfinished, figures.preemptions, figures.attempts) == (3, 3, 0, 1, 4)
    assert figures.avg_jct_s == pytest.approx((100 + 45 + 55) / 3)
    assert (figures.p50_jct_s, figures.p90_jct_s, figures.p99_jct_s, figures.makespan_s) == (55, 100, 100, 100)
    assert figures.avg_wait_s == pytest.approx((40 + 25 + 15) / 3)
    assert (figures.p50_wait_s, figures.p99_wait_s, figures.max_wait_s) == (25, 40, 40)
    assert figures.avg_bounded_slowdown == pytest.approx((100 / 60 + 45 / 20 + 55 / 40) / 3)
    assert figures.gpu_overhead_frac == pytest.approx(2 * 5 / (2 * 35 + 2 * 25 + 20 + 40))
    assert figures.gpu_hours_booked == pytest.approx((2 * 35 + 2 * 25 + 20 + 40) / 3600)
    assert figures.gpu_booked_frac == pytest.approx((2 * 35 + 2 * 25 + 20 + 40) / 200)
    assert figures.gpu_busy_frac == pytest.approx((2 * 30 + 2 * 25 + 20 + 40) / 200)
    assert figures.deadline_ratio == 0.5  # job 1 ends on its deadline, job 0 a second late, job 2 has none
    assert figures.queue_length_max == 2
    # Live: 1 till 10, 2 till 20, 3 till 55, 2 till 75, 1 till 100. On average job 0 sees 200/100, job 1 125/45, job 2 145/55.
    # Job 0 works for 55 s: 30, and 25 of the second attempt; it saves for 5.
    rho = [100 / (55 * 2), 45 / (20 * 125 / 45 / 2), 55 / (40 * 145 / 55 / 2)]
    assert figures.finish_time_fairness == pytest.approx(sum(rho) / 3)
    assert figures.finish_time_fairness_max == pytest.approx(rho[1])
    assert figures.unfair_job_frac == pytest.approx(2 / 3)
    assert figures.fairness_jain == pytest.approx(sum(rho) ** 2 / (3 * sum(r * r for r in rho)))
    # Queued: job 1 from 10, job 2 from 20, both till 35; then job 0 till 75.
    assert figures.queue_length_avg == pytest.approx((10 + 2 * 15 + 40) / 100)


def test_urgent_jobs_have_a_deadline_ratio_of_their_own() -> None:
    """Urgent is above 8. Job 0 is in time, job 1 late, job 2 late and not urgent, job 3 urgent without a deadline."""
    journal = Journal()
    for job, (deadline, urgency) in enumerate([(10, 9), (1, 10), (1, 8), (None, 9)]):
        journal.submit(0, job, deadline=deadline, urgency=urgency)
        journal.run(0, 5, job)
    fold = journal.fold()
    figures = fold.summary(4)
    assert (figures.urgent_jobs, figures.urgent_deadline_ratio, figures.deadline_ratio) == (3, 0.5, pytest.approx(1 / 3))
    assert (row(fold, 1)["user"], row(fold, 1)["queue"], row(fold, 1)["urgency"]) == (3, 2, 10)


def test_restoring_and_saving_are_overhead() -> None:
    """Two GPUs, 10 s to restore. Up 0–20, saving 20–23; up 30–34 while it restores, saving 34–36; up 40–60."""
    journal = Journal()
    journal.submit(0, 0, gpus=2, restore=10)
    for attempt, (first, stop, last) in enumerate([(0, 20, 23), (30, 34, 36)], start=1):
        journal.start(first, 0, attempt, gpus=2)
        journal.add(stop, EventKind.STOP_REQUESTED, 0, attempt, Reason.PREEMPTED)
        journal.add(stop + 1, EventKind.STOP_REQUESTED, 0, attempt, Reason.PREEMPTED)  # repeated
        journal.add(last, EventKind.STOPPED, 0, attempt)
    journal.run(40, 60, 0, attempt=3, gpus=2)
    fold = journal.fold()
    job = row(fold, 0)
    assert (job["run"], job["overhead"], job["overhead_gpu_us"]) == (49 * S, (3 + 4 + 2 + 10) * S, 2 * 19 * S)
    figures = fold.summary(2)
    assert figures.gpu_overhead_frac == pytest.approx(19 / 49)
    assert figures.finish_time_fairness == pytest.approx(60 / 30)


def test_a_short_run_counts_as_ten_seconds_in_the_slowdown() -> None:
    journal = Journal()
    journal.submit(0, 0)
    journal.run(28, 30, 0)
    journal.submit(30, 1)
    journal.run(30, 31, 1)
    assert journal.fold().summary(1).avg_bounded_slowdown == pytest.approx((3 + 1) / 2)


def test_an_empty_run_has_no_figures_and_no_nan() -> None:
    figures = MetricsFold().summary(8)
    assert figures.jobs == 0 and figures.avg_jct_s is None and figures.gpu_busy_frac is None and figures.deadline_ratio is None
    assert not [name for name, value in figures.to_json().items() if value is not None and value != value]
    assert Journal().fold().summary(0).finish_time_fairness is None


def test_a_rejected_job_counts_as_such() -> None:
    journal = Journal()
    journal.submit(0, 0, gpus=99, deadline=5)
    journal.add(0, EventKind.REJECTED, 0, 0, Reason.LARGER_THAN_CLUSTER)
    journal.submit(1, 1)
    journal.run(1, 3, 1)
    figures = journal.fold().summary(4)
    assert (figures.jobs, figures.finished, figures.rejected) == (2, 1, 1)
    assert (figures.avg_jct_s, figures.makespan_s, figures.deadline_ratio) == (2, 3, 0)


def test_news_of_old_attempts_and_ended_jobs_changes_nothing() -> None:
    journal = Journal()
    journal.submit(0, 0)
    journal.start(0, 0)
    journal.add(5, EventKind.STOP_REQUESTED, 0, 1, Reason.PREEMPTED)
    journal.add(5, EventKind.STOPPED, 0, 1)
    journal.add(6, EventKind.STOPPED, 0, 1)  # repeated
    journal.add(6, EventKind.COMPLETED, 0, 1)  # late
    journal.start(8, 0, attempt=2)
    journal.add(9, EventKind.FAILED, 0, 1)  # of the first attempt
    journal.add(9, EventKind.STARTED, 0, 2)  # repeated
    journal.add(10, EventKind.COMPLETED, 0, 2)
    journal.add(11, EventKind.COMPLETED, 0, 2)  # repeated
    journal.add(11, EventKind.STOPPED, 0, 2)
    journal.add(11, EventKind.COMPLETED, 7, 1)  # of a job that nobody knows
    job = row(journal.fold(), 0)
    assert (job["phase"], job["end"], job["run"], job["waited"]) == (Phase.COMPLETED, 10 * S, 7 * S, 3 * S)
    assert (job["held_gpu_us"], job["preemptions"], job["attempt"]) == (7 * S, 1, 2)


def test_a_failed_job_is_tried_again_until_its_retries_are_spent() -> None:
    journal = Journal()
    journal.submit(0, 0, retries=1)
    journal.start(0, 0)
    journal.add(4, EventKind.FAILED, 0, 1)
    journal.start(10, 0, attempt=2)
    journal.add(11, EventKind.START_FAILED, 0, 2)
    job = row(journal.fold(), 0)
    assert (job["phase"], job["end"], job["retries"], job["waited"]) == (Phase.FAILED, 11 * S, 2, 6 * S)
    assert journal.fold().summary(1).failed == 1


@pytest.mark.parametrize(
    ("reason", "phase"),
    [
        (Reason.CANCELLED, Phase.CANCELLED),
        (Reason.EARLY_STOP, Phase.COMPLETED),
        (Reason.TIME_LIMIT, Phase.FAILED),
        (Reason.PREEMPTED, Phase.QUEUED),
        (Reason.NODE_LOST, Phase.QUEUED),
    ],
)
def test_a_stop_ends_a_job_if_that_was_its_reason(reason: Reason, phase: Phase) -> None:
    journal = Journal()
    journal.submit(0, 0)
    journal.start(0, 0)
    journal.add(3, EventKind.STOP_REQUESTED, 0, 1, reason)
    journal.add(4, EventKind.STOPPED, 0, 1)
    job = row(journal.fold(), 0)
    assert (job["phase"], job["run"], job["busy_gpu_us"]) == (phase, 4 * S, 3 * S)


def test_cancelling_in_every_phase() -> None:
    journal = Journal()
    for job in range(3):
        journal.submit(0, job)
    journal.add(1, EventKind.CANCEL_REQUESTED, 0)  # queued: at once
    journal.start(1, 1)
    journal.add(2, EventKind.CANCEL_REQUESTED, 1)  # running: when its processes are gone
    journal.add(2, EventKind.FAILED, 1, 1)
    journal.start(1, 2)
    journal.add(2, EventKind.STOP_REQUESTED, 2, 1, Reason.PREEMPTED)
    journal.add(2, EventKind.CANCEL_REQUESTED, 2)  # stopping
    journal.add(3, EventKind.STOPPED, 2, 1)
    fold = journal.fold()
    assert [(row(fold, job)["phase"], row(fold, job)["end"]) for job in range(3)] == [
        (Phase.CANCELLED, S),
        (Phase.CANCELLED, 2 * S),
        (Phase.CANCELLED, 3 * S),
    ]
    assert fold.summary(1).cancelled == 3


def test_a_queued_job_that_is_finished_has_completed() -> None:
    journal = Journal()
    journal.submit(0, 0)
    journal.add(5, EventKind.FINISHED, 0, 0, Reason.EARLY_STOP)
    figures = journal.fold().summary(1)
    assert (figures.finished, figures.avg_wait_s, figures.finish_time_fairness) == (1, 5, None)


def test_migrations_and_resizes_are_moves() -> None:
    journal = Journal()
    journal.submit(0, 0)
    for attempt, reason in enumerate((Reason.MIGRATED, Reason.RESIZED), start=1):
        journal.start(attempt, 0, attempt)
        journal.add(attempt, EventKind.STOP_REQUESTED, 0, attempt, reason)
        journal.add(attempt, EventKind.STOPPED, 0, attempt)
    job = row(journal.fold(), 0)
    assert (job["migrations"], job["preemptions"]) == (2, 0)


def test_what_is_held_is_what_the_start_names() -> None:
    """Two tasks: three GPUs whole, and a half of another, for ten seconds; it never came up."""
    journal = Journal()
    journal.submit(0, 0, gpus=4)
    journal.buffer.add(0, EventKind.START_REQUESTED, 0, 1, payload=(0, 0b111, 1000, 1, 0b1000, 500))
    journal.add(10, EventKind.START_FAILED, 0, 1)
    job = row(journal.fold(), 0)
    assert (job["held_gpu_us"], job["busy_gpu_us"], job["waited"]) == (35 * S, 0, 10 * S)


def test_tasks_that_differ_add_up() -> None:
    spec = plain_spec(1)[:, 0]
    spec[c.J_DATA], spec[c.J_DETAILS] = 2, 10
    buffer = EventBuffer()
    buffer.add(0, EventKind.SUBMITTED, 0, payload=[*spec.tolist(), 500, 1, 2, 3, 4, 700, 1, 2, 3, 4])
    fold = MetricsFold()
    fold.update(buffer.peek())
    assert row(fold, 0)["gpu_milli"] == 1200


def test_the_table_grows_with_the_job_numbers() -> None:
    journal = Journal()
    numbers = [3, 5000, 5001, 70_000]
    for t, job in enumerate(numbers):
        journal.submit(t, job)
        journal.run(t, t + 1, job)
    fold = MetricsFold(jobs=1)
    fold.update(journal.buffer.peek())
    assert np.flatnonzero(fold.M[:, 0] == Phase.COMPLETED).tolist() == numbers
    assert fold.summary(1).finished == 4


def test_read_only_arrays_are_taken_too() -> None:
    journal = Journal()
    journal.submit(0, 0)
    batch = journal.buffer.take()
    batch.records.flags.writeable = False
    batch.pool.flags.writeable = False
    fold = MetricsFold()
    fold.update(batch)
    fold.update(EventBatch(batch.records[:0], batch.pool[:0]))
    assert fold.summary(1).jobs == 1


# -- the plain twin -------------------------------------------------------------------------------------------------
@dataclass
class Job:
    submitted: int
    phase: int = Phase.QUEUED
    attempt: int = 0
    since: int = 0
    up: int | None = None
    held_from: int = 0
    milli: int = 0
    waited: int = 0
    run: int = 0
    held: int = 0
    busy: int = 0
    end: int = -1
    retries: int = 0
    finishing: int = 0
    must_stop: bool = False

    def over(self, t: int) -> None:
        """An attempt's processes are gone."""
        self.held += (t - self.held_from) * self.milli // 1000
        if self.up is None:
            self.waited += t - self.since
        else:
            self.run += t - self.up
            if self.phase == Phase.RUNNING:
                self.busy += (t - self.up) * self.milli // 1000
        self.up, self.since = None, t


def plain_fold(batch: EventBatch) -> dict[int, Job]:
    jobs: dict[int, Job] = {}
    for event, payload in zip(batch.records.tolist(), batch.payloads(), strict=True):
        t, kind, number, attempt, reason, *_ = event
        if kind == EventKind.SUBMITTED:
            jobs[number] = Job(t, since=t)
            continue
        job = jobs.get(number)
        if job is None or job.phase > Phase.STOPPING:
            continue
        mine = attempt == job.attempt and job.phase != Phase.QUEUED
        if kind == EventKind.START_REQUESTED and job.phase == Phase.QUEUED and attempt > job.attempt:
            job.phase, job.attempt, job.held_from = Phase.STARTING, attempt, t
            job.milli = sum(int(mask).bit_count() * milli for mask, milli in payload.reshape(-1, 3)[:, 1:].tolist())
        elif kind == EventKind.STARTED and mine and job.phase == Phase.STARTING:
            job.phase, job.up = Phase.RUNNING, t
            job.waited += t - job.since
        elif kind == EventKind.STOP_REQUESTED and mine:
            if job.phase == Phase.RUNNING and job.up is not None:
                job.busy += (t - job.up) * job.milli // 1000
            job.phase, job.must_stop = Phase.STOPPING, False
            if Reason.CANCELLED <= reason <= Reason.TIME_LIMIT:
                job.finishing = reason
        elif kind == EventKind.COMPLETED and mine:
            job.over(t)
            job.phase, job.end = Phase.COMPLETED, t
        elif kind in (EventKind.STOPPED, EventKind.FAILED, EventKind.START_FAILED) and mine:
            job.over(t)
            asked = job.phase == Phase.STOPPING
            job.retries += not asked and kind != EventKind.STOPPED
            if asked and job.finishing:
                ends = {Reason.EARLY_STOP: Phase.COMPLETED, Reason.TIME_LIMIT: Phase.FAILED}
                job.phase, job.end = ends.get(Reason(job.finishing), Phase.CANCELLED), t
            elif job.retries > 3 and not asked and kind != EventKind.STOPPED:
                job.phase, job.end = Phase.FAILED, t
            elif job.must_stop:
                job.phase, job.end = Phase.CANCELLED, t
            else:
                job.phase = Phase.QUEUED
        elif kind in (EventKind.REJECTED, EventKind.FINISHED, EventKind.CANCEL_REQUESTED) and job.phase == Phase.QUEUED:
            job.waited += t - job.since
            ends_as = {EventKind.REJECTED: Phase.REJECTED, EventKind.FINISHED: Phase.COMPLETED}
            job.phase, job.end = ends_as.get(kind, Phase.CANCELLED), t
        elif kind == EventKind.CANCEL_REQUESTED and job.phase == Phase.STOPPING:
            job.finishing = Reason.CANCELLED
        elif kind == EventKind.CANCEL_REQUESTED:
            job.must_stop = True
    return jobs


KINDS = (
    EventKind.START_REQUESTED, EventKind.STARTED, EventKind.STOP_REQUESTED, EventKind.STOPPED, EventKind.COMPLETED,
    EventKind.FAILED, EventKind.START_FAILED, EventKind.REJECTED, EventKind.FINISHED, EventKind.CANCEL_REQUESTED, EventKind.WHY,
    EventKind.OBSERVED, EventKind.NODE_DOWN, EventKind.ROUND,
)  # fmt: skip
EVENTS = st.tuples(
    st.integers(0, 3000), st.sampled_from(KINDS[:7] * 4 + KINDS), st.integers(0, 3), st.integers(-1, 1),
    st.sampled_from([Reason.PREEMPTED, Reason.MIGRATED, Reason.CANCELLED, Reason.EARLY_STOP, Reason.TIME_LIMIT]),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=120), st.lists(st.integers(0, 124), max_size=4))
def test_any_journal_gives_what_the_plain_twin_says_however_it_is_cut(events: list[Any], cuts: list[int]) -> None:
    buffer = EventBuffer()
    spec = plain_spec(1)[:, 0]
    for i in range(4):
        buffer.add(i * 1000, EventKind.SUBMITTED, i, payload=spec)
    t, last = 4000, dict.fromkeys(range(4), 0)
    for gap, kind, job, off, reason in events:
        t += gap
        if kind == EventKind.START_REQUESTED:
            last[job] = max(last[job] + 1 + off, 0)
            buffer.add(t, kind, job, last[job], payload=(0, 0b101, 1000, 1, 0b1, 300))
        else:
            buffer.add(t, kind, job, max(last[job] + min(off, 0), 0), a=int(reason))
    batch = buffer.take()
    fold = MetricsFold(jobs=2)
    edges = sorted({0, len(batch), *(cut for cut in cuts if cut < len(batch))})
    for first, stop in pairwise(edges):
        fold.update(batch.cut(first, stop))
    for number, job in plain_fold(batch).items():
        got = row(fold, number)
        assert got["phase"] == job.phase and got["end"] == job.end
        assert (got["waited"], got["run"], got["attempt"], got["retries"]) == (job.waited, job.run, job.attempt, job.retries)
        # The kernel rounds down once each period.
        assert abs(got["held_gpu_us"] - job.held) <= len(batch) and abs(got["busy_gpu_us"] - job.busy) <= len(batch)
        if job.end >= 0 and job.run + job.waited:
            assert job.run + job.waited == job.end - job.submitted
    live = sum(job.phase <= Phase.STOPPING for job in plain_fold(batch).values())
    assert fold.A[1] == live and fold.summary(4).unfinished == live
    assert fold.A[2] == sum(job.phase == Phase.QUEUED for job in plain_fold(batch).values())
