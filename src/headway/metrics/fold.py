"""The fold behind all figures of a run: journal events in, one row a job out, in the order in which they happened.

It follows `docs/semantics.md` §2 and the table of transitions in `core.apply`, and knows nothing but the journal. A report of
an attempt that is over, or of a job that has ended, changes nothing.
"""

from __future__ import annotations

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import (
    CANCELLED,
    COMPLETED,
    FAILED,
    K_CANCEL,
    K_COMPLETED,
    K_EVALUATED,
    K_FAILED,
    K_FINISHED,
    K_REJECTED,
    K_START,
    K_START_FAILED,
    K_STARTED,
    K_STOP,
    K_STOPPED,
    K_SUBMITTED,
    K_UPDATED,
    K_WANTED,
    QUEUED,
    R_CANCELLED,
    R_DEADLOCK,
    R_EARLY_STOP,
    R_MIGRATED,
    R_PREEMPTED,
    R_RESIZED,
    R_TIME_LIMIT,
    REJECTED,
    RUNNING,
    STARTING,
    STOPPING,
)  # fmt: skip
from headway.core.events import EventBatch
from headway.core.jit import kernel, popcount
from headway.metrics.summary import Summary, summarise

UNKNOWN = -1
"""The phase of a number that has not been submitted."""

# --- M: a job's columns; times are µs, service is GPU·µs, live_at_… are job·ms ------------------------------------
_COLUMNS = """phase submitted deadline gpu_milli retry_max first_start end attempt queued_at requested_at started_at held_milli
waited run held_gpu_us busy_gpu_us preemptions migrations retries finishing must_stop live_at_submission live_at_end
user queue urgency restore stop_at overhead overhead_gpu_us moved_bytes accuracy accuracy_due required told""".split()
COLUMN_NAMES = tuple(_COLUMNS)
COLUMNS = len(COLUMN_NAMES)
(
    M_PHASE, M_SUBMITTED, M_DEADLINE, M_GPU_MILLI, M_RETRY_MAX, M_FIRST_START, M_END, M_ATTEMPT, M_QUEUED_AT, M_REQUESTED_AT,
    M_STARTED_AT, M_HELD_MILLI, M_WAITED, M_RUN, M_HELD, M_BUSY, M_PREEMPTIONS, M_MIGRATIONS, M_RETRIES, M_FINISHING, M_MUST_STOP,
    M_LIVE_AT_SUBMISSION, M_LIVE_AT_END, M_USER, M_QUEUE, M_URGENCY, M_RESTORE, M_STOP_AT,
    M_OVERHEAD, M_OVERHEAD_GPU, M_MOVED, M_ACCURACY, M_ACCURACY_DUE, M_REQUIRED, M_TOLD,
) = range(COLUMNS)  # fmt: skip

# --- A: figures of the whole run ----------------------------------------------------------------------------------
A_JOBS, A_LIVE, A_QUEUED, A_QUEUED_MAX, A_CLOCK_MS, A_LIVE_MS, A_QUEUED_MS, A_ROOM, A_DEADLOCKS = range(9)
FIGURES = 9


