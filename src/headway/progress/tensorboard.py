"""The TensorBoard event files of one job: found in its directories, told from other jobs' files, and read as they grow.

**Whose file.** The name of an event file holds the process that writes it. While that lives, its environment says which job and
attempt it belongs to. Else a file counts if it was written since the attempt began, and no other job runs in the same working
directory. Several files and writers are read side by side; a tag that comes from several directories is taken from one
(`progress.told`): for the loss one that is not called validation, for the accuracy one that is.

**Cost.** Directories are walked to a bounded depth and number of entries, at intervals that grow with what a walk takes.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.progress.names import MetricNames
from headway.progress.tfevents import NoEventFile, Records, scalars
from headway.progress.told import Source, Told

DEPTH_MAX = 6
ENTRIES_MAX = 5000
FILES_MAX = 64
WALK_S = 10.0
WALK_S_MAX = 600.0
WALK_SHARE = 10_000
"""A walk takes at most one ten-thousandth of the time."""
LAST_WALK_S_MAX = 0.02
"""A walk that takes longer is not made again when the job ends."""
_NAME = re.compile(r"events\.out\.tfevents\.\d+\.(.+)\.(\d+)\.\d+(?:\.v2)?$")
_PASSED_BY = frozenset({"__pycache__", "node_modules", "site-packages", "venv", ".headway"})
_FIRST = ("runs", "lightning_logs", "logs", "log", "tensorboard", "tb", "tb_logs", "output", "outputs")
_VALIDATION = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|evaluation|test)(?:$|[^a-z])", re.IGNORECASE)


@dataclass(slots=True)
class _File:
    path: str
    directory: str
    at: int = 0
    records: Records | None = field(default_factory=Records)
    """None: it can't be read on."""


class EventFiles:
    """All event files of one attempt. `attempt` is (job, attempt); times in seconds of the wall clock."""

    def __init__(
        self, places: Sequence[Path], names: MetricNames, since_s: float, attempt: tuple[int, int], shared: Callable[[], bool]
    ) -> None:
        self._places = [str(place) for place in places]
        self._names, self._since_s, self._attempt, self._shared = names, since_s, attempt, shared
        self._files: dict[str, _File] = {}
        self._others: set[str] = set()
        self._host = socket.gethostname()
        self._walk_at = 0.0
        self._walk_s = 0.0

    def poll(self, budget_bytes: int, out: list[Told], *, now: bool = False) -> int:
        """Read what is new, up to about the budget; returns how many bytes. `now`: the job has ended, look for files at once."""
        if time.monotonic() >= self._walk_at or (now and self._walk_s <= LAST_WALK_S_MAX):
            self._find()
        done = 0
        for file in self._files.values():
            if done >= budget_bytes:
                break
            done += self._read(file, budget_bytes - done, out)
        return done

    def _find(self) -> None:
        began = time.monotonic()
        for path in _walk(self._places):
            if path not in self._files and path not in self._others and len(self._files) < FILES_MAX:
                self._consider(path)
        self._walk_s = time.monotonic() - began
        self._walk_at = began + min(max(WALK_S, WALK_SHARE * self._walk_s), WALK_S_MAX)

    def _consider(self, path: str) -> None:
        named = _NAME.search(os.path.basename(path))
        here = named is not None and named[1] == self._host
        owner = owner_of(int(named[2])) if named is not None and here else None
        if owner is not None and owner != self._attempt:
            self._others.add(path)
            return
        if owner is None:
            try:
                if os.stat(path).st_mtime < self._since_s or self._shared():
                    return
            except OSError:
                return
        self._files[path] = _File(path, os.path.dirname(path))

    def _read(self, file: _File, budget_bytes: int, out: list[Told]) -> int:
        try:
            size = os.stat(file.path).st_size
            if size <= file.at or file.records is None:
                return 0
            with open(file.path, "rb") as opened:
                opened.seek(file.at)
                data = opened.read(budget_bytes)
        except OSError:
            return 0
        file.at += len(data)
        try:
            records = file.records.feed(data)
        except NoEventFile:
            file.records = None
            return len(data)
        validation = _VALIDATION.search(os.path.basename(file.directory)) is not None
        for record in records:
            for tag, step, value in scalars(record):
                if step >= 0:
                    out.append(self._told(tag, step, value, file.directory, validation))
        return len(data)

    def _told(self, tag: str, step: int, value: float, directory: str, validation: bool) -> Told:
        role = self._names.role(tag) or self._names.role(tag.rpartition("/")[2])
        plain = Told(Source.TENSORBOARD, step=step, writer=directory)
        if role is not None and role[0] == "loss":
            order = role[1] + 1000 * validation
            return plain._replace(loss=value, loss_order=order, step_order=order)
        if role is not None and role[0] == "accuracy":
            return plain._replace(accuracy=value, accuracy_order=role[1] + 1000 * (not validation), step_order=2000)
        if role is not None and role[0] == "epoch":
            return plain._replace(epoch=value, step_order=3000)
        return plain._replace(step_order=4000, other=((tag[:100], value),))


def owner_of(pid: int) -> tuple[int, int] | None:
    """The job and the attempt that a process of this machine belongs to, as its environment says; (−1, 0) for one of no job,
    None if that can't be told."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(1 << 20)
    except OSError:
        return None
    pairs = {name: value for name, _, value in (item.partition(b"=") for item in text.split(b"\0"))}
    try:
        return int(pairs[b"HEADWAY_JOB"]), int(pairs[b"HEADWAY_ATTEMPT"])
    except (KeyError, ValueError):
        return -1, 0


def _walk(places: Sequence[str]) -> Iterator[str]:
    """Event files below some directories, where they usually are first; bounded."""
    waiting = [(place, 0) for place in dict.fromkeys(places)]
    seen: set[str] = set()
    entries = 0
    while waiting and entries < ENTRIES_MAX:
        place, depth = waiting.pop(0)
        if place in seen:
            continue
        seen.add(place)
        found: list[tuple[str, int]] = []
        try:
            with os.scandir(place) as listing:
                for entry in listing:
                    entries += 1
                    if entries >= ENTRIES_MAX:
                        break
                    if "tfevents" in entry.name and entry.is_file(follow_symlinks=False):
                        yield entry.path
                    elif depth < DEPTH_MAX and entry.name not in _PASSED_BY and not entry.name.startswith("."):
                        if entry.is_dir(follow_symlinks=False):
                            found.append((entry.path, depth + 1))
        except OSError:
            continue
        named = [one for one in found if os.path.basename(one[0]) in _FIRST]
        waiting = named + waiting + sorted(one for one in found if one not in named)
