"""`poisson`: jobs of a small mixed cluster, for demonstrations, tests and benches. No part of the frozen exam."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from headway.core import columns as c
from headway.core.specstring import Part
from headway.workloads.generators.draws import ESTIMATE_TWENTIETHS, Draws, choice_of, choices, equal_steps
from headway.workloads.generators.params import count_reader, load_reader, read
from headway.workloads.schema import Workload, plain_spec, set_workers

GPUS = ((1, 80), (2, 8), (4, 7), (8, 5))
"""GPUs and their weights."""
DURATIONS_MS = (60_000, 88_253, 129_809, 190_934, 280_842, 413_085, 607_599, 893_705, 1_314_534,
                1_933_523, 2_843_983, 4_183_161, 6_152_933, 9_050_233, 13_311_817, 19_580_100, 28_800_000)  # fmt: skip
"""Durations at 0, 1/16 … 1 of a draw: equal ratios from a minute to eight hours."""


def make(part: Part, seed: int) -> Workload:
    """`poisson:jobs=1000,load=0.8,cluster=16x8`.

    Job by job three draws: GPUs (1, 2, 4, 8 with weights 80, 8, 7, 5), duration (log-uniform from a minute to eight hours),
    factor of the estimate; then the arrivals: as many sorted uniform draws over the span (so gaps are those of a Poisson
    process), which is as long as `load` asks for on `cluster`.
    """
    defaults = {"jobs": 1000, "load": Fraction(4, 5)}
    params, cluster = read(part, seed, "16x8", defaults, {"jobs": count_reader(), "load": load_reader})
    jobs = int(params["jobs"])
    stream = Draws(part.name, seed)
    draws = stream.draw(3 * jobs).reshape(jobs, 3)
    workers = np.array([gpus for gpus, _ in GPUS], np.int64)[choices(draws[:, 0], [weight for _, weight in GPUS])]
    work = equal_steps(draws[:, 1], DURATIONS_MS) * 1000
    spec = plain_spec(jobs)
    set_workers(spec, workers)
    spec[c.J_ESTIMATE] = work * choice_of(draws[:, 2], ESTIMATE_TWENTIETHS) // 20
    span_us = int(sum((work * workers).tolist()) / (params["load"] * cluster.gpus))
    arrivals = np.array([draw * span_us >> 32 for draw in np.sort(stream.draw(jobs)).tolist()], np.int64)
    return Workload(str(part), arrivals, spec, work)
