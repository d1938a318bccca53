"""Percentiles, means and the meaning of None."""

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.events import EventBuffer
from headway.metrics.fold import MetricsFold
from headway.metrics.summary import jain, mean_s, nearest_rank
from headway.workloads.schema import plain_spec


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


def test_accuracy_and_bytes_come_from_the_last_words_of_attempts() -> None:
    """a reaches its 0.8 by the deadline, b only at the end, c is rejected: a third. The mean by the deadline is that of a and b;
    b's first attempt was preempted and moved bytes too."""
    fold, out = MetricsFold(), EventBuffer()
    for job, required in enumerate((800_000, 800_000, 800_000, 0)):
        spec = plain_spec(1)[:, 0]
        spec[c.J_ACC_REQUIRED] = required
        out.add(0, EventKind.SUBMITTED, job, payload=spec)
    out.add(0, EventKind.REJECTED, 2)
    for job in (0, 1, 3):
        out.add(0, EventKind.START_REQUESTED, job, 1, b=1, payload=(0, 1, 1000))
        out.add(0, EventKind.STARTED, job, 1)
    out.add(5, EventKind.STOP_REQUESTED, 1, 1, a=c.Reason.PREEMPTED)
    out.add(5, EventKind.STOPPED, 1, 1, a=c.Reason.PREEMPTED, payload=(70,))
    out.add(5, EventKind.START_REQUESTED, 1, 2, b=1, payload=(0, 1, 1000))
    out.add(5, EventKind.STARTED, 1, 2)
    out.add(9, EventKind.COMPLETED, 0, 1, payload=(100, 900_000, 800_000))
    out.add(9, EventKind.COMPLETED, 1, 2, payload=(30, 850_000, 790_000))
    out.add(9, EventKind.COMPLETED, 3, 1)
    fold.update(out.take())
    figures = fold.summary(4)
    assert figures.accuracy_ratio == pytest.approx(1 / 3) and figures.avg_accuracy == pytest.approx(0.795)
    assert figures.avg_final_accuracy == pytest.approx(0.875) and figures.cross_node_bytes == 200
