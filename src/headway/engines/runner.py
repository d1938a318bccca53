"""The supervisor of one task: a small process of its own that outlives the controller.

Forked by the node's agent, in a session of its own, with the task: `command`, `setup`, `setup_rank` (whose task runs the set-up
for this node), `workdir`, `checkpoint_dir`, `env`, and perhaps `cgroup` (the task's own group) and `account` (uid, gid, groups
to run as). Without an exec it starts in a few milliseconds, shares its memory with the agent, and has all of its code already:
an upgrade can't break a task that runs or starts.

What it promises:

* A task has one supervisor, ever: it locks `RANK.lock` for as long as it lives, and does nothing where another has begun. So
  whoever isn't sure that a start has been carried out may ask for it again.
* Before the task's first instruction, `RANK.json` names runner and task by pid, start time and boot. The task
  waits, forked but not yet executed, until that file is in place; so nothing ever runs unknown.
* It looks for `stop.json` after `RANK.json` is written and before it lets the task go. Whoever wants the task
  not to start writes `stop.json` first and looks for `RANK.json` after; one of the two sees the other.
* The output goes straight from the task to the log: as the bytes come, no pump that could lose the last line.
* As a child subreaper it adopts everything that the task leaves behind, however it was detached. The task has
  ended only when all of that is gone; only then is `RANK.exit.json` written, durably, and written again until
  it succeeds: with room that was set aside at the start if the disk is full.
* No signal but SIGKILL ends it. Standard output is closed once the task runs, which tells whoever started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from . import accounts, cgroup
from .proc import (
    EXIT_CANNOT_START,
    EXIT_TERMINATED,
    SCHEMA_VERSION,
    boot_id,
    descendants,
    exit_path,
    exit_record,
    identity_path,
    kill,
    process,
    read_json,
    stop_path,
    sync,
    write_json,
)

HANDLED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Blocked, and waited for instead; SIGTERM also means: look at `stop.json` now."""

PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 1.0
"""How often `stop.json` is looked at without a signal, in seconds."""
LINGER_S = 1.0
"""How long what a finished task left behind may take to end after SIGTERM, in seconds."""
KILL_AGAIN_S = 0.02
RETRY_S = 0.5
RESERVE_BYTES = 16 * 1024
"""Set aside on the disk at the start, and given back when the exit record finds it full."""
OUT_OF_MEMORY = "out-of-memory"
EXIT_NOT_OURS = 3
"""This process's exit code where another supervisor has the task, or has had it."""


class CannotStart(Exception):
    """The task's process could not be made, or could not become the command."""


