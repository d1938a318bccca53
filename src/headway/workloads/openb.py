"""Reader of the openb trace: pods of one node each, with cpus, memory, whole GPUs or a share of one, and GPU models.

`name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time`, times in
seconds since the trace began.

A pod is a job of one task with `num_gpu` GPUs on one node; one GPU with `gpu_milli` under 1000 is a share of a GPU (which an
engine or simulation may give to several); none is a job without GPUs. `gpu_spec` are the GPU models that it may use, in lower
case as kinds; nothing is any. It is submitted when it was created and runs as long as it did, from `scheduled_time` to
`deletion_time`; a pod that was never scheduled never ran and is dropped. Its `qos` is its queue. Estimates are as in the Philly
trace.
"""

from __future__ import annotations

import numpy as np

from headway.core import columns as c
from headway.core.columns import GPUS_PER_NODE_MAX, WHOLE
from headway.core.units import CPUS_MAX, DURATION_MAX_US, US_PER_S
from headway.workloads.rows import floats, read_csv, to_workload
from headway.workloads.schema import Workload

COLUMNS = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time",
    "scheduled_time",
)  # fmt: skip
IGNORED = ("pod_phase",)
MIB = 1 << 20
MEMORY_MIB_MAX = 1 << 34


def parse_openb(text: str, *, file: str = "workload", name: str = "", estimates: str = "noisy") -> Workload:
    """Return the jobs of an openb table's text."""
    rows = read_csv(text, COLUMNS, file=file, ignored=IGNORED)
    created = rows.clock_us("creation_time")
    scheduled_cells = rows.words("scheduled_time")
    never = np.array([not cell.strip() for cell in scheduled_cells], np.bool_)
    rows.drop(never, "never scheduled", "scheduled_time", "a time")
    scheduled, deleted = rows.clock_us("scheduled_time"), rows.clock_us("deletion_time")
    rows.drop(scheduled < created, "scheduled before created", "scheduled_time", "a time that is not before creation_time")
    expected = f"a time after scheduled_time, by at most {DURATION_MAX_US // US_PER_S} s"
    rows.drop_lengths(deleted - scheduled, "deletion_time", expected, "end before start")
    cpus, memory = rows.counts("cpu_milli", 0, CPUS_MAX * WHOLE), rows.counts("memory_mib", 0, MEMORY_MIB_MAX)
    gpus = rows.counts("num_gpu", 0, GPUS_PER_NODE_MAX)
    share = floats(rows.columns["gpu_milli"])
    right = np.where(gpus == 0, share == 0, (share == WHOLE) | ((gpus == 1) & (share >= 1) & (share <= WHOLE) & (share % 1 == 0)))
    rows.drop(~right, "bad gpu_milli", "gpu_milli", "1000 for whole GPUs, 1 to 999 for a share of one, 0 without")
    milli = np.where(rows.good & (gpus == 1), share, gpus * WHOLE).astype(np.int64)
    kinds, masks = rows.gpu_kinds("gpu_spec")
    names = rows.texts("name", "")
    rows.drop_repeated(names, "name")
    return to_workload(
        rows,
        name or file,
        submitted_us=created,
        work_us=np.maximum(deleted - scheduled, 1),
        spec={
            c.J_GPU_TASK: milli,
            c.J_SHARE: ((milli > 0) & (milli < WHOLE)).astype(np.int64),
            c.J_KIND_MASK: masks,
            c.J_CPU_TASK: cpus,
            c.J_MEM_TASK: memory * MIB,
        },
        queues=rows.texts("qos", "default"),
        job_names=names,
        kinds=kinds,
        estimates=estimates,
    )
