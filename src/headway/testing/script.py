"""What simulated machines are made of: scripts, nodes, processes, gangs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.engines.base import Ended, Launch, NodeInfo, StopKind, TaskEnd, TaskLaunch


@dataclass(frozen=True, slots=True)
class Script:
    """What a task does; a gang's tasks all have the same one, but in tests of the engine alone. Times in seconds.

    `work_s` is what the job has to do in all, over its attempts. It saves itself after each `every_s` of work, and within
    `save_s` of a SIGTERM. `codes` are the exit codes of its first runs; a run with one other than 0 fails half way.
    """

    work_s: float = 0.0
    start_s: float = 0.0
    restore_s: float = 0.0
    save_s: float = 0.0
    every_s: float = 0.0
    term_code: int = 0
    codes: tuple[int, ...] = ()
    start_fails: tuple[int, ...] = ()
    """Numbers of the attempts whose start fails."""
    ignores_term: bool = False
    signal: int | None = None
    gate: str = ""
    """The task ends once this gate is open."""
    mark: str = ""
    """A file to which a line is added when the task comes up."""
    devices: str = ""
    """A file into which the indices of the task's GPUs are written, parted by commas."""
    saved: str = ""
    """A file that is made once the task has saved itself."""
    tasks: int = 0
    """How many tasks the gang has; 0: not told."""
    grace_s: float = 0.0
    """The least grace that a stop must give."""
    cpus_milli: int = 0

    def text(self) -> str:
        """The script as a command."""
        return json.dumps({key: value for key, value in asdict(self).items() if value})

    @classmethod
    def read(cls, command: str) -> Script:
        """The script of a command."""
        found: dict[str, Any] = json.loads(command) if command else {}
        words: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
        return cls(**words)


@dataclass(slots=True)
class Node:
    """One machine. Out of reach, what is on it goes on; without power, it is gone."""

    info: NodeInfo
    reachable: bool = True
    powered: bool = True
    lost_since_us: int | None = None


@dataclass(slots=True)
class Process:
    """One task. `known`: the engine has heard of its end."""

    wanted: TaskLaunch
    script: Script
    came_up: bool = False
    end: TaskEnd | None = None
    known: bool = False
    told_to_stop: StopKind = ""
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


@dataclass(slots=True)
class StopOrder:
    kind: StopKind
    deadline_us: int
    reason: str


@dataclass(slots=True)
class Gang:
    """One attempt."""

    launch: Launch
    tasks: list[Process]
    begun_s: float = 0.0
    """How much of the job's work was done when it was launched."""
    up_us: int | None = None
    """Since when all tasks are up."""
    stop: StopOrder | None = None
    ended: Ended | None = None
    told_started: bool = False
    presumed: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.launch.job, self.launch.attempt

    @property
    def live(self) -> list[Process]:
        """Tasks that really run."""
        return [task for task in self.tasks if task.end is None]
