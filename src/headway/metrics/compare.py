"""Is one policy better than another? Paired runs on the same workloads, the median, and a bootstrap interval.

The improvement of a figure y over the baseline's z is (y − z)/z (MLFS §4.2), turned so that more is better: for costs such as
JCT a reduction counts as positive. A policy is called better or worse only where the interval of the median excludes 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

PAIRS_MIN = 5
"""With fewer pairs an interval of 95 % means nothing: even all signs alike happen by chance in over 5 % of the cases."""
RESAMPLES = 10_000
LEVEL_FRAC = 0.95

HIGHER_IS_BETTER = frozenset(
    """finished gpu_busy_frac deadline_ratio urgent_deadline_ratio avg_accuracy avg_final_accuracy accuracy_ratio
    fairness_jain""".split()
)
"""Figures of which more is better; of all others that `LOWER_IS_BETTER` names, less."""
LOWER_IS_BETTER = frozenset(
    """avg_jct_s p50_jct_s p90_jct_s p99_jct_s makespan_s avg_wait_s p50_wait_s p99_wait_s max_wait_s avg_bounded_slowdown
    queue_length_avg queue_length_max finish_time_fairness finish_time_fairness_max unfair_job_frac cross_node_bytes
    gpu_overhead_frac preemptions migrations decide_ms_avg decide_ms_p50 decide_ms_p99""".split()
)


@dataclass(frozen=True, slots=True)
class Paired:
    """How much better a policy is than a baseline, as a share of the baseline's figure, over pairs of runs."""

    pairs: int
    median_frac: float | None
    low_frac: float | None
    high_frac: float | None

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `unclear`: the interval says so, not the median."""
        if self.low_frac is None or self.high_frac is None:
            return "unclear"
        return "better" if self.low_frac > 0 else "worse" if self.high_frac < 0 else "unclear"

    def to_json(self) -> dict[str, float | int | str | None]:
        """The figures by name, and the verdict."""
        return {**asdict(self), "verdict": self.verdict}


def paired(figure: str, ours: Sequence[float | None], baseline: Sequence[float | None], *, resamples: int = RESAMPLES) -> Paired:
    """Compare the values of a figure run by run. Pairs in which a value is missing or the baseline's is 0 are left out; the
    interval is None with fewer than `PAIRS_MIN` left. The same values give the same interval.

    Raises:
        ValueError: the rows differ in length, or the figure is one that is neither better nor worse.
    """
    if figure not in HIGHER_IS_BETTER | LOWER_IS_BETTER:
        raise ValueError(f"{figure} is neither better nor worse when it is higher")
    sign = 1.0 if figure in HIGHER_IS_BETTER else -1.0
    gains = [sign * (y - z) / abs(z) for y, z in zip(ours, baseline, strict=True) if y is not None and z]
    if not gains:
        return Paired(0, None, None, None)
    values = np.array(gains)
    low, high = bootstrap_median(values, resamples) if len(gains) >= PAIRS_MIN else (None, None)
    return Paired(len(gains), float(np.median(values)), low, high)


def bootstrap_median(values: NDArray[np.float64], resamples: int = RESAMPLES) -> tuple[float, float]:
    """The percentile interval of the median of values, at `LEVEL_FRAC`. The draws are those of a fixed seed: PCG64's 32 high
    bits, scaled by integer arithmetic.
    """
    count = len(values)
    bits = np.random.PCG64(np.random.SeedSequence(zlib.crc32(b"bootstrap"))).random_raw(resamples * count)
    drawn = ((bits >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64).reshape(resamples, count)
    medians = np.sort(np.median(values[drawn], axis=1))
    tail = (1 - LEVEL_FRAC) / 2
    low, high = int(tail * resamples), int(np.ceil((1 - tail) * resamples)) - 1
    return float(medians[low]), float(medians[high])


def median(values: Sequence[float | None]) -> float | None:
    """The median of the values that are known; None of nothing."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
