"""Checkpoints that are whole or not there, never overwritten by an older step, and found again by the next attempt.

**Markers.** For every durable checkpoint there is a small file `.headway/NAME.json` in the checkpoint directory (beside the
path, where there is none): step, path, size, and whose it is. It is written last, so a checkpoint without one is not trusted:
a process killed in between leaves the one before as the newest. A checkpoint whose size is not what its marker says is torn;
`resume_from` forgets its marker and goes on to the one before.

**Order in `saving`.** Write to a temporary path · fsync all of it · rename · fsync the directory · write the marker (temporary
file, fsync, rename) · remove what is older than the last `keep`. Every prefix of this leaves a durable checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from headway.job.sending import SENDER, whole
from headway.job.stopping import cooperates
from headway.job.task import TASK

MARKERS = ".headway"
KEEP = 2


class StepRegression(ValueError):
    """A checkpoint of an older step would take the place of a newer one."""


class Checkpoint(NamedTuple):
    """A durable checkpoint: `step` units of work are in it."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class Marker:
    """What is known of one durable checkpoint."""

    step: int
    path: str
    """Relative to the directory that `.headway` lies in, if it is inside."""
    size_bytes: int
    """Of all its files; -1: not a path of this machine."""
    owner: str
    part: int | None = None
    kept: bool = False
    """Made by `saving`, and removed by it when it has become old."""
    t: float = 0.0


def checkpoint_saved(step: int, path: str | os.PathLike[str]) -> None:
    """Tell that the checkpoint at `path` (file, directory, or URL) holds `step` units of work and is durable.

    Raises:
        StepRegression: `path` already held a newer checkpoint of this job. What is in it now is what the script has written.
        FileNotFoundError: nothing is at `path`.
    """
    if not TASK.in_headway:
        return
    cooperates()
    steps = _steps(step)
    place = os.fspath(path) if "://" in os.fspath(path) else os.path.abspath(path)
    base = _base(TASK.checkpoint_dir or os.path.dirname(place))
    known = _read(base, _marker_name(base, place))
    if known is not None and known.owner == TASK.owner and known.step > steps:
        raise StepRegression(f"{place} holds step {known.step}: it must not be replaced by step {steps}")
    size = -1 if "://" in place else _size_bytes(place)
    if size is None:
        raise FileNotFoundError(f"there is no checkpoint at {place}")
    _mark(base, place, Marker(steps, _inside(base, place), size, TASK.owner, t=time.time()))
    SENDER.tell({"saved": place, "step": steps})


@contextlib.contextmanager
def saving(
    step: int, *, directory: str | os.PathLike[str] | None = None, keep: int = KEEP, part: int | None = None, parts: int = 1
) -> Iterator[Path]:
    """Save a checkpoint: the block writes a file, or makes a directory, at the path it is given.

    When it ends, the checkpoint is made durable as `step-00000120` in the job's checkpoint directory (or `directory`), the
    last `keep` stay, and the controller is told. If the block raises, nothing has happened. Where there is no directory, the
    checkpoint is thrown away. Of a step that is durable already, the durable one stays.

    For a model whose ranks save their own parts: `part=rank, parts=n` in each; the controller is told when all n are there.

    Raises:
        StepRegression: a newer step of this job is durable there.
    """
    steps = _steps(step)
    base = os.fspath(directory) if directory is not None else TASK.checkpoint_dir
    if not base:
        with tempfile.TemporaryDirectory(prefix="headway-") as away:
            if TASK.in_headway:
                sys.stderr.write("headway: the job has no checkpoint.dir: nothing is kept of what it saves\n")
            yield Path(away, "checkpoint")
        return
    cooperates()
    base = _base(base)
    os.makedirs(base, exist_ok=True)
    newest = max((marker.step for marker in _own(base) if marker.part == part and _whole(base, marker)), default=-1)
    if newest > steps:
        raise StepRegression(f"{base} holds step {newest}: step {steps} is older")
    name = f"step-{steps:08d}" + ("" if part is None else f"-part-{part:05d}")
    known = _read(base, _marker_name(base, os.path.join(base, name)))
    if known is not None and known.owner != TASK.owner and _whole(base, known):
        name += f"-{_short_owner()}"  # it is another job's
        known = _read(base, _marker_name(base, os.path.join(base, name)))
    durable = known is not None and known.owner == TASK.owner and known.step == steps and _whole(base, known)
    final = os.path.join(base, name)
    partial = os.path.join(base, _partial_name(name))
    _remove(partial)
    try:
        yield Path(partial)
        if not os.path.lexists(partial):
            raise FileNotFoundError(f"the block has written nothing at {partial}")
        if not durable:
            fsync_all(partial)
            _replace(partial, final)
            _fsync(base)
            size = _size_bytes(final)
            _mark(base, final, Marker(steps, name, -1 if size is None else size, TASK.owner, part, True, time.time()))
    finally:
        _remove(partial)
    _prune(base, part, keep)
    _sweep(base)
    if TASK.in_headway and (part is None or _all_parts(base, steps, parts)):
        SENDER.tell({"saved": final if part is None else base, "step": steps})


