"""How many curve fits a second one core does: `python bench/fits.py`, or `fits_per_s()`."""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import time  # noqa: E402

import numpy as np  # noqa: E402

from headway.perf.curve import fit_curves  # noqa: E402


def curves(count: int, points: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Noisy losses of the kind `1/(b0·k + b1) + b2`, seen up to a random moment."""
    rng = np.random.default_rng(seed)
    series = []
    for _ in range(count):
        k = np.arange(1.0, points + 1)
        loss = 2.3 / (1 + 99 * k / (points * rng.uniform(1, 10))) + rng.uniform(0.1, 0.5)
        series.append((k, loss * (1 + 0.02 * rng.normal(size=points))))
    return series


def fits_per_s(count: int = 1000, points: int = 200, repeats: int = 3) -> float:
    """Fits per second of processor time, the best of some runs."""
    series, target = curves(count, points), np.full(count, 0.5)
    fit_curves(series[:10])
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        fit_curves(series, target=target)
        times.append(time.process_time() - begin)
    return count / min(times)


if __name__ == "__main__":
    print(f"{fits_per_s():,.0f} curve fits/s (1,000 jobs with 200 observations each)")
