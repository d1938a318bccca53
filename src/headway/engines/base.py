"""What an engine is: whoever carries out the scheduler's actions, in the real world or in a simulated one.

An engine knows nodes, slots and processes. It knows nothing of queues, policies or the scheduler's tables.

The promises between the controller and an engine:

* **At least once.** A call or an event may be repeated. Calls are idempotent by (job, attempt); events carry
  (job, attempt), so that a repeated one is recognised. The events of one attempt come in order; between
  attempts there is no order.
* **Fenced.** Every call that changes something carries the controller's epoch. Once an engine has seen an
  epoch, it refuses older ones (`StaleEpoch`), and it refuses to launch an attempt older than one it knows
  (`StaleAttempt`).
* **Nothing is forgotten early.** What has ended stays in `snapshot()`, over restarts of the controller, until
  `acknowledge()`. What had settled before `start()` returned is told by `snapshot()` alone; what settles
  later also comes as an event.
* **Never twice at once.** A second live attempt of a job, or two live attempts on one GPU, is an error of the
  scheduler (`EngineInvariant`). The engine checks it against what really runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from headway.core.plan import Capabilities
from headway.engines.lost import NEVER_STARTED

__all__ = [
    "NEVER_STARTED",
    "NODE_LOST",
    "NODE_REBOOTED",
    "START_TIMED_OUT",
    "Capabilities",
    "Ended",
    "Engine",
    "EngineError",
    "EngineEvent",
    "EngineInvariant",
    "EventStream",
    "Exited",
    "Launch",
    "NodeBack",
    "NodeHealth",
    "NodeInfo",
    "NodeLost",
    "NodeUnreachable",
    "Place",
    "Record",
    "Role",
    "Running",
    "StaleAttempt",
    "StaleEpoch",
    "StartFailed",
    "Started",
    "StopKind",
    "TaskEnd",
    "TaskLaunch",
    "Usage",
    "check_launch",
    "ended_event",
    "gang_outcome",
]

Role: TypeAlias = Literal["worker", "server"]


class EngineError(Exception):
    """An engine could not, or would not, do what it was asked."""


class StaleEpoch(EngineError):
    """The call came from a controller that has been replaced by a newer one."""


class StaleAttempt(EngineError):
    """The launch is of an older attempt than one that the engine already knows."""


class NodeUnreachable(EngineError):
    """The launch needs a node that can't be reached; nothing has changed. No failure of the job."""

    def __init__(self, node: str) -> None:
        super().__init__(f"node {node} can't be reached")
        self.node = node


class EngineInvariant(EngineError):
    """The call would break what must always hold: an error of the scheduler, never of the user."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What one node has, and whether it can be reached now. `cpus_milli` is in thousandths of a core."""

    name: str
    gpus: int
    gpu_kind: str
    cpus_milli: int
    memory_bytes: int
    reachable: bool = True


@dataclass(frozen=True, slots=True)
class TaskLaunch:
    """One process of a job.

    `rank` is unique in the gang: the workers are 0..W-1, the servers follow. `gpus` are the GPU's indices on
    `node`. `command` and `setup` are for the shell; `setup` runs once per node and attempt, before any task
    on that node. `milli` is booked on each GPU, in thousandths. `cpus_milli` (thousandths of a core) and `memory_bytes` are
    what the task may use, where the engine can hold it to that; 0: no limit.
    """

    rank: int
    role: Role
    node: str
    gpus: tuple[int, ...]
    command: str
    setup: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "."
    milli: int = 1000
    cpus_milli: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One attempt of a job: a gang that starts whole or not at all.

    `attempt` counts from 1. `restarts_max` is how many more attempts a failing job may have; the tasks are
    told. `user` is whose job it is: an engine that can runs it under that user's account, and fails the start where there is
    none; empty: the engine's own. `told` are variables that every task gets, a secret among them: they are written to no disk.
    `reports_dir` is where the tasks leave their reports, one file each; empty: nowhere.
    """

    epoch: int
    job: int
    name: str
    attempt: int
    tasks: tuple[TaskLaunch, ...]
    checkpoint_dir: str = ""
    restarts_max: int = 0
    user: str = ""
    told: Mapping[str, str] = field(default_factory=dict)
    reports_dir: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """All tasks of the gang run."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The gang could not be started; nothing of it runs any more."""

    job: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The whole gang has ended and its places are free; once per attempt.

    `exit_code` is that of the first task, by rank, that failed by itself; where none did, of the first that
    failed after the stop request; 0 where none failed. A task killed by signal n has exit code 128 + n and
    `signal` n. `after_stop`: the gang ended because `stop()` was called; a job that failed or finished before
    the request reached it isn't. `reason` is then the one given to `stop()`, otherwise a word for an unusual
    end (`runner-lost`, `node-lost`, `node-rebooted`, `out-of-memory`, `setup-failed`) or empty. May come without
    `Started`, if the gang was stopped or broke early.
    """

    job: int
    attempt: int
    exit_code: int
    signal: int | None
    after_stop: bool
    reason: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The engine can't use the node. What ran there has ended, or is kept from running on beside a later attempt."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeBack:
    """The node can be used again; `snapshot()` tells what runs there."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """Something is wrong with a node: it should be given no more jobs, while what runs there runs on. Well again: empty."""

    node: str
    problem: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What one task uses: thousandths of GPUs and of cores (averages since the last one), bytes of memory.

    Told from time to time while a task runs, when it has changed. `network_bytes_per_s` is None where it isn't measured.
    """

    job: int
    attempt: int
    rank: int
    gpu_milli: int
    cpus_milli: int
    memory_bytes: int
    network_bytes_per_s: int | None = None


