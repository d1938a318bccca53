"""Reader of the ITP trace: `cluster,job_id,submission_time,duration,num_gpu`, one finished job a row.

A row is a gang of `num_gpu` workers of one GPU, 1 cpu and 4 GB each. Times are seconds since the collection began. The cluster
is the job's queue and user (`--filter queue=cluster04` takes one of them); estimates are as in the Philly trace.
"""

from __future__ import annotations

from headway.workloads.rows import GPUS_MAX, gang, read_csv, to_workload
from headway.workloads.schema import Workload

COLUMNS = ("cluster", "job_id", "submission_time", "duration", "num_gpu")


def parse_itp(text: str, *, file: str = "workload", name: str = "", estimates: str = "noisy") -> Workload:
    """Return the jobs of an ITP table's text."""
    rows = read_csv(text, COLUMNS, file=file)
    submitted = rows.clock_us("submission_time")
    work = rows.durations_us("duration")
    gpus = rows.counts("num_gpu", 1, GPUS_MAX)
    clusters, ids = rows.texts("cluster", "default"), rows.texts("job_id", "")
    rows.drop_repeated(zip(clusters, ids, strict=True), "job_id")
    return to_workload(
        rows,
        name or file,
        submitted_us=submitted,
        work_us=work,
        spec=gang(gpus),
        users=clusters,
        queues=clusters,
        job_names=ids,
        estimates=estimates,
    )
