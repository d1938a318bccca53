"""What would become of the live jobs under each of several policies, from the same state, with the same guesses.

Each draw of what the jobs have left (`sim.guess`) is simulated once a policy, for the horizon; what is told are means over the
draws. Jobs that have not ended by then count as if they ran on without another wait: so a policy gains nothing by leaving long
ones for later. Jobs that their owners hold are left out. Everybody else's future is that of a fork (`sim.fork`): nobody comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import (
    K_COMPLETED,
    K_FINISHED,
    K_OBSERVED,
    K_START,
    K_STARTED,
    K_STOP,
    K_STOPPED,
)
from headway.core.columns import Phase
from headway.core.events import EventBatch
from headway.core.plan import Capabilities
from headway.core.policy import Memo
from headway.core.round import Brains
from headway.core.state import State
from headway.core.units import US_PER_S
from headway.metrics.reward import BETAS, TERM_NAMES, reward, terms
from headway.sim import columns as w
from headway.sim.fork import ForkResult, Rhythm, Truth, fork
from headway.sim.guess import UNKNOWN_LOG_SD, Guess, Known
from headway.sim.speed import exchange

DRAWS = 4
_KINDS = np.array([K_START, K_STARTED, K_STOP, K_STOPPED, K_COMPLETED, K_FINISHED, K_OBSERVED], np.int64)


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy in the comparison: its spec, what it is to the cluster (`policy`, `teacher` or `shadow`), who decides, and its
    memo after all events up to now."""

    spec: str
    role: str
    brains: Brains
    memo: Memo = None


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of the jobs under a policy: means over draws. None: no job has it."""

    spec: str
    role: str
    completed: float
    """Jobs that ended within the horizon."""
    unfinished: float
    avg_jct_s: float
    """From submission; of those that did not end, the predicted one."""
    avg_wait_s: float
    """From now on, in which a job does no work of its own."""
    deadlines: int
    deadlines_kept: float
    preemptions: float
    moved_bytes: float | None
    refused: float
    """Rounds in which its plan did not hold."""
    goals: tuple[float, ...]
    """The five terms of the reward (`metrics.reward`); 0 where no job speaks for one."""
    reward: float

    def to_json(self) -> dict[str, Any]:
        """By name; the goals by theirs."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("spec", "goals")}
        return {"policy": self.spec, **plain, "goals": dict(zip(TERM_NAMES, self.goals, strict=True))}


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison of at least one draw."""

    now_us: int
    horizon_us: int
    jobs: int
    draws: int
    estimates: Mapping[str, int]
    """How many jobs' remaining times are known by what."""
    fates: tuple[Fate, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "horizon_s": self.horizon_us / US_PER_S,
            "jobs": self.jobs,
            "draws": self.draws,
            "estimates": dict(self.estimates),
            "policies": [fate.to_json() for fate in self.fates],
        }


def compare(
    state: State, contenders: Sequence[Contender], guess: Guess, known: Known, *, now_us: int, horizon_us: int, seed: int = 0,
    draws: int = DRAWS, betas: Sequence[float] = BETAS, capabilities: Capabilities | None = None,
    go_on: Callable[[], bool] | None = None, rhythm: Rhythm | None = None,
) -> Compared | None:  # fmt: skip
    """Simulate each contender on the same draws. None: `go_on` said no before the first draw was done. `state` stays as it is.

    Every policy is taken to decide for itself: neither its guard nor its past refusals keep it from that.
    """
    twin = state.copy()
    twin.C[[c.C_GUARD, c.C_GUARD_OF, c.C_REFUSED_IN_ROW]] = 0
    jobs = _Jobs(twin, guess.jobs, now_us)
    over = False

    def ask() -> bool:
        nonlocal over
        over = over or (go_on is not None and not go_on())
        return not over

    found: list[list[Floats]] = []
    for draw in range(draws):
        truth = guess.draw(seed + draw)
        rows: list[Floats] = []
        for contender in contenders:
            ledger = Ledger(jobs, truth)
            result = fork(
                twin, contender.memo, contender.brains.policy, truth, now_us=now_us, horizon_us=horizon_us, seed=seed,
                brains=contender.brains, capabilities=capabilities, go_on=ask, sinks=(ledger.take,), rhythm=rhythm,
            )  # fmt: skip
            if not ask():
                break
            rows.append(_figures(jobs, truth, ledger, result, now_us + horizon_us, betas))
        if over:
            break
        found.append(rows)
    if not found:
        return None
    means = np.array(found).mean(axis=0)
    fates = tuple(_fate(contender, row, jobs) for contender, row in zip(contenders, means, strict=True))
    return Compared(now_us, horizon_us, int(jobs.counts.sum()), len(found), provenance(state, known, guess), fates)