EngineEvent: TypeAlias = Started | StartFailed | Exited | NodeLost | NodeBack | NodeHealth | Usage


@dataclass(frozen=True, slots=True)
class Place:
    """Where one task of a live attempt is."""

    rank: int
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Running:
    """A live attempt. It holds its places until an `Ended` takes its stead."""

    job: int
    attempt: int
    epoch: int
    phase: Literal["starting", "running", "stopping"]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that has ended and was not acknowledged yet; `started` is False where the start failed."""

    job: int
    attempt: int
    epoch: int
    started: bool
    exit_code: int
    signal: int | None
    after_stop: bool
    reason: str


Record: TypeAlias = Running | Ended

NODE_REBOOTED = "node-rebooted"
"""Why an attempt ended that was on a machine which was switched off."""

NODE_LOST = "node-lost"
"""Why an attempt ended on a node that could not be used any more: the engine, or the node's agent, has ended what ran there."""

START_TIMED_OUT = "the start took too long"
"""Why a start failed that was given up just as its last task appeared."""


def ended_event(ended: Ended) -> Exited | StartFailed:
    """The event that tells of this end; recovery from a snapshot uses it like one that has just come."""
    if not ended.started:
        return StartFailed(ended.job, ended.attempt, ended.reason)
    return Exited(ended.job, ended.attempt, ended.exit_code, ended.signal, ended.after_stop, ended.reason)


