"""`trials`: groups of experiments that ask one question, most of which may be given up early."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.specstring import Part
from headway.workloads import truth as y
from headway.workloads.generators.arrivals import FLAT, arrivals, span_us
from headway.workloads.generators.draws import PPM, Draws, choices, share_of, uniform
from headway.workloads.generators.params import count_reader, drawn_sha256, load_reader, read
from headway.workloads.schema import JOBS_MAX, Workload, plain_spec
from headway.workloads.truth import Curve, Speed

FAMILIES = ("image-small", "image-large", "language", "tabular", "speech", "recommendation")
FAMILIES_SEEN = 4
SEEDS_SEEN = 100
"""Seeds below draw from the first families alone."""
START_PPM = (2_200_000, 6_000_000, 5_500_000, 650_000, 3_500_000, 700_000)
"""1/b1."""
PLATEAU_PPM = (
    (100_000, 500_000), (600_000, 1_400_000), (2_400_000, 3_000_000), (200_000, 400_000), (500_000, 1_200_000),
    (400_000, 500_000),
)  # fmt: skip
"""b2, from and to."""
B0_PPM = (
    (50000, 58401, 68213, 79674, 93060, 108696, 126959, 148290, 173205, 202306, 236297, 275999, 322371, 376534, 439798, 513692,
     600000),
    (10000, 11548, 13335, 15399, 17783, 20535, 23714, 27384, 31623, 36517, 42170, 48697, 56234, 64938, 74989, 86596, 100000),
    (10000, 11388, 12968, 14768, 16818, 19152, 21810, 24837, 28284, 32210, 36680, 41771, 47568, 54170, 61688, 70250, 80000),
    (100000, 115478, 133352, 153993, 177828, 205353, 237137, 273842, 316228, 365174, 421697, 486968, 562341, 649382, 749894,
     865964, 1000000),
    (20000, 23096, 26670, 30799, 35566, 41071, 47427, 54768, 63246, 73035, 84339, 97394, 112468, 129876, 149979, 173193, 200000),
    (200000, 230956, 266704, 307985, 355656, 410705, 474275, 547684, 632456, 730348, 843393, 973935, 1124683, 1298763, 1499788,
     1731929, 2000000),
)  # fmt: skip
TIMES_MS = (
    (20_000, 500, 100), (120_000, 2000, 300), (90_000, 3000, 600), (6000, 300, 50), (60_000, 2000, 500), (10_000, 1000, 400),
)  # fmt: skip
"""t0, t1, t3: a unit of 10⁵ samples takes t0 / workers + t1 + t3 · workers."""
WORKERS_MAX = (8, 16, 16, 4, 8, 8)
SIZES = (4, 16)
DIVERGES, DROPS = (1, 7), (1, 9)
"""Odds for and against."""
ERRORS_MILLI = (628, 719, 777, 823, 865, 905, 944, 980, 1020, 1059, 1105, 1156, 1215, 1287, 1391, 1592)
PLATEAU_ERROR_PPM = (950_000, 1_150_000)
CAP = 3
NOISE_PPM = 20_000
RESTORE_US = 30_000_000
GROUPS_MAX = JOBS_MAX // SIZES[1]

_HEAD, _TRIAL = 3, 9
"""Draws of a group, and of each of its trials."""


def make(part: Part, seed: int) -> Workload:
    """`trials:groups=60,load=1.5,cluster=8x4`. The draws of a group: trials, family, drop; then trial by trial: b2, b0, diverges,
    and the errors of b0, b1, t0, t1, t3 and b2 in the model that policies see.

    A unit of progress is a thousandth of 10⁵ samples. `work_us` is what the whole run takes on one worker.
    """
    defaults = {"groups": 60, "load": Fraction(3, 2)}
    params, cluster = read(part, seed, "8x4", defaults, {"groups": count_reader(GROUPS_MAX), "load": load_reader})
    groups = int(params["groups"])
    stream = Draws(part.name, seed)
    draws, start = stream.records(groups, _HEAD + SIZES[1] * _TRIAL, _length)
    size = uniform(draws[start], *SIZES)
    family = share_of(draws[start + 1], FAMILIES_SEEN if seed < SEEDS_SEEN else len(FAMILIES))
    drops = choices(draws[start + 2], DROPS) == 0
    group = np.repeat(np.arange(groups), size)
    at = np.arange(len(group)) - np.repeat(np.cumsum(size) - size, size)
    b2_draw, b0_draw, diverges_draw, *errors, b2_error = (
        draws[np.repeat(start + _HEAD, size) + _TRIAL * at + i] for i in range(_TRIAL)
    )
    of = family[group]
    low, high = (np.array(ends, np.int64)[of] for ends in zip(*PLATEAU_PPM, strict=True))
    plateau = low + _share(b2_draw, high - low + 1)
    b0 = share_of(b0_draw, len(B0_PPM[0]))
    diverges = choices(diverges_draw, DIVERGES) == 0
    error = [share_of(draw, len(ERRORS_MILLI)) for draw in errors]
    plateau_error = uniform(b2_error, *PLATEAU_ERROR_PPM)

    truth = _truth(of, plateau, b0, diverges, drops[group])
    times_us = 1000 * np.array(TIMES_MS, np.int64).sum(axis=1)[of]
    span = span_us(sum((truth[y.Y_K99] * times_us // 1000).tolist()), params["load"], cluster.gpus, part.name)
    submitted = arrivals(stream.draw(groups), span, FLAT)
    drawn = (submitted, size, family, drops, plateau, b0, diverges, *error, plateau_error)
    spec = plain_spec(len(group))
    spec[c.J_DATA_MAX], spec[c.J_GROUP], spec[c.J_MODEL] = np.array(WORKERS_MAX, np.int64)[of], group, of
    spec[c.J_SYNC], spec[c.J_ESTIMATE], spec[c.J_RESTORE] = c.Sync.ALL_REDUCE, c.NEVER, RESTORE_US
    return Workload(
        str(part),
        submitted[group],
        spec,
        truth[y.Y_UNITS] * times_us // 1000,
        models=FAMILIES,
        truth=truth,
        hints=_hints(truth, error, plateau_error),
        frozen_sha256=drawn_sha256(cluster, drawn),
    )


def _length(draws: Ints, at: int) -> int:
    low, high = SIZES
    return _HEAD + _TRIAL * (low + (draws.item(at) * (high - low + 1) >> 32))


def _share(draws: Ints, wholes: Ints) -> Ints:
    """`u · whole >> 32` for wholes below 2³¹."""
    share: Ints = draws * wholes >> 32
    return share


def _truth(family: Ints, plateau: Ints, b0: Ints, diverges: Ints, drops: Ints) -> Table:
    truth = np.zeros((y.TRUTH_COLUMNS, len(family)), np.int64)
    start, b0_ppm = np.array(START_PPM, np.int64)[family], np.array(B0_PPM, np.int64)[family, b0]
    t0, t1, t3 = (1000 * np.array(times, np.int64)[family] for times in zip(*TIMES_MS, strict=True))
    k99 = 99 * 10**15 // (start * b0_ppm)
    truth[y.Y_SPEED], truth[y.Y_CURVE] = Speed.SCALED, Curve.INVERSE
    truth[y.Y_T0], truth[y.Y_T1], truth[y.Y_T3] = t0, t1, t3
    truth[y.Y_START], truth[y.Y_PLATEAU], truth[y.Y_B0], truth[y.Y_K99] = start, plateau, b0_ppm, k99
    truth[y.Y_DIVERGES], truth[y.Y_DROP] = diverges, drops & ~diverges
    truth[y.Y_CAP], truth[y.Y_NOISE] = CAP * k99 * (t0 + t1 + t3) // 1000, NOISE_PPM
    truth[y.Y_UNITS] = np.where(diverges, CAP * k99, np.where(truth[y.Y_DROP], _units_after_drop(k99, start, plateau), k99))
    return truth


def _units_after_drop(k99: Ints, start: Ints, plateau: Ints) -> Ints:
    """Units until the quality is 0.99 where the plateau falls by 30 % on the way: start / (1 + 99 x) is then at 1 % of
    start + 0.3 plateau, with x = units / k99.
    """
    above, below = k99 * (990 * start - 3 * plateau), 99 * (10 * start + 3 * plateau)
    units: Ints = -(-above // below)
    return units


def _hints(truth: Table, error: list[Ints], plateau_error: Ints) -> Table:
    factor = [np.array(ERRORS_MILLI, np.int64)[index] for index in error]
    hints = np.zeros((y.HINT_COLUMNS, truth.shape[1]), np.int64)
    hints[y.H_B0] = truth[y.Y_B0] * factor[0]
    hints[y.H_B1] = 10**12 * factor[1] // truth[y.Y_START]
    hints[y.H_B2] = truth[y.Y_PLATEAU] * plateau_error // PPM
    hints[y.H_T0 : y.H_T0 + 3] = truth[[y.Y_T0, y.Y_T1, y.Y_T3]] * np.array(factor[2:]) // 1000
    hints[y.H_LOSS0] = truth[y.Y_START] + truth[y.Y_PLATEAU]
    return hints
