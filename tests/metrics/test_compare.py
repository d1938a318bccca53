"""Paired comparisons: by hand, and what an interval may claim."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.metrics.compare import PAIRS_MIN, bootstrap_median, median, paired


def test_the_improvement_is_turned_so_that_more_is_better() -> None:
    lower = paired("avg_jct_s", [50, 60, 70], [100, 100, 100])
    assert (lower.pairs, lower.median_frac) == (3, pytest.approx(0.4))
    assert paired("deadline_ratio", [0.9], [0.6]).median_frac == pytest.approx(0.5)


def test_few_pairs_claim_nothing() -> None:
    few = paired("avg_jct_s", [1.0] * (PAIRS_MIN - 1), [2.0] * (PAIRS_MIN - 1))
    assert (few.median_frac, few.low_frac, few.verdict) == (0.5, None, "unclear")
    enough = paired("avg_jct_s", [1.0] * PAIRS_MIN, [2.0] * PAIRS_MIN)
    assert (enough.low_frac, enough.high_frac, enough.verdict) == (0.5, 0.5, "better")
    assert paired("avg_jct_s", [2.0] * PAIRS_MIN, [1.0] * PAIRS_MIN).verdict == "worse"
    assert paired("avg_jct_s", [1.0] * PAIRS_MIN, [1.0] * PAIRS_MIN).verdict == "unclear"


def test_an_interval_over_zero_is_unclear_whatever_the_median() -> None:
    found = paired("avg_jct_s", [90, 90, 90, 90, 90, 90, 150, 150, 150, 150], [100] * 10)
    assert found.median_frac == pytest.approx(0.1) and found.verdict == "unclear"
    assert found.to_json()["verdict"] == "unclear"


def test_missing_values_and_zeros_are_left_out() -> None:
    found = paired("preemptions", [5, None, 3, 4], [10, 1, 0, None])
    assert (found.pairs, found.median_frac) == (1, 0.5)
    assert paired("preemptions", [], []).median_frac is None
    assert (median([None, 3, 1]), median([None])) == (2, None)


def test_what_is_neither_better_nor_worse_is_refused() -> None:
    with pytest.raises(ValueError, match="rounds is neither better nor worse"):
        paired("rounds", [1], [2])
    with pytest.raises(ValueError, match="longer"):
        paired("avg_jct_s", [1], [2, 3])


def test_the_interval_is_that_of_the_medians_of_all_resamples() -> None:
    """Three values: a resample's median is the least with 7 of 27 draws, the greatest with 7: both ends are in the interval."""
    assert bootstrap_median(np.array([1.0, 2.0, 3.0])) == (1.0, 3.0)
    assert bootstrap_median(np.arange(101.0)) == bootstrap_median(np.arange(101.0))
    low, high = bootstrap_median(np.arange(101.0))
    # For 101 values the order statistics at (101 ± 1.96 √101)/2 bound the median at 95 %: 41st and 61st.
    assert low == pytest.approx(40, abs=3) and high == pytest.approx(60, abs=3)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12))
def test_the_interval_holds_values_between_the_extremes(values: list[float]) -> None:
    low, high = bootstrap_median(np.array(values), resamples=200)
    assert min(values) <= low <= high <= max(values)
