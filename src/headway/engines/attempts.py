"""The local engine's directory: what it and its supervisors have written down, and whose processes still live.

    STATE_DIR/engine-id                  names this directory; marks our processes in the environment
    STATE_DIR/epochs/N                   the newest epoch; a set of names, so it only ever grows
    STATE_DIR/acknowledged/JOB           the newest attempt of the job whose end was acknowledged
    STATE_DIR/logs/JOB/ATTEMPT/RANK.log  the output; kept when the attempt is forgotten
    STATE_DIR/nodes/NODE/                the node's agent: its socket, who it is, what it had to say
    STATE_DIR/attempts/JOB.ATTEMPT/      appears whole, before anything starts; gone when acknowledged
        launch.json                      the intent: epoch, places and ports of the gang, boot and time
        RANK.json                        the identity of supervisor and task: pids, start times, boot
        stop.json                        the stop request: kind, deadline, reason
        setup.RANK.json                  how the set-up ended that this rank ran for its node
        RANK.exit.json                   the end: exit code, signal, what came before it
        RANK.lock, RANK.reserve          held by the task's one supervisor; room for the end on a full disk
        proc.err                       what the supervisors had to say, normally nothing

A launch writes its intent first and looks for a newer epoch and for conflicts after; a new controller writes
its epoch first and looks for intents after. So of two controllers at least one sees the other, without a lock
that a suspended one could hold.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.engines import lost, proc
from headway.engines.base import NEVER_STARTED, Ended, Launch, Place, Role, StaleEpoch, StopKind, TaskEnd

__all__ = ["Attempt", "StateDir", "Task", "free_ports"]


@dataclass(slots=True)
class Task:
    """One task of an attempt, as far as it has been seen."""

    rank: int
    role: Role
    node: str
    gpus: tuple[int, ...]
    identity: dict[str, Any] | None = None
    end: TaskEnd | None = None
    pidfd: int = -1


@dataclass(slots=True)
class Attempt:
    """One attempt of a job, as far as it has been seen. `created_s` is on the machine's monotonic clock."""

    job: int
    attempt: int
    path: Path
    epoch: int = 0
    boot_id: str = ""
    created_s: float = 0.0
    ports: tuple[int, ...] = ()
    tasks: list[Task] = field(default_factory=list)
    started: bool = False
    ended: Ended | None = None
    spawns: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each node's agent is to start, while this engine still has to see that it does."""

    @property
    def key(self) -> tuple[int, int]:
        return self.job, self.attempt

    @property
    def live(self) -> list[Task]:
        return [task for task in self.tasks if task.end is None]

    def places(self) -> tuple[Place, ...]:
        return tuple(Place(task.rank, task.node, task.gpus) for task in self.tasks)

    def read_identity(self, task: Task) -> None:
        if task.identity is None:
            task.identity = proc.read_json(proc.identity_path(self.path, task.rank))

    def read_end(self, task: Task) -> bool:
        """Whether the task has ended."""
        record = proc.read_json(proc.exit_path(self.path, task.rank))
        if record is not None:
            task.end = TaskEnd(
                rank=task.rank,
                role=task.role,
                exit_code=int(record["exit_code"]),
                signal=record["signal"],
                stopped_by=record["stopped_by"],
                reason=str(record["reason"]),
                start_error=str(record["start_error"]),
            )
        return record is not None

    def write_end(
        self,
        task: Task,
        exit_code: int,
        number: int | None = None,
        *,
        stopped_by: StopKind = "",
        reason: str = "",
        start_error: str = "",
    ) -> None:
        """Write a task's end in the stead of a supervisor that can't. `number` is that of the signal."""
        lost.write_end(self.path, task.rank, exit_code, number, stopped_by=stopped_by, reason=reason, start_error=start_error)
        self.read_end(task)

    def stop_kind(self) -> StopKind:
        request = proc.read_json(proc.stop_path(self.path))
        kind: StopKind = request["kind"] if request else ""
        return kind

    def write_stop(self, kind: StopKind, grace_s: float, reason: str) -> bool:
        """Ask for the end of the gang; False if nothing is new. The first kind and reason stay, the earliest deadline counts."""
        request = proc.read_json(proc.stop_path(self.path))
        deadline_s = time.monotonic() + grace_s
        if request is not None:
            if kind != "controller" or request["deadline_s"] <= deadline_s:
                return False
            request["deadline_s"] = deadline_s
        else:
            request = {
                "schema_version": proc.SCHEMA_VERSION,
                "kind": kind,
                "deadline_s": deadline_s,
                "reason": reason,
            }
        proc.write_json(proc.stop_path(self.path), request)
        return True


