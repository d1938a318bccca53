"""How many curve fits a second one core does, and how long a small batch takes: `python bench/fits.py`."""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import time  # noqa: E402

import numpy as np  # noqa: E402

from headway.core.columns import Estimator  # noqa: E402
from headway.perf.curve import fit_curves  # noqa: E402
from headway.perf.estimators import JobHistory, answer  # noqa: E402


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


def batch_ms(kind: str, jobs: int = 3, points: int = 100, repeats: int = 200) -> float:
    """Milliseconds to answer one request (`curve`, `inverse`, `speed`) for some jobs at once, the best of many tries."""
    workers = np.array([1.0, 2, 4, 8])
    histories = [
        JobHistory(k=k, loss=loss, step_s=1 / workers + 0.1, workers=workers, nodes=np.ones(4), batch=np.full(4, 32.0))
        for k, loss in curves(jobs, points)
    ]
    estimator = Estimator[kind.upper()]
    answer(estimator, histories)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        answer(estimator, histories)
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


if __name__ == "__main__":
    for name in ("curve", "inverse", "speed"):
        print(f"{batch_ms(name):.3f} ms: {name} of three jobs")
    print(f"{fits_per_s():,.0f} curve fits/s (1,000 jobs with 200 observations each)")
