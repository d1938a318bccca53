"""Fits of one curve in plain NumPy, straight from the formulas: what the compiled ones are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.core.arrays import Floats
from headway.perf.observed import LARGEST, POINTS_MAX, RAW_MAX, RECENT, SMALLEST

RATES = 10.0 ** np.linspace(-1, 3, 15)
POWERS = np.array([-1.0, -0.6, -0.3, 0.01, 0.3, 0.6, 1.0, 2.0, 6.0])
RATE, POWER = (grid.ravel() for grid in np.meshgrid(RATES / (1 + RATES), POWERS, indexing="ij"))
NODES, SHARES = np.array([-1.6, -0.7, 0.0, 0.7, 1.6]), np.array([0.13, 0.24, 0.26, 0.24, 0.13])


def cleaned(k: Any, y: Any) -> tuple[Floats, Floats]:
    k, y = np.asarray(k, float), np.asarray(y, float)
    keep = np.isfinite(k) & (k > SMALLEST) & (k < LARGEST) & (np.abs(np.nan_to_num(y, nan=np.inf)) < LARGEST)
    k, which = np.unique(k[keep], return_inverse=True)
    y = np.bincount(which, y[keep]) / np.bincount(which)
    if len(k) > RAW_MAX:
        groups = np.arange(len(k)) // -(-len(k) // RAW_MAX)
        k, y = (np.bincount(groups, v) / np.bincount(groups) for v in (k, y))
    return k, y


def prepared(k: Any, y: Any, rising: bool) -> dict[str, Any]:
    k, y = cleaned(k, y)
    size, sign = len(k), -1.0 if rising else 1.0
    bounded = y.min() >= 0 and (not rising or y.max() <= 1)
    y = sign * y
    noise = np.median(np.abs(np.diff(y, 2))) / (0.6745 * np.sqrt(6)) if size >= 4 else 0.0
    if size >= 7:
        width = 5 if size >= 15 else 3
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(y, width // 2, mode="reflect"), width)
        y = np.median(windows, axis=1)
    best, k_last = y.min(), k[-1]
    if size >= 12:
        five = [i for i in range(size - 4) if np.all(y[i : i + 5] < y[0])]
        start = max(five[0] - 1, 0) if five else 0
        if size - start >= 5:
            k, y = k[start:], y[start:]
    if len(k) > POINTS_MAX:
        scale = np.log(k / k_last + RECENT)
        span = np.digitize(scale, np.linspace(scale[0], scale[-1], POINTS_MAX + 1)[1:-1])
        k, y = (np.array([v[span == s].mean() for s in np.unique(span)]) for v in (k, y))
    now = np.median(y[-3:]) if len(y) >= 6 else y[-1]
    scale = y[: max(1, len(y) // 8)].max() - now
    if scale > 0:
        scale = max(scale, np.abs(y - now).max() / 1e6)
    bound = (-1.0 if rising else 0.0) if bounded else -np.inf
    return {
        "t": k / k_last, "z": (y - now) / scale if scale > 0 else 0 * y, "k_last": k_last, "now": now, "scale": scale,
        "noise": noise, "best": best, "sign": sign, "bound": bound, "points": size,
    }  # fmt: skip


def phi(t: Any) -> Floats:
    """Of all shapes (first axis) at t."""
    rate, power = RATE[:, None], POWER[:, None]
    result: Floats = np.expm1(-power * np.log(np.maximum(1 + rate * (np.atleast_1d(t)[None] - 1), 1e-12))) / (power * rate)
    return result


def quantiles(values: Floats, weights: Floats, *levels: float) -> list[float]:
    order = np.argsort(values, axis=None)
    mass = np.cumsum(weights.ravel()[order])
    return [float(values.ravel()[order][np.searchsorted(mass, level * mass[-1])]) for level in levels]


def fitted(seen: dict[str, Any], target: float, k_end: float, k_end_log_sd: float) -> Floats:
    """The CURVE vector of observations that change, before calibration."""
    t, z, scale, now, k_last, sign = (seen[name] for name in ("t", "z", "scale", "now", "k_last", "sign"))
    w = np.maximum(t, 1e-3) ** 3
    w = w * min(len(t), 4) / w.sum()
    count, f, whole = w.sum(), phi(t), phi(0.0)[:, 0]
    s1, s2, sum_fz = f @ w, f**2 @ w + 1e-3 * whole**2, f @ (w * z) + 1e-3 * whole
    sum_z, sum_zz = w @ z, w @ z**2
    det = np.maximum(count * s2 - s1**2, 1e-12 * whole**2)
    a = np.maximum((count * sum_fz - s1 * sum_z) / det, 0.02 / whole)
    b = (sum_z - a * s1) / count
    rest = sum_zz - 2 * b * sum_z - 2 * a * sum_fz + b * b * count + 2 * a * b * s1 + a * a * s2
    rest = 1e-4 + np.maximum(rest, 0) / 2
    log_weight = -0.5 * np.log(det / whole**2) - count / 2 * np.log(rest)
    log_weight -= log_weight.max()
    weight, a_sd = np.exp(log_weight), np.sqrt(rest / (1 + count / 2) * count / det)
    amplitudes = np.maximum(a[:, None] + NODES * a_sd[:, None], 0.1 * a[:, None])

    known = k_end > 0
    end_log = np.log(k_end / k_last) if known else 0.0
    ends = 1 / (1 - (np.arange(7) + 0.5) / 7)
    if known:
        steps = np.array([-1.465, -0.792, -0.366, 0.0, 0.366, 0.792, 1.465])
        ends = np.maximum(np.exp(np.minimum(end_log + k_end_log_sd * steps, 5)), 1.005)
    kept = np.argsort(-weight, kind="stable")[:24]
    values = b[kept, None, None] + amplitudes[kept, :, None] * phi(ends)[kept, None, :]
    weights = weight[kept, None, None] * SHARES[None, :, None] * np.ones(len(ends))
    floor = (seen["bound"] - now) / scale
    low, middle, high = (max(v, floor) for v in quantiles(values, weights, 0.05, 0.5, 0.95))

    goal = np.clip(np.clip(target, -1e100, 1e100) * sign - now, -1e9 * scale, 1e9 * scale) / scale
    goal = goal if goal < 0 else 0.5 * min(middle, -1e-6)
    base = 1 + (POWER * RATE)[:, None] * np.minimum((goal - b[:, None]) / amplitudes, 0)
    with np.errstate(all="ignore"):
        x = 1 + np.expm1(np.minimum(-np.log(base) / POWER[:, None], 700)) / RATE[:, None]
    x = np.clip(np.where(base > 0, x, np.inf), 1.005, 100)
    density = x**-2.0
    if known:
        density = np.exp(np.maximum(-0.5 * ((np.log(x) - end_log) / (k_end_log_sd * 0.5)) ** 2, -200)) + 0.001
    early, ratio, late = quantiles(x, weight[:, None] * SHARES * density, 0.16, 0.5, 0.84)

    gap = (b + a * phi(ratio)[:, 0] - goal) / np.maximum(np.abs(b - goal), 1e-3)
    score = log_weight - (gap / 0.2) ** 2
    cell = int(np.flatnonzero(score > score.max() - 1e-9)[0])
    level = max(b[cell], goal + 1e-9)
    slope = (goal - level) / phi(ratio)[cell, 0]
    middle = min(middle, level)
    least = max(seen["noise"] / scale / 2, 0.02, 0.5 * abs(level - middle))
    return np.array([
        k_last, sign * (now + level * scale), -sign * slope * scale / k_last, RATE[cell] / k_last, POWER[cell],
        sign * (now + middle * scale), max(high - middle, middle - low, least) * scale,
        max(0.5 * np.log((late - 1) / (early - 1)), 0.4),
    ])  # fmt: skip


def inverse_loss(seen: dict[str, Any], offset: float) -> tuple[Floats, Floats, Floats]:
    """t, losses above 0 and weights by thirds."""
    loss = seen["now"] + seen["z"] * seen["scale"] + offset
    done = np.arange(len(loss)) / len(loss)
    return seen["t"], loss, np.select([done < 1 / 3, done < 2 / 3], [1 / 256, 1 / 16], 1.0)


def inverse_fitted(seen: dict[str, Any], offset: float) -> tuple[Floats, float]:
    """b0, b1, b2 of the falling curve `offset + sign·y`, k counted in k_last, and its weighted sum of squares."""
    t, loss, w = inverse_loss(seen, offset)
    unit = loss.min()
    loss = loss / unit
    grid = np.concatenate([np.linspace(0, 0.9, 20), 1 - np.geomspace(0.08, 0.001, 20)])

    def sse(b: Floats) -> float:
        return float(w @ (loss - 1 / np.maximum(b[0] * t + b[1], 1e-9) - b[2]) ** 2)

    def line(b2: float) -> Floats:
        root = np.sqrt(w) * (loss - b2) ** 2
        a, y = np.stack([t, np.ones_like(t)], axis=1) * root[:, None], root / (loss - b2)
        tried = [np.linalg.lstsq(a, y, rcond=None)[0]]
        tried += [np.array([a[:, 0] @ y / (a[:, 0] @ a[:, 0]), 0.0]), np.array([0.0, a[:, 1] @ y / (a[:, 1] @ a[:, 1])])]
        tried = [x for x in tried if np.all(x >= 0)]
        return np.array([*min(tried, key=lambda x: float(np.sum((a @ x - y) ** 2))), b2])

    b = min((line(b2) for b2 in grid), key=sse)
    for _ in range(6):
        u = np.maximum(b[0] * t + b[1], 1e-9)
        root = np.sqrt(w)
        jacobian = np.stack([-t / u**2, -1 / u**2, np.ones_like(t)], axis=1) * root[:, None]
        inner = jacobian.T @ jacobian
        inner += (1e-9 * np.trace(inner) + 1e-12) * np.eye(3)
        step = np.linalg.solve(inner, jacobian.T @ (root * (loss - 1 / u - b[2])))
        tried = np.clip(b + step, [0, 1e-6, 0], [1e6, 1e6, 0.999])
        b = tried if sse(tried) < sse(b) else b
    return b * [1 / unit, 1 / unit, unit], sse(b)
