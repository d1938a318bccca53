"""The engine that runs jobs as processes of this machine, on CPU slots, spread over several virtual nodes.

Each task has a supervisor (`runner.py`) of its own that outlives the controller, so nothing here is the truth: the
truth is what the supervisors have written and which processes live (`attempts.py`). All of this module's memory can be
rebuilt from there, and is, whenever an engine starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Literal

from headway.engines import runner
from headway.engines.attempts import COOKIE, Attempt, StateDir, Task, orphans, waited_for
from headway.engines.base import (
    NEVER_STARTED,
    Ended,
    EngineError,
    EngineEvent,
    EngineInvariant,
    EventStream,
    Launch,
    NodeInfo,
    Record,
    Running,
    StaleAttempt,
    Started,
    StopKind,
    TaskLaunch,
    check_launch,
    ended_event,
    gang_outcome,
)
from headway.engines.environment import task_environment

__all__ = ["LocalEngine"]

log = logging.getLogger(__name__)

EXIT_LOST = 128 + signal.SIGKILL
RUNNER_LOST = "runner-lost"
NODE_REBOOTED = "node-rebooted"
ORPHAN_PAUSE_S = 0.02


class LocalEngine:
    """Runs gangs on this machine. `nodes` maps each virtual node's name to its number of slots.

    `home` is what the tasks get as `HEADWAY_HOME`; `base_env` is the environment below theirs (default: this
    process's own, without `HEADWAY_*`). Each node declares `cpus_milli` and `memory_bytes`, or its share of
    the machine (at least a core a slot: a virtual node is for trying things out). `gang_grace_s` is how long
    the rest of a broken gang may take to end; `start_timeout_s` how long a supervisor that another engine has
    started may take to appear; `poll_s` how often is looked at what can't be waited for. `use_pidfd=False`
    polls everything.
    """

    def __init__(
        self,
        state_dir: Path,
        nodes: Mapping[str, int],
        *,
        home: Path | None = None,
        base_env: Mapping[str, str] | None = None,
        gpu_kind: str = "cpu-slot",
        cpus_milli: int | None = None,
        memory_bytes: int | None = None,
        gang_grace_s: float = 5.0,
        start_timeout_s: float = 10.0,
        poll_s: float = 0.2,
        use_pidfd: bool = True,
    ) -> None:
        self._root = Path(os.path.abspath(state_dir))
        self._dir: StateDir
        self._nodes = dict(nodes)
        self._home = Path(os.path.abspath(home)) if home is not None else self._root
        if base_env is None:
            base_env = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        self._base_env = dict(base_env)
        self._gpu_kind = gpu_kind
        self._cpus_milli = cpus_milli
        self._memory_bytes = memory_bytes
        self._gang_grace_s = gang_grace_s
        self._start_timeout_s = start_timeout_s
        self._poll_s = poll_s
        self._use_pidfd = use_pidfd and hasattr(os, "pidfd_open")
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._events = EventStream()
        self._announce = False
        self._sweeper: asyncio.Task[None] | None = None
        self._left: set[int] = set()

    # The engine protocol

    async def start(self) -> None:
        if not sys.platform.startswith("linux"):
            raise EngineError("the local engine needs Linux (/proc, child subreapers)")
        if self._sweeper is not None:
            raise EngineError("the engine has been started already")
        self._dir = StateDir(self._root)
        self._scan()
        for attempt in list(self._attempts.values()):
            self._examine(attempt)
        self._announce = True
        self._sweeper = asyncio.create_task(self._sweep(), name="headway-local-engine-sweep")

    async def close(self) -> None:
        if self._sweeper is None:
            return
        self._sweeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeper
        self._sweeper = None
        self._announce = False
        for attempt in self._attempts.values():
            for task in attempt.tasks:
                self._unwatch(task)
        self._attempts.clear()
        self._events.close()

    async def inventory(self) -> tuple[NodeInfo, ...]:
        share_milli = len(os.sched_getaffinity(0)) * 1000 // max(1, len(self._nodes))
        share_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // max(1, len(self._nodes))
        return tuple(
            NodeInfo(
                name=name,
                gpus=slots,
                gpu_kind=self._gpu_kind,
                cpus_milli=max(share_milli, 1000 * slots) if self._cpus_milli is None else self._cpus_milli,
                memory_bytes=share_bytes if self._memory_bytes is None else self._memory_bytes,
            )
            for name, slots in self._nodes.items()
        )

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
        check_launch(launch, self._nodes)
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
            stopping = runner.stop_path(attempt.path).exists()
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
        home = self._root.joinpath("logs", str(attempt.job), str(attempt.attempt))
        servers = [f"127.0.0.1:{port}" for port in attempt.ports[1:]]
        setup_ranks: dict[str, int] = {}
        for wanted in sorted(launch.tasks, key=lambda task: task.rank):
            if wanted.setup.strip():
                setup_ranks.setdefault(wanted.node, wanted.rank)
        wanted_by_rank = {wanted.rank: wanted for wanted in launch.tasks}
        for task in attempt.tasks:
            wanted = wanted_by_rank[task.rank]
            environment = task_environment(
                launch,
                wanted,
                master_addr="127.0.0.1",
                master_port=attempt.ports[0],
                servers=servers,
                real_gpus=False,
                home=str(self._home),
            )
            environment = {**self._base_env, **environment, COOKIE: self._dir.cookie(attempt, task)}
            try:
                home.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._spawn(attempt, task, wanted, environment, setup_ranks.get(task.node))
            except (OSError, ValueError) as error:
                attempt.write_end(task, runner.EXIT_CANNOT_START, start_error=f"cannot start: {error}")
                return

    def _spawn(
        self,
        attempt: Attempt,
        task: Task,
        wanted: TaskLaunch,
        environment: Mapping[str, str],
        setup_rank: int | None,
    ) -> None:
        spec = {
            "command": wanted.command,
            "setup": wanted.setup,
            "setup_rank": setup_rank,
            "workdir": os.path.abspath(wanted.workdir),
            "checkpoint_dir": environment["HEADWAY_CHECKPOINT_DIR"],
            "env": dict(environment),
        }
        library_path: dict[str, str] = {}
        if "LD_LIBRARY_PATH" in os.environ:
            library_path["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        with contextlib.ExitStack() as opened:
            # The environment may hold secrets: it goes through memory, never through the disk.
            spec_file = opened.enter_context(open(os.memfd_create("headway-task"), "w+b", buffering=0))
            spec_file.write(json.dumps(spec).encode())
            spec_file.seek(0)
            errors = opened.enter_context(open(attempt.path / "runner.err", "ab", buffering=0))
            ready_r, ready_w = os.pipe()
            opened.callback(os.close, ready_w)
            try:
                task.child = os.posix_spawn(
                    sys.executable,
                    [
                        *(sys.executable, "-I", "-S", "-X", "utf8", runner.__file__),
                        *(
                            str(attempt.path),
                            str(task.rank),
                            str(self.log_path(attempt.job, attempt.attempt, task.rank)),
                        ),
                    ],
                    library_path,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, spec_file.fileno(), 0),
                        (os.POSIX_SPAWN_DUP2, ready_w, 1),
                        (os.POSIX_SPAWN_DUP2, errors.fileno(), 2),
                    ],
                    setsid=True,
                    setsigmask=runner.HANDLED,
                )
            except BaseException:
                os.close(ready_r)
                raise
        task.spawned = True
        task.ready_fd = ready_r
        asyncio.get_running_loop().add_reader(ready_r, self._on_ready, attempt, task)
        self._watch(attempt, task)

    # Watching

    def _watch(self, attempt: Attempt, task: Task) -> None:
        """Be told when the supervisor ends. Without pidfds, or with too many open, the sweep looks for it."""
        if task.pidfd >= 0 or not self._use_pidfd:
            return
        pid = task.child or (int(task.identity["pid"]) if task.identity else 0)
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        if not task.child and self._dir.supervisor(task) is None:
            os.close(fd)  # It ended, and the pid may be another's by now.
            return
        task.pidfd = fd
        asyncio.get_running_loop().add_reader(fd, self._on_supervisor_end, attempt, task)

    def _unwatch(self, task: Task) -> None:
        for fd in (task.pidfd, task.ready_fd):
            if fd >= 0:
                asyncio.get_running_loop().remove_reader(fd)
                os.close(fd)
        task.pidfd = task.ready_fd = -1

    def _on_ready(self, attempt: Attempt, task: Task) -> None:
        asyncio.get_running_loop().remove_reader(task.ready_fd)
        os.close(task.ready_fd)
        task.ready_fd = -1
        self._examine(attempt)

    def _on_supervisor_end(self, attempt: Attempt, task: Task) -> None:
        asyncio.get_running_loop().remove_reader(task.pidfd)
        os.close(task.pidfd)
        task.pidfd = -1
        self._dir.supervisor(task)  # Waits for it, if it is our child.
        self._examine(attempt)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            for attempt in list(self._attempts.values()):
                if not attempt.started or any(task.pidfd < 0 for task in attempt.live):
                    self._examine(attempt)
            self._left = {pid for pid in self._left if not waited_for(pid)}

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
            failed = any(task.end is not None and task.end.start_error for task in attempt.tasks)
            if not failed and attempt.stop_kind() != "start":
                self._tell(Started(attempt.job, attempt.attempt))
        live = attempt.live
        if not live:
            ends = [task.end for task in attempt.tasks if task.end is not None]
            started, code, number, after_stop, reason = gang_outcome(ends)
            if after_stop:
                request = runner.read_json(runner.stop_path(attempt.path)) or {}
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
            attempt.write_end(task, EXIT_LOST, signal.SIGKILL, reason=NODE_REBOOTED, stopped_by=stopped_by)
        elif task.identity is not None:
            self._end_lost(attempt, task, stopped_by)
        elif task.spawned:
            error = f"the supervisor died{attempt.supervisor_said()}"
            attempt.write_end(task, runner.EXIT_CANNOT_START, start_error=error)
        elif stopped_by or time.monotonic() - attempt.created_s >= self._start_timeout_s:
            self._end_never_started(attempt, task, stopped_by)

    def _end_lost(self, attempt: Attempt, task: Task, stopped_by: StopKind) -> None:
        """The supervisor is gone without a word: end what it supervised, then say so in its stead."""
        assert task.identity is not None
        left = orphans(task.identity, self._dir.cookie(attempt, task))
        for orphan in left:
            runner.kill(orphan, signal.SIGKILL)
        if left:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().call_later(ORPHAN_PAUSE_S, self._examine, attempt)
            return
        attempt.write_end(task, EXIT_LOST, signal.SIGKILL, reason=RUNNER_LOST, stopped_by=stopped_by)

    def _end_never_started(self, attempt: Attempt, task: Task, stopped_by: StopKind) -> None:
        """There is an intent but no supervisor; one that is only late sees the stop request and starts nothing."""
        if not stopped_by:
            self._request_stop(attempt, "start", self._gang_grace_s, "start-failed")
        attempt.read_identity(task)
        if task.identity is None:
            # That request is this failure's consequence, not its cause; what the controller asked for is.
            code = runner.EXIT_TERMINATED if stopped_by == "controller" else runner.EXIT_CANNOT_START
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
                runner.kill(supervisor, signal.SIGTERM)

    def _tell(self, event: EngineEvent) -> None:
        if self._announce:
            self._events.put(event)

    def _forget(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt.key, None)
        for task in attempt.tasks:
            self._unwatch(task)
            if task.child:
                self._left.add(task.child)  # It has written its last record, and is about to end.