StopKind: TypeAlias = Literal["", "controller", "gang", "servers", "start", "node"]
"""Why a gang is being stopped: it isn't, it was asked for, a task failed, the workers are done, a task could not start, a node
is lost."""


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How one task ended. `stopped_by` is the kind of the stop request that came before, or empty.

    `start_error` says why its process never ran, if it didn't.
    """

    rank: int
    role: Role
    exit_code: int = 0
    signal: int | None = None
    stopped_by: StopKind = ""
    reason: str = ""
    start_error: str = ""


def gang_outcome(ends: Sequence[TaskEnd]) -> tuple[bool, int, int | None, bool, str]:
    """How a gang ended: (started, exit code, signal, after a stop, reason), from the ends of all its tasks.

    A gang that never was whole has not started, whatever became of its parts. Otherwise, what went wrong before any
    stop request is the cause, whatever came of the others then. Servers that were stopped because the workers were
    done don't count.
    """
    ends = sorted((end for end in ends if end.stopped_by != "servers"), key=lambda end: end.rank)
    for end in ends:
        if end.start_error and end.stopped_by != "controller":
            reason = end.start_error if end.start_error == NEVER_STARTED else f"rank {end.rank}: {end.start_error}"
            return False, end.exit_code, None, False, reason
    for end in ends:
        if end.stopped_by == "start":
            return False, end.exit_code, None, False, START_TIMED_OUT
    for end in ends:
        if end.exit_code != 0 and not end.stopped_by:
            return True, end.exit_code, end.signal, False, end.reason
    for end in ends:
        if end.stopped_by == "node":
            return True, end.exit_code, end.signal, False, NODE_LOST
    stopped = any(end.stopped_by == "controller" for end in ends)
    for end in ends:
        if end.exit_code != 0:
            return True, end.exit_code, end.signal, stopped, end.reason
    return True, 0, None, stopped, ""


def check_launch(launch: Launch, slots: Mapping[str, int]) -> None:
    """Refuse a gang that no engine could start, whatever else runs. `slots` is the number of GPUs of each
    node.
    """
    who = f"job {launch.job}, attempt {launch.attempt}"
    if launch.job < 0 or launch.attempt < 1 or launch.epoch < 0:
        raise EngineInvariant(f"{who}: jobs and epochs count from 0, attempts from 1")
    in_order = sorted(launch.tasks, key=lambda task: (task.role == "server", task.rank))
    ranks = [task.rank for task in in_order]
    if not ranks or ranks != list(range(len(ranks))):
        raise EngineInvariant(f"{who}: the ranks must be 0, 1, 2, … with the workers first, not {ranks}")
    held: set[tuple[str, int]] = set()
    for task in launch.tasks:
        if task.node not in slots:
            raise EngineInvariant(f"{who}: there is no node {task.node}")
        for slot in task.gpus:
            if not 0 <= slot < slots[task.node]:
                raise EngineInvariant(f"{who}: node {task.node} has no slot {slot}")
            if (task.node, slot) in held:
                raise EngineInvariant(f"{who}: slot {slot} of node {task.node} is given twice")
            held.add((task.node, slot))
        if not 0 < task.milli <= 1000:
            raise EngineInvariant(f"{who}: {task.milli} thousandths of a GPU can't be given")


class EventStream:
    """An engine's events, in order, for one reader. A wait that is cancelled or timed out loses no event."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[EngineEvent | None] = asyncio.Queue()

    def put(self, event: EngineEvent) -> None:
        self._queue.put_nowait(event)

    def close(self) -> None:
        """End the iteration, once what is already in the stream has been read."""
        self._queue.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[EngineEvent]:
        return self

    async def __anext__(self) -> EngineEvent:
        event = await self._queue.get()
        if event is None:
            self._queue.put_nowait(None)
            raise StopAsyncIteration
        return event


class Engine(Protocol):
    """Carries out launches and stops, and tells what becomes of them. The module's text holds the
    promises.
    """

    def capabilities(self) -> Capabilities:
        """What the engine can do: `core.check` refuses plans that ask for more, `check_engine` checks what is declared."""

    async def start(self) -> None:
        """Connect, and adopt whatever runs or has ended since the last controller."""

    async def close(self) -> None:
        """Disconnect and end `events()`. The tasks go on running."""

    async def inventory(self) -> tuple[NodeInfo, ...]:
        """All nodes, also those out of reach, in the order of their names' first mention."""

    async def fence(self, epoch: int) -> None:
        """From now on refuse older epochs. Raises `StaleEpoch` if a newer one is known.

        A new controller calls this before `snapshot()`: what an older one launched meanwhile is then in it.
        """

    async def launch(self, launch: Launch) -> None:
        """Start a gang, whole or not at all. What becomes of it comes as events.

        A repeated launch of a known (job, attempt) does nothing, whatever has become of it.
        Raises `StaleEpoch`, `StaleAttempt`, `EngineInvariant`, `NodeUnreachable`, or `EngineError` if the engine
        is not able to take it on; then nothing has changed.
        """

    async def stop(self, epoch: int, job: int, attempt: int, grace_s: float, reason: str) -> None:
        """SIGTERM now, SIGKILL to everything the attempt started after `grace_s` seconds. Raises
        `StaleEpoch`.

        Nothing happens if the attempt is unknown or has ended. Repeated, the earlier deadline counts and the
        first reason stays.
        """

    async def snapshot(self) -> tuple[Record, ...]:
        """What really runs, and what has ended and was not acknowledged; by (job, attempt)."""

    async def acknowledge(self, epoch: int, job: int, attempt: int) -> None:
        """The end of this attempt is safe in the journal: the engine may forget it, its log excepted.

        Nothing happens if the attempt is unknown. Raises `EngineInvariant` if it is still live, and `StaleEpoch`: a
        controller that was replaced knows nothing of what the new one has launched, and must not have its end forgotten.
        """

    def events(self) -> AsyncIterator[EngineEvent]:
        """The one stream of this engine's events; for one reader."""

    def log_path(self, job: int, attempt: int, rank: int) -> Path:
        """Where the output of a task is (standard output and error, as written); may not exist yet."""
