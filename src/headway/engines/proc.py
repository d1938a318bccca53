"""Processes by their true names, and small files that are written whole: what supervisor, agent and engine share.

The standard library only. A process is known by pid, start time and boot, so that a later one with the same pid is never
taken for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from . import cgroup

SCHEMA_VERSION = 1
EXIT_CANNOT_START = 126
EXIT_TERMINATED = 128 + signal.SIGTERM


class Process(NamedTuple):
    """One line of /proc: `start_ticks` since boot makes a pid unmistakable."""

    pid: int
    state: str
    ppid: int
    pgrp: int
    session: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def process(pid: int) -> Process | None:
    """The process with this pid, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    # The command's name, in brackets, may itself hold brackets and blanks: the last bracket ends it.
    rest = text[text.rindex(")") + 2 :].split()
    return Process(pid, rest[0], int(rest[1]), int(rest[2]), int(rest[3]), int(rest[19]))


def processes() -> list[Process]:
    """All processes that can be seen."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [one for one in found if one is not None]


def kill(target: Process, number: int) -> None:
    """Send a signal to exactly this process: a later one with the same pid is spared."""
    try:
        fd = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return
    except OSError:
        fd = -1  # No pidfds here, or no more of them: look, and be quick.
    try:
        now = process(target.pid)
        if now is None or now.start_ticks != target.start_ticks:
            return
        with contextlib.suppress(OSError):
            if fd >= 0:
                signal.pidfd_send_signal(fd, number)
            else:
                os.kill(target.pid, number)
    finally:
        if fd >= 0:
            os.close(fd)


def descendants(root: int) -> list[Process]:
    """All living processes below this one."""
    children: dict[int, list[Process]] = {}
    for one in processes():
        children.setdefault(one.ppid, []).append(one)
    found: list[Process] = []
    todo = [root]
    while todo:
        below = children.pop(todo.pop(), [])
        found += [one for one in below if one.alive]
        todo += [one.pid for one in below]
    return found


def boot_id() -> str:
    """The name of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is none, or it was torn by a loss of power."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: dict[str, Any], *, durable: bool = False) -> None:
    """Replace a file whole. `durable`: it is still there after a loss of power, and so is its directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(value, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        for directory in (path.parent, path.parent.parent):
            sync(directory)


def sync(path: Path) -> None:
    """Make what has been written to a file or directory survive a loss of power."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def identity_path(attempt_dir: Path, rank: int) -> Path:
    return attempt_dir / f"{rank}.json"


def exit_path(attempt_dir: Path, rank: int) -> Path:
    return attempt_dir / f"{rank}.exit.json"


def stop_path(attempt_dir: Path) -> Path:
    return attempt_dir / "stop.json"


def exit_record(
    rank: int,
    exit_code: int = 0,
    *,
    signal_number: int | None = None,
    stopped_by: str = "",
    reason: str = "",
    start_error: str = "",
) -> dict[str, Any]:
    """What `RANK.exit.json` holds. `stopped_by` is the kind of the stop request that came before the end, or
    empty.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "rank": rank,
        "exit_code": exit_code,
        "signal": signal_number,
        "stopped_by": stopped_by,
        "reason": reason,
        "start_error": start_error,
        "ended_at_s": time.time(),
    }


COOKIE = "HEADWAY_TASK_ID"
"""In the environment of every task: finds what a task has left behind when its supervisor is gone."""


def newest_epoch(root: Path) -> int:
    """The newest epoch that a state directory knows; -1 if it knows none."""
    try:
        return max((int(name) for name in os.listdir(root / "epochs") if name.isdigit()), default=-1)
    except OSError:
        return -1


def node_dir(root: Path, node: str) -> Path:
    """Where a node's agent keeps its socket and says who it is. Names of any kind make one folder."""
    plain = "".join(one if (one.isalnum() and one.isascii()) or one in "-_" else f"%{ord(one):x}." for one in node)
    return root / "nodes" / (plain or "%")


def attempts_in(root: Path) -> list[tuple[int, int, Path]]:
    """(job, attempt, directory) of all attempts that are not acknowledged, in order."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(root / "attempts"):
            job, _, number = name.partition(".")
            if job.isdigit() and number.isdigit():
                found.append((int(job), int(number), root / "attempts" / name))
    return sorted(found)


def cookie(engine_id: str, job: int, attempt: int, rank: int) -> str:
    """What marks a task's processes in their environment."""
    return f"{engine_id}/{job}.{attempt}.{rank}"


def supervisor_said(attempt_dir: Path) -> str:
    """The last line that a supervisor has written about itself, after a colon; or nothing."""
    with contextlib.suppress(OSError):
        lines = (attempt_dir / "runner.err").read_text("utf-8", "replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f": {said[-1][:200]}" if said else ""
    return ""


def lives(pid: int, start_ticks: int) -> Process | None:
    """The process that was started then with this pid, if it lives."""
    found = process(pid)
    return found if found is not None and found.start_ticks == start_ticks and found.alive else None


def supervisor_of(identity: dict[str, Any], boot: str) -> Process | None:
    """The supervisor that an identity record names, if it lives."""
    if identity.get("boot_id") != boot:
        return None
    return lives(int(identity["pid"]), int(identity["start_ticks"]))


def orphans(identity: dict[str, Any], cookie: str) -> list[Process]:
    """What lives of a task whose supervisor doesn't: in its cgroup, in the command's session, or marked by its environment."""
    mark = f"{COOKIE}={cookie}".encode()
    group = set(cgroup.members(str(identity.get("cgroup", ""))))
    leader_pid = int(identity["task_pid"])
    leader = process(leader_pid) if leader_pid else None
    # Without its leader, a session's number may have been given to strangers.
    session = leader is not None and leader.start_ticks == identity["task_start_ticks"]
    found = []
    for one in processes():
        if not one.alive:
            continue
        if one.pid in group or (session and leader_pid in (one.session, one.pgrp)):
            found.append(one)
            continue
        with contextlib.suppress(OSError), open(f"/proc/{one.pid}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                found.append(one)
    return found