def provenance(state: State, known: Known, guess: Guess) -> dict[str, int]:
    """By what the time is known that the jobs have left: measured `progress`, `others`' run times, what was `announced`, or
    `nothing`."""
    J = columns_of(state, guess.jobs)
    progress = np.isfinite(known.rate) & (J[c.J_UNITS_TOTAL] > 0)
    others = ~progress & np.isin(np.arange(len(guess.jobs)), list(guess.pools))
    announced = ~progress & ~others & (guess.log_sd != UNKNOWN_LOG_SD)
    counts = {"progress": progress, "others": others, "announced": announced, "nothing": ~(progress | others | announced)}
    return {name: int(np.count_nonzero(mask)) for name, mask in counts.items()}


def columns_of(state: State, numbers: Ints) -> Table:
    """A copy of the columns of live jobs, side by side in the order of these numbers."""
    return state.J[:, np.array([state.row(job) for job in numbers.tolist()], np.int64)]


class _Jobs:
    """The live jobs at the fork. Columns side by side, in order of their numbers."""

    def __init__(self, state: State, numbers: Ints, now_us: int) -> None:
        self.now_us = now_us
        self.J: Table = columns_of(state, numbers)
        self.index = {job: i for i, job in enumerate(numbers.tolist())}
        J = self.J
        self.counts = ~((J[c.J_HOLD] != 0) & (J[c.J_PHASE] == Phase.QUEUED))
        works = np.where(J[c.J_ATTEMPT] > 1, J[c.J_STARTED_AT] + J[c.J_RESTORE], J[c.J_STARTED_AT])
        self.since: list[int] = np.where(J[c.J_PHASE] == Phase.RUNNING, np.maximum(works, now_us), -1).tolist()
        self.sends = ((J[c.J_EDGE_BYTES] > 0) | (J[c.J_SYNC_BYTES] > 0)) & (J[c.J_TASKS] > 1)
        self.unit_bytes = [0] * len(numbers)
        for i in np.flatnonzero(self.sends & (J[c.J_HELD_TASKS] > 0)).tolist():
            first = int(J[c.J_HELD_TASK0, i])
            nodes = state.T[c.T_HELD_NODE, first : first + int(J[c.J_HELD_TASKS, i])]
            self.unit_bytes[i] = bytes_across(J[:, i], nodes, int(J[c.J_DATA, i]), int(J[c.J_SERVERS, i]))


def bytes_across(job: Ints, nodes: Ints, replicas: int, servers: int) -> int:
    """What one unit of a job sends between nodes, with its tasks (servers last) on these."""
    W = np.zeros((w.WORLD_JOB_COLUMNS, 1), np.int64)
    for column, value in (
        (w.W_TASKS, len(nodes)), (w.W_SERVERS, servers), (w.W_REPLICAS, replicas), (w.W_CUT, job[c.J_CUT]),
        (w.W_WIDTH, job[c.J_WIDTH]), (w.W_SYNC, job[c.J_SYNC]), (w.W_PARTITIONS, job[c.J_PIPELINE] * job[c.J_TENSOR]),
        (w.W_EDGE_BYTES, job[c.J_EDGE_BYTES]), (w.W_SYNC_BYTES, job[c.J_SYNC_BYTES]),
    ):  # fmt: skip
        W[column] = value
    if replicas * int(W[w.W_PARTITIONS, 0]) + servers != len(nodes):
        return 0
    P = np.zeros((w.WORLD_TASK_COLUMNS, len(nodes)), np.int64)
    P[w.P_LEAD] = np.unique(nodes, return_index=True)[1][np.unique(nodes, return_inverse=True)[1]]
    return int(exchange(0, W, P))


