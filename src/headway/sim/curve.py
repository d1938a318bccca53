"""How good a job really is after so many units, and what it says of itself (`docs/semantics.md` §6)."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import K_OBSERVED
from headway.core.jit import inner, kernel
from headway.sim.columns import (
    F_NOISE,
    W_ATTEMPT,
    W_NOISE_STEPS,
    W_TRUTH,
    X_OUT,
    X_SEED,
)
from headway.workloads.truth import (
    NORMAL_PPM,
    Y_CURVE,
    Y_DIVERGES,
    Y_DROP,
    Y_K,
    Y_K99,
    Y_M,
    Y_NOISE,
    Y_PLATEAU,
    Y_SPEED,
    Y_START,
    Y_UNITS,
    Curve,
    Speed,
)

POWER, INVERSE, SCALED = int(Curve.POWER), int(Curve.INVERSE), int(Speed.SCALED)
PPM = 1_000_000
DROP_FRAC = 0.3
AR_KEPT, AR_NEW = 0.7, 0.714142842854285
"""φ of the AR(1) noise and √(1 − φ²), so that its marginal spread is that of one draw."""
LOSS_DRAW, ACCURACY_DRAW = 1001, 1002


@kernel
def mix(a: int, b: int, d: int, e: int) -> int:
    """A counter-based hash: the same numbers give the same draw, whatever the policy did before. 63 bits."""
    z = a * -7046029254386353131 + b * -4658895280553007687 + d * -7723592293110705685 + e * 668265263 + 0x1234567
    for _ in range(2):
        z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
        z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
        z = z ^ ((z >> 31) & 0x1FFFFFFFF)
    return z & 0x7FFFFFFFFFFFFFFF


@kernel
def normal(draw: int) -> float:
    """A normal draw from 32 uniform bits: the piecewise-linear curve through 33 knots."""
    x = draw * 32
    low, rest = x >> 32, (x & 0xFFFFFFFF) / 4294967296.0
    return (NORMAL_PPM[low] + (NORMAL_PPM[low + 1] - NORMAL_PPM[low]) * rest) / PPM


@kernel
def true_accuracy(job: int, units: float, W: Table) -> float:
    """Accuracy after so many units, in [0, 1]; -1 for a job that has none."""
    if W[W_TRUTH + Y_CURVE, job] != POWER:
        return -1.0
    start, plateau = W[W_TRUTH + Y_START, job] / PPM, W[W_TRUTH + Y_PLATEAU, job] / PPM
    steepness = 30.0 * W[W_TRUTH + Y_K, job] / PPM / W[W_TRUTH + Y_UNITS, job]
    return float(plateau - (plateau - start) * (1.0 + steepness * units) ** (-1.2 * W[W_TRUTH + Y_M, job] / PPM))


@kernel
def true_loss(job: int, units: float, W: Table) -> float:
    """Loss after so many units; -1 for a job without a curve."""
    curve = W[W_TRUTH + Y_CURVE, job]
    start, plateau = W[W_TRUTH + Y_START, job] / PPM, W[W_TRUTH + Y_PLATEAU, job] / PPM
    if curve == POWER:
        return float(3.0 * (plateau + 0.05 - true_accuracy(job, units, W)))
    if curve != INVERSE:
        return -1.0
    x = units / W[W_TRUTH + Y_K99, job]
    if W[W_TRUTH + Y_DIVERGES, job] and x > 1 / 3:
        bottom = start / 34.0 + plateau
        return float(bottom + (start + plateau - bottom) * min(3.0 * x - 1.0, 1.0))
    if W[W_TRUTH + Y_DROP, job] and x >= 0.5:
        plateau *= 1.0 - DROP_FRAC
    return float(start / (1.0 + 99.0 * x) + plateau)


@inner
def uniform(X: Ints, W: Table, job: int, unit: int, which: int) -> int:
    """The noise of one observation, uniform between minus and plus the job's noise (ppm)."""
    width = W[W_TRUTH + Y_NOISE, job]
    return int(mix(X[X_SEED], job, unit, which) % (2 * width + 1) - width)


@kernel
def observe(X: Ints, E: Table, t: int, job: int, unit: int, W: Table, WF: Floats) -> None:
    """The job tells its units, loss and accuracy (with noise); the caller has made room for the report."""
    loss, accuracy = c.NOTHING, c.NOTHING
    curve = W[W_TRUTH + Y_CURVE, job]
    if curve == POWER:
        accuracy = int(round(true_accuracy(job, float(unit), W) * PPM)) + uniform(X, W, job, unit, ACCURACY_DRAW)
        loss = (int(round(true_loss(job, float(unit), W) * PPM)) + uniform(X, W, job, unit, LOSS_DRAW)) * 1000
    elif curve == INVERSE:
        if W[W_TRUTH + Y_SPEED, job] == SCALED:
            W[W_NOISE_STEPS, job] += 1
            z = normal(mix(X[X_SEED], job, W[W_NOISE_STEPS, job], LOSS_DRAW) & 0xFFFFFFFF)
            if W[W_NOISE_STEPS, job] > 1:
                z = AR_KEPT * WF[F_NOISE, job] + AR_NEW * z
            WF[F_NOISE, job] = z
        else:
            z = normal(mix(X[X_SEED], job, unit, LOSS_DRAW) & 0xFFFFFFFF)
        loss = int(round(true_loss(job, float(unit), W) * (1.0 + W[W_TRUTH + Y_NOISE, job] / PPM * z) * PPM)) * 1000
    n = X[X_OUT]
    E[n, c.E_T], E[n, c.E_KIND], E[n, c.E_ID], E[n, c.E_ATTEMPT] = t, K_OBSERVED, job, W[W_ATTEMPT, job]
    E[n, c.E_A], E[n, c.E_B], E[n, c.E_C], E[n, c.E_POOL] = unit, loss, accuracy, 0
    X[X_OUT] = n + 1
