"""Percentiles, means and the meaning of None."""

import numpy as np
import pytest

from headway.metrics.summary import jain, mean_s, nearest_rank


@pytest.mark.parametrize(
    ("count", "percent", "rank"),
    [
        (1, 50, 1),
        (1, 99, 1),
        (2, 50, 1),
        (3, 50, 2),
        (4, 50, 2),
        (5, 50, 3),
        (100, 99, 99),
        (101, 99, 100),
        (200, 99, 198),
        (10, 99, 10),
    ],
)
def test_a_percentile_is_by_nearest_rank(count: int, percent: int, rank: int) -> None:
    assert nearest_rank(np.arange(1, count + 1), percent) == rank


def test_a_mean_is_exact_where_a_sum_of_int64_would_wrap() -> None:
    large = np.full(4, 2**62, np.int64)
    assert mean_s(large) == 2**62 / 1e6
    assert mean_s(large[:0]) is None


def test_jains_index_is_one_for_equals_and_a_share_for_one_alone() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert jain([]) is None and jain([0.0]) is None
