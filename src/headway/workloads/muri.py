"""Reader of the Muri traces: `trace,job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,…`, times in ms.

A row is a gang of `num_gpu` workers of one GPU, 1 cpu and 4 GB each, that trains `model_name` with a global batch of
`batch_size` for `iterations` iterations. Each of the stacked traces begins at time 0 and is a queue: `--filter queue=trace1`
takes one of them. Estimates are as in the Philly trace. `iteration_time`, the three `resource_time` (profiles of a model on the
authors' machines, not of a job) and `priority` (whose meaning is not published) are not taken over.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.workloads.rows import EXACT_MAX, GPUS_MAX, gang, read_csv, to_workload
from headway.workloads.schema import Workload

COLUMNS = ("trace", "job_id", "num_gpu", "submit_time", "iterations", "model_name", "batch_size", "duration")
IGNORED = ("interval", "iteration_time", "resource_time_0", "resource_time_1", "resource_time_2", "priority")
US_PER_MS = 1_000
BATCH_MAX = 2**31


def parse_muri(text: str, *, file: str = "workload", name: str = "", estimates: str = "noisy") -> Workload:
    """Return the jobs of a Muri table's text."""
    rows = read_csv(text, COLUMNS, file=file, ignored=IGNORED)
    submitted = rows.clock_us("submit_time", US_PER_MS)
    work = rows.durations_us("duration", US_PER_MS)
    gpus = rows.counts("num_gpu", 1, GPUS_MAX)
    iterations = rows.counts("iterations", 1, EXACT_MAX)
    batch = rows.counts("batch_size", 1, BATCH_MAX)
    traces, ids = rows.texts("trace", "default"), rows.texts("job_id", "")
    rows.drop_repeated(zip(traces, ids, strict=True), "job_id")
    return to_workload(
        rows,
        name or file,
        submitted_us=submitted,
        work_us=work,
        spec={**gang(gpus), c.J_UNITS_TOTAL: iterations, c.J_BATCH: batch},
        queues=traces,
        models=rows.texts("model_name", "unknown"),
        job_names=[f"{trace}-{number}" for trace, number in zip(traces, ids, strict=True)],
        estimates=estimates,
    )
