"""What a report holds, before it is drawn: plain values that the use case fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.arrays import Ints, Table
from headway.metrics.compare import Paired
from headway.metrics.series import Series
from headway.metrics.tables import GroupRow

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One policy's run of the first seed: its entry as `headway simulate` prints it, and what the pictures need."""

    spec: str
    entry: Json
    jct_us: Ints
    """Of the jobs that completed, ascending."""
    series: Series
    segments: Table
    """Of the window and the nodes shown; columns `metrics.series.SEGMENT_COLUMNS`."""
    segments_left_out: int
    tables: Mapping[str, Sequence[GroupRow]]
    """By `size`, `user` and `queue`."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """The same comparison for several seeds."""

    seeds: tuple[int, ...]
    baseline: str
    medians: Mapping[str, Mapping[str, float | None]]
    """Policy → figure → median over the seeds."""
    gains: Mapping[str, Mapping[str, Paired]]
    """Policy (all but the baseline) → figure → how much better than the baseline."""


@dataclass(frozen=True, slots=True)
class Content:
    """A whole report."""

    command: str
    version: str
    workload: str
    workload_sha256: str
    jobs: int
    gpu_hours: float
    span_s: float
    load: float | None
    cluster: str
    nodes: Sequence[tuple[str, int]]
    """Name and GPUs of every node."""
    gpus: int
    seed: int
    runs: Sequence[PolicyRun]
    window_us: tuple[int, int]
    nodes_shown: int
    """How many of the nodes, from the first, the Gantt charts show."""
    job_names: Sequence[str]
    notes: Sequence[str]
    seeds: Seeds | None = None
