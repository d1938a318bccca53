"""The compiled fits against plain NumPy: the same within rounding, on curves of many kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.reference import curves as plain

from headway.core.arrays import Floats
from headway.perf import forecast
from headway.perf.calibrate import NAIVE
from headway.perf.curve import fit_curves
from headway.perf.kernels.quantiles import median, weighted_quantile
from headway.perf.observed import O_BEST, O_BOUND, O_K_LAST, O_NOISE, O_NOW, O_SCALE, O_SIGN, prepare
from headway.perf.optimus import fit_inverse
from headway.perf.params import C_K_LAST, C_LEVEL, C_PLATEAU, C_PLATEAU_SPREAD, C_POWER, C_RATE, C_SLOPE, C_TIME_SPREAD, Status

COUNT = 150
SHAPES = (
    lambda x: 2.3 / (1 + 9 * x) + 0.3,
    lambda x: np.exp(-3 * x) + 0.5,
    lambda x: 0.9 - 0.8 * (1 + 30 * x) ** -1.2,
    lambda x: 1 + 0.5 * x,
    lambda x: 2 / (1 + x),
)


def observations(seed: int) -> tuple[list[tuple[Floats, Floats]], Any]:
    """Few points and many, in order and not, with repeated k, holes and noise; falling, rising, and getting worse."""
    rng = np.random.default_rng(seed)
    series, rising = [], []
    for i in range(COUNT):
        count = int(rng.integers(2, 12)) if i % 3 else int(rng.integers(2, 500))
        k = rng.integers(1, 1000, count).astype(float) if i % 4 == 0 else np.arange(1.0, count + 1) * rng.uniform(0.5, 3)
        k = rng.permutation(k) if i % 7 == 0 else k
        y = SHAPES[i % 5](k / k.max() * rng.uniform(0.2, 3)) + rng.normal(size=count) * rng.choice([0, 0.001, 0.01, 0.1])
        y[rng.random(count) < (0.1 if i % 11 == 0 else 0.0)] = np.nan
        series.append((k, y))
        rising.append(i % 5 == 2 or (i % 5 == 3 and i % 2 == 0))
    series[0] = (np.arange(1.0, 10_001), SHAPES[0](np.arange(1.0, 10_001) / 3000))
    return series, np.array(rising)


def test_preparing() -> None:
    series, rising = observations(1)
    seen = prepare(series, rising)
    for i, (k, y) in enumerate(series):
        assert seen.points[i] == len(plain.cleaned(k, y)[0])
        if seen.points[i] == 0:
            continue
        known = plain.prepared(k, y, rising[i])
        size = seen.size[i]
        assert size == len(known["t"])
        assert seen.t[i, :size] == pytest.approx(known["t"], rel=1e-12)
        scale = known["scale"]
        if scale > 0:
            assert seen.z[i, :size] * scale == pytest.approx(known["z"] * scale, rel=1e-11, abs=1e-13)
        names = (O_K_LAST, O_NOW, O_SCALE, O_NOISE, O_BEST, O_SIGN, O_BOUND)
        wanted = [known[name] for name in ("k_last", "now", "scale", "noise", "best", "sign", "bound")]
        assert seen.about[i, list(names)] == pytest.approx(wanted, rel=1e-10, abs=1e-14)


def test_curves() -> None:
    series, rising = observations(2)
    rng = np.random.default_rng(3)
    target, end = rng.uniform(-0.2, 1.2, COUNT), rng.uniform(10, 2000, COUNT)
    target[::3], end[::4] = np.nan, np.nan
    fits = fit_curves(series, rising, target=target, k_end=end, k_end_log_sd=0.3, calibration=NAIVE)
    compared = 0
    for i in np.flatnonzero(fits.status <= Status.FEW_POINTS).tolist():
        known = plain.fitted(plain.prepared(*series[i], rising[i]), target[i], end[i], 0.3)
        params = fits.params[i]
        for column in (C_K_LAST, C_LEVEL, C_SLOPE, C_RATE, C_POWER):
            assert params[column] == pytest.approx(known[column], rel=1e-8), i
        assert params[[C_PLATEAU, C_PLATEAU_SPREAD, C_TIME_SPREAD]] == pytest.approx(known[5:], rel=1e-8, abs=1e-12), i
        compared += 1
    assert compared > COUNT / 2


def test_curves_of_optimus() -> None:
    series, rising = observations(4)
    fits = fit_inverse(series, rising)
    compared = 0
    for i in np.flatnonzero(np.isfinite(fits.b).all(1)).tolist()[::2]:
        seen = plain.prepared(*series[i], rising[i])
        unit = plain.inverse_loss(seen, fits.offset[i])[1].min()
        _, known = plain.inverse_fitted(seen, fits.offset[i])
        t, loss, w = plain.inverse_loss(seen, fits.offset[i])
        b = fits.b[i] * [seen["k_last"], 1, 1]
        found = w @ (loss / unit - (1 / (b[0] * t + b[1]) + b[2]) / unit) ** 2
        # Coefficients are only as sure as the loss is steep about its least, so it is the loss that has to be the same.
        assert found == pytest.approx(known, rel=1e-6, abs=1e-12), i
        compared += 1
    assert compared > COUNT / 4


def test_values_of_curves() -> None:
    """Straight from the formula of `headway.perf.params`."""
    rng = np.random.default_rng(5)
    params = np.stack([
        rng.uniform(1, 100, 50), rng.uniform(0, 1, 50), rng.normal(size=50), rng.uniform(0.01, 1, 50),
        rng.choice(plain.POWERS, 50), rng.uniform(0, 1, 50), rng.uniform(0, 1, 50), np.ones(50),
    ], axis=1)  # fmt: skip
    params[:5, C_SLOPE] = 0.0
    k = params[:, C_K_LAST] + rng.uniform(0, 100, 50)
    k_last, level, slope, rate, power, plateau, spread = params.T[:7]
    y = level + slope * (1 - (1 + rate * (k - k_last)) ** -power) / (power * rate)
    y = np.where(slope == 0, plateau, np.where(slope > 0, np.minimum(y, plateau), np.maximum(y, plateau)))
    done = np.minimum(np.abs(y - level) / np.abs(plateau - level), 1)
    assert forecast.value_at(params, k) == pytest.approx(y, rel=1e-9)
    assert forecast.value_at(params, k, 0.95) == pytest.approx(y + done * spread, rel=1e-9)
    assert forecast.value_at(params[7], k[:3]).shape == (3,)
    assert forecast.value_at(params[:6].reshape(2, 3, 8), k[:3]).shape == (2, 3)


@pytest.mark.parametrize("seed", range(20))
def test_selection(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))
    values = rng.integers(0, 10 if seed % 2 else 1000, count).astype(float)
    weights = rng.uniform(0, 1, count)
    padded = np.concatenate([[7.0], values, [9.0]])
    assert median(padded, 1, count + 1) == np.median(values)
    assert (padded[0], padded[-1]) == (7.0, 9.0)
    for level in (0.05, 0.5, 0.84):
        assert weighted_quantile(values, weights, count, level * weights.sum()) == plain.quantiles(values, weights, level)[0]
    assert weighted_quantile(values, weights, count, 2 * weights.sum()) == values.max()
