"""A run's jobs by size, by user and by queue: what a mean over all of them hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from headway.core.arrays import Ints
from headway.core.columns import WHOLE, Phase
from headway.metrics.summary import GPU_US_PER_GPU_HOUR, mean_s, percentile_s


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The figures of some of the jobs; times of those that completed. `share_frac` is of the GPU time that all jobs held."""

    name: str
    jobs: int
    finished: int
    avg_jct_s: float | None
    p50_jct_s: float | None
    p99_jct_s: float | None
    avg_wait_s: float | None
    gpu_hours: float
    share_frac: float

    def to_json(self) -> dict[str, str | int | float | None]:
        """The figures by name."""
        return asdict(self)


def by_size(jobs: Mapping[str, Ints]) -> list[GroupRow]:
    """Rows by GPUs asked for, in powers of two; `jobs` are the columns of `metrics.fold`."""
    milli = jobs["gpu_milli"]
    whole = np.maximum(-(-milli // WHOLE), 1)
    index = np.where(milli == 0, 0, np.where(milli < WHOLE, 1, 2 + np.ceil(np.log2(whole)).astype(np.int64)))
    return [row for row in _rows(jobs, index, size_names(int(index.max(initial=0)) + 1)) if row.jobs]


def size_names(count: int) -> list[str]:
    """Names of the classes of size: no GPU, less than one, 1, 2, 3–4, 5–8, 9–16, …"""
    names = ["no GPU", "under 1 GPU", "1 GPU", "2 GPUs"]
    names += [f"{2 ** (k - 1) + 1}–{2**k} GPUs" for k in range(2, count)]
    return names[:count]


def by_name(jobs: Mapping[str, Ints], column: str, names: Sequence[str]) -> list[GroupRow]:
    """Rows by the numbers in `column` (`user`, `queue`), the largest consumer of GPU time first."""
    known = [*names, *(f"#{i}" for i in range(len(names), int(jobs[column].max(initial=-1)) + 1))]
    rows = [row for row in _rows(jobs, jobs[column], known) if row.jobs]
    return sorted(rows, key=lambda row: (-row.gpu_hours, row.name))


def _rows(jobs: Mapping[str, Ints], index: Ints, names: Sequence[str]) -> list[GroupRow]:
    """A row for each name; one sort, then slices."""
    order = np.argsort(index, kind="stable")
    at = np.searchsorted(index[order], np.arange(len(names) + 1))
    total = sum(jobs["held_gpu_us"].tolist())
    rows = []
    for i, name in enumerate(names):
        chosen = order[at[i] : at[i + 1]]
        done = chosen[jobs["phase"][chosen] == Phase.COMPLETED]
        jct = np.sort(jobs["end"][done] - jobs["submitted"][done])
        held = sum(jobs["held_gpu_us"][chosen].tolist())
        rows.append(
            GroupRow(
                name=name,
                jobs=len(chosen),
                finished=len(done),
                avg_jct_s=mean_s(jct),
                p50_jct_s=percentile_s(jct, 50),
                p99_jct_s=percentile_s(jct, 99),
                avg_wait_s=mean_s(jobs["waited"][done]),
                gpu_hours=held / GPU_US_PER_GPU_HOUR,
                share_frac=held / total if total else 0.0,
            )
        )
    return rows
