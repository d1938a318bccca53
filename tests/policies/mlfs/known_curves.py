"""Workloads of jobs whose accuracy is known at every iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headway.core import columns as c
from headway.core.columns import StopRule
from headway.testing.builders import JobSketch, job, workload
from headway.workloads import truth as y
from headway.workloads.schema import Workload
from headway.workloads.truth import Curve, Speed


def load_of(
    count: int,
    *,
    required: float = 0.82,
    rule: StopRule = StopRule.OPTSTOP,
    allow: int = 1 << StopRule.ACCURACY,
    sketches: Sequence[JobSketch] = (),
) -> Workload:
    """Jobs of 200 iterations of 10 s on one GPU. Accuracy 0.85 − 0.75 (1 + 0.15 k)^−1.2: 0.8378 at the end, 0.82 at k = 89."""
    base = workload(sketches or [job(f"j{i}", 1, 2000, units=200) for i in range(count)])
    spec, truth = base.spec.copy(), np.zeros((y.TRUTH_COLUMNS, count), np.int64)
    spec[c.J_STOP_RULE], spec[c.J_STOP_ALLOW], spec[c.J_ACC_REQUIRED] = rule, allow, round(required * 1e6)
    for column, value in {
        y.Y_SPEED: Speed.ITERATIONS, y.Y_CURVE: Curve.POWER, y.Y_UNITS: 200, y.Y_START: 100_000, y.Y_PLATEAU: 850_000,
        y.Y_K: 10**6, y.Y_M: 10**6, y.Y_NOISE: 10_000,
    }.items():  # fmt: skip
        truth[column] = value
    return replace(base, spec=spec, truth=truth)
