"""Compiled answers of fitted curves, row by row; `headway.perf.forecast` says what they mean."""

from __future__ import annotations

import math

import numpy as np

from headway.core.arrays import Floats
from headway.core.jit import kernel
from headway.perf.forecast import Z90
from headway.perf.params import C_K_LAST, C_LEVEL, C_PLATEAU, C_PLATEAU_SPREAD, C_POWER, C_RATE, C_SLOPE


@kernel
def value_rows(params: Floats, k: Floats, z: float, found: Floats) -> None:
    """Fill `found` with the value of each row's curve at its k; `z`: the quantile, in halves of a 90 % interval."""
    for i in range(k.shape[0]):
        level, slope, plateau = params[i, C_LEVEL], params[i, C_SLOPE], params[i, C_PLATEAU]
        found[i] = np.nan
        if np.isnan(params[i, C_K_LAST]) or (slope != 0.0 and np.isnan(k[i])):
            continue
        middle = plateau
        if slope != 0.0:
            rate, power = params[i, C_RATE], params[i, C_POWER]
            base = max(1.0 + rate * (k[i] - params[i, C_K_LAST]), 1e-12)
            middle = level - slope * math.expm1(-power * math.log(base)) / (power * rate)
            middle = min(middle, plateau) if slope > 0.0 else max(middle, plateau)
        way = abs(plateau - level)
        done = min(abs(middle - level) / way, 1.0) if way > 0.0 else 1.0
        found[i] = middle + z * done * params[i, C_PLATEAU_SPREAD]


@kernel
def reach_rows(params: Floats, target: Floats, found: Floats) -> None:
    """Fill `found` with the probability that training ends at each row's target or better."""
    for i in range(target.shape[0]):
        found[i] = np.nan
        if np.isnan(params[i, C_K_LAST]):
            continue
        better = 1.0 if params[i, C_SLOPE] >= 0.0 else -1.0
        z = better * (params[i, C_PLATEAU] - target[i]) / (params[i, C_PLATEAU_SPREAD] / Z90)
        z = 0.0 if np.isnan(z) else min(max(z, -40.0), 40.0)
        found[i] = 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))
