"""The inputs of the slow simulator and the state it keeps: plain records, whole seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# One (task index, node number, local GPU indices in ascending order) for each task, in order of task index.
Place = tuple[tuple[int, int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Job:
    """A gang of equal tasks. `estimate_s` None means that the estimate is the work."""

    number: int
    submit_s: int
    work_s: int
    tasks: int
    gpus_per_task: int
    cpus_milli: int = 0
    memory_bytes: int = 0
    estimate_s: int | None = None
    priority: int = 50
    save_s: int = 0
    restore_s: int = 0
    every_s: int = 0
    kind: str = ""
    queue: int = 0
    user: int = 0
    deadline_s: int | None = None
    grace_s: int | None = None  # what a stop gives it to save itself; None: as long as it takes

    @property
    def gpus(self) -> int:
        return self.tasks * self.gpus_per_task

    @property
    def estimate(self) -> int:
        return self.work_s if self.estimate_s is None else self.estimate_s


@dataclass(frozen=True)
class Node:
    number: int
    gpus: int
    cpus_milli: int = 0
    memory_bytes: int = 0
    rack: int = 0
    kind: str = ""


@dataclass(frozen=True)
class Queue:
    """Settings of a queue; the number of a parent is its place in the list."""

    quota: int | None = None
    limit: int | None = None
    weight: int = 1
    parent: int | None = None


@dataclass
class JobState:
    """What is known of a job. `state` goes future, queued, starting, running, stopping, done."""

    job: Job
    state: str = "future"
    attempt: int = 0
    wanted: Place | None = None
    held: Place | None = None
    progress_s: int = 0
    saved_s: int = 0  # the progress that the last orderly stop saved
    restore_left_s: int = 0
    save_left_s: int = 0
    lost: bool = False  # the stop under way is the loss of a node
    run_s: int = 0  # of all attempts
    earlier_run_s: int = 0  # of the attempts before the present one
    attained: int = 0  # GPU seconds
    started_s: int | None = None  # of the present attempt
    last_stop_s: int | None = None
    placed_s: int = 0  # when it was last given a place
    promoted_at: int | None = None  # the attained service at which a promoted job was given its place

    @property
    def number(self) -> int:
        return self.job.number

    @property
    def live(self) -> bool:
        return self.state not in ("future", "done")

    @property
    def placed(self) -> bool:
        return self.wanted is not None

    @property
    def waiting(self) -> bool:
        return self.state == "queued" and self.wanted is None


@dataclass
class Cluster:
    """Everything a policy may look at."""

    nodes: dict[int, Node]
    up: set[int]
    jobs: dict[int, JobState]
    now: int = 0
    queues: list[Queue] = field(default_factory=lambda: [Queue()])

    def live_jobs(self) -> list[JobState]:
        return [s for s in by_number(self.jobs.values()) if s.live]

    def wanted(self) -> dict[int, Place]:
        return {s.number: s.wanted for s in self.live_jobs() if s.wanted is not None}

    def held(self) -> dict[int, Place]:
        return {s.number: s.held for s in self.live_jobs() if s.held is not None}


@dataclass
class Plan:
    """What a round decides: jobs to release and places to give; `promoted` are jobs placed as promoted."""

    releases: list[int] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    promoted: set[int] = field(default_factory=set)


def by_number(states: Iterable[JobState]) -> list[JobState]:
    return sorted(states, key=lambda s: s.number)


def gpus_of(place: Place) -> set[tuple[int, int]]:
    return {(node, gpu) for _, node, gpus in place for gpu in gpus}


def nodes_of(place: Place) -> set[int]:
    return {node for _, node, _ in place}


def tasks_on(place: Place, number: int) -> int:
    return sum(1 for _, node, _ in place if node == number)


def arrival(state: JobState) -> tuple[int, int]:
    return (state.job.submit_s, state.number)