@kernel
def _service(dt: int, milli: int) -> int:
    """GPU·µs of `dt` µs on `milli` thousandths of a GPU, rounded down without overflow."""
    return (dt // 1000) * milli + ((dt % 1000) * milli) // 1000


@kernel
def _pass_time(A: Ints, t: int) -> None:
    """Bring the integrals of the live and queued jobs up to `t`, in whole milliseconds: the steps' rounding does not add up.

    The longest queue is one that lasted: what comes and goes at one instant has not queued.
    """
    ms = t // 1000
    if ms > A[A_CLOCK_MS]:
        A[A_QUEUED_MAX] = max(A[A_QUEUED_MAX], A[A_QUEUED])
    A[A_LIVE_MS] += A[A_LIVE] * (ms - A[A_CLOCK_MS])
    A[A_QUEUED_MS] += A[A_QUEUED] * (ms - A[A_CLOCK_MS])
    A[A_CLOCK_MS] = ms


@kernel
def _enter_queue(M: Table, A: Ints, job: int, t: int) -> None:
    M[job, M_PHASE], M[job, M_QUEUED_AT] = QUEUED, t
    A[A_QUEUED] += 1


@kernel
def _end(M: Table, A: Ints, job: int, t: int, phase: int) -> None:
    """The job has ended; one that was queued has waited till now."""
    if M[job, M_PHASE] == QUEUED:
        A[A_QUEUED] -= 1
        M[job, M_WAITED] += t - M[job, M_QUEUED_AT]
    M[job, M_PHASE], M[job, M_END] = phase, t
    A[A_LIVE] -= 1
    M[job, M_LIVE_AT_END] = A[A_LIVE_MS]


@kernel
def _give_back(M: Table, job: int, t: int) -> None:
    """The job's processes are gone: account for what they held, and for how long they ran."""
    milli = M[job, M_HELD_MILLI]
    M[job, M_HELD] += _service(t - M[job, M_REQUESTED_AT], milli)
    phase = M[job, M_PHASE]
    if phase == RUNNING:
        M[job, M_BUSY] += _service(t - M[job, M_STARTED_AT], milli)
    if M[job, M_STARTED_AT] >= 0:
        M[job, M_RUN] += t - M[job, M_STARTED_AT]
        works_until = t
        if phase == STOPPING:
            works_until = M[job, M_STOP_AT]
        overhead = t - works_until
        if M[job, M_ATTEMPT] > 1:
            overhead += min(M[job, M_RESTORE], works_until - M[job, M_STARTED_AT])
        M[job, M_OVERHEAD] += overhead
        M[job, M_OVERHEAD_GPU] += _service(overhead, milli)
        M[job, M_STARTED_AT] = -1
    else:
        M[job, M_WAITED] += t - M[job, M_QUEUED_AT]
    M[job, M_HELD_MILLI] = 0


@kernel
def _last_words(M: Table, job: int, pool: Ints, at: int, size: int) -> None:
    """What an attempt tells at its end (`docs/journal.md`): bytes between nodes, and accuracy at the end and by the deadline."""
    if size:
        M[job, M_MOVED] += pool[at]
        M[job, M_TOLD] = 1
    if size == 3:
        M[job, M_ACCURACY], M[job, M_ACCURACY_DUE] = pool[at + 1], pool[at + 2]


@kernel
def fold_events(E: Table, pool: Ints, first: int, at: int, M: Table, A: Ints) -> tuple[int, int]:
    """Fold events `first …`, whose payloads begin at `at`; returns the first that has not been folded (its job number has no
    row) and its payload's place.
    """
    A[A_ROOM] = 0
    for i in range(first, E.shape[0]):
        kind, job, size = E[i, c.E_KIND], E[i, c.E_ID], E[i, c.E_POOL]
        begin = at
        at += size
        if kind == K_EVALUATED and job >= 0 and job < M.shape[0] and M[job, M_PHASE] == COMPLETED:
            _last_words(M, job, pool, begin, size)
        if kind < K_SUBMITTED or kind > K_FAILED:
            continue
        if (kind == K_START or kind == K_WANTED) and E[i, c.E_A] == R_DEADLOCK:
            A[A_DEADLOCKS] += 1
        t = E[i, c.E_T]
        if kind == K_SUBMITTED:
            if job >= M.shape[0]:
                A[A_ROOM] = job + 1
                return i, begin
            _pass_time(A, t)
            for column in range(COLUMNS):
                M[job, column] = 0
            M[job, M_SUBMITTED], M[job, M_DEADLINE], M[job, M_RETRY_MAX] = (
                t,
                pool[begin + c.J_DEADLINE],
                pool[begin + c.J_RETRY_MAX],
            )
            M[job, M_USER], M[job, M_QUEUE] = pool[begin + c.J_USER], pool[begin + c.J_QUEUE]
            M[job, M_ACCURACY], M[job, M_ACCURACY_DUE], M[job, M_REQUIRED] = -1, -1, pool[begin + c.J_ACC_REQUIRED]
            M[job, M_URGENCY], M[job, M_RESTORE] = pool[begin + c.J_URGENCY], pool[begin + c.J_RESTORE]
            M[job, M_FIRST_START], M[job, M_END], M[job, M_STARTED_AT] = -1, -1, -1
            milli = pool[begin + c.J_DATA] * pool[begin + c.J_PIPELINE] * pool[begin + c.J_TENSOR] * pool[begin + c.J_GPU_TASK]
            if pool[begin + c.J_DETAILS]:
                milli = 0
                for k in range(begin + c.SPEC_COLUMNS, at, c.DETAIL):
                    milli += pool[k]
            M[job, M_GPU_MILLI] = milli
            A[A_JOBS] += 1
            A[A_LIVE] += 1
            M[job, M_LIVE_AT_SUBMISSION] = A[A_LIVE_MS]
            _enter_queue(M, A, job, t)
            continue
        if job < 0 or job >= M.shape[0]:
            continue
        phase = M[job, M_PHASE]
        if phase < QUEUED or phase > STOPPING:
            continue
        if kind == K_START:
            if phase == QUEUED and E[i, c.E_ATTEMPT] > M[job, M_ATTEMPT]:
                _pass_time(A, t)
                A[A_QUEUED] -= 1
                milli = 0
                for k in range(begin, at, c.PLACE):
                    milli += popcount(pool[k + 1]) * pool[k + 2]
                M[job, M_PHASE], M[job, M_ATTEMPT], M[job, M_REQUESTED_AT], M[job, M_HELD_MILLI] = (
                    STARTING,
                    E[i, c.E_ATTEMPT],
                    t,
                    milli,
                )
        elif kind == K_STARTED:
            if phase == STARTING and E[i, c.E_ATTEMPT] == M[job, M_ATTEMPT]:
                M[job, M_PHASE], M[job, M_STARTED_AT] = RUNNING, t
                M[job, M_WAITED] += t - M[job, M_QUEUED_AT]
                if M[job, M_FIRST_START] < 0:
                    M[job, M_FIRST_START] = t
        elif kind == K_COMPLETED:
            if phase != QUEUED and E[i, c.E_ATTEMPT] == M[job, M_ATTEMPT]:
                _pass_time(A, t)
                _last_words(M, job, pool, begin, size)
                _give_back(M, job, t)
                _end(M, A, job, t, COMPLETED)
        elif kind == K_STOP:
            if phase != QUEUED and E[i, c.E_ATTEMPT] == M[job, M_ATTEMPT]:
                reason = E[i, c.E_A]
                if phase == RUNNING:
                    M[job, M_BUSY] += _service(t - M[job, M_STARTED_AT], M[job, M_HELD_MILLI])
                if phase != STOPPING:
                    M[job, M_STOP_AT] = t
                M[job, M_PHASE], M[job, M_MUST_STOP] = STOPPING, 0
                if reason == R_PREEMPTED:
                    M[job, M_PREEMPTIONS] += 1
                elif reason == R_MIGRATED or reason == R_RESIZED:
                    M[job, M_MIGRATIONS] += 1
                elif reason >= R_CANCELLED and reason <= R_TIME_LIMIT:
                    M[job, M_FINISHING] = reason
        elif kind == K_STOPPED or kind == K_FAILED or kind == K_START_FAILED:
            if phase != QUEUED and E[i, c.E_ATTEMPT] == M[job, M_ATTEMPT]:
                _pass_time(A, t)
                _last_words(M, job, pool, begin, size)
                _give_back(M, job, t)
                _back_to_queue(M, A, job, t, phase, kind)
        elif kind == K_REJECTED or kind == K_FINISHED:
            if phase == QUEUED:
                _pass_time(A, t)
                final = FAILED if E[i, c.E_A] == R_TIME_LIMIT else COMPLETED
                _end(M, A, job, t, REJECTED if kind == K_REJECTED else final)
        elif kind == K_CANCEL:
            if phase == QUEUED:
                _pass_time(A, t)
                _end(M, A, job, t, CANCELLED)
            elif phase == STOPPING:
                M[job, M_FINISHING] = R_CANCELLED
            else:
                M[job, M_MUST_STOP] = 1
        elif kind == K_UPDATED:
            if E[i, c.E_A] == c.J_DEADLINE:
                M[job, M_DEADLINE] = E[i, c.E_B]
            elif E[i, c.E_A] == c.J_URGENCY:
                M[job, M_URGENCY] = E[i, c.E_B]
            elif E[i, c.E_A] == c.J_QUEUE:
                M[job, M_QUEUE] = E[i, c.E_B]
    return E.shape[0], at


@kernel
def _back_to_queue(M: Table, A: Ints, job: int, t: int, phase: int, kind: int) -> None:
    """An attempt is over without a completion: the job ends if that was asked or its retries are spent, else it queues again."""
    reason = M[job, M_FINISHING]
    if phase == STOPPING and reason:
        final = CANCELLED
        if reason == R_EARLY_STOP:
            final = COMPLETED
        elif reason == R_TIME_LIMIT:
            final = FAILED
        _end(M, A, job, t, final)
        return
    if phase != STOPPING and kind != K_STOPPED:
        M[job, M_RETRIES] += 1
        if M[job, M_RETRIES] > M[job, M_RETRY_MAX]:
            _end(M, A, job, t, FAILED)
            return
    if M[job, M_MUST_STOP]:
        _end(M, A, job, t, CANCELLED)
        return
    _enter_queue(M, A, job, t)


class MetricsFold:
    """Figures of a run, gathered while its events pass. `update` with every batch once, in order."""

    def __init__(self, jobs: int = 1024) -> None:
        self.M: Table = np.full((max(jobs, 1), COLUMNS), UNKNOWN, np.int64)
        self.A: Ints = np.zeros(FIGURES, np.int64)

    def update(self, batch: EventBatch) -> None:
        """Take in a batch."""
        self.update_arrays(batch.records, batch.pool)

    def update_arrays(self, records: Table, pool: Ints) -> None:
        """Take in events as `EventBatch` holds them, for callers that have no batch."""
        if len(records) == 0:
            return
        if not records.flags.writeable or not pool.flags.writeable:
            # To Numba a read-only array is another type, for which the kernel would be compiled again.
            records, pool = records.copy(), pool.copy()
        first, at = 0, 0
        while first < len(records):
            first, at = fold_events(records, pool, first, at, self.M, self.A)
            if self.A[A_ROOM]:
                wider = np.full((max(2 * len(self.M), int(self.A[A_ROOM])), COLUMNS), UNKNOWN, np.int64)
                wider[: len(self.M)] = self.M
                self.M = wider

    def column(self, index: int) -> Ints:
        """One column of the jobs that have been submitted, by number."""
        values: Ints = self.M[self.M[:, M_PHASE] != UNKNOWN, index]
        return values

    @property
    def deadlocks(self) -> int:
        """How often jobs that held places and waited for each other had to be told apart (`docs/journal.md`)."""
        return int(self.A[A_DEADLOCKS])

    def summary(self, gpus: int) -> Summary:
        """The figures of the run so far, on a cluster of so many GPUs."""
        table = self.M[self.M[:, M_PHASE] != UNKNOWN]
        columns = {name: table[:, i] for i, name in enumerate(COLUMN_NAMES)}
        return summarise(columns, gpus, queue_length_max=int(self.A[A_QUEUED_MAX]), queued_ms=int(self.A[A_QUEUED_MS]))
