"""A live state goes on in virtual time: what would happen from here if nobody else came.

A fork decides by the very state and memo that it is given (copies of them), so that what a policy remembers, and what jobs have
got so far, is exact; only the engine is another one. `Ahead` runs the live jobs at rate 1 for as long as a `Truth` says that
they have left, which is a guess (`sim.guess`) or, in a test, really the truth. With the truth a fork is what the simulator does,
event for event, where jobs run at rate 1 and nobody arrives.

What a fork does not know: arrivals, cancellations, failures, lost nodes, usage that changes, and how long processes take to come
up. Requests for estimates are not answered: the journalled ones stay. A stop loses no work, as in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import K_COMPLETED, K_FINISHED, K_OBSERVED, K_START, K_STARTED, K_STOP, K_STOPPED
from headway.core.columns import Phase, Reason
from headway.core.events import EMPTY, EventBatch
from headway.core.plan import Capabilities, Request
from headway.core.policy import Memo, Policy
from headway.core.round import Brains
from headway.core.state import State
from headway.sim.columns import RANK_ENDED, RANK_OBSERVED, RANK_STARTED, RANK_STOPPED
from headway.sim.kernels import FREES
from headway.sim.run import Simulation

REPORTS = 20
"""How often a job with units tells how far it is, in what it has left."""
ASK_EVERY = 8
"""Rounds after which `go_on` is asked."""
IDLE, STARTING, RUNNING, SAVING, DONE = range(5)
FINAL = frozenset({int(Reason.CANCELLED), int(Reason.EARLY_STOP), int(Reason.TIME_LIMIT)})
Row = tuple[int, int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Truth:
    """What is taken to be so of the live jobs. Columns side by side, a row a job, in order of their numbers."""

    jobs: Ints
    left_us: Ints
    """How long each has to run yet, restoring not included, µs."""
    stop_us: Ints
    """How long those that are stopping now take to be gone, µs."""
    loss: Table = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """(jobs × REPORTS) what each will tell of its loss (1e-9) at even steps of what it has left, NOTHING where it tells none.
    Without rows: nobody tells any."""
    accuracy: Table = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """The same of accuracies (ppm)."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Where the rounds stand: their interval (0: one at every event), the last one and the next one announced, µs, and whether
    something has happened since. As it is by default, the first round is held at once."""

    interval_us: int = 0
    last_us: int = -1
    wake_us: int | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class ForkResult:
    """What became of the jobs that were live. Columns side by side, in order of the jobs' numbers; times in µs, NEVER: not by
    `until_us`."""

    jobs: Ints
    start_us: Ints
    """When a job that had no processes comes up; of one that ran: now."""
    end_us: Ints
    stop_us: Ints
    """When its processes are first told to go for others' sake, or to go elsewhere."""
    preemptions: Ints
    until_us: int
    """Up to when time has gone."""
    whole: bool
    """Nothing more would have happened; else the horizon, `watch` or `go_on` ended it."""
    rounds: int
    state: State
    """As it is then."""
    refused: int = 0
    """Rounds in which the policy's plan did not hold."""

    def row(self, job: int) -> int:
        """Where a job stands in the columns."""
        at = int(np.searchsorted(self.jobs, job))
        assert at < len(self.jobs) and self.jobs[at] == job, f"job {job} was not live"
        return at