class Ledger:
    """Follows one fork: how long each job works, what it sends between nodes, how good it says that it is."""

    def __init__(self, jobs: _Jobs, truth: Truth) -> None:
        self.jobs = jobs
        self.since, self.unit_bytes = list(jobs.since), list(jobs.unit_bytes)
        count = len(self.since)
        self.worked: list[int] = [0] * count
        self.moved: list[float] = [0.0] * count
        self.accuracy: list[int] = jobs.J[c.J_ACCURACY].tolist()
        self.accuracy_due = list(self.accuracy)
        J = jobs.J
        units = np.maximum(J[c.J_UNITS_TOTAL] - np.maximum(J[c.J_UNITS_DONE], 0), 0)
        self.units_per_us: list[float] = (units / np.maximum(truth.left_us, 1)).tolist()
        self.deadline: list[int] = J[c.J_DEADLINE].tolist()
        self.restore: list[int] = J[c.J_RESTORE].tolist()

    def take(self, batch: EventBatch) -> None:
        """Take in a batch of the fork."""
        records = batch.records
        picked = np.flatnonzero(np.isin(records[:, c.E_KIND], _KINDS))
        if not len(picked):
            return
        ends = np.cumsum(records[:, c.E_POOL])
        for at in picked.tolist():
            t, kind, job, attempt, _, b, e, size = records[at].tolist()
            i = self.jobs.index[job]
            if kind == K_OBSERVED:
                if e != c.NOTHING:
                    self.accuracy[i] = e
                    if t <= self.deadline[i]:
                        self.accuracy_due[i] = e
            elif kind == K_START:
                if self.jobs.sends[i]:
                    nodes = batch.pool[ends[at] - size : ends[at]].reshape(-1, c.PLACE)[:, 0]
                    self.unit_bytes[i] = bytes_across(self.jobs.J[:, i], nodes, b, e & 0xFFFFF)
            elif kind == K_STARTED:
                self.since[i] = t + (self.restore[i] if attempt > 1 else 0)
            else:
                self.rest(i, t)

    def rest(self, i: int, t: int) -> None:
        """A job works no more."""
        if self.since[i] >= 0:
            did = max(t - self.since[i], 0)
            self.worked[i] += did
            self.moved[i] += did * self.units_per_us[i] * self.unit_bytes[i]
            self.since[i] = -1


_PLAIN = 7
"""So many figures come before the five goals and the reward."""


def _figures(jobs: _Jobs, truth: Truth, ledger: Ledger, result: ForkResult, until_us: int, betas: Sequence[float]) -> Floats:
    """The figures of one fork, in one row."""
    for i in range(len(ledger.since)):
        ledger.rest(i, until_us)
    J, counts = jobs.J, jobs.counts
    ended = result.end_us <= until_us
    worked = np.array(ledger.worked, np.int64)
    left = np.maximum(truth.left_us - worked, 0)
    done_at = np.where(ended, result.end_us, until_us + left)
    wait_us = np.maximum(np.where(ended, result.end_us, until_us) - jobs.now_us - worked, 0)
    jct_s = (done_at - J[c.J_SUBMITTED])[counts] / US_PER_S
    due = (J[c.J_DEADLINE] < c.NEVER)[counts]
    kept = (done_at <= J[c.J_DEADLINE])[counts]
    accuracy = _accuracy(jobs, truth, ledger, done_at, ended & (left > 0))[counts]
    required = J[c.J_ACC_REQUIRED, counts] / 1e6
    good = np.where((required > 0) & np.isfinite(accuracy), accuracy >= required, np.nan)
    moved = float(sum(ledger.moved)) if jobs.sends.any() else float("nan")
    goals = terms(
        jct_s, np.where(due, kept, np.nan), good, accuracy, moved, window_s=(until_us - jobs.now_us) / US_PER_S, empty=0.0
    )
    plain = (
        np.count_nonzero(ended & counts), np.count_nonzero(~ended & counts), jct_s.mean() if len(jct_s) else 0.0,
        wait_us[counts].mean() / US_PER_S if len(jct_s) else 0.0, np.count_nonzero(kept & due), result.preemptions.sum(), moved,
    )  # fmt: skip
    row: Floats = np.array([*plain, *goals, float(reward(goals, betas)), result.refused], np.float64)
    return row


def _accuracy(jobs: _Jobs, truth: Truth, ledger: Ledger, done_at: Ints, early: Any) -> Floats:
    """How good each job is at its end, or by its deadline if that comes first; NaN: it does not say. `early`: it was ended before
    it had done all its work."""
    last = np.array(ledger.accuracy, np.int64)
    if len(truth.accuracy):
        final = truth.accuracy[:, -1]
        last = np.where(early | (final == c.NOTHING), last, final)
    value = np.where(done_at <= jobs.J[c.J_DEADLINE], last, np.array(ledger.accuracy_due, np.int64))
    found: Floats = np.where(value == c.NOTHING, np.nan, value / 1e6)
    return found


def _fate(contender: Contender, row: Floats, jobs: _Jobs) -> Fate:
    completed, unfinished, jct_s, wait_s, kept, preemptions, moved = row[:_PLAIN].tolist()
    *goals, rewarded, refused = row[_PLAIN:].tolist()
    deadlines = int(np.count_nonzero((jobs.J[c.J_DEADLINE] < c.NEVER) & jobs.counts))
    return Fate(
        contender.spec, contender.role, completed, unfinished, jct_s, wait_s, deadlines, kept, preemptions,
        None if np.isnan(moved) else moved, refused, tuple(goals), rewarded,
    )  # fmt: skip
