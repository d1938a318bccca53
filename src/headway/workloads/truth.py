"""What is true of a job and hidden from every policy: how fast it runs on a place, and how its loss and accuracy go.

A workload's `truth` is an int64 table (TRUTH_COLUMNS × jobs). A row of zeros says: the job runs `work_us` at rate 1 and has no
curve. Times are µs, sizes bytes, accuracies, losses and factors parts per million.
"""

from __future__ import annotations

from enum import IntEnum


class Speed(IntEnum):
    """What an iteration takes (`docs/semantics.md` §6)."""

    WORK = 0
    """Nothing is known of iterations: `work_us` at rate 1."""
    ITERATIONS = 1
    """`work_us / units`, and the largest of bytes in and out of a node of the job over its share of the NIC (mlfs-paper)."""
    SHAPED = 2
    """Compute by workers, GPU speed and background load, and the gradient's way by servers or ring (production)."""
    SCALED = 3
    """`t0 / workers + t1 + t3 · workers` for 1000 units (trials)."""


class Curve(IntEnum):
    """How quality depends on the units done, k."""

    NONE = 0
    POWER = 1
    """accuracy = plateau − (plateau − start) · (1 + c·k)^−b with c · units = 30 k_ppm and b = 1.2 m_ppm;
    loss = 3 · (plateau + 0.05 − accuracy)."""
    INVERSE = 2
    """loss = 1 / (b0 · k + b1) + plateau, with 1/b1 = start and b0 such that the first term is 1 % of `start` at `k99`."""


TRUTH_COLUMN_NAMES = tuple(
    """speed curve units observe_every base_us bytes t0_us t1_us t3_us start_ppm plateau_ppm k_ppm m_ppm k99 b0_ppm diverges drop
cap_gpu_us noise_ppm boast_ppm""".split()
)
TRUTH_COLUMNS = len(TRUTH_COLUMN_NAMES)
(
    Y_SPEED, Y_CURVE, Y_UNITS, Y_OBSERVE_EVERY, Y_BASE, Y_BYTES, Y_T0, Y_T1, Y_T3, Y_START, Y_PLATEAU, Y_K, Y_M, Y_K99, Y_B0,
    Y_DIVERGES, Y_DROP, Y_CAP, Y_NOISE, Y_BOAST,
) = range(TRUTH_COLUMNS)  # fmt: skip
"""`units`: iterations (or thousandths of 10⁵ samples) of the whole run; `observe_every`: units between two observations (0: one a
slice);
`base_us`: compute of an iteration with batch one on the fastest GPU; `bytes`: the gradient; `t0…t3`: see SCALED; `k99`: units
until the first term of INVERSE is at 1 %; `diverges`: its loss rises from k99/3 on; `drop`: its plateau falls by 30 % at k99/2;
`cap_gpu_us`: the attained service at which the job leaves (0: none); `noise_ppm`: of observations; `boast_ppm`: by how much
the job reports more units and a higher accuracy than it has (0: it is honest)."""

_HALF = (-3090232, -1862732, -1534121, -1318011, -1150349, -1009990, -887147, -776422, -674490, -579132, -488776, -402250,
         -318639, -237202, -157311, -78412)  # fmt: skip
NORMAL_PPM = (*_HALF, 0, *(-knot for knot in reversed(_HALF)))
"""The quantile function of the normal distribution, in ppm of σ, at 0, 1/32 … 1 of a uniform draw."""

HINT_COLUMN_NAMES = tuple("b0 b1 b2_ppm t0_us t1_us t3_us loss0_ppm".split())
HINT_COLUMNS = len(HINT_COLUMN_NAMES)
H_B0, H_B1, H_B2, H_T0, H_T1, H_T3, H_LOSS0 = range(HINT_COLUMNS)
"""Columns of a workload's `hints`: what small runs have told of a job before it was handed in, with their error. Policies may see
them. The loss after k units of 10⁵ samples is about `1 / (b0 · k + b1) + b2`, and exactly `loss0` at first; a unit takes about
`t0 / workers + t1 + t3 · workers`. `b0` and `b1` are in 1e-9."""