class Ahead:
    """The engine of a fork. All jobs of the state run at rate 1; none arrives."""

    def __init__(self, state: State, now_us: int, truth: Truth) -> None:
        rows = [state.row(job) for job in truth.jobs.tolist()]
        assert None not in rows and len(rows) == len(state.live_rows()), "a truth for each live job"
        J = state.J[:, np.array(rows, np.int64)]
        self.jobs = truth.jobs
        self.index = {job: i for i, job in enumerate(truth.jobs.tolist())}
        self.left: list[int] = np.maximum(truth.left_us, 1).tolist()
        self.whole = list(self.left)
        """What each had left at the fork."""
        self.save: list[int] = J[c.J_SAVE].tolist()
        self.restore: list[int] = J[c.J_RESTORE].tolist()
        self.attempt: list[int] = J[c.J_ATTEMPT].tolist()
        self.reason: list[int] = J[c.J_REASON].tolist()
        self.units: list[int] = J[c.J_UNITS_TOTAL].tolist()
        self.done: list[int] = np.clip(J[c.J_UNITS_DONE], 0, np.maximum(J[c.J_UNITS_TOTAL], 0)).tolist()
        self.loss, self.accuracy = truth.loss, truth.accuracy
        count = len(self.left)
        self.status, self.version, self.since = [IDLE] * count, [0] * count, [now_us] * count
        self.start, self.end, self.stopped = [c.NEVER] * count, [c.NEVER] * count, [c.NEVER] * count
        self.preemptions, self.lives = [0] * count, count
        self.heap: list[tuple[int, int, int, int]] = []
        """Time, rank, job's place in the columns (they go by number), version: what is of an older version is void."""
        for i, (phase, up_us, stop) in enumerate(
            zip(J[c.J_PHASE].tolist(), J[c.J_STARTED_AT].tolist(), truth.stop_us.tolist(), strict=True)
        ):
            if phase == Phase.RUNNING:
                self.status[i], self.start[i] = RUNNING, now_us
                works_us = up_us + (self.restore[i] if self.attempt[i] > 1 else 0)
                self.since[i] = max(now_us, works_us)
                self._announce(i)
            elif phase == Phase.STARTING:
                self.status[i] = STARTING
                heappush(self.heap, (now_us, RANK_STARTED, i, 0))
            elif phase == Phase.STOPPING:
                self.status[i] = SAVING
                heappush(self.heap, (now_us + stop, RANK_STOPPED, i, 0))
        heapify(self.heap)

    # -- what a simulation asks of its world ----------------------------------------------------------------------
    def next_us(self) -> int:
        """When something may happen next (µs), or NEVER."""
        return self.heap[0][0] if self.heap else c.NEVER

    def live(self) -> int:
        return self.lives

    def arrived_all(self) -> bool:
        return True

    def advance(self, until_us: int, stop_on: int) -> EventBatch:
        """Reports of what happens up to `until_us`, or to the end of the first instant that frees places, if that matters."""
        heap, rows = self.heap, list[Row]()
        while heap and heap[0][0] <= until_us:
            t, rank, i, version = heappop(heap)
            if version != self.version[i]:
                continue
            if rank == RANK_OBSERVED:
                rows.append(self._observed(i, t))
                continue
            if rank == RANK_STARTED:
                rows.append(self._up(i, t))
                continue
            self.version[i] += 1
            if rank == RANK_ENDED:
                self._over(i, t)
                rows.append((t, K_COMPLETED, int(self.jobs[i]), self.attempt[i], 0, 0, 0, 0))
            else:
                rows.append(self._gone(i, t))
            if stop_on <= FREES:
                until_us = min(until_us, t)
        return batch_of(rows)

    def execute(self, batch: EventBatch, now_us: int) -> EventBatch:
        """Carry out the requests among a round's events; the reports that come at once."""
        rows: list[Row] = []
        for _, kind, job, attempt, a, _, _, _ in batch.records.tolist():
            if kind == K_START:
                i = self.index[job]
                assert self.status[i] == IDLE, f"job {job} was started, and runs"
                self.attempt[i] = attempt
                rows.append(self._up(i, now_us))
            elif kind == K_STOP:
                self._stop(self.index[job], attempt, a, now_us, rows)
            elif kind == K_FINISHED:
                self._over(self.index[job], now_us)
        return batch_of(rows)

    # -- what happens ---------------------------------------------------------------------------------------------
    def _announce(self, i: int) -> None:
        """Say when a running job will end, and when it will report next."""
        self.version[i] += 1
        heappush(self.heap, (self.since[i] + self.left[i], RANK_ENDED, i, self.version[i]))
        self._announce_report(i)

    def _announce_report(self, i: int, after: int = -1) -> None:
        if self.units[i] <= self.done[i]:
            return
        step = max((self.whole[i] - self.left[i]) * REPORTS // self.whole[i], after) + 1
        if step < REPORTS:
            at = self.since[i] + max(-(-self.whole[i] * step // REPORTS) - (self.whole[i] - self.left[i]), 0)
            heappush(self.heap, (at, RANK_OBSERVED, i, self.version[i]))

    def _observed(self, i: int, t: int) -> Row:
        worked = self.whole[i] - self.left[i] + max(t - self.since[i], 0)
        step = min(max(worked * REPORTS // self.whole[i], 1), REPORTS - 1)
        self._announce_report(i, step)
        units = self.done[i] + (self.units[i] - self.done[i]) * step // REPORTS
        loss = int(self.loss[i, step - 1]) if len(self.loss) else c.NOTHING
        accuracy = int(self.accuracy[i, step - 1]) if len(self.accuracy) else c.NOTHING
        return t, K_OBSERVED, int(self.jobs[i]), self.attempt[i], units, loss, accuracy, 0

    def _up(self, i: int, t: int) -> Row:
        """All tasks of a gang are up; from its second attempt on it restores first."""
        self.status[i] = RUNNING
        self.start[i] = min(self.start[i], t)
        self.since[i] = t + (self.restore[i] if self.attempt[i] > 1 else 0)
        self._announce(i)
        return t, K_STARTED, int(self.jobs[i]), self.attempt[i], 0, 0, 0, 0

    def _stop(self, i: int, attempt: int, reason: int, t: int, rows: list[Row]) -> None:
        """Tell a gang to stop; one that is not there any more is left alone."""
        if attempt != self.attempt[i] or self.status[i] in (IDLE, DONE):
            return
        self.reason[i] = reason
        if reason not in FINAL:
            self.stopped[i] = min(self.stopped[i], t)
            self.preemptions[i] += reason == Reason.PREEMPTED
        if self.status[i] == SAVING:
            return
        if self.status[i] == RUNNING:
            self.left[i] = max(self.left[i] - max(t - self.since[i], 0), 1)
        starting, self.status[i] = self.status[i] == STARTING, SAVING
        self.version[i] += 1
        if starting or self.save[i] == 0:
            rows.append(self._gone(i, t))
        else:
            heappush(self.heap, (t + self.save[i], RANK_STOPPED, i, self.version[i]))

    def _gone(self, i: int, t: int) -> Row:
        """The processes of a stopped job are gone."""
        self.status[i] = IDLE
        if self.reason[i] in FINAL:
            self._over(i, t)
        units = -1
        if self.units[i] > self.done[i]:
            units = self.done[i] + (self.units[i] - self.done[i]) * (self.whole[i] - self.left[i]) // self.whole[i]
        return t, K_STOPPED, int(self.jobs[i]), self.attempt[i], self.reason[i], units, 0, 0

    def _over(self, i: int, t: int) -> None:
        if self.status[i] != DONE:
            self.status[i], self.end[i] = DONE, t
            self.lives -= 1


def batch_of(rows: list[Row]) -> EventBatch:
    """Events without payloads."""
    return EventBatch(np.array(rows, np.int64), EMPTY.pool) if rows else EMPTY


class _Run(Simulation):
    """The simulation's loop on a state that is there already. Nothing is journalled."""

    def __init__(
        self, state: State, memo: Memo, brains: Brains, world: Ahead, rhythm: Rhythm, now_us: int, *, seed: int,
        capabilities: Capabilities | None, sinks: tuple[Callable[[EventBatch], None], ...],
    ) -> None:  # fmt: skip
        self._begin(
            state, world, brains, memo, None, seed=seed, interval_us=rhythm.interval_us, capabilities=capabilities, strict=False
        )
        self.sinks = sinks
        self.last_us, self.fresh = rhythm.last_us, rhythm.fresh
        self.wake_us = now_us if rhythm.wake_us is None else rhythm.wake_us

    def _record(self, batch: EventBatch) -> None:
        """Apply. What jobs tell of themselves makes no round due: live too, it waits for the next one."""
        records = batch.records
        if len(records) == 0:
            return
        if not self.fresh:
            self.fresh = bool((records[:, c.E_KIND] != K_OBSERVED).any())
        for sink in self.sinks:
            sink(batch)
        self.state.apply(batch)
        if self.fold:
            self.since_round.append(EventBatch(records.copy(), batch.pool.copy(), batch.texts))

    def _answer(self, requests: tuple[Request, ...], now_us: int) -> None:
        """The journalled estimates stay."""


def fork(
    state: State, memo: Memo, policy: Policy, truth: Truth, *, now_us: int, horizon_us: int = c.NEVER, seed: int = 0,
    rhythm: Rhythm | None = None, brains: Brains | None = None, capabilities: Capabilities | None = None,
    watch: int | None = None, go_on: Callable[[], bool] | None = None, sinks: tuple[Callable[[EventBatch], None], ...] = (),
) -> ForkResult:  # fmt: skip
    """Let a state go on from `now_us` under a policy, for `horizon_us` or until all jobs have ended. `state` stays as it is.

    The same arguments give the same result. `memo` is the policy's after all events up to now. `brains` says who decides when a
    plan is refused (default: the policy); `seed` is that of the rounds. `watch`: a job with whose end it is enough. `go_on`:
    whether to go on, asked now and then; what is false ends it. `sinks` are handed the events (valid until they return).
    """
    world = Ahead(state, now_us, truth)
    twin = state.copy()
    rhythm = rhythm or Rhythm()
    run = _Run(
        twin, memo, brains or Brains(policy, policy, policy), world, rhythm, now_us, seed=seed, capabilities=capabilities,
        sinks=sinks,
    )  # fmt: skip
    end_us = min(now_us + horizon_us, c.NEVER - 1)
    watched = world.index[watch] if watch is not None else -1
    whole, due = True, now_us
    while (due := run.next_us()) <= end_us:
        run.take_events(due)
        if not run.live():
            break
        if watched >= 0 and world.status[watched] == DONE:
            whole = False
            break
        if run.due(due):
            run.round(due)
        if go_on is not None and run.rounds % ASK_EVERY == 0 and not go_on():
            whole = False
            break
    else:
        whole = due >= c.NEVER
    until_us = max(int(twin.C[c.C_NOW]), now_us) if due >= c.NEVER else min(due, end_us)
    columns: Table = np.array([world.start, world.end, world.stopped, world.preemptions], np.int64).reshape(4, -1)
    return ForkResult(truth.jobs, columns[0], columns[1], columns[2], columns[3], until_us, whole, run.rounds, twin, run.refused)


def loss_and_accuracy(curves: Floats, done: Ints, total: Ints) -> tuple[Table, Table]:
    """What jobs will report by their curves (jobs × 8, NaN: none), as `Truth` has it: a rising curve is an accuracy's."""
    from headway.perf.forecast import value_at
    from headway.perf.params import C_K_LAST, C_SLOPE

    loss: Table = np.full((len(curves), REPORTS), c.NOTHING)
    accuracy = loss.copy()
    known = np.flatnonzero(np.isfinite(curves[:, C_K_LAST]) & (total > done))
    steps = np.arange(1, REPORTS + 1) / REPORTS
    for i in known.tolist():
        values = value_at(curves[i], done[i] + (total[i] - done[i]) * steps)
        if not np.isfinite(values).all():
            continue
        if curves[i, C_SLOPE] > 0:
            accuracy[i] = np.round(np.clip(values, 0.0, 1.0) * 1e6).astype(np.int64)
        else:
            loss[i] = np.round(np.clip(values, -1e9, 1e9) * 1e9).astype(np.int64)
    return loss, accuracy
