"""What a raw column of a workload file may hold (`spec.…`, `true.…`, `details`), so that no row stops a round or a simulation.

`workloads.generic` reads the columns; here are their ranges, and the checks of several columns together. A row that fails is left
out and counted, as any other (`docs/bad-input.md`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import GPUS_PER_NODE_MAX, WHOLE, Cut, StopRule, Sync
from headway.core.shape import TASKS_MAX
from headway.core.units import COUNT_MAX, CPUS_MAX, DURATION_MAX_US, SIZE_MAX_BYTES
from headway.workloads import truth as y
from headway.workloads.rows import EXACT_MAX, Rows

PPM = 1_000_000
PRIORITY_MAX, URGENCY_MAX, RETRIES_MAX = 100, 10, 1_000_000
LOSS_MAX_PPM = 10**12
"""A loss of a million."""

Range = tuple[int, int]
ANY: Range = (-(1 << 62), 1 << 62)
COUNT: Range = (0, EXACT_MAX)
_TASKS, _GPUS, _CPUS = (0, TASKS_MAX), (0, GPUS_PER_NODE_MAX * WHOLE), (0, CPUS_MAX * WHOLE)
_SIZE, _DURATION, _TIME, _SHARE, _FLAG = (0, SIZE_MAX_BYTES), (0, DURATION_MAX_US), (0, c.NEVER), (0, PPM), (0, 1)

SPEC_RANGES: dict[int, Range] = {
    c.J_PRIORITY: (0, PRIORITY_MAX), c.J_URGENCY: (0, URGENCY_MAX), c.J_DATA: (1, TASKS_MAX), c.J_DATA_MIN: (1, TASKS_MAX),
    c.J_DATA_MAX: (1, TASKS_MAX), c.J_PIPELINE: (1, TASKS_MAX), c.J_TENSOR: (1, TASKS_MAX), c.J_SERVERS: _TASKS,
    c.J_SERVERS_MAX: _TASKS, c.J_CUT: (0, max(Cut)), c.J_WIDTH: (1, TASKS_MAX), c.J_SYNC: (0, max(Sync)),
    c.J_GPU_TASK: _GPUS, c.J_ALT_GPU: _GPUS, c.J_SHARE: _FLAG, c.J_KIND_MASK: ANY, c.J_ALT_MASK: ANY,
    c.J_CPU_TASK: _CPUS, c.J_SERVER_CPU: _CPUS, c.J_MEM_TASK: _SIZE, c.J_SERVER_MEM: _SIZE, c.J_NET_TASK: _SIZE,
    c.J_SERVER_NET: _SIZE, c.J_EDGE_BYTES: _SIZE, c.J_SYNC_BYTES: _SIZE, c.J_UNITS_TOTAL: COUNT, c.J_BATCH: (0, 2**31),
    c.J_STOP_RULE: (0, max(StopRule)), c.J_STOP_ALLOW: (0, (1 << len(StopRule)) - 1), c.J_ACC_REQUIRED: _SHARE,
    c.J_SKEW: _SHARE, c.J_GRACE: _DURATION, c.J_SAVE: _DURATION, c.J_RESTORE: _DURATION, c.J_EVERY: _DURATION,
    c.J_RETRY_MAX: (0, RETRIES_MAX), c.J_GROUP: (-1, 1 << 40), c.J_MODEL: (-1, 1 << 40), c.J_DEADLINE: _TIME,
    c.J_TIME_LIMIT: _TIME, c.J_ESTIMATE: _TIME,
}  # fmt: skip
"""What spec columns may hold; the others 0 to 2^62."""
TRUE_RANGES: dict[int, Range] = {
    y.Y_SPEED: (0, max(y.Speed)), y.Y_CURVE: (0, max(y.Curve)), y.Y_UNITS: COUNT, y.Y_OBSERVE_EVERY: COUNT,
    y.Y_BASE: _DURATION, y.Y_BYTES: _SIZE, y.Y_T0: _DURATION, y.Y_T1: _DURATION, y.Y_T3: _DURATION,
    y.Y_START: (0, LOSS_MAX_PPM), y.Y_PLATEAU: (0, LOSS_MAX_PPM), y.Y_K: (0, COUNT_MAX), y.Y_M: (0, COUNT_MAX), y.Y_K99: COUNT,
    y.Y_B0: (0, COUNT_MAX), y.Y_DIVERGES: _FLAG, y.Y_DROP: _FLAG, y.Y_CAP: _TIME, y.Y_NOISE: _SHARE,
    y.Y_BOAST: (0, 100 * PPM),
}  # fmt: skip
DETAIL_RANGES = np.array([_GPUS, _CPUS, _SIZE, _SIZE, _SHARE])
"""Of a task: GPUs and cpus (thousandths), memory, network, share of the model (ppm)."""


def refuse_shapes(rows: Rows, spec: Mapping[int, Ints | int]) -> None:
    """Drop jobs of shapes that no job has: what the kernels rely on."""
    data, low, high = (np.asarray(spec[column]) for column in (c.J_DATA, c.J_DATA_MIN, c.J_DATA_MAX))
    parts = np.asarray(spec.get(c.J_PIPELINE, 1)) * np.asarray(spec.get(c.J_TENSOR, 1))
    tasks = high * parts + np.asarray(spec.get(c.J_SERVERS_MAX, 0)) + np.asarray(spec.get(c.J_SERVERS, 0))
    bad = (low > data) | (data > high) | (parts > TASKS_MAX) | (tasks > TASKS_MAX)
    differ = np.asarray(spec.get(c.J_DETAILS, 0))
    bad |= (differ > 0) & (differ != data * parts + np.asarray(spec.get(c.J_SERVERS, 0)))
    rows.drop(
        np.broadcast_to(bad, rows.good.shape),
        "impossible shape",
        "workers",
        f"at most {TASKS_MAX} tasks, as many as the details are of",
    )


def refuse_details(rows: Rows, spec: Mapping[int, Ints | int], details: Sequence[Sequence[int]]) -> None:
    """Drop jobs whose tasks ask for what no task can, or whose partitions do not add up to the whole model. `details`: the
    numbers of each row, of sound shapes (`refuse_shapes`); nothing at all where no job has any."""
    if not details:
        return
    data, pipeline, tensor = (
        np.broadcast_to(np.asarray(spec.get(column, 1)), rows.good.shape) for column in (c.J_DATA, c.J_PIPELINE, c.J_TENSOR)
    )
    outside, uneven = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    sums: dict[int, int] = {}
    for row, numbers in enumerate(details):
        if not numbers or not rows.good[row]:
            continue
        tasks = np.array(numbers, np.int64).reshape(-1, c.DETAIL)
        outside[row] = np.any((tasks < DETAIL_RANGES[:, 0]) | (tasks > DETAIL_RANGES[:, 1]))
        shares = tasks[: data[row] * pipeline[row] * tensor[row], -1].reshape(data[row], -1).sum(axis=1)
        uneven[row] = np.any(shares != PPM)
        sums[row] = int(shares[np.argmax(shares != PPM)])
    rows.drop(outside, "bad details", "details", f"tasks of at most {GPUS_PER_NODE_MAX} GPUs and shares of at most {PPM} ppm")
    rows.drop(
        uneven, "partitions that do not add up", "details", f"shares that add up to {PPM} ppm over the partitions",
        lambda row: f"a sum of {sums[row]}",
    )  # fmt: skip


def refuse_truths(rows: Rows, true: Mapping[int, Ints]) -> None:
    """Drop jobs whose hidden truth contradicts itself: a step that takes no time, or a curve over no units."""
    if not true:
        return
    zero = np.zeros(len(rows), np.int64)
    column = {key: true.get(key, zero) for key in range(y.TRUTH_COLUMNS)}
    speed, curve, units = column[y.Y_SPEED], column[y.Y_CURVE], column[y.Y_UNITS]
    for bad, name, expected in (
        ((speed != y.Speed.WORK) & (units == 0), "units", "1 or more units where steps have a speed"),
        ((speed == y.Speed.SHAPED) & (column[y.Y_BASE] == 0), "base_us", "a step of 1 µs or more"),
        ((speed == y.Speed.SCALED) & (column[y.Y_T0] + column[y.Y_T1] + column[y.Y_T3] == 0), "t0_us", "a step of 1 µs or more"),
        ((curve == y.Curve.POWER) & (units == 0), "units", "1 or more units where there is a curve"),
        ((curve == y.Curve.INVERSE) & (column[y.Y_K99] == 0), "k99", "1 or more units where there is a curve"),
    ):
        rows.drop(bad, "impossible truth", f"true.{name}", expected)
