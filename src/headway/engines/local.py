"""The engine that runs jobs as processes of this machine, on its GPUs or on CPU slots, spread over one or several nodes.

Each node has an agent (`agent.py`), each task a supervisor (`proc.py`); both outlive the controller, and the supervisors
outlive the agents. So nothing here is the truth: the truth is what the supervisors have written and which processes live
(`attempts.py`). All of this module's memory can be rebuilt from there, and is, whenever an engine starts.

The engine writes down what is to start, has the agents start it, and looks what becomes of it; stops go straight to the
supervisors. An agent that has died is started again, and one that hangs is ended first. Only if a node can't be brought back
within `silent_s` it is lost: the engine then ends what runs there itself, before it says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from headway.engines import lost, proc
from headway.engines.attempts import Attempt, StateDir, Task
from headway.engines.base import (
    NEVER_STARTED,
    NODE_LOST,
    NODE_REBOOTED,
    Capabilities,
    Ended,
    EngineError,
    EngineEvent,
    EngineInvariant,
    EventStream,
    Launch,
    NodeHealth,
    NodeInfo,
    NodeUnreachable,
    Record,
    Running,
    StaleAttempt,
    Started,
    StopKind,
    check_launch,
    ended_event,
    gang_outcome,
)
from headway.engines.environment import task_environment
from headway.engines.link import wait_for_children
from headway.engines.nodes import LocalNodes

__all__ = ["LocalEngine"]

log = logging.getLogger(__name__)

AGENT_START_S = 5.0
"""How long `start()` waits for agents, in seconds, above the time that a supervisor has."""


class LocalEngine:
    """Runs gangs on this machine. `nodes` maps each node's name to its number of slots; `devices` to the UUIDs of its GPUs,
    where slots are real ones.

    `home` is what the tasks get as `HEADWAY_HOME`; `base_env` is the environment below theirs (default: this
    process's own, without `HEADWAY_*`). Each node declares `cpus_milli` and `memory_bytes`, or its share of
    the machine (at least a core a slot: a virtual node is for trying things out). `gang_grace_s` is how long
    the rest of a broken gang may take to end; `start_timeout_s` how long a supervisor that another engine has
    started may take to appear, `spawn_timeout_s` one of our own. `poll_s` is how often is looked at what can't be waited for;
    `use_pidfd=False` polls everything. A node is lost when its agent could not be had for `silent_s`. Agents measure every
    `sample_s`, and end when for `idle_s` nothing has run and nobody was connected. All in seconds.
    """

    def __init__(
        self,
        state_dir: Path,
        nodes: Mapping[str, int],
        *,
        devices: Mapping[str, Sequence[str]] | None = None,
        home: Path | None = None,
        base_env: Mapping[str, str] | None = None,
        gpu_kind: str = "cpu-slot",
        cpus_milli: int | None = None,
        memory_bytes: int | None = None,
        gang_grace_s: float = 5.0,
        start_timeout_s: float = 10.0,
        spawn_timeout_s: float = 30.0,
        silent_s: float = 15.0,
        sample_s: float = 5.0,
        idle_s: float = 10.0,
        poll_s: float = 0.2,
        use_pidfd: bool = True,
    ) -> None:
        self._root = Path(os.path.abspath(state_dir))
        self._dir: StateDir
        self._nodes = LocalNodes(
            nodes,
            devices or {},
            silent_s=silent_s,
            agent={"sample_s": sample_s, "idle_s": idle_s},
            look=self._look_again,
            up=self._send_again,
            tell=self._tell,
        )
        self._home = Path(os.path.abspath(home)) if home is not None else self._root
        if base_env is None:
            base_env = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        self._base_env = dict(base_env)
        self._gpu_kind = gpu_kind
        self._cpus_milli = cpus_milli
        self._memory_bytes = memory_bytes
        self._gang_grace_s = gang_grace_s
        self._start_timeout_s = start_timeout_s
        self._spawn_timeout_s = spawn_timeout_s
        self._poll_s = poll_s
        self._use_pidfd = use_pidfd and hasattr(os, "pidfd_open")
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._events = EventStream()
        self._announce = False
        self._sweeper: asyncio.Task[None] | None = None
        self.notes: tuple[str, ...] = ()
        """What whoever runs the cluster should be told; known once the engine has started."""

    # The engine protocol

    def capabilities(self) -> Capabilities:
        return Capabilities(fractional_gpus=False, exact_devices=True, uneven_gangs=True, suspend=False, slice_s_min=1.0)

    async def start(self) -> None:
        if not sys.platform.startswith("linux"):
            raise EngineError("the local engine needs Linux (/proc, child subreapers)")
        if self._sweeper is not None:
            raise EngineError("the engine has been started already")
        self._dir = StateDir(self._root)
        await self._nodes.start(self._root, self._dir.engine_id, self._start_timeout_s + AGENT_START_S)
        self._scan()
        for attempt in list(self._attempts.values()):
            self._examine(attempt)
        self.notes = self._nodes.notes()
        self._announce = True
        for node, problem in self._nodes.problems.items():
            self._tell(NodeHealth(node, problem))
        self._sweeper = asyncio.create_task(self._sweep(), name="headway-local-engine-sweep")

    async def close(self) -> None:
        if self._sweeper is None:
            return
        self._sweeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeper
        self._sweeper = None
        self._announce = False
        await self._nodes.close()
        for attempt in self._attempts.values():
            for task in attempt.tasks:
                self._unwatch(task)
        self._attempts.clear()
        self._events.close()

    async def inventory(self) -> tuple[NodeInfo, ...]:
        return self._nodes.inventory(self._gpu_kind, self._cpus_milli, self._memory_bytes)

    async def fence(self, epoch: int) -> None:
        self._dir.enter(epoch)
        self._scan()

    async def launch(self, launch: Launch) -> None:
        self._dir.enter(launch.epoch)
        self._scan()
        newest = max((a for job, a in self._attempts if job == launch.job), default=0)
        newest = max(newest, self._dir.acknowledged(launch.job))
        if launch.attempt < newest:
            raise StaleAttempt(f"job {launch.job}: attempt {launch.attempt} is older than attempt {newest}")
        if launch.attempt == newest:
            return
        check_launch(launch, self._nodes.slots)
        if unreachable := sorted({task.node for task in launch.tasks} & self._nodes.lost):
            raise NodeUnreachable(unreachable[0])
        if any(task.milli != 1000 for task in launch.tasks if task.gpus):
            raise EngineInvariant(f"job {launch.job}: this engine gives whole GPUs only")
        try:
            taken = {port for other in self._attempts.values() if other.ended is None for port in other.ports}
            attempt = self._dir.record_intent(launch, taken)
        except OSError as error:
            raise EngineError(f"job {launch.job}: the launch can't be written down: {error}") from error
        if attempt is None:
            self._scan()  # Somebody else was quicker with the same launch.
            return
        self._attempts[attempt.key] = attempt
        try:
            self._dir.enter(launch.epoch)
            self._scan()
            self._check_world(attempt)
        except BaseException:
            self._dir.discard(attempt)
            self._forget(attempt)
            raise
        self._start_tasks(attempt, launch)
        self._examine(attempt)

    async def stop(self, epoch: int, job: int, attempt: int, grace_s: float, reason: str) -> None:
        if not (math.isfinite(grace_s) and grace_s >= 0):
            raise ValueError(f"grace_s must be a number of seconds, at least 0, not {grace_s}")
        self._dir.enter(epoch)
        self._scan()
        found = self._attempts.get((job, attempt))
        if found is None:
            return
        self._examine(found)
        if found.ended is None:
            self._request_stop(found, "controller", grace_s, reason)

    async def snapshot(self) -> tuple[Record, ...]:
        self._scan()
        records: list[Record] = []
        for _, attempt in sorted(self._attempts.items()):
            self._examine(attempt)
            if attempt.key not in self._attempts:
                continue
            if attempt.ended is not None:
                records.append(attempt.ended)
                continue
            stopping = proc.stop_path(attempt.path).exists()
            phase: Literal["starting", "running", "stopping"] = (
                "stopping" if stopping else "running" if attempt.started else "starting"
            )
            records.append(Running(attempt.job, attempt.attempt, attempt.epoch, phase, attempt.places()))
        return tuple(records)

    async def acknowledge(self, epoch: int, job: int, attempt: int) -> None:
        self._dir.enter(epoch)
        found = self._attempts.get((job, attempt))
        if found is None:
            return
        if found.ended is None:
            raise EngineInvariant(f"job {job}, attempt {attempt} is still live: there is no end to acknowledge")
        self._dir.acknowledge(found)
        self._forget(found)

    def events(self) -> AsyncIterator[EngineEvent]:
        return self._events

    def log_path(self, job: int, attempt: int, rank: int) -> Path:
        return self._root.joinpath("logs", str(job), str(attempt), f"{rank}.log")

    # What there is, and what must hold

    def _scan(self) -> None:
        """Adopt attempts that are on the disk and not known here, and forget those that are there no more."""
        on_disk = self._dir.keys()
        for key in sorted(on_disk - self._attempts.keys()):
            self._attempts[key] = self._dir.load(*key)
        for gone in [attempt for key, attempt in self._attempts.items() if key not in on_disk]:
            self._forget(gone)  # Another engine has acknowledged it, or taken it back.

    def _check_world(self, attempt: Attempt) -> None:
        """No second live attempt of a job, nor on a slot: judged by what runs, not by what is believed."""
        wanted = {(task.node, slot) for task in attempt.tasks for slot in task.gpus}
        for other in list(self._attempts.values()):
            both = sorted(wanted & {(task.node, slot) for task in other.tasks for slot in task.gpus})
            if other.key == attempt.key or (other.job != attempt.job and not both):
                continue
            self._examine(other)  # Only now: looking at all that runs, for each launch, would cost too much.
            if other.ended is not None or other.key not in self._attempts:
                continue
            if other.job == attempt.job:
                raise EngineInvariant(f"job {other.job}: attempt {other.attempt} is still live")
            node, slot = both[0]
            holder = f"job {other.job}, attempt {other.attempt}"
            raise EngineInvariant(f"job {attempt.job}: slot {slot} of node {node} is held by {holder}")

    # Starting

    def _start_tasks(self, attempt: Attempt, launch: Launch) -> None:
        """Start the supervisors. One that can't be started ends its task, and that ends the gang."""
        servers = [f"127.0.0.1:{port}" for port in attempt.ports[1:]]
        wanted_by_rank = {wanted.rank: wanted for wanted in launch.tasks}
        setup_ranks: dict[str, int] = {}
        for task in attempt.tasks:
            if wanted_by_rank[task.rank].setup.strip():
                setup_ranks.setdefault(task.node, task.rank)
        for task in attempt.tasks:
            wanted = wanted_by_rank[task.rank]
            devices = self._nodes.devices[task.node]
            environment = task_environment(
                launch,
                wanted,
                master_addr="127.0.0.1",
                master_port=attempt.ports[0],
                servers=servers,
                real_gpus=bool(devices),
                home=str(self._home),
                devices=[devices[slot] for slot in task.gpus] if devices else (),
            )
            message = attempt.spawns.setdefault(
                task.node,
                {
                    "op": "spawn",
                    "epoch": launch.epoch,
                    "job": launch.job,
                    "attempt": launch.attempt,
                    "user": launch.user,
                    "base_env": self._base_env,
                    "tasks": [],
                },
            )
            message["tasks"].append(
                {
                    "rank": task.rank,
                    "command": wanted.command,
                    "setup": wanted.setup,
                    "setup_rank": setup_ranks.get(task.node),
                    "workdir": os.path.abspath(wanted.workdir),
                    "checkpoint_dir": environment["HEADWAY_CHECKPOINT_DIR"],
                    "env": {**environment, proc.COOKIE: self._dir.cookie(attempt, task)},
                    "cpus_milli": wanted.cpus_milli,
                    "memory_bytes": wanted.memory_bytes,
                }
            )
        for node in attempt.spawns:
            self._send(attempt, node)

    def _send(self, attempt: Attempt, node: str) -> None:
        """Have a node's agent start its tasks. Where it isn't there now, or does not get it, it is asked again when it is."""
        self._nodes.send(node, attempt.spawns[node])

    def _send_again(self, node: str) -> None:
        """A node's agent is there, perhaps a new one: it may not know of what was to start."""
        for attempt in list(self._attempts.values()):
            if node in attempt.spawns and any(task.identity is None and task.node == node for task in attempt.live):
                self._send(attempt, node)

    def _look_again(self, job: int, attempt: int) -> None:
        found = self._attempts.get((job, attempt))
        if found is not None:
            self._examine(found)

    # Watching

    def _watch(self, attempt: Attempt, task: Task) -> None:
        """Be told when the supervisor ends. Without pidfds, or with too many open, the sweep looks for it."""
        if task.pidfd >= 0 or not self._use_pidfd:
            return
        assert task.identity is not None
        try:
            fd = os.pidfd_open(int(task.identity["pid"]))
        except OSError:
            return
        if self._dir.supervisor(task) is None:
            os.close(fd)  # It ended, and the pid may be another's by now.
            return
        task.pidfd = fd
        asyncio.get_running_loop().add_reader(fd, self._on_supervisor_end, attempt, task)

    def _unwatch(self, task: Task) -> None:
        if task.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(task.pidfd)
            os.close(task.pidfd)
        task.pidfd = -1

    def _on_supervisor_end(self, attempt: Attempt, task: Task) -> None:
        self._unwatch(task)
        self._examine(attempt)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            for attempt in list(self._attempts.values()):
                if not attempt.started or any(task.pidfd < 0 for task in attempt.live):
                    self._examine(attempt)
            for node in self._nodes.silent():
                self._give_up(node)
            wait_for_children()

    def _give_up(self, node: str) -> None:
        """A node can't be used: end what runs there, in its agent's stead. It is lost when nothing does any more."""
        runs = False
        for attempt in list(self._attempts.values()):
            mine = [task for task in attempt.live if task.node == node]
            if attempt.ended is not None or not mine:
                continue
            runs = True
            self._request_stop(attempt, "node", 0.0, NODE_LOST)
            for task in mine:
                if task.identity is not None and self._dir.supervisor(task) is None:
                    lost.end_lost(attempt.path, task.rank, self._dir.cookie(attempt, task))
            self._examine(attempt)
        if not runs:
            self._nodes.lose(node)

    def _examine(self, attempt: Attempt) -> None:
        """Look what has become of an attempt, do what follows, and tell. Looking again changes nothing."""
        if attempt.ended is not None or attempt.key not in self._attempts:
            return
        try:
            self._look(attempt)
        except Exception as error:
            if not attempt.path.exists():
                self._forget(attempt)
                return
            # One attempt that can't be looked at (full disk, damaged record) must not hide all the others.
            log.warning("job %d, attempt %d: %r; will look again", attempt.job, attempt.attempt, error)

    def _look(self, attempt: Attempt) -> None:
        if not attempt.path.exists():
            self._forget(attempt)
            return
        for task in attempt.live:
            self._look_at(attempt, task)
        if not attempt.started and all(task.identity is not None for task in attempt.tasks):
            attempt.started = True
            attempt.spawns.clear()  # They may hold secrets.
            failed = any(task.end is not None and task.end.start_error for task in attempt.tasks)
            if not failed and attempt.stop_kind() != "start":
                self._tell(Started(attempt.job, attempt.attempt))
        live = attempt.live
        if not live:
            ends = [task.end for task in attempt.tasks if task.end is not None]
            started, code, number, after_stop, reason = gang_outcome(ends)
            if after_stop:
                request = proc.read_json(proc.stop_path(attempt.path)) or {}
                reason = str(request.get("reason", ""))
            attempt.ended = Ended(attempt.job, attempt.attempt, attempt.epoch, started, code, number, after_stop, reason)
            self._tell(ended_event(attempt.ended))
            return
        ends = [task.end for task in attempt.tasks if task.end is not None]
        if any(end.start_error and not end.stopped_by for end in ends):
            self._request_stop(attempt, "start", self._gang_grace_s, "start-failed")
        elif any(end.exit_code != 0 and not end.stopped_by for end in ends):
            self._request_stop(attempt, "gang", self._gang_grace_s, "gang-broken")
        elif attempt.started and all(task.role == "server" for task in live) and any(end.role == "worker" for end in ends):
            self._request_stop(attempt, "servers", self._gang_grace_s, "workers-done")

    def _look_at(self, attempt: Attempt, task: Task) -> None:
        attempt.read_identity(task)
        # Looked at before the record is: it may write the record and be gone.
        alive = self._dir.supervisor(task) is not None
        if attempt.read_end(task):
            return
        if alive:
            self._watch(attempt, task)
            return
        attempt.read_identity(task)  # It may have written it just before it ended.
        stopped_by = attempt.stop_kind()
        if attempt.boot_id != self._dir.boot_id:
            attempt.write_end(task, lost.EXIT_LOST, signal.SIGKILL, reason=NODE_REBOOTED, stopped_by=stopped_by)
        elif task.identity is not None:
            return  # The node's agent ends what it has left, and then writes the end down.
        elif self._is_given_up(attempt, stopped_by):
            self._end_never_started(attempt, task, stopped_by)

    def _is_given_up(self, attempt: Attempt, stopped_by: StopKind) -> bool:
        """Whether a supervisor that has not appeared never will. One that we have asked for does, and ends itself if it must."""
        age_s = time.monotonic() - attempt.created_s
        if attempt.spawns:
            return stopped_by == "node" or age_s >= self._spawn_timeout_s
        return bool(stopped_by) or age_s >= self._start_timeout_s

    def _end_never_started(self, attempt: Attempt, task: Task, stopped_by: StopKind) -> None:
        """There is an intent but no supervisor; one that is only late sees the stop request and starts nothing."""
        if not stopped_by:
            self._request_stop(attempt, "start", self._gang_grace_s, "start-failed")
        attempt.read_identity(task)
        if task.identity is None:
            # That request is this failure's consequence, not its cause; what the controller asked for is.
            code = proc.EXIT_TERMINATED if stopped_by == "controller" else proc.EXIT_CANNOT_START
            attempt.write_end(task, code, start_error=NEVER_STARTED, stopped_by=stopped_by)

    # Stopping and telling

    def _request_stop(self, attempt: Attempt, kind: StopKind, grace_s: float, reason: str) -> None:
        """Ask the supervisors to end the gang. The request is written before anybody's identity is looked for."""
        if not attempt.write_stop(kind, grace_s, reason):
            return
        for task in attempt.live:
            attempt.read_identity(task)
            supervisor = self._dir.supervisor(task)
            if supervisor is not None:
                proc.kill(supervisor, signal.SIGTERM)

    def _tell(self, event: EngineEvent) -> None:
        if self._announce:
            self._events.put(event)

    def _forget(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt.key, None)
        self._nodes.forget(*attempt.key)
        for task in attempt.tasks:
            self._unwatch(task)
