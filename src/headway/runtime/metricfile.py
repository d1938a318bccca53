"""What a job has told, in full, for people: HOME/metrics/JOB.jsonl. No decision is made by it, and losing it loses no state.

One JSON object a line: `{"t", "attempt", "step", "loss", "accuracy"}` as counted, `{"t", "attempt", "rank", "from", "step",
"other"}` for other metrics, `{"t", "attempt", "step", "saved"}` for checkpoints, `{"t", "attempt", "fault", "sentence"}` for
what was wrong with reports (the first of each fault). A file that has grown to `BYTES_MAX` becomes
JOB.1.jsonl, in place of the one before.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from headway.progress.told import Told
from headway.runtime.progress import Report

BYTES_MAX = 4 << 20
LINES_MAX = 200
"""So many lines are written of what was heard at once: the newest."""
POINTS_MAX = 1000
"""So many points are given to whoever asks; of more, evenly chosen ones."""


class MetricFile:
    """The file of one job."""

    def __init__(self, folder: Path, job: int) -> None:
        self.path = folder / f"{job}.jsonl"
        self._saved_path = folder / f"{job}.saved.json"

    def write(self, told: Sequence[Told], reports: Sequence[Report], attempt: int, t: float) -> None:
        """Append what was heard at once."""
        base = {"t": round(t, 3), "attempt": attempt}
        lines: list[dict[str, Any]] = []
        for report in reports[-LINES_MAX:]:
            lines.append(base | {"step": report.step, "loss": _plain(report.loss), "accuracy": _plain(report.accuracy)})
        for each in [each for each in told if each.other][-LINES_MAX:]:
            other = {name: _plain(value) for name, value in each.other}
            lines.append(base | {"rank": each.rank, "from": each.source.name.lower(), "step": _plain(each.step), "other": other})
        self._append(lines)

    def saved(self, step: int, path: str, attempt: int, t: float) -> None:
        """Note a checkpoint, beside the file too: the newest is what the next attempt is told."""
        self._append([{"t": round(t, 3), "attempt": attempt, "step": step, "saved": path}])
        partial = self._saved_path.with_name(f".{self._saved_path.name}")
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps([step, path, t]), "utf-8")
            os.replace(partial, self._saved_path)

    def found(self, fault: str, sentence: str, attempt: int, t: float) -> None:
        """Note what was wrong with a report."""
        self._append([{"t": round(t, 3), "attempt": attempt, "fault": fault, "sentence": sentence}])

    def newest_saved(self) -> tuple[int, str, float] | None:
        """Step, path, and when (wall clock) of the newest checkpoint."""
        try:
            step, path, t = json.loads(self._saved_path.read_text("utf-8"))
            return int(step), str(path), float(t)
        except (OSError, ValueError, TypeError):
            return None

    def _append(self, lines: list[dict[str, Any]]) -> None:
        if not lines:
            return
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, data)
                if os.fstat(descriptor).st_size >= BYTES_MAX:
                    os.replace(self.path, self.path.with_suffix(".1.jsonl"))
            finally:
                os.close(descriptor)
        except OSError:
            return  # a full disk costs people a curve, and the scheduler nothing


def read_points(path: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The curve in a job's files, oldest first, and what was wrong: fault and sentence."""
    points: list[dict[str, Any]] = []
    faults: dict[str, str] = {}
    for each in (path.with_suffix(".1.jsonl"), path):
        try:
            lines = each.read_bytes().split(b"\n")
        except OSError:
            continue
        for line in lines:
            if b'"loss"' in line and b'"other"' not in line:
                with contextlib.suppress(ValueError):
                    found = json.loads(line)
                    points.append({name: found.get(name) for name in ("t", "step", "loss", "accuracy")})
            elif b'"fault"' in line:
                with contextlib.suppress(ValueError, KeyError):
                    found = json.loads(line)
                    faults.setdefault(str(found["fault"]), str(found["sentence"]))
    if len(points) > POINTS_MAX:
        points = [points[at * (len(points) - 1) // (POINTS_MAX - 1)] for at in range(POINTS_MAX)]
    return points, faults


def _plain(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
