"""Reader of Tiresias' job lists: `job_id,num_gpu,submit_time,iterations,model_name,duration,interval`, times in seconds.

A row is a gang of `num_gpu` workers of one GPU, 1 cpu and 4 GB each, that trains `model_name` for `iterations` iterations.
Estimates are as in the Philly trace.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.workloads.rows import EXACT_MAX, GPUS_MAX, gang, read_csv, to_workload
from headway.workloads.schema import Workload

COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")
IGNORED = ("interval",)


def parse_tiresias(text: str, *, file: str = "workload", name: str = "", estimates: str = "noisy") -> Workload:
    """Return the jobs of a Tiresias list's text."""
    rows = read_csv(text, COLUMNS, file=file, ignored=IGNORED)
    submitted = rows.clock_us("submit_time")
    work = rows.durations_us("duration")
    gpus = rows.counts("num_gpu", 1, GPUS_MAX)
    iterations = rows.counts("iterations", 1, EXACT_MAX)
    ids = rows.texts("job_id", "")
    rows.drop_repeated(ids, "job_id")
    return to_workload(
        rows,
        name or file,
        submitted_us=submitted,
        work_us=work,
        spec={**gang(gpus), c.J_UNITS_TOTAL: iterations},
        models=rows.texts("model_name", "unknown"),
        job_names=ids,
        estimates=estimates,
    )
