"""A control group (cgroup v2) for each task, where the system allows it: limits, figures, and a kill that nothing escapes.

    BASE/headway-processes/                      controller and agents, where BASE may have no processes itself
    BASE/headway-ENGINE.NODE/                    one node's; the controllers that exist are handed on to its children
    BASE/headway-ENGINE.NODE/JOB.ATTEMPT.RANK/   one task

BASE is the group that the agent was started in: a systemd unit with `Delegate=yes`, or the root of the hierarchy. Below a group
that has processes nothing can be limited; so, if the group was delegated to us, those move into one of their own. What isn't
allowed is left out: without a group, sessions and the child subreaper do the work, and there are no limits.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

PERIOD_US = 100_000
"""The period of `cpu.max`: the kernel's own default."""
CPUS_MILLI_LEAST = 1000
"""No task is held below one core: its threads would only wait for each other."""
CONTROLLERS = ("cpu", "memory", "pids")
PROCESSES = "headway-processes"
DELEGATED = ("user.delegate", "trusted.delegate")
"""How systemd marks a group that it has handed over."""
REMOVE_TRIES = 20
REMOVE_PAUSE_S = 0.005


class Groups:
    """The groups of one node's tasks. `root` is None where there are none; `why` then says why."""

    def __init__(self, root: Path | None, controllers: frozenset[str], why: str) -> None:
        self.root = root
        self.controllers = controllers
        self.why = why

    def make(self, name: str, cpus_milli: int, memory_bytes: int) -> str:
        """A group for one task, with its limits (0: none), and its path; empty where there are no groups.

        Raises `OSError` if a limit that should hold can't be set: it fails closed.
        """
        if self.root is None:
            return ""
        path = Path(self.path(name))
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        if "memory" in self.controllers and memory_bytes > 0:
            _write(path / "memory.max", str(memory_bytes))
            _write(path / "memory.oom.group", "1")  # A gang with a hole in it is of no use.
        if "cpu" in self.controllers and cpus_milli > 0:
            quota_us = max(cpus_milli, CPUS_MILLI_LEAST) * PERIOD_US // 1000
            _write(path / "cpu.max", f"{quota_us} {PERIOD_US}")
        return str(path)

    def path(self, name: str) -> str:
        """Where a task's group is; empty where there are no groups."""
        return str(self.root / name) if self.root is not None else ""

    def sweep(self, live: Collection[str]) -> None:
        """Take away what groups are left of tasks that are over. `live` are the names of those that aren't."""
        if self.root is None:
            return
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.root):
                if entry.is_dir(follow_symlinks=False) and entry.name not in live:
                    remove(entry.path, tries=1)  # Only an empty one can be.

    def close(self) -> None:
        """Take away what is empty."""
        self.sweep(())
        if self.root is not None:
            remove(str(self.root), tries=1)

    def limits(self) -> str:
        """What is limited, for people."""
        held = [word for controller, word in (("memory", "memory"), ("cpu", "cpus")) if controller in self.controllers]
        if self.root is None:
            return f"no cgroups ({self.why}): tasks have no memory or cpu limits"
        return f"cgroups limit {' and '.join(held)}" if held else f"cgroups without limits ({self.why})"


def find_groups(name: str, *, mounts: str = "/proc/self/mounts", own: str = "/proc/self/cgroup") -> Groups:
    """Make this node's group below the one that we are in, and hand on the controllers that there are."""
    nothing: frozenset[str] = frozenset()
    try:
        base = _own_group(Path(mounts).read_text("utf-8", "replace"), Path(own).read_text("utf-8", "replace"))
        if base is None:
            return Groups(None, nothing, "cgroup v2 isn't mounted")
        root = base / name
        root.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        return Groups(None, nothing, f"{error.strerror or error}")
    offered = set(_words(base / "cgroup.controllers")) & set(CONTROLLERS)
    for where in (base, root):
        missing = [one for one in sorted(offered) if one not in _words(where / "cgroup.subtree_control")]
        if missing and where == base and _is_delegated(base):
            _make_room(base)
        for controller in missing:
            with contextlib.suppress(OSError):
                _write(where / "cgroup.subtree_control", f"+{controller}")
    held = frozenset(_words(root / "cgroup.subtree_control"))
    lacking = [one for one in ("cpu", "memory") if one not in held]
    return Groups(root, held, f"{' and '.join(lacking)} not delegated" if lacking else "")


def _own_group(mounts: str, own: str) -> Path | None:
    """The directory of the group that this process is in: above it nothing is ours."""
    mounted = [line.split()[1] for line in mounts.splitlines() if len(line.split()) > 2 and line.split()[2] == "cgroup2"]
    group = next((line[3:] for line in own.splitlines() if line.startswith("0::")), None)
    if not mounted or group is None:
        return None
    place = mounted[0].encode().decode("unicode_escape")  # Blanks are written as \040.
    found = Path(place, group.removesuffix(" (deleted)").lstrip("/"))
    return found.parent if found.name == PROCESSES else found


def _is_delegated(base: Path) -> bool:
    for name in DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(base, name) == b"1":
                return True
    return False


def _make_room(base: Path) -> None:
    """Move all processes of a delegated group, which are ours, into a group of their own."""
    with contextlib.suppress(OSError):
        (base / PROCESSES).mkdir(mode=0o755, exist_ok=True)
        for pid in members(str(base)):
            with contextlib.suppress(OSError):
                _write(base / PROCESSES / "cgroup.procs", str(pid))


def enter(group: str) -> None:
    """Put this very process into a group."""
    if group:
        _write(Path(group, "cgroup.procs"), "0")


def members(group: str) -> list[int]:
    """The pids in a group; none if it has gone."""
    return [int(word) for word in _words(Path(group, "cgroup.procs")) if word.isdigit() and word != "0"] if group else []


def kill(group: str) -> None:
    """Kill everything in a group at once, also what forks meanwhile."""
    if group:
        with contextlib.suppress(OSError):
            _write(Path(group, "cgroup.kill"), "1")


def out_of_memory(group: str) -> bool:
    """Whether the kernel has killed something in this group because of its limit."""
    return _field(group, "memory.events", "oom_kill") > 0


def cpu_us(group: str) -> int | None:
    """Microseconds of processor time that the group has used."""
    found = _field(group, "cpu.stat", "usage_usec") if group else -1
    return found if found >= 0 else None


def memory_bytes(group: str) -> int | None:
    """Bytes that the group uses now; None where the memory controller isn't there."""
    words = _words(Path(group, "memory.current")) if group else []
    return int(words[0]) if words and words[0].isdigit() else None


def remove(group: str, tries: int = REMOVE_TRIES) -> None:
    """Take an empty group away. What has just died in it may still be on its way out."""
    if not group:
        return
    for _ in range(tries):
        try:
            os.rmdir(group)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(REMOVE_PAUSE_S)


def _field(group: str, file: str, key: str) -> int:
    words = _words(Path(group, file)) if group else []
    for name, value in zip(words[::2], words[1::2], strict=False):
        if name == key and value.isdigit():
            return int(value)
    return -1


def _words(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", "replace").split()
    except OSError:
        return []


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