class Runner:
    """Supervises the task: perhaps a set-up, then the command."""

    def __init__(self, attempt_dir: Path, rank: int, log: Path, task: dict[str, Any]) -> None:
        self.attempt_dir = attempt_dir
        self.rank = rank
        self.log = log
        self.task = task
        self.boot_id = boot_id()
        self.cgroup = str(task.get("cgroup", ""))
        self.started = False
        self.stopped_by = ""
        self.deadline_s: float | None = None

    # The course of a task

    def run(self) -> None:
        try:
            self.set_aside()
            record = self.course()
        except CannotStart as error:
            if self.started:
                record = exit_record(self.rank, EXIT_CANNOT_START, reason=f"cannot-start: {error}")
            else:
                record = exit_record(self.rank, EXIT_CANNOT_START, start_error=str(error))
        cgroup.remove(self.cgroup)
        self.finish(record)

    @property
    def reserve_path(self) -> Path:
        return self.attempt_dir / f"{self.rank}.reserve"

    def set_aside(self) -> None:
        try:
            fd = os.open(self.reserve_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, bytes(RESERVE_BYTES))
            finally:
                os.close(fd)
        except FileNotFoundError:
            return  # The attempt has been given up: nothing will start.
        except OSError as error:
            raise CannotStart(str(error)) from error

    def course(self) -> dict[str, Any]:
        if not str(self.task["command"]).strip():
            raise CannotStart("the command is empty")
        if not os.path.isdir(self.task["workdir"]):
            raise CannotStart(f"no such directory: {self.task['workdir']}")
        if self.task["setup_rank"] is not None:
            leads = self.task["setup_rank"] == self.rank
            status = self.lead_setup() if leads else self.await_setup()
            if status is None:
                return self.stopped_before_start()
            if status != 0:
                return self.ended(status, reason="setup-failed")
        main = self.begin(self.task["command"])
        if main is None:
            return self.stopped_before_start()
        return self.ended(self.supervise(main))

    @property
    def setup_path(self) -> Path:
        return self.attempt_dir / f"setup.{self.task['setup_rank']}.json"

    def lead_setup(self) -> int | None:
        main = self.begin(self.task["setup"])
        if main is None:
            return None
        status = self.supervise(main)
        if self.stopped_by:
            return None
        write_json(self.setup_path, {"schema_version": SCHEMA_VERSION, "wait_status": status})
        return status

    def await_setup(self) -> int | None:
        """Wait for the set-up of the node's first task. A set-up that fails isn't this task's failure."""
        self.write_identity(None)
        while (done := read_json(self.setup_path)) is None or done["wait_status"] != 0:
            if self.look():
                return None
            signal.sigtimedwait(HANDLED, 0.05)
        return 0

    def stopped_before_start(self) -> dict[str, Any]:
        return exit_record(self.rank, EXIT_TERMINATED, signal_number=signal.SIGTERM, stopped_by=self.stopped_by)

    def ended(self, wait_status: int, reason: str = "") -> dict[str, Any]:
        code = os.waitstatus_to_exitcode(wait_status)
        number = -code if code < 0 else None
        if code != 0 and not self.stopped_by and cgroup.out_of_memory(self.cgroup):
            reason = reason or OUT_OF_MEMORY
        return exit_record(
            self.rank,
            code if number is None else 128 + number,
            signal_number=number,
            stopped_by=self.stopped_by,
            reason=reason,
        )

    def finish(self, record: dict[str, Any]) -> None:
        """Write the exit record, however long it takes: a full disk must not turn an end into a loss."""
        while True:
            try:
                sync(self.attempt_dir / "launch.json")  # Without the intent, the end says nothing.
                write_json(exit_path(self.attempt_dir, self.rank), record, durable=True)
                self.reserve_path.unlink(missing_ok=True)
                return
            except FileNotFoundError:
                return  # The attempt has been given up and forgotten: nobody waits for this record.
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT) and self.reserve_path.exists():
                    self.reserve_path.unlink()
                    continue
                with contextlib.suppress(OSError):
                    sys.stderr.write(f"rank {self.rank}: {error}\n")
                time.sleep(RETRY_S)

    # Starting

    def begin(self, command: str) -> int | None:
        """Start a command in a session of its own; its pid, or None if a stop request came first."""
        ready_r, ready_w = os.pipe()
        go_r, go_w = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            raise CannotStart(f"cannot fork: {error}") from error
        if pid == 0:
            os.close(ready_r)
            os.close(go_w)
            self.become(command, ready_w, go_r)
        os.close(ready_w)
        os.close(go_r)
        try:
            said = os.read(ready_r, 4096)
            if said != b"+":
                self.reap_child(pid)
                raise CannotStart(said.decode("utf-8", "replace") or "the process died before it began")
            self.write_identity(pid)
            if self.look():
                os.close(go_w)
                go_w = -1
                self.reap_child(pid)
                return None
            os.write(go_w, b"+")
            said = os.read(ready_r, 4096)  # Closed by a successful exec.
            if said:
                self.reap_child(pid)
                raise CannotStart(said.decode("utf-8", "replace"))
        finally:
            os.close(ready_r)
            if go_w >= 0:
                os.close(go_w)
        self.tell_started()
        return pid

    def reap_child(self, pid: int) -> None:
        os.waitpid(pid, 0)

    def become(self, command: str, ready_w: int, go_r: int) -> NoReturn:
        """In the child: become the command, once the parent has written down who we are."""
        try:
            os.setsid()
            # Python ignores some signals, and a controller may: what is ignored would stay so in the command.
            for number in (*HANDLED, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDWR)
            log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(null, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            cgroup.enter(self.cgroup)
            if self.task.get("account"):
                accounts.become(*self.task["account"])
            os.chdir(self.task["workdir"])
            if self.task["checkpoint_dir"]:
                os.makedirs(self.task["checkpoint_dir"], exist_ok=True)
            os.write(ready_w, b"+")
            if os.read(go_r, 1) != b"+":
                os._exit(EXIT_TERMINATED)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execve("/bin/sh", ["/bin/sh", "-c", command], self.task["env"])
        except BaseException as error:
            os.write(ready_w, str(error).encode("utf-8", "replace")[:4096] or b"unknown error")
        finally:
            os._exit(EXIT_CANNOT_START)

    def write_identity(self, task_pid: int | None) -> None:
        me = process(os.getpid())
        task = process(task_pid) if task_pid else None
        assert me is not None
        try:
            write_json(
                identity_path(self.attempt_dir, self.rank),
                {
                    "schema_version": SCHEMA_VERSION,
                    "boot_id": self.boot_id,
                    "pid": me.pid,
                    "start_ticks": me.start_ticks,
                    "task_pid": task.pid if task else 0,
                    "task_start_ticks": task.start_ticks if task else 0,
                    "cgroup": self.cgroup,
                    "started_at_s": time.time(),
                },
            )
        except OSError as error:
            raise CannotStart(str(error)) from error
        if task_pid is None:
            self.tell_started()

    def tell_started(self) -> None:
        if not self.started:
            self.started = True
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.close(null)

    # Running and stopping

    def look(self) -> bool:
        """Whether a stop has been requested; takes the earliest deadline that has been asked for."""
        request = read_json(stop_path(self.attempt_dir))
        if request is not None:
            self.stopped_by = str(request["kind"])
            asked_s = float(request["deadline_s"])
            self.deadline_s = asked_s if self.deadline_s is None else min(self.deadline_s, asked_s)
        return bool(self.stopped_by)

    def supervise(self, main: int) -> int:
        """Wait until the command and all that it left behind are gone; the command's wait status.

        `stopped_by` stays empty if the command ended before it could be asked to.
        """
        status: int | None = None
        linger_until_s: float | None = None
        kill_pause_s = KILL_AGAIN_S
        asked = strays_told = False
        while True:
            while True:
                try:
                    pid, one = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    assert status is not None
                    return status
                if pid == 0:
                    break
                if pid == main:
                    status = one
            now_s = time.monotonic()
            if linger_until_s is None and not asked:
                if status is None:
                    if asked := self.look():
                        self.terminate_group(main)
                else:
                    linger_until_s = now_s + LINGER_S
                    for left in descendants(os.getpid()):
                        kill(left, signal.SIGTERM)
            elif asked:
                self.look()
                if status is not None and not strays_told:
                    # The group has had its SIGTERM, and may be saving. What left the group has not.
                    strays_told = True
                    for left in descendants(os.getpid()):
                        if left.pgrp != main:
                            kill(left, signal.SIGTERM)
            until_s = self.deadline_s if asked else linger_until_s
            pause_s = LOOK_S
            if until_s is not None:
                if now_s >= until_s:
                    # Again and again: what forks while it is being killed is found the next time. What hangs
                    # in the kernel keeps its place until it goes.
                    cgroup.kill(self.cgroup)
                    for left in descendants(os.getpid()):
                        kill(left, signal.SIGKILL)
                    pause_s = kill_pause_s
                    kill_pause_s = min(kill_pause_s * 1.5, LOOK_S)
                else:
                    pause_s = min(pause_s, until_s - now_s)
            signal.sigtimedwait(HANDLED, pause_s)

    def terminate_group(self, main: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(main, signal.SIGTERM)
            os.killpg(main, signal.SIGCONT)  # One that is suspended can't save its checkpoint.


def is_the_one(attempt_dir: Path, rank: int) -> bool:
    """Take the task's lock, for as long as this process lives. False if another has it, or has had it."""
    try:
        fd = os.open(attempt_dir / f"{rank}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # Also where the attempt has been given up and its directory has gone.
    return not identity_path(attempt_dir, rank).exists() and not exit_path(attempt_dir, rank).exists()


def run(attempt_dir: Path, rank: int, log: Path, task: dict[str, Any]) -> NoReturn:
    """Be the supervisor of this task, in a process of one's own whose standard output and error are meant for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    code = 1
    try:
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)  # What is ignored can't be waited for, nor its exit code fetched.
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(name))  # Whatever the agent has open is none of the task's business.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become a child subreaper")
        libc.prctl(PR_SET_NAME, b"headway-task", 0, 0, 0)
        if is_the_one(attempt_dir, rank):
            Runner(attempt_dir, rank, log, task).run()
            code = 0
        else:
            code = EXIT_NOT_OURS
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)