def resume_from(*, directory: str | os.PathLike[str] | None = None, part: int | None = None, parts: int = 1) -> Checkpoint | None:
    """The newest durable checkpoint of this job, of whichever attempt; None if there is none.

    With `part` and `parts` as in `saving`: this part of the newest step of which all parts are there.
    """
    cooperates()
    base = os.fspath(directory) if directory is not None else TASK.checkpoint_dir
    found: list[Checkpoint] = []
    if base:
        base = _base(base)
        sound = [marker for marker in _own(base) if _whole_or_forgotten(base, marker)]
        for marker in sound:
            mine = marker.part == part
            if mine and (part is None or len({m.part for m in sound if m.step == marker.step and m.part is not None}) >= parts):
                found.append(Checkpoint(marker.step, Path(base, marker.path)))
    told = TASK.resume_path if part is None and directory is None else ""
    if told and TASK.resume_step is not None and ("://" in told or not base or _inside(base, told) == told):
        # Not in the directory, where its marker would have been found.
        if "://" in told or os.path.exists(told):
            found.append(Checkpoint(TASK.resume_step, Path(told)))
    return max(found, key=lambda checkpoint: checkpoint.step, default=None)


# -- markers ------------------------------------------------------------------------------------------------------------


def _own(base: str) -> list[Marker]:
    """This job's markers."""
    try:
        names = sorted(os.listdir(os.path.join(base, MARKERS)))
    except OSError:
        return []
    markers = (_read(base, name) for name in names if name.endswith(".json") and not name.startswith("."))
    return [marker for marker in markers if marker is not None and marker.owner == TASK.owner]


def _read(base: str, name: str) -> Marker | None:
    """A marker; None if there is none, or none that can be read."""
    try:
        with open(os.path.join(base, MARKERS, name), encoding="utf-8") as file:
            marker = Marker(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None
    sound = isinstance(marker.step, int) and isinstance(marker.path, str) and isinstance(marker.size_bytes, int)
    return marker if sound else None


def _mark(base: str, place: str, marker: Marker) -> None:
    """Write a marker, whole or not at all."""
    folder = os.path.join(base, MARKERS)
    os.makedirs(folder, exist_ok=True)
    name = _marker_name(base, place)
    partial = os.path.join(folder, f".{name}.{os.getpid()}")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(asdict(marker), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, os.path.join(folder, name))
    _fsync(folder)


def _marker_name(base: str, place: str) -> str:
    inside = _inside(base, place)
    if "/" not in inside and len(inside) < 100:
        return f"{inside}.json"
    digest = hashlib.sha256(inside.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{os.path.basename(inside)[:60]}.{digest}.json"


def _inside(base: str, place: str) -> str:
    """A path relative to `base` if it lies inside it; else as it is."""
    return place[len(base) + 1 :] if place.startswith(base + os.sep) else place


def _base(directory: str) -> str:
    return os.path.abspath(directory)


def _whole(base: str, marker: Marker) -> bool:
    """Whether the checkpoint is there, as large as it was."""
    return marker.size_bytes < 0 or _size_bytes(os.path.join(base, marker.path)) == marker.size_bytes


def _whole_or_forgotten(base: str, marker: Marker) -> bool:
    if _whole(base, marker):
        return True
    _remove(os.path.join(base, MARKERS, _marker_name(base, os.path.join(base, marker.path))))
    return False


def _all_parts(base: str, step: int, parts: int) -> bool:
    return len({marker.part for marker in _own(base) if marker.step == step and marker.part is not None}) >= parts


def _prune(base: str, part: int | None, keep: int) -> None:
    """Remove what `saving` has made and is older than the last `keep`: out of the way at once, so that a later attempt sweeps it
    if this one is killed meanwhile."""
    mine = sorted((marker for marker in _own(base) if marker.kept and marker.part == part), key=lambda marker: -marker.step)
    for marker in mine[max(keep, 1) :]:
        place = os.path.join(base, marker.path)
        away = os.path.join(base, _partial_name(marker.path))
        with contextlib.suppress(OSError):
            os.replace(place, away)
        _remove(os.path.join(base, MARKERS, _marker_name(base, place)))
        _remove(away)


def _partial_name(name: str) -> str:
    """What is not whole yet, or not any more, of this process."""
    return f".{name}.partial-{_short_owner()}-{TASK.attempt}-{os.getpid()}"


def _short_owner() -> str:
    return hashlib.sha256(TASK.owner.encode()).hexdigest()[:8]


def _sweep(base: str) -> None:
    """Remove what earlier attempts of this job, which are dead, have left half written."""
    for name in os.listdir(base):
        stem, _, attempt = name.partition(f".partial-{_short_owner()}-")
        first = attempt.partition("-")[0]
        if stem.startswith(".step-") and first.isdecimal() and int(first) < TASK.attempt:
            _remove(os.path.join(base, name))


# -- files --------------------------------------------------------------------------------------------------------------


def _steps(step: int) -> int:
    steps = whole(step)
    if steps is None:
        raise ValueError(f"expected a number of steps from 0, got {step!r}")
    return steps


def _size_bytes(place: str) -> int | None:
    """The bytes of a file, or of all files in a directory; None if there is neither."""
    try:
        if not os.path.isdir(place):
            return os.stat(place).st_size
        return sum(os.stat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(place) for name in names)
    except OSError:
        return None


def _fsync(place: str) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_all(place: str) -> None:
    """Have a file, or all of a directory, on the disk."""
    for folder, _, names in os.walk(place):
        for name in names:
            if os.path.isfile(os.path.join(folder, name)):
                _fsync(os.path.join(folder, name))
        _fsync(folder)
    if not os.path.isdir(place):
        _fsync(place)


def _replace(source: str, target: str) -> None:
    """Rename; a directory that is there already, which nothing durable marks, makes room first."""
    if os.path.isdir(target) or os.path.isdir(source):
        _remove(target)
    os.replace(source, target)


def _remove(place: str) -> None:
    """Remove a file or a directory, if it is there."""
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        os.unlink(place)
