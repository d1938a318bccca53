"""Reader of the Philly trace: `timestamp,duration,num_gpus,…,cluster`, one finished job a row, plain or gzip.

A row is a gang of `num_gpus` workers of one GPU, 1 cpu and 4 GB each, which runs `duration` seconds. Its virtual cluster
(`cluster`) is its queue and its user. Rows are put in order of (timestamp, row); equal rows are different jobs. The first
submission is time 0.

The trace holds no estimates. The user's estimate is the true duration times one of {0.5, 0.8, 1, 1, 1.25, 2, 3}, chosen by
SplitMix64 of the row's number in the file (0 is the first after the header): the same for every run. `estimates=exact` takes
the true duration.

A row that cannot be a job is dropped and counted by what is wrong with it: too few fields, no timestamp, a duration that is
not a positive number of at most 100 years, GPUs that are not a whole number from 1 to 10,000. A file without a single job is
refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headway.core.arrays import Ints
from headway.core.units import DURATION_MAX_US, US_PER_S
from headway.workloads.rows import (
    ESTIMATES,
    GPUS_MAX,
    floats,
    gang,
    noisy_estimates,
    read_csv,
    read_table,
    splitmix64,
    to_us,
    to_workload,
    wall_clock_s,
)
from headway.workloads.schema import Workload

__all__ = [
    "COLUMNS", "ESTIMATES", "noisy_estimates", "parse_philly", "read_philly", "splitmix64",
]  # fmt: skip

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
IGNORED = ("gpu_time",)


def read_philly(path: Path, *, name: str = "", estimates: str = "noisy") -> Workload:
    """Return the jobs of a Philly file. `UserError` in one line for a file that is none."""
    return parse_philly(read_table(path), file=str(path), name=name or str(path), estimates=estimates)


def parse_philly(text: str, *, file: str = "workload", name: str = "", estimates: str = "noisy") -> Workload:
    """Return the jobs of a Philly table's text."""
    rows = read_csv(text, COLUMNS, file=file, ignored=IGNORED)
    queues = rows.texts("cluster", "default")
    submitted_s = wall_clock_s(rows.words("timestamp"))
    rows.drop(submitted_s < 0, "bad timestamp", "timestamp", "YYYY-MM-DD HH:MM:SS")
    duration = floats(rows.columns["duration"])
    bad = ~((duration > 0) & (duration <= DURATION_MAX_US / US_PER_S))
    rows.drop(bad, "bad duration", "duration", "seconds above 0, at most 100 years")
    gpus = floats(rows.columns["num_gpus"])
    bad = ~((gpus >= 1) & (gpus <= GPUS_MAX) & (gpus == np.floor(gpus)))
    rows.drop(bad, "bad num_gpus", "num_gpus", f"a whole number from 1 to {GPUS_MAX}")
    workers: Ints = np.where(rows.good, gpus, 1).astype(np.int64)
    return to_workload(
        rows,
        name or file,
        submitted_us=submitted_s * US_PER_S,
        work_us=np.maximum(to_us(np.where(rows.good, duration, 0), US_PER_S), 1),
        spec=gang(workers),
        users=queues,
        queues=queues,
        estimates=estimates,
    )
