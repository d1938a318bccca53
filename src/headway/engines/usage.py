"""What the tasks of one node use: processor time by cgroup or by /proc, memory, and GPUs by NVML.

A sample is a difference: a task has figures from its second sample on. The standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import cgroup
from .nvml import Nvml, NvmlError
from .proc import Process, processes

TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Task(NamedTuple):
    """One live task, as it is measured. `root` is the pid of its supervisor; `gpus` are its slots on the node."""

    job: int
    attempt: int
    rank: int
    root: int
    group: str
    gpus: tuple[int, ...]


class Sampler:
    """Takes samples of a node's tasks. `devices` are the UUIDs of its GPUs by slot; none where slots stand for cores."""

    def __init__(self, devices: Sequence[str], nvml: Nvml | None) -> None:
        self._devices = tuple(devices)
        self.nvml = nvml
        self._before: dict[tuple[int, int, int], tuple[float, int]] = {}

    def sample(self, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """The figures of all tasks that have been seen before, since then."""
        now_s = time.monotonic()
        below = _children(processes()) if tasks else {}
        after: dict[tuple[int, int, int], tuple[float, int]] = {}
        found: list[dict[str, Any]] = []
        for task in tasks:
            key = task.job, task.attempt, task.rank
            pids = _tree(below, task.root)
            used_us = cgroup.cpu_us(task.group)
            if used_us is None:
                used_us = sum(map(_cpu_us, pids))
            before = self._before.get(key)
            after[key] = now_s, used_us
            if before is None or now_s <= before[0]:
                continue
            memory = cgroup.memory_bytes(task.group)
            cpus_milli = max(int((used_us - before[1]) / (now_s - before[0]) / 1000), 0)
            found.append(
                {
                    "job": task.job,
                    "attempt": task.attempt,
                    "rank": task.rank,
                    "gpu_milli": self._gpu_milli(task.gpus, cpus_milli),
                    "cpus_milli": cpus_milli,
                    "memory_bytes": sum(map(_resident_bytes, pids[1:])) if memory is None else memory,
                }
            )
        self._before = after
        return found

    def _gpu_milli(self, slots: Sequence[int], cpus_milli: int) -> int:
        """How busy a task's GPUs are, summed; a slot without a GPU is as busy as the cores that stand for it."""
        if not self._devices:
            return min(cpus_milli, 1000 * len(slots))
        busy = 0
        for slot in slots:
            try:
                busy += self.nvml.use(self._devices[slot]).busy_milli if self.nvml else 0
            except (NvmlError, IndexError):
                continue
        return busy


def _children(all_of_them: Sequence[Process]) -> dict[int, list[Process]]:
    below: dict[int, list[Process]] = {}
    for one in all_of_them:  # Zombies too: what they have used is still theirs.
        below.setdefault(one.ppid, []).append(one)
    return below


def _tree(below: Mapping[int, list[Process]], root: int) -> list[int]:
    """The pids of a process and of everything below it, that one first."""
    found = [root]
    for pid in found:
        found += [one.pid for one in below.get(pid, ())]
    return found


def _cpu_us(pid: int) -> int:
    """Processor time of a process and of the children that it has waited for, µs.

    Summed over a tree it only grows: what a process that ends has used goes over to whoever waits for it.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            rest = file.read().rsplit(b")", 1)[1].split()
        return sum(int(word) for word in rest[11:15]) * TICK_US
    except (OSError, IndexError):
        return 0


def _resident_bytes(pid: int) -> int:
    """Memory of a process that is its own: what it shares with others is counted at none."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            words = file.read().split()
        return max(int(words[1]) - int(words[2]), 0) * PAGE_BYTES
    except (OSError, IndexError):
        return 0
