"""Factors that make the intervals of curve fits cover what they promise, measured on real curves by `headway.perf.evaluate`.

The factors depend on what a scheduler sees too: how far away the target seems, how many points there are, and whether an end of
training is expected.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from headway.core.arrays import Bools, Floats, Ints

RATIOS = (1.12, 1.35, 2.0)
"""Borders of predicted k_target / k_last."""
POINTS = (8, 20)
"""Borders of the number of observations."""
STRATA = 2 * (len(RATIOS) + 1) * (len(POINTS) + 1)
STRATUM_MIN = 40
"""Runs that a stratum needs for factors of its own; with fewer it takes those of all."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """For each stratum the factor on the upper spread of the time left (`late`) and on that of the plateau (`plateau`).

    The lower spread of the time left, `early`, is one number: how much sooner than expected targets are reached varies little.
    """

    late: Floats
    plateau: Floats
    early: float

    @staticmethod
    def stratum(ratio: Floats, points: Ints, end_known: Bools) -> Ints:
        """The stratum of each fit."""
        by_ratio = np.searchsorted(RATIOS, ratio, side="right") + (len(RATIOS) + 1) * end_known
        return np.asarray(by_ratio * (len(POINTS) + 1) + np.searchsorted(POINTS, points, side="right"), np.int64)


NAIVE = Calibration(np.ones(STRATA), np.ones(STRATA), 1.0)


def upper(scores: Floats, stratum: Ints, level: float, least: float) -> Floats:
    """The `level` quantile of the scores of each stratum (with the finite-sample correction of conformal prediction)."""

    def quantile(values: Floats) -> float:
        return float(np.quantile(values, min(level * (1 + 1 / len(values)), 1.0)))

    whole = quantile(scores)
    factors = [quantile(scores[stratum == s]) if np.count_nonzero(stratum == s) >= STRATUM_MIN else whole for s in range(STRATA)]
    result: Floats = np.maximum(np.array(factors), least)
    return result


def measure(log_left: Floats, sd: Floats, plateau_error: Floats, plateau_spread: Floats, stratum: Ints) -> Calibration:
    """The factors at which 90 % intervals cover: from log(true / predicted time left) and the plateau's error, with the naive
    spreads beside them."""
    late = upper(log_left / sd, stratum, 0.95, 0.2)
    early = max(float(np.quantile(-log_left, 0.95)), 0.1)
    plateau = upper(np.abs(plateau_error) / plateau_spread, stratum, 0.9, 0.2)
    return Calibration(late, plateau, early)


def as_json(calibration: Calibration) -> str:
    """The text of `calibration.json`."""
    content = {
        "late": [round(float(v), 3) for v in calibration.late],
        "plateau": [round(float(v), 3) for v in calibration.plateau],
        "early": round(calibration.early, 3),
    }
    return json.dumps(content, indent=1) + "\n"


@cache
def shipped() -> Calibration:
    """The factors that the package carries."""
    content = json.loads(files("headway.perf").joinpath("calibration.json").read_text("utf-8"))
    return Calibration(np.array(content["late"]), np.array(content["plateau"]), float(content["early"]))
