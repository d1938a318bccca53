"""What a policy sees: the tables at one instant, read-only, and small records of jobs and nodes for people and tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import Name, NodePhase, Phase, Reason

if TYPE_CHECKING:
    from headway.core.plan import Draft
    from headway.core.state import State

US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where one task is wanted: node number, local GPU indices, milli-GPUs booked on each."""

    node: int
    gpus: tuple[int, ...]
    milli: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What one task asks for: whole GPUs (a share counts as one), of these kinds, cpus, memory."""

    gpus: int
    kinds: frozenset[str]
    cpus_milli: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class JobView:
    """One live job, in people's units. `row` is valid within the view only, `id` for ever."""

    id: int
    row: int
    name: str
    queue: str
    user: str
    phase: Phase
    reason: Reason
    attempt: int
    priority: int
    submitted_s: float
    gpus: int
    tasks: int
    attained_gpu_s: float
    run_s: float
    estimate_s: float | None
    preemptions: int
    place: tuple[TaskPlace, ...]
    """Empty for a job without a wanted place."""
    demands: tuple[Demand, ...]
    """What each task asks for, in order: workers first, then parameter servers."""
    hold: bool
    """Its owner wants it to wait."""
    retry_at_s: float | None
    """It failed, and is to be tried again then; None if at once."""
    deadline_s: float | None

    @property
    def remaining_s(self) -> float | None:
        """The user's estimate less the run time so far, at least 0; None without an estimate."""
        return None if self.estimate_s is None else max(0.0, self.estimate_s - self.run_s)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node."""

    number: int
    name: str
    rack: int
    kind: str
    phase: NodePhase
    gpus: int
    free: int
    """GPUs that nobody wants."""
    held: int
    """GPUs on which processes run."""
    free_gpus: tuple[int, ...]
    """Local indices of the GPUs that nobody wants."""
    cpus_milli_free: int
    """What nobody wants of the cpus, and below of the memory."""
    memory_bytes_free: int

    def has_room_for(self, task: Demand) -> bool:
        """Whether the node is up, of the right kind, and nobody wants what the task asks for."""
        fits = task.gpus <= len(self.free_gpus) and task.cpus_milli <= self.cpus_milli_free
        fits = fits and task.memory_bytes <= self.memory_bytes_free and self.phase == NodePhase.UP
        return fits and (task.gpus == 0 or self.kind in task.kinds)

    def less(self, task: Demand) -> NodeView:
        """The node when the task has been given its lowest free GPUs, cpus and memory."""
        return replace(
            self, free=self.free - task.gpus, free_gpus=self.free_gpus[task.gpus :],
            cpus_milli_free=self.cpus_milli_free - task.cpus_milli,
            memory_bytes_free=self.memory_bytes_free - task.memory_bytes,
        )  # fmt: skip


class ClusterView:
    """The state at `now_us`, for `decide`. Nothing of it may be changed; `headway.testing.check_policy` proves that a policy
    keeps to that."""

    __slots__ = ("now_us", "seed", "state")

    def __init__(self, state: State, now_us: int, seed: int) -> None:
        self.state, self.now_us, self.seed = state, now_us, seed

    @property
    def now_s(self) -> float:
        return self.now_us / US_PER_S

    @property
    def waiting(self) -> int:
        """How many jobs are queued without a wanted place."""
        return self.state.C.item(c.C_WAITING)

    def draft(self) -> Draft:
        """A plan to be written, which starts as what is wanted now."""
        from headway.core.plan import Draft

        return Draft(self)

    # -- columns --------------------------------------------------------------------------------------------------
    def live_rows(self) -> Ints:
        """Rows of the jobs that have not ended, in arrival order."""
        return self.state.live_rows()

    def ranked_rows(self) -> Ints:
        """Rows of placed and waiting jobs, in arrival order (jobs that are only stopping are left out)."""
        J = self.state.J[:, : self.state.C[c.C_ROWS]]
        return np.flatnonzero((J[c.J_PHASE] < Phase.STOPPING) | ((J[c.J_PHASE] == Phase.STOPPING) & (J[c.J_PLACED] == 1)))

    def waiting_rows(self) -> Ints:
        """Rows of queued jobs without a wanted place, in arrival order."""
        first, rows = self.state.C[c.C_FIRST_WAITING], self.state.C[c.C_ROWS]
        J = self.state.J[:, first:rows]
        found: Ints = np.flatnonzero((J[c.J_PHASE] == Phase.QUEUED) & (J[c.J_PLACED] == 0)) + first
        return found

    def placed_rows(self) -> Ints:
        """Rows of jobs with a wanted place, in arrival order."""
        J = self.state.J[:, : self.state.C[c.C_ROWS]]
        return np.flatnonzero((J[c.J_PHASE] <= Phase.STOPPING) & (J[c.J_PLACED] == 1))

    def run_us(self, rows: Ints) -> Ints:
        """Run time of jobs up to now, µs."""
        J = self.state.J
        started = J[c.J_STARTED_AT, rows]
        run: Ints = J[c.J_RUN, rows] + np.where(started >= 0, self.now_us - started, 0)
        return run

    def attained_us(self, rows: Ints) -> Ints:
        """Attained service of jobs up to now, GPU·µs."""
        J = self.state.J
        started, milli = J[c.J_STARTED_AT, rows], J[c.J_HELD_MILLI, rows]
        dt = np.where(started >= 0, self.now_us - started, 0)
        attained: Ints = J[c.J_ATTAINED, rows] + (dt // 1000) * milli + ((dt % 1000) * milli) // 1000
        return attained

    def submitted_s(self, rows: Ints) -> Floats:
        """Submission times, s."""
        submitted: Floats = self.state.J[c.J_SUBMITTED, rows] / US_PER_S
        return submitted

    # -- records --------------------------------------------------------------------------------------------------
    def job(self, which: int | str) -> JobView:
        """A live job by its number or name.

        Raises:
            KeyError: no such live job.
        """
        number = which
        if isinstance(which, str):
            named = (n for n, name in self.state.names[Name.JOB].items() if name == which and self.state.row(n) is not None)
            number = next(named, -1)
        row = self.state.row(int(number))
        if row is None:
            raise KeyError(which)
        return self._job(row)

    def jobs(self) -> Iterator[JobView]:
        """Every live job, in arrival order."""
        return (self._job(int(row)) for row in self.live_rows())

    def nodes(self) -> Iterator[NodeView]:
        """Every node, by number."""
        state = self.state
        for n in range(int(state.C[c.C_NODES])):
            column = state.N[:, n]
            held = bin(int(column[c.N_HELD_MASK]) & (2**64 - 1)).count("1")
            kind = state.name(Name.KIND, int(column[c.N_KIND]))
            phase = NodePhase(int(column[c.N_PHASE]))
            yield NodeView(
                n,
                state.name(Name.NODE, n),
                int(column[c.N_RACK]),
                kind,
                phase,
                int(column[c.N_GPUS]),
                int(column[c.N_FREE]),
                held,
                gpus_of(int(column[c.N_FREE_MASK])),
                int(column[c.N_CPU_MAX] - column[c.N_CPU]),
                int(column[c.N_MEM_MAX] - column[c.N_MEM]),
            )

    def _job(self, row: int) -> JobView:
        state = self.state
        job = state.J[:, row]
        number = int(job[c.J_ID])
        place: list[TaskPlace] = []
        if job[c.J_PLACED]:
            for t in range(int(job[c.J_TASK0]), int(job[c.J_TASK0] + job[c.J_TASKS])):
                task = state.T[:, t]
                place.append(TaskPlace(int(task[c.T_NODE]), gpus_of(int(task[c.T_MASK])), int(task[c.T_BOOK])))
        kinds = frozenset(
            state.name(Name.KIND, kind) for kind in range(int(state.C[c.C_KINDS])) if int(job[c.J_KIND_MASK]) >> kind & 1
        )
        block = state.T[[c.T_GPU, c.T_CPU, c.T_MEM], job[c.J_TASK0] : job[c.J_TASK0] + job[c.J_TASKS]]
        rows = np.array([row])
        estimate, retry, deadline = int(job[c.J_ESTIMATE]), int(job[c.J_NOT_BEFORE]), int(job[c.J_DEADLINE])
        return JobView(
            id=number,
            row=row,
            name=state.name(Name.JOB, number),
            queue=state.name(Name.QUEUE, int(job[c.J_QUEUE])),
            user=state.name(Name.USER, int(job[c.J_USER])),
            phase=Phase(int(job[c.J_PHASE])),
            reason=reason_of(job),
            attempt=int(job[c.J_ATTEMPT]),
            priority=int(job[c.J_PRIORITY]),
            submitted_s=int(job[c.J_SUBMITTED]) / US_PER_S,
            gpus=int(job[c.J_GPUS]),
            tasks=int(job[c.J_TASKS]),
            attained_gpu_s=int(self.attained_us(rows)[0]) / US_PER_S,
            run_s=int(self.run_us(rows)[0]) / US_PER_S,
            estimate_s=estimate / US_PER_S if 0 < estimate < c.NEVER else None,
            preemptions=int(job[c.J_PREEMPTIONS]),
            place=tuple(place),
            demands=tuple(Demand(-(-milli // c.WHOLE), kinds, cpus, memory) for milli, cpus, memory in block.T.tolist()),
            hold=bool(job[c.J_HOLD]),
            retry_at_s=retry / US_PER_S if retry > self.now_us else None,
            deadline_s=deadline / US_PER_S if 0 < deadline < c.NEVER else None,
        )


def reason_of(job: Ints | Sequence[int]) -> Reason:
    """Why a job (a column of the job table) is where it is: for a queued one why it waits, else what brought it there."""
    if job[c.J_PHASE] != Phase.QUEUED:
        return Reason(int(job[c.J_REASON]))
    if job[c.J_HOLD]:
        return Reason.HELD_BY_USER
    if job[c.J_PLACED]:
        return Reason.WAITS_FOR_STOP
    return Reason(int(job[c.J_WHY] or job[c.J_REASON] or Reason.BEHIND_OTHERS))


def gpus_of(mask: int) -> tuple[int, ...]:
    """Local indices of the GPUs in a mask."""
    bits = mask & (2**64 - 1)
    return tuple(i for i in range(64) if bits >> i & 1)


def mask_of(gpus: tuple[int, ...] | list[int]) -> int:
    """The mask (a signed 64-bit number) of local GPU indices."""
    bits = 0
    for gpu in gpus:
        if not 0 <= gpu < c.GPUS_PER_NODE_MAX:
            raise ValueError(f"a node has GPUs 0 to {c.GPUS_PER_NODE_MAX - 1}, not {gpu}")
        bits |= 1 << gpu
    return bits - (1 << 64) if bits >> 63 else bits
