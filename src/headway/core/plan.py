"""A plan: the wanted end state, written as changes to what is wanted now. `Draft` is how a policy writes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Table
from headway.core.columns import Estimator, Op, Reason, StopRule
from headway.core.scratch import widened
from headway.core.view import ClusterView, JobView, mask_of


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do; `check` refuses plans that ask for more."""

    fractional_gpus: bool = True
    exact_devices: bool = True
    """Whether the engine takes the GPU indices of the plan (else it takes counts and reports what it gave)."""
    uneven_gangs: bool = True
    suspend: bool = False
    slice_s_min: float = 0.0
    grace_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """A plan's wish for an estimator's newest result on a job."""

    estimator: Estimator
    job: int


@dataclass(slots=True)
class Plan:
    """Overrides (count × OVERRIDE), the places of their tasks, when to look again, what to estimate. A job without an override
    stays as it is."""

    overrides: Table
    places: Table
    seen: int
    """The sequence number of the state that the plan was made on."""
    wake_at_us: int = c.NEVER
    requests: tuple[Request, ...] = ()

    def __len__(self) -> int:
        return len(self.overrides)

    def copy(self) -> Plan:
        """A plan that shares nothing with the arrays it was drafted in."""
        return Plan(self.overrides.copy(), self.places.copy(), self.seen, self.wake_at_us, self.requests)


M_OVERRIDES, M_TASKS, M_WAKE = 0, 1, 2
EMPTY_COUNTS = np.array([0, 0, c.NEVER, 0, 0, 0, 0], np.int64)


class Draft:
    """A plan being written. Policies call its verbs, or hand its arrays to the passes of `headway.place`."""

    __slots__ = ("requests", "scratch", "state", "view")

    def __init__(self, view: ClusterView) -> None:
        self.view, self.state = view, view.state
        self.scratch = view.state.scratch
        self.scratch.M[:] = EMPTY_COUNTS
        self.requests: list[Request] = []

    def place(
        self, job: JobView | int, nodes: Sequence[int], gpus: Sequence[Sequence[int]], *, milli: int = c.WHOLE,
        data: int | None = None, servers: int | None = None, batch: int | None = None, reason: Reason = Reason.NONE,
    ) -> None:  # fmt: skip
        """Want the tasks of a job on these nodes and local GPUs, one entry a task (servers last, without GPUs).

        `data` and `servers` give another shape than the present one; `milli` is booked on each GPU.
        """
        row = self._row(job)
        first = int(self.scratch.M[M_TASKS])
        if first + len(nodes) > len(self.scratch.OT):
            self.scratch.OT = widened(self.scratch.OT, 2 * (first + len(nodes)))
        for k, (node, on) in enumerate(zip(nodes, gpus, strict=True)):
            self.scratch.OT[first + k] = (node, mask_of(list(on)), milli if on else 0)
        self.scratch.M[M_TASKS] = first + len(nodes)
        self._add(row, Op.PLACE, reason, first, len(nodes), data=data, servers=servers, batch=batch)

    def release(self, job: JobView | int, reason: Reason = Reason.PREEMPTED) -> None:
        """Want the job nowhere: it is stopped if it runs, and queues again."""
        self._add(self._row(job), Op.RELEASE, reason)

    def finish(self, job: JobView | int, reason: Reason = Reason.EARLY_STOP) -> None:
        """The job has done enough: it is stopped, and counts as completed."""
        self._add(self._row(job), Op.FINISH, reason)

    def rule(self, job: JobView | int, rule: StopRule) -> None:
        """Put a stop rule that the job's owner allows into force."""
        self._add(self._row(job), Op.RULE, Reason.NONE, a=int(rule))

    def trial(
        self, job: JobView | int, nodes: Sequence[int], gpus: Sequence[Sequence[int]], *, until_s: float,
        data: int | None = None, servers: int | None = None,
    ) -> None:  # fmt: skip
        """A profiling run: a place (and shape) that is looked at again at `until_s`, visible as such."""
        self.place(job, nodes, gpus, data=data, servers=servers, reason=Reason.TRIAL)
        self.scratch.O[self.scratch.M[M_OVERRIDES] - 1, c.O_B] = whole_us(until_s)
        self.wake_at(until_s)

    def why(self, job: JobView | int, reason: Reason, a: int = 0, b: int = 0) -> None:
        """Say why a job is not running; two numbers go with it (for `no-room`: GPUs needed, most free on a node)."""
        self._add(self._row(job), Op.WHY, reason, a=a, b=b)

    def request(self, estimator: Estimator, job: JobView | int) -> None:
        """Ask the runtime for a fit or forecast; the result comes back as an event."""
        number = job.id if isinstance(job, JobView) else job
        self.requests.append(Request(estimator, number))

    def wake_at(self, t_s: float) -> None:
        """Look again at `t_s` (s) even if nothing happens before."""
        self.wake_at_us(whole_us(t_s))

    def wake_at_us(self, t_us: int) -> None:
        """As `wake_at`, in µs."""
        if t_us < self.scratch.M.item(M_WAKE):
            self.scratch.M[M_WAKE] = t_us

    def plan(self) -> Plan:
        """The finished plan. Its arrays are valid until the next draft on the same state; `copy()` it to keep it."""
        count, tasks, wake = self.scratch.M[:3].tolist()
        return Plan(self.scratch.O[:count], self.scratch.OT[:tasks], self.state.C.item(c.C_SEQUENCE), wake, tuple(self.requests))

    def _row(self, job: JobView | int) -> int:
        if isinstance(job, JobView):
            return job.row
        row = self.state.row(job)
        return -1 if row is None else row

    def _add(
        self, row: int, op: Op, reason: Reason, first: int = 0, tasks: int = 0, *, a: int = 0, b: int = 0,
        data: int | None = None, servers: int | None = None, batch: int | None = None,
    ) -> None:  # fmt: skip
        M, J = self.scratch.M, self.state.J
        if M[M_OVERRIDES] + 1 > len(self.scratch.O):
            self.scratch.O = widened(self.scratch.O, 2 * len(self.scratch.O))
        self.scratch.O[M[M_OVERRIDES]] = (
            J[c.J_ID, row] if row >= 0 else -1, row, op, reason,
            J[c.J_DATA, row] if data is None else data, J[c.J_SERVERS, row] if servers is None else servers,
            J[c.J_BATCH, row] if batch is None else batch, first, tasks, a, b,
        )  # fmt: skip
        M[M_OVERRIDES] += 1


def whole_us(t_s: float) -> int:
    """Seconds as whole microseconds, rounded up; the float of a whole number of microseconds gives that number back."""
    us = round(t_s * 1_000_000)
    return us if us / 1_000_000 >= t_s else us + 1