class StateDir:
    """The directory itself. It is made if it isn't there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.boot_id = proc.boot_id()
        for directory in ("", "attempts", "acknowledged", "epochs", "logs", "nodes"):
            self.path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.engine_id = self._find_engine_id()
        for leftover in self.path("attempts").glob(".gone.*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def path(self, *parts: str) -> Path:
        return self.root.joinpath(*parts)

    def _find_engine_id(self) -> str:
        path = self.path("engine-id")
        if not path.exists():
            mine = path.with_name(f".engine-id.{os.getpid()}")
            mine.write_text(uuid.uuid4().hex)
            with contextlib.suppress(FileExistsError):
                os.link(mine, path)  # Unlike a rename, this never replaces another's.
            mine.unlink()
        return path.read_text().strip()

    def enter(self, epoch: int) -> None:
        """Refuse a controller that has been replaced; take note of a newer one."""
        newest = proc.newest_epoch(self.root)
        if epoch < newest:
            raise StaleEpoch(f"epoch {epoch} has been replaced by epoch {newest}")
        if epoch > newest:
            known = os.listdir(self.path("epochs"))
            self.path("epochs", str(epoch)).touch(mode=0o600)
            for old in known:
                self.path("epochs", old).unlink(missing_ok=True)

    def acknowledged(self, job: int) -> int:
        """The newest attempt whose end was acknowledged; 0 if there is none."""
        found = proc.read_json(self.path("acknowledged", str(job)))
        return int(found["attempt"]) if found else 0

    def acknowledge(self, attempt: Attempt) -> None:
        if attempt.attempt > self.acknowledged(attempt.job):
            proc.write_json(self.path("acknowledged", str(attempt.job)), {"attempt": attempt.attempt})
        self.discard(attempt)

    def keys(self) -> set[tuple[int, int]]:
        """The (job, attempt) of all attempts that are not acknowledged."""
        return {(job, number) for job, number, _ in proc.attempts_in(self.root)}

    def load(self, job: int, number: int) -> Attempt:
        path = self.path("attempts", f"{job}.{number}")
        attempt = Attempt(job, number, path)
        intent = proc.read_json(path / "launch.json")
        if intent is None:
            # The intent comes with its directory, so only a loss of power can have torn it.
            attempt.ended = Ended(job, number, 0, False, 0, None, False, NEVER_STARTED)
            return attempt
        attempt.epoch = int(intent["epoch"])
        attempt.boot_id = str(intent["boot_id"])
        attempt.created_s = float(intent["created_s"])
        attempt.ports = tuple(intent["ports"])
        attempt.tasks = [
            Task(int(task["rank"]), task["role"], str(task["node"]), tuple(task["gpus"])) for task in intent["tasks"]
        ]
        for task in attempt.tasks:
            attempt.read_identity(task)
        attempt.started = all(task.identity is not None for task in attempt.tasks)
        return attempt

    def record_intent(self, launch: Launch, ports_taken: Iterable[int]) -> Attempt | None:
        """Write down what is going to be started; None if this attempt is on the disk already."""
        path = self.path("attempts", f"{launch.job}.{launch.attempt}")
        servers = sum(task.role == "server" for task in launch.tasks)
        intent = {
            "schema_version": proc.SCHEMA_VERSION,
            "epoch": launch.epoch,
            "job": launch.job,
            "name": launch.name,
            "attempt": launch.attempt,
            "boot_id": self.boot_id,
            "created_s": time.monotonic(),
            "ports": free_ports(1 + servers, ports_taken),
            "tasks": [
                {"rank": task.rank, "role": task.role, "node": task.node, "gpus": list(task.gpus)}
                for task in sorted(launch.tasks, key=lambda task: task.rank)
            ],
        }
        temporary = path.with_name(f".gone.{path.name}.{uuid.uuid4().hex}")
        temporary.mkdir(mode=0o700)
        try:
            proc.write_json(temporary / "launch.json", intent)
            os.rename(temporary, path)  # Fails if the directory is there: an intent is never empty.
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            if path.exists():
                return None
            raise
        return self.load(launch.job, launch.attempt)

    def discard(self, attempt: Attempt) -> None:
        """Forget an attempt; at once for whoever looks, whenever the files are gone."""
        gone = attempt.path.with_name(f".gone.{attempt.path.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(attempt.path, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def cookie(self, attempt: Attempt, task: Task) -> str:
        return proc.cookie(self.engine_id, attempt.job, attempt.attempt, task.rank)

    def supervisor(self, task: Task) -> proc.Process | None:
        """The task's supervisor, if it lives."""
        return None if task.identity is None else proc.supervisor_of(task.identity, self.boot_id)


def free_ports(count: int, taken: Iterable[int]) -> list[int]:
    """Different ports on which nobody listens now and that no live job has been given."""
    refused = set(taken)
    found: list[int] = []
    with contextlib.ExitStack() as opened:
        for port, listener in _bound_ports():
            opened.enter_context(listener)  # Kept bound till the end, so that no port comes twice.
            if port not in refused:
                found.append(port)
            if len(found) == count:
                break
    return found


def _bound_ports() -> Iterator[tuple[int, socket.socket]]:
    while True:
        # Both families at once: torch listens on either.
        both = socket.has_dualstack_ipv6()
        listener = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
        if both:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", 0))
        yield listener.getsockname()[1], listener
