"""`philly-like`: sizes, durations and hours of the Philly cluster (Jeon et al., USENIX ATC 2019), without its traces."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from headway.core import columns as c
from headway.core import units
from headway.core.specstring import Part
from headway.workloads.generators.arrivals import OFFICE, arrivals, span_us
from headway.workloads.generators.draws import ESTIMATE_TWENTIETHS, PPM, Draws, choices, quantiles, share_of
from headway.workloads.generators.params import count_reader, drawn_sha256, load_reader, read
from headway.workloads.schema import Workload, plain_spec, set_workers

GPUS = (1, 2, 4, 8, 16, 32)
GPU_WEIGHTS = (860, 56, 43, 32, 6, 3)
QUEUE_WEIGHTS = (40, 20, 12, 8, 8, 5, 4, 3)
LEVELS = (0, 10, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 950, 990, 995, 1000)
DURATIONS_S = (
    (1, 30, 52, 61, 73, 176, 526, 1044, 1739, 2449, 3473, 6253, 14620, 117784, 223224, 3256045),
    (2, 5, 9, 11, 14, 17, 19, 21, 24, 31, 116, 79358, 200460, 526313, 853029, 2582803),
    (3, 46, 182, 696, 4279, 11965, 20087, 36341, 70723, 92215, 141306, 192045, 386982, 1106514, 1339690, 2750674),
    (1, 32, 82, 416, 2097, 7049, 21449, 61436, 128858, 180183, 235108, 408420, 600891, 1780406, 2126975, 4628226),
    (1, 2, 35, 68, 354, 990, 4619, 31183, 55293, 83271, 161326, 254372, 453676, 1152387, 1369876, 1710643),
)
"""Quantiles at LEVELS per mille, for 1, 2, 4, 8 and more GPUs."""
MAX_S = 604_800
QUEUES = tuple(f"vc{i}" for i in range(1, len(QUEUE_WEIGHTS) + 1))


def make(part: Part, seed: int) -> Workload:
    """`philly-like:jobs=5000,load=1.0,cluster=16x8,max_s=604800`. Four draws a job: GPUs, duration, queue, estimate."""
    defaults = {"jobs": 5000, "load": Fraction(1), "max_s": MAX_S}
    readers = {
        "jobs": count_reader(),
        "load": load_reader,
        "max_s": lambda text: units.parse_int(text, 1, units.DURATION_MAX_US // units.US_PER_S),
    }
    params, cluster = read(part, seed, "16x8", defaults, readers)
    jobs = int(params["jobs"])
    stream = Draws(part.name, seed)
    draws = stream.draw(4 * jobs).reshape(jobs, 4)
    size = choices(draws[:, 0], GPU_WEIGHTS)
    gpus = np.array(GPUS, np.int64)[size]
    duration_ms = np.empty(jobs, np.int64)
    table = np.minimum(size, len(DURATIONS_S) - 1)
    for i, seconds in enumerate(DURATIONS_S):
        duration_ms[table == i] = quantiles(draws[table == i, 1], LEVELS, [1000 * value for value in seconds])
    duration_ms = np.minimum(duration_ms, 1000 * int(params["max_s"]))
    queue = choices(draws[:, 2], QUEUE_WEIGHTS)
    factor = share_of(draws[:, 3], len(ESTIMATE_TWENTIETHS))
    span = span_us(1000 * sum((duration_ms * gpus).tolist()), params["load"], cluster.gpus, part.name)
    submitted = arrivals(stream.draw(jobs), span, OFFICE)

    spec = plain_spec(jobs)
    set_workers(spec, gpus)
    spec[c.J_QUEUE] = spec[c.J_USER] = queue
    work = duration_ms * 1000
    spec[c.J_ESTIMATE] = work * np.array(ESTIMATE_TWENTIETHS, np.int64)[factor] // 20
    return Workload(
        str(part), submitted, spec, work, users=QUEUES, queues=QUEUES, quotas_ppm=(PPM // len(QUEUES),) * len(QUEUES),
        frozen_sha256=drawn_sha256(cluster, (submitted, gpus, duration_ms, queue, factor)),
    )  # fmt: skip
